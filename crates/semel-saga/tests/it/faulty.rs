//! A store between coordinator and SQLite that holds, refuses, or loses its replies; and what must hold then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use semel_core::saga::{LogRow, SagaId, Status};
use semel_core::store::{
    ClaimDue, ClaimedSagas, Ownership, RenewReply, RequestReply, SagaLookup, SagaRequest, SagaStore,
    SagaSummary, Save, SaveReply, Submission, SubmitReply,
};
use semel_core::{ErrorKind, StoreError, Timestamp};
use semel_saga::{HttpParticipants, SagaHandle};
use semel_sqlite::Sqlite;
use tokio::sync::Semaphore;

use crate::shop::{Place, Running, config, until};

struct Faulty {
    inner: Sqlite,
    /// One permit per save that may go through.
    saves: Semaphore,
    saves_waiting: AtomicUsize,
    /// So many calls are carried out and their replies lost.
    lose: AtomicUsize,
    /// So many saves are refused, nothing done.
    refuse: AtomicUsize,
    /// Claims and renewals fail.
    away: AtomicBool,
    renewals_failed: AtomicUsize,
}

fn error(kind: ErrorKind) -> StoreError {
    StoreError::new(kind, "faulty", "as the test wants it")
}

fn take(counter: &AtomicUsize) -> bool {
    counter
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
        .is_ok()
}

impl Faulty {
    fn over(db: &Sqlite) -> Arc<Self> {
        Arc::new(Self {
            inner: db.clone(),
            saves: Semaphore::new(Semaphore::MAX_PERMITS),
            saves_waiting: AtomicUsize::new(0),
            lose: AtomicUsize::new(0),
            refuse: AtomicUsize::new(0),
            away: AtomicBool::new(false),
            renewals_failed: AtomicUsize::new(0),
        })
    }

    fn hold_saves(&self) {
        self.saves.forget_permits(Semaphore::MAX_PERMITS);
    }

    fn let_saves_go(&self) {
        self.saves.add_permits(1_000);
    }

    fn reply<T>(&self, reply: Result<T, StoreError>) -> Result<T, StoreError> {
        if take(&self.lose) {
            Err(error(ErrorKind::ReplyLost))
        } else {
            reply
        }
    }

    fn here(&self) -> Result<(), StoreError> {
        if self.away.load(Ordering::SeqCst) {
            Err(error(ErrorKind::Unavailable))
        } else {
            Ok(())
        }
    }
}

#[async_trait]
impl SagaStore for Faulty {
    async fn saga_time(&self) -> Result<Timestamp, StoreError> {
        self.inner.saga_time().await
    }

    async fn submit_sagas(&self, submissions: &[Submission]) -> Result<Vec<SubmitReply>, StoreError> {
        let reply = self.inner.submit_sagas(submissions).await;
        self.reply(reply)
    }

    async fn claim_sagas(&self, claim: &ClaimDue) -> Result<ClaimedSagas, StoreError> {
        self.here()?;
        self.inner.claim_sagas(claim).await
    }

    async fn save_sagas(&self, saves: &[Save]) -> Result<Vec<SaveReply>, StoreError> {
        self.saves_waiting.fetch_add(1, Ordering::SeqCst);
        self.saves.acquire().await.unwrap().forget();
        if take(&self.refuse) {
            return Err(error(ErrorKind::NotApplied));
        }
        let reply = self.inner.save_sagas(saves).await;
        self.reply(reply)
    }

    async fn renew_sagas(&self, owned: &[Ownership], lease_ms: i64) -> Result<Vec<RenewReply>, StoreError> {
        if let Err(away) = self.here() {
            self.renewals_failed.fetch_add(1, Ordering::SeqCst);
            return Err(away);
        }
        self.inner.renew_sagas(owned, lease_ms).await
    }

    async fn release_sagas(&self, owned: &[Ownership]) -> Result<(), StoreError> {
        self.inner.release_sagas(owned).await
    }

    async fn load_sagas(&self, ids: &[SagaId]) -> Result<Vec<SagaLookup>, StoreError> {
        self.inner.load_sagas(ids).await
    }

    async fn saga_definition(&self, hash: &[u8; 32]) -> Result<Option<String>, StoreError> {
        self.inner.saga_definition(hash).await
    }

    async fn request_saga(&self, id: &SagaId, request: &SagaRequest) -> Result<RequestReply, StoreError> {
        self.inner.request_saga(id, request).await
    }

    async fn list_sagas(
        &self,
        status: Option<Status>,
        after: Option<&SagaId>,
        limit: u32,
    ) -> Result<Vec<SagaSummary>, StoreError> {
        self.inner.list_sagas(status, after, limit).await
    }

    async fn count_sagas(&self) -> Result<Vec<(Status, u64)>, StoreError> {
        self.inner.count_sagas().await
    }

    async fn saga_log(&self, id: &SagaId, limit: u32) -> Result<Vec<LogRow>, StoreError> {
        self.inner.saga_log(id, limit).await
    }

