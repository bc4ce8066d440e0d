//! Any async function, run once per key.

mod broken;
mod crash;
mod outcomes;
mod owner;
mod store;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use semel_core::KeyStore;
use semel_core::model::MemoryKeys;
use semel_keys::{Idempotent, RunConfig};
use semel_testkit::clock::ManualClock;
use semel_testkit::faulty::FaultyKeys;

/// How often a function ran.
#[derive(Debug, Clone, Default)]
struct Runs(Arc<AtomicU32>);

impl Runs {
    /// The number of this run, from 1.
    fn next(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A wrapper over memory that can be made to fail, and its clock.
struct World {
    store: Arc<FaultyKeys>,
    clock: Arc<ManualClock>,
    once: Idempotent<Arc<dyn KeyStore>>,
}

impl World {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut RunConfig)) -> Self {
        let clock = Arc::new(ManualClock::default());
        let store = FaultyKeys::over(MemoryKeys::new(clock.clone()));
        let mut config = RunConfig {
            wait_ms_max: 0,
            ..RunConfig::default()
        };
        change(&mut config);
        let shared: Arc<dyn KeyStore> = store.clone();
        Self {
            store,
            clock,
            once: Idempotent::with(shared, config).unwrap(),
        }
    }

    fn lease_ends(&self) {
        self.clock.advance_ms(30_000);
    }
}
