//! Sagas in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::error::{ErrorKind, StoreError};
use crate::fingerprint::Fingerprint;
use crate::host::{Clock, SystemClock, Timestamp};
use crate::limits::{self, check_batch};
use crate::saga::{CheckedDefinition, LogEntry, LogRow, SagaId, Status};
use crate::store::{
    ClaimDue, ClaimedSagas, Ownership, PendingRequest, RenewReply, RequestReply, SagaLookup, SagaRecord,
    SagaRequest, SagaStore, SagaSummary, Save, SaveReply, SaveState, Submission, SubmitReply,
};

/// A saga store in this process's memory. Gone with the process; for tests and as the specification.
pub struct MemorySagas {
    clock: Arc<dyn Clock>,
    state: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    definitions: HashMap<[u8; 32], CheckedDefinition>,
    sagas: BTreeMap<SagaId, Row>,
    requests: i64,
}

struct Row {
    record: SagaRecord,
    lease_until: Option<Timestamp>,
    updated_at: Timestamp,
    ended_at: Option<Timestamp>,
    /// Set once the saga is pruned.
    tombstone_until: Option<Timestamp>,
    why: Option<String>,
    fingerprint: Fingerprint,
    log: Vec<LogRow>,
}

impl Default for MemorySagas {
    fn default() -> Self {
        Self::new(Arc::new(SystemClock))
    }
}

impl MemorySagas {
    /// An empty store that reads this clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> (MutexGuard<'_, Inner>, Timestamp) {
        (
            self.state.lock().unwrap_or_else(PoisonError::into_inner),
            self.clock.now(),
        )
    }
}

impl Row {
    fn log(&mut self, at: Timestamp, entries: &[LogEntry]) {
        let version = self.record.version;
        self.log.extend(entries.iter().map(|entry| LogRow {
            version,
            at,
            entry: entry.clone(),
        }));
    }

    fn is_owned(&self, owned: &Ownership) -> bool {
        let record = &self.record;
        !record.status.is_terminal() && record.epoch == owned.epoch && record.owner == Some(owned.nonce)
    }

    fn release(&mut self) {
        self.record.owner = None;
        self.lease_until = None;
    }
}

impl Inner {
    fn submit(&mut self, it: &Submission, now: Timestamp) -> Result<SubmitReply, StoreError> {
        if let Some(row) = self.sagas.get(&it.id) {
            let record = &row.record;
            let ours = it
                .claimed
                .as_ref()
                .is_some_and(|start| record.owner == Some(start.nonce));
            return Ok(match () {
                () if record.definition != it.definition.hash() => SubmitReply::OtherDefinition,
                () if row.fingerprint != Fingerprint::of(&it.input) => SubmitReply::OtherInput,
                () if row.tombstone_until.is_some() => SubmitReply::Ended(record.status),
                () if ours && record.version == 1 => SubmitReply::Accepted,
                () => SubmitReply::Existing(record.status),
            });
        }
        let fresh = crate::saga::Instance::new(&it.definition);
        let instance = it.claimed.as_ref().map_or(&fresh, |start| &start.instance);
        self.definitions
            .insert(it.definition.hash(), it.definition.clone());
        let mut row = Row {
            record: SagaRecord {
                id: it.id.clone(),
                definition: it.definition.hash(),
                input: it.input.clone(),
                state: to_json(instance)?,
                status: instance.status,
                version: 1,
                epoch: i64::from(it.claimed.is_some()),
                owner: it.claimed.as_ref().map(|start| start.nonce),
                due_at: it.claimed.as_ref().map_or(Some(now), |start| start.due_at),
                accepted_at: now,
                requests: Vec::new(),
            },
            lease_until: it.claimed.as_ref().map(|start| now.plus_ms(start.lease_ms)),
            updated_at: now,
            ended_at: instance.status.is_terminal().then_some(now),
            tombstone_until: None,
            why: None,
            fingerprint: Fingerprint::of(&it.input),
            log: Vec::new(),
        };
        if let Some(start) = &it.claimed {
            row.log(now, &start.log);
        }
        self.sagas.insert(it.id.clone(), row);
        Ok(SubmitReply::Accepted)
    }

