//! What is RabbitMQ's own.

use std::sync::Arc;
use std::time::Duration;

use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use semel_core::store::{OutboxRow, Sink as _, SinkError, SinkErrorClass};
use semel_core::{Event, Timestamp};
use semel_rabbitmq::{RabbitmqConfig, RabbitmqSink};
use semel_testkit::laws::sink::LIMIT;
use semel_testkit::servers::rabbitmq;
use uuid::Uuid;

fn row(topic: &str, n: u32, key: &str) -> Arc<OutboxRow> {
    let event = Event::new(Uuid::from_u128(u128::from(n)), topic, "test")
        .with_key(key.to_owned())
        .with_data("text/plain", n.to_string());
    Arc::new(OutboxRow {
        row: i64::from(n),
        created_at: Timestamp(0),
        batch_no: 0,
        event,
    })
}

async fn queue(arguments: FieldTable) -> String {
    let name = rabbitmq().fresh_name("q");
    let connection = Connection::connect(&rabbitmq().url(), ConnectionProperties::default())
        .await
        .unwrap();
    let channel = connection.create_channel().await.unwrap();
    let declared = channel.queue_declare(name.as_str().into(), QueueDeclareOptions::durable(), arguments);
    declared.await.unwrap();
    channel.close(200, "declared".into()).await.unwrap();
    name
}

fn classes(results: Vec<Result<(), SinkError>>) -> Vec<Option<SinkErrorClass>> {
    results
        .into_iter()
        .map(|result| result.err().map(|error| error.class))
        .collect()
}

/// The client hands returned messages out with whichever confirm comes next: the row that was returned is told so all the
/// same, and no other one.
#[tokio::test]
async fn of_many_rows_the_ones_without_a_queue_are_told_so() {
    let (there, missing) = (
        queue(FieldTable::default()).await,
        rabbitmq().fresh_name("missing"),
    );
    let sink = RabbitmqSink::new(RabbitmqConfig::new(rabbitmq().url())).unwrap();
    let lost = |n: u32| n % 7 == 3;
    let rows: Vec<_> = (0..300)
        .map(|n| row(if lost(n) { &missing } else { &there }, n, &format!("k{n}")))
        .collect();
    let results = classes(sink.publish_many(&rows, LIMIT).await);
    for (n, class) in (0..).zip(results) {
        let expected = lost(n).then_some(SinkErrorClass::Destination);
        assert_eq!(class, expected, "row {n}");
    }
}

/// More than the client is handed at once.
#[tokio::test]
async fn large_rows_leave_in_parts_and_each_has_its_answer() {
    let (there, missing) = (
        queue(FieldTable::default()).await,
        rabbitmq().fresh_name("missing"),
    );
    let sink = RabbitmqSink::new(RabbitmqConfig::new(rabbitmq().url())).unwrap();
    let rows: Vec<_> = (0..12)
        .map(|n| {
            let topic = if n == 7 { &missing } else { &there };
            let mut row = (*row(topic, n, &format!("k{n}"))).clone();
            row.event.data = Some(vec![b'x'; 300_000].into());
            Arc::new(row)
        })
        .collect();
    let results = classes(sink.publish_many(&rows, LIMIT).await);
    for (n, class) in results.into_iter().enumerate() {
        assert_eq!(class, (n == 7).then_some(SinkErrorClass::Destination), "row {n}");
    }
}

#[tokio::test]
async fn a_queue_that_is_full_and_refuses_is_away_and_costs_no_order() {
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(2));
    arguments.insert(
        "x-overflow".into(),
        AMQPValue::LongString("reject-publish".into()),
    );
    let name = queue(arguments).await;
    let sink = RabbitmqSink::new(RabbitmqConfig::new(rabbitmq().url())).unwrap();
    let rows: Vec<_> = (0..5).map(|n| row(&name, n, "k")).collect();
    let results = classes(sink.publish_many(&rows, LIMIT).await);
    let held_back = Some(SinkErrorClass::HeldBack);
    assert_eq!(
        results,
        [None, None, Some(SinkErrorClass::Away), held_back, held_back]
    );
}

#[tokio::test]
async fn an_exchange_that_is_missing_and_a_wrong_password_are_the_destination_s_fault() {
    let mut config = RabbitmqConfig::new(rabbitmq().url());
    config.exchange = rabbitmq().fresh_name("x");
    let sink = RabbitmqSink::new(config.clone()).unwrap();
    let rows = [row("t", 1, "a"), row("t", 2, "b")];
    let results = sink.publish_many(&rows, LIMIT).await;
    let error = results[0].clone().unwrap_err();
    assert!(error.message.contains(&config.exchange), "{error}");
    assert_eq!(classes(results), [Some(SinkErrorClass::Destination); 2]);

    config.url = config.url.replace("guest:guest", "guest:wrong");
    let sink = RabbitmqSink::new(config).unwrap();
    let error = sink.probe().await.unwrap_err();
    assert_eq!(error.class, SinkErrorClass::Destination, "{error}");
    assert!(!error.message.contains("wrong"), "{error}");
}

/// Without a channel for each of them, for which the time would not be enough.
#[tokio::test]
async fn a_missing_exchange_is_told_to_all_rows_at_once() {
    let mut config = RabbitmqConfig::new(rabbitmq().url());
    config.exchange = rabbitmq().fresh_name("x");
    let sink = RabbitmqSink::new(config).unwrap();
    let rows: Vec<_> = (0..2_000).map(|n| row("t", n, &format!("k{n}"))).collect();
    let results = sink.publish_many(&rows, Duration::from_secs(4)).await;
    let told = |result: &&Result<(), SinkError>| {
        result
            .as_ref()
            .is_err_and(|error| error.class == SinkErrorClass::Destination)
    };
    assert_eq!(results.iter().filter(told).count(), 2_000);
}

#[tokio::test]
async fn no_broker_at_all_is_away() {
    let sink = RabbitmqSink::new(RabbitmqConfig::new("amqp://guest:guest@127.0.0.1:1/%2f")).unwrap();
    assert_eq!(sink.probe().await.unwrap_err().class, SinkErrorClass::Away);
    let results = sink
        .publish_many(&[row("t", 1, "k"), row("t", 2, "k")], LIMIT)
        .await;
    assert_eq!(
        classes(results),
        [Some(SinkErrorClass::Away), Some(SinkErrorClass::HeldBack)]
    );
}
