//! A process with coordinator and participants that dies at each named point: the next one finishes what it began, and
//! every effect is there once, or undone once.

use std::sync::Arc;
use std::time::Duration;

use semel_core::StoredOutcome;
use semel_core::saga::{Answer, BarrierCall, Call, Definition, Op, SagaId, Status, Step};
use semel_core::store::SagaStore;
use semel_postgres::Postgres;
use semel_saga::{CoordinatorConfig, Handlers};
use semel_sqlite::Sqlite;
use semel_testkit::crash::{self, Run};
use semel_testkit::servers;

use crate::shop::{Running, config, postgres, quick};

/// Point and time. Two sagas make eight calls, two of them compensations.
const POINTS: [&str; 19] = [
    "saga.accepted",
    "saga.accepted:2",
    "saga.started",
    "saga.started:3",
    "saga.started:7",
    "saga.answered",
    "saga.answered:3",
    "saga.answered:6",
    "saga.turned",
    "saga.compensation_answered",
    "saga.compensation_answered:2",
    "saga.finished",
    "saga.finished:2",
    "barrier.marked",
    "barrier.marked:4",
    "barrier.marked:7",
    "barrier.before_commit",
    "barrier.before_commit:4",
    "barrier.before_commit:7",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_dies_at_any_point_leaves_every_effect_once_on_sqlite() {
    if let Some(file) = crash::role("sqlite shop") {
        return work_until_killed(&Shop::open(&file).await).await;
    }
    let name = "crash::a_process_that_dies_at_any_point_leaves_every_effect_once_on_sqlite";
    for point in POINTS {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("shop.db").display().to_string();
        die_and_go_on(name, "sqlite shop", &file, point).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_dies_at_any_point_leaves_every_effect_once_on_postgresql() {
    if let Some(database) = crash::role("postgresql shop") {
        return work_until_killed(&Shop::open(&database).await).await;
    }
    let name = "crash::a_process_that_dies_at_any_point_leaves_every_effect_once_on_postgresql";
    for point in POINTS {
        let database = servers::postgres().fresh_database();
        die_and_go_on(name, "postgresql shop", &database, point).await;
    }
}

async fn die_and_go_on(test: &str, role: &str, store: &str, point: &str) {
    let end = Run::test(test, role, store).at(point).run();
    assert!(end.crashed(), "{point}: {end:?}");
    let shop = Shop::open(store).await;
    work(&shop).await;
    shop.audit(point).await;
}

async fn work(shop: &Shop) {
    submitted(shop).await.stops().await;
}

/// The end of the last saga is seen before the process passes the point behind it, so it does not stop by itself.
async fn work_until_killed(shop: &Shop) {
    let _running = submitted(shop).await;
    std::future::pending().await
}

/// One saga that completes and one whose last step is refused; submitted again by whoever comes next.
async fn submitted(shop: &Shop) -> Running {
    let step = |name: &str| {
        let step = Step::new(name, "do").compensated_by("undo").barrier();
        step.with_retry(quick(20)).with_compensation_retry(quick(20))
    };
    let chain = Definition::new("shop")
        .step(step("reserve"))
        .step(step("charge"))
        .step(step("ship"))
        .check()
        .unwrap();
    let taker = |op: &str| (op.to_owned(), shop.clone());
    let handlers = ["do", "undo"]
        .into_iter()
        .map(taker)
        .fold(Handlers::new(), |handlers, (name, shop)| {
            handlers.on(name, move |call| {
                let shop = shop.clone();
                async move { shop.take(&call).await }
            })
        });
    let config = CoordinatorConfig {
        lease: Duration::from_millis(300),
        ..config()
    };
    let coordinator = Running::start(shop.store(), Arc::new(handlers), config);
    for (name, status) in [("good", Status::Completed), ("refused", Status::Compensated)] {
        let id = SagaId::new(name).unwrap();
        coordinator.sagas.submit(&chain, id.clone(), "{}").await.unwrap();
        assert_eq!(coordinator.end_of(&id).await.status, status);
    }
    coordinator
}

/// Store of the sagas and participant in one.
#[derive(Clone)]
enum Shop {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

const TABLE: &str = "CREATE TABLE IF NOT EXISTS effect (saga text, step text, change integer)";
const EFFECT: &str = "INSERT INTO effect VALUES ($1, $2, $3)";

/// The barrier's dance, the same on both stores.
macro_rules! take {
    ($backend:ident, $db:expr, $call:expr) => {{
        use $backend::tx::{Barrier, barrier};
        let mut tx = $db.begin().await.unwrap();
        let answer = match barrier(&mut tx, &BarrierCall::of_call($call)).await.unwrap() {
            Barrier::Run(pending) => {
                let effect = sqlx::query(EFFECT)
                    .bind($call.saga.as_str())
                    .bind(&$call.step)
                    .bind(change($call));
                effect.execute(&mut *tx).await.unwrap();
                let outcome = outcome($call);
                pending.store(&mut tx, outcome.clone()).await.unwrap();
                outcome.into()
            }
            Barrier::Replay(outcome) => outcome.into(),
            Barrier::NothingToUndo => Answer::Succeeded("".into()),
            Barrier::Refused(code) => code.into(),
            Barrier::Busy => Answer::Running { retry_after: None },
        };
        $db.commit(tx).await.unwrap();
        answer
    }};
}

impl Shop {
    async fn open(store: &str) -> Self {
        if store.starts_with("postgres:") {
            let db = postgres(store).await;
            sqlx::query(TABLE).execute(db.pool()).await.unwrap();
            return Self::Postgres(db);
        }
        let db = Sqlite::open(semel_sqlite::Config::new(store)).await.unwrap();
        db.migrate().await.unwrap();
        let mut tx = db.begin().await.unwrap();
        sqlx::query(TABLE).execute(&mut *tx).await.unwrap();
        db.commit(tx).await.unwrap();
        Self::Sqlite(db)
    }

    fn store(&self) -> Arc<dyn SagaStore> {
        match self {
            Self::Sqlite(db) => Arc::new(db.clone()),
            Self::Postgres(db) => Arc::new(db.clone()),
        }
    }

    /// Does or undoes a step behind the barrier.
    async fn take(&self, call: &Call) -> Answer {
        match self {
            Self::Sqlite(db) => take!(semel_sqlite, db, call),
            Self::Postgres(db) => take!(semel_postgres, db, call),
        }
    }

    async fn audit(&self, point: &str) {
        let sql =
            "SELECT saga, step, sum(change), count(*) FROM effect GROUP BY saga, step ORDER BY saga, step";
        let found: Vec<(String, String, i64, i64)> = match self {
            Self::Sqlite(db) => sqlx::query_as(sql).fetch_all(db.readers()).await.unwrap(),
            Self::Postgres(db) => sqlx::query_as(sql).fetch_all(db.pool()).await.unwrap(),
        };
        let row = |saga: &str, step: &str, left, changes| (saga.to_owned(), step.to_owned(), left, changes);
        let expected = [
            row("good", "charge", 1, 1),
            row("good", "reserve", 1, 1),
            row("good", "ship", 1, 1),
            row("refused", "charge", 0, 2),
            row("refused", "reserve", 0, 2),
        ];
        assert_eq!(found, expected, "{point}");
    }
}

fn change(call: &Call) -> i32 {
    if call.op == Op::Action { 1 } else { -1 }
}

fn outcome(call: &Call) -> StoredOutcome {
    if call.saga.as_str() == "refused" && call.step == "ship" {
        StoredOutcome::Refused("no lorry".into())
    } else {
        StoredOutcome::Succeeded("done".into())
    }
}
