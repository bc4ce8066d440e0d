//! Rows of `semel_key`: how they are asked for, read and written.
//!
//! Statements are text with every value as hexadecimal digits or a number: batches of any size then need no statement
//! to be prepared for that size, and nothing a caller sends is ever part of the text (decision 0012).

use std::collections::HashMap;
use std::fmt::Write as _;

use semel_core::claim::Record;
use semel_core::claim::row::Row;
use semel_core::host::random_16;
use semel_core::{ErrorKind, Key, StoreError, Timestamp};
use sqlx::mysql::MySqlRow;
use sqlx::{Error, Row as _};

use crate::error::classify;

/// The server's time in microseconds, for sessions of ours: they are in UTC. Not `NOW`, which is when the statement
/// began.
pub(crate) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))";

/// Everything that [`Stored::read`] reads.
pub(crate) const COLUMNS: &str = "key_bytes, state, fingerprint, token, nonce, hold, extended, attempt, until_us, \
     outcome_code, outcome, digest, tombstone_us, withdrawn, withdrawn_us, token_last, version";

/// The columns that may be null, in the order of [`literals`].
const OPTIONAL: [&str; 14] = [
    "fingerprint",
    "token",
    "nonce",
    "hold",
    "extended",
    "attempt",
    "until_us",
    "outcome_code",
    "outcome",
    "digest",
    "tombstone_us",
    "withdrawn",
    "withdrawn_us",
    "due_us",
];

/// A row that is there is replaced whole, but only the version that the decision was made on; else the statement fails
/// as a whole, because the state may not be null.
const REPLACE: &str = " ON DUPLICATE KEY UPDATE \
     state = IF(version = VALUES(replaces), VALUES(state), NULL), fingerprint = VALUES(fingerprint), \
     token = VALUES(token), nonce = VALUES(nonce), hold = VALUES(hold), extended = VALUES(extended), \
     attempt = VALUES(attempt), until_us = VALUES(until_us), outcome_code = VALUES(outcome_code), \
     outcome = VALUES(outcome), digest = VALUES(digest), tombstone_us = VALUES(tombstone_us), \
     withdrawn = VALUES(withdrawn), withdrawn_us = VALUES(withdrawn_us), due_us = VALUES(due_us), \
     token_last = VALUES(token_last), version = VALUES(version), replaces = VALUES(replaces)";

/// Values in one list: MariaDB makes a table of a longer one, and reads ours from end to end to join them.
const IN_MAX: usize = 500;

/// A row as it is stored.
#[derive(Debug)]
pub(crate) struct Stored {
    /// The record, or why it cannot be read.
    pub(crate) record: Result<Record, StoreError>,
    /// The largest token it has had.
    pub(crate) token_last: i64,
    /// New with each write.
    pub(crate) version: i64,
}

/// What one look shows.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The rows that are there.
    pub(crate) rows: HashMap<Key, Stored>,
    /// The server's time.
    pub(crate) now: Timestamp,
    /// No removed row had a larger token.
    pub(crate) floor: i64,
}

/// A record to be written.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) key: Key,
    pub(crate) record: Record,
    pub(crate) token_last: i64,
    /// The version it was decided on; 0 where no row was there.
    pub(crate) replaces: i64,
}

/// Asks for the time; then for these keys' rows together with the floor of tokens, locking nothing. In this order: a record
/// is judged by no later time than it was seen at, or it would be taken for expired after its owner has ended its run. A row
/// that was removed before it was looked for is below the floor: a sweep removes rows and raises the floor in one
/// transaction, and one statement sees both as of one moment.
pub(crate) fn look(keys: &[&Key]) -> String {
    let mut sql = String::with_capacity(512 + keys.len() * 128);
    sql.push_str("SELECT ");
    sql.push_str(NOW);
    sql.push_str(" AS now_us");
    for keys in keys.chunks(IN_MAX) {
        sql.push_str(";SELECT f.token AS floor, ");
        // Each of them is named as in its table.
        for (n, column) in COLUMNS.split(", ").enumerate() {
            sql.push_str(if n == 0 { "k." } else { ", k." });
            sql.push_str(column);
        }
        // With many values some servers guess from statistics that reading the whole table were quicker.
        sql.push_str(" FROM semel_token f LEFT JOIN semel_key k FORCE INDEX (PRIMARY) ON k.key_bytes IN (");
        for (n, key) in keys.iter().enumerate() {
            sql.push_str(if n == 0 { "x'" } else { ",x'" });
            push_hex(&mut sql, &key.to_bytes());
            sql.push('\'');
        }
        sql.push_str(") WHERE f.one = 1");
    }
    sql
}

