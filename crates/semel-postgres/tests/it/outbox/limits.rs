//! Rust and the table's constraints agree on what can never be sent.

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use semel_core::host::uuid_v7;
use semel_core::inbox::headers;
use semel_core::{Event, SystemClock};

use super::fresh;

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-zA-Z0-9._-]{0,20}",
        1 => Just("x".repeat(249)),
        1 => Just("x".repeat(250)),
        1 => Just("x".repeat(255)),
        1 => Just("x".repeat(256)),
        1 => Just("..".to_owned()),
        1 => "[ -~]{0,5}",
        1 => "\\PC{0,5}",
        1 => "[\u{1}-\u{a0}]{1,3}",
        1 => Just("\u{e9}".repeat(128)),
    ]
}

fn events() -> impl Strategy<Value = Event> {
    let key = prop::option::of(prop_oneof![Just(0_usize), Just(1), Just(1_024), Just(1_025)]);
    let data = prop::option::of(prop_oneof![Just(0_usize), Just(900_000), Just(900_001)]);
    let header = || (text(), prop_oneof![4 => 0..9_usize, 1 => Just(16_384_usize)]);
    let headers =
        prop_oneof![4 => prop::collection::vec(header(), 0..3), 1 => prop::collection::vec(header(), 60..68)];
    (
        text(),
        text(),
        text(),
        text(),
        prop::option::of(text()),
        key,
        data,
        headers,
    )
        .prop_map(
            |(topic, kind, stream, source, content_type, key, data, headers)| Event {
                id: uuid_v7(&SystemClock),
                stream,
                topic,
                kind,
                source,
                key: key.map(|n| vec![b'k'; n].into()),
                content_type: content_type.clone(),
                headers: headers
                    .into_iter()
                    .map(|(name, n)| (name, vec![b'v'; n].into()))
                    .collect(),
                data: data.map(|n| vec![0; n].into()),
                traceparent: content_type,
            },
        )
}

/// Rust and the table's constraints agree on what is refused, so that no language writes what a relay cannot send.
#[tokio::test]
async fn the_constraints_and_the_check_agree() {
    let (_lent, db) = fresh().await;
    let mut runner = TestRunner::deterministic();
    for _ in 0..400 {
        let event = events().new_tree(&mut runner).unwrap().current();
        let pairs: Vec<_> = event
            .headers
            .iter()
            .map(|(n, v)| (n.clone(), Some(v.clone())))
            .collect();
        let written = sqlx::query(
            "INSERT INTO semel.outbox (topic, type, data, key, event_id, stream, content_type, source, headers, traceparent)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        )
        .bind(&event.topic)
        .bind(&event.kind)
        .bind(event.data.as_deref())
        .bind(event.key.as_deref())
        .bind(event.id)
        .bind(&event.stream)
        .bind(&event.content_type)
        .bind(&event.source)
        .bind((!pairs.is_empty()).then(|| String::from_utf8(headers::encode(&pairs)).unwrap()))
        .bind(&event.traceparent)
        .execute(db.pool())
        .await;
        let shown = Event {
            data: None,
            ..event.clone()
        };
        assert_eq!(
            written.is_ok(),
            event.check().is_ok(),
            "{shown:?}\n{written:?}\n{:?}",
            event.check()
        );
    }
}