    fn save(&mut self, save: &Save, now: Timestamp) -> Result<SaveReply, StoreError> {
        let Some(row) = self
            .sagas
            .get_mut(&save.owned.id)
            .filter(|row| row.is_owned(&save.owned))
        else {
            return Ok(SaveReply::Lost);
        };
        if row.record.version != save.version {
            return Ok(SaveReply::WrongVersion);
        }
        if let SaveState::Instance(instance) = &save.state {
            row.record.state = to_json(instance)?;
            let reasons = instance.reasons();
            row.why = (!reasons.is_empty()).then(|| reasons.join("; "));
        }
        if let SaveState::Unreadable(why) = &save.state {
            row.why = Some(why.clone());
        }
        row.record.status = save.state.status();
        row.record.version += 1;
        row.record.due_at = save.due_at.filter(|_| !row.record.status.is_terminal());
        row.record
            .requests
            .retain(|pending| pending.n > save.requests_done);
        row.updated_at = now;
        row.log(now, &save.log);
        if row.record.status.is_terminal() {
            row.ended_at = Some(now);
        }
        if save.release {
            row.release();
        }
        Ok(SaveReply::Saved)
    }
}

fn to_json(instance: &crate::saga::Instance) -> Result<String, StoreError> {
    let failed =
        |error: serde_json::Error| StoreError::new(ErrorKind::Corrupt, "save_sagas", error.to_string());
    instance.to_json().map_err(failed)
}

#[async_trait]
impl SagaStore for MemorySagas {
    async fn saga_time(&self) -> Result<Timestamp, StoreError> {
        Ok(self.clock.now())
    }

    async fn submit_sagas(&self, submissions: &[Submission]) -> Result<Vec<SubmitReply>, StoreError> {
        check_batch(submissions.len())?;
        submissions.iter().try_for_each(Submission::check)?;
        let (mut inner, now) = self.lock();
        submissions.iter().map(|it| inner.submit(it, now)).collect()
    }

    async fn claim_sagas(&self, claim: &ClaimDue) -> Result<ClaimedSagas, StoreError> {
        let (mut inner, now) = self.lock();
        let mut due: Vec<&mut Row> = inner
            .sagas
            .values_mut()
            .filter(|row| {
                let unserved = claim.unserved.contains(&row.record.definition);
                let latest = if unserved {
                    now.plus_ms(-claim.grace_ms)
                } else {
                    now
                };
                row.record.due_at.is_some_and(|at| at <= latest)
                    && row.lease_until.is_none_or(|until| until <= now)
            })
            .collect();
        due.sort_by_key(|row| row.record.due_at);
        let take = |row: &mut Row| {
            row.record.epoch += 1;
            row.record.owner = Some(claim.nonce);
            row.lease_until = Some(now.plus_ms(claim.lease_ms));
            row.record.clone()
        };
        let sagas = due.into_iter().take(claim.limit as usize).map(take).collect();
        Ok(ClaimedSagas { now, sagas })
    }

    async fn save_sagas(&self, saves: &[Save]) -> Result<Vec<SaveReply>, StoreError> {
        check_batch(saves.len())?;
        let (mut inner, now) = self.lock();
        saves.iter().map(|save| inner.save(save, now)).collect()
    }

    async fn renew_sagas(&self, owned: &[Ownership], lease_ms: i64) -> Result<Vec<RenewReply>, StoreError> {
        check_batch(owned.len())?;
        let (mut inner, now) = self.lock();
        let mut renew = |owned: &Ownership| match inner.sagas.get_mut(&owned.id) {
            Some(row) if row.is_owned(owned) => {
                row.lease_until = Some(now.plus_ms(lease_ms));
                RenewReply::Renewed {
                    version: row.record.version,
                }
            }
            _ => RenewReply::Lost,
        };
        Ok(owned.iter().map(&mut renew).collect())
    }

    async fn release_sagas(&self, owned: &[Ownership]) -> Result<(), StoreError> {
        check_batch(owned.len())?;
        let (mut inner, _) = self.lock();
        for owned in owned {
            if let Some(row) = inner.sagas.get_mut(&owned.id).filter(|row| row.is_owned(owned)) {
                row.release();
            }
        }
        Ok(())
    }

