//! Deleting what is published and no longer kept.

use std::sync::Arc;

use semel_core::OutboxStore;
use semel_core::error::chain;
use semel_core::host::dice;

use crate::config::Clean;
use crate::status::Status;

/// Deletes published events for ever, a bounded number at a time.
pub(crate) async fn clean(store: Arc<dyn OutboxStore>, status: Arc<Status>, stream: String, clean: Clean) {
    let keep_ms = i64::try_from(clean.keep.as_millis()).unwrap_or(i64::MAX);
    loop {
        tokio::time::sleep(clean.every.mul_f64(0.5 + dice() / 2.0)).await;
        rotate(&*store, &stream, keep_ms).await;
        loop {
            match store.clean(&stream, keep_ms, clean.rows_max).await {
                Ok(rows) => {
                    status.totals(|totals| totals.cleaned += rows);
                    if rows < u64::from(clean.rows_max) {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                Err(error) => {
                    tracing::warn!(error = chain(&error), "published events were not deleted");
                    break;
                }
            }
        }
    }
}

/// Partitions, where the outbox has some.
async fn rotate(store: &dyn OutboxStore, stream: &str, keep_ms: i64) {
    match store.rotate(stream, keep_ms).await {
        Ok(rotation) => {
            for partition in &rotation.dropped {
                tracing::info!(partition, "a partition of published events was dropped");
            }
            for wait in &rotation.waits {
                tracing::debug!(who = wait.who, detail = wait.detail, "a partition waits");
            }
        }
        Err(error) => tracing::warn!(
            error = chain(&error),
            "the outbox's partitions were not looked after"
        ),
    }
}
