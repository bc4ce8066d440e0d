//! Relays that share: whoever comes and goes, they end up with shares at most one apart, and then leave each other alone.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::claim::Nonce;
use crate::relay::{Balance, Holding, LEFT_OUT_LEASES, Move, Roster};

const LEASE: u64 = 10_000;
/// Between two looks of one relay.
const LOOK: u64 = LEASE / 10;

fn id(n: u8) -> Nonce {
    Nonce([n; 16])
}

/// What a relay does when it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Works,
    /// It says that it lives, gives what it has too many, and takes nothing.
    Ghost,
    /// It holds shards and is not heard of.
    Silent,
}

struct Member {
    kind: Kind,
    balance: Balance,
    /// Its machine is being stopped for so many looks more.
    giving: Option<(u16, u8)>,
    gave: Vec<u16>,
}

struct World {
    now: u64,
    shards: BTreeMap<u16, Holding>,
    members: BTreeMap<u8, Member>,
    moves: usize,
    drain: u8,
}

impl World {
    fn new(shards: u16, drain: u8) -> Self {
        Self {
            now: 1,
            shards: (0..shards).map(|index| (index, Holding::Free)).collect(),
            members: BTreeMap::new(),
            moves: 0,
            drain,
        }
    }

    fn join(&mut self, n: u8, kind: Kind) {
        let member = Member {
            kind,
            balance: Balance::new(id(n), LEASE),
            giving: None,
            gave: Vec::new(),
        };
        self.members.insert(n, member);
    }

    /// It dies, and its leases have ended.
    fn die(&mut self, n: u8) {
        self.members.remove(&n);
        for holding in self.shards.values_mut() {
            if *holding == Holding::Relay(id(n)) {
                *holding = Holding::Free;
            }
        }
    }

    fn roster(&self) -> Roster {
        let heard = self.members.iter().filter(|(_, it)| it.kind != Kind::Silent);
        Roster {
            relays: heard.map(|(n, _)| id(*n)).collect(),
            shards: self
                .shards
                .iter()
                .map(|(index, holding)| (*index, *holding))
                .collect(),
        }
    }

    fn held(&self, n: u8) -> usize {
        self.shards
            .values()
            .filter(|it| **it == Holding::Relay(id(n)))
            .count()
    }

    fn free(&self) -> usize {
        self.shards.values().filter(|it| **it == Holding::Free).count()
    }

    /// Everybody looks once, on news of the round's beginning where it is `stale`.
    fn round(&mut self, stale: bool) {
        let old = self.roster();
        for n in self.members.keys().copied().collect::<Vec<_>>() {
            let roster = if stale { old.clone() } else { self.roster() };
            let member = self.members.get_mut(&n).unwrap();
            if member.kind == Kind::Silent {
                continue;
            }
            if let Some((index, left)) = &mut member.giving {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    self.shards.insert(*index, Holding::Free);
                    member.giving = None;
                }
                member.balance.decide(self.now, &roster, true);
                continue;
            }
            match member.balance.decide(self.now, &roster, false) {
                Some(Move::Take) if member.kind == Kind::Ghost => {}
                Some(Move::Take) => {
                    let free = self.shards.iter().find(|(_, it)| **it == Holding::Free);
                    if let Some(index) = free.map(|(index, _)| *index) {
                        self.shards.insert(index, Holding::Relay(id(n)));
                        self.moves += 1;
                    }
                }
                Some(Move::Give(index)) => {
                    assert_eq!(self.shards[&index], Holding::Relay(id(n)), "what is not its own");
                    member.giving = Some((index, self.drain));
                    member.gave.push(index);
                    self.moves += 1;
                }
                None => {}
            }
        }
        self.now += LOOK;
    }

    fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.round(false);
        }
    }

    /// Working relays hold all that is there to be shared, and at most one more than each other.
    fn is_balanced(&self) -> bool {
        let works = self.members.iter().filter(|(_, it)| it.kind == Kind::Works);
        let held: Vec<usize> = works.map(|(n, _)| self.held(*n)).collect();
        let (least, most) = (held.iter().min(), held.iter().max());
        self.free() == 0 && most.zip(least).is_none_or(|(most, least)| most - least <= 1)
    }
}

