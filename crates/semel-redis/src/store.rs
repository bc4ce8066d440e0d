//! Keys on Redis.
//!
//! The two transitions of a run that nothing disturbs, its claim and its completion, are a script each; every other reply
//! is the pure machine's over the record that a script showed, and what the machine changes is swapped in by a script
//! that compares what it replaces.

use async_trait::async_trait;
use futures_util::join;
use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, Lease, LeaseReply, Record, Release, Settlement,
    SweepReport, Token, Verdict, step,
};
use semel_core::store::{
    Batching, Capabilities, Hint, KeyPage, KeyQuery, KeyStore, MixedBatch, MixedReplies, Replies, Usage,
};
use semel_core::{ErrorKind, Key, Scope, StoreError, Timestamp, crash_point};

use crate::Redis;
use crate::batch::{Ask, NO_TOKEN, Script, Transition};
use crate::error::Doing;
use crate::link;
use crate::names::drawn_at;
use crate::record::{claim_tail, done_tail, keep_bytes, right};

#[async_trait]
impl KeyStore for Redis {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "redis",
            joins_user_transaction: false,
            fences: true,
            // A replica that is promoted may not have seen the last ones; tokens follow the clock, which makes a repeat
            // unlikely, and the nonce is compared as well (rule K9).
            token_survives_failover: false,
            shared_by_machines: true,
            durable: self.is_durable(),
            counts_scopes: false,
        }
    }

    async fn claim_many(&self, claims: &[Claim]) -> Replies<ClaimReply> {
        if let Some(error) = self.refuses_claims() {
            return claims.iter().map(|_| Err(error.clone())).collect();
        }
        let replies = self.batch(claims, &CLAIM).await;
        let granted =
            |reply: &Result<ClaimReply, StoreError>| matches!(reply, Ok(ClaimReply::Granted { .. }));
        if replies.iter().any(granted) {
            crash_point("key.claimed");
        }
        replies
    }

    async fn complete_many(&self, completions: &[Completion]) -> Replies<LeaseReply> {
        crash_point("key.before_complete");
        let replies = self.batch(completions, &COMPLETE).await;
        crash_point("key.completed");
        for (done, reply) in completions.iter().zip(&replies) {
            if matches!(reply, Ok(LeaseReply::Ok(_))) {
                self.run_ended(&done.key, done.lease.token);
            }
        }
        replies
    }

    async fn extend_many(&self, extensions: &[Extension]) -> Replies<LeaseReply> {
        self.batch(extensions, &EXTEND).await
    }

    async fn release_many(&self, releases: &[Release]) -> Replies<LeaseReply> {
        let replies = self.batch(releases, &RELEASE).await;
        for (release, reply) in releases.iter().zip(&replies) {
            if let (Some(token), Ok(LeaseReply::Ok(_))) = (release.token, reply) {
                self.run_ended(&release.key, token);
            }
        }
        replies
    }

    async fn abandon_many(&self, abandonments: &[Abandonment]) -> Replies<LeaseReply> {
        self.batch(abandonments, &ABANDON).await
    }

    async fn settle_many(&self, settlements: &[Settlement]) -> Replies<LeaseReply> {
        self.batch(settlements, &SETTLE).await
    }

    async fn read_many(&self, keys: &[Key]) -> Replies<Option<Record>> {
        self.batch(keys, &READ).await
    }

    async fn sweep(&self, limit: u32) -> Result<SweepReport, StoreError> {
        self.sweep_some(limit).await
    }

    async fn list(&self, query: &KeyQuery) -> Result<KeyPage, StoreError> {
        self.page(query).await
    }

    async fn usage(&self, _scope: &Scope, _records_max: u64) -> Result<Usage, StoreError> {
        let text = "Redis cannot count the records of a scope; keep quotas on an SQL store, or do without";
        Err(StoreError::new(ErrorKind::Invalid, "usage", text))
    }

    fn batching(&self) -> Batching {
        Batching {
            mixes: true,
            ..Batching::default()
        }
    }

    async fn transact_many(&self, batch: &MixedBatch) -> MixedReplies {
        // One after the other on the connection, in one round trip; ends of runs first.
        let completions = async {
            match &batch.completions[..] {
                [] => Replies::new(),
                some => self.complete_many(some).await,
            }
        };
        let (completions, releases, abandonments, settlements, extensions, claims) = join!(
            completions,
            self.release_many(&batch.releases),
            self.abandon_many(&batch.abandonments),
            self.settle_many(&batch.settlements),
            self.extend_many(&batch.extensions),
            self.claim_many(&batch.claims),
        );
        MixedReplies {
            completions,
            releases,
            abandonments,
            settlements,
            extensions,
            claims,
        }
    }

    async fn subscribe(&self, key: &Key) -> Option<Hint> {
        let record = self.names().record(key);
        self.link().subscribe(self.names().channel()).await.ok()?;
        // Registered before the note is made, so that no hint is missed.
        let hint = self.hints().register(record.clone());
        let note = |command: &mut redis::Cmd| _ = command.arg(&record);
        let noted = self
            .link()
            .run("subscribe", Doing::Reading, &link::WAIT, 1, note)
            .await;
        noted.ok().map(|_| hint)
    }
}

