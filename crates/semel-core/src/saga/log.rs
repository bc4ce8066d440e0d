//! The log of a saga: written in the commit of the transition it tells of.

use crate::host::Timestamp;

use super::names::Op;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// The step's name, where it is about one.
    pub step: Option<String>,
    /// The operation, where it is about a call.
    pub op: Option<Op>,
    /// A word: `started`, `succeeded`, `refused`, `unknown`, `turned`, `stuck`, `completed`, …
    pub event: String,
    /// Details for people; at most [`limits::SAGA_TEXT_BYTES_MAX`](crate::limits::SAGA_TEXT_BYTES_MAX) bytes.
    pub text: String,
}

/// A log entry as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRow {
    /// The version of the write it belongs to.
    pub version: i64,
    /// When, by the store's clock.
    pub at: Timestamp,
    /// What happened.
    pub entry: LogEntry,
}
