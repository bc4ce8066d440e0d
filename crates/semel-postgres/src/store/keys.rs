//! Keys on PostgreSQL.
//!
//! Each transition is one statement over arrays, a transaction of its own: its conditions are those of the pure machine,
//! so that what it carries out is what the machine would have decided under the row's lock.
//!
//! # Guarantees
//! Tokens come from one sequence and are drawn when the row's lock is held, so that they never go back. Replays of
//! finished keys lock and write nothing; the first of them may use up numbers of the sequence.
//!
//! # Not guaranteed
//! A token drawn inside a transaction that was rolled back may be larger than the next one given out.
//! After a fail-over to an asynchronous standby whatever it had not received is forgotten, as for all your data.
//!
//! # Limits
//! A statement waits for a row that another transaction holds for at most [`Config::key_lock_wait`](crate::Config).

use std::time::Duration;

use async_trait::async_trait;
use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, Lease, LeaseReply, OwnerLost, REMOVE_GRACE_MS,
    Record, Release, Settlement, State, StateName, SweepReport, Token, Verdict, WITHDRAWN_MS,
    WITHDRAWN_NONCES_MAX, Withdrawn, step,
};
use semel_core::store::{Capabilities, Hint, KeyPage, KeyQuery, KeyStore, Replies, Usage};
use semel_core::{Key, Scope, StoreError, crash_point};
use sqlx::Row as _;

use super::autocommit::Statement;
use super::key_batch::Transition;
use super::key_rows::{self, Answer};
use crate::db::Postgres;
use crate::error::{autocommit_failed, classify};
use crate::gate::{query, query_scalar};

const CLAIM_NEW_SQL: &str = include_str!("../sql/key_claim_new.sql");
const CLAIM_SQL: &str = include_str!("../sql/key_claim.sql");
const COMPLETE_SQL: &str = include_str!("../sql/key_complete.sql");
const EXTEND_SQL: &str = include_str!("../sql/key_extend.sql");
const RELEASE_SQL: &str = include_str!("../sql/key_release.sql");
const SETTLE_SQL: &str = include_str!("../sql/key_settle.sql");
const READ_SQL: &str = include_str!("../sql/key_read.sql");
const ABANDON_SQL: &str = include_str!("../sql/key_abandon.sql");
const LIST_SQL: &str = include_str!("../sql/key_list.sql");
const LIST_UNKNOWN_SQL: &str = include_str!("../sql/key_list_unknown.sql");
const USAGE_SQL: &str = include_str!("../sql/key_usage.sql");
const SWEEP_SQL: &str = include_str!("../sql/key_sweep.sql");

/// A token that no sequence gives out: when the machine grants it, the database has not.
pub(crate) const NO_TOKEN: Token = Token(i64::MIN);

/// What `semel check` says when [`Postgres::keys_moved`].
pub const KEYS_MOVED: &str = "SEM0213: the tokens were drawn on another cluster or timeline, or before a dump was loaded; call SELECT semel.adopt_keys()";

impl Postgres {
    /// Whether the tokens were drawn on another cluster or timeline, or before a dump was loaded: then `SELECT semel.adopt_keys()` keeps them from coming
    /// back.
    ///
    /// # Errors
    /// The server cannot be reached, or the schema is older than this build's.
    pub async fn keys_moved(&self) -> Result<bool, StoreError> {
        query_scalar("SELECT semel.keys_moved()")
            .fetch_one(&self.own)
            .await
            .map_err(|error| classify("keys_moved", error))
    }
}

