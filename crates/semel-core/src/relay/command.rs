//! What a [`Machine`](super::Machine) is told, and what it asks for.

use std::sync::Arc;

use bytes::Bytes;

use super::cursor::Cursor;
use super::log::{Discord, LogPlace};
use crate::store::{
    CursorSave, Guarded, Opening, OutboxRow, Page, PageSize, RedriveSave, SinkError, Taken, TransactionEnd,
};

/// Which call on the store failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreCall {
    /// `open_batch`, `read_page` or `load`: of these one runs at a time.
    Read,
    /// `save_cursor`.
    Save,
    /// `take` or `settle` of the desk.
    Desk,
}

/// What a machine is told.
#[derive(Debug)]
pub enum Input {
    /// Time has passed.
    Tick,
    /// Rows may have been written just now.
    Hint,
    /// So many shards share this relay's memory.
    Share(usize),
    /// The lease holds until then, on the local monotonic clock in milliseconds, counted from before the request that
    /// prolonged it was sent.
    LeaseUntil(u64),
    /// Somebody else owns the shard.
    LeaseLost,
    /// Finish what is on its way, save, and end.
    Stop,
    /// The answer to [`Command::OpenBatch`].
    Opened(Guarded<Opening>),
    /// The answer to [`Command::ReadPage`].
    Read(Guarded<Page>),
    /// The answer to [`Command::Save`].
    Saved(Guarded<Cursor>),
    /// The answer to [`Command::Load`].
    Loaded(Guarded<Cursor>),
    /// A call on the store brought no answer.
    StoreFailed(StoreCall),
    /// The answer to [`Command::Publish`]: one result per row.
    Published {
        /// Which call.
        call: u64,
        /// The results, in the order of its rows.
        results: Vec<Result<(), SinkError>>,
    },
    /// The answer to [`Command::Resume`].
    Resumed(Result<Option<LogPlace>, SinkError>),
    /// The answer to [`Command::Commit`].
    Committed {
        /// Which call.
        call: u64,
        /// How it ended.
        end: TransactionEnd,
    },
    /// The answer to [`Command::Look`]; `true` where nobody could say.
    Looked(bool),
    /// The answer to [`Command::Take`].
    Taken(Guarded<Taken>),
    /// The answer to [`Command::Settle`].
    Settled(Guarded<Vec<Bytes>>),
    /// The answer to [`Command::Probe`].
    Probed(Result<(), SinkError>),
}

/// What a machine asks for. Every command but [`Command::End`] is answered by one [`Input`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Open the next batch.
    OpenBatch {
        /// The cursor it is decided on.
        from: Cursor,
        /// Whether to move `prev` on even when there is nothing.
        advance: bool,
        /// How much a first page may hold.
        first: PageSize,
    },
    /// Say whether there is anything to open, in one question with the other shards that are idle
    /// ([`OutboxStore::worth_opening`](crate::store::OutboxStore::worth_opening)).
    Look {
        /// The cursor behind which to look.
        from: Cursor,
    },
    /// Read rows of the open batch.
    ReadPage {
        /// The cursor with the batch.
        cursor: Cursor,
        /// Above this number.
        after: i64,
        /// How much.
        size: PageSize,
    },
    /// Save the cursor.
    Save(CursorSave),
    /// Read the cursor back.
    Load,
    /// Hand rows to the sink.
    Publish {
        /// The number of this call.
        call: u64,
        /// The rows, in order.
        rows: Vec<Arc<OutboxRow>>,
        /// How long it may last, in milliseconds.
        deadline_ms: u64,
    },
    /// Call [`LogSink::resume`](crate::store::LogSink::resume).
    Resume,
    /// Call [`LogSink::commit`](crate::store::LogSink::commit). No answer in time is [`TransactionEnd::Unknown`].
    Commit {
        /// The number of this call.
        call: u64,
        /// The rows, in order; there may be none.
        rows: Vec<Arc<OutboxRow>>,
        /// The place behind them.
        place: LogPlace,
        /// How long it may last, in milliseconds.
        deadline_ms: u64,
        /// Call [`LogSink::go_on`](crate::store::LogSink::go_on) before: all is back, one that was aborted among it.
        anew: bool,
    },
    /// Take rows that were set aside and of which something is asked.
    Take {
        /// How much.
        size: PageSize,
    },
    /// Save what came of rows that were taken.
    Settle(RedriveSave),
    /// Ask the sink whether its receiver can be reached.
    Probe,
    /// Nothing will follow.
    End(End),
}

/// Why a machine ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// It was told to stop; nothing is on its way, and what was settled is saved. Release the lease.
    Stopped,
    /// Somebody else owns the shard.
    Lost,
    /// Log and outbox do not belong together: a person must decide. Release the lease.
    Refused(Discord),
}

/// Why nothing is being sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// What kind of trouble.
    pub kind: PauseKind,
    /// What the sink said.
    pub reason: String,
    /// The row that met it.
    pub row: i64,
    /// When the next send is tried, on the local monotonic clock in milliseconds.
    pub until: u64,
    /// Since when, on the same clock.
    pub since: u64,
}

/// The kinds of a [`Pause`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PauseKind {
    /// The broker is away.
    Away,
    /// The destination is missing or forbidden.
    Destination,
    /// A row is refused, and the policy is [`Poison::Block`](super::Poison::Block).
    Poison,
}

impl PauseKind {
    /// Its word in metrics and notes: `away`, `destination`, `poison`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::Destination => "destination",
            Self::Poison => "poison",
        }
    }
}
