//! The inbox on PostgreSQL.

use semel_core::store::InboxStore as _;
use semel_core::{ErrorKind, Scope};
use semel_postgres::{Config, Postgres, classify, tx};
use semel_testkit::servers::postgres;

async fn fresh() -> Postgres {
    let db = Postgres::connect(Config::new(postgres().fresh_database()))
        .await
        .unwrap();
    db.migrate().await.unwrap();
    db
}

mod laws {
    semel_testkit::inbox_laws!(async { (super::fresh().await, ()) });
}

async fn count(db: &Postgres, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(db.pool()).await.unwrap()
}

/// Rule O8: the server answers COMMIT of a failed transaction with ROLLBACK.
#[tokio::test]
async fn a_swallowed_error_is_not_taken_for_a_commit() {
    let db = fresh().await;
    let mut tx = db.begin_inbox().await.unwrap();
    let scope = Scope::new("s").unwrap();
    db.mark_many(&mut tx, &scope, &["a".into()], 1_000).await.unwrap();
    let _ = sqlx::query("SELECT 1/0").execute(tx.conn()).await.unwrap_err();
    let error = db.commit_inbox(tx).await.unwrap_err();
    assert_ne!(error.kind(), ErrorKind::ReplyLost, "{error}");
    assert_eq!(count(&db, "SELECT count(*) FROM semel.inbox").await, 0);
}

/// Rule O8: a handler runs its own COMMIT, and more statements after it.
#[tokio::test]
async fn a_handler_that_ends_the_transaction_itself_is_told() {
    let db = fresh().await;
    for script in ["COMMIT", "COMMIT; BEGIN", "ROLLBACK; BEGIN; CREATE TABLE t ()"] {
        let mut tx = db.begin_inbox().await.unwrap();
        sqlx::raw_sql(script).execute(tx.conn()).await.unwrap();
        let error = db.commit_inbox(tx).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{script}: {error}");
    }
}

/// Rule I2: a deferred constraint is found out at the message that breaks it, and constraints keep their modes.
#[tokio::test]
async fn a_deferred_constraint_blames_its_message() {
    let db = fresh().await;
    sqlx::raw_sql(
        "CREATE TABLE owner (id int PRIMARY KEY);
         CREATE TABLE pet (owner int REFERENCES owner DEFERRABLE INITIALLY DEFERRED);
         CREATE TABLE toy (n int UNIQUE DEFERRABLE INITIALLY IMMEDIATE)",
    )
    .execute(db.pool())
    .await
    .unwrap();
    let mut tx = db.begin_inbox().await.unwrap();
    sqlx::raw_sql("INSERT INTO toy VALUES (1)")
        .execute(tx.conn())
        .await
        .unwrap();

    db.savepoint(&mut tx).await.unwrap();
    sqlx::raw_sql("INSERT INTO pet VALUES (7); INSERT INTO owner VALUES (7)")
        .execute(tx.conn())
        .await
        .unwrap();
    db.release(&mut tx).await.unwrap();

    db.savepoint(&mut tx).await.unwrap();
    sqlx::raw_sql("INSERT INTO pet VALUES (8)")
        .execute(tx.conn())
        .await
        .unwrap();
    let error = db.release(&mut tx).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Constraint);
    db.rollback_to(&mut tx).await.unwrap();

    // Still immediate: the duplicate is refused by its own statement.
    db.savepoint(&mut tx).await.unwrap();
    let error = sqlx::raw_sql("INSERT INTO toy VALUES (1)")
        .execute(tx.conn())
        .await
        .unwrap_err();
    assert_eq!(classify("toy", error).kind(), ErrorKind::Constraint);
    db.rollback_to(&mut tx).await.unwrap();
    // Still deferred: pets may come before their owners.
    sqlx::raw_sql("INSERT INTO pet VALUES (9); INSERT INTO owner VALUES (9)")
        .execute(tx.conn())
        .await
        .unwrap();
    db.commit_inbox(tx).await.unwrap();
    assert_eq!(count(&db, "SELECT sum(owner) FROM pet").await, 16);
}

/// A concurrent duplicate waits for the first one's end, and takes the message over when that is a rollback.
#[tokio::test]
async fn a_duplicate_waits_for_the_transaction_that_marks_first() {
    let db = fresh().await;
    let scope = Scope::new("s").unwrap();
    let ids = ["a".into()];
    for (commit, expected) in [
        (false, semel_core::inbox::Mark::New),
        (true, semel_core::inbox::Mark::Duplicate),
    ] {
        let scope = Scope::of_parts(&[scope.as_bytes(), &[u8::from(commit)]]);
        let mut first = db.begin_inbox().await.unwrap();
        db.mark_many(&mut first, &scope, &ids, 1_000).await.unwrap();
        let second = async {
            let mut tx = db.begin().await.unwrap();
            let day = std::time::Duration::from_secs(86_400);
            let marks = tx::mark_many(&mut tx, &scope, &ids, day).await.unwrap();
            db.commit(tx).await.unwrap();
            marks
        };
        let end_first = async {
            // The second one must be waiting before the first ends.
            let waiting = "SELECT count(*) FROM pg_stat_activity
                           WHERE datname = current_database() AND wait_event_type = 'Lock'";
            while count(&db, waiting).await == 0 {
                tokio::task::yield_now().await;
            }
            if commit {
                db.commit_inbox(first).await.unwrap();
            } else {
                db.rollback_inbox(first).await.unwrap();
            }
        };
        let (marks, ()) = tokio::join!(second, end_first);
        assert_eq!(marks, [expected]);
    }
}
