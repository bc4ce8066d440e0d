//! Marks inside your own transaction.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use bytes::Bytes;
use semel_core::inbox::mark::retention_ms;
use semel_core::inbox::{Mark, MarkPlan};
use semel_core::{Scope, StoreError};
use sqlx::{PgConnection, Postgres as Driver, Transaction};

use crate::error::classify;
use crate::gate::query_scalar;

/// The transaction in which a delivery is taken. Use [`InboxTx::conn`] for your own statements; as a `Transaction` it
/// goes to the other functions of this module, such as `enqueue`. Semel commits it.
pub struct InboxTx {
    pub(crate) tx: Transaction<'static, Driver>,
    /// The server's number of this transaction, compared before the commit (rule O8).
    pub(crate) xid: String,
}

impl InboxTx {
    /// The connection, for your own statements: `sqlx::query("…").execute(tx.conn())`.
    pub fn conn(&mut self) -> &mut PgConnection {
        &mut self.tx
    }
}

impl Deref for InboxTx {
    type Target = Transaction<'static, Driver>;

    fn deref(&self) -> &Self::Target {
        &self.tx
    }
}

impl DerefMut for InboxTx {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.tx
    }
}

impl std::fmt::Debug for InboxTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InboxTx")
            .field("xid", &self.xid)
            .finish_non_exhaustive()
    }
}

/// Marks message ids as seen and says which are new: handle those, in this transaction. In the order asked; an id that
/// stands twice is new once. The marks are remembered for at least `retention` after the commit: choose it longer than
/// the sender may redeliver.
///
/// A concurrent transaction that marks one of the same ids is waited for; when it rolls back, the id is new here.
/// Under REPEATABLE READ and above the loser gets an error instead: repeat the whole transaction then.
///
/// # Errors
/// An id that is empty or longer than 255 bytes, more than 1,000 ids, a retention of zero; or the store's.
/// `NotApplied` (serialisation failure, deadlock): repeat the whole transaction.
///
/// ```no_run
/// # async fn f(db: &semel_postgres::Postgres) -> Result<(), Box<dyn std::error::Error>> {
/// use semel_core::{Scope, inbox::Mark};
/// let scope = Scope::new("shipping")?;
/// let mut tx = db.begin().await?;
/// let week = std::time::Duration::from_secs(7 * 86_400);
/// let marks = semel_postgres::tx::mark_many(&mut tx, &scope, &["order-7".into()], week).await?;
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
    mark_many_ms(tx, scope, ids, retention_ms(retention)?).await
}

/// One statement however many ids, sorted, so that two batches cannot wait for each other.
pub(crate) async fn mark_many_ms(
    tx: &mut Transaction<'_, Driver>,
    scope: &Scope,
    ids: &[Bytes],
    retention_ms: i64,
) -> Result<Vec<Mark>, StoreError> {
    let plan = MarkPlan::new(ids)?;
    let distinct: Vec<&[u8]> = plan.distinct().iter().map(|id| &id[..]).collect();
    let inserted: Vec<Vec<u8>> = query_scalar(
        "INSERT INTO semel.inbox (scope, id, keep_until)
         SELECT $1, u.id, clock_timestamp() + $3::float8 * interval '1 millisecond'
         FROM unnest($2::bytea[]) AS u(id) ORDER BY u.id
         ON CONFLICT (scope, id) DO NOTHING RETURNING id",
    )
    .bind(scope.as_bytes())
    .bind(distinct)
    .bind(retention_ms as f64)
    .fetch_all(&mut **tx)
    .await
    .map_err(|error| classify("mark", error))?;
    Ok(plan.answer(inserted.into_iter().map(Bytes::from)))
}
