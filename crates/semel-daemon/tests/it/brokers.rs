//! From an outbox in SQLite to RabbitMQ and to NATS, through the daemon.

use semel_core::host::uuid_v7;
use semel_core::{Event, SystemClock};
use semel_sqlite::Sqlite;

use super::daemon::{Daemon, Folder, run, texts, until};

/// A folder whose relay has this sink, and gives a row up at its first refusal.
fn folder(sink: &str) -> Folder {
    Folder::new(&format!(
        "[store]\nurl = \"sqlite:shop.db\"\n[[relay]]\nname = \"orders\"\nattempts_max = 1\npoison = \"skip\"\n\
         retry_cap_ms = 200\nsend_timeout_ms = 2000\nsink.{sink}\n"
    ))
}

async fn enqueue(db: &Sqlite, topic: &str, from: usize, to: usize) {
    for n in from..to {
        let event = Event::new(uuid_v7(&SystemClock), topic, "order.placed")
            .with_key(format!("k{}", n % 3))
            .with_data("application/json", format!("{{\"n\":{n}}}"));
        let mut tx = db.begin().await.unwrap();
        semel_sqlite::tx::enqueue(&mut tx, &event).await.unwrap();
        db.commit(tx).await.unwrap();
    }
}

async fn count(daemon: &Daemon, what: &str) -> Option<f64> {
    daemon
        .metric(&format!(
            "semel_relay_{what}_total{{relay=\"orders\",stream=\"default\"}}"
        ))
        .await
}

fn check(folder: &Folder) -> (String, i32) {
    let (stdout, _, code) = texts(&run(folder.path(), &["check"]));
    (stdout, code)
}

/// Events before, during and after an outage: all are acknowledged, none is given up.
async fn through_an_outage(folder: &Folder, topic: &str, stop: impl FnOnce(), start: impl FnOnce()) {
    let db = super::relays::shop(&folder.file("shop.db")).await;
    enqueue(&db, topic, 0, 20).await;
    let daemon = folder.start().await;
    until("all are acknowledged", async || {
        count(&daemon, "published").await == Some(20.0)
    })
    .await;
    daemon.until_ready().await;
    stop();
    enqueue(&db, topic, 20, 40).await;
    until("readyz says that it is away", async || {
        daemon.readyz().await.to_string().contains("the receiver is away")
    })
    .await;
    start();
    until("the rest is acknowledged", async || {
        count(&daemon, "published").await == Some(40.0)
    })
    .await;
    assert_eq!(
        count(&daemon, "parked").await,
        Some(0.0),
        "an outage spends no attempt"
    );
    daemon.until_ready().await;
    let (code, log) = daemon.stop().await;
    assert_eq!(code, 0, "{log}");
}

/// What a consumer that drops ids it has seen is left with, by key.
fn in_order(seen: Vec<(String, Vec<u8>)>) {
    let mut ids = std::collections::HashSet::new();
    let mut numbers: Vec<u64> = Vec::new();
    for (id, data) in seen {
        if ids.insert(id) {
            let data: serde_json::Value = serde_json::from_slice(&data).unwrap();
            numbers.push(data["n"].as_u64().unwrap());
        }
    }
    for key in 0..3 {
        let of_key: Vec<u64> = numbers.iter().copied().filter(|n| n % 3 == key).collect();
        let expected: Vec<u64> = (0..40).filter(|n| n % 3 == key).collect();
        assert_eq!(of_key, expected);
    }
}

#[cfg(feature = "rabbitmq")]
mod rabbitmq {
    use lapin::options::{BasicAckOptions, BasicGetOptions, QueueDeclareOptions};
    use lapin::types::FieldTable;
    use lapin::{Connection, ConnectionProperties};
    use semel_testkit::servers::RabbitmqServer;

