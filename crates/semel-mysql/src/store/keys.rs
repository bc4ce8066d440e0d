//! Keys on MariaDB and MySQL.
//!
//! # Guarantees
//! What is decided is decided by the pure machine and written only where nobody came in between: see `key_batch`; new keys
//! and ends of runs are written without a look, and looked at where that fails: see `key_straight`.
//! Tokens of a key only grow: each is the server's time in microseconds, and larger than every token that the key's row
//! has had, or that a row which is gone has had. Replays of finished keys write nothing, and lock nothing but where nearly all
//! claims are of new keys.
//!
//! # Not guaranteed
//! Two keys may be given the same token: compare tokens of one key. After a fail-over to an asynchronous replica
//! whatever it had not received is forgotten, as for all your data; tokens go on growing as far as its clock does.
//!
//! # Limits
//! A statement waits for a row that another transaction holds for at most [`Config::lock_wait`](crate::Config).

use async_trait::async_trait;
use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, LeaseReply, Record, Release, Settlement,
    StateName, SweepReport, Swept,
};
use semel_core::store::{
    Batching, Capabilities, KeyPage, KeyQuery, KeyStore, MixedBatch, MixedReplies, Replies, Usage,
};
use semel_core::{Key, Scope, StoreError, Timestamp, crash_point};
use sqlx::{Connection as _, Row as _};

use super::key_batch::{Ask, Reply};
use super::key_rows::{self, Change, NOW, Stored, Way};
use crate::db::Mysql;
use crate::error::{classify, commit_failed};

const LIST: &str = include_str!("../sql/key_list.sql");
const USAGE: &str = include_str!("../sql/key_usage.sql");

/// How long [`transact`](crate::tx::transact) may ask for a commit: far longer than it does.
const COMMITS_KEPT_MS: i64 = 24 * 3_600_000;
/// When a sweep looks again at a row that it could not read.
const UNREADABLE_AGAIN_MS: i64 = 3_600_000;

