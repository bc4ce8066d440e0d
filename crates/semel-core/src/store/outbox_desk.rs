//! The operator's desk of an outbox: events that were set aside, what a person asks of them, and how its owner carries
//! that out.

use async_trait::async_trait;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::{ExceptionKind, Guarded, PageSize, StoredException};
use crate::error::{ErrorKind, StoreError};
use crate::event::Event;
use crate::host::Timestamp;
use crate::relay::{DeskRefusal, ShardId, ShardLease};

/// What a person asks of an exception. It is a mark on its row; the owner of the shard carries it out (rule O15).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wish {
    /// Send it once more. Of a parked key also the rows behind it, in order.
    Retry,
    /// Forget it. Of a parked key the rows behind it stay, and the first of them stands for the key from now on.
    Drop,
    /// Forget it, and send the rows behind it, in order.
    Release,
}

impl Wish {
    /// Its word in SQL: `retry`, `drop`, `release`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Drop => "drop",
            Self::Release => "release",
        }
    }

    /// Reads [`Wish::as_str`] back.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Retry, Self::Drop, Self::Release]
            .into_iter()
            .find(|wish| wish.as_str() == word)
    }
}

/// An exception as the desk shows it.
///
/// The *list* of a key is its rows of the kinds `parked` and `behind` in one shard, by number. A key is parked as long as
/// its list is not empty: there is no other flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeskRow {
    /// The row, why it is there, and after how many attempts.
    pub stored: StoredException,
    /// What was asked of it and not carried out yet.
    pub asked: Option<Wish>,
    /// How often it was edited; an edit names it, so that of two at once one is refused.
    pub edits: u32,
    /// How often owners took it to carry out what was asked.
    pub taken: u32,
}

impl DeskRow {
    /// The key whose list it belongs to.
    #[must_use]
    pub fn list(&self) -> Option<&Bytes> {
        let key = self.stored.row.row.event.key.as_ref();
        key.filter(|_| self.stored.exception.kind != ExceptionKind::Skipped)
    }
}

/// Which exceptions to show.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeskQuery {
    /// Of this stream.
    pub stream: Option<String>,
    /// Of this key.
    pub key: Option<Bytes>,
    /// Of this kind.
    pub kind: Option<ExceptionKind>,
    /// With numbers above this one.
    pub after: i64,
    /// Rows at most.
    pub limit: u32,
}

/// What a person changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeskChange {
    /// Marks the row.
    Ask(Wish),
    /// Puts another topic, type, content type, headers or data in its place. Id, stream, source and key stay.
    Edit {
        /// The event as it shall be.
        event: Box<Event>,
        /// [`DeskRow::edits`] as it was shown.
        edits: u32,
    },
}

impl DeskChange {
    /// Its word in the log: that of the wish, or `edit`.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Ask(wish) => wish.as_str(),
            Self::Edit { .. } => "edit",
        }
    }
}

/// One change, with who wants it and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeskRequest {
    /// The row's number.
    pub row: i64,
    /// What is changed.
    pub change: DeskChange,
    /// Who decides this.
    pub by: String,
    /// Why, in a line.
    pub why: String,
}

/// A line of the desk's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeskEntry {
    /// Its number.
    pub entry: i64,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub by: String,
    /// Why.
    pub why: String,
    /// What: a word of [`DeskChange::as_str`], `rescan` or `replay`.
    pub action: String,
    /// The stream.
    pub stream: String,
    /// The row's number; 0 where it is about no row.
    pub row: i64,
    /// The event's id; nil where it is about no event.
    pub event_id: Uuid,
    /// The event as it was before an edit or a drop, as JSON ([`event_json`](crate::relay::event_json)).
    pub before: Option<String>,
}

/// Rows taken to be carried out, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Taken {
    /// The rows: each that has a mark, and all of a list whose first row is to be sent or released.
    pub rows: Vec<DeskRow>,
    /// Whether there may be more after them.
    pub more: bool,
}

/// What came of rows that were taken; one transaction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RedriveSave {
    /// Rows that the sink has acknowledged, or that were dropped: they go.
    pub removed: Vec<i64>,
    /// Rows that were refused again.
    pub failed: Vec<Refused>,
    /// Lists of which the first row was removed: what is asked of the row that is first then, unless something is already.
    /// It stands for its key (kind `parked`).
    pub next: Vec<(Bytes, Option<Wish>)>,
}

/// A row that was refused again: it loses its mark, has an attempt more, and one of a list stands for its key from now on
/// (kind `parked`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Its number.
    pub row: i64,
    /// Its attempts when it was taken. Where they are others by now this was saved before, and nothing is changed.
    pub attempts: u32,
    /// What the sink said; bounded, printable.
    pub reason: String,
}