    async fn load_sagas(&self, ids: &[SagaId]) -> Result<Vec<SagaLookup>, StoreError> {
        check_batch(ids.len())?;
        let (inner, _) = self.lock();
        let find = |id: &SagaId| match inner.sagas.get(id) {
            None => SagaLookup::Absent,
            Some(row) if row.tombstone_until.is_some() => SagaLookup::Ended(row.record.status),
            Some(row) => SagaLookup::Found(Box::new(row.record.clone())),
        };
        Ok(ids.iter().map(find).collect())
    }

    async fn saga_definition(&self, hash: &[u8; 32]) -> Result<Option<String>, StoreError> {
        let (inner, _) = self.lock();
        Ok(inner
            .definitions
            .get(hash)
            .map(|definition| definition.json().to_owned()))
    }

    async fn request_saga(&self, id: &SagaId, request: &SagaRequest) -> Result<RequestReply, StoreError> {
        request.check()?;
        let (mut inner, now) = self.lock();
        let n = inner.requests + 1;
        let Some(row) = inner.sagas.get_mut(id) else {
            return Ok(RequestReply::Absent);
        };
        if row.record.status.is_terminal() {
            return Ok(RequestReply::Ended(row.record.status));
        }
        if row.record.requests.len() >= limits::SAGA_REQUESTS_MAX {
            return Ok(RequestReply::TooMany);
        }
        row.record.requests.push(PendingRequest {
            n,
            request: request.clone(),
        });
        row.record.version += 1;
        row.record.due_at = Some(now);
        row.updated_at = now;
        inner.requests = n;
        Ok(RequestReply::Noted)
    }

    async fn list_sagas(
        &self,
        status: Option<Status>,
        after: Option<&SagaId>,
        limit: u32,
    ) -> Result<Vec<SagaSummary>, StoreError> {
        let (inner, _) = self.lock();
        let wanted = |row: &&Row| {
            row.tombstone_until.is_none()
                && status.is_none_or(|status| row.record.status == status)
                && after.is_none_or(|after| row.record.id > *after)
        };
        let summary = |row: &Row| SagaSummary {
            id: row.record.id.clone(),
            definition: inner
                .definitions
                .get(&row.record.definition)
                .map_or("", |it| it.name())
                .to_owned(),
            status: row.record.status,
            why: row.why.clone(),
            accepted_at: row.record.accepted_at,
            updated_at: row.updated_at,
        };
        Ok(inner
            .sagas
            .values()
            .filter(wanted)
            .take(limit as usize)
            .map(summary)
            .collect())
    }

    async fn count_sagas(&self) -> Result<Vec<(Status, u64)>, StoreError> {
        let (inner, _) = self.lock();
        let mut counts = BTreeMap::new();
        for row in inner.sagas.values().filter(|row| row.tombstone_until.is_none()) {
            *counts.entry(row.record.status).or_insert(0) += 1;
        }
        Ok(counts.into_iter().collect())
    }

    async fn saga_log(&self, id: &SagaId, limit: u32) -> Result<Vec<LogRow>, StoreError> {
        let (inner, _) = self.lock();
        let rows = inner
            .sagas
            .get(id)
            .map(|row| row.log.iter().take(limit as usize).cloned().collect());
        Ok(rows.unwrap_or_default())
    }

    async fn prune_sagas(&self, retention_ms: i64, tombstone_ms: i64, limit: u32) -> Result<u64, StoreError> {
        let (mut inner, now) = self.lock();
        let mut left = limit;
        inner.sagas.retain(|_, row| {
            let over = left > 0 && row.tombstone_until.is_some_and(|until| until <= now);
            left -= u32::from(over);
            !over
        });
        let latest = now.plus_ms(-retention_ms);
        let ended =
            |row: &&mut Row| row.tombstone_until.is_none() && row.ended_at.is_some_and(|at| at <= latest);
        let mut pruned = 0;
        for row in inner.sagas.values_mut().filter(ended).take(limit as usize) {
            row.tombstone_until = Some(now.plus_ms(tombstone_ms));
            row.record.state = String::new();
            row.record.input = bytes::Bytes::new();
            row.log.clear();
            pruned += 1;
        }
        Ok(pruned)
    }
}
