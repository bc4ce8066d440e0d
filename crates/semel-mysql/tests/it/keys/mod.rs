//! Keys.

mod bytes;
mod crash;
mod history;
mod laws;
mod once;
mod plans;
mod straight;
mod transact;
mod trouble;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::claim::{Claim, Nonce, OwnerLost};
use semel_core::host::random_16;
use semel_core::{Fingerprint, Key, Scope};
use semel_mysql::{Config, Mysql};
use semel_testkit::laws::keys::{LEASE_MS, World};
use semel_testkit::servers::mariadb;

/// Every time of every key, moved into the past. Tokens are times, too, and stay: they only grow.
const AGE: &str = "UPDATE semel_key SET until_us = until_us - ?, tombstone_us = tombstone_us - ?,
  withdrawn_us = withdrawn_us - ?, due_us = due_us - ?";

/// A database with Semel's schema and no keys. Given back for the next test when it is dropped: making one takes longer
/// than most laws.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) url: String,
}

static FREE: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Lent {
    pub(crate) async fn take() -> (Self, Mysql) {
        let free = FREE.lock().unwrap().pop();
        let url = free.unwrap_or_else(|| mariadb().fresh_database());
        let db = Mysql::connect(Config::new(&url)).await.unwrap();
        db.migrate().await.unwrap();
        sqlx::raw_sql("DELETE FROM semel_key")
            .execute(db.pool())
            .await
            .unwrap();
        (Self { url }, db)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // After a failure somebody may still be writing.
        if !std::thread::panicking() {
            FREE.lock().unwrap().push(self.url.clone());
        }
    }
}

/// Lets time pass for all keys.
pub(crate) async fn age_ms(db: &Mysql, ms: i64) {
    let us = ms * 1_000;
    let aged = sqlx::query(AGE).bind(us).bind(us).bind(us).bind(us);
    aged.execute(db.pool()).await.unwrap();
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

/// Waits until so many transactions of this server wait for a lock.
pub(crate) async fn until_someone_waits(db: &Mysql, wanted: i64) {
    // Only those of this database: tests share the server.
    let waiting = "SELECT CAST(COUNT(*) AS SIGNED) FROM information_schema.innodb_trx AS t
        JOIN information_schema.processlist AS p ON p.id = t.trx_mysql_thread_id
        WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()";
    // The server makes this picture anew only when nobody has looked for 100 ms: one looks at a time, and not often.
    static LOOKING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    for _ in 0..100 {
        let _alone = LOOKING.lock().await;
        tokio::time::sleep(Duration::from_millis(120)).await;
        let found: i64 = sqlx::query_scalar(waiting).fetch_one(db.pool()).await.unwrap();
        if found >= wanted {
            return;
        }
    }
    panic!("nobody waits for a lock");
}

/// The port in a URL.
pub(crate) fn port(url: &str) -> u16 {
    let host = url.rsplit_once('/').unwrap().0;
    host.rsplit_once(':').unwrap().1.parse().unwrap()
}

/// The same URL with another port.
pub(crate) fn at_port(url: &str, other: u16) -> String {
    url.replace(&format!(":{}/", port(url)), &format!(":{other}/"))
}
