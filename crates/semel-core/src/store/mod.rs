//! What a backend implements: batch-shaped traits, one per pattern, and what it can do.

mod arrived;
mod desk_work;
mod enqueue;
mod inbox;
mod keys;
mod keys_arc;
mod mixed;
mod outbox;
mod outbox_desk;
mod partitions;
mod reshard;
mod saga;
mod sink;

pub use arrived::{ARRIVED_UNREADABLE, Arrived, ArrivedRead};
pub use desk_work::{REPLAY_MARK, Taking};
pub use enqueue::{
    BACKLOG_FULL, Due, EVENT_REPEATED, MEASURE_KEPT_MS, MEASURE_ROWS, MEASURE_STALE_MS, Measured,
    STREAM_UNKNOWN, StreamLimit, backlog_full, event_repeated, stream_unknown,
};
pub use inbox::{InboxStore, PARKED_REASON_BYTES_MAX, Parked, TakenParked};
pub use keys::{Hint, KeyPage, KeyQuery, KeyStore, KeyStoreExt, Replies, Usage};
pub use mixed::{Batching, LANES_MAX, MixedBatch, MixedReplies};
pub use outbox::{
    ABSENT_KEPT_MS, Acquire, BACKLOG_ROWS_COUNTED_MAX, Backlog, CursorSave, Exception, ExceptionKind,
    Guarded, Opening, OutboxStore, Page, PageRow, PageSize, Presence, SHARDS_MAX, ShardBacklog,
    StoredException, check_stream, exception_repeated,
};
pub use outbox_desk::{
    DeskChange, DeskEntry, DeskQuery, DeskRequest, DeskRow, Hold, KeptRow, KeptState, NOTE_BYTES_MAX,
    OutboxDesk, REPLAY_HEADER, REPLAY_OF_HEADER, REPLAY_REASON, REPLAY_ROWS_MAX, RESCAN_ROWS_COUNTED_MAX,
    RedriveSave, Refused, Replay, Replayed, ReplayedRow, Rescan, ShardStanding, Standing, Taken, Wish,
    is_replay_header, no_desk, replay_of,
};
pub use partitions::{Partition, Partitions, Rotation};
pub use reshard::{RESHARD_HOLD_MS, RESHARD_REST_MS};
pub use saga::{
    ClaimDue, ClaimedSagas, ClaimedStart, Ownership, PendingRequest, RenewReply, RequestReply, SagaLookup,
    SagaRecord, SagaRequest, SagaStore, SagaSummary, Save, SaveReply, SaveState, Submission, SubmitReply,
};
pub use sink::{
    LogSink, OutboxRow, SINK_ERROR_BYTES_MAX, Sink, SinkError, SinkErrorClass, SinkFuture, SinkOrder,
    TransactionEnd, TransactionFuture,
};

/// What a backend can do. Suites choose their laws by it, `semel check` prints it; no backend pretends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The backend's name, such as `sqlite`.
    pub name: &'static str,
    /// Mark and effect can commit in the user's own transaction.
    pub joins_user_transaction: bool,
    /// A stale owner's write is refused by token.
    pub fences: bool,
    /// Tokens never go back, fail-over included.
    pub token_survives_failover: bool,
    /// Several processes on several machines may share it.
    pub shared_by_machines: bool,
    /// What a reply says was done is on stable storage: a crash of the backend itself forgets nothing.
    pub durable: bool,
    /// It can say how much a scope holds ([`KeyStore::usage`]).
    pub counts_scopes: bool,
}
