//! A connection that has lain idle for a while is asked whether it lives before it is used.

use std::time::Duration;

use semel_core::Nonce;
use semel_core::store::{Acquire, OutboxStore as _};
use semel_postgres::{Config, Postgres};
use sqlx::{Connection as _, PgConnection};

use crate::keys::Lent;

/// Longer than a connection may be idle without being asked (500 ms).
const A_WHILE: Duration = Duration::from_millis(600);

/// A firewall that forgets, a pooler that is restarted, an administrator: the other end is gone, and nobody has said so.
#[tokio::test]
async fn a_connection_that_has_died_while_it_was_idle_is_found_out_before_it_is_used() {
    let (lent, _) = Lent::take().await;
    let mut config = Config::new(&lent.url);
    config.connections_max = 1;
    let db = Postgres::connect(config).await.unwrap();
    let pid = async || -> Result<i32, sqlx::Error> {
        sqlx::query_scalar("SELECT pg_backend_pid()")
            .fetch_one(db.pool())
            .await
    };
    let before = pid().await.unwrap();
    looks(&db).await;
    let mut admin = PgConnection::connect(&lent.url).await.unwrap();
    let ended: Vec<(bool,)> = sqlx::query_as(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    .fetch_all(&mut admin)
    .await
    .unwrap();
    assert!(
        ended.len() >= 2 && ended.iter().all(|(ended,)| *ended),
        "of both pools: {ended:?}"
    );
    // Time is what the rule is about: nothing happens that could be waited for.
    tokio::time::sleep(A_WHILE).await;
    assert_ne!(pid().await.unwrap(), before, "yours");
    looks(&db).await;
}

/// On a connection for leases and cursors.
async fn looks(db: &Postgres) {
    let nonce = Nonce::random();
    let wish = Acquire {
        stream: "nobody's".to_owned(),
        max: 1,
        owner: "test".to_owned(),
        nonce,
        relay: nonce,
        lease_ms: 1_000,
    };
    assert!(db.acquire(&wish).await.unwrap().is_empty());
}
