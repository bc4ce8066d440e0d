//! The coordinator's loop: owns sagas in memory, asks the pure machine, writes what it decides, sends what it names.
//!
//! One task holds all state. Calls and store calls run beside it and report back; every decision is made here, so that
//! a saga has one thread of events. A decision is sent only after its write came back (R1, R3): what is out by the
//! durable state and does not run here is what [`Engine::dispatch`] sends.

mod claims;
mod jobs;
mod owned;
mod saves;
mod sender;
mod submits;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use semel_core::saga::{CheckedDefinition, Context, Event, SagaId};
use semel_core::store::SagaStore;
use semel_core::{Clock, Timestamp, host};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use self::jobs::JobEnd;
use self::owned::Owned;
use self::sender::CallEnd;
use self::submits::Waiting;
use crate::config::CoordinatorConfig;
use crate::handle::{Message, Waiters};
use crate::participants::Participants;

/// A pause after a store call that failed.
const STORE_RETRY: Duration = Duration::from_millis(200);

pub(crate) struct Engine {
    store: Arc<dyn SagaStore>,
    participants: Arc<dyn Participants>,
    config: CoordinatorConfig,
    clock: Arc<dyn Clock>,
    waiters: Arc<Waiters>,
    /// Cancelled when new work must not start.
    stop: CancellationToken,
    /// The store's time minus our monotonic clock, in microseconds; `None` until the store was asked.
    offset: Option<i64>,
    sagas: HashMap<SagaId, Owned>,
    definitions: HashMap<[u8; 32], CheckedDefinition>,
    unserved: HashSet<[u8; 32]>,
    timers: BTreeSet<(Timestamp, SagaId)>,
    to_save: Vec<SagaId>,
    saving: bool,
    to_submit: Vec<Waiting>,
    submitting: bool,
    claiming: bool,
    claim_again: bool,
    renewing: bool,
    calls: JoinSet<CallEnd>,
    calls_made: u64,
    jobs: JoinSet<JobEnd>,
    permits: HashMap<String, Arc<Semaphore>>,
}

impl Engine {
    pub(crate) fn new(
        store: Arc<dyn SagaStore>,
        participants: Arc<dyn Participants>,
        config: CoordinatorConfig,
        clock: Arc<dyn Clock>,
        waiters: Arc<Waiters>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            store,
            participants,
            config,
            clock,
            waiters,
            stop,
            offset: None,
            sagas: HashMap::new(),
            definitions: HashMap::new(),
            unserved: HashSet::new(),
            timers: BTreeSet::new(),
            to_save: Vec::new(),
            saving: false,
            to_submit: Vec::new(),
            submitting: false,
            claiming: false,
            claim_again: false,
            renewing: false,
            calls: JoinSet::new(),
            calls_made: 0,
            jobs: JoinSet::new(),
            permits: HashMap::new(),
        }
    }

    /// Runs until it is stopped and what is out has come back, or its grace is over. Then gives every saga back.
    pub(crate) async fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        let mut poll = tokio::time::interval(self.config.poll);
        let mut renew = tokio::time::interval(self.config.lease / 3);
        for interval in [&mut poll, &mut renew] {
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        }
        let stop = self.stop.clone();
        // When every handle is gone, sagas go on.
        let mut handles = true;
        while !stop.is_cancelled() {
            let timer = self.until_timer();
            tokio::select! {
                () = stop.cancelled() => {}
                message = messages.recv(), if handles => match message {
                    Some(Message::Submit(submission, reply)) => self.submit(*submission, reply),
                    Some(Message::Requested(id)) => self.requested(&id),
                    None => handles = false,
                },
                _ = poll.tick() => self.claim(),
                _ = renew.tick() => self.renew(),
                Some(end) = self.calls.join_next() => self.call_ended(end),
                Some(end) = self.jobs.join_next() => self.job_ended(end),
                () = tokio::time::sleep(timer) => self.fire_timers(),
            }
        }
        messages.close();
        while let Ok(message) = messages.try_recv() {
            submits::turn_away(message);
        }
        self.wind_down(&mut renew).await;
    }

    /// Records the answers of calls that are out, starts nothing, gives the sagas back.
    async fn wind_down(&mut self, renew: &mut tokio::time::Interval) {
        let grace = tokio::time::sleep(self.config.stop_grace);
        tokio::pin!(grace);
        while !self.is_idle() {
            tokio::select! {
                () = &mut grace => {
                    warn!(calls = self.calls.len(), "stopping although calls are out: the next owner takes them for unknown");
                    break;
                }
                _ = renew.tick() => self.renew(),
                Some(end) = self.calls.join_next() => self.call_ended(end),
                Some(end) = self.jobs.join_next() => self.job_ended(end),
            }
        }
        let owned: Vec<_> = self.sagas.values().map(|saga| saga.ownership.clone()).collect();
        for chunk in owned.chunks(semel_core::limits::BATCH_ITEMS_MAX) {
            if let Err(failed) = self.store.release_sagas(chunk).await {
                let error = semel_core::error::chain(&failed);
                warn!(%error, "could not give sagas back; they wait until their lease ends");
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.jobs.is_empty() && self.to_save.is_empty() && self.to_submit.is_empty()
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// The store's time, by our monotonic clock since it was last asked.
    fn now(&self) -> Timestamp {
        let monotonic = i64::try_from(self.clock.monotonic().as_micros()).unwrap_or(i64::MAX);
        Timestamp(
            self.offset
                .unwrap_or_else(|| self.clock.now().0.saturating_sub(monotonic))
                .saturating_add(monotonic),
        )
    }

    /// Learns the store's time from an answer that was asked for at `asked` of the monotonic clock.
    fn learn_time(&mut self, now: Timestamp, asked: Duration) {
        let asked = i64::try_from(asked.as_micros()).unwrap_or(i64::MAX);
        self.offset = Some(now.0.saturating_sub(asked));
    }

    fn context(&self) -> Context {
        Context {
            now: self.now(),
            dice: host::dice(),
            launch: !self.stopping(),
        }
    }

    fn until_timer(&self) -> Duration {
        let Some((at, _)) = self.timers.first() else {
            return Duration::from_secs(60);
        };
        let left = at.0.saturating_sub(self.now().0).max(0).unsigned_abs();
        Duration::from_micros(left).min(Duration::from_secs(60))
    }

    fn fire_timers(&mut self) {
        let now = self.now();
        while let Some((at, id)) = self.timers.pop_first() {
            if at > now {
                self.timers.insert((at, id));
                break;
            }
            if let Some(saga) = self.sagas.get_mut(&id) {
                saga.timer = None;
                saga.queue.push_back((Event::Timer, 0));
                self.advance(&id);
            }
        }
        self.flush();
    }

    fn call_ended(&mut self, end: Result<CallEnd, tokio::task::JoinError>) {
        match end {
            Ok(end) => self.answered(end),
            // Calls catch panics of handlers; what is left is our own mistake or a runtime that shuts down.
            Err(failed) => error!(error = %failed, "a call's task ended without its answer"),
        }
        self.flush();
    }

    fn job_ended(&mut self, end: Result<JobEnd, tokio::task::JoinError>) {
        match end {
            Ok(end) => self.store_answered(end),
            Err(failed) => error!(error = %failed, "a store call's task ended without its answer"),
        }
        self.flush();
    }
}
