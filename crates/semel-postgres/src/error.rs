//! From SQLSTATE to what a caller may do next, in one place.

use semel_core::store::{BACKLOG_FULL, STREAM_UNKNOWN};
use semel_core::{ErrorKind, StoreError};
use sqlx::postgres::PgDatabaseError;

/// The kind of a failed statement or connection outside of a commit: nothing of the transaction is durable.
#[must_use]
pub fn classify(operation: &'static str, error: sqlx::Error) -> StoreError {
    let state = error
        .as_database_error()
        .and_then(|e| e.code())
        .map(|code| code.into_owned());
    if state.as_deref() == Some("SM210") {
        // A function of Semel has named the limit and what to do.
        return StoreError::new(ErrorKind::LimitExceeded, operation, refusal(&error)).with_source(error);
    }
    if state.as_deref() == Some("SM280") {
        let refused = StoreError::new(ErrorKind::Invalid, operation, refusal(&error));
        return refused.with_code("SEM0280").with_source(error);
    }
    if state.as_deref() == Some("SM260") {
        return StoreError::new(ErrorKind::NotApplied, operation, refusal(&error))
            .with_code(BACKLOG_FULL)
            .turned_away()
            .with_source(error);
    }
    if state.as_deref() == Some("SM261") {
        return StoreError::new(ErrorKind::Constraint, operation, refusal(&error))
            .with_code(STREAM_UNKNOWN)
            .with_source(error);
    }
    let (kind, message) = match state.as_deref() {
        Some("40001" | "40P01" | "55P03" | "57014") => (
            ErrorKind::NotApplied,
            "another transaction was in the way; repeat the whole transaction",
        ),
        Some("53100" | "53200") => (
            ErrorKind::NotApplied,
            "the server is out of disk or memory; nothing was written",
        ),
        Some("53300" | "57P01" | "57P02" | "57P03") => (
            ErrorKind::Unavailable,
            "the server takes no connections now; raise max_connections or wait",
        ),
        Some("25006") => (
            ErrorKind::Unavailable,
            "this is a standby or read-only server; connect to the primary",
        ),
        Some("42P01" | "3F000" | "42883" | "42703") => (
            ErrorKind::Schema,
            "Semel's schema is missing or old; run `semel migrate` or Postgres::migrate",
        ),
        Some("25P02") => (
            ErrorKind::Invalid,
            "an earlier statement of this transaction failed, so nothing was committed; do not swallow its error",
        ),
        Some("SM211") => (
            ErrorKind::Invalid,
            "the key is not marked here: complete it in the transaction in which `once` said First",
        ),
        Some("42501") => (
            ErrorKind::Invalid,
            "the role lacks a right; grant it USAGE on schema semel and its tables",
        ),
        Some("28P01" | "28000" | "3D000") => (
            ErrorKind::Invalid,
            "the server refuses this user, password or database; check the URL",
        ),
        // What PgBouncer says to a start-up setting that it does not track.
        Some("08P01") if error.to_string().contains("startup parameter") => (
            ErrorKind::Invalid,
            "a pooler stands before the server: add ?pooler=transaction to the URL, or let it run in session mode",
        ),
        Some(code) if refuses_data(code) => (
            ErrorKind::Constraint,
            "a constraint, a type or a trigger refused the data",
        ),
        Some(code) if code.starts_with("08") => (
            ErrorKind::NotApplied,
            "the connection broke; nothing was committed",
        ),
        Some(_) => (ErrorKind::Invalid, "the server refused the statement"),
        None => match &error {
            sqlx::Error::Io(io) if io.kind() == std::io::ErrorKind::ConnectionRefused => (
                ErrorKind::Unavailable,
                "the server refuses connections; is it running, and is the port right?",
            ),
            sqlx::Error::PoolTimedOut => (
                ErrorKind::Unavailable,
                "no connection within acquire_timeout; is the server up, is the pool too small?",
            ),
            sqlx::Error::Encode(_) => (ErrorKind::Constraint, "a value could not be sent"),
            _ => (
                ErrorKind::NotApplied,
                "the connection broke; nothing was committed",
            ),
        },
    };
    StoreError::new(kind, operation, message).with_source(error)
}

/// Whether this state blames the data, so that the same data would fail again: it gave more rows than one (21), broke a
/// type's rule (22) or a constraint (23), was too wide for an index or too deep for the stack (54), or a function of the
/// user's refused it with `RAISE EXCEPTION`.
fn refuses_data(state: &str) -> bool {
    matches!(state.get(..2), Some("21" | "22" | "23")) || matches!(state, "54000" | "54001" | "P0001")
}

/// A refusal by one of the functions in the database, in its words.
fn refusal(error: &sqlx::Error) -> String {
    let Some(error) = error.as_database_error() else {
        return String::new();
    };
    let hint = error
        .try_downcast_ref::<PgDatabaseError>()
        .and_then(PgDatabaseError::hint);
    format!("{}; {}", error.message(), hint.unwrap_or_default())
}

/// The kind of a failed statement that is a transaction of its own. The server's refusal proves that nothing was done;
/// a connection that broke while it ran proves nothing: the statement may have been committed.
#[must_use]
pub fn autocommit_failed(operation: &'static str, error: sqlx::Error) -> StoreError {
    let state = error
        .as_database_error()
        .and_then(|e| e.code())
        .map(|code| code.into_owned());
    match state.as_deref() {
        // The server ends the connection, perhaps between the commit and its answer.
        Some("40003" | "57P01" | "57P02" | "57P05") | None => {}
        Some(code) if code.starts_with("08") => {}
        Some(_) => return classify(operation, error),
    }
    StoreError::new(
        ErrorKind::ReplyLost,
        operation,
        "the connection broke before the answer came: it may have been done",
    )
    .with_source(error)
}

/// The kind of a failed commit: only class 40 (without 40003) and what refuses data prove a rollback; all else is unknown.
#[must_use]
pub fn commit_failed(operation: &'static str, error: sqlx::Error) -> StoreError {
    let state = error
        .as_database_error()
        .and_then(|e| e.code())
        .map(|code| code.into_owned());
    match state.as_deref() {
        Some("40003") | None => {}
        Some(code) if refuses_data(code) || code.starts_with("40") => return classify(operation, error),
        Some(_) => {}
    }
    StoreError::new(
        ErrorKind::ReplyLost,
        operation,
        "the commit's answer is missing: look before repeating",
    )
    .with_source(error)
}
