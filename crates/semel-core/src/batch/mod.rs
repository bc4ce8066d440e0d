//! Many callers, few statements: what a micro-batcher decides.
//!
//! A [`Lane`] gathers what callers ask one by one while the batch before is on its way, and says what goes into the next
//! one ("natural batching": an idle lane waits for nobody). [`after`] says whether a batch that failed as a whole is
//! worth asking again in halves. [`Replays`] says whether claims are looked up before they are written. All are pure; `semel-keys` has the tasks and timers.
//!
//! # Guarantees
//! - Everything that was let in leaves exactly once, in the order in which it came.
//! - A batch holds at most [`LaneLimits::items_max`] items and [`LaneLimits::bytes_max`] bytes; a single item that is
//!   larger goes alone.
//! - One batch of a lane is on its way at a time, so that two calls for one key never overtake each other.
//! - What waits is bounded in number and bytes. What ends a run is let in when new work no longer is.

mod fallback;
mod lane;
#[cfg(test)]
mod lane_tests;
mod look;

pub use fallback::{REPEATS_MAX, Repeat, after};
pub use lane::{Full, Lane, LaneLimits, Next, Weight};
pub use look::Replays;

/// Microseconds that a lane may wait for company at most.
pub const LINGER_US_MAX: u64 = 1_000;
