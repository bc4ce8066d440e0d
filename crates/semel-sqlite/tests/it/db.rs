//! The writing connection.

use semel_core::KeyStoreExt;
use semel_core::claim::ClaimReply;
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

/// Connections are opened when they are first needed: by then the process may work in another folder. The test runs itself
/// in a process of its own, for a working folder is the whole process's.
#[test]
fn a_relative_path_stays_the_same_file_when_the_process_goes_elsewhere() {
    const FOLDER: &str = "SEMEL_TEST_GOES_ELSEWHERE";
    let Some(folder) = std::env::var_os(FOLDER) else {
        let folder = tempfile::tempdir().unwrap();
        let done = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "db::a_relative_path_stays_the_same_file_when_the_process_goes_elsewhere",
            ])
            .env(FOLDER, folder.path())
            .current_dir(folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success() && said.contains("1 passed"), "{said}");
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let db = Sqlite::open(Config::new("a.db")).await.unwrap();
        db.migrate().await.unwrap();
        let elsewhere = std::path::Path::new(&folder).join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        std::env::set_current_dir(&elsewhere).unwrap();
        let claimed = db.claim(&crate::keys::request()).await;
        assert!(matches!(claimed, Ok(ClaimReply::Granted { .. })), "{claimed:?}");
        assert!(!elsewhere.join("a.db").exists());
    });
}

/// A task that holds a transaction and asks the same store for a key is told so, before the others that wait for their turn.
#[tokio::test]
async fn a_writer_that_waits_for_its_own_transaction_is_told_what_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let db = Sqlite::open(Config::new(folder.path().join("a.db")))
        .await
        .unwrap();
    db.migrate().await.unwrap();
    let tx = db.begin().await.unwrap();
    // From here on nothing but clocks is waited for, so time passes by itself.
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    let error = db.begin().await.unwrap_err();
    let waited = began.elapsed();
    assert!(error.to_string().contains("Sqlite::begin"), "{error}");
    let error = db.claim(&crate::keys::request()).await.unwrap_err();
    assert!(error.to_string().contains("Sqlite::begin"), "{error}");
    assert!(waited < std::time::Duration::from_secs(30), "{waited:?}");
    tokio::time::resume();
    tx.rollback().await.unwrap();
    db.begin().await.unwrap().rollback().await.unwrap();
}
