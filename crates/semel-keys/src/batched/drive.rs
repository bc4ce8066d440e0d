//! Driving a lane: one batch after the other until nothing waits.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use semel_core::batch::{Lane, Next, Repeat, after};
use semel_core::claim::{Claim, ClaimReply, LeaseReply};
use semel_core::store::{MixedReplies, Replies};
use semel_core::{Clock as _, ErrorKind, Key, KeyStore, StoreError, SystemClock};

use super::Shared;
use super::ticket::{Back, Granted, Look, Sorted, Ticket};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends batches until the lane is idle.
async fn drive<T, F: Future<Output = ()>>(lane: &Mutex<Lane<T>>, send: impl Fn(Vec<T>) -> F) {
    loop {
        let next = lock(lane).next(SystemClock.monotonic());
        match next {
            Next::Idle => return,
            Next::Linger(until) => {
                let left = until.saturating_sub(SystemClock.monotonic());
                tokio::time::sleep(left).await;
            }
            Next::Send(batch) => {
                // A batch that panics is over, too; its callers have heard that their answer is lost.
                if AssertUnwindSafe(send(batch)).catch_unwind().await.is_err() {
                    tracing::error!("a batch of keys panicked; its callers are told that the answer is lost");
                }
                // Whoever was answered may ask again at once, and is then part of the next batch.
                tokio::task::yield_now().await;
                lock(lane).answered(SystemClock.monotonic());
            }
        }
    }
}

/// Drives a lane of transitions.
pub(super) async fn transitions<S: KeyStore>(shared: Arc<Shared<S>>, n: usize) {
    let send = |tickets| transact(&shared, tickets);
    drive(&shared.lanes[n], send).await;
}

/// Drives the lane of looks.
pub(super) async fn looks<S: KeyStore>(shared: Arc<Shared<S>>, n: usize) {
    let send = |looks| look(&shared, looks);
    drive(&shared.looks[n], send).await;
}

async fn transact<S: KeyStore>(shared: &Arc<Shared<S>>, tickets: Vec<Ticket<S>>) {
    let Sorted {
        batch,
        claims,
        completions,
        extensions,
        releases,
        abandonments,
        settlements,
    } = Sorted::new(tickets);
    if batch.is_empty() {
        return;
    }
    let store = &shared.store;
    let replies = if shared.mixes {
        store.transact_many(&batch).await
    } else {
        all_kinds(store, &batch).await
    };
    // A batch of several kinds that failed as a whole is asked again kind by kind, then in halves.
    let kinds = [
        batch.claims.len(),
        batch.completions.len(),
        batch.extensions.len(),
        batch.releases.len(),
        batch.abandonments.len(),
        batch.settlements.len(),
    ];
    let alone = kinds.iter().filter(|items| **items > 0).count() == 1 || !shared.mixes;
    macro_rules! answers {
        ($items:ident, $many:ident) => {
            repeat(&batch.$items, replies.$items, alone, |items| {
                store.$many(items)
            })
            .await
        };
    }
    let back = |senders: Vec<Back<LeaseReply>>, replies: Replies<LeaseReply>| {
        for (sender, reply) in senders.into_iter().zip(replies) {
            let _ = sender.send(reply);
        }
    };
    back(completions, answers!(completions, complete_many));
    back(releases, answers!(releases, release_many));
    back(abandonments, answers!(abandonments, abandon_many));
    back(settlements, answers!(settlements, settle_many));
    back(extensions, answers!(extensions, extend_many));
    let replies: Replies<ClaimReply> = answers!(claims, claim_many);
    for ((sender, claim), reply) in claims.into_iter().zip(batch.claims).zip(replies) {
        // Whoever left does not take it, and what was granted is given back as it is dropped.
        drop(sender.send(Granted::new(reply, claim.key, Arc::downgrade(shared))));
    }
}