#[async_trait]
impl KeyStore for Postgres {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "postgres",
            joins_user_transaction: true,
            fences: true,
            // With synchronous replication they do; an asynchronous standby may not have seen the last ones.
            token_survives_failover: false,
            shared_by_machines: true,
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
        let failed = |error| classify("sweep", error);
        let row = query(SWEEP_SQL)
            .bind(i64::from(limit))
            .bind(REMOVE_GRACE_MS)
            .fetch_one(&self.own)
            .await
            .map_err(|error| autocommit_failed("sweep", error))?;
        let count = |column| {
            let count: i64 = row.try_get(column).map_err(failed)?;
            Ok::<_, StoreError>(u64::try_from(count).unwrap_or(0))
        };
        Ok(SweepReport {
            unknown: count("unknown")?,
            tombstoned: count("tombstoned")?,
            removed: count("removed")?,
        })
    }

    async fn list(&self, wanted: &KeyQuery) -> Result<KeyPage, StoreError> {
        let from = wanted.from_key()?;
        // Unknown keys are few among many: they have a way of their own.
        let unknown = wanted.state == Some(StateName::Unknown);
        let rows = query(if unknown { LIST_UNKNOWN_SQL } else { LIST_SQL })
            .bind(wanted.scope.as_ref().map(Scope::as_bytes))
            .bind(from.as_ref().map(|key| key.scope().as_bytes()))
            .bind(from.as_ref().map(Key::id))
            .bind(wanted.state.map(StateName::as_str))
            .bind(i64::from(wanted.limit))
            .fetch_all(&self.own)
            .await
            .map_err(|error| classify("list", error))?;
        let rows: Result<Vec<_>, StoreError> = rows.iter().map(key_rows::listed).collect();
        let rows = rows?;
        let more = rows.len() == wanted.limit as usize;
        let next = rows.last().filter(|_| more);
        let next = next.map(|(key, _, _)| key.to_bytes().into());
        let shown = rows
            .iter()
            .filter_map(|(key, record, now)| wanted.shows(key, record, *now));
        Ok(KeyPage {
            records: shown.collect(),
            next,
        })
    }

    async fn usage(&self, scope: &Scope, records_max: u64) -> Result<Usage, StoreError> {
        let failed = |error| classify("usage", error);
        let row = query(USAGE_SQL)
            .bind(scope.as_bytes())
            .bind(i64::try_from(records_max).unwrap_or(i64::MAX))
            .fetch_one(&self.own)
            .await
            .map_err(failed)?;
        let count = |column| {
            let count: i64 = row.try_get(column).map_err(failed)?;
            Ok::<_, StoreError>(u64::try_from(count).unwrap_or(0))
        };
        Ok(Usage {
            records: count("records")?,
            bytes: count("bytes")?,
        })
    }

    async fn subscribe(&self, key: &Key) -> Option<Hint> {
        self.hints.subscribe(self, key).await
    }
}

const CLAIM: Transition<Claim, ClaimReply> = Transition {
    operation: "claim",
    key: |claim| &claim.key,
    check: Claim::check,
    answer: Answer::seen,
    new: Some(|claims, wait| claim_statement(CLAIM_NEW_SQL, claims, wait)),
    statement: |claims, wait| claim_statement(CLAIM_SQL, claims, wait),
    won: |claim, won, now| {
        let lease = Lease {
            token: won.token.unwrap_or(NO_TOKEN),
            nonce: claim.nonce,
        };
        let until = won.until.unwrap_or(now);
        let attempt = won.attempt.unwrap_or(1);
        let state = State::Claimed {
            lease,
            owner_lost: claim.owner_lost,
            until,
            extended: false,
            attempt,
        };
        let record = Record {
            fingerprint: Some(claim.fingerprint),
            state,
            // What it remembers does not matter while it is claimed, and it is only used until then.
            withdrawn: Withdrawn::default(),
        };
        let reply = ClaimReply::Granted {
            lease,
            until,
            attempt,
        };
        (Some(record), reply)
    },
    step: |record, claim, now| step::claim(record, claim, now, NO_TOKEN),
    // Whoever holds the row is claiming the key, or runs it inside a transaction.
    blocked: |wait| {
        Some(ClaimReply::Busy {
            lease_left_ms: i64::try_from(wait.as_millis()).unwrap_or(i64::MAX),
        })
    },
};

const COMPLETE: Transition<Completion, LeaseReply> = Transition {
    operation: "complete",
    key: |done| &done.key,
    check: Completion::check,
    answer: Answer::won,
    new: None,
    statement: |items, wait| {
        query(COMPLETE_SQL)
            .bind(scopes(items, |it| &it.key))
            .bind(ids(items, |it| &it.key))
            .bind(column(items, |it| it.lease.token.0))
            .bind(column(items, |it| it.lease.nonce.0))
            .bind(column(items, |it| it.outcome.code()))
            .bind(column(items, |it| it.outcome.bytes().to_vec()))
            .bind(column(items, |it| it.keep.retention_ms))
            .bind(column(items, |it| it.keep.tombstone_ms))
            .bind(wait)
    },
    won: |_, won, now| (None, LeaseReply::Ok(won.until.unwrap_or(now))),
    step: |record, done, now| step::complete(record, done, now),
    blocked: no_reply,
};

const EXTEND: Transition<Extension, LeaseReply> = Transition {
    operation: "extend",
    key: |wish| &wish.key,
    check: Extension::check,
    answer: Answer::won,
    new: None,
    statement: |items, wait| {
        query(EXTEND_SQL)
            .bind(scopes(items, |it| &it.key))
            .bind(ids(items, |it| &it.key))
            .bind(column(items, |it| it.lease.token.0))
            .bind(column(items, |it| it.lease.nonce.0))
            .bind(column(items, |it| it.lease_ms))
            .bind(wait)
    },
    won: |_, won, now| (None, LeaseReply::Ok(won.until.unwrap_or(now))),
    step: |record, wish, now| step::extend(record, wish, now),
    blocked: no_reply,
};

