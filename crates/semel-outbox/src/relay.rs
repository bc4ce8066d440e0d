//! The relay: takes shards, runs a task for each, gives them back.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use semel_core::error::chain;
use semel_core::host::dice;
use semel_core::relay::{Balance, End, Move, OwnedShard, ShardId, ShardLease, note_text};
use semel_core::store::Acquire;
use semel_core::{Nonce, OutboxStore, Retry, Sink, StoreError};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::backlog;
use crate::cleaner;
use crate::clock::LocalClock;
use crate::config::RelayConfig;
use crate::delayed;
use crate::leases::{Leases, local_end};
use crate::presence::Present;
use crate::shard::Shell;
use crate::status::{RelayHandle, Status};

/// How long a stop waits for sends beyond their own time-out.
const DRAIN_GRACE: Duration = Duration::from_secs(2);

/// How long a stop waits for an answer of the store.
pub(crate) const STOP_GRACE: Duration = Duration::from_secs(1);
/// Before what has died begins again.
const HELPER_PAUSE: Duration = Duration::from_secs(1);

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

/// What goes on beside the shards, each in a task of its own.
#[derive(Debug, Clone, Copy)]
enum Helper {
    Renewal,
    Presence,
    Notes,
    Cleaner,
    Delayed,
    Backlog,
    Looks,
}

const HELPERS: [Helper; 7] = [
    Helper::Renewal,
    Helper::Presence,
    Helper::Notes,
    Helper::Cleaner,
    Helper::Delayed,
    Helper::Backlog,
    Helper::Looks,
];

