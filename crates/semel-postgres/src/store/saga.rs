//! Sagas on PostgreSQL: each call is one statement, a transaction of its own.
//!
//! The statements are functions of the schema `semel` (`sql/0004_saga_functions.sql`), so that their plan is pinned to
//! the primary key however the table grows, and so that what a statement waited for is seen by the next one.
//!
//! # Guarantees
//! - Many sagas share a commit. Each transition is compare-and-set on epoch, nonce and version in the statement that
//!   writes it with its log; sagas that have ended match nothing.
//! - Two coordinators that claim at once get different sagas and do not wait for each other.
//! - Arrays are sorted by id, so that two batches never wait for each other in a circle.
//!
//! # Not guaranteed
//! After a fail-over to an asynchronous standby whatever it had not received is forgotten, as for all your data; the
//! rescan that would mend that (rule S9) is not built yet.
//!
//! # Not yet
//! `semel.submit_saga` for other languages. The log is not partitioned.
//!
//! # Limits
//! A statement waits for a row that another transaction holds for at most [`Config::lock_wait`](crate::Config). The
//! character NUL, which PostgreSQL cannot store in a text, becomes U+FFFD in reasons and log texts.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use semel_core::limits::{self, check_batch};
use semel_core::saga::{Instance, LogRow, SagaId, Status};
use semel_core::store::{
    ClaimDue, ClaimedSagas, Ownership, RenewReply, RequestReply, SagaLookup, SagaRecord, SagaRequest,
    SagaStore, SagaSummary, Save, SaveReply, Submission, SubmitReply,
};
use semel_core::{ErrorKind, Fingerprint, StoreError, Timestamp};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::autocommit::{Statement, lock_timeout};
use super::saga_rows::{self as rows, LogColumns, SaveRow, column, failed, plain};
use crate::db::Postgres;
use crate::gate::{query, query_as, query_scalar};

/// Times that a submission is asked again because what stood under its id went in between.
const TRIES_MAX: usize = 16;

const SUBMIT: &str =
    "SELECT * FROM semel.saga_submit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15,
  $16, $17, $18, $19)";
const CLAIM: &str =
    "SELECT semel.us(t.now) AS now_us, c.* FROM (SELECT clock_timestamp() AS now OFFSET 0) AS t
  LEFT JOIN semel.saga_claim($1, $2, $3, $4, $5) AS c ON true";
const SAVE: &str =
    "SELECT * FROM semel.saga_save($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,
  $17, $18)";
const HOLD: &str = "SELECT * FROM semel.saga_hold($1, $2, $3, $4, $5)";
const REQUEST: &str = "SELECT * FROM semel.saga_request($1, $2, $3, $4, $5, $6)";
const PRUNE: &str = "SELECT semel.saga_prune($1, $2, $3) AS pruned";

#[async_trait]
impl SagaStore for Postgres {
    async fn saga_time(&self) -> Result<Timestamp, StoreError> {
        self.now().await
    }

    async fn submit_sagas(&self, submissions: &[Submission]) -> Result<Vec<SubmitReply>, StoreError> {
        const OP: &str = "submit_sagas";
        check_batch(submissions.len())?;
        submissions.iter().try_for_each(Submission::check)?;
        let states = submissions
            .iter()
            .map(first_state)
            .collect::<Result<Vec<_>, _>>()?;
        let mut replies: Vec<Option<SubmitReply>> = vec![None; submissions.len()];
        for tries in 0.. {
            let bytes = |n: usize| submissions[n].input.len() + states[n].1.len();
            let round = rows::round(&replies, |n| &submissions[n].id, bytes);
            if round.is_empty() {
                break;
            }
            if tries >= TRIES_MAX + submissions.len() {
                let text = "sagas of these ids came and went again and again; send it again";
                return Err(StoreError::new(ErrorKind::ReplyLost, OP, text));
            }
            let sent = || self.submit(submissions, &states, &round);
            let answers = self.autocommit(OP, sent).await;
            for row in &answers.map_err(|error| rows::partly(error, &replies))? {
                let id: &str = row.try_get("id").map_err(failed(OP))?;
                if let Some(n) = round.iter().find(|n| submissions[**n].id.as_str() == id) {
                    replies[*n] = Some(submitted(&submissions[*n], row)?);
                }
            }
        }
        Ok(replies.into_iter().flatten().collect())
    }

