//! A key store that speaks nothing but the SQL functions: what any other language would do.

use async_trait::async_trait;
use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, Lease, LeaseReply, OwnerLost, Record, Release,
    Settlement, SweepReport, Token, Verdict,
};
use semel_core::store::{Capabilities, KeyPage, KeyQuery, Replies, Usage};
use semel_core::{
    ErrorKind, Key, KeyStore, KeyStoreExt as _, Scope, StoreError, StoredOutcome, Timestamp, limits,
};
use semel_postgres::{Postgres, classify};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

/// Claims and ends runs by the functions; sweeps, lists and shows whole records as the Rust store does.
pub(super) struct Functions(pub(super) Postgres);

/// One call per item, answered for itself.
macro_rules! each {
    ($items:expr, $item:ident, $ask:expr) => {{
        let mut replies = Vec::new();
        for $item in $items {
            let ask = async { $ask };
            replies.push(match limits::check_batch($items.len()) {
                Ok(()) => ask.await,
                Err(limit) => Err(limit.into()),
            });
        }
        replies
    }};
}

type Answer = Result<PgRow, StoreError>;

fn until(row: &PgRow) -> Timestamp {
    Timestamp(row.get::<Option<i64>, _>("until_us").unwrap_or_default())
}

impl Functions {
    async fn claim(&self, claim: &Claim) -> Answer {
        let call = "SELECT *, semel.us(until) AS until_us FROM semel.claim($1, $2, $3, $4, $5, $6)";
        let call = sqlx::query(call)
            .bind(claim.key.scope().as_bytes())
            .bind(claim.key.id())
            .bind(claim.fingerprint.to_bytes())
            .bind(claim.owner_lost == OwnerLost::Hold)
            .bind(claim.lease_ms)
            .bind(claim.nonce.0);
        call.fetch_one(self.0.pool())
            .await
            .map_err(|error| classify("claim", error))
    }

    /// A call that begins with scope and id.
    async fn call(
        &self,
        sql: &'static str,
        key: &Key,
        lease: Lease,
        more: &[Option<i64>],
    ) -> Result<LeaseReply, StoreError> {
        let mut call = sqlx::query(sql)
            .bind(key.scope().as_bytes())
            .bind(key.id())
            .bind(lease.token.0)
            .bind(lease.nonce.0);
        for more in more {
            call = call.bind(more);
        }
        let row = call.fetch_one(self.0.pool()).await;
        ended(&row.map_err(|error| classify("call", error))?)
    }
}

fn outcome(row: &PgRow) -> StoredOutcome {
    let bytes: Vec<u8> = row.get("outcome");
    StoredOutcome::from_parts(row.get("outcome_code"), bytes.into()).unwrap()
}

fn ended(row: &PgRow) -> Result<LeaseReply, StoreError> {
    Ok(match row.get("verdict") {
        "ok" => LeaseReply::Ok(until(row)),
        "lease_lost" => LeaseReply::LeaseLost,
        "conflict" => LeaseReply::Conflict,
        other => panic!("{other}"),
    })
}

#[async_trait]
impl KeyStore for Functions {
    fn capabilities(&self) -> Capabilities {
        KeyStore::capabilities(&self.0)
    }

    async fn claim_many(&self, claims: &[Claim]) -> Replies<ClaimReply> {
        each!(claims, claim, {
            let row = self.claim(claim).await?;
            assert_eq!(row.get::<&[u8], _>("nonce"), claim.nonce.0);
            let token = || Token(row.get("token"));
            Ok(match row.get("verdict") {
                "granted" => ClaimReply::Granted {
                    lease: Lease {
                        token: token(),
                        nonce: claim.nonce,
                    },
                    until: until(&row),
                    attempt: u32::try_from(row.get::<i32, _>("attempt")).unwrap(),
                },
                "done" => ClaimReply::Done {
                    outcome: outcome(&row),
                    retain_until: until(&row),
                },
                "busy" => ClaimReply::Busy {
                    lease_left_ms: row.get("lease_left_ms"),
                },
                "unknown" => ClaimReply::Unknown { token: token() },
                "mismatch" => ClaimReply::Mismatch,
                "gone" => ClaimReply::Gone { until: until(&row) },
                "withdrawn" => ClaimReply::Withdrawn,
                other => panic!("{other}"),
            })
        })
    }

    async fn complete_many(&self, completions: &[Completion]) -> Replies<LeaseReply> {
        each!(completions, done, {
            let sql =
                "SELECT *, semel.us(until) AS until_us FROM semel.complete($1, $2, $3, $4, $5, $6, $7, $8)";
            let call = sqlx::query(sql)
                .bind(done.key.scope().as_bytes())
                .bind(done.key.id())
                .bind(done.lease.token.0)
                .bind(done.lease.nonce.0)
                .bind(done.outcome.bytes())
                .bind(done.outcome.code())
                .bind(done.keep.retention_ms)
                .bind(done.keep.tombstone_ms);
            let row = call.fetch_one(self.0.pool()).await;
            ended(&row.map_err(|error| classify("complete", error))?)
        })
    }

    async fn extend_many(&self, extensions: &[Extension]) -> Replies<LeaseReply> {
        let sql = "SELECT *, semel.us(until) AS until_us FROM semel.extend($1, $2, $3, $4, $5)";
        each!(extensions, wish, {
            self.call(sql, &wish.key, wish.lease, &[Some(wish.lease_ms)])
                .await
        })
    }

