//! From SQLite's result codes to what a caller may do next, in one place.

use semel_core::store::{BACKLOG_FULL, STREAM_UNKNOWN};
use semel_core::{ErrorKind, StoreError};

/// SQLITE_FULL: the disk, or the file by its `max_page_count`.
const FULL: i32 = 13;

/// The kind of a failed statement or connection outside of a commit.
#[must_use]
pub fn classify(operation: &'static str, error: sqlx::Error) -> StoreError {
    if matches!(error, sqlx::Error::Encode(_)) {
        return StoreError::new(ErrorKind::Constraint, operation, "a value could not be sent")
            .with_source(error);
    }
    let words = error.as_database_error().map(|error| error.message());
    told(operation, code(&error), words).with_source(error)
}

/// The same of a connection of our own.
pub(crate) fn direct_failed(operation: &'static str, error: rusqlite::Error) -> StoreError {
    let words = match &error {
        rusqlite::Error::SqliteFailure(_, words) => words.as_deref(),
        rusqlite::Error::SqlInputError { msg, .. } => Some(msg.as_str()),
        _ => None,
    };
    told(operation, direct_code(&error), words).with_source(error)
}

/// What SQLite's code and words mean.
fn told(operation: &'static str, code: Option<i32>, words: Option<&str>) -> StoreError {
    // A trigger of Semel's has said what is full, or that nobody has registered the stream.
    if words.is_some_and(|words| words.starts_with(BACKLOG_FULL)) {
        let text = "the stream takes no more events now; write again when its relay has caught up, or raise its limit";
        return StoreError::new(ErrorKind::NotApplied, operation, text).with_code(BACKLOG_FULL);
    }
    if words.is_some_and(|words| words.starts_with(STREAM_UNKNOWN)) {
        let text = "no relay has registered the stream, and only registered ones are written to here";
        return StoreError::new(ErrorKind::Constraint, operation, text).with_code(STREAM_UNKNOWN);
    }
    let (kind, message) = match code {
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
        Some(FULL) => (
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
        Some(1) if words.is_some_and(refuses_data) => (ErrorKind::Constraint, "a function refused the data"),
        // SQLITE_TOOBIG
        Some(18) => (ErrorKind::LimitExceeded, "a value is larger than SQLite allows"),
        // SQLITE_ERROR: in practice a missing table
        Some(1) => (
            ErrorKind::Schema,
            "the statement was refused; run `semel migrate` or Sqlite::migrate first",
        ),
        _ => (
            ErrorKind::NotApplied,
            "SQLite gave no answer; nothing was committed",
        ),
    };
    let error = StoreError::new(kind, operation, message);
    match code {
        Some(FULL) => error.full(),
        Some(8 | 3 | 23) => error.read_only(),
        _ => error,
    }
}

/// Whether a function's refusal blames the value that it was given, so that the same value would fail again. SQLite has
/// no code for it: its words, as its source has them, tell it from a statement that is wrong.
fn refuses_data(words: &str) -> bool {
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
    OF_DATA.iter().any(|start| words.starts_with(start))
}

/// The kind of a failed commit: certain refusals only where SQLite says so, everything else is unknown.
#[must_use]
pub fn commit_failed(operation: &'static str, error: sqlx::Error) -> StoreError {
    if is_refusal(code(&error)) {
        return classify(operation, error);
    }
    lost(operation).with_source(error)
}

/// The same of a connection of our own.
pub(crate) fn direct_commit_failed(operation: &'static str, error: rusqlite::Error) -> StoreError {
    if is_refusal(direct_code(&error)) {
        return direct_failed(operation, error);
    }
    lost(operation).with_source(error)
}

/// Whether this answer to a commit says that nothing was committed.
const fn is_refusal(code: Option<i32>) -> bool {
    matches!(code, Some(5 | 6 | FULL | 19))
}

fn lost(operation: &'static str) -> StoreError {
    let text = "the commit's answer is missing: look before repeating";
    StoreError::new(ErrorKind::ReplyLost, operation, text)
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

fn direct_code(error: &rusqlite::Error) -> Option<i32> {
    use rusqlite::Error::{SqlInputError, SqliteFailure};
    match error {
        SqliteFailure(error, _) | SqlInputError { error, .. } => Some(error.extended_code & 0xff),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: i32, words: &str) -> rusqlite::Error {
        rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), Some(words.to_owned()))
    }

    #[test]
    fn a_commit_is_refused_only_where_sqlite_says_so_and_lost_otherwise() {
        // SQLITE_BUSY, SQLITE_FULL, SQLITE_CONSTRAINT_FOREIGNKEY
        for code in [5, 13, 787] {
            let error = direct_commit_failed("claim", failure(code, ""));
            assert_ne!(error.kind(), ErrorKind::ReplyLost, "{code}: {error}");
        }
        // SQLITE_IOERR, SQLITE_IOERR_FSYNC, SQLITE_CORRUPT, SQLITE_ERROR
        for code in [10, 1034, 11, 1] {
            let error = direct_commit_failed("claim", failure(code, ""));
            assert_eq!(error.kind(), ErrorKind::ReplyLost, "{code}: {error}");
        }
        let error = direct_commit_failed("claim", rusqlite::Error::QueryReturnedNoRows);
        assert_eq!(error.kind(), ErrorKind::ReplyLost);
    }

    /// One run is better refused than run twice: somebody else may be running the key.
    #[test]
    fn a_full_busy_or_read_only_file_is_not_away() {
        for (code, full) in [
            (13, true),
            (5, false),
            (261, false),
            (6, false),
            (10, false),
            (9, false),
            // SQLITE_READONLY, SQLITE_READONLY_DBMOVED
            (8, false),
            (1032, false),
        ] {
            let error = direct_failed("claim", failure(code, ""));
            assert_eq!(
                (error.is_outage(), error.is_full()),
                (false, full),
                "{code}: {error}"
            );
        }
        let error = direct_commit_failed("claim", failure(13, ""));
        assert_eq!((error.kind(), error.is_full()), (ErrorKind::NotApplied, true));
    }

    #[test]
    fn a_failed_statement_is_told_apart_by_its_code_and_words() {
        let kinds = [
            (5, "database is locked", ErrorKind::NotApplied),
            (1, "no such table: semel_key", ErrorKind::Schema),
            (1, "malformed JSON", ErrorKind::Constraint),
            (1811, "RAISE", ErrorKind::Constraint),
            (
                1032,
                "attempt to write a readonly database",
                ErrorKind::Unavailable,
            ),
            (26, "file is not a database", ErrorKind::Corrupt),
        ];
        for (code, words, kind) in kinds {
            let error = direct_failed("claim", failure(code, words));
            assert_eq!(error.kind(), kind, "{code}: {error}");
            assert!(
                !error.is_outage(),
                "a file that answers is there: {code}: {error}"
            );
            assert_eq!(error.is_read_only(), code == 1032, "{code}: {error}");
        }
    }
}