/// Dropping the set aborts its tasks: a dropped run leaves nothing behind.
struct Helpers {
    present: Arc<Present>,
    tasks: JoinSet<()>,
    which: HashMap<Id, Helper>,
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
                looks: Arc::default(),
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
        if !self.register(&shutdown).await? {
            return Ok(());
        }
        let stop = CancellationToken::new();
        let present = Arc::new(Present::new(stop.clone(), self.shell.clock.now_ms()));
        let mut helpers = Helpers {
            present: Arc::clone(&present),
            tasks: JoinSet::new(),
            which: HashMap::new(),
        };
        for helper in HELPERS {
            self.help(helper, &mut helpers, Duration::ZERO);
        }
        let mut shards = JoinSet::new();
        let outcome = tokio::select! {
            outcome = self.own(&shutdown, &stop, &present, &mut shards) => outcome,
            error = self.keep_limits() => Err(error),
            never = self.keep_helpers(&mut helpers) => match never {},
        };
        stop.cancel();
        let drained = tokio::select! {
            (drained, ()) = async { tokio::join!(self.drain(&shutdown, &mut shards), present.left()) } => drained,
            never = self.keep_helpers(&mut helpers) => match never {},
        };
        outcome.and(drained)
    }

    /// Begins what goes on beside the shards.
    fn help(&self, helper: Helper, helpers: &mut Helpers, pause: Duration) {
        let (shell, leases) = (Arc::clone(&self.shell), Arc::clone(&self.leases));
        let present = Arc::clone(&helpers.present);
        let task = async move {
            tokio::time::sleep(pause).await;
            let (store, status) = (Arc::clone(&shell.store), Arc::clone(&shell.status));
            let (config, stream) = (&shell.config, shell.config.stream.clone());
            match helper {
                Helper::Renewal => {
                    leases
                        .renew(store, Arc::clone(&shell.clock), status, config.lease)
                        .await;
                }
                Helper::Presence => present.keep(&shell).await,
                Helper::Notes => leases.say(store, status, config.lease).await,
                Helper::Cleaner => match config.clean {
                    Some(clean) => cleaner::clean(store, status, stream, clean).await,
                    None => std::future::pending().await,
                },
                Helper::Delayed => match config.delayed {
                    Some(moving) => delayed::move_due(store, status, stream, moving).await,
                    None => std::future::pending().await,
                },
                Helper::Backlog => backlog::measure(store, stream, Arc::clone(&config.clock)).await,
                Helper::Looks => shell.looks.answer(&*store).await,
            }
        };
        let id = helpers.tasks.spawn(task).id();
        helpers.which.insert(id, helper);
    }

    /// Begins again what has died: a panic in a store. Without its renewal a relay would lose all it owns.
    async fn keep_helpers(&self, helpers: &mut Helpers) -> Infallible {
        loop {
            let (id, why) = match helpers.tasks.join_next_with_id().await {
                Some(Ok((id, ()))) => (id, "it came to an end".to_owned()),
                Some(Err(error)) => (error.id(), error.to_string()),
                None => std::future::pending().await,
            };
            let Some(helper) = helpers.which.remove(&id) else {
                continue;
            };
            tracing::error!(?helper, why, "a task of the relay died; it begins again");
            let pause = match helper {
                // It waits by itself, a fifth of the lease.
                Helper::Renewal => Duration::ZERO,
                // One that stops is waited for.
                Helper::Presence if helpers.present.is_stopping() => Duration::ZERO,
                _ => HELPER_PAUSE,
            };
            self.help(helper, helpers, pause);
        }
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
            let registered = tokio::select! {
                () = shutdown.cancelled() => return Ok(false),
                registered = store.register_stream(stream, config.shards) => registered,
            };
            match registered {
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

    /// Takes its share of the shards as they become free and gives up what is more, until told to stop or until one meets
    /// what needs a person.
    async fn own(
        &self,
        shutdown: &CancellationToken,
        stop: &CancellationToken,
        present: &Present,
        shards: &mut JoinSet<Ended>,
    ) -> Result<(), StoreError> {
        let config = &self.shell.config;
        let look = (config.lease / 10).clamp(Duration::from_millis(20), Duration::from_secs(1));
        let mut nonce = Nonce::random();
        let mut balance = Balance::new(present.relay, config.lease_ms().unsigned_abs());
        // Whether a shard may have been granted that nobody here has heard of.
        let mut unheard = false;
        let mut wait = Duration::ZERO;
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                Some(ended) = shards.join_next() => {
                    self.ended(shutdown, ended).await?;
                    continue;
                }
                () = tokio::time::sleep(wait) => {}
            }
            wait = look.mul_f64(0.5 + dice() / 2.0);
            if !unheard {
                let roster = self.shell.store.roster(&config.stream);
                let Some(roster) = unless_stopped(shutdown, roster).await else {
                    return Ok(());
                };
                let moved = match roster {
                    Ok(roster) => {
                        if self.leases.is_empty() {
                            // No renewal tells that the store answers again.
                            self.shell.status.totals(|totals| totals.trouble = None);
                        }
                        let now = self.shell.clock.now_ms();
                        present.shared(now);
                        balance.decide(now, &roster, self.leases.is_giving())
                    }
                    Err(error) if error.retry() == Retry::Never => return Err(error),
                    Err(error) => {
                        self.trouble(&error, "who else relays could not be read");
                        None
                    }
                };
                match moved {
                    Some(Move::Take) => {}
                    Some(Move::Give(index)) => {
                        self.give_up(index);
                        continue;
                    }
                    None => continue,
                }
            }
            // One at a time, so that relays that start together share.
            let wish = Acquire {
                stream: config.stream.clone(),
                max: 1,
                owner: config.owner.clone(),
                nonce,
                relay: present.relay,
                lease_ms: config.lease_ms(),
            };
            let until = local_end(self.shell.clock.now_ms(), config.lease);
            let Some(acquired) = unless_stopped(shutdown, self.shell.store.acquire(&wish)).await else {
                return Ok(());
            };
            match acquired {
                Ok(owned) => {
                    unheard = false;
                    nonce = Nonce::random();
                    for owned in owned {
                        self.begin(owned, until, stop, shards);
                        wait = Duration::from_millis(5).mul_f64(1.0 + dice());
                    }
                }
                Err(error) if error.retry() == Retry::Never => return Err(error),
                // The same nonce again: had the lost answer been a shard, it is given again.
                Err(error) => {
                    unheard = true;
                    self.trouble(&error, "no shard could be acquired");
                }
            }
        }
    }

    fn trouble(&self, error: &StoreError, what: &str) {
        tracing::warn!(error = chain(error), "{what}");
        self.shell
            .status
            .totals(|totals| totals.trouble = Some(chain(error)));
    }

    /// Lets a shard finish what is on its way and stop; then it is given back as in any stop.
    fn give_up(&self, index: u16) {
        let shard = ShardId {
            stream: self.shell.config.stream.clone(),
            index,
        };
        // One whose task died is free when its lease ends.
        if self.leases.give_up(&shard) {
            tracing::info!(%shard, "shard given up: another relay holds too few");
            self.shell.status.totals(|totals| totals.given += 1);
        }
    }

    fn begin(&self, owned: OwnedShard, until: u64, stop: &CancellationToken, shards: &mut JoinSet<Ended>) {
        tracing::info!(shard = %owned.lease.shard, epoch = owned.lease.epoch.0, "shard acquired");
        self.shell.status.totals(|totals| totals.acquired += 1);
        let (shell, stop) = (Arc::clone(&self.shell), stop.child_token());
        let held = self.leases.keep(owned.lease.clone(), until, stop.clone());
        let count = self.leases.count();
        let guard = LeaseGuard {
            leases: Arc::clone(&self.leases),
            status: Arc::clone(&shell.status),
            lease: owned.lease.clone(),
        };
        shards.spawn(async move {
            let _guard = guard;
            let end = shell.run(&owned, held, count, stop).await;
            (owned.lease, end)
        });
    }

    /// Tidies up after a shard's task.
    async fn ended(
        &self,
        shutdown: &CancellationToken,
        ended: Result<Ended, JoinError>,
    ) -> Result<(), StoreError> {
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
                self.give_back(shutdown, &lease).await;
                Ok(())
            }
            Err(error) => {
                tracing::error!(shard = %lease.shard, error = chain(&error), "shard stopped");
                self.leave_word(shutdown, &lease, &error).await;
                self.give_back(shutdown, &lease).await;
                Err(error)
            }
        }
    }

    /// Says in the store why it stopped, for whoever asks there.
    async fn leave_word(&self, shutdown: &CancellationToken, lease: &ShardLease, error: &StoreError) {
        if let Some(desk) = self.shell.store.desk() {
            let note = note_text(&format!("stopped: {}", chain(error)));
            match self.in_time(shutdown, desk.note(lease, Some(&note))).await {
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::debug!(shard = %lease.shard, error = chain(&error), "its end was not noted");
                }
                None => tracing::debug!(shard = %lease.shard, "its end was not noted in time"),
            }
        }
    }

    async fn give_back(&self, shutdown: &CancellationToken, lease: &ShardLease) {
        let given = self.shell.store.release(std::slice::from_ref(lease));
        match self.in_time(shutdown, given).await {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::warn!(shard = %lease.shard, error = chain(&error), "shard not given back; its lease ends by time");
            }
            None => {
                tracing::warn!(shard = %lease.shard, "shard not given back in time; its lease ends by itself");
            }
        }
    }

    /// What is done with a lease, for as long as there is one.
    async fn in_time<T>(&self, shutdown: &CancellationToken, call: impl Future<Output = T>) -> Option<T> {
        let call = tokio::time::timeout(self.shell.config.lease, call);
        unless_stopped(shutdown, call).await?.ok()
    }

    /// Lets every shard finish what is on its way.
    async fn drain(
        &self,
        shutdown: &CancellationToken,
        shards: &mut JoinSet<Ended>,
    ) -> Result<(), StoreError> {
        let limit = Duration::from_millis(self.shell.config.policy.send_timeout_ms) + DRAIN_GRACE;
        let mut outcome = Ok(());
        let all = async {
            while let Some(ended) = shards.join_next().await {
                if let Err(error) = self.ended(shutdown, ended).await {
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

/// Waits for the store; when told to stop only a moment longer, in which most calls come to their end: a shard that was
/// acquired and not heard of would be nobody's until its lease ends.
pub(crate) async fn unless_stopped<T>(
    shutdown: &CancellationToken,
    call: impl Future<Output = T>,
) -> Option<T> {
    let mut call = pin!(call);
    tokio::select! {
        biased;
        answer = &mut call => return Some(answer),
        () = shutdown.cancelled() => {}
    }
    tokio::time::timeout(STOP_GRACE, call).await.ok()
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
