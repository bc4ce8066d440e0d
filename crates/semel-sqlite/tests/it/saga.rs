//! SQLite obeys the laws of sagas and of the barrier.

use std::sync::Arc;

use async_trait::async_trait;
use semel_core::StoredOutcome;
use semel_core::saga::{BarrierCall, Op};
use semel_sqlite::Sqlite;
use semel_sqlite::tx::{self, Barrier};
use semel_testkit::laws::saga::{Site, SiteAnswer, Work, World};
use tempfile::TempDir;

async fn world() -> (World, TempDir) {
    let (db, clock, dir) = super::keys::store().await;
    let world = World::new(Arc::new(db), move |ms| {
        clock.advance_ms(ms);
        std::future::ready(())
    });
    (world, dir)
}

semel_testkit::saga_laws!(world());

#[test]
fn generated_histories_get_the_answers_of_the_model() {
    semel_testkit::laws::saga::history::compare_with_model(world, 100, 0);
}

mod barrier {
    use super::*;

    struct Shop(Sqlite);

    async fn shop() -> (Shop, TempDir) {
        let (db, _, dir) = crate::keys::store().await;
        let mut tx = db.begin().await.unwrap();
        sqlx::query("CREATE TABLE effect (saga TEXT, step TEXT, change INTEGER)")
            .execute(&mut *tx)
            .await
            .unwrap();
        db.commit(tx).await.unwrap();
        (Shop(db), dir)
    }

    #[async_trait]
    impl Site for Shop {
        async fn call(&self, call: &BarrierCall, work: Work) -> SiteAnswer {
            let mut tx = self.0.begin().await.unwrap();
            let answer = match tx::barrier(&mut tx, call).await.unwrap() {
                Barrier::Run(pending) => {
                    sqlx::query("INSERT INTO effect VALUES (?1, ?2, ?3)")
                        .bind(call.saga.as_str())
                        .bind(&call.step)
                        .bind(if call.op == Op::Action { 1 } else { -1 })
                        .execute(&mut *tx)
                        .await
                        .unwrap();
                    let outcome = match work {
                        Work::Succeed(bytes) => StoredOutcome::Succeeded(bytes.into()),
                        Work::Refuse(bytes) => StoredOutcome::Refused(bytes.into()),
                        Work::Die => return SiteAnswer::Died,
                    };
                    pending.store(&mut tx, outcome.clone()).await.unwrap();
                    SiteAnswer::Ran(outcome)
                }
                Barrier::Replay(outcome) => SiteAnswer::Replayed(outcome),
                Barrier::Refused(code) => SiteAnswer::Refused(code),
                Barrier::NothingToUndo => SiteAnswer::NothingToUndo,
                Barrier::Busy => return SiteAnswer::Busy,
            };
            self.0.commit(tx).await.unwrap();
            answer
        }

        async fn effects(&self, saga: &str, step: &str) -> (i64, i64) {
            sqlx::query_as(
                "SELECT coalesce(sum(change), 0), count(*) FROM effect WHERE saga = ?1 AND step = ?2",
            )
            .bind(saga)
            .bind(step)
            .fetch_one(self.0.readers())
            .await
            .unwrap()
        }
    }

    semel_testkit::barrier_laws!(shop());

    /// Committing without `store` is the participant's mistake; it is named, never taken for an answer.
    #[tokio::test]
    async fn a_call_that_was_committed_without_its_answer_is_an_error() {
        let (Shop(db), _dir) = shop().await;
        let call = BarrierCall {
            saga: semel_core::saga::SagaId::new("s").unwrap(),
            step: "charge".into(),
            op: Op::Action,
            epoch: 1,
            action_succeeded: false,
            not_after: None,
        };
        let mut tx = db.begin().await.unwrap();
        assert!(matches!(
            tx::barrier(&mut tx, &call).await.unwrap(),
            Barrier::Run(_)
        ));
        db.commit(tx).await.unwrap();
        let mut tx = db.begin().await.unwrap();
        let error = tx::barrier(&mut tx, &call).await.unwrap_err();
        assert_eq!(error.kind(), semel_core::ErrorKind::Corrupt);
        assert!(error.to_string().contains("store"), "{error}");
    }
}