/// How a shard stands, for a person who asks why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardStanding {
    /// Which.
    pub shard: ShardId,
    /// Who owns it, or owned it last.
    pub owner: String,
    /// Until when; `None` where nobody has owned it, or it was given back.
    pub until: Option<Timestamp>,
    /// Whether that time has not passed.
    pub held: bool,
    /// What its owner said about itself last: why nothing is sent. It stays when the owner dies.
    pub note: Option<String>,
    /// When it said so.
    pub noted_at: Option<Timestamp>,
    /// Keys that are parked.
    pub parked_keys: u64,
    /// Rows of which something is asked.
    pub asked: u64,
    /// When the oldest exception came.
    pub oldest_exception: Option<Timestamp>,
}

/// Something in the store itself that holds events back, or may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// A word: `open_transaction`, `prepared_transaction`, `held_snapshot`, `identity_changed`, `standby`, `writer`,
    /// `partition_waits`.
    pub kind: &'static str,
    /// Who: a process id, the name of a prepared transaction.
    pub who: String,
    /// For how long, in milliseconds.
    pub age_ms: Option<i64>,
    /// What is known about it, bounded and printable.
    pub detail: String,
    /// What it holds back, and what to do.
    pub advice: String,
}

/// The whole standing of an outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The store's time.
    pub now: Timestamp,
    /// Every shard.
    pub shards: Vec<ShardStanding>,
    /// What in the store holds events back.
    pub holds: Vec<Hold>,
    /// What could not be seen, and the right that is missing.
    pub hidden: Vec<String>,
}

/// What a rescan does, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rescan {
    /// Rows that are kept and are sent again, or for the first time; counted up to [`RESCAN_ROWS_COUNTED_MAX`] in a dry run.
    pub rows: u64,
    /// Shards whose cursor goes back to the beginning.
    pub shards: u64,
    /// Shards that somebody owns now: their owners lose them.
    pub owned: Vec<(ShardId, String)>,
}

/// Rows that a dry run of a rescan counts at most.
pub const RESCAN_ROWS_COUNTED_MAX: u64 = 10_000_000;
/// Rows that one call of [`OutboxDesk::replay`] copies at most.
pub const REPLAY_ROWS_MAX: u32 = 1_000;
/// Bytes of a note, of a name and of a reason at most.
pub const NOTE_BYTES_MAX: usize = 1_024;
/// The reason of a replayed event among the exceptions, until it is sent.
pub const REPLAY_REASON: &str = "it is to be sent again: a replay";
/// The header that every replayed event has: the id of the replay.
pub const REPLAY_HEADER: &str = "semel-replay";
/// The header of a replayed event with an id of its own: the id of the event that it repeats.
pub const REPLAY_OF_HEADER: &str = "semel-replay-of";

/// Whether a header says that an event is sent again because a person asked for it. Sinks that keep names that begin with
/// `semel-` for themselves let these two through.
#[must_use]
pub fn is_replay_header(name: &str) -> bool {
    name == REPLAY_HEADER || name == REPLAY_OF_HEADER
}

/// The replay that an event is sent in; `None` where it is none.
#[must_use]
pub fn replay_of(event: &Event) -> Option<Uuid> {
    let (_, value) = event.headers.iter().rfind(|(name, _)| name == REPLAY_HEADER)?;
    Uuid::try_parse_ascii(value).ok()
}

/// Which events to send again, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// The stream.
    pub stream: String,
    /// Written at this time or later.
    pub from: Option<Timestamp>,
    /// Written before this time.
    pub to: Option<Timestamp>,
    /// Of this key.
    pub key: Option<Bytes>,
    /// Of this topic.
    pub topic: Option<String>,
    /// With numbers above this one: where an earlier call ended.
    pub after: i64,
    /// With numbers up to this one, so that a replay never meets its own copies.
    pub upto: i64,
    /// Rows at most, up to [`REPLAY_ROWS_MAX`].
    pub limit: u32,
    /// The id of this replay, in [`REPLAY_HEADER`].
    pub id: Uuid,
    /// Whether copies get ids of their own: then receivers take them once more, and they are new rows of the outbox. Else
    /// receivers that drop ids they have seen take only what they have not; an id is in the outbox once, so these copies go
    /// to the exceptions (kind `skipped`), marked to be sent.
    pub fresh_ids: bool,
    /// Changes nothing.
    pub dry_run: bool,
}

/// What a call of [`OutboxDesk::replay`] did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Replayed {
    /// The rows: number, event id, key, time.
    pub rows: Vec<ReplayedRow>,
    /// Whether there may be more after them.
    pub more: bool,
}

/// A row that is sent again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayedRow {
    /// Its number.
    pub row: i64,
    /// The event's id.
    pub event_id: Uuid,
    /// The id of the copy; nil in a dry run.
    pub copy_id: Uuid,
    /// Its topic.
    pub topic: String,
    /// Its key.
    pub key: Option<Bytes>,
    /// When it was written.
    pub created_at: Timestamp,
}

/// What has become of a kept row, as far as the store knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeptState {
    /// The cursor has passed it: the receiver has it.
    Sent,
    /// The cursor has not passed it for good; it may have been sent.
    Waiting,
    /// It is in the exceptions.
    SetAside,
    /// A person has dropped it.
    Dropped,
    /// A person has edited it, and it was sent so.
    Edited,
}

