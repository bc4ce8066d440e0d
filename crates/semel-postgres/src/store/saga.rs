//! Sagas on PostgreSQL. Being written by helper `pgsaga` (with sql/0004_saga.sql and tx/barrier.rs of this crate);
//! helper `saga`: leave PostgreSQL to it and go on with the coordinator.
