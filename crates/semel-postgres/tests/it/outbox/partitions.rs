//! An outbox in partitions: what is dropped, what delays it, and what never waits for it.

use std::time::Duration;

use semel_core::store::{EVENT_REPEATED, Guarded, OutboxStore as _, Rotation};
use semel_core::{ErrorKind, Event, StoreError};
use semel_postgres::{Config, Postgres, tx};
use semel_testkit::crash::{self, Run};
use semel_testkit::servers::{pgbouncer, postgres};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::standing::{end, prepare};
use super::{batch, event, own, write};
use crate::keys::until_someone_waits;

const HOUR: Duration = Duration::from_secs(3_600);
/// Everything settled is old enough.
const AT_ONCE: i64 = -1;

/// A database of its own.
async fn plain() -> (String, Postgres) {
    let url = postgres().fresh_database();
    let db = open(&url).await;
    db.migrate().await.unwrap();
    (url, db)
}

/// One whose outbox is in partitions.
async fn parted() -> (String, Postgres) {
    let (url, db) = plain().await;
    assert_eq!(db.partition_outbox(HOUR).await.unwrap(), 0);
    (url, db)
}

/// A cleaner that remembers nothing, as one that has just started; patient, so that a busy machine changes nothing.
async fn open(url: &str) -> Postgres {
    let mut config = Config::new(url);
    config.partition_lock_wait = Duration::from_secs(20);
    Postgres::connect(config).await.unwrap()
}

/// An event whose id is of an hour that has a partition with an end behind us.
fn old(n: u64, text: &str) -> Event {
    let mut event = event("k", text);
    event.id = Uuid::parse_str(&format!("01941f29-7c00-7000-8000-{n:012x}")).unwrap();
    event
}

async fn names(db: &Postgres) -> Vec<String> {
    let found = db.partitions().await.unwrap().unwrap();
    found.parts.into_iter().map(|part| part.name).collect()
}

/// In which partitions the rows are, in their order.
async fn places(db: &Postgres) -> Vec<String> {
    let sql = "SELECT replace(tableoid::regclass::text, 'semel.', '') FROM semel.outbox ORDER BY id";
    sqlx::query_scalar(sql).fetch_all(db.pool()).await.unwrap()
}

async fn rotate(url: &str) -> Rotation {
    open(url).await.rotate("default", AT_ONCE).await.unwrap()
}

const BEFORE: &str = "outbox_before";

#[tokio::test]
async fn a_partition_goes_when_every_cursor_has_passed_it() {
    let (url, db) = parted().await;
    let mut owned = own(&db).await;
    write(&db, &[old(1, "a"), old(2, "b")]).await;
    let rotation = rotate(&url).await;
    assert_eq!(rotation.dropped, [""; 0]);
    assert!(
        rotation.waits[0]
            .detail
            .contains("events of stream default in it are not sent"),
        "{rotation:?}"
    );
    assert_eq!(batch(&db, &mut owned).await, ["a", "b"]);
    assert_eq!(rotate(&url).await.dropped, [BEFORE]);
    assert!(places(&db).await.is_empty());
    // Ids of that time are still taken, in the partition of all others.
    write(&db, &[old(1, "again")]).await;
    assert_eq!(places(&db).await, ["outbox_other"]);
    assert_eq!(batch(&db, &mut owned).await, ["again"]);
    assert_eq!(db.clean("default", AT_ONCE, 10).await.unwrap(), 1);
}

/// Rule O4: the cleaner has seen that all is sent, and waits for its lock behind a writer; that writer commits.
#[tokio::test(flavor = "multi_thread")]
async fn the_row_of_a_writer_that_was_open_when_the_drop_began_is_sent() {
    let (url, db) = parted().await;
    let mut owned = own(&db).await;
    write(&db, &[old(1, "settled")]).await;
    assert_eq!(batch(&db, &mut owned).await, ["settled"]);

    let mut open_writer = db.begin().await.unwrap();
    tx::enqueue(&mut open_writer, &old(2, "late")).await.unwrap();
    let dropping = tokio::spawn(async move { rotate(&url).await });
    until_someone_waits(&db, 1).await;
    db.commit(open_writer).await.unwrap();

    assert_eq!(dropping.await.unwrap().dropped, [""; 0]);
    assert_eq!(batch(&db, &mut owned).await, ["late"]);
}

