//! The micro-batcher.

mod laws;
mod leaving;
mod looks;
mod lost;
mod together;

use std::sync::Arc;

use semel_core::model::MemoryKeys;
use semel_keys::{BatchConfig, Batched};
use semel_testkit::faulty::FaultyKeys;

/// A batcher with one lane over memory that can be held and made to fail.
fn held(change: impl FnOnce(&mut BatchConfig)) -> (Batched<Arc<FaultyKeys>>, Arc<FaultyKeys>) {
    let store = FaultyKeys::over(MemoryKeys::default());
    let mut config = BatchConfig {
        lanes: Some(1),
        ..BatchConfig::default()
    };
    change(&mut config);
    (Batched::with(Arc::clone(&store), &config).unwrap(), store)
}
