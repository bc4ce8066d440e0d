//! The relay over a store that hangs, fails or panics.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use semel_core::store::SinkOrder;
use semel_core::{Clock, ErrorKind, OutboxStore as _, StoreError, SystemClock, Timestamp};
use semel_outbox::{RelayConfig, RelayHandle};
use semel_sqlite::Sqlite;

use crate::bed::{Receiver, Running, To, clean_at_once, config, event, sqlite, start, until, write};
use crate::troubled::{Trouble, Troubled};

const ORDER: SinkOrder = SinkOrder::Pipelined { in_flight_max: 16 };

/// An end that a call which hangs would keep from coming.
async fn ends(end: impl Future<Output = Result<(), StoreError>>) -> Result<(), StoreError> {
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, end).await.expect("it ends")
}

/// Events go through as if nothing were the matter, under the first lease; then it ends.
async fn goes_on(db: &Sqlite, receiver: &Receiver, relay: Running) {
    write(db, &[event("k", "1")]).await;
    until("it has arrived", async || receiver.texts() == ["1"]).await;
    let stats = relay.handle.stats();
    assert_eq!((stats.acquired, stats.lost), (1, 0));
    ends(relay.stop()).await.unwrap();
}

/// A pool that is busy with other things: the note waits, and the lease does not wait for it.
#[tokio::test]
async fn a_desk_that_does_not_answer_costs_no_lease() {
    let (db, _dir) = sqlite().await;
    let store = Troubled::new(db.clone(), &[("note", Trouble::Hang)]);
    let receiver = Receiver::new(ORDER);
    let relay = start(store.clone(), Arc::new(To(receiver.clone())), config());
    until("a note is waited for", async || store.calls("note") > 0).await;
    let before = store.calls("renew");
    until("leases are renewed meanwhile", async || {
        store.calls("renew") > before + 6
    })
    .await;
    goes_on(&db, &receiver, relay).await;
}

#[tokio::test]
async fn a_note_that_fails_is_tried_again_more_and_more_rarely() {
    let (db, _dir) = sqlite().await;
    let store = Troubled::new(db, &[("note", Trouble::Fail(ErrorKind::Unavailable))]);
    let mut config = config();
    config.lease = Duration::from_millis(500);
    config.policy.send_timeout_ms = 400;
    let relay = start(store.clone(), Arc::new(To(Receiver::new(ORDER))), config);
    until("leases are renewed", async || store.calls("renew") > 24).await;
    let notes = store.calls("note");
    assert!((1..=8).contains(&notes), "{notes} notes");
    ends(relay.stop()).await.unwrap();
}

/// Waits as a relay has them that nobody is in a hurry for.
fn unhurried(shards: u16) -> RelayConfig {
    let mut config = config();
    config.shards = shards;
    config.policy.idle_max_ms = 40;
    config
}

/// Rule O13: what it costs to be idle does not grow with the shards.
#[tokio::test]
async fn idle_shards_look_together() {
    let (db, _dir) = sqlite().await;
    let store = Troubled::new(db.clone(), &[]);
    let receiver = Receiver::new(ORDER);
    let relay = start(store.clone(), Arc::new(To(receiver.clone())), unhurried(8));
    until("all shards are idle", async || store.calls("worth_opening") > 5).await;
    let (looks, opened) = (store.calls("worth_opening"), store.calls("open_batch"));
    until("they go on looking", async || {
        store.calls("worth_opening") > looks + 20
    })
    .await;
    let opened = store.calls("open_batch") - opened;
    let each = 8 * 20;
    assert!(
        opened < each / 2,
        "{opened} looks of single shards beside 20 of all"
    );
    write(&db, &[event("k", "1")]).await;
    until("it has arrived", async || receiver.texts() == ["1"]).await;
    ends(relay.stop()).await.unwrap();
}

#[tokio::test]
async fn shards_look_each_for_itself_where_nobody_looks_for_all() {
    for trouble in [
        Trouble::Hang,
        Trouble::Panic,
        Trouble::Fail(ErrorKind::Unavailable),
    ] {
        let (db, _dir) = sqlite().await;
        let store = Troubled::new(db.clone(), &[("worth_opening", trouble)]);
        let receiver = Receiver::new(ORDER);
        let relay = start(store.clone(), Arc::new(To(receiver.clone())), unhurried(4));
        until("one looks for all", async || store.calls("worth_opening") > 0).await;
        write(&db, &[event("k", "1")]).await;
        until("it has arrived", async || receiver.texts() == ["1"]).await;
        ends(relay.stop()).await.unwrap();
    }
}

