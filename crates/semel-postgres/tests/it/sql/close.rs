//! Closing a scope by SQL leaves what closing its keys one by one leaves (rule K13).

use semel_core::claim::{Settlement, Verdict};
use semel_core::store::KeyQuery;
use semel_core::{Keep, KeyStore as _, Scope};
use semel_postgres::Postgres;
use sqlx::{query, query_as, query_scalar};

use crate::keys::{Lent, age_ms};

const KEEP: Keep = Keep {
    retention_ms: 1_000,
    tombstone_ms: 2_000,
};

/// One key in each state that closing may meet; ids tell which.
const EVERY_STATE: [&str; 9] = [
    "SELECT semel.claim($1, 'running', semel.fingerprint('x'))",
    "SELECT semel.claim($1, 'again', semel.fingerprint('x'), hold => false)",
    "WITH c AS MATERIALIZED (SELECT * FROM semel.claim($1, 'unknown', semel.fingerprint('x')))
     SELECT semel.abandon($1, 'unknown', c.token, c.nonce) FROM c",
    "WITH c AS MATERIALIZED (SELECT * FROM semel.claim($1, 'done', semel.fingerprint('x')))
     SELECT semel.complete($1, 'done', c.token, c.nonce, 'secret', retention_ms => 5000, tombstone_ms => 0) FROM c",
    "WITH c AS MATERIALIZED (SELECT * FROM semel.claim($1, 'kept longer', semel.fingerprint('x')))
     SELECT semel.complete($1, 'kept longer', c.token, c.nonce, 'no', 'r', 9000, 291000) FROM c",
    "WITH c AS MATERIALIZED (SELECT * FROM semel.claim($1, 'over', semel.fingerprint('x')))
     SELECT semel.complete($1, 'over', c.token, c.nonce, 'old', retention_ms => 1, tombstone_ms => 90000) FROM c",
    "WITH c AS MATERIALIZED (SELECT * FROM semel.claim($1, 'given back', semel.fingerprint('x')))
     SELECT semel.release($1, 'given back', c.nonce, c.token) FROM c",
    "SELECT semel.release($1, 'withdrawn before', decode(repeat('07', 16), 'hex'))",
    "SELECT semel.claim($1, 'withdrawn before', semel.fingerprint('x'))",
];

/// What stands there, without the token and nonce of each claim; times from `at`, so coarse that it does not
/// count how long this test takes.
async fn rows(db: &Postgres, scope: &str, at: f64) -> Vec<String> {
    let sql = "SELECT concat_ws(' ', convert_from(id, 'UTF8'), state, encode(fingerprint, 'hex'), outcome_code, outcome,
        encode(digest, 'hex'), encode(withdrawn, 'hex') = repeat('07', 16), hold, attempt)
        || (SELECT string_agg(coalesce(round((extract(epoch FROM t) - $2::float8) / 100)::text, '-'), ' ')
          FROM unnest(ARRAY[until, tombstone_until, due_at]) AS t)
      FROM semel.key WHERE scope = $1 ORDER BY id";
    query_scalar(sql)
        .bind(scope.as_bytes())
        .bind(at)
        .fetch_all(db.pool())
        .await
        .unwrap()
}

async fn now(db: &Postgres) -> f64 {
    let sql = "SELECT extract(epoch FROM clock_timestamp())::float8";
    query_scalar(sql).fetch_one(db.pool()).await.unwrap()
}

/// A call, with what it answers: where the next begins, and how many keys were closed.
async fn close(db: &Postgres, scope: &str, after: Option<&[u8]>, most: i32) -> (Option<Vec<u8>>, i64) {
    query_as("SELECT after, closed FROM semel.close_scope($1, $2, $3, $4, $5)")
        .bind(scope.as_bytes())
        .bind(after)
        .bind(most)
        .bind(KEEP.retention_ms)
        .bind(KEEP.tombstone_ms)
        .fetch_one(db.pool())
        .await
        .unwrap()
}

#[tokio::test]
async fn closing_by_sql_leaves_the_rows_that_closing_key_by_key_leaves() {
    let (_lent, db) = Lent::take().await;
    for scope in ["one", "two", "twofold"] {
        for sql in EVERY_STATE {
            query(sql)
                .bind(scope.as_bytes())
                .execute(db.pool())
                .await
                .unwrap();
        }
    }
    age_ms(&db, 2).await;
    let other = rows(&db, "twofold", 0.0).await;

    let at = now(&db).await;
    let whole = KeyQuery {
        scope: Some(Scope::new("one").unwrap()),
        state: None,
        from: None,
        limit: 100,
    };
    let records = db.list(&whole).await.unwrap().records;
    let settlements: Vec<Settlement> = records
        .into_iter()
        .filter_map(|(key, record)| {
            let token = record.lease()?.token;
            Some(Settlement {
                key,
                token,
                verdict: Verdict::Closed,
                keep: KEEP,
            })
        })
        .collect();
    for reply in db.settle_many(&settlements).await {
        reply.unwrap();
    }
    let wanted = rows(&db, "one", at).await;

    let at = now(&db).await;
    let (next, closed) = close(&db, "two", None, 4).await;
    assert_eq!(closed, 4);
    let (end, more) = close(&db, "two", next.as_deref(), 4).await;
    assert_eq!((end, more), (None, 2), "of eight one was over and one given back");
    assert_eq!(rows(&db, "two", at).await, wanted);
    assert_eq!(close(&db, "two", None, 4).await, (None, 0), "it is closed");
    assert_eq!(rows(&db, "twofold", 0.0).await, other, "another scope");

    // Whoever uses one again never sees what came of it.
    let verdict: String =
        query_scalar("SELECT verdict FROM semel.claim('two', 'done', semel.fingerprint('x'))")
            .fetch_one(db.pool())
            .await
            .unwrap();
    assert_eq!(verdict, "gone");
}

#[tokio::test]
async fn a_closing_outside_of_its_limits_is_refused_by_name() {
    let (_lent, db) = Lent::take().await;
    for (call, says) in [
        ("SELECT semel.close_scope('')", "scope: 0 bytes"),
        ("SELECT semel.close_scope('s', ''::bytea)", "key id: 0 bytes"),
        (
            "SELECT semel.close_scope('s', keys_max => 0)",
            "keys_max: 0 is outside 1..=10000",
        ),
        (
            "SELECT semel.close_scope('s', keys_max => NULL)",
            "keys_max: null",
        ),
        (
            "SELECT semel.close_scope('s', retention_ms => 0)",
            "retention: 0 ms",
        ),
        (
            "SELECT semel.close_scope('s', tombstone_ms => -1)",
            "tombstone: -1 ms",
        ),
    ] {
        let error = sqlx::raw_sql(call).execute(db.pool()).await.unwrap_err();
        let error = error.as_database_error().unwrap();
        assert_eq!(error.code().as_deref(), Some("SM210"), "{call}");
        assert!(error.message().contains(says), "{call}: {}", error.message());
    }
}
