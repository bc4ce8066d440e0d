//! The functions for other languages write what Rust writes, and refuse what it refuses.

use std::collections::HashSet;

use semel_core::Event;
use semel_core::host::uuid_v7;
use semel_core::store::{EVENT_REPEATED, Guarded, Opening, PageSize};
use semel_core::{OutboxStore as _, SystemClock};
use semel_postgres::{Config, Postgres, tx};
use sqlx::Row as _;
use uuid::Uuid;

use semel_testkit::laws::outbox::PAGE;

use super::{event, fresh, own};

/// Every event that is there, as the relay reads it.
async fn events(db: &Postgres) -> Vec<Event> {
    let owned = own(db).await;
    let opening = db
        .open_batch(&owned.lease, &owned.cursor, false, PAGE)
        .await
        .unwrap();
    let Guarded::Done(Opening::Opened(cursor, _)) = opening else {
        return Vec::new();
    };
    let size = PageSize {
        rows: 100,
        bytes: 1 << 20,
    };
    let Guarded::Done(page) = db.read_page(&owned.lease, &cursor, 0, size).await.unwrap() else {
        panic!("mine")
    };
    page.rows.into_iter().map(|row| row.row.event).collect()
}

fn with_a_new_id(event: &Event) -> Event {
    Event {
        id: uuid_v7(&SystemClock),
        ..event.clone()
    }
}

#[tokio::test]
async fn each_function_writes_what_rust_writes() {
    let (_lent, db) = fresh().await;
    let whole = Event {
        source: "/shop/\u{fc}".to_owned(),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        ..event("k\u{e9}", "x")
            .with_header("a", "1")
            .with_header("a", "\u{e9}")
    };
    let bare = Event::new(uuid_v7(&SystemClock), "orders", "placed");
    let binary = bare
        .clone()
        .with_key(&b"\0\xff"[..])
        .with_data("a/b", &b"\xff\0"[..]);
    let given = [whole, bare, binary];
    let mut tx = db.begin().await.unwrap();
    let from_rust: Vec<Event> = given.iter().map(with_a_new_id).collect();
    tx::enqueue_many(&mut tx, &from_rust).await.unwrap();
    let one: Vec<Event> = given.iter().map(with_a_new_id).collect();
    for event in &one {
        let id: Uuid = sqlx::query_scalar(
            "SELECT semel.enqueue($1, $2, data => $3, key => $4, content_type => $5, headers => $6::jsonb,
               event_id => $7, source => $8, traceparent => $9)",
        )
        .bind(&event.topic)
        .bind(&event.kind)
        .bind(event.data.as_deref())
        .bind(event.key.as_deref())
        .bind(&event.content_type)
        .bind(headers(event))
        .bind(event.id)
        .bind(&event.source)
        .bind(&event.traceparent)
        .fetch_one(&mut *tx)
        .await
        .unwrap();
        assert_eq!(id, event.id);
    }
    let arrays: Vec<Event> = given.iter().map(with_a_new_id).collect();
    let of = |read: fn(&Event) -> Option<Vec<u8>>| arrays.iter().map(read).collect::<Vec<_>>();
    let ids: Vec<Uuid> = sqlx::query_scalar(
        "SELECT semel.enqueue_many(ARRAY['orders'], ARRAY['placed'], data => $1, key => $2, content_type => $3,
           headers => $4::jsonb[], event_id => $5, source => $6, traceparent => $7)",
    )
    .bind(of(|event| event.data.as_deref().map(<[u8]>::to_vec)))
    .bind(of(|event| event.key.as_deref().map(<[u8]>::to_vec)))
    .bind(arrays.iter().map(|it| it.content_type.clone()).collect::<Vec<_>>())
    .bind(arrays.iter().map(headers).collect::<Vec<_>>())
    .bind(arrays.iter().map(|it| it.id).collect::<Vec<_>>())
    .bind(arrays.iter().map(|it| it.source.clone()).collect::<Vec<_>>())
    .bind(arrays.iter().map(|it| it.traceparent.clone()).collect::<Vec<_>>())
    .fetch_all(&mut *tx)
    .await
    .unwrap();
    assert_eq!(ids, arrays.iter().map(|it| it.id).collect::<Vec<_>>());
    let json: Vec<Event> = given.iter().map(with_a_new_id).collect();
    let ids: Vec<Uuid> = sqlx::query_scalar("SELECT semel.enqueue_many($1::jsonb)")
        .bind(format!(
            r#"[{{"topic": "orders", "type": "placed", "key": "ké", "data": "x", "content_type": "text/plain",
                 "headers": [["a", "1"], ["a", "é"]], "event_id": "{}", "source": "/shop/ü",
                 "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}},
                {{"topic": "orders", "type": "placed", "event_id": "{}"}},
                {{"topic": "orders", "type": "placed", "key_base64": "AP8=", "data_base64": "/wA=", "content_type": "a/b",
                 "event_id": "{}", "headers": null}}]"#,
            json[0].id, json[1].id, json[2].id
        ))
        .fetch_all(&mut *tx)
        .await
        .unwrap();
    assert_eq!(ids, json.iter().map(|it| it.id).collect::<Vec<_>>());
    db.commit(tx).await.unwrap();
    let slots: Vec<i16> = sqlx::query_scalar("SELECT slot FROM semel.outbox ORDER BY id")
        .fetch_all(db.pool())
        .await
        .unwrap();
    let written = [from_rust, one, arrays, json].concat();
    assert_eq!(
        slots,
        written.iter().map(|it| it.slot() as i16).collect::<Vec<_>>()
    );
    assert_eq!(events(&db).await, written);
}

