//! Any async function, run once per key.

mod behind;
mod calls;
mod config;
mod guard;
mod outcome;
mod renew;
mod run;
mod wait;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use semel_core::claim::Reconcile;
use semel_core::limits::LimitExceeded;
use semel_core::{ErrorKind, Fingerprint, Keep, Key, KeyStore, StoreError};
use tokio_util::task::TaskTracker;

use self::behind::Behind;
use self::guard::Stage;

pub use self::config::{OnOwnerLost, Outage, RunConfig};
pub use self::outcome::{BoxError, Failed, NotRun, Outcome, Ran, Run};
pub use self::renew::{Held, Renewal, Stopped, renew_while};
pub use self::wait::{WaitEnd, Waiter, Waiters};

/// Runs functions once per key: queue handlers, cron jobs, command line tools. Make one and keep it; it is cheap to clone.
///
/// # Strength
/// *Guarded*: the effect is somewhere else. *Keyed* where the receiver deduplicates by a key that the function derives
/// from [`Run::child`].
///
/// # Guarantees
/// - The function starts only after its claim is durable, and its outcome is durable before it is told. One exception,
///   and the result says so: when the store fails at that moment the effect exists, so the outcome is told
///   (`retained_until: None`) and storing goes on in the background.
/// - A duplicate gets the stored outcome; while the first call runs it waits for it, up to `wait_ms_max`.
/// - The claim is renewed at a third of its lease while the function runs. Under `rerun` the function is cancelled before
///   its lease can have ended; under `hold` it goes on, for nobody else runs the key (rule K1).
/// - Whoever is told that it lost its key gets what the record says, never what it computed (rule K11).
/// - The function runs in a task of its own: a caller that leaves changes nothing.
///
/// # What a crash does
/// Before the claim: nothing happened. Between claim and outcome: when the lease ends, the key is unknown (`hold`,
/// `reconcile`) or the next caller runs it with a larger token (`rerun`). After that: every duplicate gets the outcome.
/// A panic, and any error that does not say that nothing happened, does the same at once.
///
/// # Limits
/// Those of [`RunConfig`]. An output over [`limits::OUTCOME_BYTES_MAX`](semel_core::limits::OUTCOME_BYTES_MAX) is told to
/// the first caller and not kept.
///
/// ```
/// # async fn f(store: semel_sqlite::Sqlite) -> Result<(), Box<dyn std::error::Error>> {
/// use semel_core::{Key, Scope};
/// use semel_keys::{Batched, Failed, Idempotent, Outcome};
///
/// let once = Idempotent::new(Batched::new(store)).lease_ms(60_000);
/// let key = Key::new(Scope::new("invoices")?, "2026-11")?;
/// let ran = once
///     .run(&key, b"all of November", |run| async move {
///         // The bank deduplicates by this key: the same in every attempt.
///         let charge = run.child("charge");
///         let receipt = charge_at_the_bank(&charge, run.token).await?;
///         Ok::<_, Failed>(receipt)
///     })
///     .await?;
/// match ran.outcome {
///     Outcome::Succeeded(receipt) => println!("{receipt:?}, replayed: {}", ran.replayed),
///     Outcome::Refused(reason) => println!("nothing happened: {reason:?}"),
///     Outcome::NotKept => println!("done; what came of it is not kept"),
///     Outcome::Unknown => println!("nobody knows yet: {:?}", ran.source),
/// }
/// # Ok(()) }
/// # async fn charge_at_the_bank(_: &semel_core::Key, _: Option<semel_core::Token>) -> Result<String, std::io::Error> {
/// #     Ok(String::new())
/// # }
/// ```
pub struct Idempotent<S: KeyStore>(Arc<Shared<S>>);

impl<S: KeyStore> Clone for Idempotent<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: KeyStore> std::fmt::Debug for Idempotent<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Idempotent")
            .field("store", &self.0.store.capabilities().name)
            .field("config", &self.0.config)
            .finish_non_exhaustive()
    }
}

struct Shared<S> {
    store: S,
    config: RunConfig,
    waiters: Arc<Waiters>,
    tasks: TaskTracker,
    behind: Arc<Behind>,
    unguarded: AtomicU64,
}

impl<S: KeyStore + Clone> Idempotent<S> {
    /// With the default settings. `store`: a [`Batched`](crate::Batched), an `Arc<dyn KeyStore>`, …
    #[must_use]
    pub fn new(store: S) -> Self {
        Self::with_checked(store, RunConfig::default())
    }

    /// With these settings.
    ///
    /// # Errors
    /// A setting outside its limits.
    pub fn with(store: S, config: RunConfig) -> Result<Self, LimitExceeded> {
        config.check()?;
        Ok(Self::with_checked(store, config))
    }

    fn with_checked(store: S, config: RunConfig) -> Self {
        Self(Arc::new(Shared {
            store,
            config,
            waiters: Arc::default(),
            tasks: TaskTracker::new(),
            behind: Arc::default(),
            unguarded: AtomicU64::new(0),
        }))
    }

    fn change(self, change: impl FnOnce(&mut RunConfig)) -> Self {
        let mut config = self.0.config.clone();
        change(&mut config);
        Self::with_checked(self.0.store.clone(), config)
    }

    /// What becomes of a key whose owner was lost.
    #[must_use]
    pub fn owner_lost(self, owner_lost: OnOwnerLost) -> Self {
        self.change(|config| config.owner_lost = owner_lost)
    }

