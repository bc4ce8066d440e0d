//! Owners that are slow, lost, or overtaken; callers that leave.

use std::time::Duration;

use semel_core::claim::{Keep, Reconcile, ReconcileError, Settlement, State, Verdict, succeeded};
use semel_core::{Key, KeyStoreExt as _, Token};
use semel_keys::{Failed, OnOwnerLost, Outcome};
use semel_testkit::faulty::Fault;
use tokio::sync::oneshot;

use super::{Runs, World};
use crate::support::key;

async fn token(world: &World, key: &Key) -> Token {
    match world.store.read(key).await.unwrap().unwrap().state {
        State::Claimed { lease, .. } | State::Unknown { lease, .. } => lease.token,
        state => panic!("{state:?}"),
    }
}

/// An operator says that it happened, while its owner is not heard of.
async fn settled(world: &World, key: &Key) {
    let settlement = Settlement {
        key: key.clone(),
        token: token(world, key).await,
        verdict: Verdict::Happened(succeeded("as the operator found it")),
        keep: Keep::default(),
    };
    world.store.settle(&settlement).await.unwrap();
}

/// A run that has begun, and what ends it.
async fn begun(world: &World, key: &Key) -> (tokio::task::JoinHandle<semel_keys::Ran>, oneshot::Sender<()>) {
    let (end, ended) = oneshot::channel::<()>();
    let (began, begins) = oneshot::channel::<()>();
    let task = tokio::spawn({
        let (once, key) = (world.once.clone(), key.clone());
        async move {
            let ran = once.run(&key, "input", |_| async {
                let _ = began.send(());
                ended.await?;
                Ok("done by the first")
            });
            ran.await.unwrap()
        }
    });
    begins.await.unwrap();
    (task, end)
}

/// By tokio's own time, which passes only while nothing can go on.
#[tokio::test(start_paused = true)]
async fn a_claim_is_renewed_at_a_third_while_the_function_runs() {
    let (world, key) = (World::with(|config| config.lease_ms = 30_000), key());
    let (task, end) = begun(&world, &key).await;
    let began = tokio::time::Instant::now();
    for n in 1..=3 {
        world.store.called("extend", n).await;
        // A timer ends at the next millisecond.
        let thirds = u64::try_from(began.elapsed().as_millis()).unwrap() - n as u64 * 10_000;
        assert!(thirds <= 10, "renewal {n}: {thirds} ms late");
        // The store has a clock of its own.
        world.clock.advance_ms(10_000);
    }
    end.send(()).unwrap();
    assert_eq!(
        task.await.unwrap().outcome,
        Outcome::Succeeded("done by the first".into())
    );
}

/// Rule K1: time alone never makes a token stale.
#[tokio::test]
async fn a_slow_owner_under_hold_still_stores_its_outcome() {
    let (world, key) = (World::new(), key());
    let (task, end) = begun(&world, &key).await;
    world.lease_ends();
    let duplicate = world
        .once
        .run(&key, "input", |_| async { Ok("never") })
        .await
        .unwrap();
    assert_eq!(duplicate.outcome, Outcome::Unknown);
    end.send(()).unwrap();
    assert!(!task.await.unwrap().replayed);
    let again = world
        .once
        .run(&key, "input", |_| async { Ok("never") })
        .await
        .unwrap();
    assert_eq!(again.outcome, Outcome::Succeeded("done by the first".into()));
}

/// Rule K1, the other half: somebody else may begin at the lease's end, so this one ends before it.
#[tokio::test]
async fn under_rerun_a_run_is_cancelled_when_its_lease_can_have_ended() {
    for fault in [Fault::Down, Fault::Silent] {
        let (world, key) = (
            World::with(|config| {
                config.owner_lost = OnOwnerLost::Rerun;
                config.lease_ms = 2_000;
            }),
            key(),
        );
        world.store.fail("extend", fault, u32::MAX);
        let (task, end) = begun(&world, &key).await;
        let ran = tokio::time::timeout(Duration::from_secs(60), task)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(ran.outcome, Outcome::Unknown);
        assert!(
            ran.source
                .unwrap()
                .to_string()
                .contains("lease could not be renewed")
        );
        assert!(end.is_closed(), "the function was dropped");
    }
}

