//! Marks inside your own transaction.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use bytes::Bytes;
use semel_core::inbox::mark::retention_ms;
use semel_core::inbox::{Mark, MarkPlan};
use semel_core::{Clock as _, Scope, StoreError, SystemClock, Timestamp};
use sqlx::{Sqlite as Driver, SqliteConnection, Transaction};

use crate::error::classify;

/// The transaction in which a delivery is taken. Use [`InboxTx::conn`] for your own statements; as a `Transaction` it
/// goes to the other functions of this module, such as `enqueue`. Semel commits it.
pub struct InboxTx(pub(crate) Transaction<'static, Driver>);

impl InboxTx {
    /// The connection, for your own statements: `sqlx::query("…").execute(tx.conn())`.
    pub fn conn(&mut self) -> &mut SqliteConnection {
        &mut self.0
    }
}

impl Deref for InboxTx {
    type Target = Transaction<'static, Driver>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for InboxTx {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl std::fmt::Debug for InboxTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InboxTx").finish_non_exhaustive()
    }
}

/// Marks message ids as seen and says which are new: handle those, in this transaction. In the order asked; an id that
/// stands twice is new once. The marks are remembered for at least `retention` after the commit: choose it longer than
/// the sender may redeliver.
///
/// # Errors
/// An id that is empty or longer than 255 bytes, more than 1,000 ids, a retention of zero; or the store's. Nothing is
/// marked then.
///
/// ```
/// # async fn f(db: &semel_sqlite::Sqlite) -> Result<(), Box<dyn std::error::Error>> {
/// use semel_core::{Scope, inbox::Mark};
/// let scope = Scope::new("shipping")?;
/// let mut tx = db.begin().await?;
/// let marks = semel_sqlite::tx::mark_many(&mut tx, &scope, &["order-7".into()], std::time::Duration::from_secs(86_400)).await?;
/// if marks == [Mark::New] {
///     sqlx::query("INSERT INTO parcel (order_id) VALUES ('order-7')").execute(&mut *tx).await?;
/// }
/// db.commit(tx).await?;
/// # Ok(()) }
/// ```
pub async fn mark_many(
    tx: &mut Transaction<'_, Driver>,
    scope: &Scope,
    ids: &[Bytes],
    retention: Duration,
) -> Result<Vec<Mark>, StoreError> {
    mark_many_at(tx, scope, ids, retention_ms(retention)?, SystemClock.now()).await
}

/// One statement however many ids: bytes go in as a JSON array of hexadecimal strings, sorted, which is also the order
/// of the table.
pub(crate) async fn mark_many_at(
    tx: &mut Transaction<'_, Driver>,
    scope: &Scope,
    ids: &[Bytes],
    retention_ms: i64,
    now: Timestamp,
) -> Result<Vec<Mark>, StoreError> {
    let plan = MarkPlan::new(ids)?;
    let inserted: Vec<Vec<u8>> = sqlx::query_scalar(
        "INSERT INTO semel_inbox (scope, id, seen_at, keep_until)
         SELECT ?1, unhex(value), ?3, ?4 FROM json_each(?2) WHERE true
         ON CONFLICT (scope, id) DO NOTHING RETURNING id",
    )
    .bind(scope.as_bytes())
    .bind(hex_array(plan.distinct()))
    .bind(now.0)
    .bind(now.plus_ms(retention_ms).0)
    .fetch_all(&mut **tx)
    .await
    .map_err(|error| classify("mark", error))?;
    Ok(plan.answer(inserted.into_iter().map(Bytes::from)))
}

/// A JSON array of hexadecimal strings, for `json_each` and `unhex`.
pub(crate) fn hex_array<'a>(values: impl IntoIterator<Item = &'a Bytes>) -> String {
    let mut text = String::from("[");
    for value in values {
        if text.len() > 1 {
            text.push(',');
        }
        text.push('"');
        text.push_str(&semel_core::key::hex(value));
        text.push('"');
    }
    text.push(']');
    text
}
