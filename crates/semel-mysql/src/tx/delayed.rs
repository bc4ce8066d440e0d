//! Events that wait for their time, inside your own transaction.

use semel_core::store::event_repeated;
use semel_core::{Event, StoreError, Timestamp};
use sqlx::{MySql as Driver, Transaction};
use uuid::Uuid;

use super::outbox::encoded_headers;
use crate::error::{classify, is_repeated_event};

/// Writes an event that is not to be sent before a moment, by the server's clock. A relay moves it into the outbox when
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
    let failed = |error| classify("enqueue_at", error);
    let sent = sqlx::query("SELECT id FROM semel_outbox WHERE event_id = ?")
        .bind(&event.id.as_bytes()[..])
        .fetch_optional(&mut **tx)
        .await
        .map_err(failed)?;
    if sent.is_some() {
        return Err(event_repeated(event.id));
    }
    let written = sqlx::query(
        "INSERT INTO semel_outbox_delayed
           (due_us, stream, event_id, topic, type, source, `key`, content_type, headers, data, traceparent)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(not_before.0)
    .bind(&event.stream)
    .bind(&event.id.as_bytes()[..])
    .bind(&event.topic)
    .bind(&event.kind)
    .bind(&event.source)
    .bind(event.key.as_deref())
    .bind(&event.content_type)
    .bind(encoded_headers(event))
    .bind(event.data.as_deref())
    .bind(&event.traceparent)
    .execute(&mut **tx)
    .await;
    match written {
        Ok(_) => Ok(()),
        Err(error) if is_repeated_event(&error) => Err(event_repeated(event.id).with_source(error)),
        Err(error) => Err(failed(error)),
    }
}

/// Takes an event back that waits for its time; whether it still waited. Commit, and it is never sent. A relay that is
/// moving it at this moment is waited for. Roll back, and it is sent when it is due or at the next look of a relay after
/// that: perhaps behind later events of its key.
///
/// In a transaction at REPEATABLE READ, an event that was enqueued after its snapshot is not there.
///
/// # Errors
/// The store's.
pub async fn cancel_delayed(tx: &mut Transaction<'_, Driver>, id: Uuid) -> Result<bool, StoreError> {
    // At REPEATABLE READ a DELETE that finds nothing locks the gap, and every writer of delayed events would wait.
    let waits = sqlx::query("SELECT n FROM semel_outbox_delayed WHERE event_id = ?")
        .bind(&id.as_bytes()[..])
        .fetch_optional(&mut **tx)
        .await
        .map_err(|error| classify("cancel_delayed", error))?;
    if waits.is_none() {
        return Ok(false);
    }
    let done = sqlx::query("DELETE FROM semel_outbox_delayed WHERE event_id = ?")
        .bind(&id.as_bytes()[..])
        .execute(&mut **tx)
        .await
        .map_err(|error| classify("cancel_delayed", error))?;
    Ok(done.rows_affected() == 1)
}
