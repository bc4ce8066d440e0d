//! The outbox as a relay sees it: shards with owners, batches of rows, and a cursor that is saved.

use async_trait::async_trait;
use uuid::Uuid;

use super::{Capabilities, Due, Measured, OutboxDesk, OutboxRow, Partitions, Rotation, StreamLimit};
use crate::claim::Nonce;
use crate::error::{ErrorKind, StoreError};
use crate::host::Timestamp;
use crate::relay::{Cursor, LogCopy, OwnedShard, Roster, ShardId, ShardLease};

/// A wish to own free shards of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acquire {
    /// The stream.
    pub stream: String,
    /// How many shards at most.
    pub max: u16,
    /// A name for logs and the console, such as host and process id. Never compared.
    pub owner: String,
    /// 128 random bits, fresh for every wish; the same ones when a wish is repeated because its answer was lost.
    pub nonce: Nonce,
    /// The relay that wishes, as it says that it lives ([`OutboxStore::attend`]): by it a [`Roster`] tells who holds what.
    /// Nothing is guarded by it.
    pub relay: Nonce,
    /// How long a dead owner blocks its shards.
    pub lease_ms: i64,
}

/// A relay's word that it lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    /// The stream that it relays.
    pub stream: String,
    /// 128 random bits, fresh for every relay that begins.
    pub relay: Nonce,
    /// A name for people. Never compared.
    pub owner: String,
    /// How long the word holds.
    pub ms: i64,
}

/// The answer to a write or read that only the current owner may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guarded<T> {
    /// Done.
    Done(T),
    /// Somebody else owns the shard now. Nothing was changed; stop sending.
    Lost,
    /// The shard is yours, and its cursor is not the one you decided on. Nothing was changed; load it again (rule S3).
    Reload,
}

/// What [`OutboxStore::open_batch`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opening {
    /// There are rows: send them. The cursor is saved with its `open` mark, and everything that the batch can hold is
    /// as durable as the store makes it, so that no event of it can be taken back by a crash. With its first page where
    /// reading that costs no round trip of its own: what [`OutboxStore::read_page`] behind [`Cursor::last_id`] would answer.
    Opened(Cursor, Option<Page>),
    /// There is nothing new, and nothing was written.
    Empty,
    /// There is nothing new, and `prev` was moved on, as asked.
    Moved(Cursor),
}

/// A row of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRow {
    /// The row, as far as it could be read.
    pub row: OutboxRow,
    /// Why it can never be sent, such as headers that cannot be read. It becomes an exception and stops nobody else.
    pub barred: Option<String>,
}

/// Some rows of the open batch, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// The rows.
    pub rows: Vec<PageRow>,
    /// Whether there may be more after them.
    pub more: bool,
}

/// How much of a page to read: whichever limit is reached first, one row at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSize {
    /// Rows at most.
    pub rows: u32,
    /// Bytes of data at most, but for the first row.
    pub bytes: u64,
}

/// Why a row is an exception.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExceptionKind {
    /// It failed, and its key is parked with it.
    Parked,
    /// It is behind a parked row of its key.
    Behind,
    /// It failed and was left out, by policy.
    Skipped,
}

impl ExceptionKind {
    /// Its word in SQL: `parked`, `behind`, `skipped`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Parked => "parked",
            Self::Behind => "behind",
            Self::Skipped => "skipped",
        }
    }

    /// Reads [`ExceptionKind::as_str`] back.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Parked, Self::Behind, Self::Skipped]
            .into_iter()
            .find(|kind| kind.as_str() == word)
    }
}

/// A row to be moved to the exceptions: the store copies all of it (rule O7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exception {
    /// The row's number.
    pub row: i64,
    /// The event's id, for those who read of it in the log.
    pub event_id: Uuid,
    /// Why.
    pub kind: ExceptionKind,
    /// Attempts spent.
    pub attempts: u32,
    /// What the sink said; bounded, printable.
    pub reason: String,
}

