//! Events that wait for their time, inside your own transaction.

use semel_core::inbox::headers::encode_event;
use semel_core::store::event_repeated;
use semel_core::{Event, StoreError, Timestamp};
use sqlx::{Postgres as Driver, Transaction};
use uuid::Uuid;

use super::outbox::{bind, failed};
use crate::error::classify;
use crate::gate::{query, query_scalar};

/// Writes an event that is not to be sent before a moment, by the database's clock. A relay moves it into the outbox
/// when the moment has come, some hundred milliseconds later at most; from then on it is like any other. Among delayed
/// events of one key the order is that of their times.
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
    let done = query(
        "INSERT INTO semel.outbox_delayed
           (due, stream, event_id, topic, type, source, key, content_type, headers, data, traceparent)
         SELECT timestamptz 'epoch' + $1::bigint * interval '1 microsecond', $2, $3, $4, $5, $6, $7, $8, $9, $10, $11
         WHERE NOT EXISTS (SELECT FROM semel.outbox WHERE event_id = $3)
         ON CONFLICT (event_id) DO NOTHING",
    )
    .bind(not_before.0)
    .bind(&event.stream)
    .bind(event.id)
    .bind(&event.topic)
    .bind(&event.kind)
    .bind(&event.source)
    .bind(event.key.as_deref())
    .bind(event.content_type.as_deref())
    .bind(encode_event(event))
    .bind(event.data.as_deref())
    .bind(event.traceparent.as_deref())
    .execute(&mut **tx)
    .await
    .map_err(|error| classify("enqueue_at", error))?;
    if done.rows_affected() == 0 {
        return Err(event_repeated(event.id));
    }
    Ok(())
}

/// Writes several events, each not to be sent before its moment, in one statement. All are checked before the first is
/// written.
///
/// # Errors
/// As [`enqueue_at`]. After an error of the store the transaction can only be rolled back.
pub async fn enqueue_many_at(
    tx: &mut Transaction<'_, Driver>,
    events: &[(Event, Timestamp)],
) -> Result<(), StoreError> {
    events.iter().try_for_each(|(event, _)| event.check())?;
    let ids: Vec<Uuid> = events.iter().map(|(event, _)| event.id).collect();
    let sent: Option<Uuid> =
        query_scalar("SELECT event_id FROM semel.outbox WHERE event_id = ANY ($1) ORDER BY event_id LIMIT 1")
            .bind(ids)
            .fetch_optional(&mut **tx)
            .await
            .map_err(|error| classify("enqueue_many_at", error))?;
    if let Some(sent) = sent {
        return Err(event_repeated(sent));
    }
    let many = query(
        "INSERT INTO semel.outbox_delayed
           (stream, event_id, topic, type, source, key, content_type, headers, data, traceparent, due)
         SELECT stream, event_id, topic, type, source, key, content_type, headers, data, traceparent,
           timestamptz 'epoch' + due * interval '1 microsecond'
         FROM unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[],
           $8::text[], $9::bytea[], $10::text[], $11::bigint[]) WITH ORDINALITY
           AS e(stream, event_id, topic, type, source, key, content_type, headers, data, traceparent, due, n)
         ORDER BY n",
    );
    let written: Vec<&Event> = events.iter().map(|(event, _)| event).collect();
    let due: Vec<i64> = events.iter().map(|(_, due)| due.0).collect();
    let done = bind!(many, written).bind(due).execute(&mut **tx).await;
    done.map(|_| ())
        .map_err(|error| failed(&written, "enqueue_many_at", error))
}

/// Takes an event back that waits for its time; whether it still waited. Commit, and it is never sent. A relay that is
/// moving it at this moment is waited for. Roll back, and it is sent when it is due or at the next look of a relay after
/// that: perhaps behind later events of its key.
///
/// # Errors
/// The store's.
pub async fn cancel_delayed(tx: &mut Transaction<'_, Driver>, id: Uuid) -> Result<bool, StoreError> {
    let done = query("DELETE FROM semel.outbox_delayed WHERE event_id = $1")
        .bind(id)
        .execute(&mut **tx)
        .await
        .map_err(|error| classify("cancel_delayed", error))?;
    Ok(done.rows_affected() == 1)
}