    async fn release_many(&self, releases: &[Release]) -> Replies<LeaseReply> {
        each!(releases, release, {
            let sql = "SELECT *, semel.us(clock_timestamp()) AS until_us FROM semel.release($1, $2, $3, $4)";
            let call = sqlx::query(sql)
                .bind(release.key.scope().as_bytes())
                .bind(release.key.id())
                .bind(release.nonce.0)
                .bind(release.token.map(|token| token.0));
            let row = call.fetch_one(self.0.pool()).await;
            ended(&row.map_err(|error| classify("release", error))?)
        })
    }

    async fn abandon_many(&self, abandonments: &[Abandonment]) -> Replies<LeaseReply> {
        let sql = "SELECT *, semel.us(clock_timestamp()) AS until_us FROM semel.abandon($1, $2, $3, $4)";
        each!(abandonments, it, self.call(sql, &it.key, it.lease, &[]).await)
    }

    async fn settle_many(&self, settlements: &[Settlement]) -> Replies<LeaseReply> {
        each!(settlements, it, {
            let outcome = match &it.verdict {
                Verdict::Happened(outcome) => Some(outcome),
                Verdict::DidNotHappen => None,
                // From SQL whole scopes are closed: `close.rs`.
                Verdict::Closed => return self.0.settle(it).await,
            };
            let sql = "SELECT verdict, semel.us(coalesce(until, clock_timestamp())) AS until_us
                       FROM semel.settle($1, $2, $3, $4, $5, $6, $7)";
            let call = sqlx::query(sql)
                .bind(it.key.scope().as_bytes())
                .bind(it.key.id())
                .bind(it.token.0)
                .bind(outcome.map(StoredOutcome::code))
                .bind(outcome.map_or(&b""[..], |outcome| outcome.bytes()))
                .bind(it.keep.retention_ms)
                .bind(it.keep.tombstone_ms);
            let row = call.fetch_one(self.0.pool()).await;
            ended(&row.map_err(|error| classify("settle", error))?)
        })
    }

    async fn read_many(&self, keys: &[Key]) -> Replies<Option<Record>> {
        self.0.read_many(keys).await
    }

    async fn sweep(&self, limit: u32) -> Result<SweepReport, StoreError> {
        self.0.sweep(limit).await
    }

    async fn list(&self, query: &KeyQuery) -> Result<KeyPage, StoreError> {
        self.0.list(query).await
    }

    async fn usage(&self, scope: &Scope, records_max: u64) -> Result<Usage, StoreError> {
        self.0.usage(scope, records_max).await
    }
}

/// Which kind a refusal of a function is.
#[tokio::test]
async fn what_a_function_refuses_is_named_with_what_to_do() {
    let (_lent, db) = crate::keys::Lent::take().await;
    let bad = [
        (
            "SELECT semel.claim('', 'a', semel.fingerprint('x'))",
            "scope: 0 bytes is outside 1..=255",
        ),
        (
            "SELECT semel.claim('s', repeat('a', 256)::bytea, semel.fingerprint('x'))",
            "key id: 256 bytes",
        ),
        (
            "SELECT semel.claim('s', NULL, semel.fingerprint('x'))",
            "key id: null",
        ),
        ("SELECT semel.claim('s', 'a', 'x')", "fingerprint: not 33 bytes"),
        ("SELECT semel.claim('s', 'a', NULL)", "fingerprint: not 33 bytes"),
        (
            "SELECT semel.claim('s', 'a', semel.fingerprint('x'), true, 0)",
            "lease: 0 ms is outside 1..=86400000",
        ),
        (
            "SELECT semel.claim('s', 'a', semel.fingerprint('x'), NULL)",
            "hold: null",
        ),
        (
            "SELECT semel.claim('s', 'a', semel.fingerprint('x'), nonce => 'worker-1')",
            "nonce: not 16 bytes",
        ),
        (
            "SELECT semel.complete('s', 'a', NULL, semel.nonce())",
            "token: null",
        ),
        (
            "SELECT semel.complete('s', 'a', 1, semel.nonce(), '', 'ok')",
            "outcome code: ok",
        ),
        (
            "SELECT semel.complete('s', 'a', 1, semel.nonce(), repeat('a', 1048577)::bytea)",
            "outcome: 1048577 bytes",
        ),
        (
            "SELECT semel.complete('s', 'a', 1, semel.nonce(), 'x', 'f')",
            "outcome: bytes with code f",
        ),
        (
            "SELECT semel.complete('s', 'a', 1, semel.nonce(), retention_ms => 0)",
            "retention: 0 ms",
        ),
        ("SELECT semel.once('s', 'a', 'x')", "fingerprint: not 33 bytes"),
        (
            "SELECT semel.once('s', 'a', semel.fingerprint('x'), -1)",
            "retention: -1 ms",
        ),
        (
            "SELECT semel.extend('s', 'a', 1, semel.nonce(), 86400001)",
            "lease: 86400001 ms",
        ),
        ("SELECT semel.release('s', 'a', NULL)", "nonce: not 16 bytes"),
        ("SELECT semel.outcome('s', '')", "key id: 0 bytes"),
    ];
    for (call, text) in bad {
        let error = sqlx::query(call).execute(db.pool()).await.unwrap_err();
        let database = error.as_database_error().unwrap();
        assert_eq!(database.code().as_deref(), Some("SM210"), "{call}: {error}");
        assert!(database.message().starts_with("SEM0210: "), "{call}: {error}");
        assert!(database.message().contains(text), "{call}: {error}");
        let hint = database.downcast_ref::<sqlx::postgres::PgDatabaseError>().hint();
        assert!(hint.is_some_and(|hint| !hint.is_empty()), "{call}");
        assert_eq!(classify("call", error).kind(), ErrorKind::LimitExceeded);
    }
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM semel.key")
        .fetch_one(db.pool())
        .await
        .unwrap();
    assert_eq!(left, 0, "nothing half-stored");
}
