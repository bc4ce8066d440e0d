//! The inbox on SQLite.

mod laws {
    use semel_sqlite::{Config, Sqlite};

    async fn fresh() -> (Sqlite, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let db = Sqlite::open(Config::new(dir.path().join("inbox.db")))
            .await
            .unwrap();
        db.migrate().await.unwrap();
        (db, dir)
    }

    semel_testkit::inbox_laws!(fresh());
}
