//! SQLite to RabbitMQ and to NATS JetStream.

use std::collections::VecDeque;
use std::future::IntoFuture as _;
use std::sync::Arc;
use std::time::Instant;

use async_nats::jetstream::{self, stream};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use semel_core::Sink;
use semel_core::limits::BATCH_ITEMS_MAX;
use semel_nats::{NatsConfig, NatsSink};
use semel_outbox::RelayConfig;
use semel_rabbitmq::{RabbitmqConfig, RabbitmqSink};
use semel_sqlite::Sqlite;
use semel_testkit::servers::{nats, rabbitmq};

use super::{Everything, attributes, events, relay, rows_of, sample, sink_alone};
use crate::Plan;
use crate::harness::{Sample, Table};

/// Messages on their way, by the sink and by the bare publisher.
const IN_FLIGHT: usize = 2_000;

/// Rows of one call, as a relay makes them.
const CALL: usize = 500;

pub(super) async fn run(plan: Plan, only: Option<&str>) {
    let rows = plan.rows.div_ceil(2);
    Table::new(
        "SQLite to RabbitMQ, a durable queue, confirms and mandatory",
        "rows",
    )
    .contender("limit: the same bodies published by a bare client", || {
        bare_rabbitmq(rows, false)
    })
    .contender("bare client, all attributes of an event", || {
        bare_rabbitmq(rows, true)
    })
    .contender("the sink alone, from memory", || async move {
        let queue = queue().await;
        sink_alone(&rabbitmq_sink(), events(rows, &queue), CALL).await
    })
    .contender("relay", || async move {
        let queue = queue().await;
        from_sqlite(rabbitmq_sink(), &queue, rows).await
    })
    .only(only)
    .measure(plan.rounds)
    .await;
    Table::new(
        "SQLite to NATS JetStream, a file stream, each publish acknowledged",
        "rows",
    )
    .contender("limit: the same bodies published by a bare client", || {
        bare_nats(rows, false)
    })
    .contender("bare client, all attributes of an event", || {
        bare_nats(rows, true)
    })
    .contender("the sink alone, from memory", || async move {
        let subject = subject().await;
        sink_alone(&nats_sink(), events(rows, &subject), CALL).await
    })
    .contender("relay", || async move {
        let subject = subject().await;
        from_sqlite(nats_sink(), &subject, rows).await
    })
    .contender("relay into a sink that takes everything at once", || {
        from_sqlite(Everything, "orders", rows)
    })
    .only(only)
    .measure(plan.rounds)
    .await;
}

async fn from_sqlite(sink: impl Sink, topic: &str, rows: u32) -> Sample {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(semel_sqlite::Config::new(dir.path().join("shop.db")))
        .await
        .unwrap();
    store.migrate().await.unwrap();
    for events in events(rows, topic).chunks(BATCH_ITEMS_MAX) {
        let mut tx = store.begin().await.unwrap();
        semel_sqlite::tx::enqueue_many(&mut tx, events).await.unwrap();
        store.commit(tx).await.unwrap();
    }
    relay(Arc::new(store), sink, rows, RelayConfig::default()).await
}

fn rabbitmq_sink() -> RabbitmqSink {
    RabbitmqSink::new(RabbitmqConfig::new(rabbitmq().url())).unwrap()
}

async fn channel() -> (Connection, Channel) {
    let connection = Connection::connect(&rabbitmq().url(), ConnectionProperties::default())
        .await
        .unwrap();
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}

async fn queue() -> String {
    let (_connection, channel) = channel().await;
    let name = rabbitmq().fresh_name("bench");
    let options = QueueDeclareOptions::durable();
    channel
        .queue_declare(name.as_str().into(), options, FieldTable::default())
        .await
        .unwrap();
    name
}

async fn bare_rabbitmq(rows: u32, whole: bool) -> Sample {
    let queue = queue().await;
    let (_connection, channel) = channel().await;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .unwrap();
    let all = rows_of(events(rows, &queue));
    let options = BasicPublishOptions {
        mandatory: true,
        ..BasicPublishOptions::default()
    };
    let begun = Instant::now();
    let mut on_their_way = VecDeque::new();
    for row in &all {
        if on_their_way.len() == IN_FLIGHT {
            confirmed(on_their_way.pop_front()).await;
        }
        let event = &row.event;
        let mut properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_message_id(event.id.to_string().into());
        if whole {
            let mut headers = FieldTable::default();
            for (name, value) in attributes(row) {
                headers.insert(name.into(), AMQPValue::LongString(value.into()));
            }
            properties = properties
                .with_type(event.kind.as_str().into())
                .with_timestamp(1_796_083_200)
                .with_headers(headers);
        }
        let data = event.data.as_deref().unwrap_or_default();
        let sent = channel.basic_publish("".into(), queue.as_str().into(), options, data, properties);
        on_their_way.push_back(sent.await.unwrap());
    }
    while let Some(confirm) = on_their_way.pop_front() {
        confirmed(Some(confirm)).await;
    }
    sample(rows, begun)
}

async fn confirmed(confirm: Option<lapin::PublisherConfirm>) {
    if let Some(confirm) = confirm {
        assert_eq!(confirm.await.unwrap(), lapin::Confirmation::Ack(None));
    }
}

fn nats_sink() -> NatsSink {
    NatsSink::new(NatsConfig::new(nats().url())).unwrap()
}

async fn subject() -> String {
    let name = nats().fresh_name("bench");
    let context = jetstream::new(async_nats::connect(nats().url()).await.unwrap());
    let stream = stream::Config {
        name: name.clone(),
        subjects: vec![name.clone()],
        ..stream::Config::default()
    };
    context.create_stream(stream).await.unwrap();
    name
}

async fn bare_nats(rows: u32, whole: bool) -> Sample {
    let subject = subject().await;
    let context = jetstream::new(async_nats::connect(nats().url()).await.unwrap());
    let all = rows_of(events(rows, &subject));
    let begun = Instant::now();
    let mut on_their_way = VecDeque::new();
    for row in &all {
        let event = &row.event;
        if on_their_way.len() == IN_FLIGHT
            && let Some(oldest) = on_their_way.pop_front()
        {
            jetstream::context::PublishAckFuture::into_future(oldest)
                .await
                .unwrap();
        }
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Nats-Msg-Id", event.id.to_string());
        if whole {
            for (name, value) in attributes(row) {
                headers.insert(name, value);
            }
        }
        let data = event.data.clone().unwrap_or_default();
        let sent = context.publish_with_headers(subject.clone(), headers, data);
        on_their_way.push_back(sent.await.unwrap());
    }
    for acknowledgement in on_their_way {
        acknowledgement.await.unwrap();
    }
    sample(rows, begun)
}
