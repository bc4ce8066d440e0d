//! A relay's process dies at each named point; the next one goes on. Everything arrives, in order per key, and what comes
//! twice has the same id.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use semel_core::limits::LimitExceeded;
use semel_core::relay::{Holding, OwnedShard};
use semel_core::store::{
    Acquire, CursorSave, DeskChange, DeskRequest, Exception, ExceptionKind, Guarded, Opening, OutboxRow,
    PageSize, SinkError, SinkFuture, SinkOrder, Wish,
};
use semel_core::{Event, OutboxStore, Sink};
use semel_mysql::Mysql;
use semel_postgres::Postgres;
use semel_sqlite::Sqlite;
use semel_testkit::crash::{Run, role};
use semel_testkit::servers;

use semel_testkit::laws::outbox::PAGE;

use crate::bed::{config, event, start, until};

const EVENTS: usize = 40;

/// A receiver that outlives the relay: each event is a line of a file.
struct Lines(PathBuf);

#[async_trait]
impl Sink for Lines {
    fn name(&self) -> &'static str {
        "lines"
    }

    fn order(&self) -> SinkOrder {
        SinkOrder::OnePerKey { in_flight_max: 2 }
    }

    fn check(&self, _: &Event) -> Result<(), LimitExceeded> {
        Ok(())
    }

    fn publish_many(&self, rows: &[Arc<OutboxRow>], _: Duration) -> SinkFuture {
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.0)
            .unwrap();
        for row in rows {
            let key = String::from_utf8(row.event.key.clone().unwrap().to_vec()).unwrap();
            // In one piece: a call on another thread may end the process in the middle.
            let line = format!("{} {key} {}\n", row.row, row.event.id);
            file.write_all(line.as_bytes()).unwrap();
        }
        let results = rows.iter().map(|_| Ok(())).collect();
        Box::pin(std::future::ready(results))
    }

    async fn probe(&self) -> Result<(), SinkError> {
        Ok(())
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// The child: a relay that runs until nothing is left to send, or until it dies.
fn relay(argument: &str) {
    let (database, lines) = argument.split_once(' ').unwrap();
    runtime().block_on(async {
        let store: Arc<dyn OutboxStore> = if database.starts_with("postgres://") {
            Arc::new(
                Postgres::connect(semel_postgres::Config::new(database))
                    .await
                    .unwrap(),
            )
        } else if database.starts_with("mysql://") {
            Arc::new(Mysql::connect(semel_mysql::Config::new(database)).await.unwrap())
        } else {
            Arc::new(Sqlite::open(semel_sqlite::Config::new(database)).await.unwrap())
        };
        let mut config = config();
        config.lease = Duration::from_millis(1_100);
        config.policy.page_rows = 8;
        config.policy.save_every_ms = 0;
        let relay = start(store.clone(), Arc::new(Lines(lines.into())), config);
        until("nothing is left", async || {
            let backlog = store.backlog().await.unwrap();
            let shard = backlog.shards.first();
            shard.is_some_and(|shard| shard.rows == 0 && shard.exceptions == 0)
        })
        .await;
        relay.stop().await.unwrap();
    });
}

/// Sets the newest events aside, parked under one key each, and asks for them again.
async fn set_aside_and_ask(store: &dyn OutboxStore) {
    let nonce = semel_core::Nonce::random();
    let wish = Acquire {
        stream: "default".to_owned(),
        max: 1,
        owner: "parent".to_owned(),
        nonce,
        relay: nonce,
        lease_ms: 60_000,
    };
    let mut owned = Vec::new();
    until("the last relay's lease has ended", async || {
        owned = store.acquire(&wish).await.unwrap();
        !owned.is_empty()
    })
    .await;
    let OwnedShard {
        lease,
        cursor,
        parked,
        ..
    } = owned.remove(0);
    let Guarded::Done(Opening::Opened(cursor, _)) =
        store.open_batch(&lease, &cursor, false, PAGE).await.unwrap()
    else {
        panic!("nothing was written")
    };
    let size = PageSize {
        rows: 1_000,
        bytes: 1 << 20,
    };
    let Guarded::Done(page) = store
        .read_page(&lease, &cursor, cursor.last_id, size)
        .await
        .unwrap()
    else {
        panic!("no page")
    };
    // Of a key that is parked already, by the run before, more go behind.
    let mut first: BTreeSet<Option<bytes::Bytes>> = parked.into_iter().map(Some).collect();
    let mut exceptions = Vec::new();
    for row in page.rows {
        let is_first = first.insert(row.row.event.key.clone());
        exceptions.push(Exception {
            row: row.row.row,
            event_id: row.row.event.id,
            kind: if is_first {
                ExceptionKind::Parked
            } else {
                ExceptionKind::Behind
            },
            attempts: 1,
            reason: "no".to_owned(),
        });
    }
    let save = CursorSave {
        from: cursor,
        last_id: exceptions.last().unwrap().row,
        finished: true,
        suspect: None,
        exceptions,
        log: None,
    };
    assert!(matches!(
        store.save_cursor(&lease, &save).await.unwrap(),
        Guarded::Done(_)
    ));
    let desk = store.desk().unwrap();
    for it in save
        .exceptions
        .iter()
        .filter(|it| it.kind == ExceptionKind::Parked)
    {
        let request = DeskRequest {
            row: it.row,
            change: DeskChange::Ask(Wish::Retry),
            by: "parent".to_owned(),
            why: "a test".to_owned(),
        };
        desk.change(&request).await.unwrap().unwrap();
    }
    store.release(&[lease]).await.unwrap();
}

fn dies_at_every_point(
    test: &str,
    database: &str,
    dir: &Path,
    set_aside: &dyn Fn(),
    write: &dyn Fn(&[Event]),
) {
    let mut wanted = BTreeSet::new();
    let lines = dir.join("lines");
    let run = || Run::test(test, "relay", format!("{database} {}", lines.display()));
    for point in [
        "relay.batch_opened",
        "relay.sent",
        "relay.sent:5",
        "relay.before_cursor",
        "relay.cursor_saved",
        "relay.cursor_saved:2",
        "relay.batch_finished",
        "redrive.before_settle",
        "redrive.settled",
    ] {
        let again = point.contains("settle");
        if again {
            // What the last one left is sent first: whoever opens a batch says that the one before is settled.
            let end = run().run();
            assert!(end.succeeded(), "{end:?}");
        }
        let events: Vec<_> = (0..EVENTS).map(|n| event(&format!("k{}", n % 5), "x")).collect();
        write(&events);
        wanted.extend(events.iter().map(|event| event.id.to_string()));
        if again {
            set_aside();
        }
        let end = run().at(point).run();
        assert!(end.crashed(), "{point}: {end:?}");
    }
    let end = run().run();
    assert!(end.succeeded(), "{end:?}");
    check_lines(&lines, &wanted);
}

/// Everything has arrived, and each key's events, first arrivals only, in order.
fn check_lines(lines: &Path, wanted: &BTreeSet<String>) {
    let mut seen = BTreeSet::new();
    let mut last: BTreeMap<String, i64> = BTreeMap::new();
    let text = std::fs::read_to_string(lines).unwrap();
    for line in text.lines() {
        let [row, key, id] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        if seen.insert(id.to_owned()) {
            let row = row.parse().unwrap();
            let before = last.insert(key.to_owned(), row);
            assert!(
                before.is_none_or(|before| before < row),
                "{key}: {row} after {before:?}"
            );
        }
    }
    assert_eq!(seen, *wanted);
}

/// Two share; one stands still past its lease, and the other has everything. When it goes on it finds out, and joins anew.
#[test]
fn a_relay_that_stands_still_past_its_lease_is_not_counted_and_joins_again() {
    const TEST: &str = "crash::a_relay_that_stands_still_past_its_lease_is_not_counted_and_joins_again";
    let share = |db: Postgres, lines: PathBuf| {
        let mut config = config();
        config.shards = 4;
        start(Arc::new(db), Arc::new(Lines(lines)), config)
    };
    let open = async |url: &str| Postgres::connect(semel_postgres::Config::new(url)).await.unwrap();
    if let Some(argument) = role("sharing") {
        let (url, lines) = argument.split_once(' ').unwrap();
        let ended = runtime().block_on(async { share(open(url).await, lines.into()).end().await });
        return ended.unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let lines = dir.path().join("lines");
    let url = servers::postgres().fresh_database();
    runtime().block_on(async {
        let db = open(&url).await;
        db.migrate().await.unwrap();
        let mut wanted = BTreeSet::new();
        let mut write = async || {
            let events: Vec<_> = (0..EVENTS).map(|n| event(&format!("k{}", n % 9), "x")).collect();
            crate::postgres::write(&db, &events).await;
            wanted.extend(events.iter().map(|event| event.id.to_string()));
        };
        let here = share(open(&url).await, lines.clone());
        let held = || here.handle.stats().shards.len();
        until("one owns all", async || held() == 4).await;
        let argument = format!("{url} {}", lines.display());
        let mut there = Run::test(TEST, "sharing", argument).start();
        // Not in the middle of a transaction that takes one: nobody else could take that row while it is open.
        until("they share", async || {
            let roster = db.roster("default").await.unwrap();
            held() == 2 && roster.shards.iter().all(|(_, holding)| *holding != Holding::Free)
        })
        .await;
        write().await;
        there.process.pause();
        write().await;
        until("the one that goes on has all", async || held() == 4).await;
        write().await;
        there.process.resume();
        until("they share again", async || held() == 2).await;
        write().await;
        until("all have arrived", async || {
            let backlog = db.backlog().await.unwrap();
            backlog.shards.iter().all(|shard| shard.rows == 0)
        })
        .await;
        there.process.kill();
        here.stop().await.unwrap();
        check_lines(&lines, &wanted);
    });
}

#[test]
fn a_relay_on_sqlite_dies_at_every_point_and_nothing_is_lost() {
    if let Some(argument) = role("relay") {
        return relay(&argument);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("test.db");
    let runtime = runtime();
    let db = runtime
        .block_on(Sqlite::open(semel_sqlite::Config::new(&path)))
        .unwrap();
    runtime.block_on(db.migrate()).unwrap();
    dies_at_every_point(
        "crash::a_relay_on_sqlite_dies_at_every_point_and_nothing_is_lost",
        path.to_str().unwrap(),
        dir.path(),
        &|| runtime.block_on(set_aside_and_ask(&db)),
        &|events| {
            runtime.block_on(crate::bed::write(&db, events));
        },
    );
}

#[test]
fn a_relay_on_postgres_dies_at_every_point_and_nothing_is_lost() {
    if let Some(argument) = role("relay") {
        return relay(&argument);
    }
    let dir = tempfile::tempdir().unwrap();
    let url = servers::postgres().fresh_database();
    let runtime = runtime();
    let db = runtime
        .block_on(Postgres::connect(semel_postgres::Config::new(&url)))
        .unwrap();
    runtime.block_on(db.migrate()).unwrap();
    dies_at_every_point(
        "crash::a_relay_on_postgres_dies_at_every_point_and_nothing_is_lost",
        &url,
        dir.path(),
        &|| runtime.block_on(set_aside_and_ask(&db)),
        &|events| {
            runtime.block_on(crate::postgres::write(&db, events));
        },
    );
}

#[test]
fn a_relay_on_mariadb_dies_at_every_point_and_nothing_is_lost() {
    if let Some(argument) = role("relay") {
        return relay(&argument);
    }
    let dir = tempfile::tempdir().unwrap();
    let url = servers::mariadb().fresh_database();
    let runtime = runtime();
    let db = runtime
        .block_on(Mysql::connect(semel_mysql::Config::new(&url)))
        .unwrap();
    runtime.block_on(db.migrate()).unwrap();
    dies_at_every_point(
        "crash::a_relay_on_mariadb_dies_at_every_point_and_nothing_is_lost",
        &url,
        dir.path(),
        &|| runtime.block_on(set_aside_and_ask(&db)),
        &|events| {
            runtime.block_on(crate::mysql::write(&db, events));
        },
    );
}
