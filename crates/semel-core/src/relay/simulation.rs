//! The machine against the in-memory outbox, with a shell that crashes, stalls, loses replies and wakes up late.
//!
//! Whatever happens, at the end: no committed event is lost, no rolled-back event was sent, each key's events arrive
//! in order once ids already seen are dropped; in a log that holds the cursor itself each event is there exactly once, in
//! order, without any dropping. An operator asks for events that were set aside at any time; in the end for all of them,
//! and none stays behind, but for a log, into which none is sent again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proptest::prelude::*;
use uuid::Uuid;

use super::{Command, Input, Machine, Poison, RelayPolicy, ShardLease};
use crate::claim::Nonce;
use crate::event::Event;
use crate::host::{Clock, Timestamp};
use crate::model::{MemoryLog, MemoryOutbox, MemoryTransaction};
use crate::store::{
    Acquire, DeskChange, DeskQuery, DeskRequest, ExceptionKind, OutboxDesk as _, OutboxRow, OutboxStore,
    SinkError, SinkErrorClass, SinkOrder, TransactionEnd, Wish,
};

const LEASE_MS: i64 = 10_000;
const KEYS: usize = 3;

/// The model's futures are always ready.
pub(super) fn now_or_never<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the model never waits"),
    }
}

#[derive(Default)]
struct SimClock(AtomicI64);

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed) * 1_000)
    }
    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed).unsigned_abs())
    }
}

/// One thing that happens.
#[derive(Debug, Clone)]
enum Op {
    /// A transaction writes rows of a key; `hold` leaves it open.
    Write {
        key: usize,
        rows: usize,
        hold: bool,
        poison: bool,
    },
    Commit(usize),
    Rollback(usize),
    /// Carries out one of the commands of a relay; `fate` decides what becomes of it.
    Step {
        relay: usize,
        command: usize,
        fate: u8,
    },
    /// The process dies; what it had handed over may still arrive.
    Crash(usize),
    /// What an owner left open in the log arrives there after all.
    Late,
    /// Somebody acquires the shard, once the lease has ended.
    TakeOver,
    Renew(usize),
    Stop(usize),
    /// The operator asks something of an exception.
    Ask(usize, Wish),
    Wait(i64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..KEYS, 1..4_usize, any::<bool>(), prop::bool::weighted(0.1))
            .prop_map(|(key, rows, hold, poison)| Op::Write { key, rows, hold, poison }),
        4 => (0..4_usize).prop_map(Op::Commit),
        1 => (0..4_usize).prop_map(Op::Rollback),
        40 => (0..3_usize, 0..4_usize, any::<u8>())
            .prop_map(|(relay, command, fate)| Op::Step { relay, command, fate }),
        1 => (0..3_usize).prop_map(Op::Crash),
        2 => Just(Op::TakeOver),
        1 => Just(Op::Late),
        3 => (0..3_usize).prop_map(Op::Renew),
        1 => (0..3_usize).prop_map(Op::Stop),
        3 => (0..6_usize, prop_oneof![8 => Just(Wish::Retry), 1 => Just(Wish::Drop), 1 => Just(Wish::Release)])
            .prop_map(|(row, wish)| Op::Ask(row, wish)),
        3 => prop_oneof![1..50_i64, 50..2_000_i64, Just(LEASE_MS + 1)].prop_map(Op::Wait),
    ]
}

struct Relay {
    machine: Machine,
    lease: ShardLease,
    todo: Vec<Command>,
    /// What it will be told together with what comes next.
    heard: Vec<(Input, f64)>,
    /// Its session in the log, while that is of use.
    session: Option<u64>,
}

