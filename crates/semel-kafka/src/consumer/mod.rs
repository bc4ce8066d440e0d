//! Kafka into a database: marks, effects and positions in one transaction.

mod config;
mod life;
pub(crate) mod record;
mod seats;

use std::sync::Arc;

use bytes::Bytes;
use semel_core::store::{InboxStore, Parked};
use semel_core::{ErrorKind, StoreError};
use semel_inbox::{Handler, Redriven, Tried};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

pub use self::config::{ConsumerConfig, Dedup, MessageId, Start};
use self::life::Life;
use self::record::Named;

/// Reads topics into the service's own database.
///
/// Each polled batch is one database transaction: dedup marks, what the [`Handler`] writes, parked messages and the
/// next positions commit together or not at all.
///
/// # Guarantees
/// - Each message is handled once (*atomic*): however often it is delivered, wherever a process dies, and whichever
///   instance of the group reads the partition next. A crash before the commit leaves nothing of a batch, after it all.
/// - The stored position is the truth. Kafka's committed offset is written for monitoring only and never read.
/// - A stale owner writes nothing: each assignment draws a new epoch and nonce, which every batch compares
///   (rules I3, O11). When the comparison fails the batch is rolled back, and the partition is claimed again only if
///   the group still gives it to this instance.
/// - A commit whose answer was lost is not guessed at: the partitions are claimed again, which waits for the commit
///   under way and tells for certain where to go on (rule K5).
/// - Positions count control records (rule I1), so that a partition that ends in them is read to its end.
///
/// # Not guaranteed
/// - Under [`Dedup::Offsets`], that a producer's own repeats are noticed.
/// - That a topic deleted and made again *while it is being read* is noticed at once: its id is compared every
///   ten seconds and at each assignment. Until then records of the new topic may be taken for the old one's
///   continuation; afterwards it is read from its beginning, those records too. With ids given by hand ([`ConsumerConfig::topic_ids`]) it is not noticed at all.
///
/// # Errors
/// The database or the brokers being away is waited out. [`Consumer::run`] ends with an error only for what a person
/// must mend: wrong settings, a position outside of the log, this member's static id used elsewhere.
///
/// # Example
/// ```no_run
/// use semel_inbox::{Handler, HandlerError, Message};
/// use semel_kafka::{Consumer, ConsumerConfig};
/// use semel_sqlite::{InboxTx, Sqlite, classify};
///
/// struct Shipping;
///
/// #[async_trait::async_trait]
/// impl Handler<Sqlite> for Shipping {
///     async fn handle(&self, tx: &mut InboxTx, messages: &[&Message]) -> Result<(), HandlerError> {
///         for message in messages {
///             sqlx::query("INSERT INTO parcel (label) VALUES (?1)")
///                 .bind(message.data.as_deref())
///                 .execute(tx.conn())
///                 .await
///                 .map_err(|error| classify("ship", error))?;
///         }
///         Ok(())
///     }
/// }
///
/// # async fn f(db: Sqlite) -> Result<(), semel_core::StoreError> {
/// let config = ConsumerConfig::new("localhost:9092", "shipping", ["orders"])?;
/// let consumer = Consumer::new(config, db.into(), Shipping.into())?;
/// consumer.run(Default::default()).await // until its token is cancelled
/// # }
/// ```
///
/// # Not yet
/// Several batches at once per instance: run more instances, up to one per partition. Counters and readiness: what it
/// does is seen in its log (`tracing`) and in the positions table.
pub struct Consumer<S, H> {
    config: Arc<ConsumerConfig>,
    store: Arc<S>,
    handler: Arc<Named<H>>,
}

impl<S, H> std::fmt::Debug for Consumer<S, H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The properties may hold a password.
        f.debug_struct("Consumer")
            .field("group", &self.config.group)
            .field("topics", &self.config.topics)
            .finish_non_exhaustive()
    }
}

impl<S: InboxStore, H: Handler<S>> Consumer<S, H> {
    /// A consumer over this database. Connects to nothing yet.
    ///
    /// # Errors
    /// A setting outside of its limits.
    pub fn new(config: ConsumerConfig, store: Arc<S>, handler: Arc<H>) -> Result<Self, StoreError> {
        config.check()?;
        let config = Arc::new(config);
        let handler = Named {
            inner: handler,
            config: Arc::clone(&config),
        };
        Ok(Self {
            config,
            store,
            handler: Arc::new(handler),
        })
    }

    /// Handles up to `limit` parked messages after their cause was mended: see [`semel_inbox::redrive`]. While
    /// [`Redriven::next`] says that there are more, [`Consumer::redrive_after`] goes on with them. It may run beside
    /// [`Consumer::run`], also in another process.
    ///
    /// # Errors
    /// The store's; what was not settled before stays parked then.
    pub async fn redrive(&self, limit: u32) -> Result<Redriven, StoreError> {
        semel_inbox::redrive(&*self.store, &*self.handler, &self.config.batch_options(), limit).await
    }

    /// Goes on where an earlier call has ended: see [`semel_inbox::redrive_after`].
    ///
    /// # Errors
    /// As [`Consumer::redrive`].
    pub async fn redrive_after(&self, tried: Tried, limit: u32) -> Result<Redriven, StoreError> {
        let options = self.config.batch_options();
        semel_inbox::redrive_after(&*self.store, &*self.handler, &options, tried, limit).await
    }

    /// Takes one parked message out of the list for good, by a person's decision: see [`semel_inbox::discard`].
    ///
    /// # Errors
    /// See there.
    pub async fn discard(&self, id: &Bytes, by: &str, why: &str) -> Result<Option<Parked>, StoreError> {
        semel_inbox::discard(&*self.store, &self.config.batch_options(), id, by, why).await
    }

    /// Reads until `shutdown`, on a thread of its own; then the batch at hand is finished, the group is left and this
    /// returns.
    ///
    /// # Cancel safety
    /// A dropped future stops the consumer as `shutdown` does, without waiting for it.
    ///
    /// # Errors
    /// See [`Consumer`].
    pub async fn run(&self, shutdown: CancellationToken) -> Result<(), StoreError> {
        let life = Life {
            config: Arc::clone(&self.config),
            store: Arc::clone(&self.store),
            handler: Arc::clone(&self.handler),
            runtime: Handle::current(),
            shutdown: shutdown.child_token(),
        };
        let stop_when_dropped = life.shutdown.clone().drop_guard();
        let (done, ended) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("semel-kafka-inbox".to_owned())
            .spawn(move || {
                // Nobody listens any more when the future was dropped.
                let _ = done.send(life.lives());
            });
        thread.map_err(|error| {
            let text = "no thread can be started for the consumer";
            StoreError::new(ErrorKind::Unavailable, "kafka consumer", text).with_source(error)
        })?;
        let result = ended.await.unwrap_or_else(|_| {
            let text = "the consumer's thread ended without a word";
            Err(StoreError::new(ErrorKind::Unavailable, "kafka consumer", text))
        });
        drop(stop_when_dropped);
        result
    }
}
