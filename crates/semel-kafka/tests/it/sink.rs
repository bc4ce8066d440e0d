//! The sink on real Kafka.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::relay::RelayPolicy;
use semel_core::store::{OutboxRow, Sink as _, SinkError, SinkErrorClass};
use semel_core::{Event, Timestamp, limits};
use semel_kafka::{KafkaSink, KafkaSinkConfig};
use semel_testkit::servers::{KafkaServer, kafka};
use uuid::Uuid;

use crate::support::{LIMIT, Record, read_all};

fn row(topic: &str, n: u32, key: &str, data: impl Into<Bytes>) -> Arc<OutboxRow> {
    let event = Event::new(Uuid::from_u128(u128::from(n)), topic, "test")
        .with_key(key.to_owned())
        .with_data("text/plain", data);
    Arc::new(OutboxRow {
        row: i64::from(n),
        created_at: Timestamp(1_000_000),
        batch_no: 0,
        event,
    })
}

fn sink(bootstrap: &str) -> KafkaSink {
    KafkaSink::new(KafkaSinkConfig::new(bootstrap)).unwrap()
}

type Answer = Result<(), SinkErrorClass>;

fn classes(results: Vec<Result<(), SinkError>>) -> Vec<Answer> {
    results.into_iter().map(|r| r.map_err(|e| e.class)).collect()
}

async fn publish(sink: &KafkaSink, rows: &[Arc<OutboxRow>]) -> Vec<Answer> {
    classes(sink.publish_many(rows, LIMIT).await)
}

fn values(records: &[Record]) -> Vec<String> {
    records.iter().map(Record::text).collect()
}

#[tokio::test]
async fn a_record_is_a_cloud_event_byte_for_byte() {
    let topic = kafka().fresh_topic(4);
    let sink = sink(&kafka().bootstrap());
    let full = Event::new(Uuid::from_u128(7), &topic, "order.placed")
        .with_key(&b"\x00k"[..])
        .with_data("application/octet-stream", &b"\x00\xff"[..])
        .with_header("a", &b"\x01"[..])
        .with_header("a", &b""[..]);
    let full = Event {
        traceparent: Some("00-1-2-01".to_owned()),
        source: "/shop".to_owned(),
        ..full
    };
    let tombstone = Event::new(Uuid::from_u128(8), &topic, "order.gone").with_key(&b"\x00k"[..]);
    let empty = Event::new(Uuid::from_u128(9), &topic, "order.empty")
        .with_key(&b"\x00k"[..])
        .with_data("text/plain", "");
    let rows: Vec<_> = [full, tombstone, empty]
        .into_iter()
        .map(|event| {
            sink.check(&event).unwrap();
            Arc::new(OutboxRow {
                row: 1,
                created_at: Timestamp(1_000_000),
                batch_no: 0,
                event,
            })
        })
        .collect();
    assert_eq!(publish(&sink, &rows).await, [Ok(()), Ok(()), Ok(())]);

    let records = read_all(&kafka().bootstrap(), &topic);
    assert_eq!(records.len(), 3);
    let first = &records[0];
    assert_eq!(first.key.as_deref(), Some(&b"\x00k"[..]));
    assert_eq!(first.value.as_deref(), Some(&b"\x00\xff"[..]));
    let expected: &[(&str, &[u8])] = &[
        ("ce_specversion", b"1.0"),
        ("ce_id", b"00000000-0000-0000-0000-000000000007"),
        ("ce_source", b"/shop"),
        ("ce_type", b"order.placed"),
        ("ce_time", b"1970-01-01T00:00:01.000000Z"),
        ("ce_sequence", b"0000000000000000000-0000000000000000001"),
        ("content-type", b"application/octet-stream"),
        ("traceparent", b"00-1-2-01"),
        ("a", b"\x01"),
        ("a", b""),
    ];
    let headers: Vec<(&str, &[u8])> = first
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_deref().unwrap()))
        .collect();
    assert_eq!(headers, expected);
    assert_eq!(records[1].value, None, "no data is a tombstone");
    assert_eq!(records[2].value.as_deref(), Some(&b""[..]), "empty data is not");
}

