//! The relay over a log that holds the cursor itself: every event is in it once, whatever dies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use semel_core::limits::LimitExceeded;
use semel_core::model::{MemoryLog, MemoryLogSink};
use semel_core::relay::{LogCopy, LogPlace, ShardId};
use semel_core::store::{
    LogSink, OutboxRow, SinkError, SinkErrorClass, SinkFuture, SinkOrder, TransactionEnd, TransactionFuture,
};
use semel_core::{Event, OutboxStore, Sink};
use semel_postgres::Postgres;
use semel_sqlite::Sqlite;
use semel_testkit::crash::{Run, role};
use semel_testkit::servers;

use crate::bed::{config, event, sqlite, start, until, write};

const SHARD: &str = "default";

fn shard() -> ShardId {
    ShardId {
        stream: SHARD.to_owned(),
        index: 0,
    }
}

async fn nothing_left(store: &dyn OutboxStore) -> bool {
    let backlog = store.backlog().await.unwrap();
    backlog.shards.first().is_some_and(|shard| shard.rows == 0)
}

fn texts(log: &MemoryLog) -> Vec<String> {
    let text = |row: &Arc<OutboxRow>| String::from_utf8(row.event.data.clone().unwrap().to_vec()).unwrap();
    log.rows().iter().map(text).collect()
}

#[tokio::test]
async fn relays_take_turns_and_the_log_has_every_event_once() {
    let (db, _dir) = sqlite().await;
    let log = Arc::new(MemoryLog::default());
    let mut wanted = Vec::new();
    for round in 0..5 {
        let events: Vec<_> = (0..40).map(|n| event("k", &format!("{round}/{n}"))).collect();
        wanted.extend((0..40).map(|n| format!("{round}/{n}")));
        write(&db, &events).await;
        let relay = start(
            db.clone(),
            Arc::new(MemoryLogSink::new(Arc::clone(&log))),
            config(),
        );
        until("nothing is left", async || nothing_left(&*db).await).await;
        // The process dies, or is stopped: either way another goes on.
        if round % 2 == 0 {
            relay.abort().await;
        } else {
            relay.stop().await.unwrap();
        }
    }
    assert_eq!(texts(&log), wanted);
}

/// Rule O12: everything up to the mark is in the log, so the new shards are bound to it without a person.
#[tokio::test]
async fn the_number_of_shards_changes_and_the_log_has_every_event_once() {
    let (db, _dir) = sqlite().await;
    let log = Arc::new(MemoryLog::default());
    let mut wanted = BTreeSet::new();
    for (round, shards) in [1, 3, 2].into_iter().enumerate() {
        let events: Vec<_> = (0..40)
            .map(|n| event(&format!("k{}", n % 7), &format!("{round}/{n}")))
            .collect();
        wanted.extend((0..40).map(|n| format!("{round}/{n}")));
        write(&db, &events).await;
        let config = semel_outbox::RelayConfig { shards, ..config() };
        let relay = start(db.clone(), Arc::new(MemoryLogSink::new(Arc::clone(&log))), config);
        until("all is there, and so are the shards", async || {
            let backlog = db.backlog().await.unwrap();
            let owned = backlog.shards.iter().all(|shard| shard.owner.is_some());
            owned && backlog.shards.len() == usize::from(shards) && log.rows().len() == wanted.len()
        })
        .await;
        relay.stop().await.unwrap();
    }
    assert_eq!(texts(&log).into_iter().collect::<BTreeSet<_>>(), wanted);
}

/// Rule O20: the cursor topic was deleted. A person says which side is right, as the page of the error tells.
#[tokio::test]
async fn a_log_without_its_cursor_stops_the_relay_until_a_person_has_decided() {
    let (db, _dir) = sqlite().await;
    let log = Arc::new(MemoryLog::default());
    let sink = || Arc::new(MemoryLogSink::new(Arc::clone(&log)));
    write(&db, &[event("k", "1")]).await;
    let relay = start(db.clone(), sink(), config());
    until("nothing is left", async || nothing_left(&*db).await).await;
    relay.stop().await.unwrap();

    log.forget(&shard());
    write(&db, &[event("k", "2")]).await;
    let error = start(db.clone(), sink(), config()).end().await.unwrap_err();
    assert_eq!(error.code(), "SEM0204", "{error}");
    assert_eq!(texts(&log), ["1"], "nothing was sent");

    let mut tx = db.begin().await.unwrap();
    sqlx::query(
        "UPDATE semel_outbox_shard SET log = 'rebind', version = version + 1 WHERE stream = 'default'",
    )
    .execute(&mut *tx)
    .await
    .unwrap();
    db.commit(tx).await.unwrap();
    let relay = start(db.clone(), sink(), config());
    until("nothing is left", async || nothing_left(&*db).await).await;
    relay.stop().await.unwrap();
    assert_eq!(texts(&log), ["1", "2"]);
}

/// Rule O3: the database is a copy from before the last events, and has written as many since.
#[tokio::test]
async fn an_outbox_restored_from_a_copy_is_found_out_by_the_nonces_of_its_batches() {
    let (db, dir) = sqlite().await;
    let log = Arc::new(MemoryLog::default());
    let sink = || Arc::new(MemoryLogSink::new(Arc::clone(&log)));
    let publish = async |db: &Arc<Sqlite>, text: &str| {
        write(db, &[event("k", text)]).await;
        let relay = start(db.clone(), sink(), config());
        until("nothing is left", async || nothing_left(&**db).await).await;
        relay.stop().await
    };
    publish(&db, "1").await.unwrap();
    let copy = dir.path().join("copy.db");
    let mut vacuum = sqlx::SqlitePool::connect(&format!("sqlite://{}", dir.path().join("test.db").display()))
        .await
        .unwrap()
        .acquire()
        .await
        .unwrap();
    sqlx::query(sqlx::AssertSqlSafe(format!("VACUUM INTO '{}'", copy.display())))
        .execute(&mut *vacuum)
        .await
        .unwrap();
    publish(&db, "2").await.unwrap();

    let restored = Arc::new(Sqlite::open(semel_sqlite::Config::new(&copy)).await.unwrap());
    write(&restored, &[event("k", "another 2")]).await;
    let error = start(restored.clone(), sink(), config()).end().await.unwrap_err();
    assert_eq!(error.code(), "SEM0204", "{error}");
    assert_eq!(texts(&log), ["1", "2"], "the log says what it said");
}

