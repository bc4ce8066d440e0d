//! What both shops have in common: their business tables, their rules, and how a service process lives.

mod books;
mod service;

pub(crate) use books::{Effect, Step, migrate, record, refusal};
pub(crate) use service::{Files, Map, serve, service_args, think};
