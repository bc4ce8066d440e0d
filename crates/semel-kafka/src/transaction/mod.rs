//! Kafka transactions: a producer that judges its own errors.

pub(crate) mod producer;
pub(crate) mod verdict;
