//! The relay over SQLite and a receiver that does as told.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::relay::{PauseKind, Poison};
use semel_core::store::{ExceptionKind, SinkErrorClass, SinkOrder};
use semel_core::{ErrorKind, OutboxStore};
use semel_outbox::{Clean, Delayed, RelayConfig};

use crate::bed::{Receiver, To, Verdict, clean_at_once, config, event, sqlite, start, until, write};

const ONE_PER_KEY: SinkOrder = SinkOrder::OnePerKey { in_flight_max: 8 };
const PIPELINED: SinkOrder = SinkOrder::Pipelined { in_flight_max: 16 };

#[tokio::test]
async fn events_arrive_in_the_order_of_their_keys_and_the_cursor_follows() {
    for order in [ONE_PER_KEY, PIPELINED] {
        let (db, _dir) = sqlite().await;
        let receiver = Receiver::new(order);
        let relay = start(db.clone(), Arc::new(To(receiver.clone())), config());
        let mut ids = BTreeSet::new();
        for round in 0..20 {
            let events: Vec<_> = (0..10)
                .map(|n| event(&format!("k{}", n % 3), &format!("{round}/{n}")))
                .collect();
            ids.extend(events.iter().map(|event| event.id));
            write(&db, &events).await;
            relay.handle.wake();
        }
        until("all have arrived", async || receiver.ids().len() == ids.len()).await;
        relay.stop().await.unwrap();
        assert_eq!(receiver.ids(), ids);
        assert_eq!(
            receiver.arrived.lock().unwrap().len(),
            ids.len(),
            "nothing twice without trouble"
        );
        receiver.check_order();
        let backlog = db.backlog().await.unwrap();
        assert_eq!(
            (backlog.shards[0].rows, backlog.shards[0].owner.as_deref()),
            (0, None)
        );
    }
}

#[tokio::test]
async fn at_most_one_event_of_a_key_and_a_bounded_number_in_all_are_on_their_way() {
    let (db, _dir) = sqlite().await;
    let receiver = Receiver::new(ONE_PER_KEY);
    let events: Vec<_> = (0..100).map(|n| event(&format!("k{n}"), "")).collect();
    write(&db, &events).await;
    let relay = start(db.clone(), Arc::new(To(receiver.clone())), config());
    until("all have arrived", async || receiver.ids().len() == 100).await;
    relay.stop().await.unwrap();
    let most = receiver.in_flight.lock().unwrap().1;
    assert!((2..=8).contains(&most), "{most} at once");
}

/// CAP (50 tries), Agendia#322: the broker is away longer than any number of attempts would last.
#[tokio::test]
async fn a_broker_that_is_away_costs_no_attempt_and_no_order() {
    let (db, _dir) = sqlite().await;
    let receiver = Receiver::new(ONE_PER_KEY);
    let back = Arc::new(AtomicBool::new(false));
    let up = Arc::clone(&back);
    receiver.rule(move |_, _| {
        if up.load(Ordering::SeqCst) {
            Verdict::Take
        } else {
            Verdict::Fail(SinkErrorClass::Away)
        }
    });
    let mut config = config();
    config.policy.poison = Poison::ParkKey;
    let first = event("k", "1");
    write(&db, &[first.clone(), event("k", "2"), event("other", "3")]).await;
    let relay = start(db.clone(), Arc::new(To(receiver.clone())), config);
    until("it was tried more often than attempts_max", async || {
        receiver.sends(first.id) > 5
    })
    .await;
    let stats = relay.handle.stats();
    let paused = stats.shards[0]
        .paused
        .clone()
        .expect("the shard says why nothing moves");
    assert_eq!((paused.kind, paused.reason.as_str()), (PauseKind::Away, "no"));
    assert!(stats.retries > 5 && stats.excepted == 0);
    back.store(true, Ordering::SeqCst);
    until("all have arrived", async || receiver.ids().len() == 3).await;
    until("the pause is over", async || {
        relay.handle.stats().shards[0].paused.is_none()
    })
    .await;
    relay.stop().await.unwrap();
    receiver.check_order();
}

