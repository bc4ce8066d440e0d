//! Events that wait for their time: moved into the outbox when it has come.

use std::sync::Arc;
use std::time::Duration;

use semel_core::OutboxStore;
use semel_core::error::chain;

use crate::status::Status;

/// Events moved in one transaction at most.
const ROWS_MAX: u32 = 500;

/// Moves events that are due for ever. Every relay of a stream looks, the store lets one of them move.
pub(crate) async fn move_due(
    store: Arc<dyn OutboxStore>,
    status: Arc<Status>,
    stream: String,
    every: Duration,
) {
    loop {
        let wait = match store.move_due(&stream, ROWS_MAX).await {
            Ok(due) => {
                if due.moved > 0 {
                    status.hint.notify_waiters();
                }
                for id in &due.repeated {
                    tracing::warn!(
                        stream,
                        event = %id,
                        "a delayed event was dropped, because another one was enqueued under its id (SEM0250)"
                    );
                }
                let next = due
                    .next_ms
                    .map(|ms| Duration::from_millis(ms.max(1).unsigned_abs()));
                next.map_or(every, |next| next.min(every))
            }
            Err(error) => {
                tracing::warn!(stream, error = chain(&error), "delayed events were not moved");
                every * 4
            }
        };
        tokio::time::sleep(wait).await;
    }
}
