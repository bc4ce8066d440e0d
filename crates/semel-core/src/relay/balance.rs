//! How relays share the shards of a stream: what one of them does about it, decided on what the store says of all.
//!
//! Nobody commands. Each relay leaves word in the store that it lives, reads who else does and who holds which shard (a
//! [`Roster`]), and works out what each should hold: on the same roster all come to the same targets. Who holds less takes
//! what is free, who holds more gives one up, in the ordinary drained way. This is a hint: who may send is decided by epochs
//! and nonces alone, and a decision on old news costs a hand-over and no event.
//!
//! # Guarantees
//! - While nobody comes or goes the numbers of shards end up at most one apart; then nothing moves, and no relay takes
//!   again what it gave. Beside one that lives and takes nothing they may be two apart until that one is tried again.
//! - A relay gives up one shard at a time, while none is free, and the next one not before a fifth of a lease has passed.
//! - A free shard waits for no relay longer than a lease: one that lives and does not take what it should is left out, as if
//!   it were dead, until it holds more or [`LEFT_OUT_LEASES`] have passed.

use std::collections::{BTreeMap, BTreeSet};

use crate::claim::Nonce;

/// Leases for which a relay that did not take what it should is left out; each later try costs a shard one lease without an
/// owner.
pub const LEFT_OUT_LEASES: u64 = 20;

/// Who holds a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holding {
    /// Nobody: it is there to be taken.
    Free,
    /// The relay that took it under this [`Acquire::relay`](crate::store::Acquire::relay).
    Relay(Nonce),
    /// Somebody who did not say who.
    Other,
}

/// The relays of a stream and its shards, as the store says at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Roster {
    /// Relays that have said that they live, and whose word still holds.
    pub relays: Vec<Nonce>,
    /// Every shard of the stream, by its number.
    pub shards: Vec<(u16, Holding)>,
}

impl Roster {
    /// Puts it together from rows: a shard's number and who holds it (`None` for nobody, empty for somebody who did not say
    /// who), or -1 and a relay that lives.
    #[must_use]
    pub fn read(rows: impl IntoIterator<Item = (i64, Option<Vec<u8>>)>) -> Self {
        let mut roster = Self::default();
        for (shard, relay) in rows {
            let known = relay
                .as_deref()
                .and_then(|bytes| Id::try_from(bytes).ok())
                .map(Nonce);
            match u16::try_from(shard) {
                Ok(index) => {
                    let holding = match (relay, known) {
                        (None, _) => Holding::Free,
                        (Some(_), Some(relay)) => Holding::Relay(relay),
                        (Some(_), None) => Holding::Other,
                    };
                    roster.shards.push((index, holding));
                }
                Err(_) => roster.relays.extend(known),
            }
        }
        roster
    }
}

/// What a relay does about its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// It takes one free shard.
    Take,
    /// It gives this one up.
    Give(u16),
}

type Id = [u8; 16];

struct Seen {
    held: usize,
    /// Since when it has held so many.
    since: u64,
}

struct LeftOut {
    until: u64,
    /// What it held then: with more it counts again.
    held: usize,
}

/// One relay's view of the sharing. Times are milliseconds of its own clock.
pub struct Balance {
    me: Id,
    lease_ms: u64,
    looked: Option<u64>,
    /// Since when shards are free, and what relays hold, as far as was seen without a gap.
    free: BTreeMap<u16, u64>,
    seen: BTreeMap<Id, Seen>,
    left_out: BTreeMap<Id, LeftOut>,
    give_from: u64,
}

/// What a relay holds, and should hold.
struct Share {
    held: usize,
    target: usize,
}

impl Balance {
    /// Of this relay, that nobody has seen yet.
    #[must_use]
    pub fn new(me: Nonce, lease_ms: u64) -> Self {
        Self {
            me: me.0,
            lease_ms,
            looked: None,
            free: BTreeMap::new(),
            seen: BTreeMap::new(),
            left_out: BTreeMap::new(),
            give_from: 0,
        }
    }

    /// What to do now; `None` for nothing. `giving` while a shard that was given up has not been released.
    pub fn decide(&mut self, now: u64, roster: &Roster, giving: bool) -> Option<Move> {
        self.observe(now, roster);
        let shares = self.shares(roster);
        let mine = shares.get(&self.me)?;
        if self.free.is_empty() {
            return (mine.held > mine.target && !giving).then(|| self.give(now, roster))?;
        }
        let takes = mine.held < mine.target
            || self.leave_out(now, &shares)
                && (self.shares(roster).get(&self.me)).is_some_and(|mine| mine.held < mine.target);
        takes.then_some(Move::Take)
    }