/// The partitions are those of org.apache.kafka.clients.producer's default partitioner.
#[tokio::test]
async fn keys_go_where_java_sends_them() {
    let topic = kafka().fresh_topic(10);
    let sink = sink(&kafka().bootstrap());
    let rows: Vec<_> = ["21", "foobar", "abc", "kafka"]
        .iter()
        .zip(1..)
        .map(|(key, n)| row(&topic, n, key, *key))
        .collect();
    publish(&sink, &rows).await;
    for record in read_all(&kafka().bootstrap(), &topic) {
        let key = record.key.as_deref().unwrap();
        let expected = (murmur2(key) & 0x7fff_ffff) % 10;
        assert_eq!(record.partition, i32::try_from(expected).unwrap(), "{key:?}");
    }
}

/// `Utils.murmur2` of the Java client; its own test vectors are below.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut h = 0x9747_b28c ^ u32::try_from(data.len()).unwrap();
    let mut chunks = data.chunks_exact(4);
    for chunk in &mut chunks {
        let mut k = u32::from_le_bytes(chunk.try_into().unwrap()).wrapping_mul(M);
        k = (k ^ (k >> 24)).wrapping_mul(M);
        h = h.wrapping_mul(M) ^ k;
    }
    let rest = chunks.remainder();
    for (at, byte) in rest.iter().enumerate().rev() {
        h ^= u32::from(*byte) << (8 * at);
    }
    if !rest.is_empty() {
        h = h.wrapping_mul(M);
    }
    h = (h ^ (h >> 13)).wrapping_mul(M);
    h ^ (h >> 15)
}

#[test]
fn the_test_s_own_murmur2_agrees_with_java() {
    for (text, hash) in [
        ("21", -973_932_308),
        ("foobar", -790_332_482),
        ("abc", 479_470_107),
    ] {
        assert_eq!(murmur2(text.as_bytes()).cast_signed(), hash, "{text}");
    }
}

#[tokio::test]
async fn a_page_keeps_its_order_per_key() {
    let topic = kafka().fresh_topic(3);
    let sink = sink(&kafka().bootstrap());
    let rows: Vec<_> = (0..2_000)
        .map(|n| row(&topic, n, &format!("k{}", n % 7), n.to_string()))
        .collect();
    assert!(publish(&sink, &rows).await.iter().all(Result::is_ok));
    let records = read_all(&kafka().bootstrap(), &topic);
    assert_eq!(records.len(), rows.len());
    for key in 0..7_u32 {
        let of_key: Vec<u32> = records
            .iter()
            .filter(|r| r.key.as_deref() == Some(format!("k{key}").as_bytes()))
            .map(|r| r.text().parse().unwrap())
            .collect();
        assert!(of_key.is_sorted(), "{key}: {of_key:?}");
    }
}

/// Dekaf#3038: K1, K2, K3 of one key, K2 refused by the broker: K3 is not delivered before K2 is settled. All three
/// were refused as one batch first; only the one at fault is blamed.
#[tokio::test]
async fn nothing_overtakes_a_record_that_the_broker_refuses_and_only_that_one_is_blamed() {
    let topic = kafka().fresh_name("small");
    kafka().create_topic(&topic, 1, &[("max.message.bytes", "1000")]);
    let sink = sink(&kafka().bootstrap());
    let rows = [
        row(&topic, 1, "k", "1"),
        row(&topic, 2, "k", vec![b'x'; 5_000]),
        row(&topic, 3, "k", "3"),
    ];
    // The relay's part: what was not sent goes again, what is refused is set aside.
    let (mut left, mut blamed) = (rows.to_vec(), Vec::new());
    while !left.is_empty() {
        let results = publish(&sink, &left).await;
        let failed = results.iter().position(Result::is_err);
        if let Some(at) = failed {
            assert!(results[at..].iter().all(Result::is_err), "{results:?}");
            let arrived = values(&read_all(&kafka().bootstrap(), &topic));
            assert!(!arrived.contains(&"3".to_owned()), "it overtook");
        }
        left.drain(..failed.unwrap_or(results.len()));
        if failed.is_some_and(|at| results[at] == Err(SinkErrorClass::Message)) {
            blamed.push(left.remove(0).row);
        }
    }
    assert_eq!(blamed, [2]);
    assert_eq!(values(&read_all(&kafka().bootstrap(), &topic)), ["1", "3"]);
}

