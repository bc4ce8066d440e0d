//! The outbox: a table with a status, and a loop in every copy of the service that publishes what is pending and
//! then marks it.
//!
//! Why people write it so: this is the transactional outbox of most articles. A row that cannot be published is
//! tried a few more times and then set aside as `failed`, so that one bad row does not hold up all others.

use std::time::Duration;

use sqlx::{SqliteConnection, SqlitePool};
use tokio::time::sleep;

use super::Failed;
use super::http::Client;
use crate::demo::shop::{Effect, Map, Step};

const POLL: Duration = Duration::from_millis(200);
const BATCH: i64 = 20;
const ATTEMPTS_MAX: i64 = 5;

/// Makes the table.
pub(super) async fn migrate(db: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let table = "CREATE TABLE IF NOT EXISTS outbox (
        id INTEGER PRIMARY KEY, payload TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'pending',
        attempts INTEGER NOT NULL DEFAULT 0)";
    sqlx::query(table).execute(db).await?;
    Ok(())
}

/// Adds an event, in the transaction of what it tells about.
pub(super) async fn enqueue(db: &mut SqliteConnection, step: &Step) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO outbox (payload) VALUES (?1)")
        .bind(serde_json::json!(step).to_string())
        .execute(db)
        .await?;
    Ok(())
}

/// Publishes for ever.
pub(super) async fn run(db: SqlitePool, client: Client, map: Map) {
    loop {
        if let Err(Failed(error)) = publish_pending(&db, &client, &map).await {
            tracing::error!(%error, "outbox");
        }
        sleep(POLL).await;
    }
}

async fn publish_pending(db: &SqlitePool, client: &Client, map: &Map) -> Result<(), Failed> {
    let rows: Vec<(i64, String, i64)> = sqlx::query_as(
        "SELECT id, payload, attempts FROM outbox WHERE status = 'pending' ORDER BY id LIMIT ?1",
    )
    .bind(BATCH)
    .fetch_all(db)
    .await?;
    for (id, payload, attempts) in rows {
        let Ok(step) = serde_json::from_str::<Step>(&payload) else {
            set_status(db, id, "failed", attempts).await?;
            continue;
        };
        let key = format!("event-{id}");
        match client
            .post_once(map.shipping, Effect::Notify.name(), &key, &step)
            .await
        {
            Ok(()) => set_status(db, id, "sent", attempts + 1).await?,
            Err(_) if attempts + 1 < ATTEMPTS_MAX => set_status(db, id, "pending", attempts + 1).await?,
            Err(error) => {
                tracing::error!(id, ?error, "event set aside after {ATTEMPTS_MAX} attempts");
                set_status(db, id, "failed", attempts + 1).await?;
            }
        }
    }
    Ok(())
}

async fn set_status(db: &SqlitePool, id: i64, status: &str, attempts: i64) -> Result<(), Failed> {
    sqlx::query("UPDATE outbox SET status = ?2, attempts = ?3 WHERE id = ?1")
        .bind(id)
        .bind(status)
        .bind(attempts)
        .execute(db)
        .await?;
    Ok(())
}
