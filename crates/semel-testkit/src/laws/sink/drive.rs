//! Hands rows to a sink as a relay does.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use semel_core::store::{OutboxRow, Sink, SinkError, SinkErrorClass, SinkOrder};
use semel_core::{Event, Timestamp};
use tokio::time::Instant;
use uuid::Uuid;

use super::bed::{Arrived, LIMIT, SinkBed};

/// What became of one row.
pub(super) type Answer = Result<(), SinkError>;

/// Row `n` with this event.
pub(crate) fn row(n: i64, event: Event) -> Arc<OutboxRow> {
    Arc::new(OutboxRow {
        row: n,
        created_at: Timestamp(1_796_083_199_999_999),
        batch_no: 7,
        event,
    })
}

/// Event `n`: its data is the number, padded. Its id is no other event's: a receiver that remembers ids must not take
/// one law's for another's.
pub(crate) fn event(n: i64, topic: &str, key: &str) -> Event {
    Event::new(fresh_id(), topic, "law.tested")
        .with_key(key.to_owned())
        .with_data("text/plain", format!("{n:<200}"))
}

fn fresh_id() -> Uuid {
    static SALT: OnceLock<u64> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // The keys of a fresh hasher are random: two test processes have ids of their own.
    let salt = SALT.get_or_init(|| RandomState::new().hash_one(std::process::id()));
    Uuid::from_u64_pair(*salt, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Rows `from..to` of one destination, `keys` in turn.
pub(crate) fn rows(topic: &str, keys: i64, from: i64, to: i64) -> Vec<Arc<OutboxRow>> {
    (from..to)
        .map(|n| row(n, event(n, topic, &format!("k{}", n % keys))))
        .collect()
}

/// The number in an event's data.
pub(super) fn number(arrived: &Arrived) -> i64 {
    let data = arrived.event.data.as_ref().expect("a row of a law has data");
    let text = std::str::from_utf8(data).expect("and its data is text");
    text.trim_end().parse().expect("and the text is its number")
}

/// One call, and what must be true of every call.
pub(super) async fn call(sink: &dyn Sink, rows: &[Arc<OutboxRow>], deadline: Duration) -> Vec<Answer> {
    for row in rows {
        let checked = row.event.check().and_then(|()| sink.check(&row.event));
        checked.unwrap_or_else(|limit| panic!("row {} is refused by check: {limit}", row.row));
    }
    let answers = tokio::time::timeout(
        deadline + Duration::from_secs(10),
        sink.publish_many(rows, deadline),
    )
    .await
    .expect("a call ends within its deadline");
    assert_eq!(answers.len(), rows.len(), "one result for each row");
    answers
}

/// Hands all rows over once, as the sink's order asks. A row behind a failed one of its key is not handed over: it is held
/// back here.
pub(super) async fn send(sink: &dyn Sink, rows: &[Arc<OutboxRow>], deadline: Duration) -> Vec<Answer> {
    let mut answers: Vec<Option<Answer>> = vec![None; rows.len()];
    let mut failed: HashSet<Bytes> = HashSet::new();
    loop {
        let mut picked = Vec::new();
        let mut busy = HashSet::new();
        let (most, one_per_key) = match sink.order() {
            SinkOrder::OnePerKey { in_flight_max } => (in_flight_max, true),
            SinkOrder::Pipelined { in_flight_max } => (in_flight_max, false),
            SinkOrder::Transactional { .. } => panic!("these are not the laws of a log"),
        };
        assert!(most > 0, "a sink that takes no row at all");
        for (index, row) in rows.iter().enumerate() {
            if answers[index].is_some() {
                continue;
            }
            if let Some(key) = &row.event.key {
                if failed.contains(key) {
                    let text = "an earlier row of the key failed";
                    answers[index] = Some(Err(SinkError::new(SinkErrorClass::HeldBack, text)));
                    continue;
                }
                if one_per_key && !busy.insert(key.clone()) {
                    continue;
                }
            }
            if picked.len() < most {
                picked.push(index);
            }
        }
        if picked.is_empty() {
            break;
        }
        let page: Vec<_> = picked.iter().map(|index| Arc::clone(&rows[*index])).collect();
        for (index, answer) in picked.into_iter().zip(call(sink, &page, deadline).await) {
            if answer.is_err() {
                failed.extend(rows[index].event.key.clone());
            }
            answers[index] = Some(answer);
        }
    }
    answers
        .into_iter()
        .map(|answer| answer.expect("every row was handed over or held back"))
        .collect()
}

/// One round of a relay: hands over what is not settled, settles what is acknowledged or refused. Returns the rows that
/// were refused in it.
pub(super) async fn round(
    bed: &dyn SinkBed,
    left: &mut Vec<Arc<OutboxRow>>,
    deadline: Duration,
) -> Vec<Arc<OutboxRow>> {
    let answers = send(bed.sink(), left, deadline).await;
    let mut refused = Vec::new();
    let mut answers = answers.into_iter();
    left.retain(|row| match answers.next() {
        Some(Ok(())) => false,
        Some(Err(error)) => {
            assert!(!error.message.is_empty(), "an error says why");
            match error.class {
                SinkErrorClass::Message => {
                    refused.push(Arc::clone(row));
                    false
                }
                SinkErrorClass::Away | SinkErrorClass::Destination | SinkErrorClass::HeldBack => true,
            }
        }
        None => true,
    });
    refused
}

/// Rounds until all is settled. Returns the numbers of the refused rows.
pub(super) async fn deliver(bed: &dyn SinkBed, rows: &[Arc<OutboxRow>]) -> Vec<i64> {
    let mut left = rows.to_vec();
    let mut refused = Vec::new();
    let until = Instant::now() + LIMIT;
    while !left.is_empty() {
        let before = left.len();
        refused.extend(round(bed, &mut left, LIMIT).await.iter().map(|row| row.row));
        assert!(
            Instant::now() < until,
            "{} rows are still not delivered: {:?}",
            left.len(),
            call(bed.sink(), &left[..1], LIMIT).await
        );
        if left.len() == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
            reachable(bed).await;
        }
    }
    refused
}

/// Waits until the sink says that its receiver is there.
pub(super) async fn reachable(bed: &dyn SinkBed) {
    let until = Instant::now() + LIMIT;
    while let Err(error) = bed.sink().probe().await {
        assert!(
            Instant::now() < until,
            "the receiver is there, and the sink: {error}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Fails unless every answer is `Ok`.
pub(super) fn all_ok(answers: &[Answer]) {
    for answer in answers {
        answer.as_ref().expect("acknowledged");
    }
}

/// Fails if a row is blamed or its destination is, for what the line or the receiver did.
pub(super) fn nobody_is_blamed(answers: &[Answer]) {
    for answer in answers {
        if let Err(error) = answer {
            let innocent = matches!(error.class, SinkErrorClass::Away | SinkErrorClass::HeldBack);
            assert!(innocent, "{:?}: {error}", error.class);
        }
    }
}

/// Fails unless each of these rows arrived, nothing else did, and, repeats left out, each key's rows are in order.
pub(crate) fn all_there(arrived: &[Arrived], rows: &[Arc<OutboxRow>]) {
    let mut seen = HashSet::new();
    let once: Vec<&Arrived> = arrived.iter().filter(|it| seen.insert(it.event.id)).collect();
    let expected = by_key(rows.iter().map(|row| (&row.event, row.row)));
    let found = by_key(once.iter().map(|it| (&it.event, number(it))));
    assert_eq!(found, expected, "the rows of each key, in order");
    let mut ids: Vec<Uuid> = rows.iter().map(|row| row.event.id).collect();
    let mut found: Vec<Uuid> = once.iter().map(|it| it.event.id).collect();
    ids.sort();
    found.sort();
    assert_eq!(found, ids, "the ids are those that were sent");
}

fn by_key<'a>(events: impl Iterator<Item = (&'a Event, i64)>) -> BTreeMap<Option<Bytes>, Vec<i64>> {
    let mut keys = BTreeMap::<_, Vec<i64>>::new();
    for (event, n) in events {
        keys.entry(event.key.clone()).or_default().push(n);
    }
    keys
}
