//! What a relay may do, in numbers.

use serde::{Deserialize, Serialize};

use crate::limits::{self, LimitExceeded};
use crate::retry::RetryPolicy;
use crate::store::PageSize;

/// What becomes of a row that the sink refuses again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Poison {
    /// The shard stops in front of it and says so, until it goes through. The default: nothing is left out and no
    /// order is broken.
    #[default]
    Block,
    /// It and every later row of its key go to the exceptions; other keys go on. A row without a key goes alone.
    ParkKey,
    /// It goes to the exceptions alone; later rows of its key are sent without it.
    Skip,
}

/// The numbers of one relay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RelayPolicy {
    /// Rows read at once. Default 1 000.
    pub page_rows: u32,
    /// Bytes of data read at once. Default 4 MiB.
    pub page_bytes: u64,
    /// Rows held in memory at most, sent and unsent; at most half of them are on their way. The shards that a relay owns have
    /// equal parts of it, but a shard always has [`SHARE_ROWS_MIN`]; in transactions each has all of it. Default 8 000.
    pub window_rows: usize,
    /// Bytes of data, headers and keys held in memory, shared in the same way (at least [`SHARE_BYTES_MIN`] for a shard); no further page is read
    /// beyond it. Default 32 MiB.
    pub window_bytes: u64,
    /// How often the cursor is saved inside a batch, in milliseconds. A crash repeats what was sent since. Default 250.
    pub save_every_ms: u64,
    /// Shortest wait between two looks into an empty outbox, in milliseconds. Default 1.
    pub idle_min_ms: u64,
    /// Longest wait between two looks into an empty outbox, in milliseconds. Default 100.
    pub idle_max_ms: u64,
    /// How often an idle cursor is moved on, so that the cleaner can follow, in milliseconds. Default 5 000.
    pub idle_save_ms: u64,
    /// How often to look whether something is asked of the rows that were set aside, in milliseconds. Default 1 000.
    pub redrive_look_ms: u64,
    /// Events of replays under the same ids that a shard sends in a second at most, so that they do not push live ones aside; 0
    /// is no bound. Default [`REPLAY_PER_SECOND`].
    pub replay_per_second: u32,
    /// How long one send may last, in milliseconds; never beyond the lease. Default 10 000.
    pub send_timeout_ms: u64,
    /// When a refused row is tried again, and how often before it is poison. Default 5 attempts.
    pub retry: RetryPolicy,
    /// How long to pause while the broker is away. Its budgets are not used: it never gives up.
    pub away: RetryPolicy,
    /// How long to pause while a destination is missing or forbidden. Its budgets are not used.
    pub destination: RetryPolicy,
    /// The longest pause that a receiver may ask for, in milliseconds. Default 10 minutes.
    pub retry_after_max_ms: u64,
    /// What becomes of poison. Default [`Poison::Block`].
    pub poison: Poison,
    /// Parked keys of one shard at most; beyond it the shard blocks. Default 10 000.
    pub parked_keys_max: usize,
    /// Owners that may die on one place of a batch before rows go out one by one, each marked first; after as many deaths
    /// more on one marked row it is poison, if the receiver can be reached. Default 3.
    pub takeovers_max: u32,
}

impl Default for RelayPolicy {
    fn default() -> Self {
        Self {
            page_rows: 1_000,
            page_bytes: 4 << 20,
            window_rows: 8_000,
            window_bytes: 32 << 20,
            save_every_ms: 250,
            idle_min_ms: 1,
            idle_max_ms: 100,
            idle_save_ms: 5_000,
            redrive_look_ms: 1_000,
            replay_per_second: REPLAY_PER_SECOND,
            send_timeout_ms: 10_000,
            retry: RetryPolicy {
                attempts_max: 5,
                ..RetryPolicy::default()
            },
            away: RetryPolicy::forever(),
            destination: RetryPolicy {
                initial_ms: 1_000,
                cap_ms: 60_000,
                ..RetryPolicy::forever()
            },
            retry_after_max_ms: 600_000,
            poison: Poison::default(),
            parked_keys_max: 10_000,
            takeovers_max: 3,
        }
    }
}

/// Events of a replay in a second, where nothing else is said.
pub const REPLAY_PER_SECOND: u32 = 1_000;
/// The highest such number.
pub const REPLAY_PER_SECOND_MAX: u32 = 1_000_000;
/// Rows of a page, and of a window, at most.
const WINDOW_ROWS_MAX: u64 = 100_000;
/// Rows of a shard's part of the window at least, where the window has as many.
pub const SHARE_ROWS_MIN: usize = 500;
/// Bytes of a shard's part of the window at least, where the window has as many.
pub const SHARE_BYTES_MIN: u64 = 1 << 20;
/// Milliseconds of every wait at most (one day).
const WAIT_MS_MAX: u64 = 86_400_000;

impl RelayPolicy {
    /// Refuses numbers with which a relay could not work.
    ///
    /// # Errors
    /// The field and its limits.
    pub fn check(&self) -> Result<(), LimitExceeded> {
        let rows = |what, actual| limits::check(what, "rows", actual, 1, WINDOW_ROWS_MAX, "see RelayPolicy");
        let ms = |what, actual, min| limits::check(what, "ms", actual, min, WAIT_MS_MAX, "see RelayPolicy");
        rows("page_rows", u64::from(self.page_rows))?;
        rows("window_rows", self.window_rows as u64)?;
        ms("save_every_ms", self.save_every_ms, 0)?;
        ms("idle_min_ms", self.idle_min_ms, 1)?;
        ms("idle_max_ms", self.idle_max_ms, self.idle_min_ms)?;
        ms("idle_save_ms", self.idle_save_ms, 1)?;
        ms("redrive_look_ms", self.redrive_look_ms, 1)?;
        let (replays, most) = (
            u64::from(self.replay_per_second),
            u64::from(REPLAY_PER_SECOND_MAX),
        );
        limits::check("replay_per_second", "events", replays, 0, most, "see RelayPolicy")?;
        ms("send_timeout_ms", self.send_timeout_ms, 1)?;
        ms("retry_after_max_ms", self.retry_after_max_ms, 0)
    }

    /// The numbers for one of so many shards that share the window.
    pub(super) fn shared_by(&self, shards: usize) -> Self {
        let shards = shards.max(1);
        let rows = (self.window_rows / shards)
            .max(SHARE_ROWS_MIN)
            .min(self.window_rows);
        let bytes = (self.window_bytes / shards as u64)
            .max(SHARE_BYTES_MIN)
            .min(self.window_bytes);
        Self {
            window_rows: rows,
            window_bytes: bytes,
            page_bytes: self.page_bytes.min(bytes),
            ..self.clone()
        }
    }

    /// How much is read at once. A small window is read in parts, too: what is on its way needs the other half.
    pub(super) fn page_size(&self) -> PageSize {
        let part = u32::try_from(self.window_rows / 4).unwrap_or(u32::MAX);
        PageSize {
            rows: self.page_rows.min(part.max(1)),
            bytes: self.page_bytes,
        }
    }
}
