//! Stores and requests.

use std::sync::Arc;

use semel_core::claim::{Claim, Completion, Lease, Nonce, OwnerLost, succeeded};
use semel_core::host::random_16;
use semel_core::{Clock, Fingerprint, Key, Scope};
use semel_sqlite::{Config, Sqlite};
use semel_testkit::clock::ManualClock;
use semel_testkit::laws::keys::{KEEP, LEASE_MS};
use tempfile::TempDir;

/// A file in a folder of its own, and the clock that it reads.
pub(crate) async fn sqlite() -> (Sqlite, Arc<ManualClock>, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::default());
    let db = open(dir.path(), clock.clone()).await;
    (db, clock, dir)
}

/// Opens the file in this folder.
pub(crate) async fn open(folder: &std::path::Path, clock: Arc<dyn Clock>) -> Sqlite {
    let mut config = Config::new(folder.join("keys.db"));
    config.clock = clock;
    let db = Sqlite::open(config).await.unwrap();
    db.migrate().await.unwrap();
    db
}

/// A key that no other test uses.
pub(crate) fn key() -> Key {
    Key::new(Scope::new("tests").unwrap(), random_16()).unwrap()
}

/// A request that nobody has made before.
pub(crate) fn request() -> Claim {
    Claim {
        key: key(),
        fingerprint: Fingerprint::of(b"what was asked"),
        nonce: Nonce::random(),
        owner_lost: OwnerLost::Hold,
        lease_ms: LEASE_MS,
    }
}

/// A success.
pub(crate) fn completion(claim: &Claim, lease: Lease) -> Completion {
    Completion {
        key: claim.key.clone(),
        lease,
        outcome: succeeded("done"),
        keep: KEEP,
    }
}
