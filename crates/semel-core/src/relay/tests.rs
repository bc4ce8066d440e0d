//! The machine step by step, over the in-memory outbox; the test is the sink.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::settle::HELD_BACK_MS;
use super::simulation::now_or_never;
use super::{Command, End, Input, Machine, PauseKind, Poison, RelayPolicy, ShardLease, StoreCall};
use crate::claim::Nonce;
use crate::event::Event;
use crate::host::{Clock, SystemClock, Timestamp, uuid_v7};
use crate::model::{MemoryLog, MemoryOutbox};
use crate::store::{
    Acquire, DeskChange, DeskRequest, ExceptionKind, OutboxDesk as _, OutboxStore, SinkError, SinkErrorClass,
    SinkOrder, TransactionEnd, Wish,
};

mod again;
mod balance;
mod memory;
mod replays;
mod sends;
mod store;
mod stuck;

const ONE_PER_KEY: SinkOrder = SinkOrder::OnePerKey { in_flight_max: 4 };
const PIPELINED: SinkOrder = SinkOrder::Pipelined { in_flight_max: 4 };
const TRANSACTIONAL: SinkOrder = SinkOrder::Transactional {
    rows_max: 4,
    ahead: 1,
    linger_ms: 0,
};

#[derive(Default)]
struct Hand(AtomicI64);

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed) * 1_000)
    }
    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed).unsigned_abs())
    }
}

struct Bench {
    clock: Arc<Hand>,
    store: Arc<MemoryOutbox>,
    policy: RelayPolicy,
    order: SinkOrder,
    machine: Machine,
    lease: ShardLease,
    /// Commits by itself what holds no rows; the test ends the others.
    log: MemoryLog,
    session: u64,
    resumed: usize,
    /// Calls to the sink that are not answered: number and rows.
    sent: Vec<(u64, Vec<i64>)>,
    deadlines: Vec<u64>,
    probes: usize,
    opened: usize,
    looked: usize,
    end: Option<End>,
}

const LEASE_MS: u64 = 10_000;

fn quiet() -> RelayPolicy {
    let mut policy = RelayPolicy {
        send_timeout_ms: 1_000,
        save_every_ms: 0,
        ..RelayPolicy::default()
    };
    policy.retry.jitter = 0.0;
    policy.retry.attempts_max = 2;
    policy.away.jitter = 0.0;
    policy
}

impl Bench {
    fn new(order: SinkOrder, policy: RelayPolicy, keys: &[&str]) -> Self {
        let clock = Arc::new(Hand::default());
        let store = Arc::new(MemoryOutbox::new(Arc::clone(&clock) as Arc<dyn Clock>));
        now_or_never(store.register_stream("default", 1)).unwrap();
        write(&store, keys);
        let (machine, lease) = own(&clock, &store, order, &policy);
        let (sent, deadlines) = (Vec::new(), Vec::new());
        let mut bench = Self {
            clock,
            store,
            policy,
            order,
            machine,
            lease,
            log: MemoryLog::default(),
            session: 0,
            resumed: 0,
            sent,
            deadlines,
            probes: 0,
            opened: 0,
            looked: 0,
            end: None,
        };
        bench.tell(Input::Tick);
        bench
    }

    /// The process dies; another takes over.
    fn die(&mut self) {
        self.clock.0.fetch_add(LEASE_MS as i64 + 1, Ordering::Relaxed);
        (self.machine, self.lease) = own(&self.clock, &self.store, self.order, &self.policy);
        self.sent.clear();
        self.tell(Input::Tick);
    }

    fn now(&self) -> u64 {
        self.clock.monotonic().as_millis() as u64
    }

    /// Lets time pass, as told by the machine or by the test.
    fn wait(&mut self, ms: u64) {
        self.clock.0.fetch_add(ms as i64, Ordering::Relaxed);
        self.tell(Input::Tick);
    }

