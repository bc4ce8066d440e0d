//! Keys on MariaDB against what a good engineer writes by hand for one table: claims by one multi-row
//! `INSERT IGNORE … RETURNING`, completions by one joined `UPDATE` that compares tokens, a transaction per batch. By hand
//! there is no policy, nonce, withdrawal, retention or tombstone, and the token is always 1. A second form by hand has what
//! no correct store can do without: tokens that grow, a nonce that is compared, and an index of what is due.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use semel_core::claim::{Claim, ClaimReply, Completion, Keep, LeaseReply, Nonce, OwnerLost, succeeded};
use semel_core::{Fingerprint, Key, KeyStore, KeyStoreExt as _, Scope};
use semel_keys::Batched;
use semel_mysql::{Config, Mysql};
use semel_testkit::servers::mariadb;
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Row as _};
use tokio::sync::{mpsc, oneshot};

use crate::Plan;
use crate::harness::{Table, callers};

/// Keys in a batch.
const BATCH: usize = 256;
/// Callers at once, one key at a time.
const CALLERS: usize = 8;
/// Tasks at once behind a batcher.
const TASKS: usize = 256;
/// Batches on their way at once.
const LANES: usize = 2;
/// How long a claim by hand lasts.
const LEASE_US: i64 = 30_000_000;
/// Bytes of an outcome.
const OUTCOME: &[u8] = &[b'x'; 200];

const TABLE: &str = "CREATE TABLE http_claim (k VARBINARY(512) PRIMARY KEY, fp BINARY(32) NOT NULL, token BIGINT NOT NULL, \
     state TINYINT NOT NULL, lease_until DATETIME(3) NOT NULL, resp MEDIUMBLOB) ENGINE = InnoDB; \
     CREATE SEQUENCE fence ENGINE = InnoDB; \
     CREATE TABLE fenced_claim (k VARBINARY(512) PRIMARY KEY, fp BINARY(32) NOT NULL, token BIGINT NOT NULL, \
     nonce BINARY(16) NOT NULL, state TINYINT NOT NULL, lease_until DATETIME(3) NOT NULL, due DATETIME(3) NOT NULL, \
     resp MEDIUMBLOB, KEY (due)) ENGINE = InnoDB";

/// What a form by hand keeps.
#[derive(Clone, Copy)]
enum Form {
    Bare,
    Fenced,
}

/// Ids that no run has used before, growing.
#[derive(Clone, Default)]
struct Ids(Arc<AtomicU64>);

impl Ids {
    fn claims(&self, count: usize) -> Vec<Claim> {
        let scope = Scope::new("bench/tenant-1").unwrap();
        let claim = |_| Claim {
            key: Key::new(
                scope.clone(),
                format!("order-{:012}", self.0.fetch_add(1, Ordering::Relaxed)),
            )
            .unwrap(),
            fingerprint: Fingerprint::of(b"an order"),
            nonce: Nonce::random(),
            owner_lost: OwnerLost::Hold,
            lease_ms: 30_000,
        };
        (0..count).map(claim).collect()
    }
}

pub(crate) async fn run(plan: Plan) {
    let url = mariadb().fresh_database();
    let mut config = Config::new(&url);
    config.key_connections_max = u32::try_from(CALLERS).unwrap();
    let store = Mysql::connect(config).await.unwrap();
    store.migrate().await.unwrap();
    let pool = MySqlPoolOptions::new()
        .max_connections(u32::try_from(CALLERS).unwrap())
        .test_before_acquire(false)
        .connect(&url)
        .await
        .unwrap();
    sqlx::raw_sql(TABLE).execute(&pool).await.unwrap();
    let ids = Ids::default();
    let store: Arc<dyn KeyStore> = Arc::new(store);
    let hand = |form, at_once, batch, complete| {
        let (pool, ids) = (pool.clone(), ids.clone());
        callers(at_once, plan.run, move |_| {
            by_hand(pool.clone(), ids.clone(), form, batch, complete)
        })
    };
    let keys = |at_once, batch, complete| {
        let (store, ids) = (Arc::clone(&store), ids.clone());
        callers(at_once, plan.run, move |_| {
            semel(Arc::clone(&store), ids.clone(), batch, complete)
        })
    };
    for (batch, at_once) in [(BATCH, LANES), (1, CALLERS)] {
        Table::new(
            format!("Keys on MariaDB, {batch} in a commit, {at_once} at once"),
            "keys",
        )
        .contender("limit: claim by hand", || hand(Form::Bare, at_once, batch, false))
        .contender("by hand, with tokens, nonce and due index", || {
            hand(Form::Fenced, at_once, batch, false)
        })
        .contender("claim", || keys(at_once, batch, false))
        .measure(plan.rounds)
        .await;
        Table::new(
            format!("Keys on MariaDB, {batch} in a commit, {at_once} at once, whole lives"),
            "keys",
        )
        .contender("limit: claim, then complete, by hand", || {
            hand(Form::Bare, at_once, batch, true)
        })
        .contender("by hand, with tokens, nonce and due index", || {
            hand(Form::Fenced, at_once, batch, true)
        })
        .contender("claim, then complete", || keys(at_once, batch, true))
        .measure(plan.rounds)
        .await;
    }
    together(plan, &pool, &store, &ids).await;
    replays(plan, &pool, &store, &ids).await;
}

