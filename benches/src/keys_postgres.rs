//! Keys on PostgreSQL beside what somebody would write by hand: batches, replays, and a key in the business transaction.
//!
//! The hand-written statements are those of the reference that the goals were set by: one narrow table, one statement per
//! claim and per completion, arrays for batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use semel_core::claim::{Claim, ClaimReply, Completion, Keep, LeaseReply, Nonce, OwnerLost, succeeded};
use semel_core::{Fingerprint, Key, KeyStore, KeyStoreExt as _, Scope};
use semel_keys::Batched;
use semel_postgres::tx::{Mark, Once, OnceOptions, OnceOutcome, TxError, once, transact, transact_once};
use semel_postgres::{Config, Postgres};
use semel_testkit::servers::postgres;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::Plan;
use crate::harness::{Table, callers, timed};
use crate::machine::{WITH_POSTGRESQL, with_postgresql};

/// Keys in a batch.
const BATCH: usize = 256;
/// Callers at once, of one key each.
const CALLERS: usize = 64;
/// Connections for statements and transactions of one key each.
const CONNECTIONS: u32 = 16;
/// Bytes of an answer.
const ANSWER: &[u8] = &[b'a'; 200];

const BY_HAND: &str = "
CREATE TABLE http_claim (k bytea PRIMARY KEY, fp bytea NOT NULL, token bigint NOT NULL, state smallint NOT NULL,
  lease_until timestamptz NOT NULL, resp bytea) WITH (fillfactor = 60);
CREATE TABLE biz (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, op text NOT NULL, payload bytea NOT NULL);
CREATE FUNCTION biz_once(scope bytea, id bytea, fp bytea, op text, payload bytea, answer bytea) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE o record;
BEGIN
  o := semel.once(scope, id, fp);
  IF o.verdict = 'first' THEN
    INSERT INTO biz (op, payload) VALUES (biz_once.op, biz_once.payload);
    PERFORM semel.once_done(scope, id, o.token, answer);
  END IF;
  RETURN o.verdict;
END $$;
CREATE FUNCTION biz_once_with(scope bytea, id bytea, fp bytea, op text, payload bytea, answer bytea) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE o record;
BEGIN
  o := semel.once_with(scope, id, fp, answer);
  IF o.verdict = 'first' THEN
    INSERT INTO biz (op, payload) VALUES (biz_once_with.op, biz_once_with.payload);
  END IF;
  RETURN o.verdict;
END $$;";

/// The least that keeps a key in the business transaction, as the reference has it: in one statement when the answer is
/// known beforehand, else marked first and finished last.
const ONE_STATEMENT: &str = "
WITH old AS (SELECT fp, resp FROM http_claim WHERE k = $1),
c AS (INSERT INTO http_claim (k, fp, token, state, lease_until, resp)
  SELECT $1, $2, 1, 1, 'infinity', $3 WHERE NOT EXISTS (SELECT 1 FROM old) ON CONFLICT (k) DO NOTHING RETURNING 1),
b AS (INSERT INTO biz (op, payload) SELECT $4, $5 FROM c)
SELECT (SELECT count(*) FROM c), (SELECT fp FROM old), (SELECT resp FROM old)";
const MARK_FIRST: &str =
    "INSERT INTO http_claim (k, fp, token, state, lease_until) VALUES ($1, $2, 1, 0, 'infinity')
ON CONFLICT (k) DO NOTHING RETURNING token";
const MARK_DONE: &str = "UPDATE http_claim SET state = 1, resp = $2 WHERE k = $1";
const MARK_LAST: &str = "INSERT INTO http_claim (k, fp, token, state, lease_until, resp)
VALUES ($1, $2, 1, 1, 'infinity', $3) ON CONFLICT (k) DO NOTHING";

