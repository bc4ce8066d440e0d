//! A call on its way, and the answer on its way back.

use semel_core::batch::Weight;
use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, LeaseReply, Record, Release, Settlement, Verdict,
};
use semel_core::store::MixedBatch;
use semel_core::{Key, StoreError};
use tokio::sync::oneshot;

/// Bytes that a call takes beside its key and outcome, roughly.
const CALL_BYTES: usize = 200;

/// An answer.
pub(super) type Answer<R> = Result<R, StoreError>;

/// Where an answer goes. The caller may have left.
pub(super) type Back<R> = oneshot::Sender<Answer<R>>;

/// A call of one item.
pub(super) enum Ticket {
    Claim(Claim, Back<ClaimReply>),
    Complete(Completion, Back<LeaseReply>),
    Extend(Extension, Back<LeaseReply>),
    Release(Release, Back<LeaseReply>),
    Abandon(Abandonment, Back<LeaseReply>),
    Settle(Settlement, Back<LeaseReply>),
}

/// A call that changes nothing.
pub(super) enum Look {
    Read(Key, Back<Option<Record>>),
    Claim(Claim, Back<Option<ClaimReply>>),
}

fn key_bytes(key: &Key) -> usize {
    CALL_BYTES + key.scope().as_bytes().len() + key.id().len()
}

impl Ticket {
    pub(super) const fn key(&self) -> &Key {
        match self {
            Self::Claim(it, _) => &it.key,
            Self::Complete(it, _) => &it.key,
            Self::Extend(it, _) => &it.key,
            Self::Release(it, _) => &it.key,
            Self::Abandon(it, _) => &it.key,
            Self::Settle(it, _) => &it.key,
        }
    }

    pub(super) const fn operation(&self) -> &'static str {
        match self {
            Self::Claim(..) => "claim",
            Self::Complete(..) => "complete",
            Self::Extend(..) => "extend",
            Self::Release(..) => "release",
            Self::Abandon(..) => "abandon",
            Self::Settle(..) => "settle",
        }
    }

    pub(super) fn weight(&self) -> Weight {
        let outcome = match self {
            Self::Complete(it, _) => it.outcome.bytes().len(),
            Self::Settle(it, _) => match &it.verdict {
                Verdict::Happened(outcome) => outcome.bytes().len(),
                Verdict::DidNotHappen | Verdict::Closed => 0,
            },
            Self::Claim(..) | Self::Extend(..) | Self::Release(..) | Self::Abandon(..) => 0,
        };
        Weight {
            bytes: key_bytes(self.key()) + outcome,
            ends: !matches!(self, Self::Claim(..)),
        }
    }
}

impl Look {
    pub(super) const fn key(&self) -> &Key {
        match self {
            Self::Read(key, _) => key,
            Self::Claim(claim, _) => &claim.key,
        }
    }

    pub(super) const fn operation(&self) -> &'static str {
        match self {
            Self::Read(..) => "read",
            Self::Claim(..) => "claim",
        }
    }

    pub(super) fn weight(&self) -> Weight {
        Weight {
            bytes: key_bytes(self.key()),
            ends: false,
        }
    }
}

/// The items of a batch by kind, and where their answers go.
pub(super) struct Sorted {
    pub(super) batch: MixedBatch,
    pub(super) claims: Vec<Back<ClaimReply>>,
    pub(super) completions: Vec<Back<LeaseReply>>,
    pub(super) extensions: Vec<Back<LeaseReply>>,
    pub(super) releases: Vec<Back<LeaseReply>>,
    pub(super) abandonments: Vec<Back<LeaseReply>>,
    pub(super) settlements: Vec<Back<LeaseReply>>,
}

impl Sorted {
    /// Claims and extensions whose callers have left are dropped: they were never sent. An owner that gave its run up
    /// must not get its lease back by an extension that still waited.
    pub(super) fn new(tickets: Vec<Ticket>) -> Self {
        let mut sorted = Self {
            batch: MixedBatch::default(),
            claims: Vec::new(),
            completions: Vec::new(),
            extensions: Vec::new(),
            releases: Vec::new(),
            abandonments: Vec::new(),
            settlements: Vec::new(),
        };
        let batch = &mut sorted.batch;
        for ticket in tickets {
            match ticket {
                Ticket::Claim(_, ref back) if back.is_closed() => {}
                Ticket::Extend(_, ref back) if back.is_closed() => {}
                Ticket::Claim(item, back) => {
                    batch.claims.push(item);
                    sorted.claims.push(back);
                }
                Ticket::Complete(item, back) => {
                    batch.completions.push(item);
                    sorted.completions.push(back);
                }
                Ticket::Extend(item, back) => {
                    batch.extensions.push(item);
                    sorted.extensions.push(back);
                }
                Ticket::Release(item, back) => {
                    batch.releases.push(item);
                    sorted.releases.push(back);
                }
                Ticket::Abandon(item, back) => {
                    batch.abandonments.push(item);
                    sorted.abandonments.push(back);
                }
                Ticket::Settle(item, back) => {
                    batch.settlements.push(item);
                    sorted.settlements.push(back);
                }
            }
        }
        sorted
    }
}