fn headers(event: &Event) -> Option<String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let pairs: Vec<String> = event
        .headers
        .iter()
        .map(|(name, value)| format!(r#"["{name}","{}"]"#, text(value)))
        .collect();
    (!pairs.is_empty()).then(|| format!("[{}]", pairs.join(",")))
}

/// Ids that the database makes are UUIDv7 of now, and no two are alike.
#[tokio::test]
async fn ids_that_the_database_makes_grow() {
    let (_lent, db) = fresh().await;
    let ids: Vec<Uuid> = sqlx::query_scalar(
        "SELECT semel.enqueue_many(ARRAY['t'], ARRAY['t'], data => array_fill('x'::bytea, ARRAY[500]))",
    )
    .fetch_all(db.pool())
    .await
    .unwrap();
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 500);
    assert!(
        ids.iter()
            .all(|id| id.get_version_num() == 7 && id.get_variant() == uuid::Variant::RFC4122)
    );
    let ms = |id: &Uuid| id.as_u128() >> 80;
    assert!(ids.is_sorted_by_key(ms));
    assert!(ms(&uuid_v7(&SystemClock)) - ms(&ids[0]) < 60_000);
}

/// The same id twice is refused in every way to write, or passed over where that was asked for.
#[tokio::test]
async fn the_same_id_twice_is_refused_or_passed_over_by_choice() {
    let (_lent, db) = fresh().await;
    const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";
    let one = |repeated: &str| {
        format!(
            "SELECT semel.enqueue('orders', 'placed', event_id => '{ID}', repeated => '{repeated}')::text"
        )
    };
    let run = |sql: String| {
        let db = db.clone();
        async move {
            let sql = sqlx::AssertSqlSafe(sql);
            sqlx::query_scalar::<_, String>(sql).fetch_all(db.pool()).await
        }
    };
    assert_eq!(run(one("refuse")).await.unwrap(), [ID]);
    for sql in [
        one("refuse"),
        format!("SELECT semel.enqueue_many(ARRAY['o'], ARRAY['p'], event_id => ARRAY['{ID}'::uuid])::text"),
        format!(r#"SELECT semel.enqueue_many('[{{"topic": "o", "type": "p", "event_id": "{ID}"}}]')::text"#),
        format!("INSERT INTO semel.outbox (topic, type, event_id) VALUES ('o', 'p', '{ID}')"),
    ] {
        let error = run(sql.clone()).await.unwrap_err();
        let error = error.as_database_error().unwrap();
        let constraint = error.constraint().unwrap_or_default();
        assert_eq!(
            (error.code().as_deref(), constraint),
            (Some("23505"), "outbox_event_id_is_new"),
            "{sql}"
        );
    }
    assert_eq!(run(one("ignore")).await.unwrap(), [ID]);
    let new = run(format!(
        "SELECT semel.enqueue_many(ARRAY['o'], ARRAY['p'], event_id => ARRAY['{ID}', gen_random_uuid()::text]::uuid[],
           repeated => 'ignore')::text"
    ))
    .await
    .unwrap();
    assert!(new.len() == 1 && new[0] != ID, "{new:?}");
    let mut tx = db.begin().await.unwrap();
    let again = Event::new(ID.parse().unwrap(), "orders", "placed");
    let error = tx::enqueue(&mut tx, &again).await.unwrap_err();
    assert_eq!(error.code(), EVENT_REPEATED);
    assert!(error.to_string().contains(ID), "{error}");
    tx.rollback().await.unwrap();
    assert_eq!(events(&db).await.len(), 2);
}

