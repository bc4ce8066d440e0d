//! The crash matrix: the daemon dies at every point that a relay passes, and another one goes on, from each store to each
//! kind of receiver. An audit of what arrived follows each death: nothing lost, each key in order once repeats are dropped
//! by their id, and a repeat is the same event.
//!
//! A new point of the list that begins with `relay.` is walked by itself. Two rows stand elsewhere, as those deaths are
//! shared with gateway and sagas: SQLite and PostgreSQL to a webhook, in [`super::crash`].

mod beds;
mod stalled;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Instant;

use futures_util::StreamExt as _;
use semel_core::crash::{CRASH_POINTS, LAST_WORDS};
use tokio::sync::Semaphore;

use self::beds::{Arrived, Bed};
use super::crash::{EVENTS, KEYS, Shop};
use super::daemon::{Folder, LIMIT, run};

/// How often a point is passed before the process dies there. With two shards the second pass has something behind it.
const PASSES: [u32; 2] = [1, 2];
/// Deaths at a time: what takes long is waiting for leases.
const AT_ONCE: usize = 5;
/// The same over all rows, however many tests run at once: a server has so many connections to give.
static PLACES: Semaphore = Semaphore::const_new(2 * AT_ONCE);

/// Everything that is wrong with what arrived.
fn audit(arrived: &[Arrived]) -> Vec<String> {
    let mut found = Vec::new();
    let mut ids = BTreeMap::new();
    let mut events: BTreeMap<u64, &str> = BTreeMap::new();
    let mut keys: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for it in arrived {
        match ids.insert(&it.id, it) {
            Some(before) if before != it => found.push(format!("one id, two events: {before:?}, {it:?}")),
            Some(_) => {}
            None => {
                if let Some(other) = events.insert(it.n, &it.id) {
                    found.push(format!("{} came twice: as {other} and as {}", it.n, it.id));
                }
                keys.entry(&it.key).or_default().push(it.n);
            }
        }
    }
    let lost: Vec<u64> = (0..EVENTS as u64).filter(|n| !events.contains_key(n)).collect();
    if !lost.is_empty() {
        found.push(format!("lost: {lost:?}"));
    }
    for (key, numbers) in keys {
        if !numbers.is_sorted() {
            found.push(format!("key {key} is out of order: {numbers:?}"));
        }
        if let Some(n) = numbers.iter().find(|n| format!("k{}", **n % KEYS as u64) != key) {
            found.push(format!("{n} came under key {key}"));
        }
    }
    found
}