#[tokio::test]
async fn a_missing_destination_pauses_with_its_reason_and_parks_nothing() {
    let (db, _dir) = sqlite().await;
    let receiver = Receiver::new(PIPELINED);
    receiver.rule(|_, before| {
        if before < 6 {
            Verdict::Fail(SinkErrorClass::Destination)
        } else {
            Verdict::Take
        }
    });
    let mut config = config();
    config.policy.poison = Poison::Skip;
    write(&db, &[event("k", "1"), event("k", "2")]).await;
    let relay = start(db.clone(), Arc::new(To(receiver.clone())), config);
    until("it says why", async || {
        let stats = relay.handle.stats();
        stats.shards.iter().any(|it| {
            it.paused
                .as_ref()
                .is_some_and(|it| it.kind == PauseKind::Destination)
        })
    })
    .await;
    until("all have arrived", async || receiver.ids().len() == 2).await;
    relay.stop().await.unwrap();
    assert_eq!(receiver.texts(), ["1", "2"]);
    assert!(db.exceptions("default", 0, 10).await.unwrap().is_empty());
}

/// Dekaf#3038: K1, K2, K3 of one key; K2 is refused: K3 does not arrive before K2 is settled.
#[tokio::test]
async fn poison_parks_its_key_and_the_others_go_on() {
    for order in [ONE_PER_KEY, PIPELINED] {
        let (db, _dir) = sqlite().await;
        let receiver = Receiver::new(order);
        receiver.rule(|row, _| match row.event.data.as_deref() {
            Some(b"k2") => Verdict::Fail(SinkErrorClass::Message),
            _ => Verdict::Take,
        });
        let mut config = config();
        config.policy.poison = Poison::ParkKey;
        config.clean = Some(clean_at_once());
        let events = ["k1", "k2", "k3"].map(|text| event("k", text));
        write(&db, &events).await;
        write(&db, &[event("other", "o1"), event("other", "o2")]).await;
        let relay = start(db.clone(), Arc::new(To(receiver.clone())), config.clone());
        until("the key is parked", async || {
            db.exceptions("default", 0, 10).await.unwrap().len() == 2
        })
        .await;
        until("the others have arrived", async || receiver.ids().len() == 3).await;
        assert_eq!(receiver.sends(events[1].id), 3, "as many attempts as allowed");
        // A later relay knows that the key is parked, also when the rows themselves are long gone.
        until("the rows are gone", async || relay.handle.stats().cleaned == 5).await;
        relay.stop().await.unwrap();
        let relay = start(db.clone(), Arc::new(To(receiver.clone())), config);
        write(&db, &[event("k", "k4"), event("other", "o3")]).await;
        until("the later one is behind it", async || {
            db.exceptions("default", 0, 10).await.unwrap().len() == 3
        })
        .await;
        until("the other has arrived", async || {
            receiver.texts().contains(&"o3".to_owned())
        })
        .await;
        relay.stop().await.unwrap();
        let mut texts = receiver.texts();
        texts.sort();
        assert_eq!(texts, ["k1", "o1", "o2", "o3"]);
        let stored = db.exceptions("default", 0, 10).await.unwrap();
        let kinds: Vec<_> = stored
            .iter()
            .map(|it| (it.exception.kind, it.exception.attempts))
            .collect();
        let (parked, behind) = (ExceptionKind::Parked, ExceptionKind::Behind);
        assert_eq!(kinds, [(parked, 3), (behind, 0), (behind, 0)]);
        assert_eq!(stored[0].exception.reason, "no");
        assert_eq!(stored[0].row.row.event, events[1]);
    }
}

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn poison_that_is_skipped_is_kept_as_an_exception_and_its_key_goes_on() {
    let (db, _dir) = sqlite().await;
    let receiver = Receiver::new(ONE_PER_KEY);
    receiver.rule(|row, _| match row.event.data.as_deref() {
        Some(b"2") => Verdict::Fail(SinkErrorClass::Message),
        _ => Verdict::Take,
    });
    let mut config = config();
    config.policy.poison = Poison::Skip;
    let events = ["1", "2", "3"].map(|text| event("k", text));
    write(&db, &events).await;
    let log = Log::default();
    let lines = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || lines.clone())
        .finish();
    let listening = tracing::subscriber::set_default(subscriber);
    let relay = start(db.clone(), Arc::new(To(receiver.clone())), config);
    until("the rest has arrived", async || receiver.texts() == ["1", "3"]).await;
    relay.stop().await.unwrap();
    drop(listening);
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let told: Vec<&str> = log.lines().filter(|line| line.contains("set aside")).collect();
    assert_eq!(told.len(), 1, "{log}");
    let id = events[1].id.to_string();
    for part in [
        "WARN",
        "stream=default",
        "shard=0",
        "row=2",
        &id,
        "skipped",
        "reason=",
    ] {
        assert!(told[0].contains(part), "{part}: {told:?}");
    }
    let stored = db.exceptions("default", 0, 10).await.unwrap();
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0].exception.kind, ExceptionKind::Skipped);
}

