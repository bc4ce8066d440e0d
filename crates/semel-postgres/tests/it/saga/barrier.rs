//! PostgreSQL obeys the laws of the barrier, and what only PostgreSQL can get wrong.

use std::time::Duration;

use async_trait::async_trait;
use semel_core::saga::barrier::{BarrierRow, Verdict, decide};
use semel_core::saga::{BarrierCall, BarrierCode, Op};
use semel_core::{ErrorKind, Retry, StoredOutcome, Timestamp};
use semel_postgres::Postgres;
use semel_postgres::tx::{self, Barrier};
use semel_testkit::laws::saga::{Site, SiteAnswer, Work, id};
use sqlx::Transaction;

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

fn call(op: Op, epoch: i64, action_succeeded: bool) -> BarrierCall {
    BarrierCall {
        saga: id("order-1"),
        step: "charge".into(),
        op,
        epoch,
        action_succeeded,
        not_after: None,
    }
}

fn action() -> BarrierCall {
    call(Op::Action, 1, false)
}

fn undo() -> BarrierCall {
    call(Op::Compensation, 1, false)
}

fn succeeded(bytes: &'static str) -> StoredOutcome {
    StoredOutcome::Succeeded(bytes.into())
}

/// What the barrier says, without the work.
fn verdict(answer: &Barrier) -> Verdict {
    match answer {
        Barrier::Run(_) => Verdict::Run,
        Barrier::Replay(outcome) => Verdict::Replay(outcome.clone()),
        Barrier::Refused(code) => Verdict::Refuse(*code),
        Barrier::NothingToUndo => Verdict::NothingToUndo,
        Barrier::Busy => panic!("nobody else is here"),
    }
}

