//! What a plain INSERT may write: the limits of `Event::check`, in the table itself.

use semel_core::Event;
use semel_core::event::slot;
use semel_testkit::laws::outbox as laws;
use semel_testkit::laws::outbox::event;
use sqlx::Row as _;

use super::{lent, over};

/// Each value that no sink could send is refused, by a constraint that names the limit.
#[tokio::test]
async fn an_insert_that_could_never_be_sent_names_the_limit() {
    let (_lent, db) = lent().await;
    for (columns, values, limit) in [
        ("topic, type", "'a b', 'e'", "topic_is_1_to_249"),
        ("topic, type", "'', 'e'", "topic_is_1_to_249"),
        ("topic, type", "'..', 'e'", "topic_is_1_to_249"),
        ("topic, type", "'t', ''", "type_is_1_to_255"),
        ("topic, type", "'t', 'a\\nb'", "type_is_1_to_255"),
        (
            "topic, type",
            "'t', CONCAT('a', CHAR(0), 'b')",
            "type_is_1_to_255",
        ),
        ("topic, type, stream", "'t', 'e', 'a b'", "stream_is_1_to_249"),
        ("topic, type, stream", "'t', 'e', ''", "stream_is_1_to_249"),
        ("topic, type, stream", "'', '', ''", "stream_is_1_to_249"),
        ("topic, type, source", "'t', 'e', ''", "source_is_1_to_255"),
        (
            "topic, type, source",
            "'t', 'e', REPEAT('\u{fc}', 200)",
            "source_is_1_to_255",
        ),
        ("topic, type, `key`", "'t', 'e', ''", "key_is_1_to_1024_bytes"),
        (
            "topic, type, `key`",
            "'t', 'e', REPEAT('k', 1025)",
            "Data too long",
        ),
        (
            "topic, type, content_type",
            "'t', 'e', 'a\\rb'",
            "content_type_is_at_most_255",
        ),
        (
            "topic, type, traceparent",
            "'t', 'e', 'a\\tb'",
            "traceparent_is_at_most_255",
        ),
        (
            "topic, type, data",
            "'t', 'e', REPEAT('x', 900001)",
            "data_is_at_most_900000",
        ),
        ("topic, type, event_id", "'t', 'e', x'01'", "event_id_is_16_bytes"),
        (
            "topic, type, created_at",
            "'t', 'e', -1",
            "created_at_is_of_the_years",
        ),
        ("topic, type, headers", "'t', 'e', '{}'", "headers_are_pairs"),
        ("topic, type, headers", "'t', 'e', 'x'", "headers_are_pairs"),
        (
            "topic, type, headers",
            "'t', 'e', '[[\"a\",\"0\"]]'",
            "headers_are_pairs",
        ),
        (
            "topic, type, headers",
            "'t', 'e', '[[\"a b\",\"00\"]]'",
            "headers_are_pairs",
        ),
        (
            "topic, type, headers",
            "'t', 'e', CONCAT('[', REPEAT('[\"a\",\"00\"],', 64), '[\"a\",\"00\"]]')",
            "headers_are_pairs",
        ),
    ] {
        let sql = format!("INSERT INTO semel_outbox ({columns}) VALUES ({values})");
        let error = sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
            .execute(db.pool())
            .await
            .unwrap_err();
        assert!(error.to_string().contains(limit), "{values}: {error}");
    }
    let rows: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM semel_outbox WHERE stream <> ''")
        .fetch_one(db.pool())
        .await
        .unwrap();
    assert_eq!(rows, 0);
}

/// What `Event::check` lets pass, the table takes: at the limits, too.
#[tokio::test]
async fn an_event_at_every_limit_is_written_and_read() {
    let (_lent, db) = lent().await;
    let mut largest = Event::new(uuid::Uuid::from_u128(9), "t".repeat(249), "\u{fc}".repeat(127))
        .with_key(vec![0xff; 1_024])
        .with_data("x".repeat(255), vec![0; 900_000])
        .with_header("n".repeat(320), vec![0xff; 16_384 - 320 - 62 - 100])
        .with_header("h".repeat(100), vec![]);
    for _ in 0..62 {
        largest = largest.with_header("h", vec![]);
    }
    largest.source = "s".repeat(255);
    largest.traceparent = Some("t".repeat(255));
    largest.check().unwrap();
    let world = over(&db);
    world.write(std::slice::from_ref(&largest)).await;
    let read = world.reader().await.batch().await;
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].event, largest);
}

/// Any language: the server gives the id, the slot and the time.
#[tokio::test]
async fn a_plain_insert_is_enough() {
    let (_lent, db) = lent().await;
    let before = db.now().await.unwrap();
    sqlx::raw_sql(
        "INSERT INTO semel_outbox (topic, type) VALUES ('orders', 'placed');
         INSERT INTO semel_outbox (topic, type, `key`, content_type, data, headers)
           VALUES ('orders', 'placed', 'order-7', 'application/json', '{\"total\":42}', '[[\"tenant\", \"61\"], [\"x\",\"\"]]')",
    )
    .execute(db.pool())
    .await
    .unwrap();
    let after = db.now().await.unwrap();
    let read = over(&db).reader().await.batch().await;
    assert_eq!(read.len(), 2);
    assert_ne!(read[0].event.id, read[1].event.id);
    assert!(before <= read[0].created_at && read[1].created_at <= after);
    let event = &read[1].event;
    assert_eq!(event.key.as_deref(), Some(&b"order-7"[..]));
    assert_eq!(event.data.as_deref(), Some(&br#"{"total":42}"#[..]));
    assert_eq!(event.headers.len(), 2);
    assert_eq!(
        (&event.headers[0].0[..], &event.headers[0].1[..]),
        ("tenant", &b"a"[..])
    );
}

/// The slot in SQL is the slot in Rust, with and without a key.
#[tokio::test]
async fn slots_are_those_of_rust() {
    let (_lent, db) = lent().await;
    let world = over(&db);
    let mut events: Vec<Event> = (0..50).map(|n| event(&format!("k{n}"), "")).collect();
    events[7].key = None;
    events[8].key = Some(bytes::Bytes::from_static(b"\0\xff"));
    world.write(&events).await;
    let rows = sqlx::query("SELECT slot FROM semel_outbox WHERE stream <> '' ORDER BY id")
        .fetch_all(db.pool())
        .await
        .unwrap();
    let found: Vec<u16> = rows
        .iter()
        .map(|row| u16::try_from(row.get::<i16, _>(0)).unwrap())
        .collect();
    let wanted: Vec<u16> = events.iter().map(Event::slot).collect();
    assert_eq!(found, wanted);
    assert_eq!(wanted[0], slot(b"k0"));
}

#[tokio::test]
async fn the_oldest_event_is_that_of_any_shard() {
    let (_lent, db) = lent().await;
    let run = async |sql: &'static str| {
        sqlx::raw_sql(sql).execute(db.pool()).await.unwrap();
    };
    let age = "UPDATE semel_outbox SET created_at = created_at - 3601000000 WHERE stream <> ''";
    let clear = "DELETE FROM semel_outbox WHERE stream <> ''";
    laws::the_oldest_event_is_that_of_any_shard(
        &over(&db),
        async || run(age).await,
        async || run(clear).await,
    )
    .await;
}
