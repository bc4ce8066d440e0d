//! Stores and requests.

use std::sync::Arc;

use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, Lease, LeaseReply, Nonce, OwnerLost, Record,
    Release, Settlement, SweepReport, succeeded,
};
use semel_core::host::random_16;
use semel_core::store::{KeyPage, KeyQuery, Replies, Usage};
use semel_core::{Capabilities, Fingerprint, Key, KeyStore, Scope, StoreError};
use semel_sqlite::{Config, Sqlite};
use semel_testkit::clock::ManualClock;
use semel_testkit::laws::keys::{KEEP, LEASE_MS};
use tempfile::TempDir;

/// A file in a folder of its own, and the clock that it reads.
pub(crate) async fn sqlite() -> (Sqlite, Arc<ManualClock>, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::default());
    let mut config = Config::new(dir.path().join("keys.db"));
    config.clock = clock.clone();
    let db = Sqlite::open(config).await.unwrap();
    db.migrate().await.unwrap();
    (db, clock, dir)
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

/// A store that cannot say how much a scope holds; nothing else of it is called.
#[derive(Debug)]
pub(crate) struct Uncounted;

#[async_trait::async_trait]
impl KeyStore for Uncounted {
    fn capabilities(&self) -> Capabilities {
        let memory = semel_core::model::MemoryKeys::default().capabilities();
        Capabilities {
            name: "uncounted",
            counts_scopes: false,
            ..memory
        }
    }

    async fn claim_many(&self, _: &[Claim]) -> Replies<ClaimReply> {
        Vec::new()
    }

    async fn complete_many(&self, _: &[Completion]) -> Replies<LeaseReply> {
        Vec::new()
    }

    async fn extend_many(&self, _: &[Extension]) -> Replies<LeaseReply> {
        Vec::new()
    }

    async fn release_many(&self, _: &[Release]) -> Replies<LeaseReply> {
        Vec::new()
    }

    async fn abandon_many(&self, _: &[Abandonment]) -> Replies<LeaseReply> {
        Vec::new()
    }

    async fn settle_many(&self, _: &[Settlement]) -> Replies<LeaseReply> {
        Vec::new()
    }

    async fn read_many(&self, _: &[Key]) -> Replies<Option<Record>> {
        Vec::new()
    }

    async fn sweep(&self, _: u32) -> Result<SweepReport, StoreError> {
        Ok(SweepReport::default())
    }

    async fn list(&self, _: &KeyQuery) -> Result<KeyPage, StoreError> {
        Ok(KeyPage::default())
    }

    async fn usage(&self, _: &Scope, _: u64) -> Result<Usage, StoreError> {
        Ok(Usage::default())
    }
}