/// A transaction that is held delays the drop, is named with its age, and nobody waits for it or for the drop.
#[tokio::test]
async fn a_held_transaction_delays_the_drop_and_not_the_relay() {
    let (url, db) = parted().await;
    let mut owned = own(&db).await;
    write(&db, &[old(1, "settled")]).await;
    assert_eq!(batch(&db, &mut owned).await, ["settled"]);
    let mut held = db.begin().await.unwrap();
    tx::enqueue(&mut held, &old(2, "held")).await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut *held)
        .await
        .unwrap();
    // Until it is a second old it is waited for, for so long.
    let mut quick = Config::new(&url);
    quick.partition_lock_wait = Duration::from_millis(20);
    let wait = loop {
        let cleaner = Postgres::connect(quick.clone()).await.unwrap();
        let rotation = cleaner.rotate("default", AT_ONCE).await.unwrap();
        assert_eq!(rotation.dropped, [""; 0]);
        write(&db, &[event("k", "passes")]).await;
        assert_eq!(batch(&db, &mut owned).await, ["passes"]);
        if let Some(wait) = rotation.waits.into_iter().find(|wait| wait.age_ms.is_some()) {
            break wait;
        }
    };
    assert_eq!(wait.who, format!("pid {pid}"));
    assert!(
        wait.age_ms >= Some(1_000) && wait.detail.contains(BEFORE),
        "{wait:?}"
    );
    let shown = db.partitions().await.unwrap().unwrap().waits;
    assert!(
        shown.iter().any(|wait| wait.who == format!("pid {pid}")),
        "{shown:?}"
    );

    db.commit(held).await.unwrap();
    assert_eq!(batch(&db, &mut owned).await, ["held"]);
    assert_eq!(rotate(&url).await.dropped, [BEFORE]);
}

/// A prepared transaction has no process: its name is what it is ended by.
#[tokio::test]
async fn a_prepared_transaction_that_delays_the_drop_is_named() {
    let (_url, db) = parted().await;
    let mut owned = own(&db).await;
    write(&db, &[old(1, "settled")]).await;
    assert_eq!(batch(&db, &mut owned).await, ["settled"]);
    let name = prepare(&db, &["held"]).await;
    let shown = db.partitions().await.unwrap().unwrap().waits;
    assert!(shown.iter().any(|wait| wait.who == name), "{shown:?}");
    end(&db, "ROLLBACK", &name).await;
}

/// Where only the drop itself has to wait, its rows are gone all the same, and the next cleaner ends it.
#[tokio::test]
async fn a_partition_that_cannot_be_dropped_is_empty_meanwhile() {
    let (url, db) = parted().await;
    let mut owned = own(&db).await;
    write(&db, &[old(1, "settled")]).await;
    assert_eq!(batch(&db, &mut owned).await, ["settled"]);
    let mut reader = db.begin().await.unwrap();
    sqlx::query("LOCK TABLE ONLY semel.outbox IN ACCESS SHARE MODE")
        .execute(&mut *reader)
        .await
        .unwrap();
    let mut quick = Config::new(&url);
    quick.partition_lock_wait = Duration::from_millis(1);
    let cleaner = Postgres::connect(quick).await.unwrap();
    assert_eq!(cleaner.rotate("default", AT_ONCE).await.unwrap().dropped, [""; 0]);
    assert!(places(&db).await.is_empty());
    assert!(names(&db).await.contains(&BEFORE.to_owned()));
    // What comes into it now is as safe as before.
    write(&db, &[old(2, "new")]).await;
    assert_eq!(rotate(&url).await.dropped, [""; 0]);
    assert_eq!(batch(&db, &mut owned).await, ["new"]);
    reader.rollback().await.unwrap();
    assert_eq!(rotate(&url).await.dropped, [BEFORE]);
}

