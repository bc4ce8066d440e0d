//! Kafka into Kafka: consume, transform, produce, in one Kafka transaction.

mod config;
mod life;

use std::sync::Arc;

use bytes::Bytes;
use semel_core::inbox::headers::Headers;
use semel_core::{ErrorKind, StoreError};
use semel_inbox::Message;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

pub use self::config::{ProcessorConfig, Refused};
use self::life::Life;

/// A record to be written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Output {
    /// Its topic.
    pub topic: String,
    /// Its partition; by the key (murmur2, as in Java) where it is not set.
    pub partition: Option<i32>,
    /// Its key.
    pub key: Option<Bytes>,
    /// Headers in order; names may repeat, values may be null.
    pub headers: Headers,
    /// The data, byte for byte; `None` is a tombstone.
    pub data: Option<Bytes>,
}

/// Why a message brought no outputs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransformError {
    /// It can never be transformed, for this reason.
    #[error("refused: {0}")]
    Refused(String),
    /// Not now: the batch is tried again later.
    #[error("later: {0}")]
    Later(String),
}

/// What a processor does with a message. Runs on the processor's own thread, perhaps several times for one message:
/// it has no effects but its outputs.
///
/// # Errors
/// [`TransformError`].
pub trait Transform: Send + Sync + 'static {
    /// The outputs of one message, in order; none is allowed.
    ///
    /// # Errors
    /// See the trait.
    fn transform(&self, message: &Message) -> Result<Vec<Output>, TransformError>;
}

impl<F> Transform for F
where
    F: Fn(&Message) -> Result<Vec<Output>, TransformError> + Send + Sync + 'static,
{
    fn transform(&self, message: &Message) -> Result<Vec<Output>, TransformError> {
        self(message)
    }
}

/// Reads topics, transforms each message and writes the outputs; outputs and input offsets are one Kafka transaction.
///
/// # Guarantees
/// - For readers with `isolation.level=read_committed` each input has its outputs exactly once (*atomic*), wherever
///   a process dies and whichever instance reads the partition next.
/// - A dead predecessor is fenced before the group is joined (`init_transactions` under the stable
///   [`ProcessorConfig::transactional_id`]), so that what it left open ends in about a second.
/// - Offsets go into the transaction with this member's current generation, taken after the last poll; a member that
///   has lost its partitions commits nothing. No transaction is ever open while the group is polled, so a partition
///   cannot be taken away in the middle of one.
/// - After an abort every partition is taken back to its committed offset, and what was read ahead is dropped. After a
///   result that is not definite the producer is thrown away: the next one ends the transaction, and the committed
///   offsets tell how.
///
/// # Not guaranteed
/// - For readers with `read_uncommitted`: they see outputs of aborted transactions too.
/// - With replication factor 1 or `min.insync.replicas` 1, that a broker's crash loses nothing.
/// - What the transform does elsewhere.
/// - Order behind a message that went to the dead-letter topic: later messages of its key go on.
///
/// # Errors
/// [`Processor::run`] ends with an error only for what a person must mend: wrong settings, missing rights, the
/// transactional id used elsewhere.
///
/// # Not yet
/// Two alternating producers, which would hide the wait for each commit; more instances do the same.
pub struct Processor<T> {
    config: Arc<ProcessorConfig>,
    transform: Arc<T>,
}

impl<T> std::fmt::Debug for Processor<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Processor")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl<T: Transform> Processor<T> {
    /// A processor. Connects to nothing yet.
    ///
    /// # Errors
    /// A setting outside of its limits.
    pub fn new(config: ProcessorConfig, transform: T) -> Result<Self, StoreError> {
        config.check()?;
        Ok(Self {
            config: Arc::new(config),
            transform: Arc::new(transform),
        })
    }

    /// Processes until `shutdown`, on a thread of its own; then the transaction at hand is finished, the group is left
    /// and this returns.
    ///
    /// # Cancel safety
    /// A dropped future stops the processor as `shutdown` does, without waiting for it.
    ///
    /// # Errors
    /// See [`Processor`].
    pub async fn run(&self, shutdown: CancellationToken) -> Result<(), StoreError> {
        let life = Life {
            config: Arc::clone(&self.config),
            transform: Arc::clone(&self.transform),
            shutdown: shutdown.child_token(),
        };
        let stop_when_dropped = life.shutdown.clone().drop_guard();
        let (done, ended) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("semel-kafka-processor".to_owned())
            .spawn(move || {
                // Nobody listens any more when the future was dropped.
                let _ = done.send(life.lives());
            });
        thread.map_err(|error| {
            let text = "no thread can be started for the processor";
            StoreError::new(ErrorKind::Unavailable, "kafka processor", text).with_source(error)
        })?;
        let result = ended.await.unwrap_or_else(|_| {
            let text = "the processor's thread ended without a word";
            Err(StoreError::new(ErrorKind::Unavailable, "kafka processor", text))
        });
        drop(stop_when_dropped);
        result
    }
}