/// Reads the answer to [`look`].
pub(crate) fn read_look(rows: &[MySqlRow], operation: &'static str) -> Result<Seen, StoreError> {
    let failed = |error| classify(operation, error);
    let Some((first, rows)) = rows.split_first().filter(|(_, rows)| !rows.is_empty()) else {
        let text = "the table semel_token has lost its row; run `semel migrate`";
        return Err(StoreError::new(ErrorKind::Schema, operation, text));
    };
    let mut seen = Seen {
        rows: HashMap::with_capacity(rows.len()),
        now: Timestamp(first.try_get_unchecked("now_us").map_err(failed)?),
        floor: 0,
    };
    for row in rows {
        let floor: i64 = row.try_get_unchecked("floor").map_err(failed)?;
        seen.floor = seen.floor.max(floor);
        let key: Option<&[u8]> = row.try_get_unchecked("key_bytes").map_err(failed)?;
        if key.is_some() {
            seen.rows.extend([Stored::read(row, operation)?]);
        }
    }
    Ok(seen)
}

impl Stored {
    /// Reads a row of [`COLUMNS`].
    pub(crate) fn read(row: &MySqlRow, operation: &'static str) -> Result<(Key, Self), StoreError> {
        let failed = |error| classify(operation, error);
        let bytes: &[u8] = row.try_get_unchecked("key_bytes").map_err(failed)?;
        let key = Key::from_bytes(bytes).ok_or_else(|| {
            let text = "a row's key is none: the table semel_key was written by something else";
            StoreError::new(ErrorKind::Corrupt, operation, text)
        })?;
        let stored = Self {
            record: columns(row).map_err(failed)?.try_into(),
            token_last: row.try_get_unchecked("token_last").map_err(failed)?,
            version: row.try_get_unchecked("version").map_err(failed)?,
        };
        Ok((key, stored))
    }
}

fn columns(row: &MySqlRow) -> Result<Row, Error> {
    let bytes = |column| row.try_get_unchecked::<Option<Vec<u8>>, _>(column);
    let number = |column| row.try_get_unchecked::<Option<i64>, _>(column);
    let text = |column| {
        let bytes = bytes(column)?;
        Ok::<_, Error>(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    };
    let flag = |column| Ok::<_, Error>(row.try_get_unchecked::<Option<i8>, _>(column)?.map(|it| it != 0));
    Ok(Row {
        state: text("state")?.unwrap_or_default(),
        fingerprint: bytes("fingerprint")?,
        token: number("token")?,
        nonce: bytes("nonce")?,
        hold: flag("hold")?,
        extended: flag("extended")?,
        attempt: row.try_get_unchecked("attempt")?,
        until: number("until_us")?,
        outcome_code: text("outcome_code")?,
        outcome: bytes("outcome")?,
        digest: bytes("digest")?,
        tombstone_until: number("tombstone_us")?,
        withdrawn: bytes("withdrawn")?,
        withdrawn_until: number("withdrawn_us")?,
        due_at: None,
    })
}

/// A value as text.
pub(super) enum Literal<'a> {
    Null,
    Number(i64),
    Bytes(&'a [u8]),
}

impl<'a> Literal<'a> {
    pub(super) fn of_bytes(value: Option<&'a [u8]>) -> Self {
        value.map_or(Self::Null, Self::Bytes)
    }

    pub(super) fn of_number(value: Option<impl Into<i64>>) -> Self {
        value.map_or(Self::Null, |it| Self::Number(it.into()))
    }
}

fn literals(row: &Row) -> [Literal<'_>; 14] {
    [
        Literal::of_bytes(row.fingerprint.as_deref()),
        Literal::of_number(row.token),
        Literal::of_bytes(row.nonce.as_deref()),
        Literal::of_number(row.hold),
        Literal::of_number(row.extended),
        Literal::of_number(row.attempt),
        Literal::of_number(row.until),
        Literal::of_bytes(row.outcome_code.as_deref().map(str::as_bytes)),
        Literal::of_bytes(row.outcome.as_deref()),
        Literal::of_bytes(row.digest.as_deref()),
        Literal::of_number(row.tombstone_until),
        Literal::of_bytes(row.withdrawn.as_deref()),
        Literal::of_number(row.withdrawn_until),
        Literal::of_number(row.due_at),
    ]
}

/// How many bytes of text a change takes at most, about.
pub(crate) fn text_bytes(change: &Change) -> usize {
    row_bytes(usize::try_from(change.record.outcome_bytes()).unwrap_or(usize::MAX / 4))
}

/// The same of a row with an outcome of so many bytes.
pub(crate) const fn row_bytes(outcome: usize) -> usize {
    outcome.saturating_mul(2).saturating_add(1_500)
}

/// What records are written over.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    /// The versions that were decided on.
    Replace,
    /// Nothing: no row may be there (error 1062), and tokens from `base` on must be above those of all rows that are gone
    /// (error 1048).
    New { base: i64 },
    /// The same, where times are since `@semel_now` and tokens above `@semel_base`, as the deadline is.
    NewByServersTime,
}

