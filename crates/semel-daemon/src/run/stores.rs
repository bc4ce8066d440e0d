//! The stores of the configuration: opened in the background, watched, and handed to the roles when they are ready.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel_core::claim::{Nonce, Release};
use semel_core::error::chain;
use semel_core::{
    Clock as _, ErrorKind, Key, KeyStore, KeyStoreExt as _, RetryPolicy, Scope, StoreError, SystemClock,
};
use semel_keys::{Batched, Quota};
use tokio::sync::watch;

use super::Context;
use super::health::Part;
use crate::config::StoreConfig;
use crate::store::Store;

/// How often an open store is asked whether it is still there; and one that was not, whether it is back.
const PROBE: Duration = Duration::from_secs(5);
const PROBE_AWAY: Duration = Duration::from_secs(1);

/// How often it is tried whether a store of keys can be written to: reading goes on when a disk is full or read-only, or a file is
/// locked. Each time is one small commit.
const WRITE_PROBE: Duration = Duration::from_secs(10);

/// How long a probe may take before the store counts as away.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Opening again after a failure.
pub(crate) fn backoff() -> RetryPolicy {
    RetryPolicy {
        initial_ms: 200,
        cap_ms: 5_000,
        ..RetryPolicy::forever()
    }
}

/// A store that is open, and its keys as all roles see them.
#[derive(Clone)]
struct Opened {
    store: Store,
    /// Behind the batcher, and behind the store's quota where it has one.
    keys: Arc<dyn KeyStore>,
    /// The one batcher in front of them. A store in memory has none: it commits nothing that calls could share.
    batcher: Option<Batched<Arc<dyn KeyStore>>>,
    /// Whether a role has keys here. Others watch their own writes, and may have no right to write keys.
    keyed: Arc<AtomicBool>,
}

impl Opened {
    fn new(store: Store, config: &StoreConfig, context: &Context) -> Result<Self, StoreError> {
        let keys = store.keys();
        let batcher = (!config.url.is_memory()).then(|| Batched::new(Arc::clone(&keys)));
        let keys: Arc<dyn KeyStore> = match &batcher {
            Some(batcher) => Arc::new(batcher.clone()),
            None => keys,
        };
        let keys = limited(config, keys, context)?;
        Ok(Self {
            store,
            keys,
            batcher,
            keyed: Arc::default(),
        })
    }

    fn keys(self) -> Arc<dyn KeyStore> {
        self.keyed.store(true, Ordering::Relaxed);
        self.keys
    }
}

/// Stores by name.
pub(crate) struct Stores(Vec<(StoreConfig, watch::Sender<Option<Opened>>)>);

impl Stores {
    /// All of them, none open yet.
    pub(crate) fn new(configs: &[StoreConfig]) -> Self {
        Self(
            configs
                .iter()
                .map(|config| (config.clone(), watch::Sender::new(None)))
                .collect(),
        )
    }

    /// Begins to open each of them.
    pub(crate) fn open(&self, context: &Arc<Context>) {
        for (config, ready) in &self.0 {
            let part = context.health.part("store", &config.name);
            let keeper = keep(config.clone(), part, ready.clone(), Arc::clone(context));
            context.tasks.spawn(keeper);
        }
    }

    /// Closes those that are open.
    pub(crate) async fn close(&self) {
        for (_, ready) in &self.0 {
            let opened = ready.borrow().clone();
            if let Some(Opened { store, batcher, .. }) = opened {
                // What was let in is answered first.
                if let Some(batcher) = batcher {
                    batcher.close().await;
                }
                store.close().await;
            }
        }
    }

    /// Whether there is one of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(config, _)| config.name == name)
    }

    /// The store once it is open with the right schema. The configuration was checked, so the name is known.
    pub(crate) fn handle(&self, name: &str) -> Handle {
        let store = self.0.iter().find(|(config, _)| config.name == name);
        Handle(store.map(|(_, ready)| ready.subscribe()))
    }
}

/// A store that may not be open yet. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Handle(Option<watch::Receiver<Option<Opened>>>);

impl Handle {
    async fn opened(&self) -> Opened {
        if let Some(mut receiver) = self.0.clone()
            && let Ok(opened) = receiver.wait_for(Option::is_some).await
            && let Some(opened) = opened.clone()
        {
            return opened;
        }
        std::future::pending().await
    }

    /// The store, as soon as it is open. Never ends when the daemon stops before that: select against `stop`.
    pub(crate) async fn ready(&self) -> Store {
        self.opened().await.store
    }

    /// Its keys, as soon as it is open, behind the batcher where there is one. Never ends either.
    pub(crate) async fn keys(&self) -> Arc<dyn KeyStore> {
        self.opened().await.keys()
    }