#[tokio::test]
async fn a_crash_between_emptying_and_dropping_loses_nothing_and_the_next_cleaner_goes_on() {
    if let Some(url) = crash::role("cleaner") {
        rotate(&url).await;
        return;
    }
    let (url, db) = parted().await;
    let mut owned = own(&db).await;
    write(&db, &[old(1, "settled"), event("k", "kept")]).await;
    assert_eq!(batch(&db, &mut owned).await, ["settled", "kept"]);
    let name = "outbox::partitions::a_crash_between_emptying_and_dropping_loses_nothing_and_the_next_cleaner_goes_on";
    let end = Run::test(name, "cleaner", &url)
        .at("outbox.partition_emptied")
        .run();
    assert!(end.crashed(), "{end:?}");
    assert_eq!(places(&db).await.len(), 1, "the row of a time that is not over");
    assert_eq!(rotate(&url).await.dropped, [BEFORE]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_cleaners_at_once_do_it_once() {
    let (url, db) = parted().await;
    let mut owned = own(&db).await;
    write(&db, &[old(1, "a"), event("k", "b")]).await;
    batch(&db, &mut owned).await;
    sqlx::raw_sql(
        "DELETE FROM semel.outbox_partitioning; INSERT INTO semel.outbox_partitioning VALUES (true, 7200000)",
    )
    .execute(db.pool())
    .await
    .unwrap();
    let all: Vec<_> = (0..4)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move { rotate(&url).await })
        })
        .collect();
    let (mut dropped, mut made) = (0, 0);
    for one in all {
        let rotation = one.await.unwrap();
        dropped += rotation.dropped.len();
        made += rotation.made;
    }
    assert!(dropped <= 1, "by one of them");
    assert!(
        made >= 1,
        "the width is another one, so there is less ahead than there should be"
    );
    rotate(&url).await;
    let names = names(&db).await;
    assert!(!names.contains(&BEFORE.to_owned()), "{names:?}");
    assert_eq!(places(&db).await.len(), 1);
}

/// A partition is dropped when no stream wants a row of it; the one that keeps for long holds it, and the other's rows are
/// deleted from it when it should have been gone for a whole width.
#[tokio::test]
async fn the_stream_that_keeps_longest_holds_the_partition() {
    let (url, db) = parted().await;
    let mut owned = own(&db).await;
    db.register_stream("long", 1).await.unwrap();
    let mut long = old(2, "long");
    long.stream = "long".to_owned();
    write(&db, &[old(1, "short"), long.clone()]).await;
    assert_eq!(batch(&db, &mut owned).await, ["short"]);
    let waits = rotate(&url).await.waits;
    assert!(waits[0].detail.contains("stream long"), "{waits:?}");

    sqlx::raw_sql(
        "UPDATE semel.outbox_shard SET prev = pg_current_snapshot()::text::pg_snapshot WHERE stream = 'long'",
    )
    .execute(db.pool())
    .await
    .unwrap();
    let waits = rotate(&url).await.waits;
    assert!(
        waits[0]
            .detail
            .contains("how long events of stream long are kept"),
        "{waits:?}"
    );
    let cleaner = open(&url).await;
    let kept = cleaner.rotate("long", 86_400_000).await.unwrap();
    assert_eq!(
        (kept.dropped.len(), kept.waits.len()),
        (0, 0),
        "it is kept, and nothing is wrong"
    );
    // Written now, so not old enough to be deleted one by one; and nothing else is.
    assert_eq!(db.clean("default", 60_000, 10).await.unwrap(), 0);
    sqlx::raw_sql("UPDATE semel.outbox SET created_at = created_at - interval '2 hours'")
        .execute(db.pool())
        .await
        .unwrap();
    batch(&db, &mut owned).await;
    assert_eq!(places(&db).await, [BEFORE, BEFORE]);
    // The partition's hour ended less than a width ago.
    assert_eq!(db.clean("default", 3_600_000, 10).await.unwrap(), 0);
    sqlx::raw_sql("UPDATE semel.outbox_partitioning SET width_ms = 1")
        .execute(db.pool())
        .await
        .unwrap();
    let started: i64 = sqlx::query_scalar(
        "SELECT semel.now_ms() - past_ms FROM semel.outbox_partitions() WHERE name = 'outbox_before'",
    )
    .fetch_one(db.pool())
    .await
    .unwrap();
    assert_eq!(db.clean("default", started - 10, 10).await.unwrap(), 1);
    assert_eq!(places(&db).await, [BEFORE], "the other stream's");
    cleaner.rotate("long", AT_ONCE).await.unwrap();
    assert_eq!(rotate(&url).await.dropped, [BEFORE]);
}

