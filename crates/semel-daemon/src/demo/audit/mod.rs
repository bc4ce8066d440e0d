//! The audit: what the services' own files say, compared with what the customers asked for.
//!
//! Every number is counted from rows and from the answers that the customers got; nothing is taken from logs, or
//! from what a service says about itself.

mod books;
mod count;
mod print;
#[cfg(test)]
mod tests;

pub(crate) use books::{Books, events_applied, read};
pub(crate) use count::{Audit, audit};
pub(crate) use print::{Look, json, table, verdicts};
