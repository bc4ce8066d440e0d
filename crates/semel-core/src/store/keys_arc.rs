//! A shared key store is a key store.

use std::sync::Arc;

use async_trait::async_trait;

use super::{
    Batching, Capabilities, Hint, KeyPage, KeyQuery, KeyStore, MixedBatch, MixedReplies, Replies, Usage,
};
use crate::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, LeaseReply, Record, Release, Settlement,
    SweepReport,
};
use crate::error::StoreError;
use crate::key::{Key, Scope};

#[async_trait]
impl<S: KeyStore + ?Sized> KeyStore for Arc<S> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    async fn claim_many(&self, claims: &[Claim]) -> Replies<ClaimReply> {
        (**self).claim_many(claims).await
    }

    async fn complete_many(&self, completions: &[Completion]) -> Replies<LeaseReply> {
        (**self).complete_many(completions).await
    }

    async fn extend_many(&self, extensions: &[Extension]) -> Replies<LeaseReply> {
        (**self).extend_many(extensions).await
    }

    async fn release_many(&self, releases: &[Release]) -> Replies<LeaseReply> {
        (**self).release_many(releases).await
    }

    async fn abandon_many(&self, abandonments: &[Abandonment]) -> Replies<LeaseReply> {
        (**self).abandon_many(abandonments).await
    }

    async fn settle_many(&self, settlements: &[Settlement]) -> Replies<LeaseReply> {
        (**self).settle_many(settlements).await
    }

    async fn read_many(&self, keys: &[Key]) -> Replies<Option<Record>> {
        (**self).read_many(keys).await
    }

    async fn sweep(&self, limit: u32) -> Result<SweepReport, StoreError> {
        (**self).sweep(limit).await
    }

    async fn list(&self, query: &KeyQuery) -> Result<KeyPage, StoreError> {
        (**self).list(query).await
    }

    async fn usage(&self, scope: &Scope, records_max: u64) -> Result<Usage, StoreError> {
        (**self).usage(scope, records_max).await
    }

    async fn subscribe(&self, key: &Key) -> Option<Hint> {
        (**self).subscribe(key).await
    }

    fn batching(&self) -> Batching {
        (**self).batching()
    }

    async fn transact_many(&self, batch: &MixedBatch) -> MixedReplies {
        (**self).transact_many(batch).await
    }

    async fn look_many(&self, claims: &[Claim]) -> Replies<Option<ClaimReply>> {
        (**self).look_many(claims).await
    }
}