    async fn claim_sagas(&self, claim: &ClaimDue) -> Result<ClaimedSagas, StoreError> {
        const OP: &str = "claim_sagas";
        let statement = || {
            query(CLAIM)
                .bind(claim.nonce.0)
                .bind(claim.lease_ms)
                .bind(i64::from(claim.limit))
                .bind(column(&claim.unserved, |hash| hash.to_vec()))
                .bind(claim.grace_ms)
        };
        let answers = self.autocommit(OP, statement).await?;
        let now = answers.first().map(|row| row.try_get("now_us")).transpose();
        let mut sagas: Vec<SagaRecord> = Vec::with_capacity(answers.len());
        for row in &answers {
            if row
                .try_get::<Option<&str>, _>("id")
                .map_err(failed(OP))?
                .is_some()
                && let SagaLookup::Found(record) = rows::lookup(row)?
            {
                sagas.push(*record);
            }
        }
        sagas.sort_by_key(|record| record.due_at);
        Ok(ClaimedSagas {
            now: Timestamp(now.map_err(failed(OP))?.unwrap_or_default()),
            sagas,
        })
    }

    async fn save_sagas(&self, saves: &[Save]) -> Result<Vec<SaveReply>, StoreError> {
        const OP: &str = "save_sagas";
        check_batch(saves.len())?;
        let written = saves.iter().map(SaveRow::of).collect::<Result<Vec<_>, _>>()?;
        let mut replies: Vec<Option<SaveReply>> = vec![None; saves.len()];
        loop {
            let round = rows::round(&replies, |n| &saves[n].owned.id, |n| written[n].bytes());
            if round.is_empty() {
                return Ok(replies.into_iter().flatten().collect());
            }
            let sent = || self.save(saves, &written, &round);
            let answers = self.autocommit(OP, sent).await;
            let mut verdicts: HashMap<String, SaveReply> = HashMap::with_capacity(round.len());
            for row in &answers.map_err(|error| rows::partly(error, &replies))? {
                verdicts.insert(
                    row.try_get("id").map_err(failed(OP))?,
                    match row.try_get("verdict").map_err(failed(OP))? {
                        "saved" => SaveReply::Saved,
                        _ => SaveReply::WrongVersion,
                    },
                );
            }
            for n in round {
                let verdict = verdicts.get(saves[n].owned.id.as_str());
                replies[n] = Some(verdict.copied().unwrap_or(SaveReply::Lost));
            }
        }
    }

    async fn renew_sagas(&self, owned: &[Ownership], lease_ms: i64) -> Result<Vec<RenewReply>, StoreError> {
        check_batch(owned.len())?;
        let held = self.hold(owned, Some(lease_ms), "renew_sagas").await?;
        let reply = |it: &Ownership| match held.get(it.id.as_str()) {
            Some((epoch, owner, version)) if *epoch == it.epoch && owner[..] == it.nonce.0 => {
                RenewReply::Renewed { version: *version }
            }
            _ => RenewReply::Lost,
        };
        Ok(owned.iter().map(reply).collect())
    }

    async fn release_sagas(&self, owned: &[Ownership]) -> Result<(), StoreError> {
        check_batch(owned.len())?;
        self.hold(owned, None, "release_sagas").await.map(drop)
    }

    async fn load_sagas(&self, ids: &[SagaId]) -> Result<Vec<SagaLookup>, StoreError> {
        check_batch(ids.len())?;
        let wanted: Vec<&str> = ids.iter().map(SagaId::as_str).collect();
        let found = query("SELECT * FROM semel.saga_record WHERE id = ANY ($1)")
            .bind(wanted)
            .fetch_all(&self.own)
            .await
            .map_err(failed("load_sagas"))?;
        let mut by_id: HashMap<String, SagaLookup> = HashMap::with_capacity(found.len());
        for row in &found {
            by_id.insert(
                row.try_get("id").map_err(failed("load_sagas"))?,
                rows::lookup(row)?,
            );
        }
        let of = |id: &SagaId| by_id.get(id.as_str()).cloned().unwrap_or(SagaLookup::Absent);
        Ok(ids.iter().map(of).collect())
    }

    async fn saga_definition(&self, hash: &[u8; 32]) -> Result<Option<String>, StoreError> {
        query_scalar("SELECT body FROM semel.saga_definition WHERE hash = $1")
            .bind(hash)
            .fetch_optional(&self.own)
            .await
            .map_err(failed("saga_definition"))
    }

    async fn request_saga(&self, id: &SagaId, request: &SagaRequest) -> Result<RequestReply, StoreError> {
        const OP: &str = "request_saga";
        request.check()?;
        let (kind, by, why) = request.parts();
        let statement = || {
            query(REQUEST)
                .bind(id.as_str().to_owned())
                .bind(kind)
                .bind(plain(by))
                .bind(plain(why))
                .bind(i64::try_from(limits::SAGA_REQUESTS_MAX).unwrap_or(i64::MAX))
                .bind(self.wait())
        };
        let answers = self.autocommit(OP, statement).await?;
        let Some(row) = answers.first() else {
            return Err(rows::corrupt("semel.saga_request gave no answer"));
        };
        Ok(match row.try_get("reply").map_err(failed(OP))? {
            "noted" => RequestReply::Noted,
            "ended" => RequestReply::Ended(rows::status(row.try_get("status").map_err(failed(OP))?)?),
            "too_many" => RequestReply::TooMany,
            _ => RequestReply::Absent,
        })
    }

