//! Reads the services' files, read-only.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, SqliteConnection};

use crate::demo::shop::Files;
use crate::demo::trouble::{Doing as _, Trouble};

/// The states in which an order stays.
const FINISHED: [&str; 3] = ["confirmed", "cancelled", "failed"];

/// An order as the orders service has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OrderRow {
    pub(crate) id: String,
    pub(crate) reference: String,
    pub(crate) status: String,
}

/// Something that was done, as the service that did it has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EffectRow {
    pub(crate) kind: String,
    pub(crate) order_id: String,
    pub(crate) reference: String,
}

/// Everything that the shop's files say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Books {
    pub(crate) orders: Vec<OrderRow>,
    pub(crate) effects: Vec<EffectRow>,
}

impl Books {
    /// Whether every order is finished and every order's event has arrived: nothing is left to wait for.
    pub(crate) fn at_rest(&self) -> bool {
        let notified: HashSet<&str> = self
            .effects
            .iter()
            .filter(|effect| effect.kind == "notify")
            .map(|effect| effect.order_id.as_str())
            .collect();
        self.orders
            .iter()
            .all(|order| order.finished() && notified.contains(order.id.as_str()))
    }
}

impl OrderRow {
    /// Whether the shop itself says that it is done with this order.
    pub(crate) fn finished(&self) -> bool {
        FINISHED.contains(&self.status.as_str())
    }
}

/// Reads all of a shop's files. A file that is not there yet is empty.
pub(crate) async fn read(shop: &Path) -> Result<Books, Trouble> {
    let files = Files::of(shop);
    let mut books = Books::default();
    if let Some(mut db) = open(&files.orders).await? {
        let rows: Vec<(String, String, String)> =
            sqlx::query_as("SELECT id, reference, status FROM orders ORDER BY rowid")
                .fetch_all(&mut db)
                .await
                .doing(reading(&files.orders))?;
        let order = |(id, reference, status)| OrderRow {
            id,
            reference,
            status,
        };
        books.orders = rows.into_iter().map(order).collect();
    }
    for file in [&files.payments, &files.stock, &files.shipping] {
        if let Some(mut db) = open(file).await? {
            let rows: Vec<(String, String, String)> =
                sqlx::query_as("SELECT kind, order_id, reference FROM effects ORDER BY id")
                    .fetch_all(&mut db)
                    .await
                    .doing(reading(file))?;
            let effect = |(kind, order_id, reference)| EffectRow {
                kind,
                order_id,
                reference,
            };
            books.effects.extend(rows.into_iter().map(effect));
        }
    }
    Ok(books)
}

/// How many order events have reached their customers, for the progress line.
pub(crate) async fn events_applied(shop: &Path) -> Result<i64, Trouble> {
    let file = Files::of(shop).shipping;
    match open(&file).await? {
        None => Ok(0),
        Some(mut db) => sqlx::query_scalar("SELECT count(*) FROM effects WHERE kind = 'notify'")
            .fetch_one(&mut db)
            .await
            .doing(reading(&file)),
    }
}

fn reading(file: &Path) -> String {
    format!("read {}", file.display())
}

/// Opens a file if it is there and has the shop's tables.
async fn open(file: &Path) -> Result<Option<SqliteConnection>, Trouble> {
    if !file.exists() {
        return Ok(None);
    }
    let options = SqliteConnectOptions::new()
        .filename(file)
        .read_only(true)
        .busy_timeout(Duration::from_secs(5));
    let mut db = options.connect().await.doing(reading(file))?;
    let tables: i64 =
        sqlx::query_scalar("SELECT count(*) FROM sqlite_master WHERE name IN ('orders', 'effects')")
            .fetch_one(&mut db)
            .await
            .doing(reading(file))?;
    Ok((tables == 2).then_some(db))
}
