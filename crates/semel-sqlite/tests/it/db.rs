//! The writing connection.

use semel_sqlite::{Config, Sqlite};

/// Seen on a full disk: SQLite rolled the transaction back by itself, and from then on every BEGIN failed until the
/// process was started again. `INSERT OR ROLLBACK` makes SQLite do the same.
#[tokio::test]
async fn a_transaction_that_sqlite_rolled_back_by_itself_does_not_block_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let db = Sqlite::open(Config::new(folder.path().join("a.db")))
        .await
        .unwrap();
    let mut tx = db.begin().await.unwrap();
    sqlx::query("CREATE TABLE t (n INTEGER PRIMARY KEY)")
        .execute(&mut *tx)
        .await
        .unwrap();
    sqlx::query("INSERT INTO t VALUES (1)")
        .execute(&mut *tx)
        .await
        .unwrap();
    db.commit(tx).await.unwrap();

    for _ in 0..3 {
        let mut tx = db.begin().await.unwrap();
        sqlx::query("INSERT OR ROLLBACK INTO t VALUES (1)")
            .execute(&mut *tx)
            .await
            .unwrap_err();
        drop(tx);
    }
    let mut tx = db.begin().await.unwrap();
    sqlx::query("INSERT INTO t VALUES (2)")
        .execute(&mut *tx)
        .await
        .unwrap();
    db.commit(tx).await.unwrap();
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM t")
        .fetch_one(db.readers())
        .await
        .unwrap();
    assert_eq!(rows, 2);
}