/// The SQL function has the rule of the core, whatever is stored and whoever calls; and writes only where it says so.
#[tokio::test]
async fn the_function_in_the_database_has_the_rule_of_the_core() {
    let (Shop(db), _lent) = shop().await;
    let mut rows = vec![None];
    for epoch in [4, 5, 6] {
        let outcomes = [
            None,
            Some(succeeded("done")),
            Some(StoredOutcome::Refused("no".into())),
            Some(StoredOutcome::Forgotten),
        ];
        for (outcome, origin) in outcomes
            .into_iter()
            .map(|outcome| (outcome, Op::Action))
            .chain([(Some(succeeded("")), Op::Compensation)])
        {
            rows.push(Some(BarrierRow {
                origin,
                epoch,
                outcome,
            }));
        }
    }
    let mut compared = 0;
    let calls = [
        call(Op::Action, 5, false),
        call(Op::Compensation, 5, false),
        call(Op::Compensation, 5, true),
    ];
    for action in &rows {
        for undo in rows.iter().filter(|row| {
            row.as_ref()
                .is_none_or(|row| row.origin == Op::Action && row.epoch != 4)
        }) {
            let undo = undo.clone().map(|row| BarrierRow {
                origin: Op::Compensation,
                ..row
            });
            for call in &calls {
                let mut tx = db.begin().await.unwrap();
                put(&mut tx, Op::Action, action.as_ref()).await;
                put(&mut tx, Op::Compensation, undo.as_ref()).await;
                let before = stored(&mut tx).await;
                let said = tx::barrier(&mut tx, call).await;
                let expected = decide(call, action.as_ref(), undo.as_ref());
                let about = format!("{call:?} over {action:?} and {undo:?}");
                match &said {
                    Ok(answer) => assert_eq!(verdict(answer), expected, "{about}"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupt, "{about}");
                        assert_eq!(expected, Verdict::Unfinished, "{about}");
                    }
                }
                let after = stored(&mut tx).await;
                match expected {
                    Verdict::Refuse(_) | Verdict::Unfinished => assert_eq!(after, before, "{about}"),
                    Verdict::Replay(_) => assert_eq!(after.len(), before.len(), "{about}"),
                    Verdict::Run => assert_eq!(after.len(), before.len() + 1, "{about}"),
                    Verdict::NothingToUndo => assert_eq!(after.len(), 2, "{about}"),
                }
                tx.rollback().await.unwrap();
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 16 * 9 * 3);
}

async fn put(tx: &mut Transaction<'_, sqlx::Postgres>, op: Op, row: Option<&BarrierRow>) {
    let Some(row) = row else { return };
    sqlx::query(
        "INSERT INTO semel.barrier (saga, step, op, origin, epoch, outcome, response)
         VALUES ('order-1', 'charge', $1, $2, $3, $4, $5)",
    )
    .bind(op.as_str())
    .bind(row.origin.as_str())
    .bind(row.epoch)
    .bind(row.outcome.as_ref().map(StoredOutcome::code))
    .bind(row.outcome.as_ref().map(StoredOutcome::bytes))
    .execute(&mut **tx)
    .await
    .unwrap();
}

type Stored = (String, String, i64, Option<String>, Option<Vec<u8>>);

async fn stored(tx: &mut Transaction<'_, sqlx::Postgres>) -> Vec<Stored> {
    sqlx::query_as("SELECT op, origin, epoch, outcome, response FROM semel.barrier ORDER BY op")
        .fetch_all(&mut **tx)
        .await
        .unwrap()
}

/// Marks the action in a transaction that stays open.
async fn open_action(db: &Postgres) -> (Transaction<'static, sqlx::Postgres>, tx::PendingBarrier) {
    let mut tx = db.begin().await.unwrap();
    match tx::barrier(&mut tx, &action()).await.unwrap() {
        Barrier::Run(pending) => (tx, pending),
        other => panic!("{other:?}"),
    }
}

/// A call that meets an open one of its step is told so after its wait, and its transaction is still good: nothing is
/// left of the call, nor of its `lock_timeout`.
#[tokio::test]
async fn a_call_that_meets_an_open_one_is_told_that_it_runs() {
    let (shop, _lent) = shop().await;
    let db = &shop.0;
    let (mut tx, pending) = open_action(db).await;
    for call in [action(), undo(), call(Op::Compensation, 1, true)] {
        let mut other = db.begin().await.unwrap();
        sqlx::raw_sql("SET LOCAL lock_timeout = '7s'")
            .execute(&mut *other)
            .await
            .unwrap();
        let wait = Duration::from_millis(20);
        let said = tx::barrier_within(&mut other, &call, wait).await.unwrap();
        assert!(matches!(said, Barrier::Busy), "{said:?}");
        let left: String = sqlx::query_scalar("SELECT current_setting('lock_timeout')")
            .fetch_one(&mut *other)
            .await
            .unwrap();
        assert_eq!(left, "7s");
        assert!(stored(&mut other).await.is_empty());
        db.commit(other).await.unwrap();
    }
    pending.store(&mut tx, succeeded("paid")).await.unwrap();
    db.commit(tx).await.unwrap();
    let again = shop.call(&action(), Work::Succeed("")).await;
    assert_eq!(again, SiteAnswer::Replayed(succeeded("paid")));
}

/// A compensation that waits sees what it waited for: a committed action is undone, one rolled back never happened and
/// never will.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compensation_that_waited_sees_what_it_waited_for() {
    for commits in [true, false] {
        let (shop, lent) = shop().await;
        let (mut tx, pending) = open_action(&shop.0).await;
        let db = shop.0.clone();
        let waiting = tokio::spawn(async move {
            let (db, _lent) = (db, lent);
            let mut tx = db.begin().await.unwrap();
            let said = tx::barrier_within(&mut tx, &undo(), Duration::from_secs(60)).await;
            let said = verdict(&said.unwrap());
            db.commit(tx).await.unwrap();
            (said, _lent)
        });
        crate::keys::until_someone_waits(&shop.0, 1).await;
        pending.store(&mut tx, succeeded("paid")).await.unwrap();
        if commits {
            shop.0.commit(tx).await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        let (said, _lent) = waiting.await.unwrap();
        if commits {
            assert_eq!(said, Verdict::Run);
        } else {
            assert_eq!(said, Verdict::NothingToUndo);
            let late = shop.call(&action(), Work::Succeed("paid")).await;
            assert_eq!(late, SiteAnswer::Refused(BarrierCode::StepCancelled));
        }
    }
}

/// Duplicates, compensations and late actions of many steps at once, under epochs of two coordinators: every effect is
/// there at most once, undone at most once, and never undone before it was done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_calls_has_each_effect_at_most_once() {
    const STEPS: usize = 12;
    let (shop, _lent) = shop().await;
    let shop = std::sync::Arc::new(shop);
    let mut tasks = tokio::task::JoinSet::new();
    for step in 0..STEPS {
        for n in 0..6_i64 {
            let shop = shop.clone();
            let op = if (n + step as i64) % 3 == 0 {
                Op::Compensation
            } else {
                Op::Action
            };
            let call = BarrierCall {
                step: format!("step-{step}"),
                ..call(op, 1 + n % 2, false)
            };
            tasks.spawn(async move {
                loop {
                    match shop.call(&call, Work::Succeed("done")).await {
                        SiteAnswer::Busy => tokio::task::yield_now().await,
                        answer => return (step, call.op, answer),
                    }
                }
            });
        }
    }
    let answers = tasks.join_all().await;
    for step in 0..STEPS {
        let (left, changes) = shop.effects("order-1", &format!("step-{step}")).await;
        let ran = |op| {
            let mine = answers.iter().filter(|answer| (answer.0, answer.1) == (step, op));
            mine.filter(|answer| matches!(answer.2, SiteAnswer::Ran(_)))
                .count()
        };
        let (done, undone) = (ran(Op::Action), ran(Op::Compensation));
        assert!(done <= 1 && undone <= done, "step {step}: {answers:?}");
        assert_eq!((left, changes), ((done - undone) as i64, (done + undone) as i64));
    }
}