#[tokio::test]
async fn an_id_that_is_kept_in_any_partition_is_refused_and_one_that_is_no_time_is_taken() {
    let (_url, db) = parted().await;
    let mut owned = own(&db).await;
    let random = {
        let mut event = event("k", "random");
        event.id = Uuid::parse_str("d2719bb0-9f4c-4c43-9d6e-0d5a7f3f9a11").unwrap();
        event
    };
    let future = {
        let mut event = event("k", "future");
        event.id = Uuid::parse_str("0301e847-ffff-7000-8000-000000000000").unwrap();
        event
    };
    let events = [old(1, "old"), event("k", "now"), random, future];
    write(&db, &events).await;
    let found = places(&db).await;
    assert_eq!(
        [&found[0], &found[2], &found[3]],
        [BEFORE, "outbox_other", "outbox_other"]
    );
    for event in &events {
        let mut tx = db.begin().await.unwrap();
        let refused: StoreError = tx::enqueue(&mut tx, event).await.unwrap_err();
        assert_eq!(refused.code(), EVENT_REPEATED, "{refused}");
        assert!(refused.to_string().contains(&event.id.to_string()), "{refused}");
        tx.rollback().await.unwrap();
        let mut tx = db.begin().await.unwrap();
        assert_eq!(
            tx::enqueue_new(&mut tx, std::slice::from_ref(event))
                .await
                .unwrap(),
            [None]
        );
        db.commit(tx).await.unwrap();
    }
    assert_eq!(batch(&db, &mut owned).await, ["old", "now", "random", "future"]);
    // Those of no partition's time are deleted one by one.
    assert_eq!(db.clean("default", 0, 10).await.unwrap(), 2);
}

/// Cleaners make what is ahead. Where nobody did for a while, events are written nevertheless, and sent.
#[tokio::test]
async fn partitions_are_made_ahead_and_nobody_needs_them() {
    let (url, db) = parted().await;
    let mut owned = own(&db).await;
    let found = db.partitions().await.unwrap().unwrap();
    assert!(found.ahead() >= 2, "{found:?}");
    assert_eq!(rotate(&url).await.made, 0);
    let drop: Vec<String> = sqlx::query_scalar("SELECT format('DROP TABLE semel.%I', name) FROM semel.outbox_partitions() WHERE first_ms IS NOT NULL")
        .fetch_all(db.pool())
        .await
        .unwrap();
    for sql in drop {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(db.pool())
            .await
            .unwrap();
    }
    write(&db, &[event("k", "on time")]).await;
    assert_eq!(places(&db).await, ["outbox_other"]);
    // One whose hour is ahead: what is there stays there, and so do all of its hour.
    let ahead: Uuid = sqlx::query_scalar(
        "SELECT rpad(lpad(to_hex((semel.now_ms() / 3600000 + 1) * 3600000), 12, '0'), 32, '0')::uuid",
    )
    .fetch_one(db.pool())
    .await
    .unwrap();
    let mut early = event("k", "early");
    early.id = ahead;
    write(&db, &[early]).await;
    assert!(rotate(&url).await.made >= 1);
    assert_eq!(places(&db).await, ["outbox_other", "outbox_other"]);
    assert_eq!(batch(&db, &mut owned).await, ["on time", "early"]);
    let other = db.partitions().await.unwrap().unwrap().other_bytes();
    assert!(other > 0);
}

/// Making one waits for nobody who writes: only for whoever has a row of no partition's time open, and not for long.
#[tokio::test]
async fn making_partitions_ahead_waits_for_no_writer() {
    let (url, db) = parted().await;
    let mut writer = db.begin().await.unwrap();
    tx::enqueue(&mut writer, &event("k", "a")).await.unwrap();
    sqlx::raw_sql("UPDATE semel.outbox_partitioning SET width_ms = 86400000")
        .execute(db.pool())
        .await
        .unwrap();
    assert!(rotate(&url).await.made >= 1);
    db.commit(writer).await.unwrap();
}

/// Rule O9: on another cluster it cannot be told what is sent; and what is adopted is sent again, out of any partition.
#[tokio::test]
async fn on_another_cluster_nothing_is_dropped_and_all_that_is_kept_is_sent_again() {
    let (url, db) = parted().await;
    let mut owned = own(&db).await;
    write(&db, &[old(1, "a"), event("k", "b")]).await;
    assert_eq!(batch(&db, &mut owned).await, ["a", "b"]);
    sqlx::raw_sql("UPDATE semel.outbox_incarnation SET system_id = 1")
        .execute(db.pool())
        .await
        .unwrap();
    let rotation = rotate(&url).await;
    assert_eq!(rotation.dropped, [""; 0]);
    assert!(
        rotation.waits[0].detail.contains("semel outbox rescan"),
        "{rotation:?}"
    );
    sqlx::raw_sql("SELECT semel.adopt_outbox()")
        .execute(db.pool())
        .await
        .unwrap();
    assert_eq!(rotate(&url).await.dropped, [""; 0]);
    assert_eq!(db.load(&owned.lease).await.unwrap(), Guarded::Lost);
    let mut owned = own(&db).await;
    assert_eq!(batch(&db, &mut owned).await, ["a", "b"]);
    assert_eq!(rotate(&url).await.dropped, [BEFORE]);
}

