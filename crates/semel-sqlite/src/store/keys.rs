//! Keys on SQLite.
//!
//! A batch is one `BEGIN IMMEDIATE` transaction: records read, decided by the pure machine, written back. What needs
//! no write (a replay, a duplicate of a running key) is answered by a reading connection and waits for no writer.

use async_trait::async_trait;
use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, LeaseReply, Record, Release, Settlement,
    SweepReport, Token,
};
use semel_core::limits;
use semel_core::store::{
    Batching, Capabilities, KeyPage, KeyQuery, KeyStore, MixedBatch, MixedReplies, Replies, Usage,
};
use semel_core::{Key, Scope, StoreError, crash_point};
use sqlx::Transaction;
use sqlx::pool::PoolConnection;

use super::key_desk::{ABANDON, CLAIM, COMPLETE, Desk, EXTEND, READ, RELEASE, SETTLE, Transition, distinct};
use super::key_rows::{self, Records};
use crate::db::Sqlite;
use crate::error::classify;

#[async_trait]
impl KeyStore for Sqlite {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "sqlite",
            joins_user_transaction: true,
            fences: true,
            token_survives_failover: true,
            shared_by_machines: false,
            durable: true,
            counts_scopes: true,
        }
    }

    async fn claim_many(&self, claims: &[Claim]) -> Replies<ClaimReply> {
        let replies = self.run(claims, &CLAIM).await;
        let granted =
            |reply: &Result<ClaimReply, StoreError>| matches!(reply, Ok(ClaimReply::Granted { .. }));
        if replies.iter().any(granted) {
            crash_point("key.claimed");
        }
        replies
    }

    async fn complete_many(&self, completions: &[Completion]) -> Replies<LeaseReply> {
        crash_point("key.before_complete");
        let replies = self.run(completions, &COMPLETE).await;
        crash_point("key.completed");
        replies
    }

    async fn extend_many(&self, extensions: &[Extension]) -> Replies<LeaseReply> {
        self.run(extensions, &EXTEND).await
    }

    async fn release_many(&self, releases: &[Release]) -> Replies<LeaseReply> {
        self.run(releases, &RELEASE).await
    }

    async fn abandon_many(&self, abandonments: &[Abandonment]) -> Replies<LeaseReply> {
        self.run(abandonments, &ABANDON).await
    }

    async fn settle_many(&self, settlements: &[Settlement]) -> Replies<LeaseReply> {
        self.run(settlements, &SETTLE).await
    }

    async fn read_many(&self, keys: &[Key]) -> Replies<Option<Record>> {
        self.run(keys, &READ).await
    }

    async fn sweep(&self, limit: u32) -> Result<SweepReport, StoreError> {
        let mut tx = self.begin().await?;
        let now = self.now();
        let mut report = SweepReport::default();
        let mut changed = Vec::new();
        let (due, put_off) = key_rows::due(&mut tx, now, limit).await?;
        for (key, record) in due {
            let (record, swept) = record.swept(now);
            changed.push((key, record));
            if let Some(swept) = swept {
                report.count(swept);
            }
        }
        if changed.is_empty() && !put_off {
            // Nothing to write: no commit, and nobody waits for one.
            return rolled_back(tx, "sweep").await.map(|()| report);
        }
        key_rows::save(&mut tx, "sweep", &changed).await?;
        self.commit(tx).await?;
        Ok(report)
    }

    async fn list(&self, query: &KeyQuery) -> Result<KeyPage, StoreError> {
        let from = query.from_key()?;
        let mut reader = self.reading("list").await?;
        let rows = key_rows::page(&mut reader, query, from.as_ref()).await?;
        let (more, now) = (rows.len() == query.limit as usize, self.now());
        let next = rows.last().filter(|_| more).map(|(key, _)| key.to_bytes().into());
        let shown = rows
            .iter()
            .filter_map(|(key, record)| query.shows(key, record, now));
        Ok(KeyPage {
            records: shown.collect(),
            next,
        })
    }

    async fn usage(&self, scope: &Scope, records_max: u64) -> Result<Usage, StoreError> {
        let mut reader = self.reading("usage").await?;
        key_rows::usage(&mut reader, scope, records_max).await
    }

    /// One writer: one lane, and everything that waits for it in one commit.
    fn batching(&self) -> Batching {
        Batching {
            lanes: 1,
            items_max: 256,
            mixes: true,
            looks_first: true,
        }
    }

    async fn transact_many(&self, batch: &MixedBatch) -> MixedReplies {
        if !batch.completions.is_empty() {
            crash_point("key.before_complete");
        }
        let result = match limits::check_batch(batch.len()) {
            Ok(()) => self.transact(batch).await,
            Err(limit) => Err(limit.into()),
        };
        let replies = result.unwrap_or_else(|error| failed(batch, &error));
        let granted =
            |reply: &Result<ClaimReply, StoreError>| matches!(reply, Ok(ClaimReply::Granted { .. }));
        if replies.claims.iter().any(granted) {
            crash_point("key.claimed");
        }
        if !batch.completions.is_empty() {
            crash_point("key.completed");
        }
        replies
    }

    async fn look_many(&self, claims: &[Claim]) -> Replies<Option<ClaimReply>> {
        let keys: Vec<&Key> = claims.iter().map(|claim| &claim.key).collect();
        let records = match limits::check_batch(claims.len()) {
            Ok(()) => self.look("claim", &keys).await,
            Err(limit) => Err(limit.into()),
        };
        let records = match records {
            Ok(records) => records,
            Err(error) => return claims.iter().map(|_| Err(error.clone())).collect(),
        };
        let desk = Desk::new(records, self.now(), Token(i64::MIN));
        claims.iter().map(|claim| desk.look(claim, &CLAIM)).collect()
    }
}

