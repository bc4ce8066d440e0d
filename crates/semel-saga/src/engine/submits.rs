//! Accepting sagas: many share one commit, each already owned and with its first steps started.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use semel_core::saga::{Event, Instance, step::step};
use semel_core::store::{ClaimedStart, Ownership, Submission, SubmitReply};
use semel_core::{Nonce, Retry, StoreError, crash_point, error::chain};
use tokio::sync::{oneshot, watch};
use tracing::warn;

use super::jobs::JobEnd;
use super::owned::Owned;
use super::{Engine, STORE_RETRY};
use crate::error::SagaError;
use crate::handle::Message;

/// Attempts to store a batch of submissions whose reply was lost.
const ATTEMPTS_MAX: u32 = 3;

pub(super) struct Waiting {
    submission: Submission,
    reply: oneshot::Sender<Result<SubmitReply, SagaError>>,
    attempts: u32,
}

/// Nothing was stored.
pub(super) fn turn_away(message: Message) {
    if let Message::Submit(_, reply) = message {
        tell(reply, Err(SagaError::Busy));
    }
}

fn tell(reply: oneshot::Sender<Result<SubmitReply, SagaError>>, answer: Result<SubmitReply, SagaError>) {
    // A caller that has left can look its saga up.
    let _ = reply.send(answer);
}

impl Engine {
    pub(super) fn submit(
        &mut self,
        mut submission: Submission,
        reply: oneshot::Sender<Result<SubmitReply, SagaError>>,
    ) {
        if self.to_submit.len() >= self.config.queue_max {
            return tell(reply, Err(SagaError::Busy));
        }
        let definition = &submission.definition;
        let room = self.sagas.len() + self.to_submit.len() < self.config.owned_max;
        // Without the store's time no deadline can be set: then, and without room, it is taken up like any due saga.
        if room && self.offset.is_some() && self.participants.serves(definition).is_ok() {
            let now = self.now();
            let resume = Event::Resume {
                accepted_at: now,
                live: Vec::new(),
            };
            let decision = step(definition, Instance::new(definition), resume, self.context());
            submission.claimed = Some(ClaimedStart {
                nonce: Nonce::random(),
                lease_ms: self.config.lease_ms(),
                due_at: decision.instance.due_at(definition, now),
                instance: decision.instance,
                log: decision.log,
            });
        }
        self.to_submit.push(Waiting {
            submission,
            reply,
            attempts: 0,
        });
        self.flush();
    }

    pub(super) fn flush_submits(&mut self) {
        if self.submitting || self.to_submit.is_empty() {
            return;
        }
        self.submitting = true;
        let count = self.to_submit.len().min(self.config.batch_max);
        let waiting: Vec<Waiting> = self.to_submit.drain(..count).collect();
        let pause = waiting.iter().any(|it| it.attempts > 0);
        let store = self.store.clone();
        let clock = self.clock.clone();
        self.jobs.spawn(async move {
            if pause {
                tokio::time::sleep(STORE_RETRY).await;
            }
            let submissions: Vec<Submission> = waiting.iter().map(|it| it.submission.clone()).collect();
            let asked = clock.monotonic();
            let result = store.submit_sagas(&submissions).await;
            JobEnd::Submitted {
                asked,
                waiting,
                result,
            }
        });
    }

    pub(super) fn submitted(
        &mut self,
        asked: Duration,
        waiting: Vec<Waiting>,
        result: Result<Vec<SubmitReply>, StoreError>,
    ) {
        self.submitting = false;
        let replies = match result {
            Ok(replies) => replies,
            Err(failed) => return self.submit_failed(waiting, &failed),
        };
        let mut unowned = false;
        for (it, reply) in waiting.into_iter().zip(replies) {
            if reply == SubmitReply::Accepted {
                crash_point("saga.accepted");
                unowned |= it.submission.claimed.is_none();
                self.accepted(it.submission, asked.saturating_add(self.config.lease));
            }
            tell(it.reply, Ok(reply));
        }
        if unowned {
            self.claim();
        }
    }

    fn accepted(&mut self, submission: Submission, lease_until: Duration) {
        let Some(start) = submission.claimed else { return };
        let id = submission.id;
        self.definitions
            .insert(submission.definition.hash(), submission.definition.clone());
        let saga = Owned {
            ownership: Ownership {
                id: id.clone(),
                epoch: 1,
                nonce: start.nonce,
            },
            version: 1,
            definition: submission.definition,
            input: submission.input,
            instance: start.instance,
            next: None,
            queue: VecDeque::new(),
            requests_seen: 0,
            loading: false,
            live: HashMap::new(),
            lease: watch::Sender::new(lease_until),
            timer: None,
        };
        drop(self.forget(&id));
        self.sagas.insert(id.clone(), saga);
        self.dispatch(&id);
    }

    fn submit_failed(&mut self, waiting: Vec<Waiting>, failed: &StoreError) {
        warn!(sagas = waiting.len(), error = %chain(failed), "could not accept sagas");
        let again = failed.retry() == Retry::OutcomeUnknown;
        for mut it in waiting {
            it.attempts += 1;
            // Asked again under the same nonce, an applied submission answers `Accepted`.
            if again && it.attempts < ATTEMPTS_MAX && !self.stopping() {
                self.to_submit.push(it);
            } else {
                tell(it.reply, Err(failed.clone().into()));
            }
        }
    }
}
