//! Getting, keeping and losing sagas.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use semel_core::limits::BATCH_ITEMS_MAX;
use semel_core::saga::{CheckedDefinition, Event, Instance, SagaId};
use semel_core::store::{
    ClaimDue, ClaimedSagas, Ownership, PendingRequest, RenewReply, SagaLookup, SagaRecord, SagaRequest,
    SaveState,
};
use semel_core::{Nonce, StoreError, error::chain};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::jobs::{Definitions, JobEnd};
use super::owned::{Next, Owned, Queued};
use super::{Engine, STORE_RETRY};

impl Engine {
    /// Looks for sagas that are due and owned by nobody.
    pub(super) fn claim(&mut self) {
        let room = self
            .config
            .owned_max
            .saturating_sub(self.sagas.len())
            .min(self.config.batch_max);
        if self.claiming || self.stopping() || room == 0 {
            self.claim_again = true;
            return;
        }
        self.claiming = true;
        self.claim_again = false;
        let nonce = Nonce::random();
        let claim = ClaimDue {
            nonce,
            lease_ms: self.config.lease_ms(),
            limit: u32::try_from(room).unwrap_or(u32::MAX),
            unserved: self.unserved.iter().copied().collect(),
            grace_ms: self.config.grace_ms(),
        };
        let store = self.store.clone();
        let known: Vec<[u8; 32]> = self.definitions.keys().copied().collect();
        let asked = self.clock.monotonic();
        self.jobs.spawn(async move {
            let result = async {
                let claimed = store.claim_sagas(&claim).await?;
                let mut read: Definitions = Vec::new();
                for saga in &claimed.sagas {
                    let hash = saga.definition;
                    if known.contains(&hash) || read.iter().any(|(read, _)| *read == hash) {
                        continue;
                    }
                    let definition = match store.saga_definition(&hash).await? {
                        Some(json) => CheckedDefinition::from_json(&json).map_err(|error| error.to_string()),
                        None => Err("its definition is not in the store".to_owned()),
                    };
                    read.push((hash, definition));
                }
                Ok((claimed, read))
            };
            let result = result.await;
            JobEnd::Claimed { asked, result, nonce }
        });
    }

    pub(super) fn claimed(
        &mut self,
        asked: Duration,
        result: Result<(ClaimedSagas, Definitions), StoreError>,
        nonce: Nonce,
    ) {
        self.claiming = false;
        let (claimed, read) = match result {
            Ok(answer) => answer,
            Err(failed) => {
                // Sagas of a claim whose reply was lost wait until their lease ends.
                warn!(error = %chain(&failed), "could not look for due sagas");
                return;
            }
        };
        self.learn_time(claimed.now, asked);
        let mut unreadable: HashMap<[u8; 32], String> = HashMap::new();
        for (hash, definition) in read {
            match definition {
                Ok(definition) => drop(self.definitions.insert(hash, definition)),
                Err(why) => drop(unreadable.insert(hash, why)),
            }
        }
        let full = claimed.sagas.len() >= self.config.batch_max;
        let lease_until = asked.saturating_add(self.config.lease);
        for record in claimed.sagas {
            let definition = match self.definitions.get(&record.definition) {
                Some(definition) => Ok(definition.clone()),
                None => Err(unreadable.get(&record.definition).cloned().unwrap_or_default()),
            };
            match definition {
                Ok(definition) => self.take(record, definition, nonce, lease_until),
                Err(why) => self.stick_unreadable(
                    record,
                    nonce,
                    lease_until,
                    format!("its definition cannot be read: {why}"),
                ),
            }
        }
        if full || self.claim_again {
            self.claim();
        }
    }

