//! Sagas on SQLite: every call is one `BEGIN IMMEDIATE` transaction, in which nobody else writes.

use async_trait::async_trait;
use semel_core::limits::{self, check_batch};
use semel_core::saga::{Instance, LogRow, SagaId, Status};
use semel_core::store::{
    ClaimDue, ClaimedSagas, Ownership, RenewReply, RequestReply, SagaLookup, SagaRequest, SagaStore,
    SagaSummary, Save, SaveReply, SaveState, Submission, SubmitReply,
};
use semel_core::{Fingerprint, StoreError, Timestamp};
use sqlx::{Row, Sqlite as Driver, Transaction};

use super::saga_rows::{self as rows, Found, failed, json};
use crate::db::Sqlite;

type Tx = Transaction<'static, Driver>;

#[async_trait]
impl SagaStore for Sqlite {
    async fn saga_time(&self) -> Result<Timestamp, StoreError> {
        Ok(self.now())
    }

    async fn submit_sagas(&self, submissions: &[Submission]) -> Result<Vec<SubmitReply>, StoreError> {
        check_batch(submissions.len())?;
        submissions.iter().try_for_each(Submission::check)?;
        let mut tx = self.begin().await?;
        let now = self.now();
        let mut replies = Vec::with_capacity(submissions.len());
        for submission in submissions {
            replies.push(submit(&mut tx, submission, now).await?);
        }
        self.commit(tx).await?;
        Ok(replies)
    }

    async fn claim_sagas(&self, claim: &ClaimDue) -> Result<ClaimedSagas, StoreError> {
        let now = self.now();
        let due = rows::due(&self.reader, claim, now).await?;
        if due.is_empty() {
            return Ok(ClaimedSagas {
                now,
                sagas: Vec::new(),
            });
        }
        // Something seems due: ask again where nobody else writes.
        let mut tx = self.begin().await?;
        let now = self.now();
        let mut sagas = Vec::new();
        for id in rows::due(&mut *tx, claim, now).await? {
            sqlx::query(
                "UPDATE semel_saga SET owner = ?2, epoch = epoch + 1, lease_until = ?3 WHERE id = ?1",
            )
            .bind(&id)
            .bind(claim.nonce.0.as_slice())
            .bind(now.plus_ms(claim.lease_ms).0)
            .execute(&mut *tx)
            .await
            .map_err(failed("claim_sagas"))?;
            if let SagaLookup::Found(record) = rows::load(&mut tx, &id).await? {
                sagas.push(*record);
            }
        }
        self.commit(tx).await?;
        Ok(ClaimedSagas { now, sagas })
    }

    async fn save_sagas(&self, saves: &[Save]) -> Result<Vec<SaveReply>, StoreError> {
        check_batch(saves.len())?;
        let mut tx = self.begin().await?;
        let now = self.now();
        let mut replies = Vec::with_capacity(saves.len());
        for save in saves {
            replies.push(write(&mut tx, save, now).await?);
        }
        self.commit(tx).await?;
        Ok(replies)
    }

