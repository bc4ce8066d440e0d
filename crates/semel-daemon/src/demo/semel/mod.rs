//! The same shop, built with Semel.
//!
//! - **orders** takes requests behind the `Idempotency-Key` layer. The order, its event, the saga's submission and the
//!   stored answer are one transaction of its file.
//! - **payments**, **stock** and **shipping** take part in the saga: each effect commits together with the barrier's
//!   row. Shipping also receives the order events through an inbox.
//! - **engine**, twice: `semel run` relays the events of the orders file (to shipping, and each submission to the
//!   coordinator) and coordinates the sagas. It is the daemon as anyone would run it, with a configuration file.
//!
//! Between the order's commit and the start of its saga any process may die: the submission waits in the outbox and
//! is delivered until the coordinator has it, and submitting it again is the same saga.

mod cast;
mod orders;
mod participants;
mod saga;

use std::path::Path;

use semel_sqlite::{Config, Sqlite};

use super::args::{Service, ServiceArgs};
use super::shop::{Files, Map, migrate, serve};
use super::trouble::{Doing as _, Trouble};

pub(crate) use cast::cast;

/// Runs one service.
pub(crate) async fn run(args: &ServiceArgs) -> Result<(), Trouble> {
    let files = Files::of(&args.shop);
    let router = match args.service {
        Service::Orders => orders::router(open(&files.orders).await?, &Map::load(&args.shop)?)?,
        Service::Payments => participants::payments(open(&files.payments).await?),
        Service::Stock => participants::stock(open(&files.stock).await?),
        Service::Shipping => participants::shipping(open(&files.shipping).await?)?,
    };
    serve(args.port, router).await
}

async fn open(file: &Path) -> Result<Sqlite, Trouble> {
    let opening = || format!("open {}", file.display());
    let db = Sqlite::open(Config::new(file)).await.doing(opening())?;
    db.migrate().await.doing(opening())?;
    let mut tx = db.begin().await.doing(opening())?;
    migrate(&mut tx).await.doing(opening())?;
    db.commit(tx).await.doing(opening())?;
    Ok(db)
}
