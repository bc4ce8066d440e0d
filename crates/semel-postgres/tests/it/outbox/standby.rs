//! The cursor over a primary with a real standby: what a standby must not be asked, and what becomes of a cursor when the
//! standby is promoted.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use semel_core::relay::OwnedShard;
use semel_core::store::{Guarded, Opening, OutboxDesk as _, OutboxStore as _};
use semel_core::{ErrorKind, StoreError};
use semel_postgres::{Config, Postgres, tx};
use semel_testkit::laws::outbox::PAGE;
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::PostgresServer;
use sqlx::{Connection as _, PgConnection};

use super::{batch, event, own, write};

/// A primary that streams to a standby, and Semel's schema.
struct Pair {
    primary: PostgresServer,
    standby: PostgresServer,
    database: String,
}

impl Pair {
    async fn start() -> (Self, Postgres) {
        let (primary, standby) = tokio::task::spawn_blocking(|| {
            let primary = PostgresServer::start();
            let standby = primary.standby();
            (primary, standby)
        })
        .await
        .unwrap();
        let url = primary.fresh_database();
        let database = url.rsplit('/').next().unwrap().to_owned();
        let db = Postgres::connect(Config::new(url)).await.unwrap();
        db.migrate().await.unwrap();
        let pair = Self {
            primary,
            standby,
            database,
        };
        pair.caught_up(&db).await;
        (pair, db)
    }

    /// Waits until the standby shows all that the primary has.
    async fn caught_up(&self, db: &Postgres) {
        let here: String = sqlx::query_scalar("SELECT pg_current_wal_lsn()::text")
            .fetch_one(db.pool())
            .await
            .unwrap();
        let mut there = PgConnection::connect(&self.standby.url("postgres"))
            .await
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let shown: bool = sqlx::query_scalar("SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn")
                .bind(&here)
                .fetch_one(&mut there)
                .await
                .unwrap();
            if shown {
                return;
            }
            assert!(Instant::now() < deadline, "the standby does not catch up");
            tokio::task::yield_now().await;
        }
    }

    /// The primary dies for good, and the standby as it was left by `PostgresServer::kill` takes its place.
    async fn fail_over(mut self) -> PostgresServer {
        tokio::task::spawn_blocking(move || {
            self.primary.kill();
            self.standby.restart();
            self.standby.promote();
            self.standby
        })
        .await
        .unwrap()
    }
}

/// An address that leads to the primary, whichever that is.
async fn one_address(pair: &Pair) -> (Proxy, Postgres) {
    let proxy = Proxy::to_port(pair.primary.port()).await.unwrap();
    let url = format!("postgres://postgres@127.0.0.1:{}/{}", proxy.port(), pair.database);
    let mut config = Config::new(url);
    config.acquire_timeout = Duration::from_secs(30);
    (proxy, Postgres::connect(config).await.unwrap())
}

fn lead_to(proxy: &Proxy, server: &PostgresServer) {
    proxy.set_upstream(SocketAddr::from(([127, 0, 0, 1], server.port())));
    proxy.cut();
}

async fn open(db: &Postgres, owned: &OwnedShard) -> Result<Guarded<Opening>, StoreError> {
    for _ in 0..20 {
        match db.open_batch(&owned.lease, &owned.cursor, false, PAGE).await {
            // Connections to a server that is no more, which the pool has not asked yet.
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NotApplied) => {}
            answer => return answer,
        }
    }
    panic!("the new primary does not answer");
}