#[test]
fn one_relay_takes_everything() {
    let mut world = World::new(4, 1);
    world.join(1, Kind::Works);
    world.rounds(4);
    assert_eq!(world.held(1), 4);
    world.rounds(100);
    assert_eq!(world.moves, 4);
}

#[test]
fn a_relay_that_joins_gets_its_share_one_by_one() {
    let mut world = World::new(4, 3);
    world.join(1, Kind::Works);
    world.rounds(4);
    world.join(2, Kind::Works);
    let mut most = 0;
    for _ in 0..40 {
        world.round(false);
        most = most.max(world.free() + usize::from(world.members[&1].giving.is_some()));
    }
    assert_eq!((world.held(1), world.held(2)), (2, 2));
    assert_eq!(
        (world.moves, most),
        (8, 1),
        "two given, two taken, never two at once"
    );
}

#[test]
fn no_shard_moves_to_make_an_odd_number_even() {
    let mut world = World::new(5, 1);
    world.join(1, Kind::Works);
    world.join(2, Kind::Works);
    world.rounds(10);
    let moves = world.moves;
    assert!(world.is_balanced());
    world.rounds(1_000);
    assert_eq!(world.moves, moves);
    // One more relay than shards: somebody has nothing, and that is all there is to do.
    for n in 3..7 {
        world.join(n, Kind::Works);
    }
    world.rounds(100);
    assert!(world.is_balanced());
    let moves = world.moves;
    world.rounds(1_000);
    assert_eq!(world.moves, moves);
}

#[test]
fn who_comes_when_nobody_has_looked_for_a_while_is_not_left_out() {
    let roster = |free: bool| Roster {
        relays: vec![id(1), id(2)],
        shards: vec![
            (0, Holding::Relay(id(1))),
            (
                1,
                if free {
                    Holding::Free
                } else {
                    Holding::Relay(id(2))
                },
            ),
        ],
    };
    let mut balance = Balance::new(id(1), LEASE);
    assert_eq!(balance.decide(1, &roster(true), false), None);
    // Stopped past a lease: the shard was taken and is free again just now.
    assert_eq!(balance.decide(2 * LEASE, &roster(true), false), None);
    for look in 1..10 {
        assert_eq!(
            balance.decide(2 * LEASE + look * LOOK, &roster(true), false),
            None
        );
    }
    assert_eq!(balance.decide(3 * LEASE, &roster(true), false), Some(Move::Take));
}

#[test]
fn a_relay_that_lives_and_takes_nothing_keeps_no_shard_from_the_others() {
    let mut world = World::new(4, 1);
    world.join(1, Kind::Works);
    world.join(2, Kind::Works);
    world.rounds(10);
    let moves = world.moves;
    world.join(9, Kind::Ghost);
    let mut without_owner = 0;
    let rounds = 10 * LEFT_OUT_LEASES * (LEASE / LOOK);
    for _ in 0..rounds {
        world.round(false);
        without_owner += world.free() as u64;
    }
    // Each time it is tried again, one shard waits for one lease.
    assert!(without_owner * LOOK <= 12 * LEASE * 11 / 10, "{without_owner}");
    assert!(world.moves - moves <= 2 * 12, "{}", world.moves - moves);
    // It comes to life, and has its share when it is tried again.
    world.members.get_mut(&9).unwrap().kind = Kind::Works;
    for _ in 0..2 * LEFT_OUT_LEASES * (LEASE / LOOK) {
        world.round(false);
    }
    assert!(world.is_balanced() && world.held(9) > 0);
}