#[tokio::test]
async fn poison_that_blocks_stops_the_shard_and_says_so_until_it_goes_through() {
    let (db, _dir) = sqlite().await;
    let receiver = Receiver::new(ONE_PER_KEY);
    let mended = Arc::new(AtomicBool::new(false));
    let ok = Arc::clone(&mended);
    receiver.rule(move |row, _| match row.event.data.as_deref() {
        Some(b"1") if !ok.load(Ordering::SeqCst) => Verdict::Fail(SinkErrorClass::Message),
        _ => Verdict::Take,
    });
    let bad = event("k", "1");
    write(&db, std::slice::from_ref(&bad)).await;
    let relay = start(db.clone(), Arc::new(To(receiver.clone())), config());
    until("it says so", async || {
        let stats = relay.handle.stats();
        stats
            .shards
            .iter()
            .any(|it| it.paused.as_ref().is_some_and(|it| it.kind == PauseKind::Poison))
    })
    .await;
    write(&db, &[event("other", "2")]).await;
    until("it goes on trying", async || receiver.sends(bad.id) > 6).await;
    assert!(receiver.ids().is_empty());
    mended.store(true, Ordering::SeqCst);
    until("all have arrived", async || receiver.texts() == ["1", "2"]).await;
    relay.stop().await.unwrap();
    assert!(db.exceptions("default", 0, 10).await.unwrap().is_empty());
}

/// An answer that is lost: the event goes out again, with the same id; nothing of its key passes it.
#[tokio::test]
async fn an_answer_that_is_lost_repeats_the_same_id() {
    let (db, _dir) = sqlite().await;
    let receiver = Receiver::new(ONE_PER_KEY);
    receiver.rule(|_, before| {
        if before == 0 {
            Verdict::TakeInSilence
        } else {
            Verdict::Take
        }
    });
    write(&db, &["1", "2", "3"].map(|text| event("k", text))).await;
    let relay = start(db.clone(), Arc::new(To(receiver.clone())), config());
    until("all have arrived twice", async || {
        receiver.arrived.lock().unwrap().len() == 6
    })
    .await;
    relay.stop().await.unwrap();
    assert_eq!(receiver.texts(), ["1", "2", "3"]);
    receiver.check_order();
}

/// namastack#395: a send that takes longer than it may. The heartbeat lives, the send counts as away.
#[tokio::test]
async fn a_send_that_hangs_ends_at_its_deadline_and_the_lease_is_kept() {
    let (db, _dir) = sqlite().await;
    let receiver = Receiver::new(ONE_PER_KEY);
    receiver.rule(|_, before| if before < 2 { Verdict::Hang } else { Verdict::Take });
    let mut config = config();
    config.lease = Duration::from_secs(5);
    config.policy.send_timeout_ms = 3_000;
    write(&db, &[event("k", "1")]).await;
    let relay = start(db.clone(), Arc::new(To(receiver.clone())), config);
    until("it has arrived", async || receiver.texts() == ["1"]).await;
    let stats = relay.handle.stats();
    assert_eq!((stats.acquired, stats.lost, stats.retries), (1, 0, 2));
    relay.stop().await.unwrap();
}

