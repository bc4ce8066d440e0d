//! What becomes of parked messages: handled after all, or discarded by a person.

use bytes::Bytes;
use semel_core::inbox::Mark;
use semel_core::inbox::mark::retention_ms;
use semel_core::store::{InboxStore, Parked};
use semel_core::{ErrorKind, Retry, StoreError, error};

use crate::batch::BatchOptions;
use crate::message::{Handler, Message};
use crate::receive::{HandlerError, roll_back};

/// Keys that one call of [`redrive`] finds failing before it ends: their cause is not mended, and each costs a transaction
/// and a run of the handler.
pub const KEYS_FAILED_MAX: usize = 100;

/// What [`redrive`] has come to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Redriven {
    /// So many messages are parked no more: they were handled, or had been before.
    pub settled: usize,
    /// So many keys (and messages without one) have a first message that failed again, at most [`KEYS_FAILED_MAX`]. It and
    /// those behind it stay parked.
    pub keys_failed: usize,
    /// These messages, the longest parked first.
    pub failed: Vec<StillParked>,
    /// Where [`redrive_after`] goes on with keys that were not tried; `None` when every key was.
    pub next: Option<Tried>,
}

/// How far [`redrive`] has come: keys parked up to here were tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tried(i64);

/// A parked message that failed again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StillParked {
    /// Its id, for [`discard`].
    pub id: Bytes,
    /// Its ordering key.
    pub key: Option<Bytes>,
    /// Why it failed this time.
    pub why: String,
}

/// Handles up to `limit` parked messages after their cause was mended: key by key, the longest parked one first, each
/// key's messages in order. It ends earlier when [`KEYS_FAILED_MAX`] keys have failed again. While [`Redriven::next`] says
/// that there are more, [`redrive_after`] goes on with them.
///
/// # Guarantees
/// - A message leaves the list in the transaction that holds what its handler wrote, marked where ids are marked.
/// - A message that fails again (the handler refuses it or says "later", or a constraint does) stays parked with those
///   behind it. What is before it is settled, and it holds no other key up. It is logged as a warning.
///
/// # Crashes
/// Each transaction is there or not; what is not there is still parked.
///
/// # Errors
/// The store's: what was settled before is settled, all else stays parked. After `OutcomeUnknown` as well, call it again.
pub async fn redrive<S: InboxStore, H: Handler<S> + ?Sized>(
    store: &S,
    handler: &H,
    options: &BatchOptions,
    limit: u32,
) -> Result<Redriven, StoreError> {
    redrive_after(store, handler, options, Tried(0), limit).await
}

/// [`redrive`] with the keys that an earlier call has not tried: those that failed in it are not tried again.
///
/// # Errors
/// As [`redrive`].
pub async fn redrive_after<S: InboxStore, H: Handler<S> + ?Sized>(
    store: &S,
    handler: &H,
    options: &BatchOptions,
    tried: Tried,
    limit: u32,
) -> Result<Redriven, StoreError> {
    let retention = retention_ms(options.retention)?;
    let limit = limit.clamp(1, semel_core::limits::BATCH_ITEMS_MAX as u32) as usize;
    let mut done = Redriven::default();
    // Keys whose first message is not behind this one have been tried.
    let Tried(mut after) = tried;
    let mut at_once = limit;
    loop {
        if done.settled >= limit || done.failed.len() >= KEYS_FAILED_MAX {
            done.next = Some(Tried(after));
            break;
        }
        let size = at_once.min(limit - done.settled);
        match one_key(store, handler, options, retention, after, size).await? {
            Turn::NothingLeft => break,
            Turn::Settled { messages: 0, first } => after = first,
            Turn::Settled { messages, .. } => done.settled += messages,
            // One of several: from here on one at a time, until it is met again.
            Turn::Failed { several: true, .. } => at_once = 1,
            Turn::Failed {
                message, why, first, ..
            } => {
                tracing::warn!(
                    scope = %options.scope,
                    id = %message.id.escape_ascii(),
                    topic = message.topic,
                    partition = message.partition,
                    offset = message.offset,
                    why,
                    "a parked message fails again and stays parked"
                );
                done.keys_failed += 1;
                let (id, key) = (message.id, message.key);
                done.failed.push(StillParked { id, key, why });
                after = first;
                at_once = limit;
            }
        }
    }
    Ok(done)
}

/// What one transaction has come to.
enum Turn {
    NothingLeft,
    Settled {
        messages: usize,
        first: i64,
    },
    Failed {
        several: bool,
        message: Message,
        why: String,
        first: i64,
    },
}

