//! Writers whose number was filled while their statement stood still.

use semel_core::{ErrorKind, OutboxStore, StoreError};
use semel_mysql::tx::{self, TxError, transact};
use semel_mysql::{Config, Mysql};
use semel_testkit::laws::outbox::event;
use semel_testkit::servers::MariadbServer;
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, Row as _};

use super::lent;

/// What docs/events.md says of passing over events that are there.
fn documented() -> String {
    let docs = include_str!("../../../../../docs/events.md");
    let at = docs.find("ON DUPLICATE KEY UPDATE event_id").unwrap();
    docs[at..].split(';').next().unwrap().to_owned()
}

/// Runs an INSERT … SELECT of two events that are there and a new one, whose SELECT stands still before the new one until
/// the numbers behind `last` are filled.
async fn filled_under(server: &MariadbServer, mode: &str, clause: &str) -> (Result<u64, sqlx::Error>, i64) {
    let url = server.fresh_database();
    let db = Mysql::connect(Config::new(&url)).await.unwrap();
    db.migrate().await.unwrap();
    let mut writer = MySqlConnection::connect(&url).await.unwrap();
    let mut holder = MySqlConnection::connect(&url).await.unwrap();
    let lock = format!("semel-test-{}", event("", "").id);
    let setup = "CREATE OR REPLACE TABLE placed (n INT PRIMARY KEY, event_id BINARY(16));
         INSERT INTO placed SELECT 1, UNHEX(REPEAT('01', 16)) UNION SELECT 2, UNHEX(REPEAT('02', 16))
           UNION SELECT 3, UNHEX(REPEAT('03', 16));
         INSERT INTO semel_outbox (event_id, topic, type) SELECT event_id, 't', 'e' FROM placed WHERE n < 3 ORDER BY n";
    sqlx::raw_sql(setup).execute(db.pool()).await.unwrap();
    let last: i64 = sqlx::query_scalar("SELECT MAX(id) FROM semel_outbox")
        .fetch_one(db.pool())
        .await
        .unwrap();
    sqlx::query("SELECT GET_LOCK(?, 0)")
        .bind(&lock)
        .fetch_one(&mut holder)
        .await
        .unwrap();
    let session = format!("SET SESSION sql_mode = '{mode}'");
    sqlx::raw_sql(AssertSqlSafe(session))
        .execute(&mut writer)
        .await
        .unwrap();
    let insert = format!(
        "INSERT INTO semel_outbox (event_id, topic, type)
         SELECT event_id, IF(n = 3, IF(GET_LOCK('{lock}', 60), 't', 't'), 't'), 'e' FROM placed ORDER BY n {clause}"
    );
    let writing = tokio::spawn(async move {
        let done = sqlx::raw_sql(AssertSqlSafe(insert)).execute(&mut writer).await;
        done.map(|done| done.rows_affected())
    });
    let waiting = "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock' AND info LIKE CONCAT('%', ?, '%')";
    while sqlx::query(waiting)
        .bind(&lock)
        .fetch_one(&mut holder)
        .await
        .unwrap()
        .get::<i64, _>(0)
        == 0
    {
        tokio::task::yield_now().await;
    }
    let filled = db.fill_holes(&[(last + 1, last + 8)]).await.unwrap();
    assert_eq!(filled, 8, "no row of the statement is there");
    holder.close().await.unwrap();
    let done = writing.await.unwrap();
    let there: i64 =
        sqlx::query_scalar("SELECT COUNT(*) FROM semel_outbox WHERE event_id = UNHEX(REPEAT('03', 16))")
            .fetch_one(db.pool())
            .await
            .unwrap();
    (done, there)
}

/// The statement that we recommend never loses an event in silence, in any SQL mode; the usual one does.
#[tokio::test]
async fn passing_over_events_that_are_there_loses_none_whose_number_was_filled() {
    // The default of MySQL 8, and what Galera needs. With 1, MariaDB's default, filling waits for the statement, and gives up.
    let server = MariadbServer::start_with(&["--innodb-autoinc-lock-mode=2"]);
    for mode in ["STRICT_ALL_TABLES", ""] {
        let (done, there) = filled_under(&server, mode, &documented()).await;
        let error = done.unwrap_err().to_string();
        assert!(error.contains("4025"), "{mode:?}: {error}");
        assert_eq!(there, 0);
    }
    // What the recommendation is for; where this is no longer so, it may go.
    let (done, there) = filled_under(
        &server,
        "STRICT_ALL_TABLES",
        "ON DUPLICATE KEY UPDATE id = semel_outbox.id",
    )
    .await;
    assert!(done.is_ok() && there == 0, "{done:?} {there}");
}

/// The same event is passed over, others are written.
#[tokio::test]
async fn the_recommended_statement_passes_over_the_same_event() {
    let (_lent, db) = lent().await;
    let insert = |id: u8| {
        format!(
            "INSERT INTO semel_outbox (event_id, topic, type) VALUES (UNHEX(REPEAT('{id:02x}', 16)), 't', 'e') {}",
            documented()
        )
    };
    for id in [1, 1, 2] {
        sqlx::raw_sql(AssertSqlSafe(insert(id)))
            .execute(db.pool())
            .await
            .unwrap();
    }
    let rows: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM semel_outbox WHERE stream <> ''")
        .fetch_one(db.pool())
        .await
        .unwrap();
    assert_eq!(rows, 2);
}

/// From Rust it is `NotApplied`, so that `transact` repeats it.
#[tokio::test]
async fn transact_repeats_a_writer_whose_number_was_filled() {
    let (_lent, db) = lent().await;
    let last: i64 = sqlx::query_scalar("SELECT MAX(id) FROM semel_outbox")
        .fetch_one(db.pool())
        .await
        .unwrap();
    assert_eq!(db.fill_holes(&[(last + 1, last + 1)]).await.unwrap(), 1);
    let mut seen = Vec::new();
    let (kinds, wanted) = (&mut seen, event("k", "1"));
    let mut first = true;
    transact(&db, |tx| {
        let draws = std::mem::take(&mut first).then_some(last + 1);
        let wanted = wanted.clone();
        let (told, kind) = tokio::sync::oneshot::channel();
        kinds.push(kind);
        Box::pin(async move {
            if let Some(id) = draws {
                // As if the statement had drawn it before it was filled.
                sqlx::query("SET insert_id = ?")
                    .bind(id)
                    .execute(&mut **tx)
                    .await?;
            }
            let done = tx::enqueue(tx, &wanted).await;
            let _ = told.send(done.as_ref().err().map(StoreError::kind));
            done.map_err(TxError::<()>::Store)
        })
    })
    .await
    .unwrap();
    let mut kinds = Vec::new();
    for kind in seen {
        kinds.push(kind.await.unwrap());
    }
    assert_eq!(kinds, [Some(ErrorKind::NotApplied), None]);
}

/// Every number that a step leaves out would be a hole to be filled: no relay starts there.
#[tokio::test]
async fn a_server_that_leaves_out_numbers_is_refused_to_relays() {
    let server = MariadbServer::start_with(&["--auto-increment-increment=2"]);
    let db = Mysql::connect(Config::new(server.fresh_database()))
        .await
        .unwrap();
    db.migrate().await.unwrap();
    let error = db.register_stream("default", 1).await.unwrap_err();
    assert_eq!(error.code(), "SEM0221", "{error}");
    server.run_sql("SET GLOBAL auto_increment_increment = 1");
    db.register_stream("default", 1).await.unwrap();
}
