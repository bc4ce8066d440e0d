//! The saga store: what a coordinator needs to own sagas, write their transitions and find them again.

use async_trait::async_trait;
use bytes::Bytes;

use crate::claim::Nonce;
use crate::error::StoreError;
use crate::host::Timestamp;
use crate::limits::{self, LimitExceeded};
use crate::saga::{CheckedDefinition, Instance, LogEntry, LogRow, SagaId, Status};

/// A coordinator's right to one saga. Every write of an owner carries all of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ownership {
    /// The saga.
    pub id: SagaId,
    /// Grows with every take-over.
    pub epoch: i64,
    /// 128 random bits of the claim that gave the right (rule O11: epochs alone can repeat after a fail-over).
    pub nonce: Nonce,
}

/// A saga to accept.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The caller's name for it.
    pub id: SagaId,
    /// What it consists of; stored once per hash.
    pub definition: CheckedDefinition,
    /// At most [`limits::SAGA_PAYLOAD_BYTES_MAX`] bytes.
    pub input: Bytes,
    /// Accept it as owner, with its first steps already started: saves a write.
    pub claimed: Option<ClaimedStart>,
}

/// The first write of a saga that is owned from its acceptance.
#[derive(Debug, Clone)]
pub struct ClaimedStart {
    /// Becomes the owner's nonce, with epoch 1 and version 1. Random per submission.
    pub nonce: Nonce,
    /// How long the right lasts, in milliseconds.
    pub lease_ms: i64,
    /// The state.
    pub instance: Instance,
    /// When somebody must look at it again.
    pub due_at: Option<Timestamp>,
    /// What to log.
    pub log: Vec<LogEntry>,
}

impl Submission {
    /// Refuses an input beyond its limit.
    ///
    /// # Errors
    /// [`LimitExceeded`].
    pub fn check(&self) -> Result<(), LimitExceeded> {
        let max = limits::SAGA_PAYLOAD_BYTES_MAX as u64;
        let help = "store the payload elsewhere and send a reference";
        limits::check("saga input", "bytes", self.input.len() as u64, 0, max, help)
    }
}

/// The answer to a [`Submission`]. Every answer is about what is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmitReply {
    /// It is new, and runs.
    Accepted,
    /// The same saga was submitted before; this is how it stands.
    Existing(Status),
    /// A saga of this id has another input. It is unharmed.
    OtherInput,
    /// A saga of this id has another definition. It is unharmed.
    OtherDefinition,
    /// A saga of this id ended this way and was pruned (rule S6).
    Ended(Status),
}

/// A wish to own what is due.
#[derive(Debug, Clone)]
pub struct ClaimDue {
    /// Random per call.
    pub nonce: Nonce,
    /// How long the right lasts, in milliseconds.
    pub lease_ms: i64,
    /// Sagas at most.
    pub limit: u32,
    /// Hashes of definitions this coordinator cannot serve: their sagas are left to others … (rule S8)
    pub unserved: Vec<[u8; 32]>,
    /// … for so many milliseconds after they became due.
    pub grace_ms: i64,
}

/// What a claim brought.
#[derive(Debug, Clone)]
pub struct ClaimedSagas {
    /// The store's time.
    pub now: Timestamp,
    /// The sagas, now ours.
    pub sagas: Vec<SagaRecord>,
}

/// One saga as stored.
#[derive(Debug, Clone)]
pub struct SagaRecord {
    /// Its id.
    pub id: SagaId,
    /// The hash of its definition.
    pub definition: [u8; 32],
    /// Its input.
    pub input: Bytes,
    /// The stored form of its [`Instance`]; read it with the definition.
    pub state: String,
    /// Where it stands.
    pub status: Status,
    /// Raised by every write (rule S3).
    pub version: i64,
    /// The current epoch.
    pub epoch: i64,
    /// The current owner's nonce.
    pub owner: Option<Nonce>,
    /// When somebody must look at it; `None` when nothing happens by itself.
    pub due_at: Option<Timestamp>,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// Requests that its owner has not taken up, oldest first.
    pub requests: Vec<PendingRequest>,
}

