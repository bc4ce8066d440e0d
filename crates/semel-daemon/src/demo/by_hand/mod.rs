//! The same shop, written by hand: in good faith, as a competent person in a hurry writes it after reading the usual
//! articles on idempotency keys, the transactional outbox and sagas.
//!
//! Nothing here is made worse on purpose. Each file says why people write it so; what goes wrong is left for the
//! audit to count. It uses the same business tables, the same load, the same work time and the same durability
//! settings (WAL, `synchronous=FULL`) as the shop that is built with Semel.

mod cast;
mod checkout;
mod dedup;
mod http;
mod orders;
mod participants;
mod poller;

use std::path::Path;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

use super::args::{Service, ServiceArgs};
use super::shop::{Files, Map, migrate, serve};
use super::trouble::{Doing as _, Trouble};

pub(crate) use cast::cast;

/// Runs one service.
pub(crate) async fn run(args: &ServiceArgs) -> Result<(), Trouble> {
    let files = Files::of(&args.shop);
    let map = Map::load(&args.shop)?;
    let router = match args.service {
        Service::Orders => {
            let db = open(&files.orders).await?;
            let client = http::Client::new();
            tokio::spawn(poller::run(db.clone(), client.clone(), map.clone()));
            orders::router(db, client, map)
        }
        Service::Payments => participants::payments(open(&files.payments).await?),
        Service::Stock => participants::stock(open(&files.stock).await?),
        Service::Shipping => participants::shipping(open(&files.shipping).await?),
    };
    serve(args.port, router).await
}

async fn open(file: &Path) -> Result<SqlitePool, Trouble> {
    let opening = || format!("open {}", file.display());
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(10));
    let db = SqlitePoolOptions::new()
        .max_connections(5)
        .connect_with(options)
        .await
        .doing(opening())?;
    let mut connection = db.acquire().await.doing(opening())?;
    migrate(&mut connection).await.doing(opening())?;
    dedup::migrate(&mut connection).await.doing(opening())?;
    poller::migrate(&mut connection).await.doing(opening())?;
    Ok(db)
}

/// A database error becomes a 500, and the caller tries again.
struct Failed(sqlx::Error);

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        tracing::error!(error = %self.0, "database");
        (StatusCode::INTERNAL_SERVER_ERROR, "database error").into_response()
    }
}