    async fn list_sagas(
        &self,
        status: Option<Status>,
        after: Option<&SagaId>,
        limit: u32,
    ) -> Result<Vec<SagaSummary>, StoreError> {
        const ALL: &str = "SELECT s.id, d.name, s.status, s.why, semel.us(s.accepted_at) AS accepted_us,
            semel.us(s.updated_at) AS updated_us
          FROM semel.saga AS s JOIN semel.saga_definition AS d ON d.hash = s.definition
          WHERE s.tombstone_until IS NULL AND s.id > $1 ORDER BY s.id LIMIT $2";
        // Two statements, so that each is read along its index.
        const OF_STATUS: &str =
            "SELECT s.id, d.name, s.status, s.why, semel.us(s.accepted_at) AS accepted_us,
            semel.us(s.updated_at) AS updated_us
          FROM semel.saga AS s JOIN semel.saga_definition AS d ON d.hash = s.definition
          WHERE s.tombstone_until IS NULL AND s.id > $1 AND s.status = $3 ORDER BY s.id LIMIT $2";
        let after = after.map_or("", SagaId::as_str);
        let query = match status {
            None => query(ALL).bind(after).bind(i64::from(limit)),
            Some(status) => query(OF_STATUS)
                .bind(after)
                .bind(i64::from(limit))
                .bind(status.as_str()),
        };
        let found = query.fetch_all(&self.own).await.map_err(failed("list_sagas"))?;
        found.iter().map(rows::summary).collect()
    }

    async fn count_sagas(&self) -> Result<Vec<(Status, u64)>, StoreError> {
        let found: Vec<(String, i64)> =
            query_as("SELECT status, count(*) FROM semel.saga WHERE tombstone_until IS NULL GROUP BY status")
                .fetch_all(&self.own)
                .await
                .map_err(failed("count_sagas"))?;
        let mut counts = BTreeMap::new();
        for (status, count) in found {
            counts.insert(rows::status(&status)?, count.unsigned_abs());
        }
        Ok(counts.into_iter().collect())
    }

    async fn saga_log(&self, id: &SagaId, limit: u32) -> Result<Vec<LogRow>, StoreError> {
        let found = query(
            "SELECT version, semel.us(at) AS at_us, step, op, event, text FROM semel.saga_log
             WHERE saga = $1 ORDER BY version, n LIMIT $2",
        )
        .bind(id.as_str())
        .bind(i64::from(limit))
        .fetch_all(&self.own)
        .await
        .map_err(failed("saga_log"))?;
        found.iter().map(rows::log_row).collect()
    }

    async fn prune_sagas(&self, retention_ms: i64, tombstone_ms: i64, limit: u32) -> Result<u64, StoreError> {
        const OP: &str = "prune_sagas";
        let statement = || {
            query(PRUNE)
                .bind(retention_ms)
                .bind(tombstone_ms)
                .bind(i64::from(limit))
        };
        let answers = self.autocommit(OP, statement).await?;
        let pruned = answers.first().map(|row| row.try_get::<i64, _>("pruned"));
        Ok(pruned
            .transpose()
            .map_err(failed(OP))?
            .unwrap_or(0)
            .unsigned_abs())
    }
}

/// Epoch, nonce and version of each saga that was still owned.
type Held = HashMap<String, (i64, Vec<u8>, i64)>;

impl Postgres {
    fn wait(&self) -> String {
        lock_timeout(self.saga_lock_wait)
    }

    fn submit(&self, all: &[Submission], states: &[(Status, String)], round: &[usize]) -> Statement {
        let start = |n: &usize| all[*n].claimed.as_ref();
        let definitions: BTreeMap<[u8; 32], &Submission> = round
            .iter()
            .map(|n| (all[*n].definition.hash(), &all[*n]))
            .collect();
        let mut log = LogColumns::default();
        for n in round {
            if let Some(start) = start(n) {
                log.add(&all[*n].id, 1, &start.log);
            }
        }
        query(SUBMIT)
            .bind(definitions.keys().map(|hash| hash.to_vec()).collect::<Vec<_>>())
            .bind(
                definitions
                    .values()
                    .map(|it| it.definition.name().to_owned())
                    .collect::<Vec<_>>(),
            )
            .bind(
                definitions
                    .values()
                    .map(|it| it.definition.json().to_owned())
                    .collect::<Vec<_>>(),
            )
            .bind(column(round, |n| all[*n].id.as_str().to_owned()))
            .bind(column(round, |n| all[*n].definition.hash().to_vec()))
            .bind(column(round, |n| {
                Fingerprint::of(&all[*n].input).to_bytes().to_vec()
            }))
            .bind(column(round, |n| all[*n].input.to_vec()))
            .bind(column(round, |n| states[*n].0.as_str()))
            .bind(column(round, |n| states[*n].1.clone()))
            .bind(column(round, |n| start(n).map(|start| start.nonce.0.to_vec())))
            .bind(column(round, |n| start(n).map(|start| start.lease_ms)))
            .bind(column(round, |n| {
                start(n).and_then(|start| start.due_at.map(rows::micros))
            }))
            .bind(log.sagas)
            .bind(log.ns)
            .bind(log.steps)
            .bind(log.ops)
            .bind(log.events)
            .bind(log.texts)
            .bind(self.wait())
    }

