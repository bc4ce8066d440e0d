//! The relay: how events leave an outbox.
//!
//! [`Machine`] is the whole protocol of one shard as a pure state machine: it takes [`Input`]s and answers with
//! [`Command`]s. It knows no store, no broker and no clock; a shell carries its commands out and tells it what came of
//! them. One machine lives for one term of ownership.
//!
//! ```text
//!   OpenBatch ─► Opened ─► ReadPage ─► rows ─► Publish ─► results ─► Save ─► … ─► the next OpenBatch
//!      ▲           cursor saved first            one order per key       acked prefix          │
//!      └────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! # Guarantees
//! - Nothing is lost: the cursor passes a row only when the sink has acknowledged it, or when the row is copied into
//!   the exceptions in the same transaction (rules O1, O7). A crash at any point sends some rows again, with the same
//!   ids.
//! - Order per key: a row is handed over only when every earlier row of its key is settled or, in a
//!   [`Pipelined`](crate::store::SinkOrder::Pipelined) sink, in the same call before it. A receiver that drops ids it
//!   has seen sees each key's events in order.
//! - A broker that is away, or a destination that is missing, costs no attempt: the shard pauses and says why.
//! - Nothing is handed over after the lease's local deadline, and no send may last beyond it (rule O17).
//! - A row that kills the relay again and again is found (rule O22): after
//!   [`RelayPolicy::takeovers_max`] deaths on one place rows go out one by one, each marked before it is sent; after as
//!   many more on one row it is poison.
//! - Memory is bounded by [`RelayPolicy::window_rows`] and [`RelayPolicy::window_bytes`], whatever the backlog and
//!   however many shards ([`SHARE_ROWS_MIN`]).
//! - Rows that were set aside are sent again when a person asks for it (rule O15, `redrive.rs`): by the shard's owner alone,
//!   a key's in their order and before its newer ones.
//!
//! - Where a log holds the cursor itself ([`Transactional`](crate::store::SinkOrder::Transactional)), each event is there
//!   exactly once: rows go out as a prefix of the batch, in transactions that hold the place behind them (rules O3, O7, O20).
//!
//! # Not guaranteed
//! - That an owner whose lease ended has nothing on its way to the receiver. Duplicates carry the same id; order holds
//!   after dropping them.
//! - A sequence without gaps: every event with a key carries its place, which grows along the key (rule O16).
//! - A batch is settled before the next one opens, so one slow row at its end holds back the rows that came
//!   after the batch was opened. Up to four calls of a batch overlap, and only one batch is open.

mod balance;
mod command;
mod counters;
mod cursor;
mod desk;
mod log;
mod machine;
mod pace;
mod policy;
mod redrive;
mod send;
mod settle;
mod transaction;
mod waves;
mod window;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub use balance::{Balance, Holding, LEFT_OUT_LEASES, Move, Roster};
pub use command::{Command, End, Input, Pause, PauseKind, StoreCall};
pub use counters::Counters;
pub use cursor::{Cursor, Epoch, Mark, OwnedShard, ShardId, ShardLease, Slots, Takeovers, after_restore};
pub use desk::{DeskRefusal, bytes_json, decide, event_json, note_text};
pub use log::{Discord, LogCopy, LogPlace};
pub use machine::Machine;
pub use pace::Pace;
pub use policy::{
    Poison, REPLAY_PER_SECOND, REPLAY_PER_SECOND_MAX, RelayPolicy, SHARE_BYTES_MIN, SHARE_ROWS_MIN,
};
pub use waves::Waves;
