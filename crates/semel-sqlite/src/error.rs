//! From SQLite's result codes to what a caller may do next, in one place.

use semel_core::{ErrorKind, StoreError};

/// The kind of a failed statement or connection outside of a commit.
#[must_use]
pub fn classify(operation: &'static str, error: sqlx::Error) -> StoreError {
    let (kind, message) = match code(&error) {
        // SQLITE_BUSY, SQLITE_LOCKED
        Some(5 | 6) => (
            ErrorKind::NotApplied,
            "another process holds the file; raise busy_timeout or retry",
        ),
        // SQLITE_READONLY, SQLITE_PERM, SQLITE_AUTH
        Some(8 | 3 | 23) => (
            ErrorKind::Unavailable,
            "the file is read-only; check its owner and its folder's",
        ),
        // SQLITE_FULL
        Some(13) => (
            ErrorKind::NotApplied,
            "the disk is full; nothing was written, free space and retry",
        ),
        // SQLITE_IOERR
        Some(10) => (
            ErrorKind::NotApplied,
            "the disk reports an error; nothing was committed",
        ),
        // SQLITE_CANTOPEN
        Some(14) => (
            ErrorKind::Unavailable,
            "the file cannot be opened; does its folder exist and is it writable?",
        ),
        // SQLITE_CORRUPT, SQLITE_NOTADB
        Some(11 | 26) => (
            ErrorKind::Corrupt,
            "the file is damaged or no SQLite database; restore it from a backup",
        ),
        // SQLITE_CONSTRAINT, SQLITE_MISMATCH; what a function says of a value is a plain SQLITE_ERROR
        Some(19 | 20) => (ErrorKind::Constraint, "a constraint or a type refused the data"),
        Some(1) if refuses_data(&error) => (ErrorKind::Constraint, "a function refused the data"),
        // SQLITE_TOOBIG
        Some(18) => (ErrorKind::LimitExceeded, "a value is larger than SQLite allows"),
        // SQLITE_ERROR: in practice a missing table
        Some(1) => (
            ErrorKind::Schema,
            "the statement was refused; run `semel migrate` or Sqlite::migrate first",
        ),
        None if matches!(error, sqlx::Error::Encode(_)) => {
            (ErrorKind::Constraint, "a value could not be sent")
        }
        _ => (
            ErrorKind::NotApplied,
            "SQLite gave no answer; nothing was committed",
        ),
    };
    StoreError::new(kind, operation, message).with_source(error)
}

/// Whether a function's refusal blames the value that it was given, so that the same value would fail again. SQLite has
/// no code for it: its words, as its source has them, tell it from a statement that is wrong.
fn refuses_data(error: &sqlx::Error) -> bool {
    const OF_DATA: [&str; 8] = [
        "malformed JSON",
        "JSON path error",
        "bad JSON path",
        "JSON cannot hold BLOB",
        "integer overflow",
        "LIKE or GLOB pattern too complex",
        "fts5: syntax error",
        "ESCAPE expression must be",
    ];
    let words = error.as_database_error().map(|error| error.message());
    words.is_some_and(|words| OF_DATA.iter().any(|start| words.starts_with(start)))
}

/// The kind of a failed commit: certain refusals only where SQLite says so, everything else is unknown.
#[must_use]
pub fn commit_failed(operation: &'static str, error: sqlx::Error) -> StoreError {
    match code(&error) {
        Some(5 | 6 | 13 | 19) => classify(operation, error),
        _ => StoreError::new(
            ErrorKind::ReplyLost,
            operation,
            "the commit's answer is missing: look before repeating",
        )
        .with_source(error),
    }
}

/// Another connection holds the file (SQLITE_BUSY).
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    code(error) == Some(5)
}

/// SQLite's primary result code: the low byte of the extended one.
fn code(error: &sqlx::Error) -> Option<i32> {
    let code = error.as_database_error()?.code()?.parse::<i32>().ok()?;
    Some(code & 0xff)
}