    async fn renew_sagas(&self, owned: &[Ownership], lease_ms: i64) -> Result<Vec<RenewReply>, StoreError> {
        check_batch(owned.len())?;
        let mut tx = self.begin().await?;
        let until = self.now().plus_ms(lease_ms);
        let mut replies = Vec::with_capacity(owned.len());
        for owned in owned {
            let version: Option<i64> = sqlx::query_scalar(
                "UPDATE semel_saga SET lease_until = ?4
                 WHERE id = ?1 AND epoch = ?2 AND owner = ?3 AND ended_at IS NULL RETURNING version",
            )
            .bind(owned.id.as_str())
            .bind(owned.epoch)
            .bind(owned.nonce.0.as_slice())
            .bind(until.0)
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed("renew_sagas"))?;
            replies.push(version.map_or(RenewReply::Lost, |version| RenewReply::Renewed { version }));
        }
        self.commit(tx).await?;
        Ok(replies)
    }

    async fn release_sagas(&self, owned: &[Ownership]) -> Result<(), StoreError> {
        check_batch(owned.len())?;
        let mut tx = self.begin().await?;
        for owned in owned {
            sqlx::query(
                "UPDATE semel_saga SET owner = NULL, lease_until = NULL
                 WHERE id = ?1 AND epoch = ?2 AND owner = ?3 AND ended_at IS NULL",
            )
            .bind(owned.id.as_str())
            .bind(owned.epoch)
            .bind(owned.nonce.0.as_slice())
            .execute(&mut *tx)
            .await
            .map_err(failed("release_sagas"))?;
        }
        self.commit(tx).await
    }

    async fn load_sagas(&self, ids: &[SagaId]) -> Result<Vec<SagaLookup>, StoreError> {
        check_batch(ids.len())?;
        // One snapshot, so that a saga and its requests fit together.
        let mut tx = self.reader.begin().await.map_err(failed("load_sagas"))?;
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            found.push(rows::load(&mut tx, id.as_str()).await?);
        }
        Ok(found)
    }

    async fn saga_definition(&self, hash: &[u8; 32]) -> Result<Option<String>, StoreError> {
        sqlx::query_scalar("SELECT body FROM semel_saga_definition WHERE hash = ?1")
            .bind(hash.as_slice())
            .fetch_optional(&self.reader)
            .await
            .map_err(failed("saga_definition"))
    }

    async fn request_saga(&self, id: &SagaId, request: &SagaRequest) -> Result<RequestReply, StoreError> {
        request.check()?;
        let mut tx = self.begin().await?;
        let reply = match rows::load(&mut tx, id.as_str()).await? {
            SagaLookup::Absent => RequestReply::Absent,
            SagaLookup::Ended(status) => RequestReply::Ended(status),
            SagaLookup::Found(record) if record.status.is_terminal() => RequestReply::Ended(record.status),
            SagaLookup::Found(record) if record.requests.len() >= limits::SAGA_REQUESTS_MAX => {
                RequestReply::TooMany
            }
            SagaLookup::Found(_) => {
                rows::add_request(&mut tx, id, request, self.now()).await?;
                RequestReply::Noted
            }
        };
        self.commit(tx).await?;
        Ok(reply)
    }

    async fn list_sagas(
        &self,
        status: Option<Status>,
        after: Option<&SagaId>,
        limit: u32,
    ) -> Result<Vec<SagaSummary>, StoreError> {
        let found = sqlx::query(
            "SELECT s.id, d.name, s.status, s.why, s.accepted_at, s.updated_at
             FROM semel_saga s JOIN semel_saga_definition d ON d.hash = s.definition
             WHERE s.tombstone_until IS NULL AND (?1 IS NULL OR s.status = ?1) AND s.id > ?2
             ORDER BY s.id LIMIT ?3",
        )
        .bind(status.map(Status::as_str))
        .bind(after.map_or("", SagaId::as_str))
        .bind(limit)
        .fetch_all(&self.reader)
        .await
        .map_err(failed("list_sagas"))?;
        found.iter().map(rows::summary).collect()
    }

    async fn count_sagas(&self) -> Result<Vec<(Status, u64)>, StoreError> {
        let found: Vec<(String, i64)> = sqlx::query_as(
            "SELECT status, count(*) FROM semel_saga WHERE tombstone_until IS NULL GROUP BY status",
        )
        .fetch_all(&self.reader)
        .await
        .map_err(failed("count_sagas"))?;
        let mut counts = Vec::with_capacity(found.len());
        for (status, count) in found {
            counts.push((rows::status(&status)?, count.unsigned_abs()));
        }
        counts.sort_unstable();
        Ok(counts)
    }

    async fn saga_log(&self, id: &SagaId, limit: u32) -> Result<Vec<LogRow>, StoreError> {
        let found = sqlx::query(
            "SELECT version, at, step, op, event, text FROM semel_saga_log
             WHERE saga = ?1 ORDER BY version, n LIMIT ?2",
        )
        .bind(id.as_str())
        .bind(limit)
        .fetch_all(&self.reader)
        .await
        .map_err(failed("saga_log"))?;
        found.iter().map(rows::log_row).collect()
    }

    async fn prune_sagas(&self, retention_ms: i64, tombstone_ms: i64, limit: u32) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let now = self.now();
        sqlx::query(
            "DELETE FROM semel_saga WHERE id IN
             (SELECT id FROM semel_saga WHERE tombstone_until <= ?1 ORDER BY tombstone_until LIMIT ?2)",
        )
        .bind(now.0)
        .bind(limit)
        .execute(&mut *tx)
        .await
        .map_err(failed("prune_sagas"))?;
        let pruned: Vec<String> = sqlx::query_scalar(
            "UPDATE semel_saga SET tombstone_until = ?2, input = x'', state = '' WHERE id IN
             (SELECT id FROM semel_saga WHERE ended_at <= ?1 AND tombstone_until IS NULL ORDER BY ended_at LIMIT ?3)
             RETURNING id",
        )
        .bind(now.plus_ms(-retention_ms).0)
        .bind(now.plus_ms(tombstone_ms).0)
        .bind(limit)
        .fetch_all(&mut *tx)
        .await
        .map_err(failed("prune_sagas"))?;
        for id in &pruned {
            for sql in [
                "DELETE FROM semel_saga_log WHERE saga = ?1",
                "DELETE FROM semel_saga_request WHERE saga = ?1",
            ] {
                sqlx::query(sql)
                    .bind(id)
                    .execute(&mut *tx)
                    .await
                    .map_err(failed("prune_sagas"))?;
            }
        }
        self.commit(tx).await?;
        Ok(pruned.len() as u64)
    }
}