const CLAIM: &str = "
WITH old AS (SELECT state, fp, resp, token FROM http_claim WHERE k = $1),
ins AS (
  INSERT INTO http_claim AS c (k, fp, token, state, lease_until)
  SELECT $1, $2, 1, 0, clock_timestamp() + $3 * interval '1 ms'
  WHERE NOT EXISTS (SELECT 1 FROM old WHERE state = 1 OR fp <> $2)
  ON CONFLICT (k) DO UPDATE SET token = c.token + 1, lease_until = excluded.lease_until
    WHERE c.state = 0 AND c.lease_until < clock_timestamp() AND c.fp = excluded.fp
  RETURNING token)
SELECT (SELECT token FROM ins), (SELECT state FROM old), (SELECT fp FROM old), (SELECT resp FROM old)";
const FINISH: &str = "UPDATE http_claim SET state = 1, resp = $3 WHERE k = $1 AND token = $2 AND state = 0";
const CLAIM_MANY: &str = "
WITH i AS (SELECT * FROM unnest($1::bytea[], $2::bytea[]) AS t(k, fp)),
old AS (SELECT i.k, c.state, c.fp, c.resp FROM i JOIN http_claim c ON c.k = i.k),
ins AS (
  INSERT INTO http_claim AS c (k, fp, token, state, lease_until)
  SELECT i.k, i.fp, 1, 0, clock_timestamp() + $3 * interval '1 ms' FROM i
  WHERE NOT EXISTS (SELECT 1 FROM old WHERE old.k = i.k AND (old.state = 1 OR old.fp <> i.fp))
  ON CONFLICT (k) DO UPDATE SET token = c.token + 1, lease_until = excluded.lease_until
    WHERE c.state = 0 AND c.lease_until < clock_timestamp() AND c.fp = excluded.fp
  RETURNING c.k, c.token)
SELECT i.k, ins.token, old.state, old.fp, old.resp FROM i LEFT JOIN ins ON ins.k = i.k LEFT JOIN old ON old.k = i.k";
const FINISH_MANY: &str = "
UPDATE http_claim c SET state = 1, resp = i.r FROM unnest($1::bytea[], $2::bigint[], $3::bytea[]) AS i(k, t, r)
WHERE c.k = i.k AND c.token = i.t AND c.state = 0 RETURNING c.k";

/// Ids that no run has used before: a hash of a counter, so that they lie everywhere in an index, as callers' ids do.
#[derive(Clone, Default)]
struct Ids(Arc<AtomicU64>);

impl Ids {
    fn next(&self) -> Key {
        let n = self.0.fetch_add(1, Ordering::Relaxed);
        Key::derive(Scope::new("bench/tenant-1").unwrap(), &[&n.to_be_bytes()])
    }
}

fn asked() -> Fingerprint {
    Fingerprint::of(b"an order")
}

fn claim_of(key: Key) -> Claim {
    Claim {
        key,
        fingerprint: asked(),
        nonce: Nonce::random(),
        owner_lost: OwnerLost::Hold,
        lease_ms: 30_000,
    }
}

/// What every contender uses.
#[derive(Clone)]
struct Bench {
    plan: Plan,
    only: Option<Arc<str>>,
    ids: Ids,
    db: Postgres,
    /// For hand-written single statements and transactions.
    pool: PgPool,
    /// For hand-written batches: two connections without hash and merge joins, as the reference has them.
    lanes: PgPool,
    /// The same with them.
    hashing: PgPool,
}

