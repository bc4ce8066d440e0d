//! Keeps a role going.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use semel_core::error::chain;
use semel_core::{Clock as _, StoreError, SystemClock};

use super::Context;
use super::health::Part;
use super::stores::{backoff, needs_a_person};

/// A role that ran this long had recovered: its next failure begins with a short wait again.
const RECOVERED: Duration = Duration::from_secs(60);

/// Why a role ended by itself.
#[derive(Debug)]
pub(crate) struct Ended {
    /// What happened.
    pub(crate) why: String,
    /// Starting it again cannot help.
    pub(crate) needs_a_person: bool,
}

impl From<StoreError> for Ended {
    fn from(error: StoreError) -> Self {
        Self {
            needs_a_person: needs_a_person(&error),
            why: chain(&error),
        }
    }
}

/// Runs `role` in a task of its own, again and again until the daemon stops or a person is needed. A role that returns
/// while the daemon stops has drained; one that panics counts as failed.
pub(crate) fn supervise<F, R>(context: &Arc<Context>, part: Part, role: F)
where
    F: Fn() -> R + Send + 'static,
    R: Future<Output = Result<(), Ended>> + Send + 'static,
{
    let keeper = Arc::clone(context);
    context.tasks.spawn(async move {
        let policy = backoff();
        let mut failures = 0;
        loop {
            let began = SystemClock.monotonic();
            // A task of its own, so that a panic ends this attempt and not the keeper.
            let end = tokio::spawn(role()).await;
            if keeper.stop.is_cancelled() {
                return;
            }
            let ended = match end {
                Ok(Ok(())) => Ended {
                    why: "it ended without being told to".to_owned(),
                    needs_a_person: false,
                },
                Ok(Err(ended)) => ended,
                Err(panic) => Ended {
                    why: format!("it panicked, which is a mistake in semel: {panic}"),
                    needs_a_person: false,
                },
            };
            if ended.needs_a_person {
                return part.stopped(ended.why);
            }
            part.waiting(ended.why);
            if SystemClock.monotonic().saturating_sub(began) >= RECOVERED {
                failures = 0;
            }
            failures += 1;
            let wait = policy
                .delay_ms(failures, 0, semel_core::host::dice())
                .unwrap_or(policy.cap_ms);
            tokio::select! {
                () = keeper.stop.cancelled() => return,
                () = tokio::time::sleep(Duration::from_millis(wait)) => {}
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use semel_core::ErrorKind;
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use super::super::health::Health;
    use super::super::metrics::Metrics;
    use super::*;

    fn context() -> Arc<Context> {
        Arc::new(Context {
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            health: Health::default(),
            metrics: Arc::new(Metrics::new()),
            destinations: semel_client::Destinations::default(),
        })
    }

    fn state(context: &Context, key: &str) -> String {
        let shown = serde_json::to_value(context.health.show(true)).unwrap();
        shown[0][key].as_str().unwrap_or_default().to_owned()
    }

    async fn until(what: &str, reached: impl Fn() -> bool) {
        let waiting = async {
            while !reached() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let limit = Duration::from_secs(60);
        assert!(
            tokio::time::timeout(limit, waiting).await.is_ok(),
            "not in time: {what}"
        );
    }

    /// Runs a role whose n-th run, from 1, does what `turn` says; returns when it has run `runs` times.
    async fn supervised(
        context: &Arc<Context>,
        runs: u32,
        turn: impl Fn(u32) -> Result<(), Ended> + Clone + Send + 'static,
    ) {
        let ran = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&ran);
        let part = context.health.part("relay", "r");
        let (running, stop) = (part.clone(), context.stop.clone());
        supervise(context, part, move || {
            let (n, turn) = (counter.fetch_add(1, Ordering::SeqCst) + 1, turn.clone());
            let (running, stop) = (running.clone(), stop.clone());
            async move {
                turn(n)?;
                running.ready();
                stop.cancelled().await;
                Ok(())
            }
        });
        until("it has run so often", || {
            ran.load(Ordering::SeqCst) >= runs && state(context, "state") != "starting"
        })
        .await;
    }

    #[tokio::test]
    async fn a_role_that_fails_or_panics_is_started_again() {
        let context = context();
        supervised(&context, 3, |n| match n {
            1 => Err(StoreError::new(ErrorKind::Unavailable, "run", "away").into()),
            2 => panic!("a mistake"),
            _ => Ok(()),
        })
        .await;
        until("it is ready", || context.health.ready()).await;
        context.stop.cancel();
        context.tasks.close();
        context.tasks.wait().await;
    }

    #[tokio::test]
    async fn a_role_that_needs_a_person_stays_stopped_and_says_why() {
        for kind in [
            ErrorKind::Schema,
            ErrorKind::IdentityChanged,
            ErrorKind::Corrupt,
            ErrorKind::Invalid,
        ] {
            let context = context();
            supervised(&context, 1, move |_| {
                Err(StoreError::new(kind, "run", "look here").into())
            })
            .await;
            context.tasks.close();
            context.tasks.wait().await;
            assert_eq!(state(&context, "state"), "stopped");
            assert!(state(&context, "reason").contains("look here"));
        }
    }
}
