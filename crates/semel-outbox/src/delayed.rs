//! Events that wait for their time: moved into the outbox when it has come.

use std::sync::Arc;
use std::time::Duration;

use semel_core::OutboxStore;
use semel_core::error::chain;
use semel_core::store::Due;

use crate::config::Delayed;
use crate::status::Status;

/// Moves events that are due for ever. Every relay of a stream looks, the store lets one of them move.
pub(crate) async fn move_due(
    store: Arc<dyn OutboxStore>,
    status: Arc<Status>,
    stream: String,
    Delayed { every, rows_max }: Delayed,
) {
    loop {
        let wait = match store.move_due(&stream, rows_max).await {
            Ok(due) => {
                if due.moved > 0 {
                    status.wake();
                }
                for id in &due.repeated {
                    tracing::warn!(
                        stream,
                        event = %id,
                        "a delayed event was dropped, because another one was enqueued under its id (SEM0250)"
                    );
                }
                wait(&due, every)
            }
            Err(error) => {
                tracing::warn!(stream, error = chain(&error), "delayed events were not moved");
                every * 4
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// Until the next look. What is due and was not moved is locked by an open transaction, or another relay moves it: to look
/// again at once would be to look all the time.
fn wait(due: &Due, every: Duration) -> Duration {
    let idle = due.moved == 0 && due.repeated.is_empty();
    match due.next_ms {
        None => every,
        Some(ms) if ms <= 0 && idle => every,
        Some(ms) => Duration::from_millis(ms.max(1).unsigned_abs()).min(every),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_and_cannot_be_moved_is_not_looked_at_all_the_time() {
        let every = Duration::from_millis(500);
        let due = |moved, next_ms| Due {
            moved,
            next_ms,
            ..Due::default()
        };
        assert_eq!(wait(&due(0, Some(0)), every), every);
        assert_eq!(wait(&due(0, None), every), every);
        assert_eq!(wait(&due(500, Some(0)), every), Duration::from_millis(1));
        assert_eq!(wait(&due(0, Some(7)), every), Duration::from_millis(7));
        assert_eq!(wait(&due(0, Some(7_000)), every), every);
    }
}
