//! Events inside your own transaction.

use std::collections::HashSet;

use bytes::Bytes;
use semel_core::inbox::headers::encode_event;
use semel_core::store::{EVENT_REPEATED, event_repeated};
use semel_core::{ErrorKind, Event, StoreError};
use sqlx::mysql::MySqlArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, MySql as Driver, Transaction};
use uuid::Uuid;

use crate::error::{classify, is_repeated_event, is_taken_number};
use crate::store::key_rows::push_hex;

const COLUMNS: &str =
    "stream, event_id, topic, type, source, `key`, content_type, headers, data, traceparent";
const LOCK: &str =
    "SELECT slot FROM semel_outbox_lock WHERE slot = CONV(LEFT(SHA2(?, 256), 4), 16, 10) & 4095 FOR UPDATE";
/// Events in one statement at most, by number and by bytes.
pub(super) const AT_ONCE: usize = 200;
const BYTES_AT_ONCE: usize = 1 << 20;

/// Writes an event that a relay will publish after the commit; returns its row number. Commit, and it will be sent at
/// least once, with this id; roll back, and it never was.
///
/// Events of one key are sent in the order in which they were written, where the writers of that key take turns: lock
/// something that stands for the key (the business row, or [`lock_key`]) before you call this.
///
/// # Errors
/// An event that could never be sent ([`Event::check`]); one whose id was enqueued before and is still kept
/// ([SEM0250](semel_core::store::EVENT_REPEATED)); or the store's. Nothing is written then. An id that an open
/// transaction has written is waited for. `NotApplied` when a relay has filled the number that this event drew, which
/// takes a statement that stood still for ten seconds: repeat the transaction, as [`transact`](super::transact) does.
///
/// ```no_run
/// # async fn f(db: &semel_mysql::Mysql) -> Result<(), Box<dyn std::error::Error>> {
/// use semel_core::{Event, SystemClock, host::uuid_v7};
/// let mut tx = db.begin().await?;
/// sqlx::query("INSERT INTO orders (id) VALUES ('order-7')").execute(&mut *tx).await?;
/// let event = Event::new(uuid_v7(&SystemClock), "orders", "order.placed")
///     .with_key("order-7")
///     .with_data("application/json", r#"{"total":42}"#);
/// semel_mysql::tx::enqueue(&mut tx, &event).await?;
/// db.commit(tx).await?;
/// # Ok(()) }
/// ```
pub async fn enqueue(tx: &mut Transaction<'_, Driver>, event: &Event) -> Result<i64, StoreError> {
    event.check()?;
    insert(tx, std::slice::from_ref(event)).await
}

/// Writes several events in order; returns their row numbers. All are checked before the first is written.
///
/// # Errors
/// As [`enqueue`]. After an error of the store roll the transaction back: some may have been written.
pub async fn enqueue_many(
    tx: &mut Transaction<'_, Driver>,
    events: &[Event],
) -> Result<Vec<i64>, StoreError> {
    events.iter().try_for_each(Event::check)?;
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let step = step(tx).await?;
    let mut rows = Vec::with_capacity(events.len());
    for some in statements(events, |event| event) {
        let first = insert(tx, some).await?;
        rows.extend((0..).take(some.len()).map(|n: i64| first + n * step));
    }
    Ok(rows)
}

/// Writes those events whose ids were not enqueued before; returns row numbers, `None` for an event that was there
/// already. For writers that may repeat themselves, with ids that follow from what they do. Ids are remembered for as
/// long as rows are kept.
///
/// # Errors
/// As [`enqueue_many`], but for repeated ids.
pub async fn enqueue_new(
    tx: &mut Transaction<'_, Driver>,
    events: &[Event],
) -> Result<Vec<Option<i64>>, StoreError> {
    events.iter().try_for_each(Event::check)?;
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let step = step(tx).await?;
    let mut rows = Vec::with_capacity(events.len());
    for some in statements(events, |event| event) {
        match insert(tx, some).await {
            Ok(first) => rows.extend((0..).take(some.len()).map(|n: i64| Some(first + n * step))),
            // The server took back the statement, and nothing else: one after the other then.
            Err(error) if error.code() == EVENT_REPEATED => {
                for event in some {
                    rows.push(match insert(tx, std::slice::from_ref(event)).await {
                        Ok(row) => Some(row),
                        Err(error) if error.code() == EVENT_REPEATED => None,
                        Err(error) => return Err(error),
                    });
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(rows)
}

/// A statement's numbers follow each other by this much.
async fn step(tx: &mut Transaction<'_, Driver>) -> Result<i64, StoreError> {
    sqlx::query_scalar("SELECT CAST(@@session.auto_increment_increment AS SIGNED)")
        .fetch_one(&mut **tx)
        .await
        .map_err(|error| classify("enqueue", error))
}

/// What goes into one statement each.
pub(super) fn statements<'a, T>(
    events: &'a [T],
    event_of: impl Fn(&T) -> &Event + 'a,
) -> impl Iterator<Item = &'a [T]> {
    let mut left = events;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |(n, event): &(usize, &T)| {
            bytes += event_of(event).data.as_ref().map_or(0, Bytes::len);
            *n == 0 || *n < AT_ONCE && bytes <= BYTES_AT_ONCE
        };
        let taken = left.iter().enumerate().take_while(fits).count();
        let (some, rest) = left.split_at(taken);
        left = rest;
        (!some.is_empty()).then_some(some)
    })
}

