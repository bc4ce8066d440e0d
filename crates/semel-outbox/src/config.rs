//! How a relay runs.

use std::sync::Arc;
use std::time::Duration;

use semel_core::limits::{self, LimitExceeded};
use semel_core::relay::RelayPolicy;
use semel_core::store::{StreamLimit, check_stream};
use semel_core::{Clock, ErrorKind, StoreError, SystemClock};

/// Settings of one relay.
#[derive(Clone)]
pub struct RelayConfig {
    /// The stream it publishes, made when missing. Default `default`.
    pub stream: String,
    /// Shards of the stream; what can be owned by different processes. A stream that has another number is changed while
    /// its relays run. Default 1.
    pub shards: u16,
    /// The name under which its shards are seen in the console. Default the process id.
    pub owner: String,
    /// How long a dead relay keeps its shards from the others. Default 15 s.
    pub lease: Duration,
    /// The numbers of the machine.
    pub policy: RelayPolicy,
    /// When published events are deleted; `None` leaves that to others. Default an hour after they were written.
    pub clean: Option<Clean>,
    /// How delayed events whose time has come are moved into the outbox; `None` leaves that to others.
    pub delayed: Option<Delayed>,
    /// What may wait in the stream before more is refused at enqueue
    /// ([`limit_stream`](semel_core::OutboxStore::limit_stream)); one that limits nothing lifts it, `None` leaves what is
    /// set. Default `None`.
    pub limit: Option<StreamLimit>,
    /// Whether an enqueue into a stream that no relay has registered is refused, in the whole store
    /// ([`only_known_streams`](semel_core::OutboxStore::only_known_streams)); `None` leaves what is set. Default `None`.
    pub known_streams_only: Option<bool>,
    /// The local clock. Leases in the store go by the store's own.
    pub clock: Arc<dyn Clock>,
}

/// How published events are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clean {
    /// How long they stay, from when they were written. Default an hour.
    pub keep: Duration,
    /// How often to look. Default 30 s.
    pub every: Duration,
    /// Rows deleted in one transaction at most. Default 1 000.
    pub rows_max: u32,
}

impl Default for Clean {
    fn default() -> Self {
        Self {
            keep: Duration::from_secs(3_600),
            every: Duration::from_secs(30),
            rows_max: 1_000,
        }
    }
}

/// How delayed events are moved into the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delayed {
    /// How often to look for those whose time has come, at the latest. Default half a second.
    pub every: Duration,
    /// Events moved in one transaction at most. Default 500.
    pub rows_max: u32,
}

impl Default for Delayed {
    fn default() -> Self {
        Self {
            every: Duration::from_millis(500),
            rows_max: 500,
        }
    }
}

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            stream: "default".to_owned(),
            shards: 1,
            owner: format!("pid {}", std::process::id()),
            lease: Duration::from_secs(15),
            policy: RelayPolicy::default(),
            clean: Some(Clean::default()),
            delayed: Some(Delayed::default()),
            limit: None,
            known_streams_only: None,
            clock: Arc::new(SystemClock),
        }
    }
}

impl std::fmt::Debug for RelayConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayConfig")
            .field("stream", &self.stream)
            .field("shards", &self.shards)
            .field("owner", &self.owner)
            .field("lease", &self.lease)
            .field("policy", &self.policy)
            .field("clean", &self.clean)
            .field("delayed", &self.delayed)
            .field("limit", &self.limit)
            .field("known_streams_only", &self.known_streams_only)
            .finish_non_exhaustive()
    }
}

/// Rows of one transaction of the cleaner, or of the mover of delayed events, at most.
const TURN_ROWS_MAX: u64 = 100_000;
/// Milliseconds between two of their turns at most (one day).
const TURN_MS_MAX: u64 = 86_400_000;

/// With no rows, or no time between its turns, a task would go round for ever and do nothing else.
fn check_turns(
    rows: &'static str,
    rows_max: u32,
    turn: &'static str,
    every: Duration,
) -> Result<(), LimitExceeded> {
    let help = "choose another number";
    limits::check(rows, "rows", u64::from(rows_max), 1, TURN_ROWS_MAX, help)?;
    let every = u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
    limits::check(turn, "ms", every, 1, TURN_MS_MAX, help)
}

impl RelayConfig {
    pub(crate) fn lease_ms(&self) -> i64 {
        i64::try_from(self.lease.as_millis()).unwrap_or(i64::MAX)
    }

    /// Refuses settings with which a relay could not work.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        check_stream(&self.stream, self.shards)?;
        self.policy.check()?;
        if let Some(limit) = &self.limit {
            limit.check()?;
        }
        if let Some(clean) = &self.clean {
            check_turns("clean rows_max", clean.rows_max, "clean every", clean.every)?;
        }
        if let Some(delayed) = &self.delayed {
            check_turns(
                "delayed rows_max",
                delayed.rows_max,
                "delayed every",
                delayed.every,
            )?;
        }
        let lease = u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX);
        let max = limits::LEASE_MS_MAX.unsigned_abs();
        limits::check("relay lease", "ms", lease, 100, max, "choose another lease")?;
        if self.policy.send_timeout_ms >= lease {
            let text = format!(
                "send_timeout_ms = {} is not below the lease of {lease} ms, so a send could outlast the right to make \
                 it; lower it, or raise the lease",
                self.policy.send_timeout_ms
            );
            return Err(StoreError::new(ErrorKind::Invalid, "relay", text));
        }
        Ok(())
    }
}