/// Relays 1 and 3 hold a shard each and 2 takes nothing; who holds the third shard.
fn with_an_idle_one(third: Holding) -> Roster {
    Roster {
        relays: vec![id(1), id(2), id(3)],
        shards: vec![(0, Holding::Relay(id(1))), (1, Holding::Relay(id(3))), (2, third)],
    }
}

#[test]
fn when_one_is_left_out_the_next_has_a_lease_of_its_own() {
    let roster = with_an_idle_one(Holding::Free);
    let mut balance = Balance::new(id(3), LEASE);
    // Relay 2 should take it; then relay 1, whose turn only comes when 2 is left out.
    let looks = 2 * LEASE / LOOK;
    for look in 0..looks {
        let done = balance.decide(1 + look * LOOK, &roster, false);
        assert_eq!(done, None, "at look {look}");
    }
    let done = balance.decide(1 + looks * LOOK, &roster, false);
    assert_eq!(done, Some(Move::Take));
}

#[test]
fn those_left_out_are_tried_again_by_one_relay_and_not_by_each_in_turn() {
    let (free, held) = (
        with_an_idle_one(Holding::Free),
        with_an_idle_one(Holding::Relay(id(1))),
    );
    let mut balance = Balance::new(id(3), LEASE);
    let mut now = 1;
    while now <= LEASE {
        assert_eq!(balance.decide(now, &free, false), None);
        now += LOOK;
    }
    assert_eq!(balance.decide(now, &free, false), None, "2 is left out");
    let again = now + LEFT_OUT_LEASES * LEASE;
    let free_from = again - 7 * LOOK;
    while now + LOOK < free_from {
        now += LOOK;
        assert_eq!(balance.decide(now, &held, false), None);
    }
    // Relay 1 has died, and somebody else tries 2 first: when it was to be tried here, the shard has lain there for longer than half
    // a lease.
    now += LOOK;
    while now < free_from + LEASE {
        assert_eq!(balance.decide(now, &free, false), None, "it is 1's turn");
        now += LOOK;
    }
    let done = balance.decide(now, &free, false);
    assert_eq!(done, Some(Move::Take), "2 is not waited for once more");
}

#[test]
fn one_that_was_left_out_counts_again_when_it_holds_more_or_has_come_anew() {
    let roster = |relays: &[u8], third: Holding| Roster {
        relays: relays.iter().map(|n| id(*n)).collect(),
        shards: vec![
            (0, Holding::Relay(id(1))),
            (1, Holding::Relay(id(1))),
            (2, third),
            (3, Holding::Free),
        ],
    };
    let left_out = || {
        let mut balance = Balance::new(id(1), LEASE);
        let mut now = 1;
        while balance
            .decide(now, &roster(&[1, 2], Holding::Free), false)
            .is_none()
        {
            now += LOOK;
        }
        (balance, now)
    };
    let (mut balance, now) = left_out();
    let took = roster(&[1, 2], Holding::Relay(id(2)));
    assert_eq!(
        balance.decide(now + LOOK, &took, false),
        None,
        "the last one is for it"
    );
    let (mut balance, now) = left_out();
    let gone = roster(&[1], Holding::Free);
    assert_eq!(balance.decide(now + LOOK, &gone, false), Some(Move::Take));
    let came = roster(&[1, 2], Holding::Free);
    assert_eq!(
        balance.decide(now + 2 * LOOK, &came, false),
        None,
        "two are for it"
    );
}

#[test]
fn shards_are_given_one_at_a_time_and_the_odd_one_stays_where_it_is() {
    let roster = |mine: u16, others: u16| Roster {
        relays: vec![id(1), id(2)],
        shards: (0..mine + others)
            .map(|index| (index, Holding::Relay(if index < mine { id(2) } else { id(1) })))
            .collect(),
    };
    let mut balance = Balance::new(id(2), LEASE);
    assert_eq!(balance.decide(1, &roster(4, 0), false), Some(Move::Give(3)));
    let next = 1 + LEASE / 5;
    assert_eq!(balance.decide(next - 1, &roster(4, 0), false), None, "too soon");
    assert_eq!(
        balance.decide(next, &roster(4, 0), true),
        None,
        "the last one is not released"
    );
    assert_eq!(balance.decide(next, &roster(3, 1), false), Some(Move::Give(2)));
    assert_eq!(balance.decide(2 * next, &roster(2, 1), false), None);
}

