//! Where events go: the sink trait, and the classes of its errors.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::event::Event;
use crate::host::Timestamp;
use crate::limits::LimitExceeded;
use crate::relay::{LogPlace, ShardId};

/// One event as read from an outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// The row's number in its outbox: grows within a key.
    pub row: i64,
    /// When it was written, by the store's clock. CloudEvents `time`.
    pub created_at: Timestamp,
    /// The batch in which a relay read it first; 0 where that is not known, as of what is sent again by a replay.
    pub batch_no: i64,
    /// The event.
    pub event: Event,
}

impl OutboxRow {
    /// The event's place among those of its key, as text that is compared byte by byte: CloudEvents `sequence` on every sink
    /// (rule O16). `None` for an event without a key, which has no order.
    ///
    /// # Guarantees
    /// - An event has the same place every time it is sent: again after a crash, by another owner, or after it was set aside.
    ///   Only a rescan, or an adoption after a restore, gives every event a new one, above all that went before.
    /// - Of two events of a key whose writers took turns, the later one's is larger, whatever becomes of the shards. So a
    ///   consumer that remembers the largest place of each key, and refuses what is not above it, takes each event once and
    ///   never an older one after a newer one.
    ///
    /// # Not guaranteed
    /// Places have gaps: that none was missed cannot be seen. An event that was left out (`skip`) and is sent again later has the place
    /// that it had, below those that were sent meanwhile; so has a replay under the same ids (rather below all).
    #[must_use]
    pub fn sequence(&self) -> Option<String> {
        self.event.key.as_ref()?;
        // By hand, as it stands in a header of every event: `format!` takes several times as long.
        let mut text = *b"0000000000000000000-0000000000000000000";
        let (batch_no, row) = text.split_at_mut(20);
        write_digits(&mut batch_no[..19], self.batch_no);
        write_digits(row, self.row);
        Some(String::from_utf8_lossy(&text).into_owned())
    }
}

/// The number's digits at the end of this place, which holds zeros and is long enough. What is below 0 counts as 0.
fn write_digits(place: &mut [u8], number: i64) {
    let mut left = number.max(0);
    for byte in place.iter_mut().rev() {
        *byte = b'0' + (left % 10) as u8;
        left /= 10;
    }
}

/// How a sink keeps the order of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkOrder {
    /// Sends are independent: the relay keeps at most one row of a key in flight, and this many rows in all. It calls
    /// [`Sink::publish_many`] again while earlier calls are unresolved.
    OnePerKey {
        /// Rows in flight at most.
        in_flight_max: usize,
    },
    /// Rows of one call arrive in the order handed over. A call holds many rows, several of a key among them; calls are
    /// made while earlier ones are unresolved, and no key is in two unresolved calls, save by a row that was set aside alone
    /// and is sent again because a person asked for it: its order is lost already. When a row fails, no
    /// later row of its key in that call may arrive after the failure: the sink answers [`SinkErrorClass::HeldBack`]
    /// for those that it holds back. The call's future resolves only when nothing of the call can arrive any more,
    /// save for rows that failed as [`SinkErrorClass::Away`].
    Pipelined {
        /// Rows in flight at most.
        in_flight_max: usize,
    },
    /// Rows go into the sink in transactions of its own, each with the cursor's new place: [`Sink::log`] is there, and
    /// [`Sink::publish_many`] is not used.
    Transactional {
        /// Rows of one transaction at most; never more than half of the relay's window.
        rows_max: usize,
        /// Transactions handed over and not ended, at most. Each ends only after the one before it.
        ahead: usize,
        /// How long rows wait for more of an open batch to be read, in milliseconds. At the batch's end nothing waits.
        linger_ms: u64,
    },
}

/// Why a row was not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SinkErrorClass {
    /// The broker cannot be reached, is overloaded or did not answer: the row may have arrived. The shard pauses, no
    /// attempt is spent; the row goes out again with the same id.
    Away,
    /// The destination is missing or forbidden: the shard pauses with this as its reason, no attempt is spent.
    Destination,
    /// This row is refused: an attempt is spent, then the stream's poison policy decides.
    Message,
    /// The sink held it back, because an earlier row failed: it never left this process. No attempt is spent.
    HeldBack,
}

/// A row was not acknowledged.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct SinkError {
    /// What kind of trouble.
    pub class: SinkErrorClass,
    /// What the broker said; at most [`SINK_ERROR_BYTES_MAX`] bytes.
    pub message: String,
    /// How long the receiver asked to wait.
    pub retry_after: Option<Duration>,
}

/// Bytes of a sink's error text; the rest is cut.
pub const SINK_ERROR_BYTES_MAX: usize = 1_024;

