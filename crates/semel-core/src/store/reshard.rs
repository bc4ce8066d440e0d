//! Another number of shards, while relays run (rule O12).
//!
//! A slot of an event never changes; shards are ranges of slots, in a map with a version. To change the map every shard of
//! the stream is run up to one mark, exactly: no batch opens beyond it while it holds. When the last one is there, nothing
//! is on its way, and one write replaces the map: the new shards all begin at the mark. Nothing is sent twice for it, no
//! key is in two shards, and former owners hold a lease on nothing.
//!
//! Shards that are at the mark wait for those behind, so the mark holds only for [`RESHARD_HOLD_MS`]. Is a shard not
//! there by then (its receiver is away, nobody owns it), the others go on for [`RESHARD_REST_MS`], and a new mark is set.

/// How long shards that have reached the mark wait for the others, in milliseconds.
pub const RESHARD_HOLD_MS: i64 = 5_000;
/// How long all go on after a mark that was not reached by all, before the next one, in milliseconds.
pub const RESHARD_REST_MS: i64 = 20_000;