/// A topic whose limit is below the batch's: every record fits, their batch does not.
#[tokio::test]
async fn a_batch_too_large_for_its_topic_blames_nobody() {
    let topic = kafka().fresh_name("small");
    kafka().create_topic(&topic, 1, &[("max.message.bytes", "1000")]);
    let sink = sink(&kafka().bootstrap());
    let rows: Vec<_> = (0..10).map(|n| row(&topic, n, "k", vec![b'x'; 300])).collect();
    let results = publish(&sink, &rows).await;
    assert!(
        results.iter().all(|r| *r == Err(SinkErrorClass::HeldBack)),
        "{results:?}"
    );
    assert!(publish(&sink, &rows).await.iter().all(Result::is_ok));
    assert_eq!(read_all(&kafka().bootstrap(), &topic).len(), 10);
}

/// A page handed over before the caller has heard of the failure of the one before.
#[tokio::test]
async fn a_page_behind_a_failing_one_is_held_back() {
    let topic = kafka().fresh_name("small");
    kafka().create_topic(&topic, 1, &[("max.message.bytes", "1000")]);
    let sink = sink(&kafka().bootstrap());
    let refused = sink.publish_many(&[row(&topic, 1, "k", vec![b'x'; 5_000])], LIMIT);
    let behind = sink.publish_many(&[row(&topic, 2, "k", "2")], LIMIT);
    let (refused, behind) = tokio::join!(refused, behind);
    assert!(refused[0].is_err() && behind[0].is_err());
    assert!(read_all(&kafka().bootstrap(), &topic).is_empty());
    assert_eq!(publish(&sink, &[row(&topic, 2, "k", "2")]).await, [Ok(())]);
}

/// Answered at once it would come again at once, as long as the page before it takes.
#[tokio::test]
async fn a_page_that_is_held_back_is_answered_when_the_one_before_it_is_heard_of() {
    let topic = kafka().fresh_topic(1);
    let mut config = KafkaSinkConfig::new(kafka().bootstrap());
    let limit = ("message.max.bytes".to_owned(), "2000".to_owned());
    config.properties.insert(limit.0, limit.1);
    let sink = KafkaSink::new(config).unwrap();
    let refused = sink.publish_many(&[row(&topic, 1, "k", vec![b'x'; 5_000])], LIMIT);
    let mut behind = sink.publish_many(&[row(&topic, 2, "k", "2")], LIMIT);
    let mut further = sink.publish_many(&[row(&topic, 3, "k", "3")], LIMIT);
    let mut other = sink.publish_many(&[row(&topic, 4, "another", "4")], LIMIT);
    assert_eq!(classes((&mut other).await), [Ok(())]);
    assert!(futures_util::poll!(&mut behind).is_pending());
    assert!(futures_util::poll!(&mut further).is_pending());
    assert_eq!(classes(refused.await), [Err(SinkErrorClass::Message)]);
    assert_eq!(classes(behind.await), [Err(SinkErrorClass::HeldBack)]);
    assert_eq!(classes(further.await), [Err(SinkErrorClass::HeldBack)]);
    assert_eq!(publish(&sink, &[row(&topic, 2, "k", "2")]).await, [Ok(())]);
}

