//! Events that wait for their time, inside your own transaction.

use semel_core::inbox::headers::encode_event;
use semel_core::store::event_repeated;
use semel_core::{Event, StoreError, Timestamp};
use sqlx::{Sqlite as Driver, Transaction};
use uuid::Uuid;

use super::outbox::failed;
use crate::error::classify;

/// Writes an event that is not to be sent before a moment, by the relay's clock. A relay moves it into the outbox when
/// the moment has come, some hundred milliseconds later at most; from then on it is like any other. Among delayed events
/// of one key the order is that of their times.
///
/// # Errors
/// As [`enqueue`](super::enqueue). An id that is enqueued without delay while this event waits is not refused: this
/// event is dropped then when its time comes, and the relay's log says so. That holds while the event that was sent is
/// kept: after that this one is sent, too, a second time under its id.
pub async fn enqueue_at(
    tx: &mut Transaction<'_, Driver>,
    event: &Event,
    not_before: Timestamp,
) -> Result<(), StoreError> {
    event.check()?;
    let done = sqlx::query(
        "INSERT INTO semel_outbox_delayed
           (due, stream, slot, event_id, topic, type, source, key, content_type, headers, data, traceparent)
         SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12
         WHERE NOT EXISTS (SELECT 1 FROM semel_outbox WHERE event_id = ?4)
         ON CONFLICT (event_id) DO NOTHING",
    )
    .bind(not_before.0)
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
    .execute(&mut **tx)
    .await;
    match done {
        Ok(done) if done.rows_affected() == 0 => Err(event_repeated(event.id)),
        Ok(_) => Ok(()),
        Err(error) => Err(failed(tx, event, "enqueue_at", error).await),
    }
}

/// Writes several events, each not to be sent before its moment. All are checked before the first is written.
///
/// # Errors
/// As [`enqueue_at`]. After an error of the store roll the transaction back: some may have been written.
pub async fn enqueue_many_at(
    tx: &mut Transaction<'_, Driver>,
    events: &[(Event, Timestamp)],
) -> Result<(), StoreError> {
    events.iter().try_for_each(|(event, _)| event.check())?;
    for (event, not_before) in events {
        enqueue_at(tx, event, *not_before).await?;
    }
    Ok(())
}

/// Takes an event back that waits for its time; whether it still waited. Commit, and it is never sent.
///
/// # Errors
/// The store's.
pub async fn cancel_delayed(tx: &mut Transaction<'_, Driver>, id: Uuid) -> Result<bool, StoreError> {
    let done = sqlx::query("DELETE FROM semel_outbox_delayed WHERE event_id = ?1")
        .bind(&id.as_bytes()[..])
        .execute(&mut **tx)
        .await
        .map_err(|error| classify("cancel_delayed", error))?;
    Ok(done.rows_affected() == 1)
}