async fn submit(tx: &mut Tx, it: &Submission, now: Timestamp) -> Result<SubmitReply, StoreError> {
    const OP: &str = "submit_sagas";
    let hash = it.definition.hash();
    let fingerprint = Fingerprint::of(&it.input).to_bytes();
    let existing = sqlx::query(
        "SELECT definition, fingerprint, status, version, owner, tombstone_until FROM semel_saga WHERE id = ?1",
    )
    .bind(it.id.as_str())
    .fetch_optional(&mut **tx)
    .await
    .map_err(failed(OP))?;
    if let Some(row) = existing {
        let found = Found {
            definition: row.get("definition"),
            fingerprint: row.get("fingerprint"),
            status: rows::status(row.get("status"))?,
            version: row.get("version"),
            owner: row.get("owner"),
            pruned: row.get::<Option<i64>, _>("tombstone_until").is_some(),
        };
        return Ok(found.answer(it, &fingerprint));
    }
    sqlx::query(
        "INSERT INTO semel_saga_definition (hash, name, body, created_at) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (hash) DO NOTHING",
    )
    .bind(hash.as_slice())
    .bind(it.definition.name())
    .bind(it.definition.json())
    .bind(now.0)
    .execute(&mut **tx)
    .await
    .map_err(failed(OP))?;
    let fresh = Instance::new(&it.definition);
    let start = it.claimed.as_ref();
    let instance = start.map_or(&fresh, |start| &start.instance);
    sqlx::query(
        "INSERT INTO semel_saga (id, definition, fingerprint, input, status, state, version, epoch, owner,
           lease_until, due_at, accepted_at, updated_at, ended_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1, ?7, ?8, ?9, ?10, ?11, ?11, ?12)",
    )
    .bind(it.id.as_str())
    .bind(hash.as_slice())
    .bind(fingerprint.as_slice())
    .bind(it.input.as_ref())
    .bind(instance.status.as_str())
    .bind(json(instance)?)
    .bind(i64::from(start.is_some()))
    .bind(start.map(|start| start.nonce.0.to_vec()))
    .bind(start.map(|start| now.plus_ms(start.lease_ms).0))
    .bind(start.map_or(Some(now.0), |start| start.due_at.map(|at| at.0)))
    .bind(now.0)
    .bind(instance.status.is_terminal().then_some(now.0))
    .execute(&mut **tx)
    .await
    .map_err(failed(OP))?;
    if let Some(start) = start {
        rows::log(tx, &it.id, 1, now, &start.log).await?;
    }
    Ok(SubmitReply::Accepted)
}

