//! Events inside your own transaction.

use bytes::Bytes;
use semel_core::inbox::headers;
use semel_core::{Clock as _, Event, StoreError, SystemClock};
use sqlx::{Sqlite as Driver, Transaction};

use crate::error::classify;

const INSERT: &str = "INSERT INTO semel_outbox
  (stream, slot, event_id, topic, type, source, key, content_type, headers, data, traceparent, created_at)
  VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";

/// Writes an event that a relay will publish after the commit; returns its row number. Commit, and it will be sent at
/// least once, with this id; roll back, and it never was.
///
/// Events of one key are sent in the order in which they were written.
///
/// # Errors
/// An event that could never be sent ([`Event::check`]), or the store's. Nothing is written then.
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
    insert(tx, event).await
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
        ids.push(insert(tx, event).await?);
    }
    Ok(ids)
}

async fn insert(tx: &mut Transaction<'_, Driver>, event: &Event) -> Result<i64, StoreError> {
    let pairs: Vec<(String, Option<Bytes>)> = event
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), Some(value.clone())))
        .collect();
    let done = sqlx::query(INSERT)
        .bind(&event.stream)
        .bind(i64::from(event.slot()))
        .bind(&event.id.as_bytes()[..])
        .bind(&event.topic)
        .bind(&event.kind)
        .bind(&event.source)
        .bind(event.key.as_deref())
        .bind(&event.content_type)
        .bind((!pairs.is_empty()).then(|| headers::encode(&pairs)))
        .bind(event.data.as_deref())
        .bind(&event.traceparent)
        .bind(SystemClock.now().0)
        .execute(&mut **tx)
        .await
        .map_err(|error| classify("enqueue", error))?;
    Ok(done.last_insert_rowid())
}
