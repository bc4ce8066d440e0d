//! The relays of an outbox in memory.

use std::collections::BTreeMap;

use super::outbox::MemoryOutbox;
use crate::claim::Nonce;
use crate::host::Timestamp;
use crate::relay::{Holding, Roster};
use crate::store::{ABSENT_KEPT_MS, Presence};

/// By stream and relay: until when its word holds.
pub(super) type Relays = BTreeMap<(String, [u8; 16]), Timestamp>;

impl MemoryOutbox {
    pub(super) fn note_presence(&self, presence: &Presence) {
        let now = self.clock.now();
        let relays = &mut self.lock().relays;
        relays.retain(|_, until| until.plus_ms(ABSENT_KEPT_MS) > now);
        relays.insert(
            (presence.stream.clone(), presence.relay.0),
            now.plus_ms(presence.ms),
        );
    }

    pub(super) fn drop_presence(&self, stream: &str, relay: Nonce) {
        self.lock().relays.remove(&(stream.to_owned(), relay.0));
    }

    pub(super) fn read_roster(&self, stream: &str) -> Roster {
        let now = self.clock.now();
        let inner = self.lock();
        let lives = inner
            .relays
            .iter()
            .filter(|((of, _), until)| of == stream && **until > now);
        let shards = inner.shards.iter().filter(|(id, _)| id.stream == stream);
        Roster {
            relays: lives.map(|((_, relay), _)| Nonce(*relay)).collect(),
            shards: shards
                .map(|(id, shard)| {
                    let holding = match shard.relay {
                        _ if shard.until <= now => Holding::Free,
                        Some(relay) => Holding::Relay(relay),
                        None => Holding::Other,
                    };
                    (id.index, holding)
                })
                .collect(),
        }
    }
}