/// Rule K6: above READ COMMITTED a concurrent call costs the transaction, and says that repeating it is right; a stale
/// snapshot is never believed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_repeatable_read_a_concurrent_call_is_repeated() {
    for undoing in [false, true] {
        let (shop, _lent) = shop().await;
        let db = &shop.0;
        let mut old = db.begin().await.unwrap();
        sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1")
            .execute(&mut *old)
            .await
            .unwrap();
        shop.call(&action(), Work::Succeed("paid")).await;
        let late = if undoing { undo() } else { action() };
        let error = tx::barrier(&mut old, &late).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.retry()),
            (ErrorKind::NotApplied, Retry::Later)
        );
        old.rollback().await.unwrap();
        let again = shop.call(&late, Work::Succeed("again")).await;
        let expected = if undoing {
            SiteAnswer::Ran(succeeded("again"))
        } else {
            SiteAnswer::Replayed(succeeded("paid"))
        };
        assert_eq!(again, expected);
    }
}

/// A refusal also mends a transaction in which the work's own statement failed, as a constraint of the shop does.
#[tokio::test]
async fn a_refusal_after_a_failed_statement_is_kept() {
    let (shop, _lent) = shop().await;
    let (mut tx, pending) = open_action(&shop.0).await;
    sqlx::raw_sql("SELECT 1/0").execute(&mut *tx).await.unwrap_err();
    let refused = StoredOutcome::Refused("out of stock".into());
    pending.store(&mut tx, refused.clone()).await.unwrap();
    shop.0.commit(tx).await.unwrap();
    let again = shop.call(&action(), Work::Succeed("")).await;
    assert_eq!(again, SiteAnswer::Replayed(refused));
}

