//! Taking one delivery once.

use std::time::Duration;

use semel_core::inbox::Mark;
use semel_core::inbox::mark::retention_ms;
use semel_core::store::InboxStore;
use semel_core::{ErrorKind, Retry, Scope, StoreError, crash_point};

use crate::delivery::Delivery;

/// What a handler answers when it did not do its work. Everything it wrote in the transaction is rolled back.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// This message can never be handled, for this reason: sending it again is of no use.
    #[error("refused: {0}")]
    Refused(String),
    /// Nothing is wrong with the message: it is to be sent again later.
    #[error("later: {0}")]
    Later(String),
    /// A statement failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl HandlerError {
    /// Whether the message itself is at fault, so that the same message would fail again.
    #[must_use]
    pub const fn blames_message(&self) -> bool {
        match self {
            Self::Refused(_) => true,
            Self::Later(_) => false,
            Self::Store(error) => {
                matches!(error.kind(), ErrorKind::Constraint | ErrorKind::LimitExceeded)
            }
        }
    }
}

/// Settings of [`receive_with`].
#[derive(Debug, Clone)]
pub struct ReceiveOptions {
    /// How long at least a delivery is remembered. Longer than its sender may redeliver. Default 30 days.
    pub retention: Duration,
}

impl Default for ReceiveOptions {
    fn default() -> Self {
        Self {
            retention: Duration::from_secs(30 * 86_400),
        }
    }
}

/// A delivery was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received<T> {
    /// The handler ran; mark and effect are durable.
    New(T),
    /// It was handled before. The handler did not run.
    Duplicate,
}

/// A delivery was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The handler did not do its work; everything was rolled back, the mark too.
    #[error("the handler did not take the delivery")]
    Handler(#[source] HandlerError),
    /// The database did not do its part. When its [`Retry`] is `OutcomeUnknown` the commit's answer was lost: effect
    /// and mark are both there or both not, and the redelivery finds out.
    #[error("the delivery could not be taken")]
    Store(#[source] StoreError),
}

/// Takes a delivery once: marks its id and runs `handler` in one transaction.
///
/// # Guarantees
/// - The effect that `handler` writes through the transaction is there once per delivery id and scope, however often
///   the delivery comes and wherever a process dies (*atomic*).
/// - A failing handler takes the mark with it: the redelivery is handled.
/// - Two copies of a delivery at once: the second waits for the first's commit, then is a duplicate.
///
/// # Not guaranteed
/// - What the handler does outside of the transaction, and more than [`ReceiveOptions::retention`] of memory.
/// - That old marks go by themselves: call [`InboxStore::purge_inbox`] from time to time.
///
/// # Errors
/// [`ReceiveError`]; in every case the sender should deliver again unless the message itself was refused.
///
/// # Cancel safety
/// A dropped future rolls back, or has committed already; the redelivery finds out.
pub async fn receive<S: InboxStore, T>(
    store: &S,
    scope: &Scope,
    delivery: &Delivery,
    handler: impl AsyncFnOnce(&mut S::Tx, &Delivery) -> Result<T, HandlerError>,
) -> Result<Received<T>, ReceiveError> {
    receive_with(&ReceiveOptions::default(), store, scope, delivery, handler).await
}

/// [`receive`] with settings of your own.
///
/// # Errors
/// As [`receive`].
pub async fn receive_with<S: InboxStore, T>(
    options: &ReceiveOptions,
    store: &S,
    scope: &Scope,
    delivery: &Delivery,
    handler: impl AsyncFnOnce(&mut S::Tx, &Delivery) -> Result<T, HandlerError>,
) -> Result<Received<T>, ReceiveError> {
    let failed = ReceiveError::Store;
    let retention = retention_ms(options.retention).map_err(|limit| failed(limit.into()))?;
    let mut tx = store.begin_inbox().await.map_err(failed)?;
    let ids = [delivery.id.clone()];
    let marks = match store.mark_many(&mut tx, scope, &ids, retention).await {
        Ok(marks) => marks,
        Err(error) => {
            roll_back(store, tx).await;
            return Err(failed(error));
        }
    };
    crash_point("inbox.marked");
    if marks != [Mark::New] {
        roll_back(store, tx).await;
        return Ok(Received::Duplicate);
    }
    match handler(&mut tx, delivery).await {
        Ok(value) => {
            crash_point("inbox.before_commit");
            store.commit_inbox(tx).await.map_err(failed)?;
            crash_point("inbox.committed");
            Ok(Received::New(value))
        }
        Err(error) => {
            roll_back(store, tx).await;
            Err(ReceiveError::Handler(error))
        }
    }
}

/// Rolls back. When even that fails the connection is gone, and the transaction with it.
pub(crate) async fn roll_back<S: InboxStore>(store: &S, tx: S::Tx) {
    if let Err(error) = store.rollback_inbox(tx).await {
        tracing::debug!(error = semel_core::error::chain(&error), "rollback unanswered");
    }
}

impl ReceiveError {
    /// What the sender may do next.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        match self {
            Self::Handler(error) if error.blames_message() => Retry::Never,
            Self::Handler(_) => Retry::Later,
            Self::Store(error) => error.retry(),
        }
    }
}
