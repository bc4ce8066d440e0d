//! No statement of keys reads the whole table, however large the batch.

use semel_core::claim::{Claim, ClaimReply, Completion, succeeded};
use semel_core::{KeyStore, KeyStoreExt};
use semel_mysql::{Config, Mysql};
use semel_testkit::laws::keys::{KEEP, duplicate};
use semel_testkit::servers::MariadbServer;

use super::request;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_of_keys_use_the_index() {
    // Of its own: the counter is the server's.
    let server = MariadbServer::start();
    let db = Mysql::connect(Config::new(server.fresh_database()))
        .await
        .unwrap();
    db.migrate().await.unwrap();
    for _ in 0..3 {
        let claims: Vec<Claim> = (0..1_000).map(|_| request()).collect();
        assert!(db.claim_many(&claims).await.iter().all(Result::is_ok));
    }
    let before = rows_read_in_sequence(&db).await;
    let mut asked = 0;
    for size in [1, 10, 256, 1_000] {
        let claims: Vec<Claim> = (0..size).map(|_| request()).collect();
        let mut done = Vec::new();
        for (claim, reply) in claims.iter().zip(db.claim_many(&claims).await) {
            let ClaimReply::Granted { lease, .. } = reply.unwrap() else {
                panic!("not granted")
            };
            done.push(Completion {
                key: claim.key.clone(),
                lease,
                outcome: succeeded("charged"),
                keep: KEEP,
            });
        }
        assert!(db.complete_many(&done).await.iter().all(Result::is_ok));
        let again: Vec<Claim> = claims.iter().map(duplicate).collect();
        assert!(db.claim_many(&again).await.iter().all(Result::is_ok));
        db.read(&claims[0].key).await.unwrap();
        db.sweep(10).await.unwrap();
        asked += 1;
    }
    let read = rows_read_in_sequence(&db).await - before;
    assert!(
        read < asked * 100,
        "{read} rows were read in sequence: a statement reads the table"
    );
}

/// Rows of Semel's own tables that a scan from one to the next has read.
async fn rows_read_in_sequence(db: &Mysql) -> i64 {
    let counter = "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status
        WHERE variable_name = 'HANDLER_READ_RND_NEXT'";
    sqlx::query_scalar(counter).fetch_one(db.pool()).await.unwrap()
}