    /// Carries out every command of the store; the sink's are left to the test.
    fn tell(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for command in self.machine.step(self.now(), input, 0.0) {
                let (store, lease) = (&self.store, &self.lease);
                match command {
                    Command::OpenBatch { from, advance, first } => {
                        self.opened += 1;
                        inputs.push(Input::Opened(
                            now_or_never(store.open_batch(lease, &from, advance, first)).unwrap(),
                        ));
                    }
                    Command::Look { from } => {
                        self.looked += 1;
                        let asked = [(lease.clone(), from)];
                        let told = now_or_never(store.worth_opening(&asked)).unwrap();
                        inputs.push(Input::Looked(told[0]));
                    }
                    Command::ReadPage { cursor, after, size } => {
                        inputs.push(Input::Read(
                            now_or_never(store.read_page(lease, &cursor, after, size)).unwrap(),
                        ));
                    }
                    Command::Save(save) => {
                        inputs.push(Input::Saved(
                            now_or_never(store.save_cursor(lease, &save)).unwrap(),
                        ));
                    }
                    Command::Load => inputs.push(Input::Loaded(now_or_never(store.load(lease)).unwrap())),
                    Command::Publish {
                        call,
                        rows,
                        deadline_ms,
                    } => {
                        self.sent.push((call, rows.iter().map(|row| row.row).collect()));
                        self.deadlines.push(deadline_ms);
                    }
                    Command::Resume => {
                        let place;
                        (self.session, place) = self.log.resume(&lease.shard);
                        self.resumed += 1;
                        inputs.push(Input::Resumed(Ok(place)));
                    }
                    Command::Commit {
                        call,
                        rows,
                        place,
                        anew,
                        ..
                    } => {
                        if anew {
                            self.log.go_on(&lease.shard, self.session);
                        }
                        self.log.begin(&lease.shard, self.session, call, &rows, place);
                        if rows.is_empty() {
                            assert!(self.log.commit(&lease.shard, self.session, call));
                            let end = TransactionEnd::Committed;
                            inputs.push(Input::Committed { call, end });
                        } else {
                            self.sent.push((call, rows.iter().map(|row| row.row).collect()));
                        }
                    }
                    Command::Probe => self.probes += 1,
                    Command::Take { size } => {
                        inputs.push(Input::Taken(now_or_never(store.take(lease, size)).unwrap()));
                    }
                    Command::Settle(save) => {
                        inputs.push(Input::Settled(now_or_never(store.settle(lease, &save)).unwrap()));
                    }
                    Command::End(end) => self.end = Some(end),
                }
            }
        }
    }

    fn on_their_way(&self) -> Vec<i64> {
        self.sent.iter().flat_map(|(_, rows)| rows.clone()).collect()
    }

    /// Answers the call with this row: one result per row.
    fn answer(&mut self, row: i64, results: Vec<Result<(), SinkError>>) {
        let at = self
            .sent
            .iter()
            .position(|(_, rows)| rows.contains(&row))
            .expect("it is on its way");
        let (call, _) = self.sent.remove(at);
        self.tell(Input::Published { call, results });
    }

    fn ok(&mut self, row: i64) {
        self.answer(row, vec![Ok(())]);
    }

    fn fail(&mut self, row: i64, class: SinkErrorClass) {
        self.answer(row, vec![Err(SinkError::new(class, "no"))]);
    }

    /// Ends the only transaction that is open: with an error for one of its rows, or nobody knows how.
    fn end_transaction(&mut self, refused: Option<i64>) {
        let (call, rows) = self.sent.pop().expect("it is on its way");
        let end = match refused {
            Some(refused) => {
                let class = |row: &i64| match *row == refused {
                    true => SinkErrorClass::Message,
                    false => SinkErrorClass::HeldBack,
                };
                self.log.abort(&self.lease.shard, self.session, call);
                TransactionEnd::Aborted(rows.iter().map(|row| SinkError::new(class(row), "no")).collect())
            }
            None => TransactionEnd::Unknown(SinkError::new(SinkErrorClass::Away, "no answer")),
        };
        self.tell(Input::Committed { call, end });
    }

    fn exceptions(&self) -> Vec<(i64, ExceptionKind)> {
        let stored = now_or_never(self.store.exceptions("default", 0, 100)).unwrap();
        stored
            .iter()
            .map(|it| (it.exception.row, it.exception.kind))
            .collect()
    }
}

fn write(store: &Arc<MemoryOutbox>, keys: &[&str]) {
    let mut tx = store.begin();
    for key in keys {
        tx.enqueue(Event::new(uuid_v7(&SystemClock), "t", "e").with_key((*key).to_owned()))
            .unwrap();
    }
    tx.commit();
}

