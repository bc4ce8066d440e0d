//! Keys on SQLite.
//!
//! A batch is one `BEGIN IMMEDIATE` transaction: records read, decided by the pure machine, written back. What needs
//! no write (a replay, a duplicate of a running key) is answered by a reading connection and waits for no writer.

use std::sync::Arc;

use async_trait::async_trait;
use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, LeaseReply, Record, Release, Settlement,
    SweepReport,
};
use semel_core::limits;
use semel_core::store::{
    Batching, Capabilities, KeyPage, KeyQuery, KeyStore, MixedBatch, MixedReplies, Replies, Usage,
};
use semel_core::{Key, Scope, StoreError, crash_point};
use sqlx::Transaction;
use sqlx::pool::PoolConnection;

use super::key_desk::{ABANDON, CLAIM, COMPLETE, Desk, EXTEND, READ, RELEASE, SETTLE, Transition};
use super::key_rows;
use super::key_table::KeyTable;
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
        let replies = match result {
            Ok(replies) => replies,
            // What needs no room, or no write, is answered all the same.
            Err(error) if error.reads_only() => batch.one_kind_at_a_time(self).await,
            Err(error) => failed(batch, &error),
        };
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
        let looked = match limits::check_batch(claims.len()) {
            Ok(()) => self.look(claims, &CLAIM).await,
            Err(limit) => Err(limit.into()),
        };
        looked.unwrap_or_else(|error| claims.iter().map(|_| Err(error.clone())).collect())
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

    async fn run<T, R>(&self, items: &[T], transition: &'static Transition<T, R>) -> Replies<R>
    where
        T: Clone + Send + Sync + 'static,
        R: Send + 'static,
    {
        let result = match limits::check_batch(items.len()) {
            Ok(()) => self.try_run(items, transition).await,
            Err(limit) => Err(limit.into()),
        };
        result.unwrap_or_else(|error| items.iter().map(|_| Err(error.clone())).collect())
    }

    async fn try_run<T, R>(
        &self,
        items: &[T],
        transition: &'static Transition<T, R>,
    ) -> Result<Replies<R>, StoreError>
    where
        T: Clone + Send + Sync + 'static,
        R: Send + 'static,
    {
        let looked = self.look(items, transition).await?;
        if looked.iter().all(|reply| !matches!(reply, Ok(None))) {
            return Ok(looked.into_iter().filter_map(Result::transpose).collect());
        }
        // Something would change: ask again where nobody else writes.
        let (items, operation, clock) = (items.to_vec(), transition.operation, Arc::clone(&self.clock));
        let written = self
            .write_directly(operation, move |db| {
                let mut desk = Desk::new(KeyTable::new(db, operation)?, clock.now());
                let replies = desk.decide_all(&items, transition)?;
                Ok((replies, desk.save()?))
            })
            .await;
        match written {
            // What needs no room, or no write, is answered all the same.
            Err(error) if error.reads_only() => {
                let full =
                    |seen: Result<Option<R>, _>| seen.transpose().unwrap_or_else(|| Err(error.clone()));
                Ok(looked.into_iter().map(full).collect())
            }
            written => written,
        }
    }

    /// Replies to what needs no write, as a reading connection sees it.
    async fn look<T, R>(
        &self,
        items: &[T],
        transition: &'static Transition<T, R>,
    ) -> Result<Replies<Option<R>>, StoreError>
    where
        T: Clone + Send + Sync + 'static,
        R: Send + 'static,
    {
        let (items, operation, clock) = (items.to_vec(), transition.operation, Arc::clone(&self.clock));
        self.read_directly(operation, move |db| {
            let mut desk = Desk::new(KeyTable::new(db, operation)?, clock.now());
            items.iter().map(|item| desk.look(item, transition)).collect()
        })
        .await
    }

    /// All kinds in one commit.
    async fn transact(&self, batch: &MixedBatch) -> Result<MixedReplies, StoreError> {
        let (batch, operation, clock) = (batch.clone(), "transact", Arc::clone(&self.clock));
        self.write_directly(operation, move |db| {
            let mut desk = Desk::new(KeyTable::new(db, operation)?, clock.now());
            let replies = MixedReplies {
                completions: desk.decide_all(&batch.completions, &COMPLETE)?,
                releases: desk.decide_all(&batch.releases, &RELEASE)?,
                abandonments: desk.decide_all(&batch.abandonments, &ABANDON)?,
                settlements: desk.decide_all(&batch.settlements, &SETTLE)?,
                extensions: desk.decide_all(&batch.extensions, &EXTEND)?,
                claims: desk.decide_all(&batch.claims, &CLAIM)?,
            };
            Ok((replies, desk.save()?))
        })
        .await
    }
}
