//! Events that wait for their time, inside your own transaction.

use semel_core::store::event_repeated;
use semel_core::{Event, StoreError, Timestamp};
use sqlx::{AssertSqlSafe, MySql as Driver, Transaction};
use uuid::Uuid;

use super::outbox::{AT_ONCE, bind, repeated, statements, there};
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
    enqueue_many_at(tx, &[(event.clone(), not_before)]).await
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
    for some in statements(events, |(event, _)| event) {
        insert(tx, some).await?;
    }
    Ok(())
}

/// Writes events by one statement.
async fn insert(tx: &mut Transaction<'_, Driver>, events: &[(Event, Timestamp)]) -> Result<(), StoreError> {
    let ids: Vec<Uuid> = events.iter().map(|(event, _)| event.id).collect();
    if let Some(sent) = there(tx, "semel_outbox", &ids, false).await? {
        return Err(event_repeated(sent));
    }
    let mut sql = String::from(
        "INSERT INTO semel_outbox_delayed
           (due_us, stream, event_id, topic, type, source, `key`, content_type, headers, data, traceparent) VALUES ",
    );
    for n in 0..events.len() {
        sql.push_str(if n == 0 { "" } else { "," });
        sql.push_str("(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    }
    // Of one event and of full statements, not of every number of events.
    let usual = events.len() == 1 || events.len() == AT_ONCE;
    let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(usual);
    for (event, not_before) in events {
        query = bind(query.bind(not_before.0), event);
    }
    match query.execute(&mut **tx).await {
        Ok(_) => Ok(()),
        Err(error) if is_repeated_event(&error) => {
            let id = repeated(tx, "semel_outbox_delayed", &ids).await?;
            Err(event_repeated(id).with_source(error))
        }
        Err(error) => Err(classify("enqueue_at", error)),
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