/// The error of a row that is to be moved to the exceptions where another event is kept under its number: the table of
/// events began anew. Passing it over would lose the event.
#[must_use]
pub fn exception_repeated(exception: &Exception) -> StoreError {
    let text = format!(
        "event {} has row number {}, and a parked event of an older table of events has it, too; release or discard that \
         one, then this one is parked by itself",
        exception.event_id, exception.row
    );
    StoreError::new(ErrorKind::IdentityChanged, "save_cursor", text)
}

/// A write of the cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorSave {
    /// The cursor it was decided on; its batch and version are compared.
    pub from: Cursor,
    /// The new `last_id`.
    pub last_id: i64,
    /// Whether all of the batch is settled: then `prev := open`, nothing is open, `last_id := 0`.
    pub finished: bool,
    /// The new [`Cursor::suspect`].
    pub suspect: Option<i64>,
    /// Rows to be moved to the exceptions in the same transaction: all with numbers up to `last_id`, but where a log holds
    /// the cursor, which passes them later. One that is there already stays as it is.
    pub exceptions: Vec<Exception>,
    /// The new [`Cursor::log`]; `None` leaves it.
    pub log: Option<LogCopy>,
}

impl CursorSave {
    /// The cursor after this write: what every store makes of it.
    #[must_use]
    pub fn apply(&self) -> Cursor {
        let version = self.from.version + 1;
        let mut from = self.from.clone();
        from.log = self.log.or(from.log);
        match &self.from.open {
            Some(open) if self.finished => Cursor {
                prev: open.clone(),
                open: None,
                last_id: 0,
                suspect: None,
                version,
                ..from
            },
            _ => Cursor {
                last_id: self.last_id,
                suspect: self.suspect,
                version,
                ..from
            },
        }
    }
}

/// One row in the exceptions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredException {
    /// Which shard put it there.
    pub shard: ShardId,
    /// Why, and after how many attempts.
    pub exception: Exception,
    /// When.
    pub since: Timestamp,
    /// The row; `barred` where it cannot be read.
    pub row: PageRow,
}

/// How one shard stands, for the console and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardBacklog {
    /// Which shard.
    pub shard: ShardId,
    /// Who owns it, if anybody does now.
    pub owner: Option<String>,
    /// Rows not settled yet, counted up to [`BACKLOG_ROWS_COUNTED_MAX`].
    pub rows: u64,
    /// Age of the oldest of them in milliseconds; `None` when there is none.
    pub oldest_ms: Option<i64>,
    /// Rows in the exceptions.
    pub exceptions: u64,
    /// Batches opened so far.
    pub batch_no: i64,
    /// Owners in a row that died on the same place.
    pub takeovers: u32,
}

/// How an outbox stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Every shard of every stream.
    pub shards: Vec<ShardBacklog>,
    /// Streams that rows name and nobody has registered: their rows wait and are never cleaned (rule O10).
    pub orphan_streams: Vec<String>,
}

/// Rows that [`OutboxStore::backlog`] counts at most per shard.
pub const BACKLOG_ROWS_COUNTED_MAX: u64 = 10_000;
/// How long the word of a relay that is gone stays in the store after its end.
pub const ABSENT_KEPT_MS: i64 = 60_000;
/// Shards of one stream at most.
pub const SHARDS_MAX: u16 = 256;

