//! What the operator's desk sees of the server itself.

use semel_core::ErrorKind;
use semel_core::store::{DeskEntry, Hold, OutboxDesk as _, OutboxStore as _, Standing};
use semel_mysql::{Config, Mysql, tx};
use semel_testkit::laws::outbox::event;
use semel_testkit::servers::mariadb;

use super::{lent, over};

async fn hold(db: &Mysql, kind: &str) -> Option<Hold> {
    let standing = db.standing().await.unwrap();
    standing.holds.into_iter().find(|hold| hold.kind == kind)
}

/// Looks until the standing has what is wanted. Younger transactions are not told, and the server renews its tables of
/// transactions only when nobody has read them for a tenth of a second: so it is left alone between two looks.
async fn until<T>(db: &Mysql, wanted: impl Fn(Standing) -> Option<T>) -> T {
    loop {
        if let Some(found) = wanted(db.standing().await.unwrap()) {
            return found;
        }
        tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    }
}

async fn connection(tx: &mut sqlx::Transaction<'static, sqlx::MySql>) -> i64 {
    sqlx::query_scalar("SELECT CAST(CONNECTION_ID() AS SIGNED)")
        .fetch_one(&mut **tx)
        .await
        .unwrap()
}

fn of(standing: Standing, who: &str) -> Option<Hold> {
    standing.holds.into_iter().find(|hold| hold.who == who)
}

/// A transaction that has written events and stays open is named by its connection; one that has written none is told apart.
#[tokio::test]
async fn an_open_writer_is_named_by_its_connection() {
    let (_lent, db) = lent().await;
    let world = over(&db);
    let mut reader = world.reader().await;
    world.write(&[event("k", "0")]).await;
    let mut open = db.begin().await.unwrap();
    let id = connection(&mut open).await;
    sqlx::query("INSERT INTO semel_commit (id) VALUES (x'0102')")
        .execute(&mut *open)
        .await
        .unwrap();
    let who = format!("connection {id}");
    let silent = until(&db, |standing| of(standing, &who)).await;
    assert_eq!(silent.kind, "held_snapshot", "{silent:?}");

    tx::enqueue(&mut open, &event("k", "open")).await.unwrap();
    world.write(&[event("other", "1")]).await;
    assert_eq!(reader.batch().await.len(), 2, "nothing waits for it");
    let named = until(&db, |standing| {
        of(standing, &who).filter(|hold| hold.kind == "open_transaction")
    })
    .await;
    assert!(
        named.age_ms >= Some(1_000) && named.age_ms < Some(600_000),
        "{named:?}"
    );
    assert!(
        named.detail.contains("1 events are written and not committed")
            && named.detail.contains("idle in its transaction, root@"),
        "{named:?}"
    );
    assert!(named.advice.contains(&format!("KILL {id}")), "{named:?}");
    open.rollback().await.unwrap();
}

/// Who may not see others' transactions is told so, and yet that events wait for a commit.
#[tokio::test]
async fn without_the_right_to_see_transactions_that_is_said() {
    let (_lent, db) = lent().await;
    let url = db.pool().connect_options().get_database().unwrap().to_owned();
    let server = mariadb();
    server.run_sql(&format!(
        "CREATE OR REPLACE USER 'desk'@'127.0.0.1'; GRANT SELECT ON {url}.* TO 'desk'@'127.0.0.1'"
    ));
    let restricted = format!("mysql://desk@127.0.0.1:{}/{url}", server.port());
    let restricted = Mysql::connect(Config::new(restricted)).await.unwrap();
    let world = over(&db);
    world.reader().await;
    let mut open = db.begin().await.unwrap();
    tx::enqueue(&mut open, &event("k", "open")).await.unwrap();
    let standing = restricted.standing().await.unwrap();
    assert!(standing.hidden[0].contains("GRANT PROCESS"), "{standing:?}");
    let told = of(standing, "somebody").unwrap();
    assert!(told.detail.starts_with("1 events"), "{told:?}");
    open.rollback().await.unwrap();
    let standing = restricted.standing().await.unwrap();
    assert_eq!(standing.holds, [], "{standing:?}");
}