/// A panic ends one task; the relay would go on without renewals, or without a cleaner, and say nothing.
#[tokio::test]
async fn what_goes_on_beside_the_shards_begins_again_when_it_dies() {
    let (db, _dir) = sqlite().await;
    let helpers = ["renew", "attend", "note", "clean", "move_due", "measure"];
    let store = Troubled::new(db.clone(), &helpers.map(|call| (call, Trouble::Panic)));
    let receiver = Receiver::new(ORDER);
    let mut config = config();
    config.clean = Some(clean_at_once());
    let relay = start(store.clone(), Arc::new(To(receiver.clone())), config);
    for call in helpers {
        until(call, async || store.calls(call) > 1).await;
    }
    until("leases are renewed", async || store.calls("renew") > 6).await;
    goes_on(&db, &receiver, relay).await;
}

#[tokio::test]
async fn a_call_that_hangs_keeps_no_relay_from_stopping() {
    for call in [
        "register_stream",
        "attend",
        "roster",
        "acquire",
        "release",
        "leave",
    ] {
        let (db, _dir) = sqlite().await;
        let store = Troubled::new(db, &[(call, Trouble::Hang)]);
        let relay = start(store.clone(), Arc::new(To(Receiver::new(ORDER))), config());
        let reached = if ["release", "leave"].contains(&call) {
            "open_batch"
        } else {
            call
        };
        until(reached, async || store.calls(reached) > 0).await;
        ends(relay.stop()).await.unwrap();
    }
}

/// It can neither take nor give, so the others do not leave its share to it.
#[tokio::test]
async fn a_relay_that_hears_nothing_of_the_others_is_not_counted_by_them() {
    let (db, _dir) = sqlite().await;
    let store = Troubled::new(db.clone(), &[("roster", Trouble::Hang)]);
    let mut config = config();
    config.lease = Duration::from_millis(500);
    config.policy.send_timeout_ms = 400;
    let relay = start(store.clone(), Arc::new(To(Receiver::new(ORDER))), config);
    let relays = async || db.roster("default").await.unwrap().relays.len();
    until("it says that it lives", async || relays().await == 1).await;
    until("it says so no longer", async || relays().await == 0).await;
    let said = store.calls("attend");
    assert!(said <= 12, "{said} times");
    ends(relay.stop()).await.unwrap();
}

#[tokio::test]
async fn calls_that_hang_do_not_hide_why_a_relay_ended() {
    let (db, _dir) = sqlite().await;
    let troubles = [
        ("open_batch", Trouble::Fail(ErrorKind::IdentityChanged)),
        ("note", Trouble::Hang),
        ("release", Trouble::Hang),
    ];
    let store = Troubled::new(db, &troubles);
    let relay = start(store.clone(), Arc::new(To(Receiver::new(ORDER))), config());
    let error = ends(relay.end()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IdentityChanged);
    assert_eq!(store.calls("release"), 1);
}

/// A clock that wakes a relay once when it is read.
#[derive(Default)]
struct Waking {
    armed: AtomicBool,
    handle: OnceLock<RelayHandle>,
}

impl Clock for Waking {
    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    fn monotonic(&self) -> Duration {
        if self.armed.swap(false, Ordering::SeqCst) {
            self.handle.get().unwrap().wake();
        }
        SystemClock.monotonic()
    }
}

/// A shard reads the clock when it begins a turn, and looks for the next input when that is done.
#[tokio::test]
async fn a_relay_hears_that_it_is_woken_while_its_shard_is_busy() {
    let (db, _dir) = sqlite().await;
    let store = Troubled::new(db.clone(), &[]);
    let receiver = Receiver::new(ORDER);
    let clock = Arc::new(Waking::default());
    let mut config = config();
    config.clock = clock.clone();
    // What is not heard of is not found.
    config.policy.idle_min_ms = 60_000;
    config.policy.idle_max_ms = 60_000;
    let relay = start(store.clone(), Arc::new(To(receiver.clone())), config);
    assert!(clock.handle.set(relay.handle.clone()).is_ok());
    until("it has looked in vain", async || store.calls("renew") > 1).await;
    assert_eq!(store.calls("open_batch"), 1);
    write(&db, &[event("k", "1")]).await;
    let renewed = Box::new(move || clock.armed.store(true, Ordering::SeqCst));
    assert!(store.renewed.set(renewed).is_ok());
    until("it has arrived", async || receiver.texts() == ["1"]).await;
    ends(relay.stop()).await.unwrap();
}