    /// A saga is ours, newly or again.
    fn take(
        &mut self,
        record: SagaRecord,
        definition: CheckedDefinition,
        nonce: Nonce,
        lease_until: Duration,
    ) {
        let instance = match Instance::from_json(&record.state, &definition) {
            Ok(instance) => instance,
            Err(why) => {
                return self.stick_unreadable(
                    record,
                    nonce,
                    lease_until,
                    format!("its state cannot be read: {why}"),
                );
            }
        };
        let id = record.id.clone();
        if let Err(why) = self.participants.serves(&definition)
            && !instance.status.is_terminal()
        {
            self.unserved.insert(record.definition);
            let ownership = Ownership {
                id: id.clone(),
                epoch: record.epoch,
                nonce,
            };
            let patience = self.now().plus_ms(-self.config.grace_ms());
            if record.due_at.is_some_and(|at| at > patience) {
                debug!(saga = %id, why, "left to a coordinator that serves it");
                return self.give_back(ownership);
            }
            let halt = (
                Event::Halt {
                    why: format!("no coordinator serves it: {why}"),
                },
                0,
            );
            self.own(record, definition, instance, nonce, lease_until, vec![halt]);
            return self.advance(&id);
        }
        let resume = Event::Resume {
            accepted_at: record.accepted_at,
            live: Vec::new(),
        };
        self.own(
            record,
            definition,
            instance,
            nonce,
            lease_until,
            vec![(resume, 0)],
        );
        self.advance(&id);
    }

    fn own(
        &mut self,
        record: SagaRecord,
        definition: CheckedDefinition,
        instance: Instance,
        nonce: Nonce,
        lease_until: Duration,
        first: Vec<Queued>,
    ) {
        let id = record.id.clone();
        let mut saga = Owned {
            ownership: Ownership {
                id: id.clone(),
                epoch: record.epoch,
                nonce,
            },
            version: record.version,
            definition,
            input: record.input,
            instance,
            next: None,
            queue: VecDeque::new(),
            requests_seen: 0,
            loading: false,
            live: HashMap::new(),
            lease: watch::Sender::new(lease_until),
            timer: None,
        };
        // Our own lease had ended and we claimed it again: calls that still run here are not lost, and are not repeated.
        if let Some(mut old) = self.forget(&id) {
            old.take_back();
            let answers = |(event, _): &Queued| matches!(event, Event::Answered { .. });
            saga.queue = old.queue.drain(..).filter(answers).collect();
            saga.live = std::mem::take(&mut old.live);
            saga.lease = old.lease;
            saga.lease.send_replace(lease_until);
        }
        let live = saga.known_calls();
        for (event, n) in first.into_iter().rev() {
            let event = match event {
                Event::Resume { accepted_at, .. } => Event::Resume {
                    accepted_at,
                    live: live.clone(),
                },
                other => other,
            };
            saga.queue.push_front((event, n));
        }
        queue_requests(&mut saga, record.requests);
        self.sagas.insert(id, saga);
    }

    /// One unreadable saga is written as stuck and let go of; the others go on.
    fn stick_unreadable(&mut self, record: SagaRecord, nonce: Nonce, lease_until: Duration, why: String) {
        warn!(saga = %record.id, why, "a saga cannot be read and is stuck");
        let id = record.id.clone();
        let definition = CheckedDefinition::unreadable();
        let instance = Instance::new(&definition);
        let requests_done = record.requests.last().map_or(0, |pending| pending.n);
        self.own(
            SagaRecord {
                requests: Vec::new(),
                ..record
            },
            definition,
            instance,
            nonce,
            lease_until,
            Vec::new(),
        );
        if let Some(saga) = self.sagas.get_mut(&id) {
            saga.next = Some(Next {
                state: SaveState::Unreadable(why),
                due_at: None,
                release: true,
                requests_done,
                log: Vec::new(),
                events: Vec::new(),
                alone: false,
            });
            self.to_save.push(id);
        }
    }

    fn give_back(&mut self, ownership: Ownership) {
        let store = self.store.clone();
        self.jobs.spawn(async move {
            if let Err(failed) = store.release_sagas(&[ownership]).await {
                warn!(error = %chain(&failed), "could not give a saga back; it waits until its lease ends");
            }
            JobEnd::GivenBack
        });
    }

    /// Removes a saga from memory; its calls' answers will not count, and those that wait to send do not.
    pub(super) fn forget(&mut self, id: &SagaId) -> Option<Owned> {
        let saga = self.sagas.remove(id)?;
        if let Some(at) = saga.timer {
            self.timers.remove(&(at, id.clone()));
        }
        self.to_save.retain(|waiting| waiting != id);
        self.waiters.wake(id);
        Some(saga)
    }

    pub(super) fn lose(&mut self, id: &SagaId) {
        info!(saga = %id, "another coordinator has taken it over");
        self.forget(id);
    }

