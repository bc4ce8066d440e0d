//! Driving a lane: one batch after the other until nothing waits.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use semel_core::batch::{Lane, Next, Repeat, after};
use semel_core::claim::Claim;
use semel_core::store::{MixedBatch, MixedReplies, Replies};
use semel_core::{Clock as _, ErrorKind, Key, KeyStore, Retry, StoreError, SystemClock};

use super::Shared;
use super::ticket::{Back, Look, Sorted, Ticket};

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
                lock(lane).told(SystemClock.monotonic());
                // Whoever was answered may ask again at once, and is then part of the next batch.
                tokio::task::yield_now().await;
                lock(lane).answered(SystemClock.monotonic());
            }
        }
    }
}

/// Who drives a lane. When it is dropped before the lane is idle (its runtime ended, or was gone already), whoever waits
/// hears that the answer is lost, and the next call begins anew.
pub(super) struct Driver<S: KeyStore, T> {
    shared: Arc<Shared<S>>,
    lanes: fn(&Shared<S>) -> &[Mutex<Lane<T>>],
    n: usize,
    idle: bool,
}

impl<S: KeyStore> Driver<S, Ticket> {
    pub(super) fn of_transitions(shared: &Arc<Shared<S>>, n: usize) -> Self {
        Self {
            shared: Arc::clone(shared),
            lanes: |shared| &shared.lanes,
            n,
            idle: false,
        }
    }
}

impl<S: KeyStore> Driver<S, Look> {
    pub(super) fn of_looks(shared: &Arc<Shared<S>>, n: usize) -> Self {
        Self {
            shared: Arc::clone(shared),
            lanes: |shared| &shared.looks,
            n,
            idle: false,
        }
    }
}

impl<S: KeyStore, T> Driver<S, T> {
    fn lane(&self) -> &Mutex<Lane<T>> {
        &(self.lanes)(&self.shared)[self.n]
    }
}

impl<S: KeyStore, T> Drop for Driver<S, T> {
    fn drop(&mut self) {
        if !self.idle {
            let left = lock(self.lane()).reset();
            tracing::error!(
                calls = left.len(),
                "the task that sends batches of keys was dropped; calls that wait are told that the answer is lost"
            );
        }
    }
}

/// Drives a lane of transitions.
pub(super) async fn transitions<S: KeyStore>(mut driver: Driver<S, Ticket>) {
    let shared = Arc::clone(&driver.shared);
    drive(driver.lane(), |tickets| transact(&shared, tickets)).await;
    driver.idle = true;
}

/// Drives the lane of looks.
pub(super) async fn looks<S: KeyStore>(mut driver: Driver<S, Look>) {
    let shared = Arc::clone(&driver.shared);
    drive(driver.lane(), |looks| look(&shared, looks)).await;
    driver.idle = true;
}

impl<S: KeyStore> Shared<S> {
    /// What the store says in time; nothing at all when it does not.
    async fn within<R: Default>(&self, call: impl Future<Output = R>) -> R {
        let time = Duration::from_millis(self.batch_ms_max);
        match tokio::time::timeout(time, call).await {
            Ok(replies) => replies,
            Err(_) => {
                tracing::error!(
                    batch_ms_max = self.batch_ms_max,
                    "the store gave no answer to a batch of keys in time"
                );
                R::default()
            }
        }
    }
}

async fn transact<S: KeyStore>(shared: &Arc<Shared<S>>, tickets: Vec<Ticket>) {
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
        shared.within(store.transact_many(&batch)).await
    } else {
        all_kinds(shared, &batch).await
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
            repeat(shared, &batch.$items, replies.$items, alone, |items| {
                store.$many(items)
            })
            .await
        };
    }
    back(completions, answers!(completions, complete_many));
    back(releases, answers!(releases, release_many));
    back(abandonments, answers!(abandonments, abandon_many));
    back(settlements, answers!(settlements, settle_many));
    back(extensions, answers!(extensions, extend_many));
    back(claims, answers!(claims, claim_many));
}

