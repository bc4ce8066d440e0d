//! The relay: takes shards, runs a task for each, gives them back.

use std::sync::Arc;
use std::time::Duration;

use semel_core::error::chain;
use semel_core::host::dice;
use semel_core::relay::{End, OwnedShard, ShardLease, note_text};
use semel_core::store::Acquire;
use semel_core::{Nonce, OutboxStore, Retry, Sink, StoreError};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::backlog;
use crate::cleaner;
use crate::clock::LocalClock;
use crate::config::RelayConfig;
use crate::delayed;
use crate::leases::{Leases, local_end};
use crate::shard::Shell;
use crate::status::{RelayHandle, Status};

/// How long a stop waits for sends beyond their own time-out.
const DRAIN_GRACE: Duration = Duration::from_secs(2);

/// Moves one stream of an outbox into a sink. See the [crate](crate).
pub struct Relay {
    shell: Arc<Shell>,
    leases: Arc<Leases>,
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay")
            .field("config", &self.shell.config)
            .finish_non_exhaustive()
    }
}

/// How a shard's task ended.
type Ended = (ShardLease, Result<End, StoreError>);

impl Relay {
    /// A relay that has not begun.
    #[must_use]
    pub fn new(store: Arc<dyn OutboxStore>, sink: Arc<dyn Sink>, config: RelayConfig) -> Self {
        let status = Arc::new(Status::new(
            &config.stream,
            sink.name(),
            Arc::clone(&config.clock),
        ));
        let clock = Arc::new(LocalClock::new(Arc::clone(&config.clock)));
        Self {
            shell: Arc::new(Shell {
                store,
                sink,
                clock,
                status,
                config,
            }),
            leases: Arc::default(),
        }
    }

    /// Looks at this relay, also while it runs.
    #[must_use]
    pub fn handle(&self) -> RelayHandle {
        RelayHandle(Arc::clone(&self.shell.status))
    }

    /// Runs until `shutdown`, through every trouble that can end by itself.
    ///
    /// # Errors
    /// What needs a person: a configuration that cannot work, a missing or newer schema, a store that is not the one
    /// the cursor was made on ([`ErrorKind::IdentityChanged`](semel_core::ErrorKind::IdentityChanged)). Shards are
    /// given back first.
    pub async fn run(&self, shutdown: CancellationToken) -> Result<(), StoreError> {
        self.shell.config.check()?;
        let config = &self.shell.config;
        if !self.register(&shutdown).await? {
            return Ok(());
        }
        // Dropping the set aborts its tasks: a dropped run leaves nothing behind.
        let mut helpers = JoinSet::new();
        {
            let (leases, shell) = (Arc::clone(&self.leases), Arc::clone(&self.shell));
            helpers.spawn(async move {
                let (store, clock) = (Arc::clone(&shell.store), Arc::clone(&shell.clock));
                leases
                    .renew(store, clock, Arc::clone(&shell.status), shell.config.lease)
                    .await;
            });
        }
        if let Some(clean) = config.clean {
            let (store, status) = (Arc::clone(&self.shell.store), Arc::clone(&self.shell.status));
            helpers.spawn(cleaner::clean(store, status, config.stream.clone(), clean));
        }
        if let Some(moving) = config.delayed {
            let (store, status) = (Arc::clone(&self.shell.store), Arc::clone(&self.shell.status));
            helpers.spawn(delayed::move_due(store, status, config.stream.clone(), moving));
        }
        helpers.spawn(backlog::measure(
            Arc::clone(&self.shell.store),
            config.stream.clone(),
            Arc::clone(&config.clock),
        ));
        let stop = CancellationToken::new();
        let mut shards = JoinSet::new();
        let outcome = tokio::select! {
            outcome = self.own(&shutdown, &stop, &mut shards) => outcome,
            error = self.keep_limits() => Err(error),
        };
        stop.cancel();
        let drained = self.drain(&mut shards).await;
        outcome.and(drained)
    }

    /// Says what may wait in the stream where the configuration does. The store may have to wait for writers, so this goes on
    /// beside the relaying until it is done; ends only with what needs a person.
    async fn keep_limits(&self) -> StoreError {
        let (store, config) = (&self.shell.store, &self.shell.config);
        if let Some(limit) = config.limit {
            let say = || store.limit_stream(&config.stream, limit);
            if let Err(error) = self.insist("backlog_rows_max, backlog_age_max_ms", say).await {
                return error;
            }
        }
        if let Some(only) = config.known_streams_only {
            let say = || store.only_known_streams(only);
            if let Err(error) = self.insist("known_streams_only", say).await {
                return error;
            }
        }
        std::future::pending().await
    }

    /// Tries until it is done, with growing pauses.
    async fn insist<F>(&self, limit: &str, say: impl Fn() -> F) -> Result<(), StoreError>
    where
        F: Future<Output = Result<(), StoreError>>,
    {
        let config = &self.shell.config;
        let mut attempt = 0;
        loop {
            match say().await {
                Ok(()) => return Ok(()),
                Err(error) if error.retry() == Retry::Never => return Err(error),
                Err(error) => {
                    attempt += 1;
                    tracing::warn!(
                        stream = config.stream,
                        limit,
                        error = chain(&error),
                        "the limit is not set yet: events are relayed without it"
                    );
                    let wait = config.policy.away.delay_ms(attempt, 0, dice()).unwrap_or(1_000);
                    tokio::time::sleep(Duration::from_millis(wait)).await;
                }
            }
        }
    }