    pub(super) fn renew(&mut self) {
        if self.renewing || self.sagas.is_empty() {
            return;
        }
        self.renewing = true;
        let (store, lease_ms) = (self.store.clone(), self.config.lease_ms());
        let owned: Vec<Ownership> = self.sagas.values().map(|saga| saga.ownership.clone()).collect();
        let asked = self.clock.monotonic();
        self.jobs.spawn(async move {
            let mut replies = Vec::with_capacity(owned.len());
            for chunk in owned.chunks(BATCH_ITEMS_MAX) {
                match store.renew_sagas(chunk, lease_ms).await {
                    Ok(some) => replies.extend(some),
                    Err(failed) => {
                        return JobEnd::Renewed {
                            asked,
                            owned,
                            result: Err(failed),
                        };
                    }
                }
            }
            JobEnd::Renewed {
                asked,
                owned,
                result: Ok(replies),
            }
        });
    }

    pub(super) fn renewed(
        &mut self,
        asked: Duration,
        owned: &[Ownership],
        result: Result<Vec<RenewReply>, StoreError>,
    ) {
        self.renewing = false;
        let replies = match result {
            Ok(replies) => replies,
            // The next renewal tries again; calls look at what is left of the lease before they send.
            Err(failed) => return warn!(error = %chain(&failed), "could not keep sagas longer"),
        };
        for (ownership, reply) in owned.iter().zip(replies) {
            let Some(saga) = self
                .sagas
                .get_mut(&ownership.id)
                .filter(|saga| saga.ownership == *ownership)
            else {
                continue;
            };
            match reply {
                RenewReply::Lost => self.lose(&ownership.id),
                RenewReply::Renewed { version } => {
                    saga.lease.send_replace(asked.saturating_add(self.config.lease));
                    // A request came in. While a write is out, its answer will tell.
                    if version != saga.version && saga.next.is_none() {
                        self.reload(&ownership.id);
                    }
                }
            }
        }
    }

    pub(super) fn requested(&mut self, id: &SagaId) {
        match self.sagas.get(id) {
            Some(saga) if saga.next.is_none() => self.reload(id),
            Some(_) => {}
            None => self.claim(),
        }
    }

    /// Reads a saga again: somebody else has written to it.
    pub(super) fn reload(&mut self, id: &SagaId) {
        let Some(saga) = self.sagas.get_mut(id).filter(|saga| !saga.loading) else {
            return;
        };
        saga.loading = true;
        let (store, id) = (self.store.clone(), id.clone());
        self.jobs.spawn(async move {
            let result = store
                .load_sagas(std::slice::from_ref(&id))
                .await
                .map(|mut found| found.pop());
            if result.is_err() {
                tokio::time::sleep(STORE_RETRY).await;
            }
            JobEnd::Loaded { id, result }
        });
    }

    pub(super) fn loaded(&mut self, id: SagaId, result: Result<Option<SagaLookup>, StoreError>) {
        let Some(saga) = self.sagas.get_mut(&id) else {
            return;
        };
        saga.loading = false;
        let record = match result {
            Ok(Some(SagaLookup::Found(record))) => record,
            Ok(_) => return self.lose(&id),
            Err(failed) => {
                warn!(saga = %id, error = %chain(&failed), "could not read a saga again");
                return self.reload(&id);
            }
        };
        let ours = record.epoch == saga.ownership.epoch && record.owner == Some(saga.ownership.nonce);
        if !ours || record.status.is_terminal() {
            return self.lose(&id);
        }
        match Instance::from_json(&record.state, &saga.definition) {
            Ok(instance) => {
                saga.version = record.version;
                saga.instance = instance;
                queue_requests(saga, record.requests);
                self.advance(&id);
            }
            Err(why) => {
                let lease_until = *saga.lease.borrow();
                let nonce = saga.ownership.nonce;
                self.stick_unreadable(
                    *record,
                    nonce,
                    lease_until,
                    format!("its state cannot be read: {why}"),
                );
            }
        }
    }
}

fn queue_requests(saga: &mut Owned, requests: Vec<PendingRequest>) {
    for pending in requests {
        if pending.n <= saga.requests_seen {
            continue;
        }
        saga.requests_seen = pending.n;
        let event = match pending.request {
            SagaRequest::Cancel { by, why } => Event::Cancel { by, why },
            SagaRequest::Retry { by } => Event::Retry { by },
            SagaRequest::Abandon { by, why } => Event::Abandon { by, why },
        };
        saga.queue.push_back((event, pending.n));
    }
}