#[tokio::test]
async fn a_relay_that_dies_is_followed_by_another_and_nothing_is_lost() {
    for order in [ONE_PER_KEY, PIPELINED] {
        let (db, _dir) = sqlite().await;
        let receiver = Receiver::new(order);
        let events: Vec<_> = (0..300)
            .map(|n| event(&format!("k{}", n % 7), &n.to_string()))
            .collect();
        write(&db, &events).await;
        // It hangs on a row in the middle, so that it does not end before it dies.
        receiver.rule(|row, before| match row.event.data.as_deref() {
            Some(b"150") if before == 0 => Verdict::Hang,
            _ => Verdict::Take,
        });
        let first = start(db.clone(), Arc::new(To(receiver.clone())), config());
        until("some have arrived", async || receiver.ids().len() > 50).await;
        let second = start(db.clone(), Arc::new(To(receiver.clone())), config());
        first.abort().await;
        until("all have arrived", async || receiver.ids().len() == 300).await;
        assert_eq!(second.handle.stats().acquired, 1);
        second.stop().await.unwrap();
        receiver.check_order();
    }
}

#[tokio::test]
async fn a_stop_waits_for_what_is_on_its_way_saves_it_and_gives_the_shard_back() {
    let (db, _dir) = sqlite().await;
    let receiver = Receiver::new(ONE_PER_KEY);
    write(
        &db,
        &(0..200).map(|n| event(&format!("k{n}"), "")).collect::<Vec<_>>(),
    )
    .await;
    let mut config = config();
    config.policy.save_every_ms = 60_000;
    let relay = start(db.clone(), Arc::new(To(receiver.clone())), config.clone());
    until("some have arrived", async || receiver.ids().len() > 20).await;
    relay.stop().await.unwrap();
    assert_eq!(receiver.in_flight.lock().unwrap().0, 0);
    let arrived = receiver.ids().len() as u64;
    let shard = db.backlog().await.unwrap().shards.remove(0);
    assert_eq!(
        (shard.owner, shard.rows),
        (None, 200 - arrived),
        "the cursor stands where the sends ended"
    );
    let relay = start(db.clone(), Arc::new(To(receiver.clone())), config);
    until("all have arrived", async || receiver.ids().len() == 200).await;
    relay.stop().await.unwrap();
    assert_eq!(
        receiver.arrived.lock().unwrap().len(),
        200,
        "a graceful hand-over repeats nothing"
    );
}