/// The daemon dies at this point; the next one goes on.
async fn dies_at(point: impl Display, bed: &dyn Bed, shop: impl FnOnce(&Folder) -> Shop) {
    let _place = PLACES.acquire().await.unwrap();
    let point = point.to_string();
    let folder = Folder::new("");
    let shop = shop(&folder);
    folder.append(&format!(
        "[store]\nurl = \"{}\"\nmigrate = true\n\
         [[relay]]\nname = \"orders\"\nshards = 2\nlease_ms = 1200\nsend_timeout_ms = 1000\nretry_cap_ms = 200\n{}\n",
        shop.url(),
        bed.sink(),
    ));
    assert_eq!(run(folder.path(), &["migrate"]).status.code(), Some(0));
    shop.enqueue(bed.topic()).await;
    let mut armed = folder.spawn(&[("SEMEL_CRASH_POINT", &point)]);
    let (_, log) = armed.ended().await;
    assert!(log.contains(LAST_WORDS), "{point}: it ended otherwise:\n{log}");

    let daemon = folder.start().await;
    let deadline = Instant::now() + LIMIT;
    let all = async || {
        let mut numbers: Vec<u64> = bed.arrived().await.iter().map(|it| it.n).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.len() == EVENTS
    };
    while !all().await && Instant::now() < deadline {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let (code, log) = daemon.stop().await;
    let arrived = bed.arrived().await;
    let found = audit(&arrived);
    assert!(found.is_empty(), "{point}: {found:?}\n{log}");
    assert!(
        bed.repeats() || arrived.len() == EVENTS,
        "{point}: sent again: {arrived:?}\n{log}"
    );
    assert_eq!(code, 0, "{point}: {log}");
}

async fn each_point<B: Bed>(shop: fn(&Folder) -> Shop, bed: impl AsyncFn() -> B) {
    each_of(|point| point.starts_with("relay."), shop, bed).await;
}

/// The points of a relay into a log that holds the cursor: nothing is sent outside of its transactions.
#[cfg(feature = "kafka")]
async fn each_point_of_a_log(shop: fn(&Folder) -> Shop) {
    let passed = |point: &str| point.starts_with("log.") || point == "relay.batch_opened";
    each_of(passed, shop, beds::KafkaInTransactions::new).await;
}

async fn each_of<B: Bed>(which: impl Fn(&str) -> bool, shop: fn(&Folder) -> Shop, bed: impl AsyncFn() -> B) {
    let points = CRASH_POINTS.iter().filter(|point| which(point));
    let deaths = points.flat_map(|point| PASSES.map(|pass| format!("{point}:{pass}")));
    futures_util::stream::iter(deaths)
        .map(async |point| dies_at(point, &bed().await, shop).await)
        .buffer_unordered(AT_ONCE)
        .collect::<()>()
        .await;
}

fn sqlite(folder: &Folder) -> Shop {
    Shop::Sqlite(folder.file("semel.db"))
}

fn postgresql(_: &Folder) -> Shop {
    Shop::Postgres(semel_testkit::servers::postgres().fresh_database())
}

#[cfg(feature = "mysql")]
fn mariadb(_: &Folder) -> Shop {
    Shop::Mariadb(semel_testkit::servers::mariadb().fresh_database())
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn a_relay_from_mariadb_to_a_webhook_loses_nothing_at_any_point() {
    each_point(mariadb, beds::Webhook::new).await;
}

#[cfg(feature = "kafka")]
#[tokio::test]
async fn a_relay_from_sqlite_to_kafka_loses_nothing_at_any_point() {
    each_point(sqlite, beds::Kafka::new).await;
}

#[cfg(feature = "kafka")]
#[tokio::test]
async fn a_relay_from_postgresql_to_kafka_loses_nothing_at_any_point() {
    each_point(postgresql, beds::Kafka::new).await;
}

#[cfg(all(feature = "mysql", feature = "kafka"))]
#[tokio::test]
async fn a_relay_from_mariadb_to_kafka_loses_nothing_at_any_point() {
    each_point(mariadb, beds::Kafka::new).await;
}

#[cfg(feature = "kafka")]
#[tokio::test]
async fn a_relay_from_sqlite_into_transactions_of_kafka_sends_nothing_twice_at_any_point() {
    each_point_of_a_log(sqlite).await;
}

#[cfg(feature = "kafka")]
#[tokio::test]
async fn a_relay_from_postgresql_into_transactions_of_kafka_sends_nothing_twice_at_any_point() {
    each_point_of_a_log(postgresql).await;
}

#[cfg(all(feature = "mysql", feature = "kafka"))]
#[tokio::test]
async fn a_relay_from_mariadb_into_transactions_of_kafka_sends_nothing_twice_at_any_point() {
    each_point_of_a_log(mariadb).await;
}

#[cfg(feature = "rabbitmq")]
#[tokio::test]
async fn a_relay_from_sqlite_to_rabbitmq_loses_nothing_at_any_point() {
    each_point(sqlite, beds::Rabbitmq::new).await;
}

#[cfg(feature = "rabbitmq")]
#[tokio::test]
async fn a_relay_from_postgresql_to_rabbitmq_loses_nothing_at_any_point() {
    each_point(postgresql, beds::Rabbitmq::new).await;
}

#[cfg(all(feature = "mysql", feature = "rabbitmq"))]
#[tokio::test]
async fn a_relay_from_mariadb_to_rabbitmq_loses_nothing_at_any_point() {
    each_point(mariadb, beds::Rabbitmq::new).await;
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn a_relay_from_sqlite_to_nats_loses_nothing_at_any_point() {
    each_point(sqlite, beds::Nats::new).await;
}

#[cfg(feature = "nats")]
#[tokio::test]
async fn a_relay_from_postgresql_to_nats_loses_nothing_at_any_point() {
    each_point(postgresql, beds::Nats::new).await;
}

#[cfg(all(feature = "mysql", feature = "nats"))]
#[tokio::test]
async fn a_relay_from_mariadb_to_nats_loses_nothing_at_any_point() {
    each_point(mariadb, beds::Nats::new).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_relay_from_sqlite_to_redis_loses_nothing_at_any_point() {
    each_point(sqlite, beds::Redis::new).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_relay_from_postgresql_to_redis_loses_nothing_at_any_point() {
    each_point(postgresql, beds::Redis::new).await;
}

#[cfg(all(feature = "mysql", feature = "redis"))]
#[tokio::test]
async fn a_relay_from_mariadb_to_redis_loses_nothing_at_any_point() {
    each_point(mariadb, beds::Redis::new).await;
}

/// What the audit is there for, one by one.
#[test]
fn the_audit_sees_what_is_lost_reordered_or_doubled_and_passes_repeats() {
    let whole: Vec<Arrived> = (0..EVENTS as u64)
        .map(|n| Arrived {
            id: format!("id-{n}"),
            key: format!("k{}", n % KEYS as u64),
            n,
        })
        .collect();
    assert_eq!(audit(&whole), Vec::<String>::new());
    let with = |change: &dyn Fn(&mut Vec<Arrived>)| {
        let mut changed = whole.clone();
        change(&mut changed);
        audit(&changed).join("; ")
    };
    let late_repeat = with(&|it| it.push(it[3].clone()));
    assert_eq!(late_repeat, "");
    let lost = with(&|it| drop(it.remove(7)));
    assert_eq!(lost, "lost: [7]");
    let reordered = with(&|it| it.swap(2, 2 + KEYS));
    assert!(reordered.starts_with("key k2 is out of order"), "{reordered}");
    let doubled = with(&|it| {
        let id = "another".to_owned();
        it.push(Arrived { id, ..it[29].clone() });
    });
    assert_eq!(doubled, "29 came twice: as id-29 and as another");
    let changed = with(&|it| {
        it.push(Arrived {
            n: 4,
            ..it[9].clone()
        })
    });
    assert!(changed.starts_with("one id, two events"), "{changed}");
}