/// A stream is sent again from the beginning between the look at a partition and its lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_rescan_while_the_drop_waits_keeps_the_rows() {
    let (url, db) = parted().await;
    let mut owned = own(&db).await;
    write(&db, &[old(1, "a")]).await;
    assert_eq!(batch(&db, &mut owned).await, ["a"]);
    let mut reader = db.begin().await.unwrap();
    sqlx::query("LOCK TABLE semel.outbox_before IN ACCESS SHARE MODE")
        .execute(&mut *reader)
        .await
        .unwrap();
    let dropping = tokio::spawn(async move { rotate(&url).await });
    until_someone_waits(&db, 1).await;
    sqlx::raw_sql("UPDATE semel.outbox_shard SET prev = '1:1:', version = version + 1, epoch = epoch + 1, until = '-infinity'")
        .execute(db.pool())
        .await
        .unwrap();
    reader.rollback().await.unwrap();
    assert_eq!(dropping.await.unwrap().dropped, [""; 0]);
    let mut owned = own(&db).await;
    assert_eq!(batch(&db, &mut owned).await, ["a"]);
}

/// The whole of it through PgBouncer in transaction mode.
#[tokio::test]
async fn behind_a_pooler_in_transaction_mode_partitions_come_and_go() {
    let (url, direct) = plain().await;
    let pooled = pgbouncer().url(&url);
    let db = Postgres::connect(Config::new(&pooled)).await.unwrap();
    db.partition_outbox(HOUR).await.unwrap();
    let mut owned = own(&db).await;
    write(&db, &[old(1, "a"), event("k", "b")]).await;
    assert_eq!(batch(&db, &mut owned).await, ["a", "b"]);
    sqlx::raw_sql("UPDATE semel.outbox_partitioning SET width_ms = 7200000")
        .execute(direct.pool())
        .await
        .unwrap();
    let rotation = db.rotate("default", AT_ONCE).await.unwrap();
    assert_eq!(
        (rotation.dropped, rotation.made >= 1),
        (vec![BEFORE.to_owned()], true)
    );
    assert_eq!(db.clean("default", AT_ONCE, 10).await.unwrap(), 1);
}

/// An outbox with events in it: whoever reads it goes on where it was, and nothing is sent twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_filled_outbox_is_converted_under_those_who_use_it() {
    let (_url, db) = plain().await;
    let mut owned = own(&db).await;
    sqlx::raw_sql(
        "CREATE TABLE seen (n bigint);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO seen VALUES (NEW.id); RETURN NULL; END';
         CREATE TRIGGER mine AFTER INSERT ON semel.outbox FOR EACH ROW EXECUTE FUNCTION note();
         CREATE INDEX by_topic ON semel.outbox (topic);
         GRANT SELECT (topic), INSERT ON semel.outbox TO PUBLIC",
    )
    .execute(db.pool())
    .await
    .unwrap();
    let rows = write(&db, &[event("k", "sent"), old(1, "sent, too")]).await;
    assert_eq!(batch(&db, &mut owned).await.len(), 2);
    let waiting = write(&db, &[old(2, "waits"), event("k", "waits, too")]).await;

    // A writer that comes while it is converted waits, and is in the new one.
    let mut converting = db.begin().await.unwrap();
    let copied: i64 = sqlx::query_scalar("SELECT semel.partition_outbox('30 minutes')")
        .fetch_one(&mut *converting)
        .await
        .unwrap();
    assert_eq!(copied, 4);
    let late = tokio::spawn({
        let db = db.clone();
        async move { write(&db, &[event("k", "late")]).await }
    });
    until_someone_waits(&db, 1).await;
    db.commit(converting).await.unwrap();
    let late = late.await.unwrap();
    assert!(
        late[0] > waiting[1],
        "numbers go on: {rows:?} {waiting:?} {late:?}"
    );

    assert_eq!(batch(&db, &mut owned).await, ["waits", "waits, too", "late"]);
    let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM seen")
        .fetch_one(db.pool())
        .await
        .unwrap();
    assert_eq!(seen, 5, "the trigger runs once for each event");
    let found = places(&db).await;
    assert_eq!((found[1].as_str(), found[2].as_str()), (BEFORE, BEFORE));
    let acl: String = sqlx::query_scalar(
        "SELECT c.relacl::text || a.attacl::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
         WHERE c.oid = 'semel.outbox'::regclass AND a.attname = 'topic'",
    )
    .fetch_one(db.pool())
    .await
    .unwrap();
    assert!(acl.contains("=a/") && acl.contains("=r/"), "{acl}");
    let index: bool = sqlx::query_scalar("SELECT to_regclass('semel.by_topic') IS NOT NULL")
        .fetch_one(db.pool())
        .await
        .unwrap();
    assert!(index);
    // Once more changes the width alone.
    assert_eq!(db.partition_outbox(HOUR).await.unwrap(), 0);
    assert_eq!(db.partitions().await.unwrap().unwrap().width_ms, 3_600_000);
}

