//! Events inside your own transaction.

use bytes::Bytes;
use semel_core::inbox::headers;
use semel_core::{Event, StoreError};
use sqlx::{Postgres as Driver, Transaction};
use uuid::Uuid;

use crate::error::classify;
use crate::gate::{query, query_scalar};

const INSERT: &str = "INSERT INTO semel.outbox
    (stream, event_id, topic, type, source, key, content_type, headers, data, traceparent)
  SELECT stream, event_id, topic, type, source, key, content_type, headers, data, traceparent
  FROM unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::text[],
    $9::bytea[], $10::text[]) WITH ORDINALITY
    AS e(stream, event_id, topic, type, source, key, content_type, headers, data, traceparent, n)
  ORDER BY n RETURNING id";

/// Writes an event that a relay will publish after the commit; returns its row number. Commit, and it will be sent at
/// least once, with this id; roll back, and it never was.
///
/// Events of one key are sent in the order in which they were written, where the writers of that key take turns: lock
/// something that stands for the key (the business row, or [`lock_key`]) before you call this.
///
/// # Errors
/// An event that could never be sent ([`Event::check`]), or the store's. Nothing is written then.
///
/// ```no_run
/// # async fn f(db: &semel_postgres::Postgres) -> Result<(), Box<dyn std::error::Error>> {
/// use semel_core::{Event, SystemClock, host::uuid_v7};
/// let mut tx = db.begin().await?;
/// sqlx::query("INSERT INTO orders (id) VALUES ('order-7')").execute(&mut *tx).await?;
/// let event = Event::new(uuid_v7(&SystemClock), "orders", "order.placed")
///     .with_key("order-7")
///     .with_data("application/json", r#"{"total":42}"#);
/// semel_postgres::tx::enqueue(&mut tx, &event).await?;
/// db.commit(tx).await?;
/// # Ok(()) }
/// ```
pub async fn enqueue(tx: &mut Transaction<'_, Driver>, event: &Event) -> Result<i64, StoreError> {
    let rows = enqueue_many(tx, std::slice::from_ref(event)).await?;
    Ok(rows.first().copied().unwrap_or_default())
}

/// Writes several events in order, in one statement; returns their row numbers. All are checked before the first is
/// written.
///
/// # Errors
/// As [`enqueue`]. After an error of the store the transaction can only be rolled back.
pub async fn enqueue_many(
    tx: &mut Transaction<'_, Driver>,
    events: &[Event],
) -> Result<Vec<i64>, StoreError> {
    events.iter().try_for_each(Event::check)?;
    let texts = |of: fn(&Event) -> &str| -> Vec<&str> { events.iter().map(of).collect() };
    let maybe = |of: fn(&Event) -> Option<&str>| -> Vec<Option<&str>> { events.iter().map(of).collect() };
    let bytes = |of: fn(&Event) -> Option<&Bytes>| -> Vec<Option<&[u8]>> {
        events
            .iter()
            .map(|event| of(event).map(|bytes| &bytes[..]))
            .collect()
    };
    query_scalar(INSERT)
        .bind(texts(|event| &event.stream))
        .bind(events.iter().map(|event| event.id).collect::<Vec<Uuid>>())
        .bind(texts(|event| &event.topic))
        .bind(texts(|event| &event.kind))
        .bind(texts(|event| &event.source))
        .bind(bytes(|event| event.key.as_ref()))
        .bind(maybe(|event| event.content_type.as_deref()))
        .bind(events.iter().map(encoded_headers).collect::<Vec<_>>())
        .bind(bytes(|event| event.data.as_ref()))
        .bind(maybe(|event| event.traceparent.as_deref()))
        .fetch_all(&mut **tx)
        .await
        .map_err(|error| classify("enqueue", error))
}

fn encoded_headers(event: &Event) -> Option<String> {
    if event.headers.is_empty() {
        return None;
    }
    let pairs: Vec<(String, Option<Bytes>)> = event
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), Some(value.clone())))
        .collect();
    // The encoding is JSON, so this cannot lose anything.
    Some(String::from_utf8_lossy(&headers::encode(&pairs)).into_owned())
}

/// Makes writers of one ordering key take turns until they commit: for those that lock no row of their own. Call it
/// before [`enqueue`].
///
/// # Errors
/// The store's; a deadlock where two transactions lock the same keys in different orders.
pub async fn lock_key(tx: &mut Transaction<'_, Driver>, key: &[u8]) -> Result<(), StoreError> {
    query("SELECT semel.lock_key($1)")
        .bind(key)
        .execute(&mut **tx)
        .await
        .map_err(|error| classify("lock_key", error))?;
    Ok(())
}