fn own(clock: &Hand, store: &MemoryOutbox, order: SinkOrder, policy: &RelayPolicy) -> (Machine, ShardLease) {
    let wish = Acquire {
        stream: "default".to_owned(),
        max: 1,
        owner: String::new(),
        nonce: Nonce::random(),
        relay: Nonce::random(),
        lease_ms: LEASE_MS as i64,
    };
    let owned = now_or_never(store.acquire(&wish))
        .unwrap()
        .pop()
        .expect("the lease has ended");
    let now = clock.monotonic().as_millis() as u64;
    (
        Machine::new(&owned, order, policy.clone(), now, now + LEASE_MS),
        owned.lease,
    )
}

#[test]
fn many_keys_are_on_their_way_and_one_row_of_each() {
    let mut bench = Bench::new(ONE_PER_KEY, quiet(), &["a", "a", "b", "c"]);
    assert_eq!(bench.on_their_way(), [1, 3, 4]);
    bench.ok(1);
    assert_eq!(bench.on_their_way(), [3, 4, 2]);
}

#[test]
fn a_pipelined_sink_gets_as_many_rows_as_it_takes() {
    let mut bench = Bench::new(PIPELINED, quiet(), &["a", "a", "b", "c", "d"]);
    assert_eq!(bench.sent, [(1, vec![1, 2, 3, 4])]);
    bench.answer(1, vec![Ok(()); 4]);
    assert_eq!(bench.sent, [(2, vec![5])]);
}

#[test]
fn a_pipelined_sink_gets_the_next_page_while_it_answers_and_no_key_in_two_calls() {
    let mut policy = quiet();
    policy.page_rows = 2;
    let mut bench = Bench::new(PIPELINED, policy, &["a", "b", "a", "c"]);
    assert_eq!(bench.sent, [(1, vec![1, 2]), (2, vec![4])]);
    let away = || SinkError::new(SinkErrorClass::Away, "gone");
    bench.answer(1, vec![Err(away()), Ok(())]);
    assert_eq!(
        bench.sent,
        [(2, vec![4])],
        "a pause, and row 3 stays behind row 1"
    );
}

/// The cursor stands behind the acknowledged prefix, whatever else is acknowledged: what a crash would send again.
#[test]
fn the_cursor_follows_the_contiguous_acknowledged_prefix() {
    let mut bench = Bench::new(ONE_PER_KEY, quiet(), &["a", "b", "c", "d"]);
    bench.ok(1);
    bench.ok(3);
    bench.ok(4);
    assert_eq!(bench.machine.cursor().last_id, 1);
    bench.die();
    assert_eq!(bench.on_their_way(), [2, 3, 4]);
}

#[test]
fn the_end_of_a_batch_and_the_beginning_of_the_next_are_one_write() {
    let mut bench = Bench::new(ONE_PER_KEY, quiet(), &["a"]);
    let before = bench.machine.cursor().clone();
    write(&bench.store, &["b"]);
    bench.ok(1);
    let after = bench.machine.cursor();
    assert_eq!(
        (after.version, &after.prev),
        (before.version + 1, before.open.as_ref().unwrap())
    );
    assert_eq!(bench.on_their_way(), [2]);
}

#[test]
fn looks_into_an_empty_outbox_become_rarer() {
    let mut bench = Bench::new(ONE_PER_KEY, quiet(), &[]);
    let mut waits = Vec::new();
    for _ in 0..10 {
        let wait = bench.machine.wake_at().unwrap() - bench.now();
        waits.push(wait);
        bench.wait(wait);
    }
    let (own, shared) = waits.split_at(5);
    assert_eq!(own, [1, 2, 4, 8, 1], "each shard for itself");
    assert!(
        shared
            .iter()
            .zip([32, 64, 100, 100, 100])
            .all(|(wait, most)| *wait <= most),
        "{waits:?}"
    );
    assert_eq!(bench.now() % 100, 0, "all shards of a process at once");
    assert_eq!((bench.opened, bench.looked), (5, 6));
    let looks = bench.opened;
    bench.tell(Input::Hint);
    assert_eq!(bench.opened, looks + 1, "a hint is followed at once");
    assert_eq!(bench.machine.cursor().version, 0, "and none of them writes");
}

/// Rule O17: what could outlast the lease is not begun, and a send's time-out ends before it.
#[test]
fn nothing_is_sent_near_or_after_the_end_of_the_lease() {
    let mut bench = Bench::new(ONE_PER_KEY, quiet(), &["a", "a", "a"]);
    bench.wait(LEASE_MS - 400);
    bench.ok(1);
    assert_eq!(bench.deadlines, [1_000, 400]);
    bench.wait(200);
    bench.ok(2);
    assert!(bench.sent.is_empty(), "200 ms are not enough");
    bench.wait(1_000);
    assert!(bench.sent.is_empty());
    let until = bench.now() + LEASE_MS;
    bench.tell(Input::LeaseUntil(until));
    assert_eq!(bench.on_their_way(), [3]);
    bench.tell(Input::LeaseLost);
    assert_eq!(bench.end, Some(End::Lost));
}

