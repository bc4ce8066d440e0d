//! "Make your endpoint idempotent": look the key up, do the work, remember the answer.
//!
//! Why people write it so: it is three lines, it passes the test that sends a request twice, and it can live in a
//! helper that every handler shares, apart from the handler's own transaction.

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use sqlx::{SqliteConnection, SqlitePool};

/// Makes the table.
pub(super) async fn migrate(db: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let table = "CREATE TABLE IF NOT EXISTS processed (key TEXT PRIMARY KEY, status INTEGER NOT NULL, body TEXT NOT NULL)";
    sqlx::query(table).execute(db).await?;
    Ok(())
}

/// The request's key.
pub(super) fn key(headers: &HeaderMap) -> Option<String> {
    let key = headers.get("idempotency-key")?.to_str().ok()?;
    Some(key.trim_matches('"').to_owned())
}

/// The answer that was given before, if there was one.
pub(super) async fn seen(db: &SqlitePool, key: &str) -> Result<Option<Response>, sqlx::Error> {
    let row: Option<(u16, String)> = sqlx::query_as("SELECT status, body FROM processed WHERE key = ?1")
        .bind(key)
        .fetch_optional(db)
        .await?;
    Ok(row.map(|(status, body)| answer(status, body)))
}

/// Keeps the answer for the next time.
pub(super) async fn remember(
    db: &SqlitePool,
    key: &str,
    status: StatusCode,
    body: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO processed (key, status, body) VALUES (?1, ?2, ?3)")
        .bind(key)
        .bind(status.as_u16())
        .bind(body)
        .execute(db)
        .await?;
    Ok(())
}

/// A JSON answer.
pub(super) fn answer(status: u16, body: String) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [("content-type", "application/json")], body).into_response()
}
