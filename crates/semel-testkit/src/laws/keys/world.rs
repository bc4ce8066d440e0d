//! What the laws run in.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, Keep, Lease, LeaseReply, Nonce, OwnerLost, Record,
    Release, SweepReport, succeeded,
};
use semel_core::host::random_16;
use semel_core::key::hex;
use semel_core::model::MemoryKeys;
use semel_core::{Fingerprint, Key, KeyStore, KeyStoreExt, Scope, StoredOutcome};

use crate::clock::ManualClock;

/// The lease of the laws' claims, in milliseconds.
pub const LEASE_MS: i64 = 30_000;
/// What the laws keep: outcomes for a minute, tombstones for one more.
pub const KEEP: Keep = Keep {
    retention_ms: 60_000,
    tombstone_ms: 60_000,
};

type Passing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A store under test, and time in it.
pub struct World {
    /// The store.
    pub store: Arc<dyn KeyStore>,
    pass: Box<dyn Fn(i64) -> Passing + Send + Sync>,
}

impl World {
    /// A store, and what makes so many milliseconds pass in it: a clock is moved, or rows are aged.
    pub fn new<F: Future<Output = ()> + Send + 'static>(
        store: Arc<dyn KeyStore>,
        pass: impl Fn(i64) -> F + Send + Sync + 'static,
    ) -> Self {
        Self {
            store,
            pass: Box::new(move |ms| Box::pin(pass(ms))),
        }
    }

    /// The in-memory model.
    #[must_use]
    pub fn memory() -> Self {
        let clock = Arc::new(ManualClock::default());
        Self::new(Arc::new(MemoryKeys::new(clock.clone())), move |ms| {
            clock.advance_ms(ms);
            std::future::ready(())
        })
    }

    /// Lets time pass.
    pub async fn pass_ms(&self, ms: i64) {
        (self.pass)(ms).await;
    }

    /// Lets a lease of [`LEASE_MS`] end.
    pub async fn lease_ends(&self) {
        self.pass_ms(LEASE_MS).await;
    }

    /// A request that nobody has made before.
    #[must_use]
    pub fn request(&self) -> Claim {
        let key = Key::new(Scope::new("laws").unwrap(), hex(&random_16())).unwrap();
        Claim {
            key,
            fingerprint: Fingerprint::of(b"what was asked"),
            nonce: Nonce::random(),
            owner_lost: OwnerLost::Hold,
            lease_ms: LEASE_MS,
        }
    }

    /// Such a request whose operation may be run again.
    #[must_use]
    pub fn rerun_request(&self) -> Claim {
        Claim {
            owner_lost: OwnerLost::Rerun,
            ..self.request()
        }
    }

    /// Claims.
    pub async fn claim(&self, claim: &Claim) -> ClaimReply {
        self.store.claim(claim).await.unwrap()
    }

    /// Claims what must be granted.
    pub async fn granted(&self, claim: &Claim) -> Lease {
        match self.claim(claim).await {
            ClaimReply::Granted { lease, .. } => {
                assert_eq!(lease.nonce, claim.nonce, "a lease carries the claim's nonce");
                lease
            }
            other => panic!("not granted: {other:?}"),
        }
    }

    /// Completes with a success.
    pub async fn complete(&self, claim: &Claim, lease: Lease, output: &'static str) -> LeaseReply {
        self.complete_with(claim, lease, succeeded(output)).await
    }

    /// Completes with this outcome.
    pub async fn complete_with(&self, claim: &Claim, lease: Lease, outcome: StoredOutcome) -> LeaseReply {
        let done = Completion {
            key: claim.key.clone(),
            lease,
            outcome,
            keep: KEEP,
        };
        self.store.complete(&done).await.unwrap()
    }

    /// Extends by [`LEASE_MS`] from now.
    pub async fn extend(&self, claim: &Claim, lease: Lease) -> LeaseReply {
        self.extend_by(claim, lease, LEASE_MS).await
    }

    /// Extends by so much from now.
    pub async fn extend_by(&self, claim: &Claim, lease: Lease, lease_ms: i64) -> LeaseReply {
        let wish = Extension {
            key: claim.key.clone(),
            lease,
            lease_ms,
        };
        self.store.extend(&wish).await.unwrap()
    }

    /// Gives a claim back whose reply came.
    pub async fn release(&self, claim: &Claim, lease: Lease) -> LeaseReply {
        let release = Release {
            key: claim.key.clone(),
            nonce: lease.nonce,
            token: Some(lease.token),
        };
        self.store.release(&release).await.unwrap()
    }

    /// Withdraws a claim whose reply did not come.
    pub async fn withdraw(&self, claim: &Claim) -> LeaseReply {
        let release = Release {
            key: claim.key.clone(),
            nonce: claim.nonce,
            token: None,
        };
        self.store.release(&release).await.unwrap()
    }

    /// Gives a run up of which nobody knows what came.
    pub async fn abandon(&self, claim: &Claim, lease: Lease) -> LeaseReply {
        let abandonment = Abandonment {
            key: claim.key.clone(),
            lease,
        };
        self.store.abandon(&abandonment).await.unwrap()
    }

    /// Reads the key's record.
    pub async fn read(&self, claim: &Claim) -> Option<Record> {
        self.store.read(&claim.key).await.unwrap()
    }

    /// Sweeps everything that is due.
    pub async fn sweep(&self) -> SweepReport {
        self.store.sweep(1_000).await.unwrap()
    }

    /// The outcome that a duplicate of this claim gets, if it gets one.
    pub async fn outcome(&self, claim: &Claim) -> Option<StoredOutcome> {
        match self.claim(&duplicate(claim)).await {
            ClaimReply::Done { outcome, .. } => Some(outcome),
            _ => None,
        }
    }
}

/// The same request, made again by somebody else.
#[must_use]
pub fn duplicate(claim: &Claim) -> Claim {
    Claim {
        nonce: Nonce::random(),
        ..claim.clone()
    }
}

/// Another request under the same key.
#[must_use]
pub fn other_request(claim: &Claim) -> Claim {
    Claim {
        fingerprint: Fingerprint::of(b"something else"),
        ..duplicate(claim)
    }
}

/// Whether a reply says yes.
#[must_use]
pub const fn is_ok(reply: LeaseReply) -> bool {
    matches!(reply, LeaseReply::Ok(_))
}