#[test]
fn after_a_pause_one_row_tries_and_the_others_follow_when_it_went_through() {
    let mut bench = Bench::new(ONE_PER_KEY, quiet(), &["a", "b", "c"]);
    for row in [1, 2, 3] {
        bench.fail(row, SinkErrorClass::Away);
    }
    let pause = bench.machine.pause().unwrap();
    assert_eq!(
        (pause.kind, pause.until, pause.row),
        (PauseKind::Away, 100, 1),
        "one pause, not three"
    );
    bench.wait(99);
    assert!(bench.sent.is_empty());
    bench.wait(1);
    assert_eq!(bench.on_their_way().len(), 1);
    let row = bench.on_their_way()[0];
    bench.fail(row, SinkErrorClass::Away);
    assert_eq!(
        bench.machine.pause().unwrap().until,
        300,
        "the next one is twice as long"
    );
    bench.wait(200);
    let other = bench.on_their_way()[0];
    assert_ne!(other, row, "another one tries");
    bench.ok(other);
    assert!(bench.machine.pause().is_none());
    bench.wait(1_000);
    assert_eq!(bench.on_their_way().len(), 2);
    assert_eq!(bench.machine.counters().excepted, 0);
}

#[test]
fn a_receiver_that_asks_for_time_gets_it_up_to_a_limit() {
    let mut bench = Bench::new(ONE_PER_KEY, quiet(), &["a"]);
    let mut error = SinkError::new(SinkErrorClass::Away, "503");
    error.retry_after = Some(Duration::from_secs(7));
    bench.answer(1, vec![Err(error.clone())]);
    assert_eq!(bench.machine.pause().unwrap().until, 7_000);
    bench.wait(7_000);
    error.retry_after = Some(Duration::from_secs(1 << 40));
    bench.answer(1, vec![Err(error)]);
    assert_eq!(bench.machine.pause().unwrap().until, 7_000 + 600_000);
}

/// The skipped row may not be sent after a later one of its key, not even by an owner that comes after a crash.
#[test]
fn a_key_waits_until_its_skipped_row_is_an_exception() {
    let policy = RelayPolicy {
        poison: Poison::Skip,
        ..quiet()
    };
    let mut bench = Bench::new(ONE_PER_KEY, policy, &["slow", "k", "k"]);
    assert_eq!(bench.on_their_way(), [1, 2]);
    bench.fail(2, SinkErrorClass::Message);
    bench.wait(100);
    bench.fail(2, SinkErrorClass::Message);
    assert_eq!(
        bench.on_their_way(),
        [1],
        "the row before it holds the cursor, so it is not saved yet"
    );
    bench.ok(1);
    assert_eq!(bench.exceptions(), [(2, ExceptionKind::Skipped)]);
    assert_eq!(bench.on_their_way(), [3]);
}

#[test]
fn too_many_parked_keys_block_instead() {
    let policy = RelayPolicy {
        poison: Poison::ParkKey,
        parked_keys_max: 1,
        ..quiet()
    };
    let mut bench = Bench::new(ONE_PER_KEY, policy, &["a", "b", "a", "b"]);
    for row in [1, 2, 1, 2] {
        bench.fail(row, SinkErrorClass::Message);
        bench.wait(100);
    }
    assert_eq!(bench.exceptions(), [(1, ExceptionKind::Parked)]);
    let pause = bench.machine.pause().unwrap();
    assert_eq!((pause.kind, pause.row), (PauseKind::Poison, 2));
    assert!(pause.reason.contains("parked_keys_max = 1"), "{}", pause.reason);
}