/// Many tasks that claim and complete one key at a time.
async fn together(plan: Plan, pool: &MySqlPool, store: &Arc<dyn KeyStore>, ids: &Ids) {
    let lanes: Vec<_> = (0..LANES).map(|_| lane(pool.clone())).collect();
    let batched: Arc<dyn KeyStore> = Arc::new(Batched::new(Arc::clone(store)));
    let one_by_one = |store: &Arc<dyn KeyStore>| {
        let (store, ids) = (Arc::clone(store), ids.clone());
        callers(TASKS, plan.run, move |_| {
            semel(Arc::clone(&store), ids.clone(), 1, true)
        })
    };
    Table::new(
        format!("Keys on MariaDB, claim and complete one by one, {TASKS} tasks"),
        "keys",
    )
    .contender("limit: batches by hand, two lanes", || {
        let (lanes, ids) = (lanes.clone(), ids.clone());
        callers(TASKS, plan.run, move |task| {
            in_lane(lanes[task % LANES].clone(), ids.clone())
        })
    })
    .contender("Batched<Mysql>", || one_by_one(&batched))
    .contender("without a batcher", || one_by_one(store))
    .measure(plan.rounds)
    .await;
}

/// Duplicates of finished keys.
async fn replays(plan: Plan, pool: &MySqlPool, store: &Arc<dyn KeyStore>, ids: &Ids) {
    let claims: Arc<[Claim]> = ids.claims(512).into();
    for some in claims.chunks(BATCH) {
        let tokens = claim_by_hand(pool, Form::Bare, some).await;
        complete_by_hand(pool, Form::Bare, some, &tokens).await;
        complete(store, some).await;
    }
    let pick = |claims: &[Claim]| {
        let n = semel_core::host::random_16();
        let n = usize::from(u16::from_le_bytes([n[0], n[1]])) % claims.len();
        claims[n].clone()
    };
    Table::new(
        format!("Replays on MariaDB, one by one, {CALLERS} at once"),
        "replays",
    )
    .contender("limit: one SELECT by hand", || {
        let (pool, claims) = (pool.clone(), Arc::clone(&claims));
        callers(CALLERS, plan.run, move |_| {
            let (pool, claim) = (pool.clone(), pick(&claims));
            async move {
                let row = sqlx::query(
                    "SELECT fp, state, resp, token, lease_until < NOW(3) FROM http_claim WHERE k = ?",
                )
                .bind(claim.key.to_bytes())
                .fetch_one(&pool)
                .await
                .unwrap();
                assert_eq!(row.get::<Vec<u8>, _>("resp"), OUTCOME);
                1
            }
        })
    })
    .contender("claim", || {
        let (store, claims) = (Arc::clone(store), Arc::clone(&claims));
        callers(CALLERS, plan.run, move |_| {
            let (store, claim) = (Arc::clone(&store), pick(&claims));
            async move {
                let claim = Claim {
                    nonce: Nonce::random(),
                    ..claim
                };
                assert!(matches!(store.claim(&claim).await, Ok(ClaimReply::Done { .. })));
                1
            }
        })
    })
    .measure(plan.rounds)
    .await;
}

async fn semel(store: Arc<dyn KeyStore>, ids: Ids, batch: usize, whole: bool) -> u64 {
    let claims = ids.claims(batch);
    if whole {
        complete(&store, &claims).await;
    } else {
        let replies = store.claim_many(&claims).await;
        assert!(
            replies
                .iter()
                .all(|reply| matches!(reply, Ok(ClaimReply::Granted { .. })))
        );
    }
    batch as u64
}

/// The whole life of these keys.
async fn complete(store: &Arc<dyn KeyStore>, claims: &[Claim]) {
    let replies = store.claim_many(claims).await;
    let completions: Vec<Completion> = claims
        .iter()
        .zip(replies)
        .map(|(claim, reply)| {
            let Ok(ClaimReply::Granted { lease, .. }) = reply else {
                panic!("a fresh key was not granted: {reply:?}");
            };
            Completion {
                key: claim.key.clone(),
                lease,
                outcome: succeeded(OUTCOME),
                keep: Keep::default(),
            }
        })
        .collect();
    let done = store.complete_many(&completions).await;
    assert!(done.iter().all(|reply| matches!(reply, Ok(LeaseReply::Ok(_)))));
}

async fn by_hand(pool: MySqlPool, ids: Ids, form: Form, batch: usize, whole: bool) -> u64 {
    let claims = ids.claims(batch);
    let tokens = claim_by_hand(&pool, form, &claims).await;
    if whole {
        complete_by_hand(&pool, form, &claims, &tokens).await;
    }
    batch as u64
}