#[async_trait]
impl KeyStore for Mysql {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "mysql",
            joins_user_transaction: true,
            fences: true,
            // Tokens are times: they go back when the promoted server's clock is behind.
            token_survives_failover: false,
            shared_by_machines: true,
            durable: self.durable,
            counts_scopes: true,
        }
    }

    async fn claim_many(&self, claims: &[Claim]) -> Replies<ClaimReply> {
        let asks: Vec<Ask<'_>> = claims.iter().map(Ask::Claim).collect();
        let replies: Replies<ClaimReply> = self.run(&asks).await.into_iter().map(claim).collect();
        passed_claims(&replies);
        replies
    }

    async fn complete_many(&self, completions: &[Completion]) -> Replies<LeaseReply> {
        crash_point("key.before_complete");
        let asks: Vec<Ask<'_>> = completions.iter().map(Ask::Complete).collect();
        let replies = self.run(&asks).await.into_iter().map(lease).collect();
        crash_point("key.completed");
        replies
    }

    async fn extend_many(&self, extensions: &[Extension]) -> Replies<LeaseReply> {
        let asks: Vec<Ask<'_>> = extensions.iter().map(Ask::Extend).collect();
        self.run(&asks).await.into_iter().map(lease).collect()
    }

    async fn release_many(&self, releases: &[Release]) -> Replies<LeaseReply> {
        let asks: Vec<Ask<'_>> = releases.iter().map(Ask::Release).collect();
        self.run(&asks).await.into_iter().map(lease).collect()
    }

    async fn abandon_many(&self, abandonments: &[Abandonment]) -> Replies<LeaseReply> {
        let asks: Vec<Ask<'_>> = abandonments.iter().map(Ask::Abandon).collect();
        self.run(&asks).await.into_iter().map(lease).collect()
    }

    async fn settle_many(&self, settlements: &[Settlement]) -> Replies<LeaseReply> {
        let asks: Vec<Ask<'_>> = settlements.iter().map(Ask::Settle).collect();
        self.run(&asks).await.into_iter().map(lease).collect()
    }

    async fn read_many(&self, keys: &[Key]) -> Replies<Option<Record>> {
        let asks: Vec<Ask<'_>> = keys.iter().map(Ask::Read).collect();
        self.run(&asks).await.into_iter().map(record).collect()
    }

    fn batching(&self) -> Batching {
        Batching {
            mixes: true,
            ..Batching::default()
        }
    }

    async fn transact_many(&self, batch: &MixedBatch) -> MixedReplies {
        if !batch.completions.is_empty() {
            crash_point("key.before_complete");
        }
        // Ends of runs first: a claim of the same key may then get their outcome.
        let asks: Vec<Ask<'_>> = (batch.completions.iter().map(Ask::Complete))
            .chain(batch.releases.iter().map(Ask::Release))
            .chain(batch.abandonments.iter().map(Ask::Abandon))
            .chain(batch.settlements.iter().map(Ask::Settle))
            .chain(batch.extensions.iter().map(Ask::Extend))
            .chain(batch.claims.iter().map(Ask::Claim))
            .collect();
        let mut all = self.run(&asks).await.into_iter();
        let mut leases = |count: usize| all.by_ref().take(count).map(lease).collect();
        let replies = MixedReplies {
            completions: leases(batch.completions.len()),
            releases: leases(batch.releases.len()),
            abandonments: leases(batch.abandonments.len()),
            settlements: leases(batch.settlements.len()),
            extensions: leases(batch.extensions.len()),
            claims: all.map(claim).collect(),
        };
        passed_claims(&replies.claims);
        if !batch.completions.is_empty() {
            crash_point("key.completed");
        }
        replies
    }

    async fn sweep(&self, limit: u32) -> Result<SweepReport, StoreError> {
        let failed = |error| classify("sweep", error);
        let mut connection = self.own.acquire().await.map_err(failed)?;
        let mut tx = connection.begin().await.map_err(failed)?;
        let now = sqlx::query(sqlx::AssertSqlSafe(format!("SELECT {NOW} AS now_us")));
        let now = now.fetch_one(&mut *tx).await.map_err(failed)?;
        let now = Timestamp(now.try_get_unchecked("now_us").map_err(failed)?);
        // Rows that somebody works on are passed over.
        let due = format!(
            "SELECT {} FROM semel_key FORCE INDEX (semel_key_due) WHERE due_us <= {} ORDER BY due_us LIMIT {limit} \
             FOR UPDATE SKIP LOCKED",
            key_rows::COLUMNS,
            now.0
        );
        let due = sqlx::raw_sql(sqlx::AssertSqlSafe(due));
        let due = due.fetch_all(&mut *tx).await.map_err(failed)?;
        let Sweeping {
            report,
            removed,
            changed,
            unreadable,
            floor,
        } = swept(&due, now)?;
        let mut statements = Vec::new();
        for key in unreadable {
            let later = now.plus_ms(UNREADABLE_AGAIN_MS).0;
            let mut put_off = format!("UPDATE semel_key SET due_us = {later} WHERE key_bytes = x'");
            key_rows::push_hex(&mut put_off, &key);
            statements.push(put_off + "'");
        }
        if !removed.is_empty() {
            // In the transaction that removes them: whoever finds a row gone finds the floor above its tokens.
            statements.push(format!(
                "UPDATE semel_token SET token = GREATEST(token, {floor}) WHERE one = 1"
            ));
            statements.push(key_rows::remove(&removed));
        }
        if !changed.is_empty() {
            statements.push(key_rows::write(
                &changed,
                key_rows::version(),
                Timestamp(i64::MAX),
                Way::Replace,
            ));
        }
        let mut old = String::from("DELETE FROM semel_commit WHERE id < x'");
        let kept = now.plus_ms(-COMMITS_KEPT_MS);
        key_rows::push_hex(&mut old, &kept.0.to_be_bytes());
        statements.push(format!("{old}' LIMIT {limit}"));
        // Hexadecimal digits and nothing else that came from outside.
        let all = sqlx::raw_sql(sqlx::AssertSqlSafe(statements.join(";")));
        all.execute(&mut *tx).await.map_err(failed)?;
        tx.commit().await.map_err(|error| commit_failed("sweep", error))?;
        Ok(report)
    }

    async fn list(&self, query: &KeyQuery) -> Result<KeyPage, StoreError> {
        let failed = |error| classify("list", error);
        let from = query.from_key()?;
        let (first, end) = query.scope.as_ref().map_or((vec![0], vec![u8::MAX; 512]), range);
        let first = from.as_ref().map_or(first, |key| {
            // The first key that can follow.
            let mut next = key.to_bytes();
            next.push(0);
            next
        });
        let state = query.state.map(StateName::as_str);
        let rows = sqlx::query(LIST)
            .bind(first)
            .bind(end)
            .bind(state)
            .bind(state)
            .bind(state)
            .bind(state)
            .bind(query.limit)
            .fetch_all(&self.own)
            .await
            .map_err(failed)?;
        let mut last = None;
        let mut records = Vec::new();
        for row in &rows {
            let now = Timestamp(row.try_get_unchecked("now_us").map_err(failed)?);
            let (key, stored) = Stored::read(row, "list")?;
            match stored.record {
                Ok(record) => records.extend(query.shows(&key, &record, now)),
                Err(error) => tracing::warn!(%error, %key, "a record cannot be read and is not listed"),
            }
            last = Some(key);
        }
        let more = rows.len() == query.limit as usize;
        Ok(KeyPage {
            records,
            next: last.filter(|_| more).map(|key| key.to_bytes().into()),
        })
    }

    async fn usage(&self, scope: &Scope, records_max: u64) -> Result<Usage, StoreError> {
        let failed = |error| classify("usage", error);
        let (first, end) = range(scope);
        let row = sqlx::query(USAGE)
            .bind(first)
            .bind(end)
            .bind(i64::try_from(records_max).unwrap_or(i64::MAX))
            .fetch_one(&self.own)
            .await
            .map_err(failed)?;
        let count = |column| {
            let count: i64 = row.try_get_unchecked(column).map_err(failed)?;
            Ok::<_, StoreError>(u64::try_from(count).unwrap_or(0))
        };
        Ok(Usage {
            records: count("records")?,
            bytes: count("bytes")?,
        })
    }
}