    async fn prune_sagas(&self, retention_ms: i64, tombstone_ms: i64, limit: u32) -> Result<u64, StoreError> {
        self.inner.prune_sagas(retention_ms, tombstone_ms, limit).await
    }
}

fn start(store: &Arc<Faulty>) -> Running {
    Running::start(store.clone(), Arc::new(HttpParticipants::default()), config())
}

/// Submits from outside, so that the coordinator's first write is a save.
async fn submit(place: &Place, steps: &[&str]) -> SagaId {
    let id = SagaId::new("order-1").unwrap();
    let outside = SagaHandle::of_store(Arc::new(place.db.clone()));
    outside
        .submit(&place.shop.chain(steps), id.clone(), "{}")
        .await
        .unwrap();
    id
}

/// R1 and R3.
#[tokio::test(flavor = "multi_thread")]
async fn no_call_leaves_before_the_state_that_names_it_is_durable() {
    let place = Place::new().await;
    let store = Faulty::over(&place.db);
    store.hold_saves();
    let id = submit(&place, &["reserve", "charge"]).await;
    let coordinator = start(&store);
    until(|| store.saves_waiting.load(Ordering::SeqCst) == 1).await;
    // Whatever it would send, it has had the time of several polls for it.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(place.shop.paths().is_empty());
    store.saves.add_permits(1);
    place.shop.until_called("reserve", 1).await;
    until(|| store.saves_waiting.load(Ordering::SeqCst) >= 2).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(place.shop.paths(), ["reserve"]);
    store.let_saves_go();
    assert_eq!(coordinator.end_of(&id).await.status, Status::Completed);
    assert_eq!(place.shop.paths(), ["reserve", "charge"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_replies_of_the_store_neither_repeat_a_call_nor_forget_one() {
    for lost in 1..3 {
        let place = Place::new().await;
        let store = Faulty::over(&place.db);
        let coordinator = start(&store);
        // The first poll tells the store's time; from then on submissions are owned from their acceptance.
        let first = coordinator.submit(&place.shop.chain(&["look"]), "order-0").await;
        coordinator.end_of(&first).await;
        store.lose.store(lost, Ordering::SeqCst);
        let end = coordinator
            .run(&place.shop.chain(&["reserve", "charge"]), "order-1")
            .await;
        assert_eq!(end.status, Status::Completed);
        assert_eq!(
            place.shop.paths(),
            ["look", "reserve", "charge"],
            "{lost} replies lost"
        );
        assert_eq!(store.lose.load(Ordering::SeqCst), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_refuses_writes_for_a_while_is_waited_for() {
    let place = Place::new().await;
    let store = Faulty::over(&place.db);
    store.refuse.store(3, Ordering::SeqCst);
    let coordinator = start(&store);
    let end = coordinator
        .run(&place.shop.chain(&["reserve", "charge"]), "order-1")
        .await;
    assert_eq!(end.status, Status::Completed);
    assert_eq!(place.shop.paths(), ["reserve", "charge"]);
}

/// Rule S1: an owner looks at its lease immediately before each send.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_waits_while_the_lease_cannot_be_kept() {
    let place = Place::new().await;
    let store = Faulty::over(&place.db);
    store.hold_saves();
    let id = submit(&place, &["charge"]).await;
    let coordinator = start(&store);
    until(|| store.saves_waiting.load(Ordering::SeqCst) == 1).await;
    store.away.store(true, Ordering::SeqCst);
    // Renewals come three times per lease: after so many the lease of 600 ms is over.
    until(|| store.renewals_failed.load(Ordering::SeqCst) >= 5).await;
    store.let_saves_go();
    while place.db.saga_log(&id, 10).await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    until(|| store.renewals_failed.load(Ordering::SeqCst) >= 7).await;
    assert!(
        place.shop.paths().is_empty(),
        "its start is durable, and nobody may send"
    );
    store.away.store(false, Ordering::SeqCst);
    assert_eq!(coordinator.end_of(&id).await.status, Status::Completed);
    assert_eq!(place.shop.paths(), ["charge"]);
}

/// Rule S3: a request gets between a decision and its write. The write misses, the answer behind it is not forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_whose_write_misses_is_decided_again_and_its_call_not_repeated() {
    let place = Place::new().await;
    let store = Faulty::over(&place.db);
    store.hold_saves();
    let id = submit(&place, &["reserve", "charge"]).await;
    let coordinator = start(&store);
    until(|| store.saves_waiting.load(Ordering::SeqCst) == 1).await;
    store.saves.add_permits(1);
    place.shop.until_called("reserve", 1).await;
    until(|| store.saves_waiting.load(Ordering::SeqCst) == 2).await;
    let outside = SagaHandle::of_store(Arc::new(place.db.clone()));
    outside.retry(&id, "ann").await.unwrap();
    store.let_saves_go();
    assert_eq!(coordinator.end_of(&id).await.status, Status::Completed);
    assert_eq!(place.shop.paths(), ["reserve", "charge"]);
    let log = place.db.saga_log(&id, 100).await.unwrap();
    assert_eq!(
        log.iter().filter(|row| row.entry.event == "retry").count(),
        1,
        "{log:?}"
    );
}
