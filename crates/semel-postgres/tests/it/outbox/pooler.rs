//! The outbox behind PgBouncer in transaction mode obeys the same laws, for a role that has only the rights that `docs/sql.md`
//! writes down for a relay.

use semel_core::store::EVENT_REPEATED;
use semel_postgres::{Config, Postgres, tx};
use semel_testkit::laws::outbox::World;
use semel_testkit::servers::pgbouncer;

use super::{EMPTY, Lent, event, fresh, world_of, write};
use crate::roles::RELAY;

async fn world() -> (World, Lent) {
    let (lent, direct) = fresh().await;
    let db = RELAY.connect(&lent.url).await;
    world_of(lent, &db, &direct)
}

/// Limits are set by the owner of the tables.
async fn owners_world() -> (World, Lent) {
    let (lent, direct) = fresh().await;
    let db = Postgres::connect(Config::new(pgbouncer().url(&lent.url)))
        .await
        .unwrap();
    world_of(lent, &db, &direct)
}

async fn parted() -> (Lent, Postgres) {
    let (lent, direct) = Lent::take_parted().await;
    sqlx::raw_sql(EMPTY).execute(direct.pool()).await.unwrap();
    (lent, direct)
}

/// Who deletes from partitions is their owner.
async fn owners_parted_world() -> (World, Lent) {
    let (lent, direct) = parted().await;
    let db = Postgres::connect(Config::new(pgbouncer().url(&lent.url)))
        .await
        .unwrap();
    world_of(lent, &db, &direct)
}

async fn parted_world() -> (World, Lent) {
    let (lent, direct) = parted().await;
    let db = RELAY.connect(&lent.url).await;
    world_of(lent, &db, &direct)
}

mod in_partitions {
    semel_testkit::outbox_laws!(super::owners_parted_world());
}

/// What a relay that deletes nothing does, and writers.
mod in_partitions_of_others {
    semel_testkit::outbox_laws!(@each super::parted_world();
        every_byte_of_an_event_arrives
        an_id_that_was_enqueued_before_is_refused_and_named
        an_id_that_was_enqueued_before_is_passed_over_when_asked
        a_row_committed_late_with_a_smaller_number_is_neither_lost_nor_waited_for
        a_half_settled_batch_is_finished_under_its_own_mark
        writers_at_once_lose_nothing_and_keep_the_order_of_each_key
    );
    semel_testkit::outbox_desk_laws!(super::parted_world());
}

mod of_the_owner {
    semel_testkit::limit_laws!(super::owners_world());
    semel_testkit::counting_laws!(super::owners_world());
}

semel_testkit::outbox_laws!(world());
semel_testkit::outbox_desk_laws!(world());
semel_testkit::delayed_laws!(world());
semel_testkit::reshard_laws!(world());

/// The server tells an id of a partition's rows only to those who may read the partition.
#[tokio::test]
async fn where_the_server_does_not_say_which_id_was_repeated_nobody_is_blamed() {
    let (lent, _direct) = parted().await;
    let db = RELAY.connect(&lent.url).await;
    let events = ["1", "2", "3"].map(|text| event("k", text));
    write(&db, &events[..1]).await;
    let mut tx = db.begin().await.unwrap();
    let refused = tx::enqueue_many(&mut tx, &events).await.unwrap_err();
    assert_eq!(refused.code(), EVENT_REPEATED);
    let text = refused.to_string();
    assert!(
        text.contains("one of these 3 events") && !text.contains("00000000-"),
        "{text}"
    );
}
