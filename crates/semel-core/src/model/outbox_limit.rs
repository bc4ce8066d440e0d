//! What may wait in a stream, in memory.

use std::collections::BTreeMap;

use super::MemoryOutbox;
use super::outbox::Inner;
use crate::error::StoreError;
use crate::host::Timestamp;
use crate::store::{
    MEASURE_KEPT_MS, MEASURE_ROWS, MEASURE_STALE_MS, Measured, OutboxRow, StreamLimit, backlog_full,
    check_stream, stream_unknown,
};

/// Limits of streams, and the switch.
#[derive(Default)]
pub(super) struct Limits {
    pub(super) known_only: bool,
    of: BTreeMap<String, Limited>,
}

/// A limit, and what was measured last.
struct Limited {
    limit: StreamLimit,
    waiting: u64,
    oldest: Option<Timestamp>,
    /// The highest number that was counted.
    counted_to: i64,
    at: Timestamp,
}

impl Limited {
    fn measured(&self, now: Timestamp) -> Measured {
        Measured {
            waiting: self.waiting,
            oldest_ms: self.oldest.map(|oldest| now.ms_since(oldest).max(0)),
        }
    }
}

impl MemoryOutbox {
    pub(super) fn set_limit(&self, stream: &str, limit: StreamLimit) -> Result<(), StoreError> {
        check_stream(stream, 1)?;
        limit.check()?;
        let now = self.clock.now();
        let mut inner = self.lock();
        if limit.is_none() {
            inner.limits.of.remove(stream);
            return Ok(());
        }
        let (waiting, oldest, counted_to, at) = (0, None, inner.last_id, now);
        let new = Limited {
            limit,
            waiting,
            oldest,
            counted_to,
            at,
        };
        inner.limits.of.entry(stream.to_owned()).or_insert(new).limit = limit;
        inner.measure(stream, now);
        Ok(())
    }
}

impl Inner {
    /// Counts what waits.
    pub(super) fn measure(&mut self, stream: &str, now: Timestamp) -> Option<Measured> {
        let limit = self.limits.of.get(stream)?.limit;
        let max = limit.rows_max.unwrap_or(MEASURE_ROWS);
        let shards = || self.shards.iter().filter(|(id, _)| id.stream == stream);
        let known = shards().next().is_some();
        let of_nobody = self.rows.values().map(|(_, row)| row);
        let of_nobody = of_nobody.filter(|row| !known && row.event.stream == stream);
        let waiting: Vec<&OutboxRow> = shards()
            .flat_map(|(id, shard)| self.waiting(id, shard))
            .chain(of_nobody)
            .collect();
        let oldest = waiting.iter().map(|row| row.created_at).min();
        let (waiting, counted_to) = ((waiting.len() as u64).min(max), self.last_id);
        let found = self.limits.of.get_mut(stream)?;
        let new = Limited {
            limit,
            waiting,
            oldest,
            counted_to,
            at: now,
        };
        let measured = new.measured(now);
        // As the stores do: what has not changed is written again only when it grows old.
        let same = (found.waiting, found.oldest) == (waiting, oldest);
        if !same || now.ms_since(found.at) >= MEASURE_KEPT_MS {
            *found = new;
        }
        Some(measured)
    }

    /// Refuses a stream that nobody has registered, where that is asked for.
    pub(super) fn admit_stream(&self, stream: &str) -> Result<(), StoreError> {
        if self.limits.known_only && !self.shards.keys().any(|id| id.stream == stream) {
            return Err(stream_unknown(stream));
        }
        Ok(())
    }

    /// Refuses an event of a stream whose backlog is at its limit. Where nobody has measured for a while, what was written
    /// since is counted here: nothing of it can have been sent by anybody who measures.
    pub(super) fn admit(
        &mut self,
        stream: &str,
        now: Timestamp,
        own: &[OutboxRow],
    ) -> Result<(), StoreError> {
        self.admit_stream(stream)?;
        let Some(found) = self.limits.of.get_mut(stream) else {
            return Ok(());
        };
        if now.ms_since(found.at) > MEASURE_STALE_MS {
            let rows = self.rows.values().map(|(_, row)| row).chain(own);
            let new: Vec<&OutboxRow> = rows
                .filter(|row| row.row > found.counted_to && row.event.stream == stream)
                .collect();
            found.waiting += new.len() as u64;
            found.oldest = found
                .oldest
                .or_else(|| new.iter().map(|row| row.created_at).min());
            (found.counted_to, found.at) = (self.last_id, now);
        }
        match found.measured(now).reaches(&found.limit) {
            Some(reached) => Err(backlog_full(stream, &reached)),
            None => Ok(()),
        }
    }
}
