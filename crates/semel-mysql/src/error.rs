//! From the server's error numbers to what a caller may do next, in one place.

use semel_core::store::{BACKLOG_FULL, STREAM_UNKNOWN};
use semel_core::{ErrorKind, StoreError};
use sqlx::mysql::MySqlDatabaseError;

/// A lock was waited for too long; the statement is undone, the transaction goes on.
pub(crate) const LOCK_WAIT_TIMEOUT: u16 = 1205;
/// The whole transaction is undone.
pub(crate) const DEADLOCK: u16 = 1213;
/// The key is there already.
pub(crate) const DUPLICATE: u16 = 1062;
/// NULL for a NOT NULL column: how our own statements say that what they were decided on has changed.
pub(crate) const BAD_NULL: u16 = 1048;
/// No such savepoint.
pub(crate) const NO_SAVEPOINT: u16 = 1305;

/// The server's error number; `None` when the error is not the server's.
pub(crate) fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?;
    Some(error.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

/// Whether an event was refused because of its id: one of that id is there, or waits.
pub(crate) fn is_repeated_event(error: &sqlx::Error) -> bool {
    let words = error.as_database_error().map(|error| error.message());
    number(error) == Some(DUPLICATE) && words.is_some_and(|words| words.contains("semel_outbox_event_id"))
}

/// Whether an event was refused because a row has its number: one of nobody's, written where the number was missing for long.
pub(crate) fn is_taken_number(error: &sqlx::Error) -> bool {
    let words = error.as_database_error().map(|error| error.message());
    // `for key 'PRIMARY'`, on MySQL 8 `for key 'semel_outbox.PRIMARY'`.
    number(error) == Some(DUPLICATE) && words.is_some_and(|words| words.ends_with("PRIMARY'"))
}

/// The kind of a failed statement or connection outside of a commit: nothing of the transaction is durable.
#[must_use]
pub fn classify(operation: &'static str, error: sqlx::Error) -> StoreError {
    // A trigger of Semel's has said what is full, or which stream nobody has registered.
    let words = error.as_database_error().map_or("", |error| error.message());
    if words.starts_with(BACKLOG_FULL) {
        let text = format!(
            "{}; write again when its relay has caught up, or raise the limit",
            &words[BACKLOG_FULL.len() + 2..]
        );
        return StoreError::new(ErrorKind::NotApplied, operation, text)
            .with_code(BACKLOG_FULL)
            .with_source(error);
    }
    if words.starts_with(STREAM_UNKNOWN) {
        let text = "no relay has registered this stream, and only registered ones are written to here; correct the name, \
                    start its relay first, or switch known_streams_only off";
        return StoreError::new(ErrorKind::Constraint, operation, text)
            .with_code(STREAM_UNKNOWN)
            .with_source(error);
    }
    let (kind, message) = match number(&error) {
        Some(number) => refused(number),
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
    let found = match number(&error) {
        Some(number) if is_full(number) => found.full(),
        Some(1290 | 1836) => found.read_only(),
        None if kind == ErrorKind::NotApplied => found.away(),
        _ => found,
    };
    found.with_source(error)
}

/// Whether the server says that it has no room: its disk, a table, or its memory.
const fn is_full(number: u16) -> bool {
    matches!(number, 1021 | 1037 | 1038 | 1041 | 1114)
}

/// What the server's refusal means. Where it is not known that the same statement can never go through, it may: a relay
/// that ends needs a person, and one that waits needs none.
const fn refused(number: u16) -> (ErrorKind, &'static str) {
    match number {
        // Deadlock, lock wait, changed under a snapshot (MariaDB 11), interrupted, over a time limit.
        DEADLOCK | LOCK_WAIT_TIMEOUT | 1020 | 1317 | 1969 | 3024 => (
            ErrorKind::NotApplied,
            "another transaction was in the way; repeat the whole transaction",
        ),
        _ if is_full(number) => (
            ErrorKind::NotApplied,
            "the server is out of disk or memory; nothing was written",
        ),
        1040 | 1203 | 1226 => (
            ErrorKind::Unavailable,
            "the server takes no more connections; raise max_connections or lower connections_max",
        ),
        // 1047: a cluster's node that is not ready; 4031: it had been idle for too long.
        1047 | 1053 | 1079 | 1927 | 3169 | 4031 => (
            ErrorKind::Unavailable,
            "the server shuts down, is not ready, or ended the connection",
        ),
        1290 | 1836 => (
            ErrorKind::Unavailable,
            "this is a replica or read-only server (read_only=1); connect to the primary",
        ),
        1792 => (
            ErrorKind::Invalid,
            "an earlier statement lost this transaction, so it takes no more writes; roll back and repeat the whole",
        ),
        1146 | 1054 | NO_SAVEPOINT => (
            ErrorKind::Schema,
            "Semel's tables are missing or old; run `semel migrate` or Mysql::migrate",
        ),
        1046 => (
            ErrorKind::Invalid,
            "the URL names no database; add it: mysql://user@host/database",
        ),
        1044 | 1045 | 1049 | 1698 | 1130 => (
            ErrorKind::Invalid,
            "the server refuses this user, password or database; check the URL",
        ),
        1142 | 1143 | 1227 | 1370 => (
            ErrorKind::Invalid,
            "the user lacks a right; grant it SELECT, INSERT, UPDATE, DELETE on Semel's tables, and CREATE, ALTER, \
             INDEX for `semel migrate`",
        ),
        1153 => (
            ErrorKind::LimitExceeded,
            "a statement is larger than the server's max_allowed_packet; raise it",
        ),
        1665 | 1666 | 1668 => (
            ErrorKind::Invalid,
            "the server's binlog_format is STATEMENT, which READ COMMITTED cannot be written to; set it to ROW or MIXED",
        ),
        _ if refuses_data(number) => (
            ErrorKind::Constraint,
            "a constraint, a type or a trigger refused the data",
        ),
        _ if is_wrong(number) => (ErrorKind::Invalid, "the server refused the statement"),
        _ => (
            ErrorKind::NotApplied,
            "the server refused for a reason that may pass; nothing was written; if it goes on, its words say what to mend",
        ),
    }
}

/// Whether this number says that the statement, or who says it, is wrong in itself.
const fn is_wrong(number: u16) -> bool {
    matches!(
        number,
        // Its text, and the names in it.
        1052 | 1056 | 1060 | 1061 | 1064 | 1065 | 1066 | 1109
            ..=1111 | 1115 | 1136 | 1149 | 1193 | 1247 | 1273 | 1318
        // What is asked of the server in it, and collations that do not go together.
        | 1210 | 1221 | 1231 | 1232 | 1235 | 1238 | 1253 | 1267 | 1270 | 1271 | 1295 | 1418 | 1419 | 1582 | 1583
        // The login.
        | 1251 | 1820 | 1862 | 3118 | 4151
    )
}

/// Whether this number blames the data, so that the same data would fail again.
const fn refuses_data(number: u16) -> bool {
    matches!(
        number,
        // Constraints.
        DUPLICATE | BAD_NULL | 1216 | 1217 | 1364 | 1451 | 1452 | 1586 | 3819 | 4025
        // Too wide for its row, more rows than one, bytes that are no text, out of its type's range, too long, no such
        // date, number or member, division by zero.
        | 1118 | 1242 | 1264 | 1265 | 1292 | 1300 | 1365 | 1366 | 1367 | 1406 | 1411 | 1525 | 1690
        // `SIGNAL` of a trigger.
        | 1644
        // No JSON, or too deep, or in another character set.
        | 3140 | 3141 | 3144 | 3156 | 3157
    )
}

/// Whether the server's answer leaves open if a statement or commit that ended with it is durable: it was killed or
/// shut down in the middle, perhaps of the commit itself.
const fn ended_in_the_middle(number: u16) -> bool {
    // Shutdown, error during commit, interrupted, packets lost, connection killed, commit hooks of replication.
    matches!(
        number,
        1053 | 1079 | 1105 | 1152..=1161 | 1180 | 1184 | 1317 | 1927 | 3100 | 3101 | 3169
    )
}

/// The kind of a failed statement that is a transaction of its own. The server's refusal proves that nothing was done;
/// a connection that broke while it ran proves nothing: the statement may have been committed.
#[must_use]
pub fn autocommit_failed(operation: &'static str, error: sqlx::Error) -> StoreError {
    match number(&error) {
        // 1153 is said before the statement is run.
        Some(1153) => classify(operation, error),
        Some(number) if !ended_in_the_middle(number) => classify(operation, error),
        _ => lost(
            operation,
            "the connection broke before the answer came: it may have been done",
            error,
        ),
    }
}

/// The kind of a failed commit: only a deadlock or a constraint proves a rollback; all else is unknown.
#[must_use]
pub fn commit_failed(operation: &'static str, error: sqlx::Error) -> StoreError {
    match number(&error) {
        // A cluster's certification says "deadlock" at the commit.
        Some(DEADLOCK | DUPLICATE | 1451 | 1452) => classify(operation, error),
        _ => lost(
            operation,
            "the commit's answer is missing: look before repeating",
            error,
        ),
    }
}

pub(crate) fn lost(operation: &'static str, message: &'static str, error: sqlx::Error) -> StoreError {
    let lost = StoreError::new(ErrorKind::ReplyLost, operation, message);
    let lost = if number(&error).is_some_and(is_full) {
        lost.full()
    } else {
        lost
    };
    lost.with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_of_the_server_has_its_kind() {
        use ErrorKind::{Constraint, Invalid, LimitExceeded, NotApplied, Schema, Unavailable};
        let refusals: [(&[u16], ErrorKind); 7] = [
            // Others were in the way; full; broken for the moment; nobody has heard of them.
            (
                &[
                    1205, 1213, 1020, 3024, 1021, 1114, 1026, 1030, 1105, 1197, 1206, 1461, 1615, 1637, 9999,
                ],
                NotApplied,
            ),
            (&[1040, 1047, 1053, 1226, 1290, 1927, 3169, 4031], Unavailable),
            // The same again will not do.
            (&[1054, 1146, 1305], Schema),
            (
                &[
                    1044, 1045, 1046, 1049, 1064, 1142, 1193, 1235, 1267, 1665, 1820, 3118,
                ],
                Invalid,
            ),
            (&[1048, 1062, 1264, 1406, 1452, 1644, 3819, 4025], Constraint),
            (&[1153], LimitExceeded),
            (&[1792], Invalid),
        ];
        for (numbers, kind) in refusals {
            for number in numbers {
                assert_eq!(refused(*number).0, kind, "{number}");
            }
        }
    }
}
