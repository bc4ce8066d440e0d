//! Sagas.

mod barrier;
mod laws;
mod plans;
mod store;

use std::sync::Arc;

use semel_postgres::Postgres;
use semel_testkit::laws::saga::World;

use super::keys::Lent;

const EMPTY: &str =
    "TRUNCATE semel.saga, semel.saga_definition, semel.saga_log, semel.saga_request, semel.barrier";
/// Every time of every saga, moved into the past.
const AGE: &str = "UPDATE semel.saga SET due_at = due_at - $1 * interval '1 ms',
  lease_until = lease_until - $1 * interval '1 ms', ended_at = ended_at - $1 * interval '1 ms',
  tombstone_until = tombstone_until - $1 * interval '1 ms'";

/// A database without sagas.
pub(crate) async fn fresh() -> (Lent, Postgres) {
    let (lent, db) = Lent::take().await;
    sqlx::raw_sql(EMPTY).execute(db.pool()).await.unwrap();
    (lent, db)
}

/// Lets time pass for all sagas.
pub(crate) async fn age_ms(db: &Postgres, ms: i64) {
    let age = sqlx::query(AGE).bind(ms as f64);
    age.execute(db.pool()).await.unwrap();
}

/// The laws' world over a database.
pub(crate) fn world_over(db: &Postgres) -> World {
    let aging = db.clone();
    World::new(Arc::new(db.clone()), move |ms| {
        let db = aging.clone();
        async move { age_ms(&db, ms).await }
    })
}

/// The laws' world over a database of its own.
pub(crate) async fn world() -> (World, Lent) {
    let (lent, db) = fresh().await;
    (world_over(&db), lent)
}