    /// Makes the stream; `false` when told to stop before that was possible.
    async fn register(&self, shutdown: &CancellationToken) -> Result<bool, StoreError> {
        let config = &self.shell.config;
        let mut attempt = 0;
        loop {
            let (store, stream) = (&self.shell.store, &config.stream);
            match store.register_stream(stream, config.shards).await {
                Ok(()) => return Ok(true),
                Err(error) if error.retry() == Retry::Never => return Err(error),
                Err(error) => {
                    attempt += 1;
                    tracing::warn!(error = chain(&error), "the stream could not be registered");
                    self.shell
                        .status
                        .totals(|totals| totals.trouble = Some(chain(&error)));
                    let wait = config.policy.away.delay_ms(attempt, 0, dice()).unwrap_or(1_000);
                    tokio::select! {
                        () = shutdown.cancelled() => return Ok(false),
                        () = tokio::time::sleep(Duration::from_millis(wait)) => {}
                    }
                }
            }
        }
    }

    /// Takes shards as they become free, until told to stop or until one meets what needs a person.
    async fn own(
        &self,
        shutdown: &CancellationToken,
        stop: &CancellationToken,
        shards: &mut JoinSet<Ended>,
    ) -> Result<(), StoreError> {
        let config = &self.shell.config;
        let look = (config.lease / 10).clamp(Duration::from_millis(20), Duration::from_secs(1));
        let mut nonce = Nonce::random();
        let mut wait = Duration::ZERO;
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                Some(ended) = shards.join_next() => {
                    self.ended(ended).await?;
                    continue;
                }
                () = tokio::time::sleep(wait) => {}
            }
            wait = look.mul_f64(0.5 + dice() / 2.0);
            // One at a time, so that relays that start together share.
            let wish = Acquire {
                stream: config.stream.clone(),
                max: 1,
                owner: config.owner.clone(),
                nonce,
                lease_ms: config.lease_ms(),
            };
            let until = local_end(self.shell.clock.now_ms(), config.lease);
            match self.shell.store.acquire(&wish).await {
                Ok(owned) => {
                    nonce = Nonce::random();
                    for owned in owned {
                        self.begin(owned, until, stop, shards);
                        wait = Duration::from_millis(5).mul_f64(1.0 + dice());
                    }
                }
                Err(error) if error.retry() == Retry::Never => return Err(error),
                // The same nonce again: had the lost answer been a shard, it is given again.
                Err(error) => {
                    tracing::warn!(error = chain(&error), "no shard could be acquired");
                    self.shell
                        .status
                        .totals(|totals| totals.trouble = Some(chain(&error)));
                }
            }
        }
    }

    fn begin(&self, owned: OwnedShard, until: u64, stop: &CancellationToken, shards: &mut JoinSet<Ended>) {
        tracing::info!(shard = %owned.lease.shard, epoch = owned.lease.epoch.0, "shard acquired");
        self.shell.status.totals(|totals| totals.acquired += 1);
        let held = self.leases.keep(owned.lease.clone(), until);
        let (shell, stop) = (Arc::clone(&self.shell), stop.clone());
        let guard = LeaseGuard {
            leases: Arc::clone(&self.leases),
            status: Arc::clone(&shell.status),
            lease: owned.lease.clone(),
        };
        shards.spawn(async move {
            let _guard = guard;
            let end = shell.run(&owned, held, stop).await;
            (owned.lease, end)
        });
    }

    /// Tidies up after a shard's task.
    async fn ended(&self, ended: Result<Ended, JoinError>) -> Result<(), StoreError> {
        let (lease, end) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                // A panic in a sink or store; its lease ends by time, as after a crash.
                tracing::error!(%error, "a shard's task died");
                return Ok(());
            }
        };
        match end {
            Ok(End::Lost) => {
                tracing::warn!(shard = %lease.shard, "shard lost to another owner");
                self.shell.status.totals(|totals| totals.lost += 1);
                Ok(())
            }
            Ok(End::Stopped | End::Refused(_)) => {
                self.give_back(&lease).await;
                Ok(())
            }
            Err(error) => {
                tracing::error!(shard = %lease.shard, error = chain(&error), "shard stopped");
                self.leave_word(&lease, &error).await;
                self.give_back(&lease).await;
                Err(error)
            }
        }
    }

    /// Says in the store why it stopped, for whoever asks there.
    async fn leave_word(&self, lease: &ShardLease, error: &StoreError) {
        if let Some(desk) = self.shell.store.desk() {
            let note = note_text(&format!("stopped: {}", chain(error)));
            if let Err(error) = desk.note(lease, Some(&note)).await {
                tracing::debug!(shard = %lease.shard, error = chain(&error), "its end was not noted");
            }
        }
    }

    async fn give_back(&self, lease: &ShardLease) {
        if let Err(error) = self.shell.store.release(std::slice::from_ref(lease)).await {
            tracing::warn!(shard = %lease.shard, error = chain(&error), "shard not given back; its lease ends by time");
        }
    }

    /// Lets every shard finish what is on its way.
    async fn drain(&self, shards: &mut JoinSet<Ended>) -> Result<(), StoreError> {
        let limit = Duration::from_millis(self.shell.config.policy.send_timeout_ms) + DRAIN_GRACE;
        let mut outcome = Ok(());
        let all = async {
            while let Some(ended) = shards.join_next().await {
                if let Err(error) = self.ended(ended).await {
                    outcome = Err(error);
                }
            }
        };
        if tokio::time::timeout(limit, all).await.is_err() {
            tracing::warn!("sends did not end in time; their shards' leases end by time");
        }
        outcome
    }
}

/// While it lives the lease is renewed; it ends with the shard's task, however that ends.
struct LeaseGuard {
    leases: Arc<Leases>,
    status: Arc<Status>,
    lease: ShardLease,
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        self.leases.forget(&self.lease);
        self.status.ended(&self.lease.shard);
    }
}
