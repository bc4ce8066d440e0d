//! From SQLSTATE to what a caller may do next, in one place.

use semel_core::store::{BACKLOG_FULL, STREAM_UNKNOWN};
use semel_core::{ErrorKind, StoreError};
use sqlx::postgres::PgDatabaseError;

use crate::store::PARTITIONS_REFUSED;

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
        return refused.with_code(PARTITIONS_REFUSED).with_source(error);
    }
    if state.as_deref() == Some("SM260") {
        return StoreError::new(ErrorKind::NotApplied, operation, refusal(&error))
            .with_code(BACKLOG_FULL)
            .with_source(error);
    }
    if state.as_deref() == Some("SM261") {
        return StoreError::new(ErrorKind::Constraint, operation, refusal(&error))
            .with_code(STREAM_UNKNOWN)
            .with_source(error);
    }
    let (kind, message) = match state.as_deref() {
        Some(state) => refused(state, &error.to_string()),
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
    let found = StoreError::new(kind, operation, message);
    let found = match state.as_deref() {
        Some(state) if is_full(state) => found.full(),
        Some("25006") => found.read_only(),
        Some(state) if state.starts_with("08") && kind == ErrorKind::NotApplied => found.away(),
        None if kind == ErrorKind::NotApplied => found.away(),
        _ => found,
    };
    found.with_source(error)
}

/// Whether the server says that it has no room: its disk is full, or its memory.
fn is_full(state: &str) -> bool {
    matches!(state, "53100" | "53200")
}

/// What the server's refusal means. Where it is not known that the same statement can never go through, it may: a relay
/// that ends needs a person, and one that waits needs none.
fn refused(state: &str, words: &str) -> (ErrorKind, &'static str) {
    let class = state.get(..2).unwrap_or_default();
    match state {
        "40003" => (
            ErrorKind::NotApplied,
            "the connection broke; nothing was committed",
        ),
        "55P03" | "57014" | "55006" => (
            ErrorKind::NotApplied,
            "another transaction was in the way; repeat the whole transaction",
        ),
        "25P03" | "25P04" => (
            ErrorKind::NotApplied,
            "the server ended the transaction, which took longer than it allows; raise \
             idle_in_transaction_session_timeout or transaction_timeout, or look what held it up",
        ),
        _ if is_full(state) => (
            ErrorKind::NotApplied,
            "the server is out of disk or memory; nothing was written",
        ),
        "53300" | "57P01" | "57P02" | "57P03" | "57P04" | "57P05" => (
            ErrorKind::Unavailable,
            "the server takes no connections now; raise max_connections or wait",
        ),
        // Near the end of its transaction numbers the server takes no writes until it is vacuumed.
        "54000" if words.contains("not accepting commands") => (
            ErrorKind::NotApplied,
            "the database takes no writes until it is vacuumed; end old transactions and prepared ones, then VACUUM",
        ),
        "25006" => (
            ErrorKind::Unavailable,
            "this is a standby or read-only server; connect to the primary",
        ),
        // The schema was changed under a statement that this connection prepared before.
        "0A000" if words.contains("cached plan") => (
            ErrorKind::NotApplied,
            "the schema has changed under a prepared statement; repeat it on another connection",
        ),
        // A statement that one server prepared and another one was asked for.
        "26000" | "42P05" => (
            ErrorKind::NotApplied,
            "a prepared statement is not the server's: where a pooler stands before it, add ?pooler=transaction to the URL",
        ),
        "42P01" | "3F000" | "42883" | "42703" => (
            ErrorKind::Schema,
            "Semel's schema is missing or old; run `semel migrate` or Postgres::migrate",
        ),
        "25P02" => (
            ErrorKind::Invalid,
            "an earlier statement of this transaction failed, so nothing was committed; do not swallow its error",
        ),
        "SM211" => (
            ErrorKind::Invalid,
            "the key is not marked here: complete it in the transaction in which `once` said First",
        ),
        "42501" => (
            ErrorKind::Invalid,
            "the role lacks a right; grant it USAGE on schema semel and its tables",
        ),
        "28P01" | "28000" | "3D000" => (
            ErrorKind::Invalid,
            "the server refuses this user, password or database; check the URL",
        ),
        // What PgBouncer says to a start-up setting that it does not track.
        "08P01" if words.contains("startup parameter") => (
            ErrorKind::Invalid,
            "a pooler stands before the server: add ?pooler=transaction to the URL, or let it run in session mode",
        ),
        _ if refuses_data(state) => (
            ErrorKind::Constraint,
            "a constraint, a type or a trigger refused the data",
        ),
        _ if is_wrong(class) => (ErrorKind::Invalid, "the server refused the statement"),
        _ => match class {
            "08" => (
                ErrorKind::NotApplied,
                "the connection broke; nothing was committed",
            ),
            "40" => (
                ErrorKind::NotApplied,
                "another transaction was in the way; repeat the whole transaction",
            ),
            "53" => (
                ErrorKind::NotApplied,
                "the server has reached a limit of its own; nothing was written",
            ),
            "58" => (
                ErrorKind::NotApplied,
                "the server's disk or file system fails; nothing was written; look into its log",
            ),
            "XX" => (
                ErrorKind::NotApplied,
                "the server, or a pooler before it, met an error inside itself; nothing was written; look into its log",
            ),
            _ => (
                ErrorKind::NotApplied,
                "the server refused for a reason that may pass; nothing was written; if it goes on, its words say what to mend",
            ),
        },
    }
}

