//! The outbox behind PgBouncer in transaction mode obeys the same laws.

use semel_postgres::{Config, Postgres};
use semel_testkit::laws::outbox::World;
use semel_testkit::servers::pgbouncer;

use super::{EMPTY, Lent, fresh, world_of};

async fn world() -> (World, Lent) {
    let (lent, direct) = fresh().await;
    let db = Postgres::connect(Config::new(pgbouncer().url(&lent.url)))
        .await
        .unwrap();
    world_of(lent, &db, &direct)
}

async fn parted_world() -> (World, Lent) {
    let (lent, direct) = Lent::take_parted().await;
    sqlx::raw_sql(EMPTY).execute(direct.pool()).await.unwrap();
    let db = Postgres::connect(Config::new(pgbouncer().url(&lent.url)))
        .await
        .unwrap();
    world_of(lent, &db, &direct)
}

mod in_partitions {
    semel_testkit::outbox_laws!(super::parted_world());
}

semel_testkit::outbox_laws!(world());
semel_testkit::outbox_desk_laws!(world());