/// Hands the answers out. Whoever has left may ask again with the same nonce (rule K3), so nothing is undone here.
fn back<R>(senders: Vec<Back<R>>, replies: Replies<R>) {
    for (sender, reply) in senders.into_iter().zip(replies) {
        let _ = sender.send(reply);
    }
}

/// All kinds of a batch side by side, for stores that cannot put them into one commit.
async fn all_kinds<S: KeyStore>(shared: &Shared<S>, batch: &MixedBatch) -> MixedReplies {
    let store = &shared.store;
    macro_rules! many {
        ($items:ident, $many:ident) => {
            async {
                if batch.$items.is_empty() {
                    Vec::new()
                } else {
                    shared.within(store.$many(&batch.$items)).await
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
        let replies = shared.within(store.read_many(&keys.0)).await;
        let again = |items| store.read_many(items);
        back(keys.1, repeat(shared, &keys.0, replies, true, again).await);
    }
    if !claims.0.is_empty() {
        let replies = shared.within(store.look_many(&claims.0)).await;
        let again = |items| store.look_many(items);
        back(claims.1, repeat(shared, &claims.0, replies, true, again).await);
    }
}

/// Asks a batch again in parts where one item may have failed its neighbours. `alone`: it was sent without other kinds,
/// so the whole of it need not be sent once more. No replies at all: there was no answer in time, and none is asked for.
async fn repeat<'a, S: KeyStore, T, R, F>(
    shared: &Shared<S>,
    items: &'a [T],
    replies: Replies<R>,
    alone: bool,
    call: impl Fn(&'a [T]) -> F,
) -> Replies<R>
where
    F: Future<Output = Replies<R>>,
{
    let in_time = !replies.is_empty();
    let replies = complete(items.len(), replies, shared.batch_ms_max);
    if !in_time {
        return replies;
    }
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
        let replies = shared.within(call(&items[from..to])).await;
        let in_time = !replies.is_empty();
        let replies = complete(to - from, replies, shared.batch_ms_max);
        repeats += 1;
        if in_time && after(&kinds(&replies), repeats) == Repeat::Halves {
            parts.extend(halves(from, to));
        }
        for (answer, reply) in answers[from..to].iter_mut().zip(replies) {
            tell(answer, reply);
        }
        if !in_time {
            // The lane is not held for one time after the other.
            for (from, to) in parts.drain(..) {
                for answer in &mut answers[from..to] {
                    tell(answer, Err(not_asked(shared.batch_ms_max)));
                }
            }
        }
    }
    answers.into_iter().flatten().collect()
}

/// The later half first: parts are taken from the end.
fn halves(from: usize, to: usize) -> Vec<(usize, usize)> {
    let middle = from + (to - from) / 2;
    vec![(middle, to), (from, middle)]
}

/// Takes a later answer. What may have been committed stays unknown until the store says what came of it: that a repeat
/// failed does not say that the first try did nothing.
fn tell<R>(answer: &mut Option<Result<R, StoreError>>, reply: Result<R, StoreError>) {
    let unknown = matches!(answer, Some(Err(error)) if error.retry() == Retry::OutcomeUnknown);
    if reply.is_ok() || !unknown {
        *answer = Some(reply);
    }
}

/// One reply per item, whatever the store said.
fn complete<R>(items: usize, mut replies: Replies<R>, batch_ms_max: u64) -> Replies<R> {
    let text = if replies.is_empty() {
        format!("no answer to the batch within batch_ms_max = {batch_ms_max} ms")
    } else {
        "the store gave no answer for the item: a bug in the store".to_owned()
    };
    while replies.len() < items {
        replies.push(Err(StoreError::new(ErrorKind::ReplyLost, "batch", text.clone())));
    }
    replies.truncate(items);
    replies
}

fn not_asked(batch_ms_max: u64) -> StoreError {
    let text = format!(
        "the batch failed without being done, and its first repeat got no answer within batch_ms_max = {batch_ms_max} ms; \
         come back later"
    );
    StoreError::new(ErrorKind::NotApplied, "batch", text)
}