/// A relay that waits for a lock names who holds it.
#[tokio::test]
async fn a_relay_that_waits_for_a_lock_names_who_holds_it() {
    let (_lent, db) = lent().await;
    let world = over(&db);
    let reader = world.reader().await;
    let mut open = db.begin().await.unwrap();
    let id = connection(&mut open).await;
    sqlx::query("SELECT shard FROM semel_outbox_shard FOR UPDATE")
        .fetch_all(&mut *open)
        .await
        .unwrap();
    let (relay, lease) = (db.clone(), reader.lease().clone());
    let waiting = tokio::spawn(async move { relay.note(&lease, Some("away: x")).await });
    let named = until(&db, |standing| {
        standing.holds.into_iter().find(|hold| hold.kind == "relay_waits")
    })
    .await;
    assert!(named.advice.contains(&format!("KILL {id}")), "{named:?}");
    assert!(named.detail.contains("semel_outbox_shard"), "{named:?}");
    open.rollback().await.unwrap();
    waiting.await.unwrap().unwrap();
}

/// A prepared transaction of two phases is named as it is to be committed or rolled back.
#[tokio::test]
async fn a_prepared_transaction_is_named() {
    let (_lent, db) = lent().await;
    let mut connection = db.pool().acquire().await.unwrap();
    let run = async |connection: &mut sqlx::MySqlConnection, sql: &'static str| {
        sqlx::raw_sql(sql).execute(connection).await.unwrap();
    };
    run(&mut connection, "XA START 'two','phases'").await;
    run(
        &mut connection,
        "INSERT INTO semel_outbox (topic, type) VALUES ('t', 'e')",
    )
    .await;
    run(&mut connection, "XA END 'two','phases'").await;
    run(&mut connection, "XA PREPARE 'two','phases'").await;
    let named = hold(&db, "prepared_transaction").await.unwrap();
    assert!(
        named.who.contains("two") && named.advice.contains("XA COMMIT"),
        "{named:?}"
    );
    run(&mut connection, "XA ROLLBACK 'two','phases'").await;
    assert_eq!(hold(&db, "prepared_transaction").await, None);
}

/// A table that was emptied is named, and only a rescan of all streams makes it the home of the cursors (rule O9).
#[tokio::test]
async fn an_emptied_table_is_named_and_a_rescan_of_all_streams_adopts_it() {
    let (_lent, db) = lent().await;
    let world = over(&db);
    let mut reader = world.reader().await;
    let rows = world.write(&[event("k", "1"), event("k", "2")]).await;
    assert!(reader.open().await);
    reader.save(rows[1], true).await;
    assert_eq!(hold(&db, "identity_changed").await, None);
    let sql = "TRUNCATE TABLE semel_outbox";
    sqlx::raw_sql(sql).execute(db.pool()).await.unwrap();
    world.write(&[event("k", "3")]).await;
    let named = hold(&db, "identity_changed")
        .await
        .expect("its first row is gone");
    assert!(named.advice.contains("semel outbox rescan"), "{named:?}");
    let refused = db.rescan(Some("default"), "ann", "x", false).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::IdentityChanged);
    db.rescan(None, "ann", "a restore", true).await.unwrap();
    assert!(
        hold(&db, "identity_changed").await.is_some(),
        "a dry run changes nothing"
    );
    let done = db.rescan(None, "ann", "a restore", false).await.unwrap();
    assert_eq!((done.rows, done.shards), (1, 1));
    assert_eq!(hold(&db, "identity_changed").await, None);
    assert_eq!(db.renew(&[reader.lease().clone()], 1_000).await.unwrap(), [false]);
    let mut next = world.take_over().await.expect("the shard is free");
    assert_eq!(next.batch().await.len(), 1);
    let new = world.write(&[event("k", "4")]).await;
    assert!(new[0] > rows[1], "numbers are above all that a mark speaks of");
    let log = db.desk_log(0, 10).await.unwrap();
    let expected = DeskEntry {
        entry: log[0].entry,
        at: log[0].at,
        ..DeskEntry::about("*", "rescan", "ann", "a restore")
    };
    assert_eq!(log, [expected]);
}
