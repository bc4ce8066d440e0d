//! A call that ends by a panic, or with its runtime: how far it had come says what is known.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt as _;
use semel_core::{KeyStore, Release};
use tokio::task::JoinError;

use super::outcome::{BoxError, NotRun, Outcome, Ran};
use super::renew::Held;
use super::run::panicked;
use super::{Shared, lost};

/// How far a call has come.
#[derive(Clone, Default)]
pub(super) enum At {
    /// Nothing of it is in the store.
    #[default]
    Nothing,
    /// It asked for its key; this would withdraw it.
    Asked(Release),
    /// It has its key, and the function may have run.
    Runs(Held),
    /// The function may have run, without a key.
    Unguarded,
}

/// How far a call has come, for whoever has to clear up after it.
#[derive(Clone, Default)]
pub(super) struct Stage(Arc<Mutex<At>>);

impl Stage {
    pub(super) fn set(&self, at: At) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    fn get(&self) -> At {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What can be said of a call that broke off here.
    fn broken(&self, why: impl Into<BoxError>) -> Result<Ran, NotRun> {
        match self.get() {
            At::Nothing | At::Asked(_) => Err(NotRun::Store(lost())),
            At::Runs(_) => Ok(Ran::now(Outcome::Unknown, None).because(why)),
            At::Unguarded => Ok(Ran {
                unguarded: true,
                ..Ran::now(Outcome::Unknown, None).because(why)
            }),
        }
    }
}

/// A call whose panic (of the store, or of the user's code as it is dropped) is told to the store, whoever still waits.
pub(super) async fn watched<S: KeyStore>(
    shared: Arc<Shared<S>>,
    stage: Stage,
    call: impl Future<Output = Result<Ran, NotRun>>,
) -> Result<Ran, NotRun> {
    let panic = match AssertUnwindSafe(call).catch_unwind().await {
        Ok(result) => return result,
        Err(panic) => panicked(&*panic),
    };
    tracing::error!(panic, "a call with a key broke off");
    match stage.get() {
        At::Nothing | At::Unguarded => {}
        At::Asked(release) => {
            shared.release(release).await;
        }
        At::Runs(held) => {
            shared.abandon(&held).await;
            shared.waiters.wake(&held.key);
        }
    }
    stage.broken(panic)
}

/// The task of a call, joined.
pub(super) fn joined(joined: Result<Result<Ran, NotRun>, JoinError>, stage: &Stage) -> Result<Ran, NotRun> {
    joined.unwrap_or_else(|ended| stage.broken(ended))
}
