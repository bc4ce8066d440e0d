//! What a log's tests bring along.

use std::sync::Arc;

use async_trait::async_trait;
use semel_core::{Event, Sink};

use crate::laws::sink::{Arrived, Line};

/// A log that nobody else publishes to. One bed serves one law.
#[async_trait]
pub trait LogBed: Send + Sync {
    /// A sink into the log, as another process has one: each call makes a new one. It reaches the log by way of
    /// [`LogBed::line`].
    fn process(&self) -> Arc<dyn Sink>;

    /// What lies between the processes and the log.
    fn line(&self) -> &dyn Line;

    /// A destination that is there, is empty, and is nobody else's.
    async fn topic(&self) -> String;

    /// Everything that a reader of committed events sees at a destination; the rows of a key in their order. Called when the
    /// line is whole.
    async fn committed(&self, topic: &str) -> Vec<Arrived>;

    /// Makes of this event one that passes [`Sink::check`] and that the log refuses for good; nothing where it refuses none.
    fn refused(&self, event: Event) -> Option<Event>;

    /// Makes of this event one that is too large for the sink or its log; nothing where there is no such limit below the one
    /// of every event.
    fn oversized(&self, event: Event) -> Option<Event>;
}
