//! Transitions of several kinds at once, and how a store likes to be asked.

use super::{KeyStore, Replies};
use crate::claim::{Abandonment, Claim, ClaimReply, Completion, Extension, LeaseReply, Release, Settlement};

/// Transitions that were asked for at the same time: none of them waits for another one's answer, so a store may apply
/// the kinds in any order. Items of one kind keep theirs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MixedBatch {
    /// Claims.
    pub claims: Vec<Claim>,
    /// Completions.
    pub completions: Vec<Completion>,
    /// Extensions.
    pub extensions: Vec<Extension>,
    /// Releases.
    pub releases: Vec<Release>,
    /// Abandonments.
    pub abandonments: Vec<Abandonment>,
    /// Settlements.
    pub settlements: Vec<Settlement>,
}

impl MixedBatch {
    /// Items of all kinds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.claims.len()
            + self.completions.len()
            + self.extensions.len()
            + self.releases.len()
            + self.abandonments.len()
            + self.settlements.len()
    }

    /// Whether nothing is asked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The batch kind by kind, one call after the other: what a store does that cannot put them into one commit.
    pub async fn one_kind_at_a_time<S: KeyStore + ?Sized>(&self, store: &S) -> MixedReplies {
        let mut replies = MixedReplies::default();
        // Ends of runs first: a claim of the same key may then get their outcome.
        if !self.completions.is_empty() {
            replies.completions = store.complete_many(&self.completions).await;
        }
        if !self.releases.is_empty() {
            replies.releases = store.release_many(&self.releases).await;
        }
        if !self.abandonments.is_empty() {
            replies.abandonments = store.abandon_many(&self.abandonments).await;
        }
        if !self.settlements.is_empty() {
            replies.settlements = store.settle_many(&self.settlements).await;
        }
        if !self.extensions.is_empty() {
            replies.extensions = store.extend_many(&self.extensions).await;
        }
        if !self.claims.is_empty() {
            replies.claims = store.claim_many(&self.claims).await;
        }
        replies
    }
}

/// The answers to a [`MixedBatch`], kind by kind, in the order asked.
#[derive(Debug, Default)]
pub struct MixedReplies {
    /// To the claims.
    pub claims: Replies<ClaimReply>,
    /// To the completions.
    pub completions: Replies<LeaseReply>,
    /// To the extensions.
    pub extensions: Replies<LeaseReply>,
    /// To the releases.
    pub releases: Replies<LeaseReply>,
    /// To the abandonments.
    pub abandonments: Replies<LeaseReply>,
    /// To the settlements.
    pub settlements: Replies<LeaseReply>,
}

/// How a store likes to be asked by a batcher. The default fits a server that many connections talk to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batching {
    /// Batches on their way at once: one per lane; a key always goes through the same lane. 1 to [`LANES_MAX`].
    pub lanes: usize,
    /// Items of a batch at which the store is quickest.
    pub items_max: usize,
    /// [`KeyStore::transact_many`] puts all kinds into one commit.
    pub mixes: bool,
    /// [`KeyStore::look_many`] answers replays without the means that writing takes: it is asked first.
    pub looks_first: bool,
}

/// Lanes at most.
pub const LANES_MAX: usize = 64;

impl Default for Batching {
    fn default() -> Self {
        Self {
            lanes: 2,
            items_max: 256,
            mixes: false,
            looks_first: false,
        }
    }
}