#[tokio::test]
async fn a_record_that_the_client_refuses_holds_back_the_rest_of_its_page_and_later_pages() {
    let topic = kafka().fresh_topic(1);
    let mut config = KafkaSinkConfig::new(kafka().bootstrap());
    config
        .properties
        .insert("message.max.bytes".to_owned(), "2000".to_owned());
    let sink = KafkaSink::new(config).unwrap();
    let rows = [
        row(&topic, 1, "k", "1"),
        row(&topic, 2, "k", vec![b'x'; 5_000]),
        row(&topic, 3, "k", "3"),
    ];
    let first = sink.publish_many(&rows, LIMIT);
    let second = sink.publish_many(&[row(&topic, 4, "k", "4")], LIMIT);
    let other_key = sink.publish_many(&[row(&topic, 5, "other", "5")], LIMIT);
    // A page waits for the one before it, which goes on only while somebody waits for that.
    let (first, second, other_key) = tokio::join!(first, second, other_key);
    assert_eq!(classes(second), [Err(SinkErrorClass::HeldBack)]);
    assert_eq!(classes(other_key), [Ok(())], "other keys go on");
    let held_back = Err(SinkErrorClass::HeldBack);
    assert_eq!(classes(first), [Ok(()), Err(SinkErrorClass::Message), held_back]);
    assert_eq!(publish(&sink, &rows[2..]).await, [Ok(())]);
    assert_eq!(values(&read_all(&kafka().bootstrap(), &topic)), ["1", "5", "3"]);
}