const RELEASE: Transition<Release, LeaseReply> = Transition {
    operation: "release",
    key: |release| &release.key,
    check: |_| Ok(()),
    answer: Answer::won,
    new: None,
    statement: |items, wait| {
        query(RELEASE_SQL)
            .bind(scopes(items, |it| &it.key))
            .bind(ids(items, |it| &it.key))
            .bind(column(items, |it| it.token.map(|token| token.0)))
            .bind(column(items, |it| it.nonce.0))
            .bind(wait)
            .bind(WITHDRAWN_MS)
            .bind(REMOVE_GRACE_MS)
            .bind(NONCES_MAX)
    },
    won: |_, _, now| (None, LeaseReply::Ok(now)),
    step: |record, release, now| step::release(record, release, now),
    blocked: no_reply,
};

const ABANDON: Transition<Abandonment, LeaseReply> = Transition {
    operation: "abandon",
    key: |abandonment| &abandonment.key,
    check: |_| Ok(()),
    answer: Answer::won,
    new: None,
    statement: |items, wait| {
        query(ABANDON_SQL)
            .bind(scopes(items, |it| &it.key))
            .bind(ids(items, |it| &it.key))
            .bind(column(items, |it| it.lease.token.0))
            .bind(column(items, |it| it.lease.nonce.0))
            .bind(wait)
    },
    won: |_, _, now| (None, LeaseReply::Ok(now)),
    step: |record, abandonment, now| step::abandon(record, abandonment, now),
    blocked: no_reply,
};

const SETTLE: Transition<Settlement, LeaseReply> = Transition {
    operation: "settle",
    key: |settlement| &settlement.key,
    check: Settlement::check,
    answer: Answer::won,
    new: None,
    statement: |items, wait| {
        let outcome = |it: &Settlement| match &it.verdict {
            Verdict::Happened(outcome) => Some(outcome.clone()),
            Verdict::DidNotHappen | Verdict::Closed => None,
        };
        query(SETTLE_SQL)
            .bind(scopes(items, |it| &it.key))
            .bind(ids(items, |it| &it.key))
            .bind(column(items, |it| it.token.0))
            .bind(column(items, |it| outcome(it).is_some()))
            .bind(column(items, |it| outcome(it).map(|outcome| outcome.code())))
            .bind(column(items, |it| {
                outcome(it).map(|outcome| outcome.bytes().to_vec())
            }))
            .bind(column(items, |it| it.keep.retention_ms))
            .bind(column(items, |it| it.keep.tombstone_ms))
            .bind(wait)
            .bind(WITHDRAWN_MS)
            .bind(REMOVE_GRACE_MS)
            .bind(NONCES_MAX)
            .bind(column(items, |it| it.verdict == Verdict::Closed))
    },
    won: |_, won, now| (None, LeaseReply::Ok(won.until.unwrap_or(now))),
    step: |record, settlement, now| step::settle(record, settlement, now),
    blocked: no_reply,
};

const READ: Transition<Key, Option<Record>> = Transition {
    operation: "read",
    key: |key| key,
    check: |_| Ok(()),
    answer: Answer::read,
    new: None,
    statement: |keys, _| read_statement(keys),
    won: |_, _, _| (None, None),
    step: |record, _, now| {
        let record = record.and_then(|record| record.at(now));
        let seen = record.clone().and_then(|record| record.visible_at(now));
        (record, seen)
    },
    blocked: |_| None,
};

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "it is 8"
)]
const NONCES_MAX: i32 = WITHDRAWN_NONCES_MAX as i32;

fn claim_statement(sql: &'static str, claims: &[&Claim], wait: String) -> Statement {
    query(sql)
        .bind(scopes(claims, |it| &it.key))
        .bind(ids(claims, |it| &it.key))
        .bind(column(claims, |it| it.fingerprint.to_bytes()))
        .bind(column(claims, |it| it.nonce.0))
        .bind(column(claims, |it| it.owner_lost == OwnerLost::Hold))
        .bind(column(claims, |it| it.lease_ms))
        .bind(wait)
}

pub(crate) fn read_statement(keys: &[&Key]) -> Statement {
    query(READ_SQL)
        .bind(scopes(keys, |key| key))
        .bind(ids(keys, |key| key))
}

fn no_reply(_: Duration) -> Option<LeaseReply> {
    None
}

fn column<T, V>(items: &[&T], value: impl Fn(&T) -> V) -> Vec<V> {
    items.iter().map(|item| value(item)).collect()
}

fn scopes<T>(items: &[&T], key: impl Fn(&T) -> &Key) -> Vec<Vec<u8>> {
    column(items, |item| key(item).scope().as_bytes().to_vec())
}

fn ids<T>(items: &[&T], key: impl Fn(&T) -> &Key) -> Vec<Vec<u8>> {
    column(items, |item| key(item).id().to_vec())
}