/// What cannot be right is refused with what to do.
#[tokio::test]
async fn misuse_is_named() {
    let (Shop(db), _lent) = shop().await;
    let (mut one, pending) = open_action(&db).await;
    let mut two = db.begin().await.unwrap();
    sqlx::raw_sql("SAVEPOINT semel_barrier")
        .execute(&mut *two)
        .await
        .unwrap();
    let error = pending.store(&mut two, succeeded("paid")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("said Run"), "{error}");
    two.rollback().await.unwrap();

    // Committed without its answer.
    db.commit(one).await.unwrap();
    one = db.begin().await.unwrap();
    let error = tx::barrier(&mut one, &action()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("store"), "{error}");
    one.rollback().await.unwrap();

    let mut tx = db.begin().await.unwrap();
    let other = BarrierCall {
        step: "other".into(),
        ..action()
    };
    let Barrier::Run(pending) = tx::barrier(&mut tx, &other).await.unwrap() else {
        panic!("it is new")
    };
    let large = StoredOutcome::Succeeded(vec![0; semel_core::limits::OUTCOME_BYTES_MAX + 1].into());
    let error = pending.store(&mut tx, large).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    let bad = BarrierCall {
        step: String::new(),
        ..action()
    };
    let error = tx::barrier(&mut tx, &bad).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

/// Rule S2: until when a call may still come is remembered, the latest one.
#[tokio::test]
async fn the_latest_not_after_is_remembered() {
    let (shop, _lent) = shop().await;
    let at = |s: i64| BarrierCall {
        not_after: Some(Timestamp(s * 1_000_000 + 7)),
        ..action()
    };
    for s in [1_800_000_000, 1_800_000_060, 1_800_000_030] {
        shop.call(&at(s), Work::Succeed("paid")).await;
    }
    shop.call(&action(), Work::Succeed("")).await;
    let kept: i64 = sqlx::query_scalar("SELECT semel.us(not_after) FROM semel.barrier")
        .fetch_one(shop.0.pool())
        .await
        .unwrap();
    assert_eq!(kept, 1_800_000_060_000_007);
}

/// A participant in any language: two functions and a savepoint.
#[tokio::test]
async fn a_participant_in_another_language_meets_the_same_barrier() {
    let (shop, _lent) = shop().await;
    let db = &shop.0;
    let ask = async |sql: &'static str| -> (String, Option<String>, Option<Vec<u8>>) {
        sqlx::query_as(sql).fetch_one(db.pool()).await.unwrap()
    };
    sqlx::raw_sql(
        "BEGIN;
         SELECT * FROM semel.barrier('order-1', 'charge', 'action', 1);
         SAVEPOINT work;
         INSERT INTO effect_of_step VALUES ('order-1', 'charge', 1);
         ROLLBACK TO work;
         SELECT semel.barrier_store('order-1', 'charge', 'action', 'r', convert_to('broke', 'UTF8'));
         COMMIT",
    )
    .execute(db.pool())
    .await
    .unwrap();
    let refused = StoredOutcome::Refused("broke".into());
    assert_eq!(
        shop.call(&action(), Work::Succeed("")).await,
        SiteAnswer::Replayed(refused)
    );
    let again = ask("SELECT * FROM semel.barrier('order-1', 'charge', 'action', 1)").await;
    assert_eq!(
        again,
        ("replay".into(), Some("r".into()), Some(b"broke".to_vec()))
    );
    let stale = ask("SELECT * FROM semel.barrier('order-1', 'charge', 'compensation', 0)").await;
    assert_eq!(stale, ("stale_epoch".into(), None, None));
    let undo = ask("SELECT * FROM semel.barrier('order-1', 'charge', 'compensation', 1)").await;
    assert_eq!(undo, ("nothing_to_undo".into(), None, None));
    let error = sqlx::raw_sql("SELECT semel.barrier_store('order-1', 'charge', 'action', 's', '')")
        .execute(db.pool())
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("has not said run"), "{error}");
}
