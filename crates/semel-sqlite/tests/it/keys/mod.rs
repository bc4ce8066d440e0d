//! Keys.

mod crash;
mod history;
mod laws;
mod once;
mod trouble;
mod turns;

use std::sync::Arc;

use semel_core::claim::{Claim, Nonce, OwnerLost};
use semel_core::host::random_16;
use semel_core::{Fingerprint, Key, Scope};
use semel_sqlite::{Config, Sqlite};
use semel_testkit::clock::ManualClock;
use semel_testkit::laws::keys::{LEASE_MS, World};
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

/// A request that nobody has made before.
pub(crate) fn request() -> Claim {
    Claim {
        key: Key::new(Scope::new("tests").unwrap(), random_16()).unwrap(),
        fingerprint: Fingerprint::of(b"what was asked"),
        nonce: Nonce::random(),
        owner_lost: OwnerLost::Hold,
        lease_ms: LEASE_MS,
    }
}

/// Such a request whose operation may be run again.
pub(crate) fn rerun_request() -> Claim {
    Claim {
        owner_lost: OwnerLost::Rerun,
        ..request()
    }
}
