//! A topic is read once, from its beginning to where it ended at the start.

use bytes::Bytes;
use rdkafka::producer::Producer as _;
use semel_core::ErrorKind;
use semel_core::store::KeptRow;
use semel_kafka::{ArrivalsConfig, ArrivalsRead, Arrived, read_arrivals};
use semel_testkit::servers::kafka;
use uuid::Uuid;

use crate::support::{LIMIT, asked, flush, producer, send};

async fn read(config: ArrivalsConfig) -> (ArrivalsRead, Vec<Arrived>) {
    let reading = tokio::task::spawn_blocking(move || {
        let mut arrived = Vec::new();
        let read = read_arrivals(&config, |record| arrived.push(record)).unwrap();
        (read, arrived)
    });
    reading.await.unwrap()
}

fn id(n: u128) -> String {
    Uuid::from_u128(n).to_string()
}

fn ids(arrived: &[Arrived]) -> Vec<u128> {
    arrived
        .iter()
        .map(|it| it.id.map_or(0, |id| id.as_u128()))
        .collect()
}

/// What was broken off is not there, what is open is told; a partition may end with a marker, or be empty.
#[tokio::test]
async fn committed_records_are_read_to_the_end_and_an_open_transaction_is_told() {
    let topic = kafka().fresh_topic(3);
    let bootstrap = kafka().bootstrap();
    let transactional = || {
        let id = kafka().fresh_name("tx");
        let producer = producer(&bootstrap, &[("transactional.id", id.as_str())]);
        asked(|| producer.init_transactions(LIMIT));
        producer.begin_transaction().unwrap();
        producer
    };
    let committed = transactional();
    send(&committed, &topic, 0, Some(&id(1)), "one");
    send(&committed, &topic, 0, Some(&id(2)), "two");
    flush(&committed);
    committed.commit_transaction(LIMIT).unwrap();
    let broken = transactional();
    send(&broken, &topic, 0, Some(&id(3)), "broken");
    flush(&broken);
    broken.abort_transaction(LIMIT).unwrap();
    let open = transactional();
    send(&open, &topic, 1, Some(&id(4)), "open");
    flush(&open);
    let plain = producer(&bootstrap, &[]);
    send(&plain, &topic, 1, None, "no id");
    send(&plain, &topic, 1, Some("no uuid"), "no uuid");
    flush(&plain);

    let config = ArrivalsConfig::new(&bootstrap, &topic);
    let (found, arrived) = read(config.clone()).await;
    assert_eq!(
        found,
        ArrivalsRead {
            records: 2,
            partitions: 3,
            open: vec![1]
        }
    );
    assert_eq!(ids(&arrived), [1, 2]);
    assert_eq!(
        arrived[0],
        Arrived {
            id: Some(Uuid::from_u128(1)),
            key: Some(Bytes::from("k")),
            sha256: Some(KeptRow::hash(Some(b"one"))),
        }
    );
    let uncommitted = ArrivalsConfig {
        uncommitted: true,
        ..config.clone()
    };
    let (found, arrived) = read(uncommitted).await;
    assert_eq!((found.records, found.open), (6, Vec::new()));
    let mut all = ids(&arrived);
    all.sort_unstable();
    assert_eq!(all, [0, 0, 1, 2, 3, 4]);

    open.commit_transaction(LIMIT).unwrap();
    let (found, arrived) = read(config).await;
    assert_eq!((found.records, found.open), (5, Vec::new()));
    assert!(ids(&arrived).contains(&4));
}

/// In structured mode the id is in the document.
#[tokio::test]
async fn an_id_in_a_document_is_found() {
    use rdkafka::message::{Header, OwnedHeaders};
    use rdkafka::producer::BaseRecord;

    let topic = kafka().fresh_topic(1);
    let plain = producer(&kafka().bootstrap(), &[]);
    let document = format!(
        r#"{{"specversion":"1.0","id":"{}","source":"/s","type":"t","data":{{}}}}"#,
        id(7)
    );
    let headers = OwnedHeaders::new().insert(Header {
        key: "content-type",
        value: Some("application/cloudevents+json; charset=utf-8"),
    });
    let record: BaseRecord<'_, str, str> = BaseRecord::to(&topic).payload(document.as_str()).headers(headers);
    plain.send(record).map_err(|(error, _)| error).unwrap();
    flush(&plain);
    let (_, arrived) = read(ArrivalsConfig::new(kafka().bootstrap(), &topic)).await;
    let expected = Arrived {
        id: Some(Uuid::from_u128(7)),
        key: None,
        sha256: None,
    };
    assert_eq!(arrived, [expected]);
}

#[tokio::test]
async fn a_missing_topic_and_a_broker_that_is_away_are_named() {
    let failed = async |config: ArrivalsConfig| {
        let reading = tokio::task::spawn_blocking(move || read_arrivals(&config, |_| {}));
        reading.await.unwrap().unwrap_err()
    };
    let missing = failed(ArrivalsConfig::new(kafka().bootstrap(), "no-such-topic")).await;
    assert_eq!(missing.kind(), ErrorKind::Invalid);
    assert!(
        missing.to_string().contains("no topic no-such-topic"),
        "{missing}"
    );
    let away = failed(ArrivalsConfig::new("127.0.0.1:1", "orders")).await;
    assert_eq!((away.kind(), away.code()), (ErrorKind::Unavailable, "SEM0270"));
    assert!(
        away.to_string().contains("no broker of 127.0.0.1:1 answers"),
        "{away}"
    );
}