    use super::{check, folder, in_order, through_an_outage};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn events_reach_their_queue_through_an_outage_that_spends_no_attempt() {
        let server = std::sync::Mutex::new(RabbitmqServer::start());
        let (url, queue) = {
            let server = server.lock().unwrap();
            (server.url(), server.fresh_name("orders"))
        };
        let channel = async || {
            let connection = Connection::connect(&url, ConnectionProperties::default())
                .await
                .unwrap();
            let channel = connection.create_channel().await.unwrap();
            (connection, channel)
        };
        let (_connection, first) = channel().await;
        let options = QueueDeclareOptions::durable();
        first
            .queue_declare(queue.as_str().into(), options, FieldTable::default())
            .await
            .unwrap();

        // So that the queue is on disk before the server is killed.
        server.lock().unwrap().stop();
        server.lock().unwrap().restart();
        let folder = folder(&format!(
            "rabbitmq = {{ url = \"{url}\", routing_key = \"{{topic}}\" }}"
        ));
        let (stdout, code) = check(&folder);
        assert_eq!(code, 0, "{stdout}");
        assert!(
            stdout.contains("can be reached") && !stdout.contains("guest"),
            "{stdout}"
        );
        let stop = || server.lock().unwrap().kill();
        through_an_outage(&folder, &queue, stop, || server.lock().unwrap().restart()).await;

        let (_connection, reading) = channel().await;
        let mut seen = Vec::new();
        while let Some(message) = reading
            .basic_get(queue.as_str().into(), BasicGetOptions::default())
            .await
            .unwrap()
        {
            let id = message
                .delivery
                .properties
                .message_id()
                .as_ref()
                .unwrap()
                .as_str()
                .to_owned();
            seen.push((id, message.delivery.data.clone()));
            message.delivery.ack(BasicAckOptions::default()).await.unwrap();
        }
        in_order(seen);
    }

    #[test]
    fn a_broker_that_is_away_is_named_without_its_password() {
        let (stdout, code) = check(&folder("rabbitmq.url = \"amqp://shop:secret@127.0.0.1:1/v\""));
        assert_eq!(code, 1, "{stdout}");
        assert!(
            stdout.contains("bad\trelay orders\treceiver\tamqp://127.0.0.1:1/v"),
            "{stdout}"
        );
        assert!(!stdout.contains("secret"), "{stdout}");
    }
}

#[cfg(feature = "nats")]
mod nats {
    use async_nats::jetstream::{self, stream};
    use semel_testkit::servers::NatsServer;

    use super::{check, folder, in_order, through_an_outage};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn events_reach_their_stream_through_an_outage_that_spends_no_attempt() {
        let server = std::sync::Mutex::new(NatsServer::start());
        let (url, topic) = {
            let server = server.lock().unwrap();
            (server.url(), server.fresh_name("orders"))
        };
        let context = async || jetstream::new(async_nats::connect(&url).await.unwrap());
        let stream = stream::Config {
            name: topic.clone(),
            subjects: vec![format!("shop.{topic}")],
            ..stream::Config::default()
        };
        context().await.create_stream(stream).await.unwrap();

        let folder = folder(&format!(
            "nats = {{ url = \"{url}\", subject = \"shop.{{topic}}\" }}"
        ));
        let (stdout, code) = check(&folder);
        assert_eq!(code, 0, "{stdout}");
        assert!(stdout.contains("can be reached"), "{stdout}");
        let stop = || server.lock().unwrap().kill();
        through_an_outage(&folder, &topic, stop, || server.lock().unwrap().restart()).await;

        let mut stream = context().await.get_stream(&topic).await.unwrap();
        let last = stream.info().await.unwrap().state.last_sequence;
        let mut seen = Vec::new();
        for sequence in 1..=last {
            let message = stream.get_raw_message(sequence).await.unwrap();
            let id = message.headers.get("ce-id").unwrap().as_str().to_owned();
            seen.push((id, message.payload.to_vec()));
        }
        in_order(seen);
    }

    #[test]
    fn a_server_that_is_away_is_named_with_a_hint() {
        let (stdout, code) = check(&folder("nats.url = \"nats://127.0.0.1:1\""));
        assert_eq!(code, 1, "{stdout}");
        assert!(
            stdout.contains("bad\trelay orders\treceiver\tnats://127.0.0.1:1"),
            "{stdout}"
        );
        assert!(stdout.contains("-js"), "{stdout}");
    }
}