/// Rule O22: relays die one after the other when they send row 2.
#[test]
fn a_row_that_kills_relays_is_found_and_the_others_go_on() {
    let policy = RelayPolicy {
        poison: Poison::Skip,
        takeovers_max: 2,
        ..quiet()
    };
    let mut bench = Bench::new(ONE_PER_KEY, policy, &["a", "b", "c"]);
    bench.ok(1);
    for _ in 0..2 {
        assert_eq!(bench.on_their_way(), [2, 3]);
        bench.die();
    }
    for _ in 0..2 {
        assert_eq!(bench.on_their_way(), [2], "alone");
        assert_eq!(
            bench.machine.cursor().suspect,
            Some(2),
            "and marked before it was sent"
        );
        bench.die();
    }
    assert_eq!((bench.on_their_way(), bench.probes), (vec![], 1));
    bench.tell(Input::Probed(Err(SinkError::new(SinkErrorClass::Away, "gone"))));
    assert_eq!(bench.machine.pause().unwrap().kind, PauseKind::Away);
    bench.wait(100);
    assert_eq!(
        (bench.on_their_way(), bench.probes),
        (vec![], 2),
        "nobody is accused while the receiver is away"
    );
    bench.tell(Input::Probed(Ok(())));
    assert_eq!(bench.exceptions(), [(2, ExceptionKind::Skipped)]);
    assert_eq!(bench.on_their_way(), [3]);
    bench.ok(3);
    assert_eq!(bench.machine.cursor().open, None);
}

/// A reply of the store is lost. The batch that is read back is the one in memory: nothing is sent twice for that.
#[test]
fn after_trouble_with_the_store_the_same_batch_goes_on_where_it_was() {
    let policy = RelayPolicy {
        save_every_ms: 60_000,
        ..quiet()
    };
    let mut bench = Bench::new(ONE_PER_KEY, policy, &["a", "b", "b"]);
    bench.ok(1);
    bench.tell(Input::StoreFailed(StoreCall::Save));
    bench.ok(2);
    assert!(
        bench.sent.is_empty(),
        "nothing new is sent before the cursor was read back"
    );
    bench.wait(100);
    assert_eq!(bench.on_their_way(), [3]);
    bench.ok(3);
    assert_eq!(bench.machine.counters().published, 3);
    assert_eq!(bench.machine.cursor().open, None);
}

#[test]
fn a_stop_sends_nothing_new_and_saves_what_came_back() {
    let policy = RelayPolicy {
        save_every_ms: 60_000,
        ..quiet()
    };
    let mut bench = Bench::new(ONE_PER_KEY, policy, &["a", "b", "a"]);
    bench.tell(Input::Stop);
    bench.ok(1);
    assert_eq!((bench.on_their_way(), bench.end), (vec![2], None));
    bench.ok(2);
    assert_eq!(bench.end, Some(End::Stopped));
    assert_eq!(bench.machine.cursor().last_id, 2);
}

/// A broker that refuses a row, and then does not answer: the log is asked again, and the refusal counts all the same.
#[test]
fn attempts_survive_that_the_log_is_asked_again() {
    let policy = RelayPolicy {
        poison: Poison::ParkKey,
        ..quiet()
    };
    let mut bench = Bench::new(TRANSACTIONAL, policy, &["a", "b", "a"]);
    assert_eq!(bench.on_their_way(), [1, 2, 3]);
    bench.end_transaction(Some(1));
    assert_eq!(
        bench.on_their_way(),
        [] as [i64; 0],
        "row 1 waits, and none passes it"
    );
    let due = bench.machine.wake_at().unwrap();
    bench.wait(due - bench.now());
    let resumed = bench.resumed;
    bench.end_transaction(None);
    let due = bench.machine.wake_at().unwrap();
    bench.wait(due - bench.now());
    assert_eq!(bench.resumed, resumed + 1);
    assert_eq!(bench.on_their_way(), [1], "one row tries the log");
    bench.end_transaction(Some(1));
    assert_eq!(
        bench.exceptions(),
        [(1, ExceptionKind::Parked), (3, ExceptionKind::Behind)],
        "that was the second of two attempts"
    );
    assert_eq!(bench.on_their_way(), [2]);
}

fn ask(bench: &mut Bench, row: i64, wish: Wish) {
    let request = DeskRequest {
        row,
        change: DeskChange::Ask(wish),
        by: "ann".to_owned(),
        why: "a test".to_owned(),
    };
    now_or_never(bench.store.change(&request)).unwrap().unwrap();
    bench.wait(bench.policy.redrive_look_ms);
}

