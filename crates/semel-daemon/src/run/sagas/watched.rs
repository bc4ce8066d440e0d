//! A saga store that tells how it is: what the coordinator meets is what `/readyz` says.

use std::sync::Arc;

use async_trait::async_trait;
use semel_core::error::chain;
use semel_core::saga::{LogRow, SagaId, Status};
use semel_core::store::{
    ClaimDue, ClaimedSagas, Ownership, RenewReply, RequestReply, SagaLookup, SagaRequest, SagaStore,
    SagaSummary, Save, SaveReply, Submission, SubmitReply,
};
use semel_core::{ErrorKind, StoreError, Timestamp};

use crate::run::health::Part;

/// The coordinator's store.
pub(super) struct Watched {
    store: Arc<dyn SagaStore>,
    part: Part,
}

impl Watched {
    pub(super) const fn new(store: Arc<dyn SagaStore>, part: Part) -> Self {
        Self { store, part }
    }

    /// The coordinator tries again by itself, so a failure is a wait.
    fn failed(&self, error: &StoreError) {
        if error.kind() != ErrorKind::LimitExceeded {
            self.part.waiting(chain(error));
        }
    }

    fn noted<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &result {
            self.failed(error);
        }
        result
    }
}

#[async_trait]
impl SagaStore for Watched {
    async fn saga_time(&self) -> Result<Timestamp, StoreError> {
        self.noted(self.store.saga_time().await)
    }

    async fn submit_sagas(&self, submissions: &[Submission]) -> Result<Vec<SubmitReply>, StoreError> {
        self.noted(self.store.submit_sagas(submissions).await)
    }

    /// The one call that is made again and again, whatever happens: its success is progress.
    async fn claim_sagas(&self, claim: &ClaimDue) -> Result<ClaimedSagas, StoreError> {
        let result = self.noted(self.store.claim_sagas(claim).await);
        if result.is_ok() {
            self.part.ready();
        }
        result
    }

    async fn save_sagas(&self, saves: &[Save]) -> Result<Vec<SaveReply>, StoreError> {
        self.noted(self.store.save_sagas(saves).await)
    }

    async fn renew_sagas(&self, owned: &[Ownership], lease_ms: i64) -> Result<Vec<RenewReply>, StoreError> {
        self.noted(self.store.renew_sagas(owned, lease_ms).await)
    }

    async fn release_sagas(&self, owned: &[Ownership]) -> Result<(), StoreError> {
        self.store.release_sagas(owned).await
    }

    async fn load_sagas(&self, ids: &[SagaId]) -> Result<Vec<SagaLookup>, StoreError> {
        self.noted(self.store.load_sagas(ids).await)
    }

    async fn saga_definition(&self, hash: &[u8; 32]) -> Result<Option<String>, StoreError> {
        self.noted(self.store.saga_definition(hash).await)
    }

    async fn request_saga(&self, id: &SagaId, request: &SagaRequest) -> Result<RequestReply, StoreError> {
        self.store.request_saga(id, request).await
    }

    async fn list_sagas(
        &self,
        status: Option<Status>,
        after: Option<&SagaId>,
        limit: u32,
    ) -> Result<Vec<SagaSummary>, StoreError> {
        self.store.list_sagas(status, after, limit).await
    }

    async fn count_sagas(&self) -> Result<Vec<(Status, u64)>, StoreError> {
        self.store.count_sagas().await
    }

    async fn saga_log(&self, id: &SagaId, limit: u32) -> Result<Vec<LogRow>, StoreError> {
        self.store.saga_log(id, limit).await
    }

    async fn prune_sagas(&self, retention_ms: i64, tombstone_ms: i64, limit: u32) -> Result<u64, StoreError> {
        self.store.prune_sagas(retention_ms, tombstone_ms, limit).await
    }
}
