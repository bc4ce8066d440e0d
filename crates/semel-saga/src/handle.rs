//! Submitting sagas and looking after them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use semel_core::saga::{CheckedDefinition, Instance, LogRow, SagaId, Status};
use semel_core::store::{
    RequestReply, SagaLookup, SagaRequest, SagaStore, SagaSummary, Submission, SubmitReply,
};
use semel_core::{Clock as _, ErrorKind, StoreError, SystemClock};
use tokio::sync::{mpsc, oneshot};

use crate::error::SagaError;

/// How often a waiter looks at the store itself: another process may end the saga.
const WAIT_POLL: Duration = Duration::from_millis(250);

pub(crate) enum Message {
    Submit(Box<Submission>, oneshot::Sender<Result<SubmitReply, SagaError>>),
    /// A request was noted for this saga.
    Requested(SagaId),
}

/// A saga was accepted, now or before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submitted {
    /// It is new.
    New,
    /// It was submitted before, and stands like this.
    Existing(Status),
}

/// How a saga stands.
#[derive(Debug, Clone)]
pub struct SagaView {
    /// Its id.
    pub id: SagaId,
    /// Where it stands.
    pub status: Status,
    /// Its steps; `None` once it was pruned, or when this build cannot read them.
    pub instance: Option<Instance>,
}

/// Handle to a coordinator, or to the store alone. Cheap to clone.
#[derive(Clone)]
pub struct SagaHandle {
    store: Arc<dyn SagaStore>,
    coordinator: Option<mpsc::Sender<Message>>,
    waiters: Arc<Waiters>,
}

impl std::fmt::Debug for SagaHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SagaHandle")
            .field("coordinator", &self.coordinator.is_some())
            .finish_non_exhaustive()
    }
}

impl SagaHandle {
    /// A handle for a process without a coordinator: what it submits is taken up by one elsewhere.
    #[must_use]
    pub fn of_store(store: Arc<dyn SagaStore>) -> Self {
        Self {
            store,
            coordinator: None,
            waiters: Arc::default(),
        }
    }

    pub(crate) fn of_coordinator(
        store: Arc<dyn SagaStore>,
        coordinator: mpsc::Sender<Message>,
        waiters: Arc<Waiters>,
    ) -> Self {
        Self {
            store,
            coordinator: Some(coordinator),
            waiters,
        }
    }

    /// Submits a saga: the same id with the same definition and input is the same saga, however often it is sent.
    /// Answers when it is durable (R4).
    ///
    /// # Errors
    /// [`SagaError::OtherInput`] and [`SagaError::OtherDefinition`] when the id is taken; [`SagaError::Ended`] when the
    /// saga was pruned; the store's. After any error the same submission may be sent again.
    ///
    /// # Cancel safety
    /// A dropped future may still have submitted it.
    pub async fn submit(
        &self,
        definition: &CheckedDefinition,
        id: SagaId,
        input: impl Into<Bytes>,
    ) -> Result<Submitted, SagaError> {
        let submission = Submission {
            id,
            definition: definition.clone(),
            input: input.into(),
            claimed: None,
        };
        submission.check()?;
        let reply = match &self.coordinator {
            None => self.store.submit_sagas(&[submission]).await?.pop(),
            Some(coordinator) => {
                let (tell, told) = oneshot::channel();
                coordinator
                    .try_send(Message::Submit(Box::new(submission), tell))
                    .map_err(|_| SagaError::Busy)?;
                Some(told.await.map_err(|_| died())??)
            }
        };
        match reply {
            Some(SubmitReply::Accepted) => Ok(Submitted::New),
            Some(SubmitReply::Existing(status)) => Ok(Submitted::Existing(status)),
            Some(SubmitReply::OtherInput) => Err(SagaError::OtherInput),
            Some(SubmitReply::OtherDefinition) => Err(SagaError::OtherDefinition),
            Some(SubmitReply::Ended(status)) => Err(SagaError::Ended(status)),
            None => Err(SagaError::Busy),
        }
    }

    /// Looks a saga up.
    ///
    /// # Errors
    /// The store's.
    pub async fn get(&self, id: &SagaId) -> Result<Option<SagaView>, StoreError> {
        let found = self.store.load_sagas(std::slice::from_ref(id)).await?.pop();
        Ok(match found {
            None | Some(SagaLookup::Absent) => None,
            Some(SagaLookup::Ended(status)) => Some(SagaView {
                id: id.clone(),
                status,
                instance: None,
            }),
            Some(SagaLookup::Found(record)) => {
                let instance = match self.store.saga_definition(&record.definition).await? {
                    Some(json) => CheckedDefinition::from_json(&json)
                        .ok()
                        .and_then(|definition| Instance::from_json(&record.state, &definition).ok()),
                    None => None,
                };
                Some(SagaView {
                    id: id.clone(),
                    status: record.status,
                    instance,
                })
            }
        })
    }