struct World {
    clock: Arc<SimClock>,
    store: Arc<MemoryOutbox>,
    policy: RelayPolicy,
    order: SinkOrder,
    open: Vec<(usize, Vec<Uuid>, MemoryTransaction)>,
    committed: BTreeMap<Uuid, usize>,
    rolled_back: BTreeSet<Uuid>,
    poison: BTreeSet<Uuid>,
    dropped: BTreeSet<Uuid>,
    skipped: BTreeSet<Uuid>,
    relays: Vec<Relay>,
    arrived: Vec<Arc<OutboxRow>>,
    log: MemoryLog,
    next_id: u128,
    dice: u8,
    /// Everything is told at once.
    settling: bool,
}

impl World {
    fn now(&self) -> u64 {
        self.clock.0.load(Ordering::Relaxed).unsigned_abs()
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Write {
                key,
                rows,
                hold,
                poison,
            } => {
                // Writers of one key take turns: they hold a lock on it.
                if self.open.iter().any(|(of, ..)| *of == key) {
                    return;
                }
                let mut tx = self.store.begin();
                let mut ids = Vec::new();
                for _ in 0..rows {
                    self.next_id += 1;
                    let id = Uuid::from_u128(self.next_id);
                    let event = Event::new(id, "t", "e").with_key(key.to_string().into_bytes());
                    tx.enqueue(event).unwrap();
                    ids.push(id);
                }
                if poison {
                    self.poison.insert(ids[0]);
                }
                self.open.push((key, ids, tx));
                if !hold {
                    self.commit(self.open.len() - 1);
                }
            }
            Op::Commit(i) => self.commit(i),
            Op::Rollback(i) => {
                if i < self.open.len() {
                    self.rolled_back.extend(self.open.remove(i).1);
                }
            }
            Op::Step { relay, command, fate } => self.step(relay, command, fate),
            Op::Crash(i) => {
                if i < self.relays.len() {
                    self.relays.remove(i);
                }
            }
            Op::Late => {
                let alive: Vec<u64> = self.relays.iter().filter_map(|relay| relay.session).collect();
                self.log.commit_late(&alive);
            }
            Op::TakeOver => self.take_over(),
            Op::Renew(i) => self.renew(i),
            Op::Stop(i) => self.tell(i, Input::Stop),
            Op::Ask(row, wish) => self.ask(row, wish),
            Op::Wait(ms) => {
                self.clock.0.fetch_add(ms, Ordering::Relaxed);
                for i in 0..self.relays.len() {
                    self.tell(i, Input::Tick);
                }
            }
        }
    }

    fn commit(&mut self, i: usize) {
        if i < self.open.len() {
            let (key, ids, tx) = self.open.remove(i);
            tx.commit();
            self.committed.extend(ids.into_iter().map(|id| (id, key)));
        }
    }

    /// Asks something of the exception in this place; what may be asked, the desk decides.
    fn ask(&mut self, at: usize, wish: Wish) {
        let all = DeskQuery {
            limit: 1_000,
            ..DeskQuery::default()
        };
        let rows = now_or_never(self.store.desk_rows(&all)).unwrap();
        let Some(row) = rows.get(at) else { return };
        let request = DeskRequest {
            row: row.stored.exception.row,
            change: DeskChange::Ask(wish),
            by: "sim".to_owned(),
            why: "sim".to_owned(),
        };
        let id = row.stored.exception.event_id;
        if now_or_never(self.store.change(&request)).unwrap().is_ok() {
            if wish != Wish::Retry {
                self.dropped.insert(id);
            }
            if row.stored.exception.kind == ExceptionKind::Skipped {
                self.skipped.insert(id);
            }
        }
    }

    fn take_over(&mut self) {
        let wish = Acquire {
            stream: "default".to_owned(),
            max: 1,
            owner: String::new(),
            nonce: Nonce::random(),
            relay: Nonce::random(),
            lease_ms: LEASE_MS,
        };
        for owned in now_or_never(self.store.acquire(&wish)).unwrap() {
            let until = self.now() + LEASE_MS.unsigned_abs();
            let machine = Machine::new(&owned, self.order, self.policy.clone(), self.now(), until);
            self.relays.push(Relay {
                machine,
                lease: owned.lease,
                todo: Vec::new(),
                heard: Vec::new(),
                session: None,
            });
            self.tell(self.relays.len() - 1, Input::Share(self.relays.len()));
        }
    }

    fn renew(&mut self, i: usize) {
        let Some(relay) = self.relays.get(i) else { return };
        let until = self.now() + LEASE_MS.unsigned_abs();
        let mine = now_or_never(self.store.renew(std::slice::from_ref(&relay.lease), LEASE_MS)).unwrap()[0];
        self.tell(
            i,
            if mine {
                Input::LeaseUntil(until)
            } else {
                Input::LeaseLost
            },
        );
    }

    fn tell(&mut self, i: usize, input: Input) {
        let (now, dice) = (self.now(), f64::from(self.dice) / 256.0);
        self.dice = self.dice.wrapping_mul(31).wrapping_add(7);
        if let Some(relay) = self.relays.get_mut(i) {
            relay.heard.push((input, dice));
            if !self.settling && self.dice.is_multiple_of(4) {
                return;
            }
            for command in relay.machine.steps(now, std::mem::take(&mut relay.heard)) {
                // Handed over in the order in which they are asked for.
                if let Command::Commit {
                    call,
                    rows,
                    place,
                    anew,
                    ..
                } = &command
                    && let Some(session) = relay.session
                {
                    if *anew {
                        self.log.go_on(&relay.lease.shard, session);
                    }
                    self.log.begin(&relay.lease.shard, session, *call, rows, *place);
                }
                relay.todo.push(command);
            }
        }
    }

    fn step(&mut self, i: usize, command: usize, fate: u8) {
        let Some(relay) = self.relays.get_mut(i) else {
            return;
        };
        if relay.todo.is_empty() {
            return self.tell(i, Input::Tick);
        }
        let mut at = command % relay.todo.len();
        if let Command::Commit { .. } = relay.todo[at] {
            // They end in order.
            let first = relay
                .todo
                .iter()
                .position(|it| matches!(it, Command::Commit { .. }));
            at = first.unwrap_or(at);
        }
        let command = relay.todo.remove(at);
        let lease = relay.lease.clone();
        // One in sixteen store calls fails before it is done, one in sixteen loses its reply.
        let (skip, lose) = (fate % 16 == 1, fate % 16 == 2);
        macro_rules! store {
            ($call:expr, $input:path, $kind:ident) => {{
                let reply = if skip {
                    None
                } else {
                    Some(now_or_never($call).unwrap())
                };
                match reply {
                    Some(reply) if !lose => $input(reply),
                    _ => Input::StoreFailed(super::StoreCall::$kind),
                }
            }};
        }
        let input = match command {
            Command::OpenBatch { from, advance, first } => {
                store!(
                    self.store.open_batch(&lease, &from, advance, first),
                    Input::Opened,
                    Read
                )
            }
            Command::Look { from } => {
                let asked = [(lease.clone(), from)];
                let told = now_or_never(self.store.worth_opening(&asked)).unwrap();
                Input::Looked(skip || told[0])
            }
            Command::ReadPage { cursor, after, size } => {
                store!(
                    self.store.read_page(&lease, &cursor, after, size),
                    Input::Read,
                    Read
                )
            }
            Command::Save(save) => store!(self.store.save_cursor(&lease, &save), Input::Saved, Save),
            Command::Load => store!(self.store.load(&lease), Input::Loaded, Read),
            Command::Probe => Input::Probed(Ok(())),
            Command::Take { size } => store!(self.store.take(&lease, size), Input::Taken, Desk),
            Command::Settle(save) => store!(self.store.settle(&lease, &save), Input::Settled, Desk),
            Command::Publish { call, rows, .. } => Input::Published {
                call,
                results: self.send(&rows, fate),
            },
            Command::Resume => match fate % 8 {
                1 => Input::Resumed(Err(SinkError::new(SinkErrorClass::Away, "no"))),
                kind => {
                    let (session, place) = self.log.resume(&lease.shard);
                    self.relays[i].session = Some(session);
                    Input::Resumed(if kind == 2 {
                        Err(SinkError::new(SinkErrorClass::Away, "no answer"))
                    } else {
                        Ok(place)
                    })
                }
            },
            Command::Commit { call, rows, .. } => {
                let end = self.transact(i, call, &rows, fate);
                Input::Committed { call, end }
            }
            Command::End(super::End::Refused(discord)) => panic!("{discord:?}"),
            Command::End(end) => {
                if end == super::End::Stopped {
                    now_or_never(self.store.release(&[lease])).unwrap();
                }
                self.relays.remove(i);
                return;
            }
        };
        self.tell(i, input);
    }

    /// A receiver that is sometimes away, before or after it took the row, and refuses poison.
    fn send(&mut self, rows: &[Arc<OutboxRow>], fate: u8) -> Vec<Result<(), SinkError>> {
        let fail_at = usize::from(fate / 16) % 6;
        let mut failed = false;
        rows.iter()
            .enumerate()
            .map(|(at, row)| {
                let fail = |class| Err(SinkError::new(class, "no"));
                if failed {
                    return fail(SinkErrorClass::HeldBack);
                }
                let class = match fate % 8 {
                    _ if self.poison.contains(&row.event.id) => Some((SinkErrorClass::Message, false)),
                    3 => Some((SinkErrorClass::Away, false)),
                    4 => Some((SinkErrorClass::Away, true)),
                    5 if fate > 128 => Some((SinkErrorClass::Destination, false)),
                    _ => None,
                };
                match class {
                    Some((class, arrives)) if at == fail_at || class == SinkErrorClass::Message => {
                        failed = true;
                        if arrives {
                            self.arrived.push(Arc::clone(row));
                        }
                        fail(class)
                    }
                    _ => {
                        self.arrived.push(Arc::clone(row));
                        Ok(())
                    }
                }
            })
            .collect()
    }

    /// One transaction of a log that refuses poison, is away before or after it took the rows, or loses its answer.
    fn transact(&mut self, i: usize, call: u64, rows: &[Arc<OutboxRow>], fate: u8) -> TransactionEnd {
        let unknown = || TransactionEnd::Unknown(SinkError::new(SinkErrorClass::Away, "no"));
        let relay = &mut self.relays[i];
        let shard = &relay.lease.shard;
        let Some(session) = relay.session else {
            return unknown();
        };
        let refused: Vec<SinkError> = rows
            .iter()
            .map(|row| {
                let bad = self.poison.contains(&row.event.id);
                SinkError::new(
                    if bad {
                        SinkErrorClass::Message
                    } else {
                        SinkErrorClass::HeldBack
                    },
                    "no",
                )
            })
            .collect();
        if refused.iter().any(|it| it.class == SinkErrorClass::Message) {
            self.log.abort(shard, session, call);
            return TransactionEnd::Aborted(refused);
        }
        match fate % 8 {
            3 => self.log.abort(shard, session, call),
            4 => {
                self.log.commit(shard, session, call);
            }
            // Left open: it may come in later.
            5 => {}
            _ if self.log.commit(shard, session, call) => return TransactionEnd::Committed,
            // One before it failed, or another owner has come.
            _ if self.log.knows(shard, session) => return TransactionEnd::Aborted(refused),
            _ => {}
        }
        relay.session = None;
        unknown()
    }

    /// All is well again: everything that can be sent is.
    fn settle(&mut self) {
        self.settling = true;
        while !self.open.is_empty() {
            self.commit(0);
        }
        self.poison.clear();
        for round in 0..20_000 {
            if self.relays.is_empty() {
                self.clock.0.fetch_add(LEASE_MS + 1, Ordering::Relaxed);
                self.take_over();
            }
            // Renewed no more often than by a relay: each renewal is an input, by which the machine could go on.
            let renew_at = self.now() + LEASE_MS.unsigned_abs() * 4 / 5;
            while let Some(relay) = self.relays.first() {
                if !relay.todo.is_empty() {
                    self.step(0, 0, 0);
                } else if relay.machine.lease_until <= renew_at {
                    self.renew(0);
                } else {
                    break;
                }
            }
            let backlog = now_or_never(self.store.backlog()).unwrap();
            let again = !matches!(self.order, SinkOrder::Transactional { .. });
            if backlog.shards[0].rows == 0
                && (backlog.shards[0].exceptions == 0 || !again)
                && self.relays.first().is_some_and(|r| r.machine.in_flight() == 0)
            {
                return;
            }
            for at in (0..usize::try_from(backlog.shards[0].exceptions).unwrap()).filter(|_| again) {
                self.ask(at, Wish::Retry);
            }
            let to = self.relays.first().map(|relay| {
                let at = relay.machine.wake_at();
                at.unwrap_or_else(|| panic!("nothing wakes it: {:?}", relay.machine))
            });
            let ms = to.map_or(1, |at| at.saturating_sub(self.now()).clamp(1, 1_000));
            self.clock
                .0
                .fetch_add(i64::try_from(ms).unwrap(), Ordering::Relaxed);
            self.tell(0, Input::Tick);
            assert!(
                round < 19_999,
                "never settles: {:?}",
                self.relays.first().map(|relay| &relay.machine)
            );
        }
    }

    /// Exactly once: in the log or in the exceptions, and in order.
    fn check_log(&self, excepted: &BTreeSet<Uuid>) -> Result<(), TestCaseError> {
        let mut seen = BTreeSet::new();
        let mut last: HashMap<usize, i64> = HashMap::new();
        for row in self.log.rows() {
            let id = row.event.id;
            prop_assert!(!self.rolled_back.contains(&id), "rolled back, and sent: {}", id);
            prop_assert!(seen.insert(id), "twice: {}", id);
            prop_assert!(!excepted.contains(&id), "sent and set aside: {}", id);
            let before = last.insert(self.committed[&id], row.row).unwrap_or(0);
            prop_assert!(before < row.row, "row {} came after row {}", row.row, before);
        }
        for id in self.committed.keys() {
            prop_assert!(seen.contains(id) || excepted.contains(id), "lost: {}", id);
        }
        self.check_places(self.log.rows().iter().map(|row| &**row), &BTreeSet::new())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let stored = now_or_never(self.store.exceptions("default", 0, 100_000)).unwrap();
        if let SinkOrder::Transactional { .. } = self.order {
            let stored = stored.iter().map(|it| it.row.row.event.id);
            return self.check_log(&stored.chain(self.dropped.iter().copied()).collect());
        }
        prop_assert!(stored.is_empty(), "set aside for ever: {:?}", stored);
        let excepted: BTreeSet<Uuid> = self.dropped.union(&self.skipped).copied().collect();
        let mut seen = BTreeSet::new();
        let mut last: HashMap<usize, (i64, Uuid)> = HashMap::new();
        for row in &self.arrived {
            let id = row.event.id;
            prop_assert!(!self.rolled_back.contains(&id), "rolled back, and sent: {}", id);
            if !seen.insert(id) || excepted.contains(&id) {
                continue;
            }
            let key = self.committed[&id];
            if let Some(before) = last.insert(key, (row.row, id)) {
                prop_assert!(
                    before.0 < row.row,
                    "key {}: row {} came after row {}",
                    key,
                    row.row,
                    before.0
                );
            }
        }
        for id in self.committed.keys() {
            prop_assert!(seen.contains(id) || self.dropped.contains(id), "lost: {}", id);
        }
        self.check_places(self.arrived.iter().map(|row| &**row), &excepted)
    }

    /// Rule O16: an event has one place, whoever sends it and how often; and a consumer that remembers of each key only the
    /// largest place, and refuses what is not above it, takes each event once and in order.
    fn check_places<'a>(
        &self,
        rows: impl Iterator<Item = &'a OutboxRow>,
        excepted: &BTreeSet<Uuid>,
    ) -> Result<(), TestCaseError> {
        let mut places: HashMap<Uuid, String> = HashMap::new();
        let mut largest: HashMap<usize, String> = HashMap::new();
        let mut taken: HashMap<usize, Vec<i64>> = HashMap::new();
        for row in rows {
            let id = row.event.id;
            let place = row.sequence().unwrap();
            let first = places.entry(id).or_insert_with(|| place.clone());
            prop_assert_eq!(&*first, &place, "{} has two places", id);
            let key = self.committed[&id];
            if largest.get(&key).is_some_and(|largest| *largest >= place) {
                continue;
            }
            largest.insert(key, place);
            if !excepted.contains(&id) {
                taken.entry(key).or_default().push(row.row);
            }
        }
        for (key, rows) in &taken {
            prop_assert!(rows.is_sorted(), "key {}: {:?}", key, rows);
        }
        let all = places.keys().filter(|id| !excepted.contains(*id)).count();
        let taken: usize = taken.values().map(Vec::len).sum();
        prop_assert_eq!(taken, all, "refused as older, and it was not");
        Ok(())
    }
}

