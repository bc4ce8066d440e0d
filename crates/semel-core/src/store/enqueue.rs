//! What a store refuses when an event is written.

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