/// Keeps the rows, owners and cursors of an outbox.
///
/// A row is written in the business transaction by the backend's own `tx::enqueue`; it is never changed afterwards.
///
/// # Guarantees
/// - Of the rows visible in a cursor's `open` and not in its `prev`, [`OutboxStore::read_page`] returns each one with
///   a number above the one asked for, in the order of their numbers. Marks only grow: nothing is skipped, whatever
///   the order in which transactions commit.
/// - Two rows of a key whose writers took turns on that key have growing numbers, and the later one is never in an
///   earlier batch.
/// - Every write compares epoch, nonce and version in one atomic step (rules O11, S3). `Done` means durable.
///
/// # Errors
/// An `Err` is about the call as a whole. After one, [`OutboxStore::load`] the cursor before anything else: the write
/// may have been done, or the server may be another one than before (rule O2).
#[async_trait]
pub trait OutboxStore: Send + Sync + 'static {
    /// What this backend can do.
    fn capabilities(&self) -> Capabilities;

    /// The operator's desk, where this backend has one: without it rows that were set aside stay so.
    fn desk(&self) -> Option<&dyn OutboxDesk> {
        None
    }

    /// Makes a stream with `shards` shards when it is missing. Its first batch holds every row already there.
    ///
    /// A stream that exists with another number of shards is changed while its owners go on (rule O12, see
    /// [`RESHARD_HOLD_MS`](super::RESHARD_HOLD_MS)): this call asks for it, calls of [`OutboxStore::open_batch`] carry
    /// it out, and the one that does gets [`Guarded::Lost`], as do all former owners. Whoever asks last is right.
    ///
    /// # Errors
    /// `Invalid` for a name or a number of shards beyond the limits ([`check_stream`]).
    async fn register_stream(&self, stream: &str, shards: u16) -> Result<(), StoreError>;

    /// Takes over shards whose lease has ended by the store's time; before them those that an earlier call with this nonce got,
    /// whose answer may be lost.
    async fn acquire(&self, wish: &Acquire) -> Result<Vec<OwnedShard>, StoreError>;

    /// Prolongs leases to `lease_ms` from now; one answer per lease: `false` when somebody else owns it. A lease that
    /// ended and that nobody took is prolonged.
    async fn renew(&self, leases: &[ShardLease], lease_ms: i64) -> Result<Vec<bool>, StoreError>;

    /// Gives shards back, so that others need not wait. Leases already lost are passed over.
    async fn release(&self, leases: &[ShardLease]) -> Result<(), StoreError>;

    /// Says that a relay lives, from now on for so long. Words about its stream that ended long ago are removed.
    async fn attend(&self, presence: &Presence) -> Result<(), StoreError>;

    /// Takes that word back: the relay stops, and the others need not wait for its end.
    async fn leave(&self, stream: &str, relay: Nonce) -> Result<(), StoreError>;

    /// Which relays live by the store's time, and who holds which shard: what [`Balance`](crate::relay::Balance) decides on.
    /// Writes nothing.
    async fn roster(&self, stream: &str) -> Result<Roster, StoreError>;

    /// The cursor as saved. Never [`Guarded::Reload`].
    async fn load(&self, lease: &ShardLease) -> Result<Guarded<Cursor>, StoreError>;

    /// Looks for rows after `from`, and opens a batch when there are any, with a fresh nonce ([`Cursor::batch`]). A batch
    /// that `from` still holds open counts as settled: its end and the new batch's beginning are one write. With `advance` an empty batch moves `prev` on
    /// too, which lets the cleaner go on; without it nothing is written. `first` is how much a first page may hold.
    async fn open_batch(
        &self,
        lease: &ShardLease,
        from: &Cursor,
        advance: bool,
        first: PageSize,
    ) -> Result<Guarded<Opening>, StoreError>;

    /// Of shards that have no batch open, each with its cursor: where [`OutboxStore::open_batch`] without `advance` may have
    /// another answer than [`Opening::Empty`]. One question for all, so that it costs the same for one idle shard and for many;
    /// writes nothing, and asks nobody whose the shards are. `true` is never wrong: it costs an opening.
    ///
    /// A store that has no such question says `true` everywhere.
    async fn worth_opening(&self, idle: &[(ShardLease, Cursor)]) -> Result<Vec<bool>, StoreError> {
        Ok(vec![true; idle.len()])
    }

    /// Reads rows of the open batch with numbers above `after`. Checks that the batch is still this owner's.
    async fn read_page(
        &self,
        lease: &ShardLease,
        cursor: &Cursor,
        after: i64,
        size: PageSize,
    ) -> Result<Guarded<Page>, StoreError>;

    /// Moves the cursor, and in the same transaction copies failed rows into the exceptions.
    async fn save_cursor(&self, lease: &ShardLease, save: &CursorSave)
    -> Result<Guarded<Cursor>, StoreError>;

    /// Exceptions of a stream with row numbers above `after`, in order.
    async fn exceptions(
        &self,
        stream: &str,
        after: i64,
        limit: u32,
    ) -> Result<Vec<StoredException>, StoreError>;

    /// Deletes at most `limit` rows of this stream that are settled in their shard's saved cursor and older than
    /// `keep_ms`; returns how many. Rows of streams that nobody registered stay.
    async fn clean(&self, stream: &str, keep_ms: i64, limit: u32) -> Result<u64, StoreError>;

    /// One turn of rotation, where the outbox is in partitions: makes those of the time ahead, and drops those of which no
    /// stream wants a row any more. The stream's cleaner calls it before it deletes, with what it deletes by.
    ///
    /// Whatever stands in the way delays a drop, and no relay: it is told, and tried again at a later turn.
    async fn rotate(&self, stream: &str, keep_ms: i64) -> Result<Rotation, StoreError> {
        let _ = (stream, keep_ms);
        Ok(Rotation::default())
    }

    /// The partitions, where the outbox is in partitions.
    async fn partitions(&self) -> Result<Option<Partitions>, StoreError> {
        Ok(None)
    }

    /// Moves at most `limit` delayed events of this stream, whose time has come by the store's clock, into the outbox: in
    /// the order of their times, with their ids, each once, in one transaction. One mover at a time: another one that is
    /// at work is not waited for. An event that an open transaction is cancelling is passed by until that has ended.
    ///
    /// A store that keeps no delayed events moves none.
    async fn move_due(&self, stream: &str, limit: u32) -> Result<Due, StoreError> {
        let _ = (stream, limit);
        Ok(Due::default())
    }

    /// Limits what may wait in a stream, or limits it no longer: beyond it, an enqueue in any way and any language is refused
    /// ([`BACKLOG_FULL`](super::BACKLOG_FULL)). Setting what is set already changes nothing. The first limit of a store and the
    /// end of the last one change its tables, for which writers are waited for shortly.
    ///
    /// # Errors
    /// [`StreamLimit::check`]; `NotApplied` while writers are in the way; a right that is missing.
    async fn limit_stream(&self, stream: &str, limit: StreamLimit) -> Result<(), StoreError> {
        let _ = stream;
        if limit.is_none() { Ok(()) } else { Err(no_limits()) }
    }

    /// Whether an enqueue into a stream that nobody has registered is refused
    /// ([`STREAM_UNKNOWN`](super::STREAM_UNKNOWN)), in the whole store. Off by default: such events wait for a relay that
    /// registers their stream.
    ///
    /// # Errors
    /// As [`OutboxStore::limit_stream`].
    async fn only_known_streams(&self, only: bool) -> Result<(), StoreError> {
        if only { Err(no_limits()) } else { Ok(()) }
    }

    /// Counts what waits in a stream that has a [`StreamLimit`], and writes it down for those that enqueue; nothing where there
    /// is none. Several may do so at once.
    async fn measure(&self, stream: &str) -> Result<Option<Measured>, StoreError> {
        let _ = stream;
        Ok(None)
    }

    /// How everything stands. Reads at most [`BACKLOG_ROWS_COUNTED_MAX`] rows per shard.
    async fn backlog(&self) -> Result<Backlog, StoreError>;
}

fn no_limits() -> StoreError {
    StoreError::new(
        ErrorKind::Invalid,
        "limit_stream",
        "this store keeps no limits of streams",
    )
}

/// Refuses a stream name or number of shards that no backend takes.
///
/// # Errors
/// [`LimitExceeded`](crate::limits::LimitExceeded).
pub fn check_stream(stream: &str, shards: u16) -> Result<(), crate::limits::LimitExceeded> {
    crate::event::check_name("stream", stream)?;
    let (actual, max) = (u64::from(shards), u64::from(SHARDS_MAX));
    crate::limits::check(
        "shards",
        "shards",
        actual,
        1,
        max,
        "choose another number of shards",
    )
}