/// A log that outlives the relay: each transaction is a line of a file.
struct LineLog(PathBuf);

#[async_trait]
impl Sink for LineLog {
    fn name(&self) -> &'static str {
        "line log"
    }

    fn order(&self) -> SinkOrder {
        SinkOrder::Transactional {
            rows_max: 3,
            ahead: 2,
            linger_ms: 1,
        }
    }

    fn check(&self, _: &Event) -> Result<(), LimitExceeded> {
        Ok(())
    }

    fn publish_many(&self, rows: &[Arc<OutboxRow>], _: Duration) -> SinkFuture {
        let error = SinkError::new(SinkErrorClass::Destination, "in transactions only");
        Box::pin(std::future::ready(
            rows.iter().map(|_| Err(error.clone())).collect(),
        ))
    }

    async fn probe(&self) -> Result<(), SinkError> {
        Ok(())
    }

    fn log(&self) -> Option<&dyn LogSink> {
        Some(self)
    }
}

#[async_trait]
impl LogSink for LineLog {
    async fn resume(&self, _: &ShardId) -> Result<Option<LogPlace>, SinkError> {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        let last = text
            .lines()
            .last()
            .map(|line| line.split('|').next().unwrap().to_owned());
        Ok(last.map(|place| match LogCopy::parse(&place) {
            Some(LogCopy::Bound(place)) => place,
            other => panic!("{other:?}"),
        }))
    }

    fn commit(
        &self,
        _: &ShardId,
        rows: &[Arc<OutboxRow>],
        place: LogPlace,
        _: Duration,
    ) -> TransactionFuture {
        let mut line = LogCopy::Bound(place).to_string();
        for row in rows {
            let key = String::from_utf8(row.event.key.clone().unwrap().to_vec()).unwrap();
            line.push_str(&format!("|{} {key} {}", row.row, row.event.id));
        }
        line.push('\n');
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.0)
            .unwrap();
        file.write_all(line.as_bytes()).unwrap();
        Box::pin(std::future::ready(TransactionEnd::Committed))
    }

    fn go_on(&self, _: &ShardId) {}

    fn close(&self, _: &ShardId) {}
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
        } else {
            Arc::new(Sqlite::open(semel_sqlite::Config::new(database)).await.unwrap())
        };
        let mut config = config();
        config.lease = Duration::from_millis(1_100);
        config.policy.page_rows = 8;
        config.policy.save_every_ms = 0;
        let relay = start(store.clone(), Arc::new(LineLog(lines.into())), config);
        until("nothing is left", async || nothing_left(&*store).await).await;
        relay.stop().await.unwrap();
    });
}

fn dies_at_every_point(test: &str, database: &str, dir: &Path, write: &dyn Fn(&[Event])) {
    let mut wanted = BTreeSet::new();
    let lines = dir.join("lines");
    let run = || Run::test(test, "relay", format!("{database} {}", lines.display()));
    for point in [
        "log.before_resume",
        "log.resumed",
        // The binding: said by the outbox, by the log, by the outbox again.
        "relay.cursor_saved",
        "log.answered",
        "relay.cursor_saved:2",
        "relay.batch_opened",
        "log.answered:2",
        "log.answered:5",
        "relay.before_cursor",
        "relay.cursor_saved:3",
        "relay.batch_finished",
    ] {
        let events: Vec<_> = (0..40).map(|n| event(&format!("k{}", n % 5), "x")).collect();
        write(&events);
        wanted.extend(events.iter().map(|event| event.id.to_string()));
        let end = run().at(point).run();
        assert!(end.crashed(), "{point}: {end:?}");
    }
    let end = run().run();
    assert!(end.succeeded(), "{end:?}");

    let mut seen = BTreeSet::new();
    let mut last: BTreeMap<String, i64> = BTreeMap::new();
    let text = std::fs::read_to_string(&lines).unwrap();
    for entry in text.lines().flat_map(|line| line.split('|').skip(1)) {
        let [row, key, id] = entry.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{entry}")
        };
        assert!(seen.insert(id.to_owned()), "twice: {entry}");
        let row = row.parse().unwrap();
        let before = last.insert(key.to_owned(), row);
        assert!(
            before.is_none_or(|before| before < row),
            "{key}: {row} after {before:?}"
        );
    }
    assert_eq!(seen, wanted);
}

#[test]
fn a_relay_on_sqlite_dies_at_every_point_and_the_log_has_every_event_once() {
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
        "log::a_relay_on_sqlite_dies_at_every_point_and_the_log_has_every_event_once",
        path.to_str().unwrap(),
        dir.path(),
        &|events| {
            runtime.block_on(write(&db, events));
        },
    );
}

#[test]
fn a_relay_on_postgres_dies_at_every_point_and_the_log_has_every_event_once() {
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
        "log::a_relay_on_postgres_dies_at_every_point_and_the_log_has_every_event_once",
        &url,
        dir.path(),
        &|events| {
            runtime.block_on(crate::postgres::write(&db, events));
        },
    );
}
