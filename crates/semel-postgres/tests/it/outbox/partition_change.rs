//! An outbox that is put into partitions and made whole again: what stays, who is waited for, and what is refused.

use std::time::Duration;

use semel_core::store::{OutboxDesk as _, OutboxStore as _};
use semel_core::{ErrorKind, Event};
use semel_postgres::{Config, PARTITIONS_HELD, PartitionChange, Partitioning, Postgres, tx};
use semel_testkit::servers::postgres;
use uuid::Uuid;

use super::{batch, event, own, write};

const ROWS_MAX: u64 = 1_000;

async fn fresh() -> Postgres {
    let db = Postgres::connect(Config::new(postgres().fresh_database()))
        .await
        .unwrap();
    db.migrate().await.unwrap();
    db
}

fn old(n: u64, text: &str) -> Event {
    let mut event = event("k", text);
    event.id = Uuid::parse_str(&format!("01941f29-7c00-7000-8000-{n:012x}")).unwrap();
    event
}

/// Everything about the table that somebody may rely on.
async fn shape(db: &Postgres) -> Vec<String> {
    let sql = "WITH t AS (SELECT * FROM pg_class WHERE oid = 'semel.outbox'::regclass)
      SELECT 'table ' || relkind::text || ' ' || pg_get_userbyid(relowner) FROM t
      UNION ALL SELECT 'grant ' || a::text FROM t CROSS JOIN aclexplode(relacl) a
      UNION ALL SELECT concat_ws(' ', 'column', attnum, attname, format_type(atttypid, atttypmod), attnotnull, attidentity, attacl,
        (SELECT collname FROM pg_collation c WHERE c.oid = attcollation), attstorage,
        (SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = attrelid AND adnum = attnum))
        FROM pg_attribute WHERE attrelid = 'semel.outbox'::regclass AND attnum > 0
      UNION ALL SELECT pg_get_indexdef(indexrelid) || ' ' || indisprimary FROM pg_index WHERE indrelid = 'semel.outbox'::regclass
      UNION ALL SELECT pg_get_triggerdef(oid) || ' ' || tgenabled::text FROM pg_trigger WHERE tgrelid = 'semel.outbox'::regclass AND NOT tgisinternal
      UNION ALL SELECT conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'semel.outbox'::regclass
      UNION ALL SELECT concat_ws(' ', 'sequence', pg_get_serial_sequence('semel.outbox', 'id'), last_value, is_called) FROM semel.outbox_id_seq
      UNION ALL SELECT 'name ' || relname FROM pg_class WHERE relnamespace = 'semel'::regnamespace AND relname ~ '^(old_|outbox)'
      ORDER BY 1";
    sqlx::query_scalar(sql).fetch_all(db.pool()).await.unwrap()
}

async fn rows(db: &Postgres) -> Vec<(i64, String, Uuid)> {
    sqlx::query_as("SELECT id, xid::text, event_id FROM semel.outbox ORDER BY id")
        .fetch_all(db.pool())
        .await
        .unwrap()
}

#[tokio::test]
async fn an_outbox_that_comes_back_from_partitions_is_what_it_was_and_goes_on_where_it_was() {
    let db = fresh().await;
    let mut owned = own(&db).await;
    sqlx::raw_sql(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER mine AFTER INSERT ON semel.outbox FOR EACH ROW EXECUTE FUNCTION note();
         CREATE TRIGGER rests AFTER INSERT ON semel.outbox FOR EACH ROW EXECUTE FUNCTION note();
         ALTER TABLE semel.outbox DISABLE TRIGGER rests;
         CREATE INDEX by_topic ON semel.outbox (topic);
         GRANT SELECT (topic), INSERT ON semel.outbox TO PUBLIC",
    )
    .execute(db.pool())
    .await
    .unwrap();
    write(&db, &[event("k", "sent"), old(1, "sent, too")]).await;
    assert_eq!(batch(&db, &mut owned).await.len(), 2);
    write(&db, &[old(2, "waits"), event("k", "waits, too")]).await;
    let (shape_before, rows_before) = (shape(&db).await, rows(&db).await);

    // Twice in one session, whose plans remember the tables of before.
    let mut session = db.pool().acquire().await.unwrap();
    for _ in 0..2 {
        for sql in [
            "SELECT semel.partition_outbox()",
            "SELECT semel.unpartition_outbox()",
        ] {
            let copied: i64 = sqlx::query_scalar(sql).fetch_one(&mut *session).await.unwrap();
            assert_eq!(copied, 4);
            assert_eq!(rows(&db).await, rows_before);
        }
        assert_eq!(shape(&db).await, shape_before);
    }
    drop(session);
    assert_eq!(db.partitions().await.unwrap(), None);
    assert_eq!(db.unpartition_outbox(ROWS_MAX).await.unwrap(), 0, "it is whole");

    // A batch that is open goes on through it, too.
    db.partition_outbox(Duration::from_secs(60)).await.unwrap();
    assert_eq!(batch(&db, &mut owned).await, ["waits", "waits, too"]);
    let late = write(&db, &[event("k", "in partitions")]).await;
    assert_eq!(db.unpartition_outbox(ROWS_MAX).await.unwrap(), 5);
    let later = write(&db, &[event("k", "whole")]).await;
    assert!(later[0] > late[0], "numbers go on");
    assert_eq!(batch(&db, &mut owned).await, ["in partitions", "whole"]);
    assert_eq!(db.clean("default", -1, 10).await.unwrap(), 6);
}

