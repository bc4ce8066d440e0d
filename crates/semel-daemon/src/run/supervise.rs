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
