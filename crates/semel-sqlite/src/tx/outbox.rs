//! Events inside your own transaction.

use semel_core::inbox::headers::encode_event;
use semel_core::store::event_repeated;
use semel_core::{Clock as _, Event, StoreError, SystemClock};
use sqlx::{Sqlite as Driver, Transaction};

use crate::error::classify;
use crate::store::refused;

macro_rules! insert {
    ($end:literal) => {
        concat!(
            "INSERT INTO semel_outbox
               (stream, slot, event_id, topic, type, source, key, content_type, headers, data, traceparent, created_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
            $end
        )
    };
}
const ANY: &str = insert!("");
const NEW: &str = insert!(" ON CONFLICT (event_id) DO NOTHING");

/// Writes an event that a relay will publish after the commit; returns its row number. Commit, and it will be sent at
/// least once, with this id; roll back, and it never was.
///
/// Events of one key are sent in the order in which they were written.
///
/// # Errors
/// An event that could never be sent ([`Event::check`]); one whose id was enqueued before and is still kept
/// ([SEM0250](semel_core::store::EVENT_REPEATED)); or the store's. Nothing is written then.
///
/// ```
/// # async fn f(db: &semel_sqlite::Sqlite) -> Result<(), Box<dyn std::error::Error>> {
/// use semel_core::{Event, SystemClock, host::uuid_v7};
/// let mut tx = db.begin().await?;
/// sqlx::query("INSERT INTO orders (id) VALUES ('order-7')").execute(&mut *tx).await?;
/// let event = Event::new(uuid_v7(&SystemClock), "orders", "order.placed")
///     .with_key("order-7")
///     .with_data("application/json", r#"{"total":42}"#);
/// semel_sqlite::tx::enqueue(&mut tx, &event).await?;
/// db.commit(tx).await?;
/// # Ok(()) }
/// ```
pub async fn enqueue(tx: &mut Transaction<'_, Driver>, event: &Event) -> Result<i64, StoreError> {
    event.check()?;
    insert(ANY, tx, event).await.map(|(row, _)| row)
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
    let mut ids = Vec::with_capacity(events.len());
    for event in events {
        ids.push(insert(ANY, tx, event).await?.0);
    }
    Ok(ids)
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
    let mut ids = Vec::with_capacity(events.len());
    for event in events {
        let (row, written) = insert(NEW, tx, event).await?;
        ids.push(written.then_some(row));
    }
    Ok(ids)
}

/// The row number, and whether a row was written.
async fn insert(
    sql: &'static str,
    tx: &mut Transaction<'_, Driver>,
    event: &Event,
) -> Result<(i64, bool), StoreError> {
    let done = sqlx::query(sql)
        .bind(&event.stream)
        .bind(i64::from(event.slot()))
        .bind(&event.id.as_bytes()[..])
        .bind(&event.topic)
        .bind(&event.kind)
        .bind(&event.source)
        .bind(event.key.as_deref())
        .bind(&event.content_type)
        .bind(encode_event(event).map(String::into_bytes))
        .bind(event.data.as_deref())
        .bind(&event.traceparent)
        .bind(SystemClock.now().0)
        .execute(&mut **tx)
        .await;
    match done {
        Ok(done) => Ok((done.last_insert_rowid(), done.rows_affected() == 1)),
        Err(error) => Err(failed(tx, event, "enqueue", error).await),
    }
}

/// Names the event or its stream where that is what was refused.
pub(super) async fn failed(
    tx: &mut Transaction<'_, Driver>,
    event: &Event,
    operation: &'static str,
    error: sqlx::Error,
) -> StoreError {
    let words = error.as_database_error().map(|error| error.message());
    if words.is_some_and(|words| words.contains("semel_outbox.event_id")) {
        return event_repeated(event.id).with_source(error);
    }
    match refused(tx, &event.stream, &error).await {
        Some(refused) => refused.with_source(error),
        None => classify(operation, error),
    }
}