#[tokio::test]
async fn what_cannot_be_converted_is_left_as_it_is() {
    let (_url, db) = plain().await;
    write(&db, &[event("k", "a"), event("k", "b")]).await;
    let convert = async |sql: &'static str| {
        sqlx::raw_sql(sql)
            .execute(db.pool())
            .await
            .unwrap_err()
            .to_string()
    };
    let refused = convert("SELECT semel.partition_outbox(rows_max => 1)").await;
    assert!(refused.contains("holds more than 1 rows"), "{refused}");
    let refused = db.partition_outbox(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!((refused.code(), refused.kind()), ("SEM0280", ErrorKind::Invalid));
    assert!(
        refused.to_string().contains("from 1 minute to 32 days"),
        "{refused}"
    );
    for (with, without, says) in [
        (
            "CREATE UNIQUE INDEX u ON semel.outbox (topic, id)",
            "DROP INDEX semel.u",
            "a unique index of yours",
        ),
        (
            "CREATE PUBLICATION p FOR TABLE semel.outbox",
            "DROP PUBLICATION p",
            "is published",
        ),
        (
            "CREATE VIEW v AS SELECT id FROM semel.outbox",
            "DROP VIEW v",
            "depend",
        ),
    ] {
        sqlx::raw_sql(with).execute(db.pool()).await.unwrap();
        let refused = convert("SELECT semel.partition_outbox()").await;
        assert!(refused.contains(says), "{refused}");
        sqlx::raw_sql(without).execute(db.pool()).await.unwrap();
    }
    assert_eq!(db.partitions().await.unwrap(), None);
    assert_eq!(places(&db).await, ["outbox", "outbox"]);
    assert_eq!(db.partition_outbox(HOUR).await.unwrap(), 2);
}

/// An ordinary role that owns the schema is enough; one that does not own it is told.
#[tokio::test]
async fn an_ordinary_role_rotates_what_it_owns_and_others_are_told_who_may() {
    let admin_url = postgres().fresh_database();
    let admin = open(&admin_url).await;
    let name = |what: &str| {
        format!(
            "{what}_{}",
            Uuid::from_bytes(semel_core::host::random_16()).simple()
        )
    };
    let (owner, other) = (name("owner"), name("other"));
    let sql = format!(
        "CREATE ROLE {owner} LOGIN; CREATE ROLE {other} LOGIN;
         DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {owner}', current_database()); END $$"
    );
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(admin.pool())
        .await
        .unwrap();
    let url = |role: &str| admin_url.replace("postgres@", &format!("{role}@"));
    let db = open(&url(&owner)).await;
    db.migrate().await.unwrap();
    db.partition_outbox(HOUR).await.unwrap();
    let mut owned = own(&db).await;
    write(&db, &[old(1, "a")]).await;
    assert_eq!(batch(&db, &mut owned).await, ["a"]);
    let grants = format!(
        "GRANT USAGE, CREATE ON SCHEMA semel TO {other}; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA semel TO {other}"
    );
    sqlx::raw_sql(AssertSqlSafe(grants))
        .execute(admin.pool())
        .await
        .unwrap();
    let stranger = open(&url(&other)).await;
    let refused = stranger.rotate("default", AT_ONCE).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.kind()),
        ("SEM0281", ErrorKind::Invalid),
        "{refused}"
    );
    assert_eq!(places(&db).await, [BEFORE]);
    assert_eq!(rotate(&url(&owner)).await.dropped, [BEFORE]);
}
