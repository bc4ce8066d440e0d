//! Generated histories: the same calls to a store and to the model, compared reply by reply.
//!
//! Tokens differ between the two, so grants are numbered in the order in which they were made and leases are compared
//! by those numbers. All durations are multiples of ten seconds: a server whose clock cannot be stopped agrees with the
//! model as long as a history takes less than that.

mod call;
mod play;

use std::future::Future;
use std::sync::Arc;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use semel_core::host::random_16;
use semel_core::key::hex;
use semel_core::model::MemoryKeys;

use self::call::calls;
use self::play::History;
use super::World;
use crate::clock::ManualClock;

/// Plays `cases` generated histories on the store that `make` makes and on the model, and panics on the first
/// difference, with the shortest history found and the seed. `SEMEL_SEED` (64 hexadecimal digits) plays one again,
/// `SEMEL_CASES` plays more or fewer.
/// `slack_ms` is how far the store's clock may run on by itself in one history.
///
/// # Panics
/// A difference.
pub fn compare_with_model<F: Future<Output = World>>(make: impl FnOnce() -> F, cases: u32, slack_ms: i64) {
    compare(make, cases, slack_ms, false);
}

/// The same with clocks that are set back and far on. Whatever they do, no token of a key comes back or is less than the one
/// before, and what was done is not run again before its time, by the latest that the clock has shown.
///
/// # Panics
/// A difference, or one of those.
pub fn compare_where_clocks_jump<F: Future<Output = World>>(
    make: impl FnOnce() -> F,
    cases: u32,
    slack_ms: i64,
) {
    compare(make, cases, slack_ms, true);
}

fn compare<F: Future<Output = World>>(make: impl FnOnce() -> F, cases: u32, slack_ms: i64, jumps: bool) {
    let seed = seed();
    let cases = std::env::var("SEMEL_CASES").map_or(cases, |text| text.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let world = runtime.block_on(make());
    let clock = Arc::new(ManualClock::default());
    let model = MemoryKeys::new(clock.clone());
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let result = runner.run(&calls(jumps), |calls| {
        let mut history = History::new(&world, &model, &clock, slack_ms, jumps);
        runtime
            .block_on(history.play(&calls))
            .map_err(TestCaseError::fail)
    });
    if let Err(difference) = result {
        panic!("SEMEL_SEED={}\n{difference}", hex(&seed));
    }
}

/// From `SEMEL_SEED`, or random.
pub(crate) fn seed() -> [u8; 32] {
    let mut seed = [0; 32];
    match std::env::var("SEMEL_SEED") {
        Ok(text) => {
            assert_eq!(text.len(), 64, "SEMEL_SEED has 64 hexadecimal digits");
            for (byte, n) in seed.iter_mut().zip((0..64).step_by(2)) {
                *byte = u8::from_str_radix(&text[n..n + 2], 16).unwrap();
            }
        }
        Err(_) => {
            seed[..16].copy_from_slice(&random_16());
            seed[16..].copy_from_slice(&random_16());
        }
    }
    seed
}