impl KeptState {
    /// Reads the words of the stores: `sent`, `set_aside`, `dropped`, `edited`; whatever else has not been sent for good.
    #[must_use]
    pub fn parse(word: &str) -> Self {
        match word {
            "sent" => Self::Sent,
            "set_aside" => Self::SetAside,
            "dropped" => Self::Dropped,
            "edited" => Self::Edited,
            _ => Self::Waiting,
        }
    }
}

/// A row that is kept, for an audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptRow {
    /// Its number.
    pub row: i64,
    /// The event's id.
    pub event_id: Uuid,
    /// Its key.
    pub key: Option<Bytes>,
    /// Its topic.
    pub topic: String,
    /// SHA-256 of its data; of a tombstone that of no bytes.
    pub sha256: [u8; 32],
    /// What has become of it.
    pub state: KeptState,
}

impl KeptRow {
    /// The hash of an event's data.
    #[must_use]
    pub fn hash(data: Option<&[u8]>) -> [u8; 32] {
        Sha256::digest(data.unwrap_or_default()).into()
    }
}

/// The operator's side of an [`OutboxStore`](super::OutboxStore), and the owner's part in it.
///
/// # Guarantees
/// - Only the shard's owner removes rows from the exceptions, so a row is never sent by two and never dropped while it is
///   on its way. [`OutboxDesk::change`] marks or edits; it locks the shard's row first and reads the list second, as
///   [`OutboxDesk::settle`] does (rule O15).
/// - Who, why and when of every change is kept in the log, and the event as it was before an edit or a drop, in the
///   transaction of the change.
#[async_trait]
pub trait OutboxDesk: Send + Sync {
    /// Exceptions by number.
    async fn desk_rows(&self, query: &DeskQuery) -> Result<Vec<DeskRow>, StoreError>;

    /// One exception.
    async fn desk_row(&self, row: i64) -> Result<Option<DeskRow>, StoreError>;

    /// Changes one exception, if [`decide`](crate::relay::decide) lets it: the inner error is its answer, and nothing was
    /// changed then. A mark that is already there is `Ok` and no second line of the log.
    async fn change(&self, request: &DeskRequest) -> Result<Result<(), DeskRefusal>, StoreError>;

    /// The log, oldest first, with numbers above `after`.
    async fn desk_log(&self, after: i64, limit: u32) -> Result<Vec<DeskEntry>, StoreError>;

    /// How everything stands: owners, notes, and what in the store itself holds events back.
    async fn standing(&self) -> Result<Standing, StoreError>;

    /// For the owner: rows to be carried out; [`DeskRow::taken`] of those that have a mark is counted up in the same
    /// transaction. Writes nothing where nothing is asked. Never [`Guarded::Reload`].
    async fn take(&self, lease: &ShardLease, size: PageSize) -> Result<Guarded<Taken>, StoreError>;

    /// For the owner: what came of rows it took. Returns the keys of `next` whose list is not empty afterwards. Never
    /// [`Guarded::Reload`]. The repetition of a call whose answer was lost changes nothing more than it did.
    async fn settle(&self, lease: &ShardLease, save: &RedriveSave)
    -> Result<Guarded<Vec<Bytes>>, StoreError>;

    /// For the owner: why it sends nothing, or that it does. Cut at [`NOTE_BYTES_MAX`] and made printable by the caller.
    async fn note(&self, lease: &ShardLease, note: Option<&str>) -> Result<Guarded<()>, StoreError>;

    /// Puts the cursors of one stream, or of all, back to the beginning: every row that is kept is sent again, in order
    /// and with its id. On PostgreSQL this cluster becomes the outbox's home, for all streams (rule O9). Owners lose
    /// their shards. Kept in the log.
    async fn rescan(
        &self,
        stream: Option<&str>,
        by: &str,
        why: &str,
        dry_run: bool,
    ) -> Result<Rescan, StoreError>;

    /// Has settled rows sent again, a key's in order, with the headers [`REPLAY_HEADER`] and [`REPLAY_OF_HEADER`]
    /// ([`Replay::fresh_ids`] says how). Left out are rows that are in the exceptions, events that a person has
    /// edited or dropped, and copies of earlier replays. One transaction; a call whose answer was lost may have been done.
    async fn replay(&self, replay: &Replay) -> Result<Replayed, StoreError>;

    /// Rows of a stream that are kept, with numbers above `after`, in order: what an audit compares with what arrived.
    async fn kept(&self, stream: &str, after: i64, limit: u32) -> Result<Vec<KeptRow>, StoreError>;

    /// The highest row number there is: [`Replay::upto`].
    async fn last_row(&self) -> Result<i64, StoreError>;

    /// Adds a line to the log that is about no row.
    async fn log_about(&self, stream: &str, action: &str, by: &str, why: &str) -> Result<(), StoreError>;
}

/// The error of a store that has no desk.
#[must_use]
pub fn no_desk(store: &str) -> StoreError {
    let text = format!("the outbox of {store} has no operator's desk yet");
    StoreError::new(ErrorKind::Invalid, "desk", text)
}