/// Binds what both tables of events hold, in the order of their columns.
pub(super) fn bind<'q>(
    query: Query<'q, Driver, MySqlArguments>,
    event: &'q Event,
) -> Query<'q, Driver, MySqlArguments> {
    query
        .bind(&event.stream)
        .bind(&event.id.as_bytes()[..])
        .bind(&event.topic)
        .bind(&event.kind)
        .bind(&event.source)
        .bind(event.key.as_deref())
        .bind(&event.content_type)
        .bind(encode_event(event))
        .bind(event.data.as_deref())
        .bind(&event.traceparent)
}

/// Writes events by one statement; the number of the first.
async fn insert(tx: &mut Transaction<'_, Driver>, events: &[Event]) -> Result<i64, StoreError> {
    let mut sql = format!("INSERT INTO semel_outbox ({COLUMNS}) VALUES ");
    for n in 0..events.len() {
        sql.push_str(if n == 0 { "" } else { "," });
        sql.push_str("(?,?,?,?,?,?,?,?,?,?)");
    }
    // Of one event and of full statements, not of every number of events.
    let usual = events.len() == 1 || events.len() == AT_ONCE;
    let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(usual);
    for event in events {
        query = bind(query, event);
    }
    match query.execute(&mut **tx).await {
        Ok(done) => Ok(i64::try_from(done.last_insert_id()).unwrap_or(i64::MAX)),
        Err(error) if is_repeated_event(&error) => {
            let ids: Vec<Uuid> = events.iter().map(|event| event.id).collect();
            let id = repeated(tx, "semel_outbox", &ids).await?;
            Err(event_repeated(id).with_source(error))
        }
        Err(error) if is_taken_number(&error) => {
            let text = "a relay took the number of this event for one that nobody has, because it was missing for long; \
                        repeat the whole transaction";
            Err(StoreError::new(ErrorKind::NotApplied, "enqueue", text).with_source(error))
        }
        Err(error) => Err(classify("enqueue", error)),
    }
}

/// Which of the ids was refused: the server writes them in its own way.
pub(super) async fn repeated(
    tx: &mut Transaction<'_, Driver>,
    table: &str,
    ids: &[Uuid],
) -> Result<Uuid, StoreError> {
    if let [id] = ids {
        return Ok(*id);
    }
    let mut seen = HashSet::new();
    if let Some(twice) = ids.iter().find(|id| !seen.insert(**id)) {
        return Ok(*twice);
    }
    // The second sees what a snapshot of the transaction's own hides. At REPEATABLE READ it locks gaps, so it comes second.
    for share in [false, true] {
        if let Some(id) = there(tx, table, ids, share).await? {
            return Ok(id);
        }
    }
    Ok(Uuid::nil())
}

/// One of the ids that is in the table.
pub(super) async fn there(
    tx: &mut Transaction<'_, Driver>,
    table: &str,
    ids: &[Uuid],
    share: bool,
) -> Result<Option<Uuid>, StoreError> {
    let mut sql = format!("SELECT event_id FROM {table} WHERE event_id IN (''");
    for id in ids {
        sql.push_str(",x'");
        push_hex(&mut sql, id.as_bytes());
        sql.push('\'');
    }
    sql.push_str(if share {
        ") LIMIT 1 LOCK IN SHARE MODE"
    } else {
        ") LIMIT 1"
    });
    let found: Option<Vec<u8>> = sqlx::query_scalar(AssertSqlSafe(sql))
        .persistent(false)
        .fetch_optional(&mut **tx)
        .await
        .map_err(|error| classify("enqueue", error))?;
    Ok(found.and_then(|id| Uuid::from_slice(&id).ok()))
}

/// Makes writers of one ordering key take turns until they commit: for those that lock no row of their own. Call it
/// before [`enqueue`]. Keys share 4,096 locks, so now and then two keys take turns, too.
///
/// # Errors
/// The store's; a deadlock where two transactions lock the same keys in different orders.
pub async fn lock_key(tx: &mut Transaction<'_, Driver>, key: &[u8]) -> Result<(), StoreError> {
    sqlx::query(LOCK)
        .bind(key)
        .fetch_one(&mut **tx)
        .await
        .map_err(|error| classify("lock_key", error))?;
    Ok(())
}