/// What a stream wanted before must not drop its rows when there are partitions again.
#[tokio::test]
async fn how_long_streams_keep_is_forgotten_with_the_partitions() {
    let db = fresh().await;
    db.partition_outbox(Duration::from_secs(60)).await.unwrap();
    db.rotate("default", 5).await.unwrap();
    let said = async || {
        let sql = "SELECT count(*) FROM semel.outbox_keep";
        sqlx::query_scalar::<_, i64>(sql)
            .fetch_one(db.pool())
            .await
            .unwrap()
    };
    assert_eq!(said().await, 1);
    db.unpartition_outbox(ROWS_MAX).await.unwrap();
    assert_eq!(said().await, 0);
    // A cleaner that had not seen it yet makes none.
    let made: i32 = sqlx::query_scalar("SELECT semel.outbox_premake()")
        .fetch_one(db.pool())
        .await
        .unwrap();
    assert_eq!(made, 0);
    assert_eq!(db.rotate("default", 5).await.unwrap().made, 0);
}

#[tokio::test]
async fn so_many_as_asked_for_are_made_ahead() {
    let db = fresh().await;
    let mut how = Partitioning {
        ahead: 7,
        ..Duration::from_secs(3_600).into()
    };
    db.partition_outbox(how).await.unwrap();
    let found = db.partitions().await.unwrap().unwrap();
    assert_eq!(found.premake, 7);
    assert!((6..=7).contains(&found.ahead()), "{found:?}");
    how.ahead = 12;
    db.partition_outbox(how).await.unwrap();
    assert!(db.rotate("default", 60_000).await.unwrap().made >= 4);
    for ahead in [0, 101] {
        how.ahead = ahead;
        let refused = db.partition_outbox(how).await.unwrap_err();
        assert_eq!(refused.code(), "SEM0280");
        assert!(refused.to_string().contains("from 1 to 100"), "{refused}");
    }
}

/// Of a writer that has rows open it is said who it is; nothing is changed, and it can be done when that one has ended. The five
/// seconds are the lock time-out.
#[tokio::test]
async fn who_holds_the_outbox_is_named_and_nothing_is_changed() {
    let db = fresh().await;
    let mut owned = own(&db).await;
    let mut open = db.begin().await.unwrap();
    tx::enqueue(&mut open, &event("k", "open")).await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut *open)
        .await
        .unwrap();
    let (rows, waits) = db.partition_outlook(ROWS_MAX).await.unwrap();
    assert_eq!((rows, waits[0].who.as_str()), (0, format!("pid {pid}").as_str()));
    // The second one does not wait at all.
    for _ in 0..2 {
        let refused = db.partition_outbox(Duration::from_secs(60)).await.unwrap_err();
        assert_eq!(
            (refused.code(), refused.kind()),
            (PARTITIONS_HELD, ErrorKind::NotApplied)
        );
        let text = refused.to_string();
        assert!(
            text.contains(&format!("pid {pid} for ")) && text.contains("pg_terminate_backend"),
            "{text}"
        );
    }
    assert_eq!(db.partitions().await.unwrap(), None);
    db.commit(open).await.unwrap();
    let said = Some(("ann", "many events"));
    let on = PartitionChange::On(Partitioning::default());
    assert_eq!(db.change_partitions(on, said).await.unwrap(), 1);
    let off = PartitionChange::Off { rows_max: 0 };
    let refused = db.change_partitions(off, said).await.unwrap_err();
    assert_eq!(refused.code(), "SEM0280");
    let off = PartitionChange::Off { rows_max: ROWS_MAX };
    assert_eq!(db.change_partitions(off, said).await.unwrap(), 1);
    let log = db.desk_log(0, 10).await.unwrap();
    let words: Vec<_> = log.iter().map(|entry| (&*entry.action, &*entry.by)).collect();
    assert_eq!(words, [("partition", "ann"), ("unpartition", "ann")]);
    assert_eq!(batch(&db, &mut owned).await, ["open"]);
}

/// A transaction with a snapshot of its own would not see, and so destroy, what is committed while it waits for writers.
#[tokio::test]
async fn a_transaction_that_sees_only_what_was_before_it_is_refused() {
    let db = fresh().await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        for call in ["semel.partition_outbox()", "semel.unpartition_outbox()"] {
            let mut session = db.pool().acquire().await.unwrap();
            let sql = format!("BEGIN ISOLATION LEVEL {level}; SELECT {call}");
            let refused = sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
                .execute(&mut *session)
                .await
                .unwrap_err();
            assert!(refused.to_string().contains(level), "{refused}");
            sqlx::raw_sql("ROLLBACK").execute(&mut *session).await.unwrap();
        }
    }
}
