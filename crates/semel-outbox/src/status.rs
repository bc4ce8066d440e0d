//! What a relay is doing, for metrics, health and the console.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel_core::relay::{Counters, Machine, PauseKind, ShardId, note_text};
use semel_core::{Clock, Timestamp};
use tokio::sync::watch;

/// A relay's state at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RelayStats {
    /// The stream.
    pub stream: String,
    /// The sink's name.
    pub sink: String,
    /// Events acknowledged by the sink since the relay began.
    pub published: u64,
    /// Sends that failed and were, or will be, repeated.
    pub retries: u64,
    /// Of these, because the receiver was away.
    pub away: u64,
    /// Of these, because the destination was missing or forbidden.
    pub destination: u64,
    /// Of these, because the event itself was refused.
    pub refused: u64,
    /// Events set aside in the exceptions table.
    pub excepted: u64,
    /// Batches opened.
    pub batches: u64,
    /// Writes of cursors.
    pub saves: u64,
    /// Shards taken over.
    pub acquired: u64,
    /// Of these, given up because another relay held too few.
    pub given: u64,
    /// Shards lost to another owner.
    pub lost: u64,
    /// Published events deleted by the cleaner.
    pub cleaned: u64,
    /// The shards it owns.
    pub shards: Vec<ShardStats>,
    /// The store's last error, while it has not answered since.
    pub trouble: Option<String>,
}

/// One owned shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardStats {
    /// Which.
    pub shard: ShardId,
    /// Rows on their way to the sink.
    pub in_flight: usize,
    /// Age of the oldest row in memory that is not settled, in milliseconds; 0 when there is none.
    pub lag_ms: i64,
    /// Why nothing is being sent, if so.
    pub paused: Option<Paused>,
}

/// Why a shard sends nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paused {
    /// What kind of trouble.
    pub kind: PauseKind,
    /// What the sink said.
    pub reason: String,
    /// The row that met it.
    pub row: i64,
    /// For how long now, in milliseconds.
    pub for_ms: u64,
}

#[derive(Default)]
struct Inner {
    totals: RelayStats,
    shards: BTreeMap<ShardId, Live>,
}

struct Live {
    counters: Counters,
    in_flight: usize,
    oldest: Option<Timestamp>,
    paused: Option<Paused>,
}

/// Shared by a relay's tasks and its handles.
pub(crate) struct Status {
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
    /// Changes when events may have been written: a change is seen later by whoever does not wait for it just then.
    hint: watch::Sender<()>,
}

impl Status {
    pub(crate) fn new(stream: &str, sink: &str, clock: Arc<dyn Clock>) -> Self {
        let totals = RelayStats {
            stream: stream.to_owned(),
            sink: sink.to_owned(),
            ..RelayStats::default()
        };
        Self {
            clock,
            inner: Mutex::new(Inner {
                totals,
                shards: BTreeMap::new(),
            }),
            hint: watch::Sender::new(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn totals(&self, change: impl FnOnce(&mut RelayStats)) {
        change(&mut self.lock().totals);
    }

    /// Tells all shards that events may have been written.
    pub(crate) fn wake(&self) {
        self.hint.send_replace(());
    }

    /// Hears of every [`wake`](Self::wake) from now on.
    pub(crate) fn hints(&self) -> watch::Receiver<()> {
        self.hint.subscribe()
    }

    /// What a machine looks like after a step.
    pub(crate) fn update(&self, shard: &ShardId, machine: &Machine, now: u64) {
        let paused = machine.pause().map(|pause| Paused {
            kind: pause.kind,
            reason: pause.reason,
            row: pause.row,
            for_ms: now.saturating_sub(pause.since),
        });
        let live = Live {
            counters: machine.counters(),
            in_flight: machine.in_flight(),
            oldest: machine.oldest(),
            paused,
        };
        let mut inner = self.lock();
        match inner.shards.get_mut(shard) {
            Some(found) => *found = live,
            None => {
                inner.shards.insert(shard.clone(), live);
            }
        }
    }

    /// Why a shard sends nothing, as it is left in the store: the same text for as long as the reason is the same.
    pub(crate) fn note(&self, shard: &ShardId) -> Option<String> {
        let inner = self.lock();
        let paused = inner.shards.get(shard)?.paused.as_ref()?;
        Some(note_text(&format!("{}: {}", paused.kind.as_str(), paused.reason)))
    }

    /// A machine has ended: what it did stays counted.
    pub(crate) fn ended(&self, shard: &ShardId) {
        let mut inner = self.lock();
        if let Some(live) = inner.shards.remove(shard) {
            add(&mut inner.totals, live.counters);
        }
    }
}

fn add(totals: &mut RelayStats, counters: Counters) {
    totals.published += counters.published;
    totals.retries += counters.retries;
    totals.away += counters.away;
    totals.destination += counters.destination;
    totals.refused += counters.refused;
    totals.excepted += counters.excepted;
    totals.batches += counters.batches;
    totals.saves += counters.saves;
}

/// Looks at a running relay, and can wake it. Cheap to clone.
#[derive(Clone)]
pub struct RelayHandle(pub(crate) Arc<Status>);

impl std::fmt::Debug for RelayHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RelayHandle").field(&self.stats()).finish()
    }
}

impl RelayHandle {
    /// Its state now.
    #[must_use]
    pub fn stats(&self) -> RelayStats {
        let inner = self.0.lock();
        let mut stats = inner.totals.clone();
        let now = self.0.clock.now();
        for (shard, live) in &inner.shards {
            add(&mut stats, live.counters);
            stats.shards.push(ShardStats {
                shard: shard.clone(),
                in_flight: live.in_flight,
                lag_ms: live.oldest.map_or(0, |oldest| now.ms_since(oldest).max(0)),
                paused: live.paused.clone(),
            });
        }
        stats
    }

    /// Events may have been written just now: look at once instead of at the next tick. Only a hint; without it they
    /// are found within [`RelayPolicy::idle_max_ms`](semel_core::relay::RelayPolicy::idle_max_ms).
    pub fn wake(&self) {
        self.0.wake();
    }
}
