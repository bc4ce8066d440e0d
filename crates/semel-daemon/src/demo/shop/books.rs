//! The business tables and the rules of business, the same in both shops: the audit reads both with the same
//! statements. Every effect is one row that is only ever added, as money and goods are moved in the real world:
//! what happened twice stands there twice.

use serde::{Deserialize, Serialize};
use sqlx::SqliteConnection;

use crate::demo::load::{DECLINED_CARD, NO_SUCH_ADDRESS, NewOrder, SOLD_OUT_ITEM};

/// Tables of every file; each service uses its own.
///
/// `effects.kind` is one of: `reserve`, `release` (stock), `charge`, `refund` (payments), `ship`, `recall`
/// (shipping), `notify` (shipping: one message to the customer per order event).
const TABLES: &str = "
CREATE TABLE IF NOT EXISTS orders (
  id TEXT PRIMARY KEY, reference TEXT NOT NULL, status TEXT NOT NULL, body TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS effects (
  id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL,
  order_id TEXT NOT NULL, reference TEXT NOT NULL, amount INTEGER NOT NULL
) STRICT;";

/// Makes the tables.
pub(crate) async fn migrate(db: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(TABLES).execute(db).await?;
    Ok(())
}

/// What a service is asked to do for an order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Step {
    pub(crate) order_id: String,
    pub(crate) order: NewOrder,
}

/// What can be done for an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Reserve,
    Release,
    Charge,
    Refund,
    Ship,
    Notify,
}

impl Effect {
    /// As in `effects.kind` and in URLs.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Reserve => "reserve",
            Self::Release => "release",
            Self::Charge => "charge",
            Self::Refund => "refund",
            Self::Ship => "ship",
            Self::Notify => "notify",
        }
    }
}

/// Why the shop says no to an order here, if it does. Undoing and notifying are never refused.
pub(crate) fn refusal(effect: Effect, order: &NewOrder) -> Option<&'static str> {
    match effect {
        Effect::Reserve if order.item == SOLD_OUT_ITEM => Some("out of stock"),
        Effect::Charge if order.card == DECLINED_CARD => Some("card declined"),
        Effect::Ship if order.address == NO_SUCH_ADDRESS => Some("nobody delivers there"),
        _ => None,
    }
}

/// Does it: adds the row.
pub(crate) async fn record(
    db: &mut SqliteConnection,
    effect: Effect,
    step: &Step,
) -> Result<(), sqlx::Error> {
    let amount = match effect {
        Effect::Charge | Effect::Refund => step.order.amount_cents,
        Effect::Reserve | Effect::Release => step.order.quantity,
        Effect::Ship | Effect::Notify => 1,
    };
    sqlx::query("INSERT INTO effects (kind, order_id, reference, amount) VALUES (?1, ?2, ?3, ?4)")
        .bind(effect.name())
        .bind(&step.order_id)
        .bind(&step.order.reference)
        .bind(amount)
        .execute(db)
        .await?;
    Ok(())
}
