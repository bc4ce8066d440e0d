//! The hot statements go by an index, also those whose plan was made when the table was empty.

use semel_core::claim::{Claim, ClaimReply, Completion, Extension, Release, Settlement, Verdict, succeeded};
use semel_core::{KeyStore, KeyStoreExt};
use semel_postgres::Postgres;
use semel_postgres::tx::{Once, OnceOptions, once};
use semel_testkit::laws::keys::{KEEP, LEASE_MS, duplicate};

use super::{Lent, request};

/// Reads of the whole table, and reads by an index, so far.
async fn scans(db: &Postgres) -> (i64, i64) {
    let sql =
        "SELECT seq_scan, idx_scan FROM pg_stat_user_tables WHERE schemaname = 'semel' AND relname = 'key'";
    sqlx::query_as(sql).fetch_one(db.pool()).await.unwrap()
}

#[tokio::test]
async fn no_statement_of_keys_reads_the_whole_table() {
    const ROUNDS: i64 = 20;
    let (_lent, db) = Lent::take().await;
    let (whole, by_index) = scans(&db).await;
    // Often enough that the server settles on generic plans.
    for _ in 0..ROUNDS {
        let (kept, freed, run) = (request(), request(), request());
        let lease = async |claim: &Claim| match db.claim(claim).await.unwrap() {
            ClaimReply::Granted { lease, .. } => lease,
            other => panic!("{other:?}"),
        };
        let (held, given) = (lease(&kept).await, lease(&freed).await);
        let key = kept.key.clone();
        let wish = Extension {
            key: key.clone(),
            lease: held,
            lease_ms: LEASE_MS,
        };
        db.extend(&wish).await.unwrap();
        let done = Completion {
            key: key.clone(),
            lease: held,
            outcome: succeeded("done"),
            keep: KEEP,
        };
        db.complete(&done).await.unwrap();
        db.claim(&duplicate(&kept)).await.unwrap();
        let release = Release {
            key: freed.key.clone(),
            nonce: given.nonce,
            token: Some(given.token),
        };
        db.release(&release).await.unwrap();
        let settlement = Settlement {
            key,
            token: held.token,
            verdict: Verdict::DidNotHappen,
            keep: KEEP,
        };
        db.settle(&settlement).await.unwrap();
        db.read(&kept.key).await.unwrap();
        db.sweep(10).await.unwrap();
        let mut tx = db.begin().await.unwrap();
        let Once::First(pending) = once(&mut tx, &run.key, run.fingerprint, OnceOptions::default())
            .await
            .unwrap()
        else {
            panic!("not the first")
        };
        pending.complete(&mut tx, succeeded("done")).await.unwrap();
        db.commit(tx).await.unwrap();
    }
    // The server counts a little later.
    for _ in 0..2_000 {
        let now = scans(&db).await;
        if now.1 - by_index >= 10 * ROUNDS {
            // Making the indexes has read it, too; a statement that does would have done so in every round.
            assert!(
                now.0 - whole < ROUNDS,
                "{} reads of the whole table",
                now.0 - whole
            );
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("no index was used: {:?}", scans(&db).await);
}

/// The plan is made once, whether a scope is asked for or not.
#[tokio::test]
async fn a_page_of_a_scope_reads_that_scope_alone() {
    let (_lent, db) = Lent::take().await;
    for (sql, index) in [
        (include_str!("../../../src/sql/key_list.sql"), "key_pkey"),
        (include_str!("../../../src/sql/key_list_unknown.sql"), "key_open"),
    ] {
        let mut tx = db.begin().await.unwrap();
        // As the store's own sessions are.
        let prepare = format!(
            "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;
            SET LOCAL plan_cache_mode = force_generic_plan; PREPARE listed AS {sql}"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(prepare))
            .execute(&mut *tx)
            .await
            .unwrap();
        let plan: Vec<String> = sqlx::query_scalar("EXPLAIN EXECUTE listed('s', NULL, NULL, 'unknown', 10)")
            .fetch_all(&mut *tx)
            .await
            .unwrap();
        sqlx::raw_sql("DEALLOCATE listed")
            .execute(&mut *tx)
            .await
            .unwrap();
        tx.rollback().await.unwrap();
        let text = plan.join("\n");
        let scan = plan.iter().position(|line| line.contains(index));
        let bounds = &plan[scan.unwrap_or_else(|| panic!("{index} is not used:\n{text}")) + 1];
        assert!(
            bounds.contains("Index Cond") && bounds.contains("scope >= ") && bounds.contains("scope <= "),
            "{index} is read without bounds:\n{text}"
        );
    }
}
