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