const CLAIM: Transition<Claim, ClaimReply> = Transition {
    operation: "claim",
    key: |claim| &claim.key,
    check: Claim::check,
    bytes: |_| 0,
    script: Some(Script {
        ask: Ask {
            doing: Doing::Writing,
            lua: &link::CLAIM,
            grants: true,
            common: |store, command| _ = command.arg(store.server_time().latest_ms()),
            tells_time: false,
            all_done: |first, index| (first + index, drawn_at(Token(first))),
        },
        arguments: |claim, command| {
            command.arg(&claim_tail(claim)[..]).arg(claim.lease_ms * 1_000);
        },
    }),
    done: |claim, token, now| step::claim(None, claim, now, Token(token)),
    step: |record, claim, now| step::claim(record, claim, now, NO_TOKEN),
    promises: |reply| matches!(reply, ClaimReply::Granted { .. }),
    granted: |reply, token| match reply {
        ClaimReply::Granted {
            lease,
            until,
            attempt,
        } => ClaimReply::Granted {
            lease: Lease { token, ..lease },
            until,
            attempt,
        },
        other => other,
    },
    runs_on: true,
};

const COMPLETE: Transition<Completion, LeaseReply> = Transition {
    operation: "complete",
    key: |done| &done.key,
    check: Completion::check,
    bytes: |done| done.outcome.bytes().len(),
    script: Some(Script {
        ask: Ask {
            doing: Doing::Writing,
            lua: &link::COMPLETE,
            grants: false,
            common: |store, command| _ = command.arg(store.names().channel()),
            tells_time: true,
            all_done: |now, _| (1, Timestamp(now)),
        },
        arguments: |done, command| {
            command.arg(&right(done.lease)[..]).arg(keep_bytes(done.keep));
            command.arg(done_tail(&done.outcome));
        },
    }),
    done: |done, _, now| (None, LeaseReply::Ok(now.plus_ms(done.keep.retention_ms))),
    step: |record, done, now| step::complete(record, done, now),
    promises: |reply| matches!(reply, LeaseReply::Ok(_)),
    granted: unchanged,
    runs_on: false,
};

const EXTEND: Transition<Extension, LeaseReply> = Transition {
    operation: "extend",
    key: |wish| &wish.key,
    check: Extension::check,
    bytes: |_| 0,
    script: None,
    done: |_, _, now| (None, LeaseReply::Ok(now)),
    step: |record, wish, now| step::extend(record, wish, now),
    promises: |reply| matches!(reply, LeaseReply::Ok(_)),
    granted: unchanged,
    runs_on: true,
};

const RELEASE: Transition<Release, LeaseReply> = Transition {
    operation: "release",
    key: |release| &release.key,
    check: |_| Ok(()),
    bytes: |_| 0,
    script: None,
    done: |_, _, now| (None, LeaseReply::Ok(now)),
    step: |record, release, now| step::release(record, release, now),
    promises: |reply| matches!(reply, LeaseReply::Ok(_)),
    granted: unchanged,
    runs_on: false,
};

const ABANDON: Transition<Abandonment, LeaseReply> = Transition {
    operation: "abandon",
    key: |abandonment| &abandonment.key,
    check: |_| Ok(()),
    bytes: |_| 0,
    script: None,
    done: |_, _, now| (None, LeaseReply::Ok(now)),
    step: |record, abandonment, now| step::abandon(record, abandonment, now),
    promises: |reply| matches!(reply, LeaseReply::Ok(_)),
    granted: unchanged,
    runs_on: false,
};

const SETTLE: Transition<Settlement, LeaseReply> = Transition {
    operation: "settle",
    key: |settlement| &settlement.key,
    check: Settlement::check,
    bytes: |settlement| match &settlement.verdict {
        Verdict::Happened(outcome) => outcome.bytes().len(),
        Verdict::DidNotHappen | Verdict::Closed => 0,
    },
    script: None,
    done: |_, _, now| (None, LeaseReply::Ok(now)),
    step: |record, settlement, now| step::settle(record, settlement, now),
    promises: |reply| matches!(reply, LeaseReply::Ok(_)),
    granted: unchanged,
    runs_on: false,
};

const READ: Transition<Key, Option<Record>> = Transition {
    operation: "read",
    key: |key| key,
    check: |_| Ok(()),
    bytes: |_| 0,
    script: None,
    done: |_, _, _| (None, None),
    step: |record, _, now| {
        let seen = record.clone().and_then(|record| record.visible_at(now));
        (record, seen)
    },
    promises: |_| false,
    granted: |record, _| record,
    runs_on: true,
};

fn unchanged(reply: LeaseReply, _: Token) -> LeaseReply {
    reply
}