/// The answer to a look-up.
#[derive(Debug, Clone)]
pub enum SagaLookup {
    /// Never submitted, or forgotten altogether.
    Absent,
    /// Ended and pruned.
    Ended(Status),
    /// Here it is.
    Found(Box<SagaRecord>),
}

/// A transition to make durable.
#[derive(Debug, Clone)]
pub struct Save {
    /// The right under which it was decided.
    pub owned: Ownership,
    /// The version it was decided on.
    pub version: i64,
    /// The new state.
    pub state: SaveState,
    /// When somebody must look at it again. An ended saga is never due, whatever this says.
    pub due_at: Option<Timestamp>,
    /// Gives the right back in the same write.
    pub release: bool,
    /// Requests up to this number are taken up with this write; 0 for none.
    pub requests_done: i64,
    /// What to log, in the same commit.
    pub log: Vec<LogEntry>,
}

/// What a [`Save`] writes.
#[derive(Debug, Clone)]
pub enum SaveState {
    /// A state.
    Instance(Box<Instance>),
    /// The stored state cannot be read: it stays as it is, and the saga becomes stuck for this reason.
    Unreadable(String),
}

impl SaveState {
    /// The status that is written with it.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Instance(instance) => instance.status,
            Self::Unreadable(_) => Status::Stuck,
        }
    }
}

/// The answer to a [`Save`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaveReply {
    /// Durable; the version is one more than before.
    Saved,
    /// Someone else wrote in between (a request, or this owner's own delayed write): load it and decide again.
    WrongVersion,
    /// Another owner, or the saga has ended: let go of it.
    Lost,
}

/// The answer to a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenewReply {
    /// The right lasts longer; the saga has this version now.
    Renewed {
        /// When it differs from the owner's, the saga must be loaded again.
        version: i64,
    },
    /// Another owner, or the saga has ended.
    Lost,
}

/// What an operator, or the submitter, wants of a saga.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SagaRequest {
    /// Undo it, unless its pivot has started.
    Cancel {
        /// Who asks.
        by: String,
        /// Why.
        why: String,
    },
    /// What is stuck gets a fresh budget.
    Retry {
        /// Who asks.
        by: String,
    },
    /// Give it up as it is.
    Abandon {
        /// Who asks.
        by: String,
        /// Why.
        why: String,
    },
}

impl SagaRequest {
    /// Kind, who and why, as stored.
    #[must_use]
    pub fn parts(&self) -> (&'static str, &str, &str) {
        match self {
            Self::Cancel { by, why } => ("cancel", by, why),
            Self::Retry { by } => ("retry", by, ""),
            Self::Abandon { by, why } => ("abandon", by, why),
        }
    }

    /// Reads [`SagaRequest::parts`] back.
    #[must_use]
    pub fn from_parts(kind: &str, by: String, why: String) -> Option<Self> {
        match kind {
            "cancel" => Some(Self::Cancel { by, why }),
            "retry" => Some(Self::Retry { by }),
            "abandon" => Some(Self::Abandon { by, why }),
            _ => None,
        }
    }

    /// Refuses texts beyond their limit.
    ///
    /// # Errors
    /// [`LimitExceeded`].
    pub fn check(&self) -> Result<(), LimitExceeded> {
        let (_, by, why) = self.parts();
        let max = limits::SAGA_TEXT_BYTES_MAX as u64;
        limits::check(
            "request",
            "bytes of `by`",
            by.len() as u64,
            1,
            max,
            "name yourself, shortly",
        )?;
        limits::check(
            "request",
            "bytes of `why`",
            why.len() as u64,
            0,
            max,
            "give a shorter reason",
        )
    }
}