pub(crate) async fn run(plan: Plan, only: Option<&str>) {
    let url = postgres().fresh_database();
    let mut config = Config::new(&url);
    config.connections_max = CONNECTIONS;
    config.key_connections_max = CONNECTIONS;
    let db = Postgres::connect(config).await.unwrap();
    db.migrate().await.unwrap();
    sqlx::raw_sql(BY_HAND).execute(db.pool()).await.unwrap();
    let options: sqlx::postgres::PgConnectOptions = url.parse().unwrap();
    let connect = |max, options| {
        PgPoolOptions::new()
            .max_connections(max)
            .connect_lazy_with(options)
    };
    let by_index = options.clone().options([("enable_seqscan", "off")]);
    let looping = by_index
        .clone()
        .options([("enable_hashjoin", "off"), ("enable_mergejoin", "off")]);
    let bench = Bench {
        plan,
        only: only.map(Arc::from),
        ids: Ids::default(),
        db,
        pool: connect(CONNECTIONS, options),
        lanes: connect(2, looping),
        hashing: connect(2, by_index),
    };
    let b = &bench;
    b.table(
        format!("Keys on PostgreSQL, claim and complete, {BATCH} in a call, 2 calls at once"),
        "keys",
        2,
    )
    .with("limit: unnest by hand (the reference)", |b| {
        by_hand_many(b.lanes, b.ids)
    })
    .with("the same with hash joins", |b| by_hand_many(b.hashing, b.ids))
    .with("Semel, claim_many and complete_many", |b| many(b.db, b.ids))
    .measure()
    .await;
    let store = Arc::new(Batched::new(b.db.clone()));
    let batched = Arc::clone(&store);
    b.table(
        format!("Keys on PostgreSQL, claim and complete, one in a call, {CALLERS} calls at once"),
        "keys",
        CALLERS,
    )
    .with("limit: one by one by hand", |b| by_hand(b.pool, b.ids))
    .with("Semel, one by one", |b| one(Arc::new(b.db), b.ids))
    .with("Semel, batched", move |b| one(Arc::clone(&batched), b.ids))
    .measure()
    .await;
    replays(b, store).await;
    transactions(b).await;
}

async fn replays(b: &Bench, store: Arc<Batched<Postgres>>) {
    let keys: Arc<Vec<Key>> = Arc::new((0..1_000).map(|_| b.ids.next()).collect());
    for key in keys.iter() {
        by_hand_key(b.pool.clone(), key.clone()).await;
        one_key(&b.db, key.clone()).await;
    }
    let turn = Arc::new(AtomicU64::new(0));
    let next =
        move || keys[usize::try_from(turn.fetch_add(1, Ordering::Relaxed)).unwrap() % keys.len()].clone();
    let (by_hand, single) = (next.clone(), next.clone());
    b.table(
        format!("Keys on PostgreSQL, replays, {CALLERS} calls at once"),
        "replays",
        CALLERS,
    )
    .with("limit: one by one by hand", move |b| {
        by_hand_replay(b.pool, by_hand())
    })
    .with("Semel, one by one", move |b| replay(Arc::new(b.db), single()))
    .with("Semel, batched", move |_| replay(Arc::clone(&store), next()))
    .measure()
    .await;
}

async fn transactions(b: &Bench) {
    const WITH: &str = "SELECT biz_once_with($1, $2, $3, $4, $5, $6)";
    const ONCE: &str = "SELECT biz_once($1, $2, $3, $4, $5, $6)";
    let pool = |b: &Bench| b.db.pool().clone();
    let at_once = CONNECTIONS as usize;
    b.table(
        format!("A business transaction (one INSERT) under a key on PostgreSQL, {at_once} at once"),
        "transactions",
        at_once,
    )
    .with("limit: BEGIN, INSERT, COMMIT, no key", move |b| plain(pool(&b)))
    .with("by hand: one statement, answer known before", move |b| {
        by_hand_in_one(pool(&b), b.ids.next())
    })
    .with("one function call: once_with, work", move |b| {
        folded(pool(&b), b.ids.next(), WITH)
    })
    .with("one function call: once, work, once_done", move |b| {
        folded(pool(&b), b.ids.next(), ONCE)
    })
    .with("by hand: mark, INSERT, finish", move |b| {
        by_hand_in_transaction(pool(&b), b.ids.next(), Mark::First)
    })
    .with("transact_once, mark first", |b| {
        under_key(b.db, b.ids.next(), Mark::First)
    })
    .with("transact with once and complete", |b| by_once(b.db, b.ids.next()))
    .with("by hand: INSERT, finished mark", move |b| {
        by_hand_in_transaction(pool(&b), b.ids.next(), Mark::Last)
    })
    .with("transact_once, mark last", |b| {
        under_key(b.db, b.ids.next(), Mark::Last)
    })
    .measure()
    .await;
}

/// A table of contenders that also says what each operation costs in processor time.
struct Contest<'a> {
    bench: &'a Bench,
    table: Table<'a>,
    at_once: usize,
}

