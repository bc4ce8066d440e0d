//! Keys.

mod laws;

use std::sync::Arc;

use semel_sqlite::{Config, Sqlite};
use semel_testkit::clock::ManualClock;
use semel_testkit::laws::keys::World;
use tempfile::TempDir;

/// A store in a file of its own, and the clock that it reads.
pub(crate) async fn store() -> (Sqlite, Arc<ManualClock>, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::default());
    let db = open(&dir, clock.clone()).await;
    db.migrate().await.unwrap();
    (db, clock, dir)
}

/// Opens the file in this folder.
pub(crate) async fn open(dir: &TempDir, clock: Arc<ManualClock>) -> Sqlite {
    let mut config = Config::new(dir.path().join("test.db"));
    config.clock = clock;
    Sqlite::open(config).await.unwrap()
}

/// The laws' world over a file.
pub(crate) async fn world() -> World {
    let (db, clock, dir) = store().await;
    let dir = Arc::new(dir);
    World::new(Arc::new(db), move |ms| {
        clock.advance_ms(ms);
        let _kept_while_the_world_is = Arc::clone(&dir);
        std::future::ready(())
    })
}