/// A request that waits for the saga's owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingRequest {
    /// Its number; grows.
    pub n: i64,
    /// What is wanted.
    pub request: SagaRequest,
}

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestReply {
    /// It is stored; the owner takes it up.
    Noted,
    /// The saga ended this way before.
    Ended(Status),
    /// No such saga.
    Absent,
    /// [`limits::SAGA_REQUESTS_MAX`] requests wait already.
    TooMany,
}

/// One line of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SagaSummary {
    /// Its id.
    pub id: SagaId,
    /// The name of its definition.
    pub definition: String,
    /// Where it stands.
    pub status: Status,
    /// Why it is stuck, where the store can tell without its definition.
    pub why: Option<String>,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// When it was last written.
    pub updated_at: Timestamp,
}

/// Keeps sagas. The protocol is in [`saga`](crate::saga); a store only keeps what it decides, under compare-and-set.
///
/// Every method takes at most [`limits::BATCH_ITEMS_MAX`] items, answers in the order asked, and has made durable what
/// it answers. Times are the store's.
///
/// # Errors
/// An `Err` is about the call as a whole: [`Retry`](crate::Retry) says whether anything can have been done. Repeating a
/// call after `OutcomeUnknown` is safe: a `save` that was applied answers `WrongVersion`, a claimed submission that was
/// applied answers `Accepted`; sagas of a `claim` whose reply was lost wait until their lease ends.
#[async_trait]
pub trait SagaStore: Send + Sync + 'static {
    /// The store's time.
    async fn saga_time(&self) -> Result<Timestamp, StoreError>;

    /// Accepts sagas, or says what there is under their ids.
    async fn submit_sagas(&self, submissions: &[Submission]) -> Result<Vec<SubmitReply>, StoreError>;

    /// Takes due sagas over that nobody owns or whose owner's lease has ended: new epoch, new nonce, one statement.
    async fn claim_sagas(&self, claim: &ClaimDue) -> Result<ClaimedSagas, StoreError>;

    /// Writes transitions: each one compare-and-set on epoch **and** nonce **and** version, terminal sagas match
    /// nothing, log and requests in the same commit (rules R5, S3, O11). Many sagas share the commit (R3).
    async fn save_sagas(&self, saves: &[Save]) -> Result<Vec<SaveReply>, StoreError>;

    /// Keeps sagas longer.
    async fn renew_sagas(&self, owned: &[Ownership], lease_ms: i64) -> Result<Vec<RenewReply>, StoreError>;

    /// Gives sagas back unchanged.
    async fn release_sagas(&self, owned: &[Ownership]) -> Result<(), StoreError>;

    /// Reads sagas.
    async fn load_sagas(&self, ids: &[SagaId]) -> Result<Vec<SagaLookup>, StoreError>;

    /// Reads a definition's stored form.
    async fn saga_definition(&self, hash: &[u8; 32]) -> Result<Option<String>, StoreError>;

    /// Notes a request, raises the saga's version and makes it due.
    async fn request_saga(&self, id: &SagaId, request: &SagaRequest) -> Result<RequestReply, StoreError>;

    /// Sagas in the order of their ids, those after `after`; pruned ones are left out.
    async fn list_sagas(
        &self,
        status: Option<Status>,
        after: Option<&SagaId>,
        limit: u32,
    ) -> Result<Vec<SagaSummary>, StoreError>;

    /// How many sagas there are in each status; pruned ones are left out.
    async fn count_sagas(&self) -> Result<Vec<(Status, u64)>, StoreError>;

    /// A saga's log, oldest first.
    async fn saga_log(&self, id: &SagaId, limit: u32) -> Result<Vec<LogRow>, StoreError>;

    /// Drops state, input and log of sagas that ended `retention_ms` ago, leaving a tombstone for `tombstone_ms`; and
    /// tombstones that have ended. At most `limit` of each; returns how many sagas were pruned.
    async fn prune_sagas(&self, retention_ms: i64, tombstone_ms: i64, limit: u32) -> Result<u64, StoreError>;
}