    /// Takes down what was seen, and forgets what no longer holds.
    fn observe(&mut self, now: u64, roster: &Roster) {
        // Who did not look for a while does not know what happened meanwhile.
        if self
            .looked
            .is_some_and(|last| now.saturating_sub(last) > self.lease_ms / 2)
        {
            self.free.clear();
            self.seen.clear();
        }
        self.looked = Some(now);
        let free: BTreeSet<u16> = roster
            .shards
            .iter()
            .filter(|(_, holding)| *holding == Holding::Free)
            .map(|(index, _)| *index)
            .collect();
        self.free.retain(|index, _| free.contains(index));
        for index in free {
            self.free.entry(index).or_insert(now);
        }
        let there: BTreeSet<Id> = roster.relays.iter().map(|relay| relay.0).collect();
        self.seen.retain(|relay, _| there.contains(relay));
        self.left_out
            .retain(|relay, it| there.contains(relay) && now < it.until && held(roster, *relay) <= it.held);
        for relay in there {
            let (held, since) = (held(roster, relay), now);
            let seen = self.seen.entry(relay).or_insert(Seen { held, since });
            if seen.held != held {
                *seen = Seen { held, since };
            }
        }
    }

    /// What each relay that counts holds and should hold. The same for everybody: those that hold most keep the odd ones.
    fn shares(&self, roster: &Roster) -> BTreeMap<Id, Share> {
        let counted: BTreeSet<Id> = (self
            .seen
            .keys()
            .filter(|relay| !self.left_out.contains_key(*relay)))
        .chain([&self.me])
        .copied()
        .collect();
        // What others hold is not there to be shared.
        let shared = |holding: &Holding| match holding {
            Holding::Free => true,
            Holding::Relay(relay) => counted.contains(&relay.0),
            Holding::Other => false,
        };
        let shards = roster.shards.iter().filter(|(_, it)| shared(it)).count();
        let (each, odd) = (shards / counted.len(), shards % counted.len());
        let mut order: Vec<(usize, Id)> = counted
            .iter()
            .map(|relay| (held(roster, *relay), *relay))
            .collect();
        order.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        let share = |(place, (held, relay)): (usize, (usize, Id))| {
            let target = each + usize::from(place < odd);
            (relay, Share { held, target })
        };
        order.into_iter().enumerate().map(share).collect()
    }

    fn give(&mut self, now: u64, roster: &Roster) -> Option<Move> {
        let me = Holding::Relay(Nonce(self.me));
        let mine = roster.shards.iter().filter(|(_, holding)| *holding == me);
        let last = mine.map(|(index, _)| *index).max()?;
        if now < self.give_from {
            return None;
        }
        self.give_from = now.saturating_add(self.lease_ms / 5);
        Some(Move::Give(last))
    }

    /// Leaves out those that let a shard lie for a lease though they should have taken it, and took none; whether there are any.
    fn leave_out(&mut self, now: u64, shares: &BTreeMap<Id, Share>) -> bool {
        let since = self.free.values().min().copied().unwrap_or(now);
        let until = now.saturating_add(self.lease_ms.saturating_mul(LEFT_OUT_LEASES));
        if now.saturating_sub(since) >= self.lease_ms / 2 {
            // Somebody else tries again those that are left out here: not each of us one after the other.
            self.left_out.values_mut().for_each(|it| it.until = until);
        }
        let overdue = |since: &u64| now.saturating_sub(*since) >= self.lease_ms;
        if !overdue(&since) {
            return false;
        }
        let idle = |(relay, share): &(&Id, &Share)| {
            **relay != self.me
                && share.held < share.target
                && self.seen.get(*relay).is_some_and(|seen| overdue(&seen.since))
        };
        let idle: Vec<(Id, LeftOut)> = (shares.iter().filter(idle))
            .map(|(relay, share)| {
                (
                    *relay,
                    LeftOut {
                        until,
                        held: share.held,
                    },
                )
            })
            .collect();
        let any = !idle.is_empty();
        self.left_out.extend(idle);
        if any {
            // Whose turn it is now has a lease of its own.
            self.free.values_mut().for_each(|since| *since = now);
        }
        any
    }
}

fn held(roster: &Roster, relay: Id) -> usize {
    let of = Holding::Relay(Nonce(relay));
    roster.shards.iter().filter(|(_, holding)| *holding == of).count()
}