/// Whether states of this class say that the statement, or what it was said in, is wrong in itself: what the server does not
/// do (0A), a role or a grantor that is none (0L, 0P, 2B), a transaction, a cursor or a savepoint that is not as it has to be
/// (0B, 24, 25, 2D, 34, 3B), the login (28), the text, its names and the rights to them (3D, 3F, 42), and refusals of
/// Semel's own functions (SM).
fn is_wrong(class: &str) -> bool {
    matches!(
        class,
        "03" | "0A"
            | "0B"
            | "0L"
            | "0P"
            | "24"
            | "25"
            | "28"
            | "2B"
            | "2D"
            | "34"
            | "3B"
            | "3D"
            | "3F"
            | "42"
            | "SM"
    )
}

/// Whether this state blames the data, so that the same data would fail again: it gave more rows than one (21), broke a
/// type's rule (22) or a constraint (23, 40002) or a view's condition (44), was too wide for an index or too deep for the
/// stack (54), or a function of the user's refused it with `RAISE EXCEPTION` (P0).
fn refuses_data(state: &str) -> bool {
    matches!(state.get(..2), Some("21" | "22" | "23" | "44" | "54" | "P0")) || state == "40002"
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
        // So does a pooler whose connection to the server broke.
        Some(code) if code == "58000" || code.starts_with("08") || code.starts_with("XX") => {}
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
    let text = "the commit's answer is missing: look before repeating";
    let lost = StoreError::new(ErrorKind::ReplyLost, operation, text);
    let full = state.as_deref().is_some_and(is_full);
    let lost = if full { lost.full() } else { lost };
    lost.with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_of_the_server_has_its_kind() {
        use ErrorKind::{Constraint, Invalid, NotApplied, Schema, Unavailable};
        let old = "database is not accepting commands that assign new transaction IDs to avoid wraparound data loss";
        for (states, words, kind) in [
            // Others were in the way, or the server ended what took too long.
            ("40001 40P01 40000 55P03 55006 57014 25P03 25P04", "", NotApplied),
            // Full, at a limit, or broken for the moment.
            ("53000 53100 53200 53400 54000", old, NotApplied),
            ("58000 58030 58P01 XX000 XX001 XX002 72000 F0000", "", NotApplied),
            ("0A000", "cached plan must not change result type", NotApplied),
            (
                "26000 42P05",
                "prepared statement \"sqlx_s_1\" does not exist",
                NotApplied,
            ),
            // Nobody has heard of them.
            (
                "09000 27000 38000 55000 57000 HV000 Y2K00 99999 x",
                "",
                NotApplied,
            ),
            ("53300 57P01 57P02 57P03 57P04 57P05 25006", "", Unavailable),
            // The same again will not do.
            ("42P01 42703 42883 3F000", "", Schema),
            (
                "42601 42501 42804 0A000 25001 25P01 25P02 28000 28P01 3D000 3B001 SM211 SM999",
                "",
                Invalid,
            ),
            ("08P01", "unsupported startup parameter: options", Invalid),
            ("08006 08P01", "protocol violation", NotApplied),
            (
                "21000 22001 22P02 23505 23514 40002 44000 54000 54001 P0001 P0002",
                "",
                Constraint,
            ),
        ] {
            for state in states.split(' ') {
                assert_eq!(refused(state, words).0, kind, "{state}");
            }
        }
    }
}