/// One compare-and-set. Nobody else writes inside the transaction, so reading why it missed is safe.
async fn write(tx: &mut Tx, save: &Save, now: Timestamp) -> Result<SaveReply, StoreError> {
    const OP: &str = "save_sagas";
    let status = save.state.status();
    let (state, why) = match &save.state {
        SaveState::Instance(instance) => {
            let reasons = instance.reasons();
            (
                Some(json(instance)?),
                (!reasons.is_empty()).then(|| reasons.join("; ")),
            )
        }
        SaveState::Unreadable(why) => (None, Some(why.clone())),
    };
    let done = sqlx::query(
        "UPDATE semel_saga SET status = ?5, state = coalesce(?6, state), why = ?7, version = version + 1,
           due_at = ?8, updated_at = ?9, ended_at = ?10,
           owner = CASE WHEN ?11 THEN NULL ELSE owner END, lease_until = CASE WHEN ?11 THEN NULL ELSE lease_until END
         WHERE id = ?1 AND epoch = ?2 AND owner = ?3 AND version = ?4 AND ended_at IS NULL",
    )
    .bind(save.owned.id.as_str())
    .bind(save.owned.epoch)
    .bind(save.owned.nonce.0.as_slice())
    .bind(save.version)
    .bind(status.as_str())
    .bind(state)
    .bind(why)
    .bind(save.due_at.filter(|_| !status.is_terminal()).map(|at| at.0))
    .bind(now.0)
    .bind(status.is_terminal().then_some(now.0))
    .bind(save.release)
    .execute(&mut **tx)
    .await
    .map_err(failed(OP))?;
    if done.rows_affected() == 0 {
        let ours: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM semel_saga WHERE id = ?1 AND epoch = ?2 AND owner = ?3 AND ended_at IS NULL)",
        )
        .bind(save.owned.id.as_str())
        .bind(save.owned.epoch)
        .bind(save.owned.nonce.0.as_slice())
        .fetch_one(&mut **tx)
        .await
        .map_err(failed(OP))?;
        return Ok(if ours {
            SaveReply::WrongVersion
        } else {
            SaveReply::Lost
        });
    }
    rows::log(tx, &save.owned.id, save.version + 1, now, &save.log).await?;
    if save.requests_done > 0 {
        sqlx::query("DELETE FROM semel_saga_request WHERE saga = ?1 AND n <= ?2")
            .bind(save.owned.id.as_str())
            .bind(save.requests_done)
            .execute(&mut **tx)
            .await
            .map_err(failed(OP))?;
    }
    Ok(SaveReply::Saved)
}

impl Found {
    /// What a submission hears when its id is taken; a mismatch is judged first, tombstones included.
    fn answer(&self, it: &Submission, fingerprint: &[u8]) -> SubmitReply {
        let nonce = it.claimed.as_ref().map(|start| start.nonce.0.as_slice());
        let ours = nonce.is_some() && nonce == self.owner.as_deref() && self.version == 1;
        match () {
            () if self.definition != it.definition.hash() => SubmitReply::OtherDefinition,
            () if self.fingerprint != fingerprint => SubmitReply::OtherInput,
            () if self.pruned => SubmitReply::Ended(self.status),
            () if ours => SubmitReply::Accepted,
            () => SubmitReply::Existing(self.status),
        }
    }
}