async fn one_key<S: InboxStore, H: Handler<S> + ?Sized>(
    store: &S,
    handler: &H,
    options: &BatchOptions,
    retention: i64,
    after: i64,
    size: usize,
) -> Result<Turn, StoreError> {
    let mut tx = store.begin_inbox().await?;
    let size = u32::try_from(size).unwrap_or(u32::MAX);
    let taken = match store.take_parked(&mut tx, &options.scope, after, size).await {
        Ok(taken) => taken,
        Err(error) => {
            roll_back(store, tx).await;
            return Err(error);
        }
    };
    let Some(taken) = taken else {
        roll_back(store, tx).await;
        return Ok(Turn::NothingLeft);
    };
    let first = taken.first;
    let mut messages: Vec<Message> = taken.messages.into_iter().map(Message::from).collect();
    let failure = match handle(store, handler, options, retention, &mut tx, &messages).await {
        Err(error) => {
            roll_back(store, tx).await;
            error
        }
        Ok(()) => match store.commit_inbox(tx).await {
            Ok(()) => {
                let messages = messages.len();
                return Ok(Turn::Settled { messages, first });
            }
            Err(error) => HandlerError::Store(error),
        },
    };
    let why = match failure {
        HandlerError::Refused(why) | HandlerError::Later(why) => why,
        failure if failure.blames_message() => error::chain(&failure),
        HandlerError::Store(error) => return Err(error),
    };
    if messages.is_empty() {
        // Nothing was handed over, so no message can have failed.
        return Ok(Turn::Settled { messages: 0, first });
    }
    let several = messages.len() > 1;
    let message = messages.swap_remove(0);
    Ok(Turn::Failed {
        several,
        message,
        why,
        first,
    })
}

async fn handle<S: InboxStore, H: Handler<S> + ?Sized>(
    store: &S,
    handler: &H,
    options: &BatchOptions,
    retention: i64,
    tx: &mut S::Tx,
    messages: &[Message],
) -> Result<(), HandlerError> {
    let ids: Vec<Bytes> = messages.iter().map(|message| message.id.clone()).collect();
    // Parking set no marks; one that is there says that the message came again and was handled then.
    let marks = if options.marks {
        store.mark_many(tx, &options.scope, &ids, retention).await?
    } else {
        vec![Mark::New; ids.len()]
    };
    let new: Vec<&Message> = messages
        .iter()
        .zip(marks)
        .filter(|(_, mark)| *mark == Mark::New)
        .map(|(message, _)| message)
        .collect();
    if new.is_empty() {
        return Ok(());
    }
    handler.handle(tx, &new).await
}

/// Takes one parked message out of the list for good, by a person's decision; it is handed back, `None` when no message of
/// this id is parked. Those behind it are then the next that [`redrive`] tries. Who decided it and why goes to the log, with
/// what the message is.
///
/// Where ids are marked, it is marked: delivered again, it is a duplicate and not handled.
///
/// # Errors
/// `Invalid` when `by` or `why` is empty, else the store's. After `OutcomeUnknown` call it again: `None` says that it was
/// done.
pub async fn discard<S: InboxStore>(
    store: &S,
    options: &BatchOptions,
    id: &Bytes,
    by: &str,
    why: &str,
) -> Result<Option<Parked>, StoreError> {
    if by.trim().is_empty() || why.trim().is_empty() {
        let text = "a message is discarded by somebody, for a reason: say who in `by` and why in `why`";
        return Err(StoreError::new(ErrorKind::Invalid, "discard", text));
    }
    let retention = retention_ms(options.retention)?;
    let mut tx = store.begin_inbox().await?;
    let work = async {
        let found = store.discard_parked(&mut tx, &options.scope, id).await?;
        if found.is_some() && options.marks {
            let ids = std::slice::from_ref(id);
            store.mark_many(&mut tx, &options.scope, ids, retention).await?;
        }
        Ok(found)
    };
    let found: Result<Option<Parked>, StoreError> = work.await;
    let message = match found {
        Ok(Some(message)) => message,
        other => {
            roll_back(store, tx).await;
            return other;
        }
    };
    let committed = store.commit_inbox(tx).await;
    let result = match &committed {
        Ok(()) => "discarded",
        Err(error) if error.retry() == Retry::OutcomeUnknown => "the store's reply was lost",
        Err(_) => "not discarded: the store failed",
    };
    tracing::warn!(
        scope = %options.scope,
        id = %message.id.escape_ascii(),
        key = message.key.as_deref().map(|key| key.escape_ascii().to_string()),
        topic = message.topic,
        partition = message.partition,
        offset = message.offset,
        parked_for = message.reason,
        by,
        why,
        result,
        "somebody discards a parked message"
    );
    committed.map(|()| Some(message))
}