    fn save(&self, all: &[Save], written: &[SaveRow], round: &[usize]) -> Statement {
        let mut log = LogColumns::default();
        for n in round {
            log.add(&all[*n].owned.id, all[*n].version.saturating_add(1), &all[*n].log);
        }
        query(SAVE)
            .bind(column(round, |n| all[*n].owned.id.as_str().to_owned()))
            .bind(column(round, |n| all[*n].owned.epoch))
            .bind(column(round, |n| all[*n].owned.nonce.0.to_vec()))
            .bind(column(round, |n| all[*n].version))
            .bind(column(round, |n| all[*n].state.status().as_str()))
            .bind(column(round, |n| written[*n].state.clone()))
            .bind(column(round, |n| written[*n].why.clone()))
            .bind(column(round, |n| all[*n].due_at.map(rows::micros)))
            .bind(column(round, |n| all[*n].release))
            .bind(column(round, |n| all[*n].requests_done))
            .bind(log.sagas)
            .bind(log.versions)
            .bind(log.ns)
            .bind(log.steps)
            .bind(log.ops)
            .bind(log.events)
            .bind(log.texts)
            .bind(self.wait())
    }

    /// Prolongs leases, or ends them.
    async fn hold(
        &self,
        owned: &[Ownership],
        lease_ms: Option<i64>,
        operation: &'static str,
    ) -> Result<Held, StoreError> {
        let mut sorted: Vec<&Ownership> = owned.iter().collect();
        sorted.sort_unstable_by_key(|it| &it.id);
        let statement = || {
            query(HOLD)
                .bind(column(&sorted, |it| it.id.as_str().to_owned()))
                .bind(column(&sorted, |it| it.epoch))
                .bind(column(&sorted, |it| it.nonce.0.to_vec()))
                .bind(lease_ms)
                .bind(self.wait())
        };
        let mut held = Held::new();
        for row in &self.autocommit(operation, statement).await? {
            let read = || -> Result<_, sqlx::Error> {
                let right = (
                    row.try_get("epoch")?,
                    row.try_get("owner")?,
                    row.try_get("version")?,
                );
                Ok((row.try_get("id")?, right))
            };
            let (id, right) = read().map_err(failed(operation))?;
            held.insert(id, right);
        }
        Ok(held)
    }
}

/// Status and stored form of a saga that is accepted.
fn first_state(it: &Submission) -> Result<(Status, String), StoreError> {
    let fresh = Instance::new(&it.definition);
    let instance = it.claimed.as_ref().map_or(&fresh, |start| &start.instance);
    Ok((instance.status, rows::json(instance)?))
}

/// What a submission hears; where its id is taken a mismatch is judged first, tombstones included.
fn submitted(it: &Submission, row: &PgRow) -> Result<SubmitReply, StoreError> {
    let failed = failed("submit_sagas");
    let read = || -> Result<_, sqlx::Error> {
        if row.try_get("accepted")? {
            return Ok(None);
        }
        let definition: Vec<u8> = row.try_get("definition")?;
        let fingerprint: Vec<u8> = row.try_get("fingerprint")?;
        let owner: Option<Vec<u8>> = row.try_get("owner")?;
        let nonce = it.claimed.as_ref().map(|start| &start.nonce.0[..]);
        let ours = nonce.is_some() && nonce == owner.as_deref() && row.try_get::<i64, _>("version")? == 1;
        let same = (
            definition == it.definition.hash(),
            fingerprint == Fingerprint::of(&it.input).to_bytes(),
        );
        Ok(Some((
            same,
            row.try_get("pruned")?,
            ours,
            row.try_get::<String, _>("status")?,
        )))
    };
    Ok(match read().map_err(failed)? {
        None => SubmitReply::Accepted,
        Some(((false, _), ..)) => SubmitReply::OtherDefinition,
        Some(((true, false), ..)) => SubmitReply::OtherInput,
        Some((_, true, _, status)) => SubmitReply::Ended(rows::status(&status)?),
        Some((_, false, true, _)) => SubmitReply::Accepted,
        Some((_, false, false, status)) => SubmitReply::Existing(rows::status(&status)?),
    })
}