/// Which of the [`OPTIONAL`] are times since now, or a token.
const SINCE: [&str; 2] = ["until_us", "due_us"];
const TOKEN: &str = "token";

/// Writes these records in one statement, sorted by key, no key twice: all of them or none. None when one of the rows is
/// not the version any more that was decided on (error 1048), or after `deadline` by the server's clock, which the last row
/// asks for all of them.
pub(crate) fn write(changes: &[Change], version: i64, deadline: Timestamp, way: Way) -> String {
    let rows: Vec<Row> = changes.iter().map(|change| Row::from(&change.record)).collect();
    let mut used = [false; OPTIONAL.len()];
    for row in &rows {
        for (used, literal) in used.iter_mut().zip(literals(row)) {
            *used |= !matches!(literal, Literal::Null);
        }
    }
    let mut sql = String::with_capacity(1_024 + changes.iter().map(text_bytes).sum::<usize>() / 2);
    sql.push_str("INSERT INTO semel_key (key_bytes, state, token_last, version, replaces");
    for (name, _) in OPTIONAL.iter().zip(used).filter(|(_, used)| *used) {
        sql.push_str(", ");
        sql.push_str(name);
    }
    sql.push_str(") VALUES ");
    for (n, (change, row)) in changes.iter().zip(&rows).enumerate() {
        sql.push_str(if n == 0 { "(" } else { ",(" });
        push(&mut sql, &Literal::Bytes(&change.key.to_bytes()));
        // One of five words.
        let state = &row.state;
        if n + 1 < changes.len() {
            let _ = write!(sql, ",'{state}'");
        } else {
            // By then all rows before it have been waited for, and where one is too late none is written.
            push_if_in_time(&mut sql, state, deadline, way);
        }
        let relative = matches!(way, Way::NewByServersTime);
        sql.push_str(if relative { ",@semel_base+" } else { "," });
        push(&mut sql, &Literal::Number(change.token_last));
        let _ = write!(sql, ",{version},{}", change.replaces);
        let sometimes = OPTIONAL.iter().zip(literals(row)).zip(used);
        for ((name, literal), _) in sometimes.filter(|(_, used)| *used) {
            sql.push_str(match literal {
                Literal::Number(_) if relative && SINCE.contains(name) => ",@semel_now+",
                Literal::Number(_) if relative && *name == TOKEN => ",@semel_base+",
                _ => ",",
            });
            push(&mut sql, &literal);
        }
        sql.push(')');
    }
    if matches!(way, Way::Replace) {
        sql.push_str(REPLACE);
    }
    sql
}

/// The state of the last row, or null where it is too late, or where a row was removed that had a larger token. That is read
/// with a lock: whoever removes a row, and raises the floor with it, has ended, or waits for this statement.
fn push_if_in_time(sql: &mut String, state: &str, deadline: Timestamp, way: Way) {
    let _ = match way {
        Way::Replace => write!(sql, ",IF({NOW}<{},'{state}',NULL)", deadline.0),
        Way::New { base } => write!(
            sql,
            ",IF({NOW}<{} AND ({FLOOR})<{base},'{state}',NULL)",
            deadline.0
        ),
        Way::NewByServersTime => write!(
            sql,
            ",IF({NOW}<@semel_now+{} AND ({FLOOR})<@semel_base,'{state}',NULL)",
            deadline.0
        ),
    };
}

const FLOOR: &str = "SELECT token FROM semel_token WHERE one = 1 LOCK IN SHARE MODE";