#[tokio::test]
async fn under_rerun_a_lost_owners_key_goes_to_the_next_caller() {
    let (world, key) = (
        World::with(|config| config.owner_lost = OnOwnerLost::Rerun),
        key(),
    );
    let (task, end) = begun(&world, &key).await;
    world.lease_ends();
    let second = world.once.run(&key, "input", |run| async move {
        Ok(format!("attempt {}", run.attempt))
    });
    assert_eq!(
        second.await.unwrap().outcome,
        Outcome::Succeeded("attempt 2".into())
    );
    // Rule K11: the first one answers what the record says, not what it computed.
    end.send(()).unwrap();
    let first = task.await.unwrap();
    assert_eq!(
        (first.outcome, first.replayed),
        (Outcome::Succeeded("attempt 2".into()), true)
    );
}

#[tokio::test]
async fn an_owner_whose_key_was_settled_answers_what_the_record_says() {
    let (world, key) = (World::new(), key());
    let (task, end) = begun(&world, &key).await;
    world.lease_ends();
    settled(&world, &key).await;
    end.send(()).unwrap();
    let first = task.await.unwrap();
    assert_eq!(
        (first.outcome, first.replayed),
        (Outcome::Succeeded("as the operator found it".into()), true)
    );
}

struct AtTheBank(fn() -> Result<Option<Verdict>, ReconcileError>);

#[async_trait::async_trait]
impl Reconcile for AtTheBank {
    async fn reconcile(&self, _key: &Key, _token: Token) -> Result<Option<Verdict>, ReconcileError> {
        (self.0)()
    }
}

#[tokio::test]
async fn an_unknown_key_is_settled_by_what_the_hook_finds() {
    type Case = (fn() -> Result<Option<Verdict>, ReconcileError>, Outcome, u32);
    let cases: [Case; 4] = [
        (
            || Ok(Some(Verdict::Happened(succeeded("payment 7")))),
            Outcome::Succeeded("payment 7".into()),
            1,
        ),
        (
            || Ok(Some(Verdict::DidNotHappen)),
            Outcome::Succeeded("run 2".into()),
            2,
        ),
        (|| Ok(None), Outcome::Unknown, 1),
        (|| Err("the bank is closed".into()), Outcome::Unknown, 1),
    ];
    for (verdict, outcome, count) in cases {
        let world = World::with(|config| {
            config.owner_lost = OnOwnerLost::Reconcile(std::sync::Arc::new(AtTheBank(verdict)));
        });
        let (runs, key) = (Runs::default(), key());
        let call = |fails: bool| {
            let runs = runs.clone();
            world.once.run(&key, "input", move |_| async move {
                let n = runs.next();
                if fails {
                    return Err(Failed::unknown("no answer from the bank"));
                }
                Ok(format!("run {n}"))
            })
        };
        assert_eq!(call(true).await.unwrap().outcome, Outcome::Unknown);
        assert_eq!(call(false).await.unwrap().outcome, outcome);
        assert_eq!(runs.count(), count);
    }
}

#[tokio::test]
async fn a_caller_that_leaves_changes_nothing() {
    let (world, key) = (World::new(), key());
    let (task, end) = begun(&world, &key).await;
    task.abort();
    let _ = task.await;
    end.send(()).unwrap();
    world.once.drain().await;
    let again = world
        .once
        .run(&key, "input", |_| async { Ok("never") })
        .await
        .unwrap();
    assert_eq!(
        (again.outcome, again.replayed),
        (Outcome::Succeeded("done by the first".into()), true)
    );
}

/// Rule K11: whether it says that nothing happened or that nobody knows, somebody has found out by now.
#[tokio::test]
async fn a_run_that_is_given_back_after_it_was_settled_answers_what_the_record_says() {
    for failed in [Failed::released("nothing was sent"), Failed::unknown("no answer")] {
        let (world, key) = (World::new(), key());
        let (end, ended) = oneshot::channel::<()>();
        let (began, begins) = oneshot::channel::<()>();
        let first = tokio::spawn({
            let (once, key) = (world.once.clone(), key.clone());
            async move {
                let ran = once.run(&key, "input", |_| async move {
                    let _ = began.send(());
                    ended.await?;
                    Err::<&str, _>(failed)
                });
                ran.await.unwrap()
            }
        });
        begins.await.unwrap();
        world.lease_ends();
        settled(&world, &key).await;
        end.send(()).unwrap();
        let first = first.await.unwrap();
        assert_eq!(
            (first.outcome, first.replayed),
            (Outcome::Succeeded("as the operator found it".into()), true)
        );
    }
}
