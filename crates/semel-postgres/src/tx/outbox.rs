//! Events inside your own transaction.

use std::collections::{HashMap, HashSet};

use semel_core::inbox::headers::encode_event;
use semel_core::store::{EVENT_REPEATED, event_repeated};
use semel_core::{ErrorKind, Event, StoreError};
use sqlx::postgres::PgDatabaseError;
use sqlx::{Postgres as Driver, Transaction};
use uuid::Uuid;

use crate::error::classify;
use crate::gate::{query, query_as, query_scalar};

/// One event: a statement over arrays would cost several times as much.
const ONE: &str = "INSERT INTO semel.outbox
    (stream, event_id, topic, type, source, key, content_type, headers, data, traceparent)
  VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) RETURNING id";

macro_rules! many {
    ($end:literal) => {
        concat!(
            "INSERT INTO semel.outbox
               (stream, event_id, topic, type, source, key, content_type, headers, data, traceparent)
             SELECT stream, event_id, topic, type, source, key, content_type, headers, data, traceparent
             FROM unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[],
               $8::text[], $9::bytea[], $10::text[]) WITH ORDINALITY
               AS e(stream, event_id, topic, type, source, key, content_type, headers, data, traceparent, n)
             ORDER BY n ",
            $end,
            "RETURNING id, event_id"
        )
    };
}
const MANY: &str = many!("");
const NEW: &str = many!("ON CONFLICT (event_id) DO NOTHING ");

/// Writes an event that a relay will publish after the commit; returns its row number. Commit, and it will be sent at
/// least once, with this id; roll back, and it never was.
///
/// Events of one key are sent in the order in which they were written, where the writers of that key take turns: lock
/// something that stands for the key (the business row, or [`lock_key`]) before you call this.
///
/// # Errors
/// An event that could never be sent ([`Event::check`]); one whose id was enqueued before and is still kept
/// ([SEM0250](semel_core::store::EVENT_REPEATED)); or the store's. Nothing is written then. An id that an open
/// transaction has written is waited for.
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
    event.check()?;
    query_scalar(ONE)
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
        .fetch_one(&mut **tx)
        .await
        .map_err(|error| failed(&[event], "enqueue", error))
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
    let rows = insert(MANY, tx, events).await?;
    Ok(rows.into_iter().map(|(row, _)| row).collect())
}

/// Writes those events whose ids were not enqueued before; returns row numbers, `None` for an event that was there
/// already. For writers that may repeat themselves, with ids that follow from what they do. Ids are remembered for as
/// long as rows are kept.
///
/// # Errors
/// As [`enqueue`], but for repeated ids. After an error of the store the transaction can only be rolled back.
pub async fn enqueue_new(
    tx: &mut Transaction<'_, Driver>,
    events: &[Event],
) -> Result<Vec<Option<i64>>, StoreError> {
    let rows = insert(NEW, tx, events).await?;
    let mut written: HashMap<Uuid, i64> = rows.into_iter().map(|(row, id)| (id, row)).collect();
    Ok(events.iter().map(|event| written.remove(&event.id)).collect())
}

async fn insert(
    sql: &'static str,
    tx: &mut Transaction<'_, Driver>,
    events: &[Event],
) -> Result<Vec<(i64, Uuid)>, StoreError> {
    events.iter().try_for_each(Event::check)?;
    let events: Vec<&Event> = events.iter().collect();
    let rows: Result<Vec<(i64, Uuid)>, sqlx::Error> = bind!(query_as(sql), events).fetch_all(&mut **tx).await;
    rows.map_err(|error| failed(&events, "enqueue", error))
}

/// Binds the columns of events, one array each: `stream` to `traceparent`.
macro_rules! bind {
    ($query:expr, $events:expr) => {{
        let events: &[&semel_core::Event] = &$events;
        let each = events.iter();
        $query
            .bind(each.clone().map(|event| &event.stream[..]).collect::<Vec<_>>())
            .bind(each.clone().map(|event| event.id).collect::<Vec<_>>())
            .bind(each.clone().map(|event| &event.topic[..]).collect::<Vec<_>>())
            .bind(each.clone().map(|event| &event.kind[..]).collect::<Vec<_>>())
            .bind(each.clone().map(|event| &event.source[..]).collect::<Vec<_>>())
            .bind(each.clone().map(|event| event.key.as_deref()).collect::<Vec<_>>())
            .bind(
                each.clone()
                    .map(|event| event.content_type.as_deref())
                    .collect::<Vec<_>>(),
            )
            .bind(each.clone().map(|event| encode_event(event)).collect::<Vec<_>>())
            .bind(
                each.clone()
                    .map(|event| event.data.as_deref())
                    .collect::<Vec<_>>(),
            )
            .bind(each.map(|event| event.traceparent.as_deref()).collect::<Vec<_>>())
    }};
}
pub(super) use bind;

/// Names the event where its id is what was refused.
pub(super) fn failed(events: &[&Event], operation: &'static str, error: sqlx::Error) -> StoreError {
    let refused = error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    let repeated = refused
        // In partitions each has a constraint of its own, after its name.
        .filter(|error| {
            error
                .constraint()
                .is_some_and(|name| name.ends_with("event_id_is_new"))
        })
        .map(|error| error.detail().unwrap_or_default().to_owned());
    match repeated {
        // Its text may be in the server's language; the id in it is not.
        Some(detail) => {
            let named = |event: &&&Event| detail.contains(&event.id.to_string());
            let id = events.iter().find(named).map(|event| event.id);
            repeated_event(id.or_else(|| only_possible(events)), events.len()).with_source(error)
        }
        None => classify(operation, error),
    }
}

/// The id that was refused, where the server keeps it to itself: of a partition's rows it tells those who may read the partition,
/// which writers and relays need not.
fn only_possible(events: &[&Event]) -> Option<Uuid> {
    if let [only] = events {
        return Some(only.id);
    }
    let mut seen = HashSet::with_capacity(events.len());
    events.iter().map(|event| event.id).find(|id| !seen.insert(*id))
}

fn repeated_event(id: Option<Uuid>, events: usize) -> StoreError {
    id.map_or_else(
        || {
            let text = format!(
                "one of these {events} events was enqueued before, and the server does not tell this role which; write them one by \
                 one, or call enqueue_new, which passes over events that are there already"
            );
            StoreError::new(ErrorKind::Constraint, "enqueue", text).with_code(EVENT_REPEATED)
        },
        event_repeated,
    )
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
