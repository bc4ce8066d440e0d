//! Store calls that run beside the loop, and what becomes of their answers.

use std::time::Duration;

use semel_core::StoreError;
use semel_core::saga::{CheckedDefinition, SagaId};
use semel_core::store::{ClaimedSagas, Ownership, RenewReply, SagaLookup, SaveReply, SubmitReply};

use super::Engine;
use super::submits::Waiting;

/// Definitions that were read along with claimed sagas.
pub(super) type Definitions = Vec<([u8; 32], Result<CheckedDefinition, String>)>;

pub(super) enum JobEnd {
    Claimed {
        asked: Duration,
        result: Result<(ClaimedSagas, Definitions), StoreError>,
        nonce: semel_core::Nonce,
    },
    Saved {
        saves: Vec<(Ownership, i64)>,
        result: Result<Vec<SaveReply>, StoreError>,
    },
    Renewed {
        asked: Duration,
        owned: Vec<Ownership>,
        result: Result<Vec<RenewReply>, StoreError>,
    },
    Loaded {
        id: SagaId,
        result: Result<Option<SagaLookup>, StoreError>,
    },
    Submitted {
        asked: Duration,
        waiting: Vec<Waiting>,
        result: Result<Vec<SubmitReply>, StoreError>,
    },
    GivenBack,
    /// The pause after a failed write is over.
    Pause,
}

impl Engine {
    /// A store call returned.
    pub(super) fn store_answered(&mut self, end: JobEnd) {
        match end {
            JobEnd::Claimed { asked, result, nonce } => self.claimed(asked, result, nonce),
            JobEnd::Saved { saves, result } => self.saved(saves, result),
            JobEnd::Renewed { asked, owned, result } => self.renewed(asked, &owned, result),
            JobEnd::Loaded { id, result } => self.loaded(id, result),
            JobEnd::Submitted {
                asked,
                waiting,
                result,
            } => self.submitted(asked, waiting, result),
            JobEnd::GivenBack => {}
            JobEnd::Pause => {
                self.saving = false;
                for saga in self.sagas.iter().filter(|(_, saga)| saga.next.is_some()) {
                    if !self.to_save.contains(saga.0) {
                        self.to_save.push(saga.0.clone());
                    }
                }
            }
        }
    }
}
