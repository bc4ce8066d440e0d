//! The statements of coordinators go by an index, also those whose plan was made when the tables were empty, and leave
//! the indexes alone.

use semel_core::saga::Status;
use semel_core::store::{SagaRequest, SagaStore as _, Save, SaveReply, Submission};
use semel_postgres::{Config, Postgres};
use semel_testkit::laws::saga::{Held, LEASE_MS, first_save, id, last_save, moved, submission};
use sqlx::Connection as _;

use super::fresh;
use crate::keys::Lent;

/// One connection for everything, so that its plans are made when the tables are empty and kept; and a way to read what
/// the server has counted.
async fn one_connection() -> (Lent, Postgres) {
    let (lent, _) = fresh().await;
    let mut config = Config::new(&lent.url);
    (config.connections_max, config.key_connections_max) = (1, 1);
    (lent, Postgres::connect(config).await.unwrap())
}

/// Reads of whole tables of sagas; entries read from their indexes.
async fn counted(db: &Postgres, lent: &Lent) -> (i64, i64) {
    // What a connection has counted is added up when it has been idle for a second, or at its end.
    db.close().await;
    // One that is none of Semel's.
    let mut own = sqlx::PgConnection::connect(&lent.url).await.unwrap();
    let others = "SELECT count(*) FROM pg_stat_activity
      WHERE datname = current_database() AND application_name = 'semel'";
    while sqlx::query_scalar::<_, i64>(others)
        .fetch_one(&mut own)
        .await
        .unwrap()
        > 0
    {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    sqlx::query_as(
        "SELECT (SELECT sum(seq_scan) FROM pg_stat_user_tables
             WHERE schemaname = 'semel' AND relname IN ('saga', 'saga_log', 'saga_request'))::bigint,
           (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes
             WHERE schemaname = 'semel' AND relname IN ('saga', 'saga_log', 'saga_request'))::bigint",
    )
    .fetch_one(&mut own)
    .await
    .unwrap()
}

const MANY: &str = "INSERT INTO semel.saga (id, definition, fingerprint, input, status, state, version, epoch, due_at)
  SELECT 'many-' || n, '\\x00', '\\x00', '', 'waiting', repeat('x', 300), 1, 0, clock_timestamp() + interval '1 day'
  FROM generate_series(1, 30000) n";

async fn a_round(db: &Postgres, n: usize) {
    let world = super::world_over(db);
    let batch: Vec<Submission> = (0..5)
        .map(|m| submission(&id(&format!("order-{n}-{m}")), "{}"))
        .collect();
    db.submit_sagas(&batch).await.unwrap();
    db.submit_sagas(&batch).await.unwrap();
    let held = world.claim(100).await;
    assert_eq!(held.len(), 5);
    let rights: Vec<_> = held.iter().map(|held| held.owned.clone()).collect();
    db.renew_sagas(&rights, LEASE_MS).await.unwrap();
    let saves: Vec<Save> = held.iter().map(first_save).collect();
    assert_eq!(db.save_sagas(&saves).await.unwrap(), [SaveReply::Saved; 5]);
    assert_eq!(db.save_sagas(&saves).await.unwrap(), [SaveReply::WrongVersion; 5]);
    let retry = SagaRequest::Retry { by: "ann".into() };
    db.request_saga(&rights[0].id, &retry).await.unwrap();
    let ends = held.iter().enumerate().map(|(n, held)| Save {
        requests_done: if n == 0 { i64::MAX } else { 0 },
        ..last_save(held, if n == 0 { 3 } else { 2 })
    });
    let ends: Vec<Save> = ends.collect();
    assert_eq!(db.save_sagas(&ends).await.unwrap(), [SaveReply::Saved; 5]);
    db.release_sagas(&rights).await.unwrap();
    let ids: Vec<_> = rights.into_iter().map(|owned| owned.id).collect();
    db.load_sagas(&ids).await.unwrap();
    db.saga_log(&ids[0], 10).await.unwrap();
    db.list_sagas(None, Some(&ids[0]), 5).await.unwrap();
    db.list_sagas(Some(Status::Stuck), None, 5).await.unwrap();
    assert_eq!(db.prune_sagas(0, 3_600_000, 100).await.unwrap(), 5);
}

/// 30,000 sagas come after the plans were made; the server's statistics still say that there are none.
#[tokio::test]
async fn no_statement_of_sagas_reads_the_whole_table() {
    let (lent, db) = one_connection().await;
    sqlx::raw_sql("ANALYZE semel.saga; ANALYZE semel.saga_log; ANALYZE semel.saga_request")
        .execute(db.pool())
        .await
        .unwrap();
    // Often enough that the server settles on generic plans.
    for n in 0..12 {
        a_round(&db, n).await;
    }
    sqlx::raw_sql(MANY).execute(db.pool()).await.unwrap();
    let before = counted(&db, &lent).await;
    // The same again over new connections, whose plans are made of statistics of an empty table.
    let mut config = Config::new(&lent.url);
    (config.connections_max, config.key_connections_max) = (1, 1);
    let db = Postgres::connect(config).await.unwrap();
    for n in 12..24 {
        a_round(&db, n).await;
    }
    let after = counted(&db, &lent).await;
    assert_eq!(after.0 - before.0, 0, "reads of a whole table");
    let entries = after.1 - before.1;
    assert!(
        (12..12 * 1_000).contains(&entries),
        "{entries} entries of indexes read in 12 rounds"
    );
}

/// An owner's writes within its lease touch no index: new versions of a row stay on its page.
#[tokio::test]
async fn writes_within_a_lease_leave_the_indexes_alone() {
    let (lent, db) = one_connection().await;
    let world = super::world_over(&db);
    let batch: Vec<Submission> = (0..200)
        .map(|n| submission(&id(&format!("order-{n}")), "{}"))
        .collect();
    db.submit_sagas(&batch).await.unwrap();
    let held: Vec<Held> = world.claim(1_000).await;
    let updates = async || -> (i64, i64) {
        let db = Postgres::connect(Config::new(&lent.url)).await.unwrap();
        let sql = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
                   WHERE schemaname = 'semel' AND relname = 'saga'";
        sqlx::query_as(sql).fetch_one(db.pool()).await.unwrap()
    };
    let mut found = Vec::new();
    // The server gathers statistics now and then, and keeps old versions for as long as that lasts.
    for turn in 0..20 {
        let _ = counted(&db, &lent).await;
        let before = updates().await;
        let mut config = Config::new(&lent.url);
        (config.connections_max, config.key_connections_max) = (1, 1);
        let db = Postgres::connect(config).await.unwrap();
        for version in turn * 10 + 1..turn * 10 + 11 {
            // Running, not waiting: the status is in an index.
            let now = db.saga_time().await.unwrap();
            let saves: Vec<Save> = held
                .iter()
                .map(|held| Save {
                    due_at: Some(now),
                    ..moved(held, version, Status::Running)
                })
                .collect();
            assert_eq!(db.save_sagas(&saves).await.unwrap(), vec![SaveReply::Saved; 200]);
        }
        let _ = counted(&db, &lent).await;
        let after = updates().await;
        let (all, in_place) = (after.0 - before.0, after.1 - before.1);
        assert_eq!(all, 2_000);
        if in_place * 10 >= all * 8 {
            return;
        }
        found.push(in_place);
    }
    panic!("of 2000 stayed on their page: {found:?}");
}
