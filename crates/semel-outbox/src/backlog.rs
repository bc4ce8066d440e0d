//! Counting what waits, for those that enqueue into a stream with a limit.

use std::sync::Arc;
use std::time::Duration;

use semel_core::error::chain;
use semel_core::host::dice;
use semel_core::{Clock, OutboxStore};

/// Between two counts of a stream that has a limit.
const EVERY: Duration = Duration::from_secs(1);
/// Between two looks whether it has one: below [`MEASURE_STALE_MS`](semel_core::store::MEASURE_STALE_MS), so that a limit that
/// somebody sets is measured before writers count by themselves.
const LOOK: Duration = Duration::from_secs(2);
/// A count that takes long is made less often: so many times as long as it took lie between two, where that many wait.
const SHARE: u32 = 20;
/// So many waiting events are worth a millisecond of pause: with few a slow count is a slow database, and a measure that grew
/// old for it would make writers count what was sent.
const PER_MS: u64 = 100;

/// Measures for ever. Every relay of a stream does; what has not changed is not written.
pub(crate) async fn measure(store: Arc<dyn OutboxStore>, stream: String, clock: Arc<dyn Clock>) {
    loop {
        let began = clock.monotonic();
        let wait = match store.measure(&stream).await {
            Ok(Some(measured)) => {
                let took = clock.monotonic().saturating_sub(began);
                EVERY.max((took * SHARE).min(Duration::from_millis(measured.waiting / PER_MS)))
            }
            Ok(None) => LOOK,
            Err(error) => {
                tracing::warn!(
                    stream,
                    error = chain(&error),
                    "what waits in the stream was not counted"
                );
                LOOK
            }
        };
        tokio::time::sleep(wait.mul_f64(0.75 + dice() / 4.0)).await;
    }
}