    /// The same, if it is open now.
    pub(crate) fn keys_now(&self) -> Option<Arc<dyn KeyStore>> {
        let opened = self.0.as_ref().and_then(|receiver| receiver.borrow().clone());
        opened.map(Opened::keys)
    }

    /// The store, if it is open now.
    pub(crate) fn now(&self) -> Option<Store> {
        let opened = self.0.as_ref().and_then(|receiver| receiver.borrow().clone());
        opened.map(|opened| opened.store)
    }
}

/// Opens a store, tells the roles, and looks after it until the end.
async fn keep(config: StoreConfig, part: Part, ready: watch::Sender<Option<Opened>>, context: Arc<Context>) {
    let stop = context.stop.clone();
    let policy = backoff();
    let mut failures = 0;
    let store = loop {
        let attempt = tokio::select! {
            () = stop.cancelled() => return,
            attempt = open(&config) => attempt,
        };
        match attempt {
            Ok(store) => {
                if config.url.is_memory() {
                    tracing::warn!(
                        store = config.name,
                        "this store is in memory: every key is forgotten when semel stops, and a retry is sent again"
                    );
                }
                break store;
            }
            // A database that is being set up, or about to be migrated, is waited for. A newer one never fits.
            // The file is named: its path may have been put together from the configuration's folder.
            Err(error) if config.url.is_sqlite() => {
                part.waiting(format!("{}: {}", config.url, chain(&error)));
            }
            Err(error) => part.waiting(chain(&error)),
        }
        failures += 1;
        let wait = policy
            .delay_ms(failures, 0, semel_core::host::dice())
            .unwrap_or(policy.cap_ms);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(Duration::from_millis(wait)) => {}
        }
    };
    let opened = match Opened::new(store.clone(), &config, &context) {
        Ok(opened) => opened,
        // A quota that cannot be kept: the configuration was to refuse it.
        Err(error) => return part.stopped(chain(&error)),
    };
    let keyed = Arc::clone(&opened.keyed);
    part.ready();
    ready.send_replace(Some(opened));
    // Roles hold clones; the sender stays until the end, so that those who come late still find the store.
    let mut pause = PROBE;
    let mut written = SystemClock.monotonic();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(pause) => {}
        }
        let due = pause == PROBE_AWAY || SystemClock.monotonic() >= written.saturating_add(WRITE_PROBE);
        let write_due = due && keyed.load(Ordering::Relaxed);
        pause = PROBE_AWAY;
        let probed = async {
            store.check_schema(&config.name).await?;
            if write_due {
                write(&store).await?;
            }
            Ok::<(), StoreError>(())
        };
        match tokio::time::timeout(PROBE_TIMEOUT, probed).await {
            Ok(Ok(())) => {
                part.ready();
                pause = PROBE;
                if write_due {
                    written = SystemClock.monotonic();
                }
            }
            Ok(Err(error)) => part.waiting(chain(&error)),
            Err(_) => part.waiting(format!("no answer within {} s", PROBE_TIMEOUT.as_secs())),
        }
    }
}

/// Writes to a store: the withdrawal of a claim that nobody made, always of the same key, which a sweep forgets.
async fn write(store: &Store) -> Result<(), StoreError> {
    let key = Scope::new(PROBE_SCOPE).and_then(|scope| Key::new(scope, "write"))?;
    let withdrawal = Release {
        key,
        nonce: Nonce([0; 16]),
        token: None,
    };
    store.keys().release(&withdrawal).await.map(drop)
}

/// The scope of the key that is written to try whether that is possible.
const PROBE_SCOPE: &str = "semel.probe";

/// The keys behind the store's quota, where it has one.
fn limited(
    config: &StoreConfig,
    keys: Arc<dyn KeyStore>,
    context: &Context,
) -> Result<Arc<dyn KeyStore>, StoreError> {
    let Some(quota) = config.quota else {
        return Ok(keys);
    };
    let quota = Arc::new(Quota::new(keys, quota)?);
    let counted = Arc::downgrade(&quota);
    let refused = move || counted.upgrade().map_or(0, |quota| quota.refused());
    context.metrics.watch_quota(&config.name, refused);
    Ok(quota)
}

async fn open(config: &StoreConfig) -> Result<Store, StoreError> {
    let store = Store::open(config).await?;
    let ready = if config.migrate {
        store.migrate().await.map(|ran| {
            if ran > 0 {
                tracing::info!(store = config.name, scripts = ran, "tables installed or upgraded");
            }
        })
    } else {
        store.check_schema(&config.name).await
    };
    match ready {
        Ok(()) => Ok(store),
        Err(error) => {
            store.close().await;
            Err(error)
        }
    }
}

/// Whether a role that ended with this error can be started again as it is.
pub(crate) const fn needs_a_person(error: &StoreError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Schema | ErrorKind::IdentityChanged | ErrorKind::Corrupt | ErrorKind::Invalid
    )
}