/// The tokens of what was won.
async fn claim_by_hand(pool: &MySqlPool, form: Form, claims: &[Claim]) -> Vec<i64> {
    let mut tx = pool.begin().await.unwrap();
    let won = insert(&mut tx, form, claims).await;
    tx.commit().await.unwrap();
    assert_eq!(won.len(), claims.len());
    won
}

async fn complete_by_hand(pool: &MySqlPool, form: Form, claims: &[Claim], tokens: &[i64]) {
    let mut tx = pool.begin().await.unwrap();
    let done = update(&mut tx, form, claims, tokens).await;
    tx.commit().await.unwrap();
    assert_eq!(done, claims.len() as u64);
}

async fn insert(db: &mut sqlx::MySqlConnection, form: Form, claims: &[Claim]) -> Vec<i64> {
    let (into, row) = match form {
        Form::Bare => (
            "http_claim(k,fp,token,state,lease_until)",
            "(?,?,1,0,NOW(3) + INTERVAL ? MICROSECOND)",
        ),
        Form::Fenced => (
            "fenced_claim(k,fp,token,nonce,state,lease_until,due)",
            "(?,?,NEXTVAL(fence),?,0,NOW(3) + INTERVAL ? MICROSECOND,NOW(3) + INTERVAL ? MICROSECOND)",
        ),
    };
    let rows = vec![row; claims.len()].join(",");
    let sql = format!("INSERT IGNORE INTO {into} VALUES {rows} RETURNING k,token");
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for claim in claims {
        query = query
            .bind(claim.key.to_bytes())
            .bind(claim.fingerprint.to_bytes()[1..].to_vec());
        if matches!(form, Form::Fenced) {
            query = query.bind(&claim.nonce.0[..]).bind(LEASE_US);
        }
        query = query.bind(LEASE_US);
    }
    let won = query.fetch_all(db).await.unwrap();
    won.iter().map(|row| row.get("token")).collect()
}

async fn update(db: &mut sqlx::MySqlConnection, form: Form, claims: &[Claim], tokens: &[i64]) -> u64 {
    let (row, table, also, set) = match form {
        Form::Bare => ("", "http_claim", "", ""),
        Form::Fenced => (
            ", CAST(? AS BINARY) AS n",
            "fenced_claim",
            " AND c.nonce=i.n",
            ", c.due=NOW(3) + INTERVAL ? MICROSECOND",
        ),
    };
    let row = format!("SELECT CAST(? AS BINARY) AS k, ? AS t, CAST(? AS BINARY) AS r{row}");
    let rows = vec![row; claims.len()].join(" UNION ALL ");
    let sql = format!(
        "UPDATE {table} c JOIN ({rows}) i ON c.k=i.k AND c.token=i.t AND c.state=0{also} SET c.state=1, c.resp=i.r{set}"
    );
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for (claim, token) in claims.iter().zip(tokens) {
        query = query.bind(claim.key.to_bytes()).bind(token).bind(OUTCOME);
        if matches!(form, Form::Fenced) {
            query = query.bind(&claim.nonce.0[..]);
        }
    }
    if matches!(form, Form::Fenced) {
        query = query.bind(Keep::default().retention_ms * 1_000);
    }
    query.execute(db).await.unwrap().rows_affected()
}

enum Op {
    Claim(Claim, oneshot::Sender<()>),
    Complete(Claim, oneshot::Sender<()>),
}

/// One connection; whatever has queued up, in one transaction.
fn lane(pool: MySqlPool) -> mpsc::UnboundedSender<Op> {
    let (lane, mut queue) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut buffer = Vec::new();
        while queue.recv_many(&mut buffer, BATCH).await > 0 {
            let (mut claims, mut done, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
            for op in buffer.drain(..) {
                let (list, claim, waiter) = match op {
                    Op::Claim(claim, waiter) => (&mut claims, claim, waiter),
                    Op::Complete(claim, waiter) => (&mut done, claim, waiter),
                };
                list.push(claim);
                waiting.push(waiter);
            }
            claims.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            done.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            let mut tx = pool.begin().await.unwrap();
            if !claims.is_empty() {
                assert_eq!(insert(&mut tx, Form::Bare, &claims).await.len(), claims.len());
            }
            if !done.is_empty() {
                let tokens = vec![1; done.len()];
                assert_eq!(
                    update(&mut tx, Form::Bare, &done, &tokens).await,
                    done.len() as u64
                );
            }
            tx.commit().await.unwrap();
            for waiter in waiting {
                let _ = waiter.send(());
            }
        }
    });
    lane
}

async fn in_lane(lane: mpsc::UnboundedSender<Op>, ids: Ids) -> u64 {
    let claim = ids.claims(1).remove(0);
    let (waiter, claimed) = oneshot::channel();
    assert!(lane.send(Op::Claim(claim.clone(), waiter)).is_ok());
    claimed.await.unwrap();
    let (waiter, done) = oneshot::channel();
    assert!(lane.send(Op::Complete(claim, waiter)).is_ok());
    done.await.unwrap();
    1
}
