//! From events to durable decisions: many sagas share one commit.

use semel_core::limits::{SAGA_PAYLOAD_BYTES_MAX, SAGA_TEXT_BYTES_MAX};
use semel_core::saga::{Answer, Event, Op, SagaId, Status, code, step::step};
use semel_core::store::{Ownership, Save, SaveReply, SaveState};
use semel_core::{Retry, StoreError, crash_point, error::chain};
use tracing::{error, info, warn};

use super::jobs::JobEnd;
use super::owned::Next;
use super::sender::CallEnd;
use super::{Engine, STORE_RETRY};
use crate::config::millis;

impl Engine {
    /// Decides what waits in a saga's queue, all of it in one write. Nothing is decided while a write is out.
    pub(super) fn advance(&mut self, id: &SagaId) {
        let context = self.context();
        let hold = millis(self.config.hold);
        let stopping = self.stopping();
        let Some(saga) = self.sagas.get_mut(id) else {
            return;
        };
        if saga.next.is_some() || saga.loading {
            return;
        }
        let events: Vec<_> = saga.queue.drain(..).collect();
        let mut instance = saga.instance.clone();
        let mut log = Vec::new();
        let mut requests_done = 0;
        for (event, request) in &events {
            let decision = step(&saga.definition, instance, event.clone(), context);
            instance = decision.instance;
            log.extend(decision.log);
            requests_done = requests_done.max(*request);
        }
        let idle = instance.in_flight().is_empty();
        let due_at = instance.due_at(&saga.definition, context.now);
        // What waits long, or for ever, waits without an owner. While stopping, only what is out is kept.
        let far = due_at.is_none_or(|at| at > context.now.plus_ms(hold) || stopping);
        let release = instance.status.is_terminal() || (idle && saga.live.is_empty() && far);
        if instance == saga.instance && requests_done == 0 && !release {
            return self.dispatch(id);
        }
        let state = SaveState::Instance(Box::new(instance));
        saga.next = Some(Next {
            state,
            due_at,
            release,
            requests_done,
            log,
            events,
            alone: false,
        });
        self.to_save.push(id.clone());
    }

    /// A call came back.
    pub(super) fn answered(&mut self, end: CallEnd) {
        let CallEnd {
            id,
            number,
            step,
            op,
            answer,
        } = end;
        let Some(saga) = self.sagas.get_mut(&id) else {
            return;
        };
        if saga.live.get(&(step, op)) != Some(&number) {
            return;
        }
        saga.live.remove(&(step, op));
        let answer = match answer {
            Answer::Succeeded(output) if output.len() > SAGA_PAYLOAD_BYTES_MAX => Answer::TooLarge,
            Answer::Refused(mut why) => {
                why.truncate(why.floor_char_boundary(SAGA_TEXT_BYTES_MAX));
                Answer::Refused(why)
            }
            other => other,
        };
        match op {
            Op::Action => crash_point("saga.answered"),
            Op::Compensation => crash_point("saga.compensation_answered"),
        }
        // Not yet believed: a participant that has seen a later epoch usually means that we lost the saga (rule S9).
        let doubtful = answer == Answer::StaleEpoch;
        saga.queue.push_back((Event::Answered { step, op, answer }, 0));
        if doubtful && saga.next.is_none() {
            self.reload(&id);
        } else {
            self.advance(&id);
        }
    }

    /// Sends what waits to be written or submitted, if nothing is on its way.
    pub(super) fn flush(&mut self) {
        self.flush_submits();
        if self.saving || self.to_save.is_empty() {
            return;
        }
        let mut saves = Vec::new();
        let mut alone = false;
        // Oldest first, so that nobody waits for ever.
        for id in std::mem::take(&mut self.to_save) {
            let Some(saga) = self.sagas.get(&id) else {
                continue;
            };
            let Some(next) = &saga.next else { continue };
            let full = alone || saves.len() >= self.config.batch_max;
            if full || (next.alone && !saves.is_empty()) {
                self.to_save.push(id);
                continue;
            }
            alone = next.alone;
            saves.push(Save {
                owned: saga.ownership.clone(),
                version: saga.version,
                state: next.state.clone(),
                due_at: next.due_at,
                release: next.release,
                requests_done: next.requests_done,
                log: next.log.clone(),
            });
        }
        if saves.is_empty() {
            return;
        }
        self.saving = true;
        let store = self.store.clone();
        self.jobs.spawn(async move {
            let result = store.save_sagas(&saves).await;
            let saves = saves.into_iter().map(|save| (save.owned, save.version)).collect();
            JobEnd::Saved { saves, result }
        });
    }

