//! A relay stands still in the middle of sending until its lease has ended (SIGSTOP), another takes over, and the first one wakes
//! with what it had in hand: over PostgreSQL, to receivers that take what they are sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use semel_core::host::uuid_v7;
use semel_core::{Event, OutboxStore as _, SystemClock};
use semel_postgres::{Config, Postgres};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::postgres;

use super::beds::Bed;
use super::{audit, beds};
use crate::crash::{EVENTS, KEYS};
use crate::daemon::{Daemon, Folder, run, until};

/// Events are written up to these numbers: settled before the stall, half sent in it, sent by the one that took over, sent when the
/// first one has woken.
const SETTLED: usize = 8;
const HALF_SENT: usize = 20;
const TAKEN_OVER: usize = 25;
/// How long each piece of data is on its way: long enough to stop the relay between a row's arrival and its answer.
const ON_THE_WAY: Duration = Duration::from_millis(500);

async fn write(db: &Postgres, topic: &str, numbers: std::ops::Range<usize>) {
    let events: Vec<_> = numbers
        .map(|n| {
            Event::new(uuid_v7(&SystemClock), topic, "order.placed")
                .with_key(format!("k{}", n % KEYS))
                .with_data("application/json", format!("{{\"n\":{n}}}"))
        })
        .collect();
    let mut tx = db.begin().await.unwrap();
    semel_postgres::tx::enqueue_many(&mut tx, &events).await.unwrap();
    db.commit(tx).await.unwrap();
}

fn folder(url: &str, sink: &str) -> Folder {
    Folder::new(&format!(
        "[store]\nurl = \"{url}\"\n[[relay]]\nname = \"orders\"\nshards = 1\nlease_ms = 2500\nsend_timeout_ms = 2400\n\
         retry_cap_ms = 200\n{sink}\n"
    ))
}

/// The sink's line with another port.
fn led_to(sink: &str, proxy: &Proxy, port: u16) -> String {
    sink.replace(
        &format!("127.0.0.1:{port}"),
        &format!("127.0.0.1:{}", proxy.port()),
    )
}

fn port_of(sink: &str) -> u16 {
    let (_, behind) = sink.split_once("127.0.0.1:").unwrap();
    let digits: String = behind.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

async fn count(daemon: &Daemon, what: &str) -> f64 {
    let name = format!("semel_relay_{what}_total{{relay=\"orders\",stream=\"default\"}}");
    daemon.metric(&name).await.unwrap_or_default()
}

/// Who owns the shard.
async fn owner(db: &Postgres) -> (i64, Vec<u8>) {
    sqlx::query_as("SELECT epoch, nonce FROM semel.outbox_shard")
        .fetch_one(db.pool())
        .await
        .unwrap()
}

/// `once`: the receiver drops what it has had.
async fn stands_still(bed: &dyn Bed, once: bool) {
    let url = postgres().fresh_database();
    let db = Postgres::connect(Config::new(&url)).await.unwrap();
    db.migrate().await.unwrap();
    let sink = bed.sink();
    let proxy = Arc::new(Proxy::to_port(port_of(&sink)).await.unwrap());
    let slow = folder(&url, &led_to(&sink, &proxy, port_of(&sink)));
    assert_eq!(run(slow.path(), &["migrate"]).status.code(), Some(0));
    let first = slow.start().await;
    until("the first owns the shard", async || {
        count(&first, "shards_acquired").await == 1.0
    })
    .await;
    let second = folder(&url, &sink).start().await;
    let have = async |numbers: usize| {
        let mut found: Vec<u64> = bed.arrived().await.iter().map(|it| it.n).collect();
        found.sort_unstable();
        found.dedup();
        found.len() >= numbers
    };
    let settled = async || {
        db.backlog()
            .await
            .unwrap()
            .shards
            .iter()
            .all(|shard| shard.rows == 0)
    };

    write(&db, bed.topic(), 0..SETTLED).await;
    until("they have arrived and are settled", async || {
        have(SETTLED).await && settled().await
    })
    .await;
    proxy.delay(ON_THE_WAY);
    write(&db, bed.topic(), SETTLED..HALF_SENT).await;
    until("one has arrived", async || have(SETTLED + 1).await).await;
    first.process.pause();
    assert!(!settled().await, "it was to stop in the middle");
    let held = owner(&db).await;
    write(&db, bed.topic(), HALF_SENT..TAKEN_OVER).await;
    until("the second has taken over and sent all", async || {
        have(TAKEN_OVER).await && settled().await
    })
    .await;
    let taken = owner(&db).await;
    assert!(taken.0 > held.0 && taken.1 != held.1, "{held:?}, {taken:?}");

    // It wakes with answers that came while it slept, and with rows that it has not sent yet.
    first.process.resume();
    proxy.delay(Duration::ZERO);
    until("the first knows that it has lost the shard", async || {
        count(&first, "shards_lost").await == 1.0
    })
    .await;
    write(&db, bed.topic(), TAKEN_OVER..EVENTS).await;
    until("all have arrived and are settled", async || {
        have(EVENTS).await && settled().await
    })
    .await;
    assert_eq!(owner(&db).await, taken, "nothing that the first wrote was taken");
    assert_eq!(count(&second, "shards_lost").await, 0.0);
    let (code, log) = first.stop().await;
    assert_eq!(code, 0, "{log}");
    let arrived = bed.arrived().await;
    let found = audit(&arrived);
    assert!(found.is_empty(), "{found:?}\n{log}");
    let mut times: HashMap<u64, usize> = HashMap::new();
    for it in &arrived {
        *times.entry(it.n).or_default() += 1;
    }
    let most = |from: usize, to: usize| (from..to).map(|n| times[&(n as u64)]).max();
    assert_eq!(
        most(0, SETTLED),
        Some(1),
        "what was settled is not sent again: {arrived:?}"
    );
    assert_eq!(
        most(HALF_SENT, EVENTS),
        Some(1),
        "what one relay alone had in hand comes once: {arrived:?}"
    );
    let in_the_middle = most(SETTLED, HALF_SENT);
    if once {
        assert_eq!(in_the_middle, Some(1), "{arrived:?}");
    } else {
        assert_eq!(in_the_middle, Some(2), "once from each: {arrived:?}");
    }
    assert_eq!(second.stop().await.0, 0);
}

#[tokio::test]
async fn a_relay_that_stands_still_past_its_lease_loses_and_reorders_nothing_at_a_webhook() {
    stands_still(&beds::Webhook::new().await, false).await;
}

#[cfg(feature = "rabbitmq")]
#[tokio::test]
async fn a_relay_that_stands_still_past_its_lease_loses_and_reorders_nothing_at_rabbitmq() {
    stands_still(&beds::Rabbitmq::new().await, false).await;
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn a_relay_that_stands_still_past_its_lease_loses_and_reorders_nothing_at_nats() {
    stands_still(&beds::Nats::new().await, true).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_relay_that_stands_still_past_its_lease_loses_and_reorders_nothing_at_redis() {
    stands_still(&beds::Redis::new().await, false).await;
}