/// rust-rdkafka#468: a full queue lets later records pass.
#[tokio::test]
async fn a_full_queue_costs_no_order() {
    let topic = kafka().fresh_topic(1);
    let mut config = KafkaSinkConfig::new(kafka().bootstrap());
    config.in_flight_bytes_max = 32 << 10;
    let sink = KafkaSink::new(config).unwrap();
    let rows: Vec<_> = (0..300)
        .map(|n| row(&topic, n, "k", format!("{n:01000}")))
        .collect();
    let (mut left, mut full) = (&rows[..], 0);
    while !left.is_empty() {
        let results = publish(&sink, left).await;
        let sent = results.iter().position(Result::is_err).unwrap_or(results.len());
        if sent < results.len() {
            full += 1;
            assert_eq!(results[sent], Err(SinkErrorClass::Away));
            assert!(
                results[sent + 1..]
                    .iter()
                    .all(|r| *r == Err(SinkErrorClass::HeldBack))
            );
        }
        left = &left[sent..];
    }
    assert!(full > 0, "the queue never was full");
    let arrived: Vec<u32> = read_all(&kafka().bootstrap(), &topic)
        .iter()
        .map(|record| record.text().parse().unwrap())
        .collect();
    assert_eq!(arrived, (0..300).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_missing_topic_is_the_destination_s_fault_and_later_rows_wait() {
    let (missing, topic) = (kafka().fresh_name("missing"), kafka().fresh_topic(1));
    let sink = sink(&kafka().bootstrap());
    let rows = [row(&missing, 1, "k", "1"), row(&missing, 2, "k", "2")];
    // As long as a relay waits by default.
    let limit = Duration::from_millis(RelayPolicy::default().send_timeout_ms);
    let results = sink.publish_many(&rows, limit).await;
    let first = results[0].as_ref().unwrap_err();
    assert_eq!(first.class, SinkErrorClass::Destination, "{first}");
    assert!(first.message.contains(&missing), "{first}");
    assert!(results[1].is_err());
    assert_eq!(publish(&sink, &[row(&topic, 3, "k", "3")]).await, [Ok(())]);
}

/// The broker takes nobody's word for who he is, as it takes no wrong password's: librdkafka tells that to no record.
#[tokio::test]
async fn who_is_not_let_in_reads_why_and_that_it_will_not_pass_by_itself() {
    let topic = kafka().fresh_topic(1);
    let mut config = KafkaSinkConfig::new(kafka().bootstrap());
    for (name, value) in [
        ("security.protocol", "sasl_plaintext"),
        ("sasl.mechanisms", "PLAIN"),
        ("sasl.username", "u"),
        ("sasl.password", "p"),
    ] {
        config.properties.insert(name.to_owned(), value.to_owned());
    }
    let sink = KafkaSink::new(config).unwrap();
    let results = sink
        .publish_many(&[row(&topic, 1, "k", "1")], Duration::from_secs(3))
        .await;
    let probed = sink.probe().await.unwrap_err();
    for error in [results[0].as_ref().unwrap_err(), &probed] {
        assert_eq!(error.class, SinkErrorClass::Destination, "{error}");
        assert!(error.message.contains("SASL"), "{error}");
    }
}

#[tokio::test]
async fn a_broker_that_is_away_costs_no_attempt_and_no_order() {
    let server = KafkaServer::start();
    let topic = server.fresh_topic(1);
    let sink = sink(&server.bootstrap());
    let rows: Vec<_> = (0..20).map(|n| row(&topic, n, "k", n.to_string())).collect();
    assert_eq!(publish(&sink, &rows[..1]).await, [Ok(())]);

    server.pause();
    let results = classes(sink.publish_many(&rows[1..], Duration::from_millis(300)).await);
    assert!(
        results.iter().all(|r| *r == Err(SinkErrorClass::Away)),
        "{results:?}"
    );
    server.resume();

    // The relay sends the same rows again. What was on its way may have arrived: then it is there twice, with one id.
    sink.probe().await.unwrap();
    assert!(publish(&sink, &rows[1..]).await.iter().all(Result::is_ok));
    let mut seen = std::collections::HashSet::new();
    let once: Vec<String> = read_all(&server.bootstrap(), &topic)
        .into_iter()
        .filter(|record| seen.insert(record.header("ce_id").to_vec()))
        .map(|record| record.text())
        .collect();
    let expected: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    assert_eq!(once, expected);
}

/// Rule O17: a relay that lost its lease drops its calls. What still lies in the queue must not go out behind the records of
/// the next owner.
#[tokio::test]
async fn a_page_that_is_dropped_without_an_answer_sends_nothing_any_more() {
    let topic = kafka().fresh_topic(1);
    let mut config = KafkaSinkConfig::new(kafka().bootstrap());
    config.linger = Duration::from_secs(2);
    let sink = KafkaSink::new(config).unwrap();
    sink.probe().await.unwrap();
    drop(sink.publish_many(&[row(&topic, 1, "k", "1")], LIMIT));
    let mut begun = sink.publish_many(&[row(&topic, 2, "k", "2")], LIMIT);
    assert!(futures_util::poll!(&mut begun).is_pending());
    drop(begun);
    assert_eq!(publish(&sink, &[row(&topic, 3, "k", "3")]).await, [Ok(())]);
    assert_eq!(values(&read_all(&kafka().bootstrap(), &topic)), ["3"]);
}

#[tokio::test]
async fn no_broker_at_all_is_away() {
    let sink = sink("127.0.0.1:1");
    assert_eq!(sink.probe().await.unwrap_err().class, SinkErrorClass::Away);
    let results = sink
        .publish_many(&[row("t", 1, "k", "1")], Duration::from_millis(200))
        .await;
    assert_eq!(classes(results), [Err(SinkErrorClass::Away)]);
}

#[tokio::test]
async fn headers_that_would_stand_in_for_the_binding_s_are_refused_at_enqueue() {
    let sink = sink("127.0.0.1:1");
    for name in ["ce_id", "content-type", "traceparent"] {
        let event = Event::new(Uuid::from_u128(1), "t", "test").with_header(name, "x");
        assert!(sink.check(&event).is_err(), "{name}");
    }
}

/// A relay may add headers to an event that has as many as may be enqueued, and a document is longer than its data.
#[tokio::test]
async fn an_event_is_refused_for_the_bytes_of_its_record_and_the_setting_is_named() {
    let event = (0..limits::EVENT_HEADERS_MAX + 3).fold(
        Event::new(Uuid::from_u128(1), "t", "test").with_data("text/plain", vec![b'x'; 950_000]),
        |event, n| event.with_header(format!("h{n}"), "x"),
    );
    let mut config = KafkaSinkConfig::new("127.0.0.1:1");
    KafkaSink::new(config.clone()).unwrap().check(&event).unwrap();
    let longer = event.with_data("text/plain", vec![b'x'; 1_000_000]);
    let error = KafkaSink::new(config.clone())
        .unwrap()
        .check(&longer)
        .unwrap_err();
    assert!(error.to_string().contains("message.max.bytes"), "{error}");
    let property = ("message.max.bytes".to_owned(), "2000000".to_owned());
    config.properties.extend([property]);
    KafkaSink::new(config).unwrap().check(&longer).unwrap();
}
