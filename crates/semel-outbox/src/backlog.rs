//! Counting what waits, for those that enqueue into a stream with a limit.

use std::sync::Arc;
use std::time::Duration;

use semel_core::error::chain;
use semel_core::host::dice;
use semel_core::{Clock, OutboxStore};

/// Between two counts of a stream that has a limit.
const EVERY: Duration = Duration::from_secs(1);
/// Between two looks whether it has one.
const LOOK: Duration = Duration::from_secs(5);
/// A count that takes long is made less often: so many times as long as it took lie between two.
const SHARE: u32 = 20;

/// Measures for ever. Every relay of a stream does; what has not changed is not written.
pub(crate) async fn measure(store: Arc<dyn OutboxStore>, stream: String, clock: Arc<dyn Clock>) {
    loop {
        let began = clock.monotonic();
        let wait = match store.measure(&stream).await {
            Ok(Some(_)) => EVERY.max(clock.monotonic().saturating_sub(began) * SHARE),
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