    /// Waits until the saga has ended or is stuck, at most `cap`; answers how it stands then.
    ///
    /// # Errors
    /// [`SagaError::Absent`], or the store's.
    pub async fn wait(&self, id: &SagaId, cap: Duration) -> Result<SagaView, SagaError> {
        let end = SystemClock.monotonic().saturating_add(cap);
        loop {
            // Subscribe, then read: an end in between is not missed.
            let ended = self.waiters.subscribe(id);
            let view = self.get(id).await?.ok_or(SagaError::Absent)?;
            let left = end.saturating_sub(SystemClock.monotonic());
            if view.status.is_terminal() || view.status == Status::Stuck || left.is_zero() {
                return Ok(view);
            }
            // Whether woken, timed out or the sender is gone: the next read decides.
            let _ = tokio::time::timeout(left.min(WAIT_POLL), ended).await;
        }
    }

    /// Asks for a saga to be undone. It is, unless its pivot has started by the time its owner takes the request up.
    ///
    /// # Errors
    /// [`SagaError::Ended`] when it has ended, [`SagaError::Absent`], or the store's.
    pub async fn cancel(&self, id: &SagaId, by: &str, why: &str) -> Result<(), SagaError> {
        self.request(
            id,
            SagaRequest::Cancel {
                by: by.to_owned(),
                why: why.to_owned(),
            },
        )
        .await
    }

    /// Gives what is stuck a fresh budget, after a person has mended its cause.
    ///
    /// # Errors
    /// As [`SagaHandle::cancel`].
    pub async fn retry(&self, id: &SagaId, by: &str) -> Result<(), SagaError> {
        self.request(id, SagaRequest::Retry { by: by.to_owned() }).await
    }

    /// Gives a saga up as it is; nothing more is called.
    ///
    /// # Errors
    /// As [`SagaHandle::cancel`].
    pub async fn abandon(&self, id: &SagaId, by: &str, why: &str) -> Result<(), SagaError> {
        self.request(
            id,
            SagaRequest::Abandon {
                by: by.to_owned(),
                why: why.to_owned(),
            },
        )
        .await
    }

    async fn request(&self, id: &SagaId, request: SagaRequest) -> Result<(), SagaError> {
        request.check()?;
        match self.store.request_saga(id, &request).await? {
            RequestReply::Noted => {
                if let Some(coordinator) = &self.coordinator {
                    // Only a hint: the saga is due, and its version has changed.
                    let _ = coordinator.try_send(Message::Requested(id.clone()));
                }
                Ok(())
            }
            RequestReply::Ended(status) => Err(SagaError::Ended(status)),
            RequestReply::Absent => Err(SagaError::Absent),
            RequestReply::TooMany => Err(SagaError::TooManyRequests),
        }
    }

    /// Sagas in the order of their ids, those after `after`.
    ///
    /// # Errors
    /// The store's.
    pub async fn list(
        &self,
        status: Option<Status>,
        after: Option<&SagaId>,
        limit: u32,
    ) -> Result<Vec<SagaSummary>, StoreError> {
        self.store.list_sagas(status, after, limit).await
    }

    /// How many sagas there are in each status.
    ///
    /// # Errors
    /// The store's.
    pub async fn stats(&self) -> Result<Vec<(Status, u64)>, StoreError> {
        self.store.count_sagas().await
    }

    /// What has happened to a saga, oldest first.
    ///
    /// # Errors
    /// The store's.
    pub async fn log(&self, id: &SagaId, limit: u32) -> Result<Vec<LogRow>, StoreError> {
        self.store.saga_log(id, limit).await
    }
}

/// A coordinator that died with the submission in hand may have stored it.
fn died() -> StoreError {
    let text = "the coordinator ended before it answered: send the same submission again";
    StoreError::new(ErrorKind::ReplyLost, "submit_sagas", text)
}

/// Who waits for which saga in this process.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<HashMap<SagaId, Vec<oneshot::Sender<()>>>>);

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, HashMap<SagaId, Vec<oneshot::Sender<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subscribe(&self, id: &SagaId) -> oneshot::Receiver<()> {
        let (wake, woken) = oneshot::channel();
        let mut waiters = self.lock();
        let senders = waiters.entry(id.clone()).or_default();
        // A waiter that has left leaves its sender; it goes here, or with its saga's end.
        senders.retain(|sender| !sender.is_closed());
        senders.push(wake);
        woken
    }

    pub(crate) fn wake(&self, id: &SagaId) {
        for sender in self.lock().remove(id).unwrap_or_default() {
            // Gone already: nobody waits.
            let _ = sender.send(());
        }
    }
}
