//! What a caller and its duplicates are told.

use std::io;

use semel_core::claim::State;
use semel_core::{KeyStoreExt as _, StoredOutcome, limits};
use semel_keys::{Failed, NotRun, Outcome, idempotent};
use tokio::sync::oneshot;

use super::{Runs, World};
use crate::support::{key, sqlite};

#[tokio::test]
async fn a_function_runs_once_and_duplicates_get_its_output() {
    let (world, runs, key) = (World::new(), Runs::default(), key());
    for replayed in [false, true, true] {
        let runs = runs.clone();
        let call = world.once.run(&key, "input", move |_| async move {
            Ok::<_, Failed>(format!("run {}", runs.next()))
        });
        let ran = call.await.unwrap();
        assert_eq!(ran.outcome, Outcome::Succeeded("run 1".into()));
        assert_eq!((ran.replayed, ran.unguarded), (replayed, false));
        assert!(ran.retained_until.is_some());
    }
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn the_short_form_over_a_file() {
    let ((db, _clock, _dir), runs, key) = (sqlite().await, Runs::default(), key());
    for _ in 0..2 {
        let runs = runs.clone();
        let ran = idempotent(&db, &key, b"input", || async move {
            runs.next();
            Ok("sent")
        });
        assert_eq!(ran.await.unwrap().outcome, Outcome::Succeeded("sent".into()));
    }
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn another_input_under_the_same_key_is_a_mismatch_and_runs_nothing() {
    let (world, key) = (World::new(), key());
    world
        .once
        .run(&key, "one", |_| async { Ok("done") })
        .await
        .unwrap();
    let other = world.once.run(&key, "two", |_| async { Ok("never") }).await;
    let error = other.unwrap_err();
    assert!(matches!(error, NotRun::Mismatch), "{error}");
    assert!(error.to_string().starts_with("SEM0112"), "{error}");
}

#[tokio::test]
async fn a_stored_refusal_is_given_to_duplicates() {
    let (world, key) = (World::new(), key());
    for replayed in [false, true] {
        let ran = world.once.run(&key, "input", |_| async {
            Err::<&str, _>(Failed::refused("no money"))
        });
        let ran = ran.await.unwrap();
        assert_eq!(
            (ran.outcome, ran.replayed),
            (Outcome::Refused("no money".into()), replayed)
        );
    }
}

#[tokio::test]
async fn a_released_key_is_free_for_the_next_call() {
    let (world, key) = (World::new(), key());
    let ran = world.once.run(&key, "input", |_| async {
        Err::<&str, _>(Failed::released(io::Error::other("the printer is out of paper")))
    });
    let ran = ran.await.unwrap();
    assert_eq!(
        ran.outcome,
        Outcome::Refused("the printer is out of paper".into())
    );
    assert!(ran.retained_until.is_none() && ran.source.is_some());
    let ran = world
        .once
        .run(&key, "input", |_| async { Ok("printed") })
        .await
        .unwrap();
    assert_eq!(
        (ran.outcome, ran.replayed),
        (Outcome::Succeeded("printed".into()), false)
    );
}

/// An error that does not say that nothing happened, and a panic: unknown at once, and never run again in silence.
#[tokio::test]
async fn an_error_or_a_panic_is_unknown_at_once() {
    let world = World::new();
    for panics in [false, true] {
        let key = key();
        let ran = world.once.run(&key, "input", move |_| async move {
            assert!(!panics, "out of luck");
            Err::<&str, Failed>(io::Error::other("connection reset").into())
        });
        let ran = ran.await.unwrap();
        assert_eq!(ran.outcome, Outcome::Unknown);
        let why = ran.source.unwrap().to_string();
        assert!(
            why.contains(if panics {
                "panicked: out of luck"
            } else {
                "connection reset"
            }),
            "{why}"
        );
        let record = world.store.read(&key).await.unwrap().unwrap();
        assert!(
            matches!(record.state, State::Unknown { .. }),
            "not when the lease ends"
        );
        let again = world
            .once
            .run(&key, "input", |_| async { Ok("never") })
            .await
            .unwrap();
        assert_eq!((again.outcome, again.replayed), (Outcome::Unknown, true));
    }
}

/// The function panics before it returns a future.
#[tokio::test]
async fn a_panic_of_the_call_itself_is_unknown_too() {
    fn boom() -> std::future::Ready<Result<&'static str, Failed>> {
        panic!("before the future")
    }
    let (world, key) = (World::new(), key());
    let ran = world.once.run(&key, "input", |_| boom()).await.unwrap();
    assert_eq!(ran.outcome, Outcome::Unknown);
    assert_eq!(world.store.calls("abandon"), 1);
}

#[tokio::test]
async fn the_function_sees_token_attempt_and_stable_child_keys() {
    let (world, key) = (
        World::with(|config| config.owner_lost = semel_keys::OnOwnerLost::Rerun),
        key(),
    );
    let (told, hear) = std::sync::mpsc::channel();
    for _ in 0..2 {
        let told = told.clone();
        let ran = world.once.run(&key, "input", move |run| async move {
            told.send((run.token, run.attempt, run.child("charge"), run.item(3)))
                .unwrap();
            Err::<&str, Failed>(io::Error::other("lost").into())
        });
        assert_eq!(ran.await.unwrap().outcome, Outcome::Unknown);
    }
    let (first, second) = (hear.recv().unwrap(), hear.recv().unwrap());
    assert!(first.0 < second.0, "the fencing token grows");
    assert_eq!((first.1, second.1), (1, 2));
    assert_eq!((&first.2, &first.3), (&second.2, &second.3), "keys of calls stay");
    assert_eq!(first.2, key.child("charge"));
}

#[tokio::test]
async fn an_output_too_large_is_told_once_and_remembered_as_done() {
    let (world, key) = (World::new(), key());
    let large = vec![7; limits::OUTCOME_BYTES_MAX + 1];
    let expected = Outcome::Succeeded(large.clone().into());
    let ran = world
        .once
        .run(&key, "input", |_| async { Ok(large) })
        .await
        .unwrap();
    assert_eq!(ran.outcome, expected);
    let again = world
        .once
        .run(&key, "input", |_| async { Ok("never") })
        .await
        .unwrap();
    assert_eq!((again.outcome, again.replayed), (Outcome::NotKept, true));
    let record = world.store.read(&key).await.unwrap().unwrap();
    assert!(matches!(
        record.state,
        State::Done {
            outcome: StoredOutcome::Forgotten,
            ..
        }
    ));
}

#[tokio::test]
async fn what_was_done_long_ago_is_not_run_again() {
    let (world, key) = (World::new(), key());
    world
        .once
        .run(&key, "input", |_| async { Ok("done") })
        .await
        .unwrap();
    world.clock.advance_ms(25 * 3_600_000);
    let again = world
        .once
        .run(&key, "input", |_| async { Ok("never") })
        .await
        .unwrap();
    assert_eq!((again.outcome, again.replayed), (Outcome::NotKept, true));
}

/// By tokio's own time, which passes only while nothing can go on: no time at all until the second one's answer.
#[tokio::test(start_paused = true)]
async fn a_duplicate_waits_for_the_first_one_and_is_woken() {
    let (world, key) = (World::with(|config| config.wait_ms_max = 60_000), key());
    let (end, ended) = oneshot::channel::<()>();
    let first = tokio::spawn({
        let (once, key) = (world.once.clone(), key.clone());
        async move {
            once.run(&key, "input", |_| async {
                ended.await?;
                Ok("done")
            })
            .await
        }
    });
    world.store.called("claim", 1).await;
    let second = tokio::spawn({
        let (once, key) = (world.once.clone(), key.clone());
        async move { once.run(&key, "input", |_| async { Ok("never") }).await }
    });
    // Its pauses have grown to the longest.
    world.store.called("read", 9).await;
    let ended = tokio::time::Instant::now();
    end.send(()).unwrap();
    assert!(!first.await.unwrap().unwrap().replayed);
    let second = second.await.unwrap().unwrap();
    assert_eq!(
        ended.elapsed(),
        std::time::Duration::ZERO,
        "it was woken, it did not look"
    );
    assert_eq!(
        (second.outcome, second.replayed),
        (Outcome::Succeeded("done".into()), true)
    );
}

#[tokio::test]
async fn a_duplicate_that_may_not_wait_is_told_who_runs() {
    let (world, key) = (World::new(), key());
    let (end, ended) = oneshot::channel::<()>();
    let first = tokio::spawn({
        let (once, key) = (world.once.clone(), key.clone());
        async move {
            once.run(&key, "input", |_| async {
                ended.await?;
                Ok("done")
            })
            .await
        }
    });
    world.store.called("claim", 1).await;
    let second = world.once.run(&key, "input", |_| async { Ok("never") }).await;
    let error = second.unwrap_err();
    assert!(
        matches!(
            error,
            NotRun::Running {
                lease_left_ms: 30_000
            }
        ),
        "{error}"
    );
    assert_eq!(error.code(), "SEM0113");
    end.send(()).unwrap();
    first.await.unwrap().unwrap();
}

/// Rule K11: what a key keeps of a refusal never reads as a success.
#[tokio::test]
async fn a_refusal_whose_reason_is_too_large_to_keep_stays_a_refusal() {
    let (world, key) = (World::new(), key());
    let large = vec![7; limits::OUTCOME_BYTES_MAX + 1];
    let expected = Outcome::Refused(large.clone().into());
    let refuse = world.once.run(&key, "input", |_| async {
        Err::<&str, _>(Failed::refused(large))
    });
    assert_eq!(refuse.await.unwrap().outcome, expected);
    let again = world.once.run(&key, "input", |_| async { Ok("never") });
    let again = again.await.unwrap();
    assert_eq!(
        (again.outcome, again.replayed),
        (Outcome::Refused("".into()), true)
    );
}