#[tokio::test]
async fn a_configuration_that_cannot_work_is_an_error_at_once() {
    let (db, _dir) = sqlite().await;
    let run = |config: RelayConfig| start(db.clone(), Arc::new(To(Receiver::new(PIPELINED))), config).end();
    let mut slow = config();
    slow.policy.send_timeout_ms = 10_000;
    let error = run(slow).await.unwrap_err();
    assert!(error.to_string().contains("send_timeout_ms"), "{error}");
    let odd = RelayConfig {
        stream: "no such name".to_owned(),
        ..config()
    };
    assert_eq!(run(odd).await.unwrap_err().kind(), ErrorKind::LimitExceeded);
    let clean = |change: fn(&mut Clean)| {
        let mut clean = Clean::default();
        change(&mut clean);
        RelayConfig {
            clean: Some(clean),
            ..config()
        }
    };
    let delayed = |change: fn(&mut Delayed)| {
        let mut delayed = Delayed::default();
        change(&mut delayed);
        RelayConfig {
            delayed: Some(delayed),
            ..config()
        }
    };
    let spinning = [
        ("clean rows_max", clean(|it| it.rows_max = 0)),
        ("clean every", clean(|it| it.every = Duration::from_micros(999))),
        ("delayed rows_max", delayed(|it| it.rows_max = 0)),
        ("delayed every", delayed(|it| it.every = Duration::ZERO)),
        ("delayed every", delayed(|it| it.every = Duration::MAX)),
    ];
    for (name, config) in spinning {
        let error = run(config).await.unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}

/// Rule O12: relays that are told different numbers run side by side while writers write. Nothing is lost, each key keeps
/// its order, and whoever came last is right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_shards_changes_while_relays_of_both_numbers_run() {
    let (db, _dir) = sqlite().await;
    let receiver = Receiver::new(PIPELINED);
    let relay = |shards| {
        let config = RelayConfig { shards, ..config() };
        start(db.clone(), Arc::new(To(receiver.clone())), config)
    };
    let shards_are = async |count: usize| {
        let backlog = db.backlog().await.unwrap();
        backlog.shards.len() == count && backlog.shards.iter().all(|shard| shard.owner.is_some())
    };
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (db, stop) = (db.clone(), Arc::clone(&stop));
        async move {
            let mut ids = BTreeSet::new();
            while !stop.load(Ordering::Relaxed) {
                let events: Vec<_> = (0..5)
                    .map(|n| event(&format!("k{}", (ids.len() + n) % 13), ""))
                    .collect();
                ids.extend(events.iter().map(|event| event.id));
                write(&db, &events).await;
                tokio::task::yield_now().await;
            }
            ids
        }
    });
    let two = relay(2);
    until("two shards are owned", async || shards_are(2).await).await;
    let four = relay(4);
    until("four shards are owned", async || shards_are(4).await).await;
    four.stop().await.unwrap();
    until("the relay that is left owns all four", async || {
        shards_are(4).await
    })
    .await;
    let one = relay(1);
    until("one shard is owned", async || shards_are(1).await).await;
    two.stop().await.unwrap();
    stop.store(true, Ordering::Relaxed);
    let ids = writer.await.unwrap();
    until("all have arrived", async || receiver.ids().len() == ids.len()).await;
    one.stop().await.unwrap();
    assert_eq!(receiver.ids(), ids);
    receiver.check_order();
}

/// The call of the sink goes on beside the shard's task, and is of use to nobody when that is gone.
#[tokio::test]
async fn a_call_ends_with_its_relay() {
    let (db, _dir) = sqlite().await;
    let receiver = Receiver::new(PIPELINED);
    let held = Arc::new(());
    let seen = Arc::downgrade(&held);
    let held = Mutex::new(Some(held));
    let asked = Arc::new(AtomicBool::new(false));
    let begun = Arc::clone(&asked);
    let dropped = move |_: &_, _: usize| {
        begun.store(true, Ordering::SeqCst);
        Verdict::HangWith(held.lock().unwrap().take())
    };
    receiver.rule(dropped);
    write(&db, &[event("k", "1")]).await;
    // Longer than the test would wait: no time-out ends the call.
    let mut config = config();
    config.lease = Duration::from_secs(120);
    config.policy.send_timeout_ms = 60_000;
    let relay = start(db.clone(), Arc::new(To(receiver.clone())), config);
    until("it is on its way", async || asked.load(Ordering::SeqCst)).await;
    assert!(seen.upgrade().is_some());
    relay.abort().await;
    until("nobody holds the call any more", async || {
        seen.upgrade().is_none()
    })
    .await;
}

#[tokio::test]
async fn a_panic_of_a_sink_ends_its_shards_task_and_the_next_owner_sends_again() {
    let (db, _dir) = sqlite().await;
    let receiver = Receiver::new(PIPELINED);
    receiver.rule(|_, before| match before {
        0 => Verdict::Panic,
        _ => Verdict::Take,
    });
    write(&db, &[event("k", "1"), event("k", "2")]).await;
    let relay = start(db.clone(), Arc::new(To(receiver.clone())), config());
    until("all have arrived", async || receiver.ids().len() == 2).await;
    assert!(relay.handle.stats().acquired > 1);
    relay.stop().await.unwrap();
}