/// What a sweep makes of the rows that are due.
struct Sweeping {
    report: SweepReport,
    removed: Vec<Key>,
    changed: Vec<Change>,
    /// Keys of rows that this build cannot read.
    unreadable: Vec<Vec<u8>>,
    floor: i64,
}

fn swept(due: &[sqlx::mysql::MySqlRow], now: Timestamp) -> Result<Sweeping, StoreError> {
    let mut swept = Sweeping {
        report: SweepReport::default(),
        removed: Vec::new(),
        changed: Vec::new(),
        unreadable: Vec::new(),
        floor: 0,
    };
    for row in due {
        let read = Stored::read(row, "sweep")
            .and_then(|(key, stored)| Ok((key, stored.record?, stored.token_last, stored.version)));
        let (key, record, token_last, version) = match read {
            Ok(read) => read,
            Err(error) => {
                let key: Vec<u8> = row
                    .try_get_unchecked("key_bytes")
                    .map_err(|error| classify("sweep", error))?;
                let hex = semel_core::key::hex(&key);
                tracing::warn!(%error, key = hex, "a record cannot be read: the sweep passes it over for an hour");
                swept.unreadable.push(key);
                continue;
            }
        };
        let (record, what) = record.swept(now);
        if let Some(what) = what {
            swept.report.count(what);
        }
        match record {
            None => {
                swept.floor = swept.floor.max(token_last);
                swept.removed.push(key);
            }
            Some(record) => swept.changed.push(Change {
                key,
                record,
                token_last,
                replaces: version,
            }),
        }
        debug_assert!(what != Some(Swept::Removed) || swept.floor >= token_last);
    }
    swept.changed.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Ok(swept)
}

/// The keys of a scope: from the first to before the second.
fn range(scope: &Scope) -> (Vec<u8>, Vec<u8>) {
    let scope = scope.as_bytes();
    let mut first = Vec::with_capacity(256);
    // A scope has at most 255 bytes.
    first.push(u8::try_from(scope.len()).unwrap_or(u8::MAX));
    first.extend_from_slice(scope);
    // Ids have at most 255 bytes, so none lies behind as many of the largest.
    let mut end = first.clone();
    end.resize(first.len() + 256, u8::MAX);
    (first, end)
}

fn passed_claims(replies: &Replies<ClaimReply>) {
    let granted = |reply: &Result<ClaimReply, StoreError>| matches!(reply, Ok(ClaimReply::Granted { .. }));
    if replies.iter().any(granted) {
        crash_point("key.claimed");
    }
}

fn claim(reply: Result<Reply, StoreError>) -> Result<ClaimReply, StoreError> {
    match reply? {
        Reply::Claim(reply) => Ok(reply),
        _ => Err(mixed_up()),
    }
}

fn lease(reply: Result<Reply, StoreError>) -> Result<LeaseReply, StoreError> {
    match reply? {
        Reply::Lease(reply) => Ok(reply),
        _ => Err(mixed_up()),
    }
}

fn record(reply: Result<Reply, StoreError>) -> Result<Option<Record>, StoreError> {
    match reply? {
        Reply::Record(record) => Ok(record),
        _ => Err(mixed_up()),
    }
}

fn mixed_up() -> StoreError {
    let text = "an item got another one's answer: a bug in this build";
    StoreError::new(semel_core::ErrorKind::Corrupt, "batch", text)
}