/// Arguments that cannot be meant are refused with what to do.
#[tokio::test]
async fn wrong_arguments_are_named() {
    let (_lent, db) = fresh().await;
    for (sql, named) in [
        (
            "semel.enqueue('t', 't', repeated => 'never')",
            "repeated is 'never'",
        ),
        (
            "semel.enqueue_many(ARRAY['t'], ARRAY['t'], repeated => 'never')",
            "repeated is 'never'",
        ),
        (
            "semel.enqueue_many(ARRAY['t', 't'], ARRAY['t', 't', 't'])",
            "one array has 2 entries, another 3",
        ),
        (r#"semel.enqueue_many('[{"topic": "t", "typ": "t"}]')"#, "'typ'"),
        (
            r#"semel.enqueue_many('[{"topic": "t", "type": "t", "data": {"a": 1}}]')"#,
            "data is no text",
        ),
        (
            r#"semel.enqueue_many('[{"topic": "t", "type": 7}]')"#,
            "type is no text",
        ),
    ] {
        let statement = sqlx::AssertSqlSafe(format!("SELECT {sql}"));
        let error = sqlx::query(statement).execute(db.pool()).await.unwrap_err();
        let error = error.as_database_error().unwrap();
        assert_eq!(error.code().as_deref(), Some("SM210"), "{sql}: {error}");
        assert!(error.message().contains(named), "{sql}: {error}");
    }
    // No events are no mistake.
    let none = "SELECT semel.enqueue_many('[]'), semel.enqueue_many('{}'::text[], '{}', data => '{}')";
    assert!(sqlx::query(none).fetch_all(db.pool()).await.unwrap().is_empty());
    let rows = sqlx::query("SELECT count(*) FROM semel.outbox")
        .fetch_one(db.pool())
        .await;
    assert_eq!(rows.unwrap().get::<i64, _>(0), 0);
}

/// Of one call some wait and some do not; the ids come back in order, and an id that is there already is refused and named, or
/// passed over.
#[tokio::test]
async fn some_events_of_a_call_wait_for_their_time() {
    let (_lent, db) = fresh().await;
    let ids: Vec<Uuid> = (0..3).map(|_| uuid_v7(&SystemClock)).collect();
    let many = "SELECT semel.enqueue_many(ARRAY['orders'], ARRAY['placed'], key => ARRAY['k']::bytea[], event_id => $1, \
                repeated => $2, not_before => ARRAY[now() - interval '1 minute', NULL, now() + interval '1 hour'])";
    let call = |repeated: &'static str, ids: Vec<Uuid>| {
        sqlx::query_scalar::<_, Uuid>(many)
            .bind(ids)
            .bind(repeated)
            .fetch_all(db.pool())
    };
    assert_eq!(call("refuse", ids.clone()).await.unwrap(), ids);
    assert_eq!(db.move_due("default", 10).await.unwrap().moved, 1);
    let sent: Vec<Uuid> = events(&db).await.iter().map(|event| event.id).collect();
    assert_eq!(sent, [ids[1], ids[0]], "the third waits");

    let fresh_id = uuid_v7(&SystemClock);
    let mixed = vec![ids[2], fresh_id, ids[0]];
    let refused = call("refuse", mixed.clone()).await.unwrap_err();
    let refused = refused.as_database_error().unwrap();
    assert_eq!(refused.code().as_deref(), Some("23505"));
    assert_eq!(call("ignore", mixed.clone()).await.unwrap(), [fresh_id]);
    let twice = vec![uuid_v7(&SystemClock); 3];
    assert_eq!(call("ignore", twice.clone()).await.unwrap(), twice[..1]);
    assert!(call("refuse", vec![uuid_v7(&SystemClock); 3]).await.is_err());
    let wrong = call("perhaps", mixed).await.unwrap_err();
    assert_eq!(
        wrong.as_database_error().unwrap().code().as_deref(),
        Some("SM210")
    );

    let json: Vec<Uuid> = sqlx::query_scalar(
        r#"SELECT semel.enqueue_many('[{"topic": "orders", "type": "placed", "not_before": "2999-01-01T00:00:00Z"},
                                       {"topic": "orders", "type": "placed"}]'::jsonb)"#,
    )
    .fetch_all(db.pool())
    .await
    .unwrap();
    let waits: Vec<Uuid> =
        sqlx::query_scalar("SELECT event_id FROM semel.outbox_delayed WHERE due > '2998-01-01'")
            .fetch_all(db.pool())
            .await
            .unwrap();
    assert_eq!((json.len(), &waits[..]), (2, &json[..1]));
}

/// Also what a trigger of the user's has changed, and for each partition.
#[tokio::test]
async fn a_row_is_judged_as_the_users_triggers_leave_it() {
    let server = semel_testkit::servers::postgres();
    let db = Postgres::connect(Config::new(server.fresh_database()))
        .await
        .unwrap();
    db.migrate().await.unwrap();
    let trigger = "CREATE FUNCTION tidy() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN NEW.topic := replace(NEW.topic, 'shop', 'the shop'); NEW.key := 'k'; RETURN NEW; END $$;
        CREATE TRIGGER tidy BEFORE INSERT ON semel.outbox FOR EACH ROW EXECUTE FUNCTION tidy()";
    sqlx::raw_sql(trigger).execute(db.pool()).await.unwrap();
    for parted in [false, true] {
        if parted {
            let sql = "SELECT semel.partition_outbox()";
            sqlx::raw_sql(sql).execute(db.pool()).await.unwrap();
        }
        let refused = sqlx::raw_sql("SELECT semel.enqueue('shop', 't', key => 'other')")
            .execute(db.pool())
            .await
            .unwrap_err()
            .to_string();
        assert!(refused.contains("topic_is_1_to_249_of"), "{refused}");
        sqlx::raw_sql("SELECT semel.enqueue('orders', 't', key => 'other')")
            .execute(db.pool())
            .await
            .unwrap();
    }
    let slots: Vec<i16> = sqlx::query_scalar("SELECT slot FROM semel.outbox")
        .fetch_all(db.pool())
        .await
        .unwrap();
    let slot = event("k", "x").slot() as i16;
    assert_eq!(slots, [slot, slot]);
}