/// A version: a random number, not 0.
pub(crate) fn version() -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = random_16();
    i64::from_be_bytes([a, b, c, d, e, f, g, h]) | 1
}

/// Removes these rows.
pub(crate) fn remove(keys: &[Key]) -> String {
    let mut sql = String::new();
    for keys in keys.chunks(IN_MAX) {
        if !sql.is_empty() {
            sql.push(';');
        }
        sql.push_str("DELETE FROM semel_key WHERE key_bytes IN (");
        for (n, key) in keys.iter().enumerate() {
            if n > 0 {
                sql.push(',');
            }
            push(&mut sql, &Literal::Bytes(&key.to_bytes()));
        }
        sql.push(')');
    }
    sql
}

pub(super) fn push(sql: &mut String, literal: &Literal<'_>) {
    match literal {
        Literal::Null => sql.push_str("NULL"),
        Literal::Number(number) => {
            // Writing to a String cannot fail.
            let _ = write!(sql, "{number}");
        }
        Literal::Bytes(bytes) => {
            sql.push_str("x'");
            push_hex(sql, bytes);
            sql.push('\'');
        }
    }
}

/// Bytes that become digits at once.
const HEX_PIECE: usize = 64;

pub(crate) fn push_hex(sql: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |half: u8| DIGITS[usize::from(half & 15)];
    // In pieces, each of which is text at once: a digit by itself costs more than all else of a statement.
    for piece in bytes.chunks(HEX_PIECE) {
        let mut digits = [0; 2 * HEX_PIECE];
        for (two, byte) in digits.chunks_exact_mut(2).zip(piece) {
            two.copy_from_slice(&[digit(byte >> 4), digit(*byte)]);
        }
        // Digits are text.
        sql.push_str(std::str::from_utf8(&digits[..2 * piece.len()]).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use semel_core::claim::{Lease, Nonce, OwnerLost, State, Token, Withdrawn};
    use semel_core::{Fingerprint, Scope};

    use super::*;

    #[test]
    fn time_is_taken_before_the_rows_and_the_floor_together_with_them() {
        let sql = look(&[&Key::new(Scope::new("s").unwrap(), "id").unwrap()]);
        let statements: Vec<&str> = sql.split(';').collect();
        let [time, rows] = statements[..] else {
            panic!("{sql}")
        };
        assert!(time.contains("now_us") && !time.contains("semel_key"), "{sql}");
        assert!(rows.contains("JOIN semel_key") && rows.contains("floor"), "{sql}");
        assert!(!rows.contains("SYSDATE"), "{sql}");
    }

    #[test]
    fn a_batch_asks_the_time_once_by_its_last_row() {
        let change = |id: &str| Change {
            key: Key::new(Scope::new("s").unwrap(), id).unwrap(),
            record: Record {
                fingerprint: None,
                state: State::Absent,
                withdrawn: Withdrawn::default(),
            },
            token_last: 7,
            replaces: 0,
        };
        let sql = write(&["a", "b", "c"].map(change), -5, Timestamp(9), Way::Replace);
        let rows: Vec<&str> = sql.split("(x'").collect();
        let [_, first, second, last] = rows[..] else {
            panic!("{sql}")
        };
        assert!(!first.contains("SYSDATE") && !second.contains("SYSDATE"), "{sql}");
        assert!(last.contains("SYSDATE(6))<9,'absent',NULL)"), "{sql}");
    }

    #[test]
    fn nothing_a_caller_sends_is_part_of_the_text() {
        let key = Key::new(Scope::new("s'); DROP TABLE x; --").unwrap(), "\\'\"\0`").unwrap();
        let record = Record {
            fingerprint: Some(Fingerprint::of(b"x")),
            state: State::Claimed {
                lease: Lease {
                    token: Token(7),
                    nonce: Nonce([0x27; 16]),
                },
                owner_lost: OwnerLost::Hold,
                until: Timestamp(9),
                extended: false,
                attempt: 1,
            },
            withdrawn: Withdrawn::default(),
        };
        let change = Change {
            key: key.clone(),
            record,
            token_last: 7,
            replaces: 0,
        };
        for sql in [
            look(&[&key]),
            write(&[change], -5, Timestamp(9), Way::Replace),
            remove(&[key]),
        ] {
            assert!(!sql.contains("DROP"), "{sql}");
            assert!(sql.contains(&semel_core::key::hex(b"DROP TABLE")), "{sql}");
        }
    }
}
