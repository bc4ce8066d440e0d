//! What a store refuses when an event is written, and what becomes of events that wait for their time.

use uuid::Uuid;

use crate::error::{ErrorKind, StoreError};

/// The code of a `Constraint` that says: an event with this id was enqueued before.
pub const EVENT_REPEATED: &str = "SEM0250";

/// The error of an event whose id was enqueued before. Receivers would take it for a repetition, and drop it.
#[must_use]
pub fn event_repeated(id: Uuid) -> StoreError {
    let text = format!(
        "event {id} was enqueued before; give every event an id of its own, or call enqueue_new, which passes over \
         events that are there already"
    );
    StoreError::new(ErrorKind::Constraint, "enqueue", text).with_code(EVENT_REPEATED)
}

/// What one call of [`OutboxStore::move_due`](super::OutboxStore::move_due) did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Due {
    /// Events that are in the outbox now.
    pub moved: u64,
    /// Events that were dropped: another one has been enqueued under their id since they were, so receivers would take
    /// them for a repetition.
    pub repeated: Vec<Uuid>,
    /// Milliseconds until the next one is due, at least 0; `None` when none waits.
    pub next_ms: Option<i64>,
}

/// The code of a `NotApplied` that says: what waits in this stream is at its limit.
pub const BACKLOG_FULL: &str = "SEM0260";
/// The code of a `Constraint` that says: nobody has registered this stream, and only known ones are written to.
pub const STREAM_UNKNOWN: &str = "SEM0261";

/// How old a measure of a stream may be before a store that can do so counts what was written since by itself, within the
/// transaction that enqueues.
pub const MEASURE_STALE_MS: i64 = 3_000;
/// How often a measure that says the same is written again. Its age says whether anybody measures, so this stays well below
/// [`MEASURE_STALE_MS`]: else a writer would count what was sent long ago.
pub const MEASURE_KEPT_MS: i64 = 1_500;
const _: () = assert!(MEASURE_KEPT_MS * 2 <= MEASURE_STALE_MS);
/// Rows that a measure counts where only the age is limited.
pub const MEASURE_ROWS: u64 = 10_000;

/// How much of a stream may wait before [`OutboxStore`](super::OutboxStore)s refuse more at enqueue. By default, nothing is
/// limited and nothing is checked.
///
/// It is back-pressure, not a quota: it goes by what was measured last, so what several transactions write between two
/// measures ([`OutboxStore::measure`](super::OutboxStore::measure)) may go beyond it, and one call of `enqueue_many` that
/// begins below it is written whole. Events that are set aside or delayed do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamLimit {
    /// Events that may wait: 1 to [`StreamLimit::ROWS_MAX`].
    pub rows_max: Option<u64>,
    /// How old the oldest of them may be, in milliseconds: 1 to [`StreamLimit::AGE_MS_MAX`].
    pub age_max_ms: Option<i64>,
}

impl StreamLimit {
    /// The largest [`StreamLimit::rows_max`]: measuring counts as many rows.
    pub const ROWS_MAX: u64 = 10_000_000;
    /// The largest [`StreamLimit::age_max_ms`]: a year.
    pub const AGE_MS_MAX: i64 = 366 * 86_400_000;

    /// Whether it limits nothing.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.rows_max.is_none() && self.age_max_ms.is_none()
    }

    /// Refuses numbers that cannot be meant.
    ///
    /// # Errors
    /// [`LimitExceeded`](crate::limits::LimitExceeded).
    pub fn check(&self) -> Result<(), crate::limits::LimitExceeded> {
        let help = "choose another limit, or none";
        if let Some(rows) = self.rows_max {
            crate::limits::check("backlog rows_max", "events", rows, 1, Self::ROWS_MAX, help)?;
        }
        if let Some(age) = self.age_max_ms {
            let (age, max) = (u64::try_from(age).unwrap_or(0), Self::AGE_MS_MAX.unsigned_abs());
            crate::limits::check("backlog age_max_ms", "ms", age, 1, max, help)?;
        }
        Ok(())
    }
}

/// What waits in a stream, as an enqueue compares it with the stream's [`StreamLimit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measured {
    /// Events that wait, counted up to the limit (without one, up to [`MEASURE_ROWS`]).
    pub waiting: u64,
    /// The age of the oldest of them in milliseconds.
    pub oldest_ms: Option<i64>,
}

impl Measured {
    /// Which part of the limit this reaches, as the words of [`backlog_full`].
    #[must_use]
    pub fn reaches(&self, limit: &StreamLimit) -> Option<String> {
        if let Some(max) = limit.rows_max.filter(|max| self.waiting >= *max) {
            return Some(format!("{} events or more wait, rows_max is {max}", self.waiting));
        }
        let (age, max) = (self.oldest_ms?, limit.age_max_ms?);
        (age > max).then(|| format!("the oldest event has waited for {age} ms, age_max_ms is {max}"))
    }
}

/// The error of an enqueue into a stream whose backlog is at its limit.
#[must_use]
pub fn backlog_full(stream: &str, reached: &str) -> StoreError {
    let text = format!(
        "stream {stream} takes no more events now: {reached}; write again when its relay has caught up (semel outbox why), \
         or raise the limit"
    );
    StoreError::new(ErrorKind::NotApplied, "enqueue", text).with_code(BACKLOG_FULL)
}

/// The error of an enqueue into a stream that nobody has registered, where only known ones may be written to.
#[must_use]
pub fn stream_unknown(stream: &str) -> StoreError {
    let text = format!(
        "no relay has registered stream {stream}, and only registered ones are written to here; correct the name, start \
         its relay first, or switch known_streams_only off"
    );
    StoreError::new(ErrorKind::Constraint, "enqueue", text).with_code(STREAM_UNKNOWN)
}
