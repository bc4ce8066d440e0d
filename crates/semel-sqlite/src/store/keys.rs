//! Keys on SQLite.
//!
//! A batch is one `BEGIN IMMEDIATE` transaction: records read, decided by the pure machine, written back. What needs
//! no write (a replay, a duplicate of a running key) is answered by a reading connection and waits for no writer.

use std::collections::HashSet;

use async_trait::async_trait;
use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, LeaseReply, Record, Release, Settlement,
    SweepReport, Token, step,
};
use semel_core::limits::{self, LimitExceeded};
use semel_core::store::{Capabilities, KeyPage, KeyQuery, KeyStore, Replies, Usage};
use semel_core::{Key, Scope, StoreError, Timestamp, crash_point};
use sqlx::pool::PoolConnection;

use super::key_rows::{self, Records};
use crate::db::Sqlite;
use crate::error::classify;

/// One kind of transition: what it is called, what it concerns, and its pure machine.
struct Transition<T, R> {
    operation: &'static str,
    key: fn(&T) -> &Key,
    check: fn(&T) -> Result<(), LimitExceeded>,
    step: Step<T, R>,
}

/// One of the functions of [`step`]; those that draw no token ignore it.
type Step<T, R> = fn(Option<Record>, &T, Timestamp, Token) -> (Option<Record>, R);

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
        for (key, record) in key_rows::due(&mut tx, now, limit).await? {
            let (record, swept) = record.swept(now);
            key_rows::save(&mut tx, "sweep", &key, record.as_ref()).await?;
            if let Some(swept) = swept {
                report.count(swept);
            }
        }
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
}

const CLAIM: Transition<Claim, ClaimReply> = Transition {
    operation: "claim",
    key: |claim| &claim.key,
    check: Claim::check,
    step: step::claim,
};

const COMPLETE: Transition<Completion, LeaseReply> = Transition {
    operation: "complete",
    key: |done| &done.key,
    check: Completion::check,
    step: |record, done, now, _| step::complete(record, done, now),
};

const EXTEND: Transition<Extension, LeaseReply> = Transition {
    operation: "extend",
    key: |wish| &wish.key,
    check: Extension::check,
    step: |record, wish, now, _| step::extend(record, wish, now),
};

const RELEASE: Transition<Release, LeaseReply> = Transition {
    operation: "release",
    key: |release| &release.key,
    check: |_| Ok(()),
    step: |record, release, now, _| step::release(record, release, now),
};

const ABANDON: Transition<Abandonment, LeaseReply> = Transition {
    operation: "abandon",
    key: |abandonment| &abandonment.key,
    check: |_| Ok(()),
    step: |record, abandonment, now, _| step::abandon(record, abandonment, now),
};

const SETTLE: Transition<Settlement, LeaseReply> = Transition {
    operation: "settle",
    key: |settlement| &settlement.key,
    check: Settlement::check,
    step: |record, settlement, now, _| step::settle(record, settlement, now),
};

const READ: Transition<Key, Option<Record>> = Transition {
    operation: "read",
    key: |key| key,
    check: |_| Ok(()),
    step: |record, _, now, _| {
        let record = record.and_then(|record| record.at(now));
        let seen = record.clone().and_then(|record| record.visible_at(now));
        (record, seen)
    },
};

/// A batch, decided: replies in order, and the records that changed.
struct Decided<R> {
    replies: Replies<R>,
    changed: Vec<(Key, Option<Record>)>,
    last: Token,
}

impl Sqlite {
    async fn reading(&self, operation: &'static str) -> Result<PoolConnection<sqlx::Sqlite>, StoreError> {
        let reader = self.reader.acquire().await;
        reader.map_err(|error| classify(operation, error))
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
        let mut seen = HashSet::new();
        let keys: Vec<&Key> = items
            .iter()
            .map(transition.key)
            .filter(|key| seen.insert(*key))
            .collect();
        let mut reader = self.reading(operation).await?;
        let records = key_rows::load(&mut reader, operation, &keys).await?;
        drop(reader);
        let decided = decide(items, transition, records, self.now(), Token(i64::MIN));
        if decided.changed.is_empty() {
            return Ok(decided.replies);
        }
        // Something would change: ask again where nobody else writes.
        let mut tx = self.begin().await?;
        let records = key_rows::load(&mut tx, operation, &keys).await?;
        let last = key_rows::last_token(&mut tx, operation).await?;
        let decided = decide(items, transition, records, self.now(), last);
        for (key, record) in &decided.changed {
            key_rows::save(&mut tx, operation, key, record.as_ref()).await?;
        }
        if decided.last != last {
            key_rows::save_token(&mut tx, operation, decided.last).await?;
        }
        self.commit(tx).await?;
        Ok(decided.replies)
    }
}

fn decide<T, R>(
    items: &[T],
    transition: &Transition<T, R>,
    mut records: Records,
    now: Timestamp,
    mut last: Token,
) -> Decided<R> {
    let mut changed = HashSet::new();
    let mut one = |item: &T| {
        (transition.check)(item)?;
        let key = (transition.key)(item);
        let before = records.get(key).cloned().transpose()?;
        let next = Token(last.0.saturating_add(1));
        let (after, reply) = (transition.step)(before.clone(), item, now, next);
        if step::changes(before.as_ref(), after.as_ref(), now) {
            if after
                .as_ref()
                .and_then(Record::lease)
                .is_some_and(|lease| lease.token == next)
            {
                last = next;
            }
            changed.insert(key.clone());
            match &after {
                Some(record) => records.insert(key.clone(), Ok(record.clone())),
                None => records.remove(key),
            };
        }
        Ok(reply)
    };
    let replies = items.iter().map(&mut one).collect();
    let changed = changed
        .into_iter()
        .map(|key| {
            let record = records.remove(&key).and_then(Result::ok);
            (key, record)
        })
        .collect();
    Decided {
        replies,
        changed,
        last,
    }
}