impl Bench {
    fn table(&self, title: String, unit: &'static str, at_once: usize) -> Contest<'_> {
        Contest {
            bench: self,
            table: Table::new(title, unit).processors(WITH_POSTGRESQL),
            at_once,
        }
    }
}

impl<'a> Contest<'a> {
    fn with<F, O>(mut self, name: &'static str, operation: O) -> Self
    where
        F: Future<Output = u64> + Send + 'static,
        O: Fn(Bench) -> F + Clone + Send + 'static,
    {
        let (bench, at_once) = (self.bench, self.at_once);
        self.table = self.table.contender(name, move || {
            let (each, operation) = (bench.clone(), operation.clone());
            let run = callers(at_once, bench.plan.run, move |_| operation(each.clone()));
            timed(with_postgresql, run)
        });
        self
    }

    async fn measure(self) {
        let Bench { plan, only, .. } = self.bench;
        self.table.only(only.as_deref()).measure(plan.rounds).await;
    }
}

/// Token, state, fingerprint, answer.
type Claimed = (Option<i64>, Option<i16>, Option<Vec<u8>>, Option<Vec<u8>>);
/// The id before them.
type ClaimedMany = (
    Vec<u8>,
    Option<i64>,
    Option<i16>,
    Option<Vec<u8>>,
    Option<Vec<u8>>,
);

async fn by_hand_many(pool: PgPool, ids: Ids) -> u64 {
    let mut keys: Vec<Vec<u8>> = (0..BATCH).map(|_| ids.next().id().to_vec()).collect();
    keys.sort_unstable();
    let rows: Vec<ClaimedMany> = sqlx::query_as(CLAIM_MANY)
        .bind(&keys)
        .bind(vec![asked().to_bytes(); BATCH])
        .bind(30_000_f64)
        .fetch_all(&pool)
        .await
        .unwrap();
    assert!(rows.len() == BATCH && rows.iter().all(|row| row.1.is_some()));
    let done: Vec<(Vec<u8>,)> = sqlx::query_as(FINISH_MANY)
        .bind(&keys)
        .bind(vec![1_i64; BATCH])
        .bind(vec![ANSWER; BATCH])
        .fetch_all(&pool)
        .await
        .unwrap();
    done.len() as u64
}

async fn many(db: Postgres, ids: Ids) -> u64 {
    let claims: Vec<Claim> = (0..BATCH).map(|_| claim_of(ids.next())).collect();
    let replies = db.claim_many(&claims).await;
    let done: Vec<Completion> = claims
        .into_iter()
        .zip(replies)
        .map(|(claim, reply)| completion(claim.key, &reply.unwrap()))
        .collect();
    let replies = db.complete_many(&done).await;
    assert!(replies.iter().all(|reply| matches!(reply, Ok(LeaseReply::Ok(_)))));
    BATCH as u64
}

fn completion(key: Key, reply: &ClaimReply) -> Completion {
    let ClaimReply::Granted { lease, .. } = reply else {
        panic!("a fresh key was not granted: {reply:?}");
    };
    Completion {
        key,
        lease: *lease,
        outcome: succeeded(ANSWER),
        keep: Keep::default(),
    }
}

async fn claimed(pool: &PgPool, key: &Key) -> Claimed {
    sqlx::query_as(CLAIM)
        .bind(key.id().to_vec())
        .bind(asked().to_bytes())
        .bind(30_000_f64)
        .fetch_one(pool)
        .await
        .unwrap()
}

async fn by_hand_replay(pool: PgPool, key: Key) -> u64 {
    let row = claimed(&pool, &key).await;
    assert_eq!((row.0, row.1), (None, Some(1)));
    1
}

async fn by_hand(pool: PgPool, ids: Ids) -> u64 {
    by_hand_key(pool, ids.next()).await
}

async fn by_hand_key(pool: PgPool, key: Key) -> u64 {
    let row = claimed(&pool, &key).await;
    let done = sqlx::query(FINISH)
        .bind(key.id())
        .bind(row.0.unwrap())
        .bind(ANSWER)
        .execute(&pool)
        .await
        .unwrap();
    done.rows_affected()
}

async fn one<S: KeyStore>(store: Arc<S>, ids: Ids) -> u64 {
    one_key(&*store, ids.next()).await
}

async fn one_key<S: KeyStore>(store: &S, key: Key) -> u64 {
    let claim = claim_of(key);
    let reply = store.claim(&claim).await.unwrap();
    let done = store.complete(&completion(claim.key, &reply)).await.unwrap();
    assert!(matches!(done, LeaseReply::Ok(_)));
    1
}

async fn replay<S: KeyStore>(store: Arc<S>, key: Key) -> u64 {
    let reply = store.claim(&claim_of(key)).await.unwrap();
    assert!(matches!(reply, ClaimReply::Done { .. }));
    1
}

const INSERT: &str = "INSERT INTO biz (op, payload) VALUES ($1, $2)";

async fn plain(pool: PgPool) -> u64 {
    let mut tx = pool.begin().await.unwrap();
    sqlx::query(INSERT)
        .bind("")
        .bind(ANSWER)
        .execute(&mut *tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    1
}

async fn by_hand_in_one(pool: PgPool, key: Key) -> u64 {
    let row: (i64, Option<Vec<u8>>, Option<Vec<u8>>) = sqlx::query_as(ONE_STATEMENT)
        .bind(key.id().to_vec())
        .bind(asked().to_bytes())
        .bind(ANSWER)
        .bind("")
        .bind(ANSWER)
        .fetch_one(&pool)
        .await
        .unwrap();
    u64::try_from(row.0).unwrap()
}

async fn by_hand_in_transaction(pool: PgPool, key: Key, mark: Mark) -> u64 {
    let mut tx = pool.begin().await.unwrap();
    if mark == Mark::First {
        let marked: Option<(i64,)> = sqlx::query_as(MARK_FIRST)
            .bind(key.id().to_vec())
            .bind(asked().to_bytes())
            .fetch_optional(&mut *tx)
            .await
            .unwrap();
        assert!(marked.is_some());
    }
    sqlx::query(INSERT)
        .bind("")
        .bind(ANSWER)
        .execute(&mut *tx)
        .await
        .unwrap();
    let end = match mark {
        Mark::First => sqlx::query(MARK_DONE).bind(key.id().to_vec()),
        Mark::Last => sqlx::query(MARK_LAST)
            .bind(key.id().to_vec())
            .bind(asked().to_bytes()),
    };
    let ended = end.bind(ANSWER).execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    ended.rows_affected()
}

async fn folded(pool: PgPool, key: Key, call: &'static str) -> u64 {
    let verdict: String = sqlx::query_scalar(call)
        .bind(key.scope().as_bytes().to_vec())
        .bind(key.id().to_vec())
        .bind(asked().to_bytes())
        .bind("")
        .bind(ANSWER)
        .bind(ANSWER)
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(verdict, "first");
    1
}

async fn under_key(db: Postgres, key: Key, mark: Mark) -> u64 {
    let done = transact_once(&db, &key, asked(), mark, OnceOptions::default(), |tx| {
        Box::pin(async move {
            sqlx::query(INSERT)
                .bind("")
                .bind(ANSWER)
                .execute(&mut **tx)
                .await?;
            Ok::<_, TxError<()>>(succeeded(ANSWER))
        })
    });
    assert!(matches!(done.await.unwrap(), OnceOutcome::First(_)));
    1
}

async fn by_once(db: Postgres, key: Key) -> u64 {
    let key = &key;
    let done = transact(&db, |tx| {
        Box::pin(async move {
            let Once::First(pending) = once(tx, key, asked(), OnceOptions::default()).await? else {
                panic!("a fresh key was not the first");
            };
            sqlx::query(INSERT)
                .bind("")
                .bind(ANSWER)
                .execute(&mut **tx)
                .await?;
            pending.complete(tx, succeeded(ANSWER)).await?;
            Ok::<_, TxError<()>>(())
        })
    });
    done.await.unwrap();
    1
}
