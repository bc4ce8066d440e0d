//! A process with coordinator and participants that dies at each named point: the next one finishes what it began, and
//! every effect is there once, or undone once.

use std::sync::Arc;
use std::time::Duration;

use semel_core::StoredOutcome;
use semel_core::saga::{Answer, BarrierCall, Call, Definition, Op, SagaId, Status, Step};
use semel_core::store::SagaStore;
use semel_saga::{CoordinatorConfig, Handlers};
use semel_sqlite::Sqlite;
use semel_testkit::crash::{self, Run};

use crate::shop::{Running, config, quick};

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
        return work(&Shop::sqlite(&file).await).await;
    }
    let name = "crash::a_process_that_dies_at_any_point_leaves_every_effect_once_on_sqlite";
    for point in POINTS {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("shop.db").display().to_string();
        let end = Run::test(name, "sqlite shop", &file).at(point).run();
        assert!(end.crashed(), "{point}: {end:?}");
        let shop = Shop::sqlite(&file).await;
        work(&shop).await;
        shop.audit(point).await;
    }
}

/// One saga that completes and one whose last step is refused; submitted again by whoever comes next.
async fn work(shop: &Shop) {
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
    coordinator.stops().await;
}

/// Store of the sagas and participant in one.
#[derive(Clone)]
struct Shop(Sqlite);

impl Shop {
    async fn sqlite(file: &str) -> Self {
        let db = Sqlite::open(semel_sqlite::Config::new(file)).await.unwrap();
        db.migrate().await.unwrap();
        let mut tx = db.begin().await.unwrap();
        sqlx::query("CREATE TABLE IF NOT EXISTS effect (saga TEXT, step TEXT, change INTEGER)")
            .execute(&mut *tx)
            .await
            .unwrap();
        db.commit(tx).await.unwrap();
        Self(db)
    }

    fn store(&self) -> Arc<dyn SagaStore> {
        Arc::new(self.0.clone())
    }

    /// Does or undoes a step behind the barrier.
    async fn take(&self, call: &Call) -> Answer {
        use semel_sqlite::tx::{Barrier, barrier};
        let mut tx = self.0.begin().await.unwrap();
        let answer = match barrier(&mut tx, &BarrierCall::of_call(call)).await.unwrap() {
            Barrier::Run(pending) => {
                sqlx::query("INSERT INTO effect VALUES (?1, ?2, ?3)")
                    .bind(call.saga.as_str())
                    .bind(&call.step)
                    .bind(change(call))
                    .execute(&mut *tx)
                    .await
                    .unwrap();
                let outcome = outcome(call);
                pending.store(&mut tx, outcome.clone()).await.unwrap();
                outcome.into()
            }
            Barrier::Replay(outcome) => outcome.into(),
            Barrier::NothingToUndo => Answer::Succeeded("".into()),
            Barrier::Refused(code) => code.into(),
            Barrier::Busy => Answer::Running { retry_after: None },
        };
        self.0.commit(tx).await.unwrap();
        answer
    }

    async fn audit(&self, point: &str) {
        let found: Vec<(String, String, i64, i64)> = sqlx::query_as(
            "SELECT saga, step, sum(change), count(*) FROM effect GROUP BY saga, step ORDER BY saga, step",
        )
        .fetch_all(self.0.readers())
        .await
        .unwrap();
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

fn change(call: &Call) -> i64 {
    if call.op == Op::Action { 1 } else { -1 }
}

fn outcome(call: &Call) -> StoredOutcome {
    if call.saga.as_str() == "refused" && call.step == "ship" {
        StoredOutcome::Refused("no lorry".into())
    } else {
        StoredOutcome::Succeeded("done".into())
    }
}