    pub(super) fn saved(&mut self, saves: Vec<(Ownership, i64)>, result: Result<Vec<SaveReply>, StoreError>) {
        let replies = match result {
            Ok(replies) => replies,
            Err(failed) => return self.save_failed(&saves, &failed),
        };
        self.saving = false;
        for ((owned, version), reply) in saves.into_iter().zip(replies) {
            // Lost and claimed again while the write was out: the new right knows nothing of it.
            let same = |saga: &super::Owned| saga.ownership == owned && saga.version == version;
            if !self.sagas.get(&owned.id).is_some_and(same) {
                continue;
            }
            match reply {
                SaveReply::Saved => self.act_on_saved(&owned.id),
                SaveReply::WrongVersion => {
                    if let Some(saga) = self.sagas.get_mut(&owned.id) {
                        saga.take_back();
                    }
                    self.reload(&owned.id);
                }
                SaveReply::Lost => self.lose(&owned.id),
            }
        }
    }

    fn save_failed(&mut self, saves: &[(Ownership, i64)], failed: &StoreError) {
        warn!(sagas = saves.len(), error = %chain(failed), "could not write sagas");
        match failed.retry() {
            // Whether it was applied or not: written again, it is applied once or answers `WrongVersion`.
            Retry::Later | Retry::OutcomeUnknown => {
                self.jobs.spawn(async {
                    tokio::time::sleep(STORE_RETRY).await;
                    JobEnd::Pause
                });
            }
            Retry::Never => {
                self.saving = false;
                for (owned, _) in saves {
                    let Some(next) = self.sagas.get_mut(&owned.id).and_then(|saga| saga.next.as_mut()) else {
                        continue;
                    };
                    match (next.alone, &next.state) {
                        (false, _) => next.alone = true,
                        // It alone cannot be written: it is stuck with that reason, the others go on.
                        (true, SaveState::Instance(_)) => {
                            error!(saga = %owned.id, error = %chain(failed), "a saga cannot be written and is stuck");
                            next.state = SaveState::Unreadable(format!("it could not be written: {failed}"));
                            (next.due_at, next.release) = (None, true);
                            next.log.clear();
                        }
                        (true, SaveState::Unreadable(_)) => {
                            drop(self.forget(&owned.id));
                            continue;
                        }
                    }
                    self.to_save.push(owned.id.clone());
                }
            }
        }
    }

    /// A decision is durable: now it may be acted on.
    fn act_on_saved(&mut self, id: &SagaId) {
        let Some(saga) = self.sagas.get_mut(id) else {
            return;
        };
        let Some(next) = saga.next.take() else { return };
        saga.version += 1;
        let (turned, status) = (saga.instance.turned.is_some(), next.state.status());
        if let SaveState::Instance(instance) = next.state {
            saga.instance = *instance;
        }
        if !turned && saga.instance.turned.is_some() {
            crash_point("saga.turned");
        }
        if status.is_terminal() {
            crash_point("saga.finished");
        }
        if status == Status::Stuck {
            let why = saga.instance.reasons().join("; ");
            warn!(saga = %id, why, "{}: a saga needs a person", code::NEEDS_PERSON);
        }
        if next.release {
            // What came in while the write was out counts for the next owner, by the requests in the store.
            let answers = saga
                .queue
                .iter()
                .any(|(event, _)| matches!(event, Event::Answered { .. }));
            if answers && !status.is_terminal() {
                info!(saga = %id, "an answer came while the saga was given back");
            }
            drop(self.forget(id));
            return;
        }
        if status.is_terminal() || status == Status::Stuck {
            self.waiters.wake(id);
        }
        self.set_timer(id);
        if self.sagas.get(id).is_some_and(|saga| !saga.queue.is_empty()) {
            // Calls that this write allowed go out first.
            self.dispatch(id);
            self.advance(id);
        } else {
            self.dispatch(id);
        }
    }

    pub(super) fn set_timer(&mut self, id: &SagaId) {
        let Some(saga) = self.sagas.get_mut(id) else {
            return;
        };
        let at = saga.instance.timer_at(&saga.definition);
        if at == saga.timer {
            return;
        }
        if let Some(old) = saga.timer {
            self.timers.remove(&(old, id.clone()));
        }
        saga.timer = at;
        if let Some(at) = at {
            self.timers.insert((at, id.clone()));
        }
    }
}
