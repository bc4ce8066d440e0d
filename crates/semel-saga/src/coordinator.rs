//! The coordinator's public face.

use std::sync::Arc;

use semel_core::limits::LimitExceeded;
use semel_core::store::SagaStore;
use semel_core::{Clock, SystemClock};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::config::CoordinatorConfig;
use crate::engine::Engine;
use crate::handle::{Message, SagaHandle, Waiters};
use crate::participants::Participants;

/// Drives sagas. Any number of coordinators, in any number of processes, share a store: each saga has one owner at a
/// time, by lease, epoch and nonce.
pub struct Coordinator {
    store: Arc<dyn SagaStore>,
    participants: Arc<dyn Participants>,
    config: CoordinatorConfig,
    clock: Arc<dyn Clock>,
    waiters: Arc<Waiters>,
    tell: mpsc::Sender<Message>,
    messages: mpsc::Receiver<Message>,
}

impl std::fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coordinator")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Coordinator {
    /// A coordinator that does nothing until it runs.
    ///
    /// # Errors
    /// [`LimitExceeded`] for a setting that cannot work.
    pub fn new(
        store: Arc<dyn SagaStore>,
        participants: Arc<dyn Participants>,
        config: CoordinatorConfig,
    ) -> Result<Self, LimitExceeded> {
        config.check()?;
        let (tell, messages) = mpsc::channel(config.queue_max);
        let clock = Arc::new(SystemClock);
        Ok(Self {
            store,
            participants,
            config,
            clock,
            waiters: Arc::default(),
            tell,
            messages,
        })
    }

    /// A handle to submit sagas and look after them. Submissions wait until [`Coordinator::run`].
    #[must_use]
    pub fn handle(&self) -> SagaHandle {
        SagaHandle::of_coordinator(self.store.clone(), self.tell.clone(), self.waiters.clone())
    }

    /// Runs until `shutdown`: then it accepts and starts nothing more, records the answers of calls that are out (for at
    /// most [`CoordinatorConfig::stop_grace`]), and gives every saga back so that another takes it up at once.
    ///
    /// # Cancel safety
    /// A dropped future is a crash: its sagas wait until their lease ends; calls without a recorded answer are taken
    /// for unknown by the next owner.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self {
            store,
            participants,
            config,
            clock,
            waiters,
            tell,
            messages,
        } = self;
        drop(tell);
        Engine::new(store, participants, config, clock, waiters, shutdown)
            .run(messages)
            .await;
    }
}