/// All kinds of a batch side by side, for stores that cannot put them into one commit.
async fn all_kinds<S: KeyStore>(store: &S, batch: &semel_core::store::MixedBatch) -> MixedReplies {
    macro_rules! many {
        ($items:ident, $many:ident) => {
            async {
                if batch.$items.is_empty() {
                    Vec::new()
                } else {
                    store.$many(&batch.$items).await
                }
            }
        };
    }
    let (claims, completions, extensions, releases, abandonments, settlements) = futures_util::join!(
        many!(claims, claim_many),
        many!(completions, complete_many),
        many!(extensions, extend_many),
        many!(releases, release_many),
        many!(abandonments, abandon_many),
        many!(settlements, settle_many),
    );
    MixedReplies {
        claims,
        completions,
        extensions,
        releases,
        abandonments,
        settlements,
    }
}

async fn look<S: KeyStore>(shared: &Arc<Shared<S>>, looks: Vec<Look>) {
    let mut keys: (Vec<Key>, Vec<_>) = Default::default();
    let mut claims: (Vec<Claim>, Vec<_>) = Default::default();
    for look in looks {
        match look {
            Look::Read(_, ref back) if back.is_closed() => {}
            Look::Claim(_, ref back) if back.is_closed() => {}
            Look::Read(key, back) => {
                keys.0.push(key);
                keys.1.push(back);
            }
            Look::Claim(claim, back) => {
                claims.0.push(claim);
                claims.1.push(back);
            }
        }
    }
    let store = &shared.store;
    if !keys.0.is_empty() {
        let replies = store.read_many(&keys.0).await;
        let replies = repeat(&keys.0, replies, true, |items| store.read_many(items)).await;
        for (back, reply) in keys.1.into_iter().zip(replies) {
            let _ = back.send(reply);
        }
    }
    if !claims.0.is_empty() {
        let replies = store.look_many(&claims.0).await;
        let replies = repeat(&claims.0, replies, true, |items| store.look_many(items)).await;
        for (back, reply) in claims.1.into_iter().zip(replies) {
            let _ = back.send(reply);
        }
    }
}

/// Asks a batch again in parts where one item may have failed its neighbours. `alone`: it was sent without other kinds,
/// so the whole of it need not be sent once more.
async fn repeat<'a, T, R, F>(
    items: &'a [T],
    replies: Replies<R>,
    alone: bool,
    call: impl Fn(&'a [T]) -> F,
) -> Replies<R>
where
    F: Future<Output = Replies<R>>,
{
    let replies = complete(items.len(), replies);
    let kinds = |replies: &Replies<R>| -> Vec<Option<ErrorKind>> {
        let kind = |reply: &Result<R, StoreError>| reply.as_ref().err().map(StoreError::kind);
        replies.iter().map(kind).collect()
    };
    // The common case first, without looking at each reply.
    if !matches!(replies.first(), Some(Err(_))) {
        return replies;
    }
    let mut first = kinds(&replies);
    if !alone {
        // Somebody else's item may be the bad one: even a single item is asked again by itself.
        first.extend(first.first().copied());
    }
    if after(&first, 0) == Repeat::No {
        return replies;
    }
    let mut answers: Vec<Option<Result<R, StoreError>>> = replies.into_iter().map(Some).collect();
    let mut parts = if alone {
        halves(0, items.len())
    } else {
        vec![(0, items.len())]
    };
    let mut repeats = 0;
    while let Some((from, to)) = parts.pop() {
        let replies = complete(to - from, call(&items[from..to]).await);
        repeats += 1;
        if after(&kinds(&replies), repeats) == Repeat::Halves {
            parts.extend(halves(from, to));
        }
        for (answer, reply) in answers[from..to].iter_mut().zip(replies) {
            *answer = Some(reply);
        }
    }
    answers.into_iter().flatten().collect()
}

/// The later half first: parts are taken from the end.
fn halves(from: usize, to: usize) -> Vec<(usize, usize)> {
    let middle = from + (to - from) / 2;
    vec![(middle, to), (from, middle)]
}

/// One reply per item, whatever the store said.
fn complete<R>(items: usize, mut replies: Replies<R>) -> Replies<R> {
    let text = "the store gave no answer for the item: a bug in the store";
    while replies.len() < items {
        replies.push(Err(StoreError::new(ErrorKind::ReplyLost, "batch", text)));
    }
    replies.truncate(items);
    replies
}

/// How long a part of a batch that is given back waits before it is tried again.
pub(super) const GIVE_BACK_PAUSE: Duration = Duration::from_millis(100);