/// A sink that holds everything back, again and again, is not asked all the time.
#[test]
fn a_call_of_which_nothing_left_waits_a_moment() {
    for order in [ONE_PER_KEY, PIPELINED] {
        let mut bench = Bench::new(order, quiet(), &["a"]);
        bench.fail(1, SinkErrorClass::HeldBack);
        assert_eq!(bench.on_their_way(), [] as [i64; 0]);
        let due = bench.machine.wake_at().unwrap();
        bench.wait(due - bench.now());
        assert_eq!(bench.on_their_way(), [1]);
        bench.ok(1);
        assert_eq!(bench.machine.cursor().open, None);
    }
    let mut bench = Bench::new(PIPELINED, quiet(), &["a", "b"]);
    let held_back = || Err(SinkError::new(SinkErrorClass::HeldBack, "no"));
    bench.answer(1, vec![Ok(()), held_back()]);
    assert_eq!(bench.on_their_way(), [2], "something went through");
    let mut bench = Bench::new(TRANSACTIONAL, quiet(), &["a"]);
    bench.end_transaction(Some(0));
    assert_eq!(bench.on_their_way(), [] as [i64; 0]);
    let due = bench.machine.wake_at().unwrap();
    bench.wait(due - bench.now());
    assert_eq!(bench.on_their_way(), [1]);
}

/// Row 1 is to be sent again, row 2 waits for it, and the broker was away: nothing but row 1 can try whether it still is.
#[test]
fn what_is_sent_again_does_not_leave_its_turn_to_rows_that_wait_for_it() {
    let mut policy = quiet();
    policy.retry.attempts_max = 1;
    policy.poison = Poison::ParkKey;
    let mut bench = Bench::new(ONE_PER_KEY, policy, &["a"]);
    bench.fail(1, SinkErrorClass::Message);
    ask(&mut bench, 1, Wish::Retry);
    bench.fail(1, SinkErrorClass::Away);
    write(&bench.store, &["a"]);
    bench.tell(Input::Hint);
    assert_eq!((bench.machine.in_memory(), bench.on_their_way()), (1, vec![]));
    let due = bench.machine.wake_at().unwrap();
    bench.wait(due - bench.now());
    assert_eq!(bench.on_their_way(), [1]);
    bench.ok(1);
    assert_eq!(bench.on_their_way(), [2]);
}

/// And held back it waits a moment, too.
#[test]
fn what_is_sent_again_and_held_back_waits_a_moment() {
    let mut policy = quiet();
    policy.retry.attempts_max = 1;
    policy.poison = Poison::ParkKey;
    let mut bench = Bench::new(PIPELINED, policy, &["a"]);
    bench.fail(1, SinkErrorClass::Message);
    ask(&mut bench, 1, Wish::Retry);
    bench.fail(1, SinkErrorClass::HeldBack);
    assert_eq!(bench.on_their_way(), [] as [i64; 0]);
    bench.wait(HELD_BACK_MS - 1);
    assert_eq!(bench.on_their_way(), [] as [i64; 0]);
    bench.wait(1);
    assert_eq!(bench.on_their_way(), [1]);
}

/// In a log it could be twice. And what is dropped before the log's place has passed it, the next owner would send.
#[test]
fn into_a_log_nothing_is_sent_again_and_what_it_has_not_passed_yet_stays_set_aside() {
    let mut policy = quiet();
    policy.retry.attempts_max = 1;
    policy.poison = Poison::ParkKey;
    let mut bench = Bench::new(TRANSACTIONAL, policy, &["a", "b", "a"]);
    bench.end_transaction(Some(1));
    let aside = [(1, ExceptionKind::Parked), (3, ExceptionKind::Behind)];
    assert_eq!(
        (bench.exceptions(), bench.on_their_way()),
        (aside.to_vec(), vec![2])
    );
    ask(&mut bench, 3, Wish::Drop);
    assert_eq!(bench.exceptions(), aside);
    let (call, _) = bench.sent.pop().unwrap();
    assert!(bench.log.commit(&bench.lease.shard, bench.session, call));
    bench.tell(Input::Committed {
        call,
        end: TransactionEnd::Committed,
    });
    bench.wait(bench.policy.redrive_look_ms);
    assert_eq!(bench.exceptions(), aside[..1]);

    ask(&mut bench, 1, Wish::Retry);
    let row = now_or_never(bench.store.desk_row(1)).unwrap().unwrap();
    assert_eq!((row.asked, bench.on_their_way()), (None, vec![]));
    assert!(
        row.stored.exception.reason.contains("replay --ids fresh"),
        "{row:?}"
    );

    ask(&mut bench, 1, Wish::Drop);
    assert_eq!(bench.exceptions(), []);
    write(&bench.store, &["a"]);
    bench.tell(Input::Hint);
    assert_eq!(bench.on_their_way(), [4], "its key goes on");
}
