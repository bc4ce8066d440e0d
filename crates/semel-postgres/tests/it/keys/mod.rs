//! Keys.

mod capture;
mod crash;
mod hints;
mod history;
mod home;
mod laws;
mod once;
mod plans;
mod pooler;
mod transact;
mod transact_once;
mod trouble;
mod waits;

pub(crate) use once::until_someone_waits;
use std::sync::{Arc, Mutex};

use semel_core::claim::{Claim, Nonce, OwnerLost};
use semel_core::host::random_16;
use semel_core::{Fingerprint, Key, Scope};
use semel_postgres::{Config, Postgres};
use semel_testkit::laws::keys::{LEASE_MS, World};
use semel_testkit::servers::postgres;

/// Every time of every key, moved into the past.
const AGE: &str = "UPDATE semel.key SET until = until - $1 * interval '1 millisecond',
  tombstone_until = tombstone_until - $1 * interval '1 millisecond',
  withdrawn_until = withdrawn_until - $1 * interval '1 millisecond', due_at = due_at - $1 * interval '1 millisecond'";

/// A database with Semel's schema and no keys. Given back for the next test when it is dropped: making one takes longer
/// than most laws.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) url: String,
    free: &'static Mutex<Vec<String>>,
}

static FREE: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Those whose outbox is in partitions.
static PARTED: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Lent {
    pub(crate) async fn take() -> (Self, Postgres) {
        let free = FREE.lock().unwrap().pop();
        let url = free.unwrap_or_else(|| postgres().fresh_database());
        let db = Postgres::connect(Config::new(&url)).await.unwrap();
        db.migrate().await.unwrap();
        sqlx::raw_sql("TRUNCATE semel.key")
            .execute(db.pool())
            .await
            .unwrap();
        (Self { url, free: &FREE }, db)
    }

    /// One whose outbox is in partitions.
    pub(crate) async fn take_parted() -> (Self, Postgres) {
        let found = PARTED.lock().unwrap().pop();
        if let Some(url) = found {
            let db = Postgres::connect(Config::new(&url)).await.unwrap();
            return (Self { url, free: &PARTED }, db);
        }
        let url = postgres().fresh_database();
        let db = Postgres::connect(Config::new(&url)).await.unwrap();
        db.migrate().await.unwrap();
        db.partition_outbox(std::time::Duration::from_secs(3_600))
            .await
            .unwrap();
        (Self { url, free: &PARTED }, db)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // After a failure somebody may still be writing.
        if !std::thread::panicking() {
            self.free.lock().unwrap().push(self.url.clone());
        }
    }
}

/// Lets time pass for all keys.
pub(crate) async fn age_ms(db: &Postgres, ms: i64) {
    sqlx::query(AGE).bind(ms).execute(db.pool()).await.unwrap();
}

/// The laws' world over a database.
pub(crate) async fn world() -> World {
    let (lent, db) = Lent::take().await;
    let lent = Arc::new(lent);
    World::new(Arc::new(db.clone()), move |ms| {
        let (db, _kept_while_the_world_is) = (db.clone(), Arc::clone(&lent));
        async move { age_ms(&db, ms).await }
    })
}

/// A request that nobody has made before.
pub(crate) fn request() -> Claim {
    Claim {
        key: Key::new(Scope::new("tests").unwrap(), random_16()).unwrap(),
        fingerprint: Fingerprint::of(b"what was asked"),
        nonce: Nonce::random(),
        owner_lost: OwnerLost::Hold,
        lease_ms: LEASE_MS,
    }
}

/// Such a request whose operation may be run again.
pub(crate) fn rerun_request() -> Claim {
    Claim {
        owner_lost: OwnerLost::Rerun,
        ..request()
    }
}
