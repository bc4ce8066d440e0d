//! PostgreSQL obeys the laws of the barrier, and what only PostgreSQL can get wrong.

use async_trait::async_trait;
use semel_core::StoredOutcome;
use semel_core::saga::{BarrierCall, Op};
use semel_postgres::Postgres;
use semel_postgres::tx::{self, Barrier};
use semel_testkit::laws::saga::{Site, SiteAnswer, Work};

use super::fresh;
use crate::keys::Lent;

struct Shop(Postgres);

async fn shop() -> (Shop, Lent) {
    let (lent, db) = fresh().await;
    let table = "CREATE TABLE IF NOT EXISTS effect_of_step (saga text, step text, change bigint); TRUNCATE effect_of_step";
    sqlx::raw_sql(table).execute(db.pool()).await.unwrap();
    (Shop(db), lent)
}

#[async_trait]
impl Site for Shop {
    async fn call(&self, call: &BarrierCall, work: Work) -> SiteAnswer {
        let mut tx = self.0.begin().await.unwrap();
        let answer = match tx::barrier(&mut tx, call).await.unwrap() {
            Barrier::Run(pending) => {
                sqlx::query("INSERT INTO effect_of_step VALUES ($1, $2, $3)")
                    .bind(call.saga.as_str())
                    .bind(&call.step)
                    .bind(if call.op == Op::Action { 1_i64 } else { -1 })
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
            Barrier::Busy => SiteAnswer::Busy,
        };
        self.0.commit(tx).await.unwrap();
        answer
    }

    async fn effects(&self, saga: &str, step: &str) -> (i64, i64) {
        sqlx::query_as(
            "SELECT coalesce(sum(change), 0)::bigint, count(*) FROM effect_of_step WHERE saga = $1 AND step = $2",
        )
        .bind(saga)
        .bind(step)
        .fetch_one(self.0.pool())
        .await
        .unwrap()
    }
}

mod laws {
    semel_testkit::barrier_laws!(super::shop());
}