fn simulate(ops: Vec<Op>, order: SinkOrder, poison: Poison, small: bool) -> Result<(), TestCaseError> {
    let clock = Arc::new(SimClock::default());
    let store = Arc::new(MemoryOutbox::new(Arc::clone(&clock) as Arc<dyn Clock>));
    now_or_never(store.register_stream("default", 1)).unwrap();
    let mut policy = RelayPolicy {
        poison,
        page_rows: 2,
        window_rows: if small { 4 } else { 100 },
        save_every_ms: 20,
        idle_save_ms: 100,
        redrive_look_ms: 30,
        send_timeout_ms: 1_000,
        ..RelayPolicy::default()
    };
    policy.retry.attempts_max = 2;
    let mut world = World {
        clock,
        store,
        policy,
        order,
        open: Vec::new(),
        committed: BTreeMap::new(),
        rolled_back: BTreeSet::new(),
        poison: BTreeSet::new(),
        dropped: BTreeSet::new(),
        skipped: BTreeSet::new(),
        relays: Vec::new(),
        arrived: Vec::new(),
        log: MemoryLog::default(),
        next_id: 0,
        dice: 1,
        settling: false,
    };
    world.take_over();
    for op in ops {
        world.run(op);
    }
    world.settle();
    world.check()
}

fn poison() -> impl Strategy<Value = Poison> {
    prop_oneof![Just(Poison::Block), Just(Poison::ParkKey), Just(Poison::Skip)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_and_keys_keep_their_order_whatever_crashes(
        ops in prop::collection::vec(op(), 0..200),
        pipelined in any::<bool>(),
        poison in poison(),
        small in any::<bool>(),
    ) {
        let order = if pipelined {
            SinkOrder::Pipelined { in_flight_max: 8 }
        } else {
            SinkOrder::OnePerKey { in_flight_max: 4 }
        };
        simulate(ops, order, poison, small)?;
    }

    /// Rules O3, O7, O20: crashes between the log's commit and the outbox's, transactions of which nobody knows, zombies
    /// with transactions under way.
    #[test]
    fn a_log_that_holds_the_cursor_has_every_event_exactly_once_whatever_crashes(
        ops in prop::collection::vec(op(), 0..200),
        ahead in 1..3_usize,
        poison in poison(),
        small in any::<bool>(),
    ) {
        let order = SinkOrder::Transactional { rows_max: 3, ahead, linger_ms: 2 };
        simulate(ops, order, poison, small)?;
    }
}