    /// An unknown key is settled by asking this hook, then claimed again or replayed.
    #[must_use]
    pub fn reconcile(self, hook: impl Reconcile) -> Self {
        self.owner_lost(OnOwnerLost::Reconcile(Arc::new(hook)))
    }

    /// Milliseconds of a claim; brought into its limits (3 ms to a day).
    #[must_use]
    pub fn lease_ms(self, lease_ms: i64) -> Self {
        self.change(|config| config.lease_ms = lease_ms.clamp(3, semel_core::limits::LEASE_MS_MAX))
    }

    /// How long outcomes are kept. With one outside its limits no call runs: each says which limit.
    #[must_use]
    pub fn keep(self, keep: Keep) -> Self {
        self.change(|config| config.keep = keep)
    }

    /// Milliseconds that a duplicate waits for the first call's outcome; 0: not at all.
    #[must_use]
    pub fn wait_ms_max(self, wait_ms_max: u64) -> Self {
        self.change(|config| config.wait_ms_max = wait_ms_max)
    }

    /// Withdrawals and outcomes that wait at most for a store which gives no answer; at so many no more claims are sent. At
    /// least 1.
    #[must_use]
    pub fn behind_max(self, behind_max: usize) -> Self {
        self.change(|config| config.behind_max = behind_max.max(1))
    }

    /// What a call does while the store is away.
    #[must_use]
    pub fn outage(self, outage: Outage) -> Self {
        self.change(|config| config.outage = outage)
    }

    /// Runs `function` unless its key has an outcome already. `input` is what was asked: the same key with another input
    /// is a mismatch. Give it all that makes two calls the same, in a stable form.
    ///
    /// # Errors
    /// [`NotRun`]: this call ran nothing.
    ///
    /// # Cancel safety
    /// Once polled it goes on in a task of its own, whether anybody waits or not.
    pub async fn run<F, Fut, T>(&self, key: &Key, input: impl AsRef<[u8]>, function: F) -> Result<Ran, NotRun>
    where
        F: FnOnce(Run) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Failed>> + Send + 'static,
        T: Into<Bytes> + Send + 'static,
    {
        self.run_as(key, Fingerprint::of(input.as_ref()), function).await
    }

    /// [`run`](Self::run) with a fingerprint made before, such as one of several parts.
    ///
    /// # Errors
    /// [`NotRun`]: this call ran nothing.
    pub async fn run_as<F, Fut, T>(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        function: F,
    ) -> Result<Ran, NotRun>
    where
        F: FnOnce(Run) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Failed>> + Send + 'static,
        T: Into<Bytes> + Send + 'static,
    {
        let stage = Stage::default();
        let call = run::call(
            Arc::clone(&self.0),
            stage.clone(),
            key.clone(),
            fingerprint,
            function,
        );
        let call = guard::watched(Arc::clone(&self.0), stage.clone(), call);
        guard::joined(self.0.tasks.spawn(call).await, &stage)
    }

    /// Runs that had no key because the store was away and the policy is [`Outage::Open`].
    #[must_use]
    pub fn unguarded(&self) -> u64 {
        self.0.unguarded.load(Ordering::Relaxed)
    }

    /// Withdrawals and outcomes that wait for the store now.
    #[must_use]
    pub fn behind(&self) -> usize {
        self.0.behind.count()
    }

    /// Waits until every call has ended and every outcome is stored or given up.
    pub async fn drain(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.0.tasks.reopen();
    }
}

/// Runs a function once per key, with the default settings: the short form of [`Idempotent`]. Duplicates in this process
/// find the end of a call by looking from time to time; a kept [`Idempotent`] wakes them.
///
/// It ends when the outcome is stored, for the process may end right after it. Where the store gives no answer, that takes
/// [`SHORT_DRAIN_MAX`] at most.
///
/// # Errors
/// [`NotRun`]: this call ran nothing.
///
/// ```
/// # async fn f(store: semel_sqlite::Sqlite, key: semel_core::Key) -> Result<(), semel_keys::NotRun> {
/// let ran = semel_keys::idempotent(&store, &key, b"invoice 7 to Ada", || async {
///     Ok(send_the_mail().await?)
/// })
/// .await?;
/// # Ok(()) }
/// # async fn send_the_mail() -> Result<&'static str, std::io::Error> { Ok("sent") }
/// ```
pub async fn idempotent<S, F, Fut, T>(
    store: &S,
    key: &Key,
    input: impl AsRef<[u8]>,
    function: F,
) -> Result<Ran, NotRun>
where
    S: KeyStore + Clone,
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = Result<T, Failed>> + Send + 'static,
    T: Into<Bytes> + Send + 'static,
{
    let once = Idempotent::new(store.clone());
    let ran = once.run(key, input, |_| function()).await;
    if tokio::time::timeout(SHORT_DRAIN_MAX, once.drain()).await.is_err() {
        tracing::error!(%key, "an outcome is not stored yet; if the process ends now, the key ends as its policy says");
    }
    ran
}

/// How long [`idempotent`] waits at most for what is told to the store behind the call.
pub const SHORT_DRAIN_MAX: Duration = Duration::from_secs(60);

fn lost() -> StoreError {
    let text = "the task of the call ended before it had an answer";
    StoreError::new(ErrorKind::ReplyLost, "run", text)
}