proptest! {
    /// Whoever holds what at first, whoever is there, and on old news too.
    #[test]
    fn any_membership_and_any_ownership_come_to_rest_in_balance(
        shards in 1..40_u16,
        kinds in prop::collection::vec(prop_oneof![
            6 => Just(Kind::Works), 1 => Just(Kind::Ghost), 1 => Just(Kind::Silent)], 0..7),
        owners in prop::collection::vec(0..9_u8, 40),
        drain in 1..4_u8,
        stale in prop::collection::vec(any::<bool>(), 64),
    ) {
        let mut world = World::new(shards, drain);
        world.join(1, Kind::Works);
        for (kind, n) in kinds.iter().zip(2..) {
            world.join(n, *kind);
        }
        for (index, owner) in (0..shards).zip(&owners) {
            let holding = match owner {
                0 => Holding::Free,
                8 => Holding::Other,
                n if world.members.contains_key(n) => Holding::Relay(id(*n)),
                _ => Holding::Free,
            };
            world.shards.insert(index, holding);
        }
        let ghosts = kinds.contains(&Kind::Ghost);
        // One at a time, each drained, and a lease more for those that take nothing.
        let enough = usize::from(shards) * (3 + usize::from(drain)) + 40 + if ghosts { 160 } else { 0 };
        for round in 0..enough {
            world.round(stale[round % 64]);
        }
        if ghosts {
            // It is tried again, by each at a moment of its own: others may think that one who leaves it its turn lets it lie.
            let mut round = 0;
            while !world.is_balanced() && round < 800 {
                world.rounds(1);
                round += 1;
            }
        }
        prop_assert!(world.is_balanced(), "{:?}", world.shards);
        if !ghosts {
            let moves = world.moves;
            world.rounds(300);
            prop_assert_eq!(world.moves, moves, "somebody moved");
        }
    }

    /// Relays come, go and die for as long as they like. Afterwards they come to rest.
    #[test]
    fn relays_that_come_and_go_end_in_balance(
        shards in 1..20_u16,
        events in prop::collection::vec((0..3_u8, 0..5_u8, 0..30_usize), 1..20),
    ) {
        let mut world = World::new(shards, 2);
        for (what, n, rounds) in events {
            match what {
                0 if !world.members.contains_key(&n) => world.join(n, Kind::Works),
                1 => world.die(n),
                _ => {}
            }
            world.rounds(rounds);
        }
        world.join(7, Kind::Works);
        world.rounds(usize::from(shards) * 5 + 40);
        prop_assert!(world.is_balanced(), "{:?}", world.shards);
        let moves = world.moves;
        world.rounds(100);
        prop_assert_eq!(world.moves, moves);
    }

    /// Who has given a shard does not take one while the same relays live.
    #[test]
    fn who_gave_does_not_take(shards in 1..40_u16, joiners in 1..6_u8) {
        let mut world = World::new(shards, 2);
        world.join(1, Kind::Works);
        world.rounds(usize::from(shards));
        for n in 0..joiners {
            world.join(n + 2, Kind::Works);
        }
        let mut least = world.held(1);
        for _ in 0..usize::from(shards) * 5 + 40 {
            world.round(false);
            prop_assert!(world.held(1) <= least);
            least = world.held(1);
        }
        let gave = world.members[&1].gave.len();
        prop_assert_eq!(world.moves, usize::from(shards) + 2 * gave, "each given once and taken once");
    }
}