impl SinkError {
    /// An error of this class. Control characters are replaced and the text is cut at [`SINK_ERROR_BYTES_MAX`].
    #[must_use]
    pub fn new(class: SinkErrorClass, message: impl Into<String>) -> Self {
        let mut text: String = message
            .into()
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let mut end = text.len().min(SINK_ERROR_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        Self {
            class,
            message: text,
            retry_after: None,
        }
    }
}

/// A future that a sink hands back.
pub type SinkFuture = Pin<Box<dyn Future<Output = Vec<Result<(), SinkError>>> + Send>>;

/// Publishes events. At least once, with the same id every time.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// A short name for logs and metrics, such as `webhook`.
    fn name(&self) -> &'static str;

    /// How this sink keeps the order of a key.
    fn order(&self) -> SinkOrder;

    /// Refuses what this sink can never send.
    ///
    /// # Errors
    /// The limit that is exceeded.
    fn check(&self, event: &Event) -> Result<(), LimitExceeded>;

    /// Hands rows over in order, before it returns or when the future is first polled; the future resolves to one
    /// result per row, in order, within `deadline`. `Ok` only when the receiver has the row durably. Every row has
    /// passed [`Sink::check`]. A dropped future may leave rows on their way; they are sent again with the same ids.
    fn publish_many(&self, rows: &[Arc<OutboxRow>], deadline: Duration) -> SinkFuture;

    /// Whether the receiver can be reached now.
    async fn probe(&self) -> Result<(), SinkError>;

    /// The sink as a log that keeps the cursor itself; there when its order is [`SinkOrder::Transactional`].
    fn log(&self) -> Option<&dyn LogSink> {
        None
    }
}

/// How a transaction of a log ended.
#[derive(Debug, Clone)]
pub enum TransactionEnd {
    /// All of it is in the log, durably, its place included.
    Committed,
    /// It is certain that nothing of it is in the log or ever will be, and the next one may begin after [`LogSink::go_on`]. One
    /// error per row: [`SinkErrorClass::Message`] for those that were refused, [`SinkErrorClass::HeldBack`] for the others.
    Aborted(Vec<SinkError>),
    /// Nobody knows, or nothing more can be said to the log: [`LogSink::resume`] comes next.
    Unknown(SinkError),
}

/// What [`LogSink::commit`] hands back.
pub type TransactionFuture = Pin<Box<dyn Future<Output = TransactionEnd> + Send>>;

/// A log whose transactions hold events and the cursor, so that no event is in it twice (rules O19, O20).
///
/// # Guarantees
/// - When [`LogSink::resume`] has answered, no transaction that anybody handed over before for this shard can still
///   come into the log, and the place is that of the last one that did.
/// - A transaction is in the log whole or not at all, and only if every one handed over before it since the last
///   `resume`, or the last [`LogSink::go_on`], is.
#[async_trait]
pub trait LogSink: Send + Sync {
    /// Ends whatever is open of this shard, whoever left it, and says how far the log has got; `None` where it holds no
    /// place of this shard.
    ///
    /// # Errors
    /// No answer, or a missing or unfit destination. Nothing was decided; ask again.
    async fn resume(&self, shard: &ShardId) -> Result<Option<LogPlace>, SinkError>;

    /// Hands rows and the place behind them over as one transaction, before it returns; there may be no rows. The future
    /// resolves within `deadline`. A dropped future leaves a transaction that may still be committed.
    fn commit(
        &self,
        shard: &ShardId,
        rows: &[Arc<OutboxRow>],
        place: LogPlace,
        deadline: Duration,
    ) -> TransactionFuture;

    /// The caller has had the ends of all that it handed over, one that was aborted among them, and begins anew. Whatever is
    /// handed over behind an aborted transaction before this is said is aborted, too: its caller may not have heard yet.
    fn go_on(&self, shard: &ShardId);

    /// The shard is not ours any more, or the relay ends: what is held for it can go.
    fn close(&self, shard: &ShardId);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_two_numbers_of_nineteen_digits() {
        let mut row = OutboxRow {
            row: 0,
            created_at: Timestamp(0),
            batch_no: 0,
            event: Event::new(uuid::Uuid::from_u128(7), "t", "e"),
        };
        assert_eq!(row.sequence(), None);
        row.event.key = Some(bytes::Bytes::from_static(b"k"));
        for (batch_no, number) in [
            (0, 0),
            (1, 20),
            (12_345, 9_876_543_210),
            (i64::MAX, i64::MAX),
            (-1, -7),
        ] {
            (row.batch_no, row.row) = (batch_no, number);
            let expected = format!("{:019}-{:019}", batch_no.max(0), number.max(0));
            assert_eq!(row.sequence(), Some(expected));
        }
    }
}