/// Rule O5: a standby's snapshot does not list what is open, so a row that is not committed would count as seen.
#[tokio::test]
async fn o5_a_standby_is_refused_by_the_look_itself_and_an_open_row_is_not_passed() {
    let (pair, db) = Pair::start().await;
    let mut owned = own(&db).await;
    let mut running = db.begin().await.unwrap();
    tx::enqueue(&mut running, &event("k", "open")).await.unwrap();
    write(&db, &[event("k", "committed")]).await;
    pair.caught_up(&db).await;
    let standby = Postgres::connect(Config::new(pair.standby.url(&pair.database)))
        .await
        .unwrap();
    let refused = standby
        .open_batch(&owned.lease, &owned.cursor, false, PAGE)
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(
        refused.to_string().contains("do not say what is open"),
        "{refused}"
    );
    let standing = standby.standing().await.unwrap();
    let named = standing.holds.iter().find(|hold| hold.kind == "standby").unwrap();
    assert!(named.advice.contains("primary"), "{named:?}");
    assert_eq!(batch(&db, &mut owned).await, ["committed"]);
    db.commit(running).await.unwrap();
    assert_eq!(batch(&db, &mut owned).await, ["open"]);
}

/// Rule O6: rows of a transaction that takes the look would count as seen by it. A look has no transaction.
#[tokio::test]
async fn o6_a_look_takes_no_transaction_number() {
    let (_lent, db) = super::fresh().await;
    let owned = own(&db).await;
    let next = async || -> String {
        sqlx::query_scalar("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
            .fetch_one(db.pool())
            .await
            .unwrap()
    };
    // Others take numbers, too, now and then; a look that took one would take one each time.
    for _ in 0..10_000 {
        let before = next().await;
        let opening = db
            .open_batch(&owned.lease, &owned.cursor, false, PAGE)
            .await
            .unwrap();
        assert!(matches!(opening, Guarded::Done(Opening::Empty)), "{opening:?}");
        if next().await == before {
            return;
        }
    }
    panic!("each look took a number");
}

/// Rules O2, O21: the standby that took over lacks the newest rows and the newest cursor. One in memory that is ahead of it stops
/// and says so. Where the new primary has given out more numbers meanwhile, it is read again before anything is opened under it. A
/// rescan adopts the new primary, and all that is in it comes, in order.
#[tokio::test]
async fn o21_a_cursor_of_the_old_primary_stops_or_is_read_again_and_a_rescan_sends_all_that_is_there() {
    let (pair, direct) = Pair::start().await;
    let (proxy, db) = one_address(&pair).await;
    let mut owned = own(&db).await;
    write(&db, &[event("a", "1"), event("b", "1")]).await;
    assert_eq!(batch(&db, &mut owned).await, ["1", "1"]);
    pair.caught_up(&direct).await;
    let known_there = owned.cursor.clone();
    pair.standby.kill();
    for _ in 0..5 {
        write(&db, &[event("a", "lost")]).await;
        assert_eq!(batch(&db, &mut owned).await, ["lost"]);
    }
    let database = pair.database.clone();
    let primary = pair.fail_over().await;
    lead_to(&proxy, &primary);
    let stopped = open(&db, &owned).await.unwrap_err();
    assert_eq!(stopped.kind(), ErrorKind::IdentityChanged, "{stopped}");
    let text = stopped.to_string();
    assert!(
        text.starts_with("SEM0202") && text.contains("semel outbox rescan"),
        "{text}"
    );

    let other = Postgres::connect(Config::new(primary.url(&database)))
        .await
        .unwrap();
    for n in 2..30 {
        write(&other, &[event("a", &n.to_string())]).await;
    }
    let opening = open(&db, &owned).await.unwrap();
    assert!(matches!(opening, Guarded::Reload), "{opening:?}");
    let Guarded::Done(read) = db.load(&owned.lease).await.unwrap() else {
        panic!("the owner is known there")
    };
    assert_eq!(read, known_there);
    owned.cursor = read;
    let after: Vec<String> = (2..30).map(|n| n.to_string()).collect();
    assert_eq!(batch(&db, &mut owned).await, after);

    let rescan = db.rescan(None, "ann", "the standby took over", false).await;
    assert_eq!(rescan.unwrap().shards, 1);
    assert_eq!(db.renew(&[owned.lease], 1_000).await.unwrap(), [false]);
    let mut owned = own(&db).await;
    let all: Vec<String> = ["1", "1"].map(str::to_owned).into_iter().chain(after).collect();
    assert_eq!(batch(&db, &mut owned).await, all);
}
