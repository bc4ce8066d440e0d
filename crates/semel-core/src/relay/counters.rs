//! What a machine has done.

use crate::store::SinkErrorClass;

/// What a machine has done since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Rows acknowledged by the sink.
    pub published: u64,
    /// Rows that failed and will be sent again.
    pub retries: u64,
    /// Failures because the broker was away.
    pub away: u64,
    /// Failures because the destination was missing or forbidden.
    pub destination: u64,
    /// Refusals of the very row.
    pub refused: u64,
    /// Rows that were turned into exceptions.
    pub excepted: u64,
    /// Batches opened.
    pub batches: u64,
    /// Writes of the cursor.
    pub saves: u64,
}

impl Counters {
    pub(super) const fn failed(&mut self, class: SinkErrorClass) {
        match class {
            SinkErrorClass::Away => self.away += 1,
            SinkErrorClass::Destination => self.destination += 1,
            SinkErrorClass::Message => self.refused += 1,
            // It never left: no failure of its own.
            SinkErrorClass::HeldBack => return,
        }
        self.retries += 1;
    }
}
