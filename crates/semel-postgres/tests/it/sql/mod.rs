//! The contract of keys for every language: functions in the schema `semel`.

mod adapter;
mod close;
mod laws;
mod names;
mod once;
mod python;
mod rights;

use std::sync::Arc;

use semel_testkit::laws::keys::World;

use crate::keys::{Lent, age_ms};
use adapter::Functions;

/// The laws' world over the functions.
async fn world() -> World {
    let (lent, db) = Lent::take().await;
    let lent = Arc::new(lent);
    World::new(Arc::new(Functions(db.clone())), move |ms| {
        let (db, _kept_while_the_world_is) = (db.clone(), Arc::clone(&lent));
        async move { age_ms(&db, ms).await }
    })
}