fn failed(batch: &MixedBatch, error: &StoreError) -> MixedReplies {
    fn all<T, R>(items: &[T], error: &StoreError) -> Replies<R> {
        items.iter().map(|_| Err(error.clone())).collect()
    }
    MixedReplies {
        claims: all(&batch.claims, error),
        completions: all(&batch.completions, error),
        extensions: all(&batch.extensions, error),
        releases: all(&batch.releases, error),
        abandonments: all(&batch.abandonments, error),
        settlements: all(&batch.settlements, error),
    }
}

/// Ends a transaction in which nothing was written.
async fn rolled_back(
    tx: Transaction<'static, sqlx::Sqlite>,
    operation: &'static str,
) -> Result<(), StoreError> {
    tx.rollback().await.map_err(|error| classify(operation, error))
}

impl Sqlite {
    async fn reading(&self, operation: &'static str) -> Result<PoolConnection<sqlx::Sqlite>, StoreError> {
        let reader = self.reader.acquire().await;
        reader.map_err(|error| classify(operation, error))
    }

    /// The records as a reading connection sees them.
    async fn look(&self, operation: &'static str, keys: &[&Key]) -> Result<Records, StoreError> {
        let mut reader = self.reading(operation).await?;
        key_rows::load(&mut reader, operation, keys).await
    }

    async fn run<T: Sync, R: Send>(&self, items: &[T], transition: &Transition<T, R>) -> Replies<R> {
        let result = match limits::check_batch(items.len()) {
            Ok(()) => self.try_run(items, transition).await,
            Err(limit) => Err(limit.into()),
        };
        result.unwrap_or_else(|error| items.iter().map(|_| Err(error.clone())).collect())
    }

    async fn try_run<T: Sync, R: Send>(
        &self,
        items: &[T],
        transition: &Transition<T, R>,
    ) -> Result<Replies<R>, StoreError> {
        let operation = transition.operation;
        let keys = distinct(items.iter().map(transition.key));
        let records = self.look(operation, &keys).await?;
        let mut desk = Desk::new(records, self.now(), Token(i64::MIN));
        let replies = desk.decide_all(items, transition);
        if desk.changed.is_empty() {
            return Ok(replies);
        }
        // Something would change: ask again where nobody else writes.
        let mut tx = self.begin().await?;
        let tokens = if transition.draws { items.len() } else { 0 };
        let mut desk = self.desk(&mut tx, operation, &keys, tokens).await?;
        let replies = desk.decide_all(items, transition);
        self.save(tx, operation, desk).await?;
        Ok(replies)
    }

    /// All kinds in one commit.
    async fn transact(&self, batch: &MixedBatch) -> Result<MixedReplies, StoreError> {
        let operation = "transact";
        let keys = distinct(
            (batch.completions.iter().map(COMPLETE.key))
                .chain(batch.releases.iter().map(RELEASE.key))
                .chain(batch.abandonments.iter().map(ABANDON.key))
                .chain(batch.settlements.iter().map(SETTLE.key))
                .chain(batch.extensions.iter().map(EXTEND.key))
                .chain(batch.claims.iter().map(CLAIM.key)),
        );
        let mut tx = self.begin().await?;
        let mut desk = self.desk(&mut tx, operation, &keys, batch.claims.len()).await?;
        let replies = MixedReplies {
            completions: desk.decide_all(&batch.completions, &COMPLETE),
            releases: desk.decide_all(&batch.releases, &RELEASE),
            abandonments: desk.decide_all(&batch.abandonments, &ABANDON),
            settlements: desk.decide_all(&batch.settlements, &SETTLE),
            extensions: desk.decide_all(&batch.extensions, &EXTEND),
            claims: desk.decide_all(&batch.claims, &CLAIM),
        };
        self.save(tx, operation, desk).await?;
        Ok(replies)
    }

    /// The records of these keys, and so many tokens, inside the writer's transaction.
    async fn desk(
        &self,
        tx: &mut Transaction<'static, sqlx::Sqlite>,
        operation: &'static str,
        keys: &[&Key],
        tokens: usize,
    ) -> Result<Desk, StoreError> {
        let (records, last) = if tokens == 0 {
            (key_rows::load(tx, operation, keys).await?, Token(i64::MIN))
        } else {
            key_rows::load_and_draw(tx, operation, keys, tokens).await?
        };
        Ok(Desk::new(records, self.now(), last))
    }

    /// Writes what has changed and commits.
    async fn save(
        &self,
        mut tx: Transaction<'static, sqlx::Sqlite>,
        operation: &'static str,
        desk: Desk,
    ) -> Result<(), StoreError> {
        let changed = desk.changed();
        if changed.is_empty() {
            return rolled_back(tx, operation).await;
        }
        key_rows::save(&mut tx, operation, &changed).await?;
        self.commit(tx).await
    }
}
