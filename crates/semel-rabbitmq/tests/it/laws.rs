//! The sink obeys the laws of sinks.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use lapin::message::BasicGetMessage;
use lapin::options::{BasicAckOptions, BasicGetOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties};
use semel_core::store::is_replay_header;
use semel_core::{Event, Sink};
use semel_rabbitmq::{RabbitmqConfig, RabbitmqSink};
use semel_testkit::laws::sink::{Arrived, Line, Receiver, SinkBed};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::{RABBITMQ_MESSAGE_BYTES_MAX, RabbitmqServer};
use tokio::sync::{Mutex, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// One server for all laws; those that kill it have it to themselves.
fn server() -> Arc<RwLock<RabbitmqServer>> {
    static SERVER: OnceLock<Arc<RwLock<RabbitmqServer>>> = OnceLock::new();
    Arc::clone(SERVER.get_or_init(|| Arc::new(RwLock::new(RabbitmqServer::start()))))
}

enum Server {
    Shared(OwnedRwLockReadGuard<RabbitmqServer>),
    Alone(Mutex<OwnedRwLockWriteGuard<RabbitmqServer>>),
}

struct Bed {
    sink: RabbitmqSink,
    proxy: Proxy,
    server: Server,
    url: String,
    /// What was taken from the queues.
    taken: Mutex<HashMap<String, Vec<Arrived>>>,
}

fn text(value: &AMQPValue) -> Bytes {
    match value {
        AMQPValue::LongString(text) => Bytes::copy_from_slice(text.as_bytes()),
        other => panic!("{other:?} is no long string"),
    }
}

/// As the front page of the crate says.
fn decode(message: &BasicGetMessage) -> Arrived {
    let properties = &message.delivery.properties;
    let headers = properties.headers().as_ref().unwrap().inner();
    let find = |name: &str| {
        headers
            .iter()
            .find(|(found, _)| found.as_str() == name)
            .map(|(_, value)| value)
    };
    let bytes = |name: &str| find(name).map(text);
    let string = |name: &str| bytes(name).map(|value| String::from_utf8(value.to_vec()).unwrap());
    assert_eq!(string("cloudEvents:specversion").unwrap(), "1.0");
    assert_eq!(*properties.delivery_mode(), Some(2), "persistent");
    let id = string("cloudEvents:id").unwrap();
    assert_eq!(properties.message_id().as_ref().unwrap().as_str(), id);
    let kind = string("cloudEvents:type").unwrap();
    assert_eq!(properties.kind().as_ref().unwrap().as_str(), kind);
    let mut event = Event::new(id.parse().unwrap(), string("semel-topic").unwrap(), kind);
    event.source = string("cloudEvents:source").unwrap();
    event.key = bytes("cloudEvents:partitionkey");
    event.traceparent = string("traceparent");
    event.content_type = properties
        .content_type()
        .as_ref()
        .map(|text| text.as_str().to_owned());
    let tombstone = find("semel-tombstone") == Some(&AMQPValue::Boolean(true));
    event.data = (!tombstone).then(|| Bytes::from(message.delivery.data.clone()));
    event.headers = match find("semel-headers") {
        Some(AMQPValue::FieldArray(all)) => all
            .as_slice()
            .chunks(2)
            .map(|pair| {
                (
                    String::from_utf8(text(&pair[0]).to_vec()).unwrap(),
                    text(&pair[1]),
                )
            })
            .collect(),
        Some(other) => panic!("{other:?}"),
        None => headers
            .iter()
            .map(|(name, value)| (name.as_str(), value))
            .filter(|(name, _)| {
                is_replay_header(name) || !name.starts_with("cloudEvents:") && !name.starts_with("semel-")
            })
            .filter(|(name, _)| *name != "traceparent")
            .map(|(name, value)| (name.to_owned(), text(value)))
            .collect(),
    };
    for (at, (name, value)) in event.headers.iter().enumerate() {
        let first = event.headers.iter().position(|(other, _)| other == name) == Some(at);
        assert!(
            !first || bytes(name).as_ref() == Some(value),
            "{name} stands under its own name"
        );
    }
    Arrived {
        event,
        time: string("cloudEvents:time").unwrap(),
        sequence: string("cloudEvents:sequence"),
    }
}

impl Bed {
    async fn new(receiver: Receiver) -> Self {
        let server = tokio::task::spawn_blocking(server).await.unwrap();
        let server = match receiver {
            Receiver::Shared => Server::Shared(server.read_owned().await),
            Receiver::Alone => Server::Alone(Mutex::new(server.write_owned().await)),
        };
        let (port, url) = match &server {
            Server::Shared(server) => (server.port(), server.url()),
            Server::Alone(server) => {
                let server = server.lock().await;
                (server.port(), server.url())
            }
        };
        let proxy = Proxy::to_port(port).await.unwrap();
        let mut config = RabbitmqConfig::new(format!("amqp://guest:guest@127.0.0.1:{}/%2f", proxy.port()));
        config.message_bytes_max = 800_000;
        Self {
            sink: RabbitmqSink::new(config).unwrap(),
            proxy,
            server,
            url,
            taken: Mutex::default(),
        }
    }

    async fn fresh_name(&self, prefix: &str) -> String {
        match &self.server {
            Server::Shared(server) => server.fresh_name(prefix),
            Server::Alone(server) => server.lock().await.fresh_name(prefix),
        }
    }

    async fn channel(&self) -> (Connection, Channel) {
        let connection = Connection::connect(&self.url, ConnectionProperties::default())
            .await
            .unwrap();
        let channel = connection.create_channel().await.unwrap();
        (connection, channel)
    }
}

#[async_trait]
impl SinkBed for Bed {
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }

    fn line(&self) -> &dyn Line {
        &self.proxy
    }

    async fn topic(&self) -> String {
        let topic = self.fresh_name("law").await;
        self.make_topic(&topic).await;
        topic
    }

    async fn missing_topic(&self) -> Option<String> {
        Some(self.fresh_name("missing").await)
    }

    async fn make_topic(&self, topic: &str) {
        let (_connection, channel) = self.channel().await;
        let options = QueueDeclareOptions::durable();
        channel
            .queue_declare(topic.into(), options, FieldTable::default())
            .await
            .unwrap();
        if let Server::Alone(server) = &self.server {
            // So that the queue is on disk before the law kills the server.
            let mut server = server.lock().await;
            server.stop();
            server.restart();
        }
    }

    async fn arrived(&self, topic: &str) -> Vec<Arrived> {
        let (_connection, channel) = self.channel().await;
        let mut taken = self.taken.lock().await;
        let taken = taken.entry(topic.to_owned()).or_default();
        while let Some(message) = channel
            .basic_get(topic.into(), BasicGetOptions::default())
            .await
            .unwrap()
        {
            taken.push(decode(&message));
            message.delivery.ack(BasicAckOptions::default()).await.unwrap();
        }
        channel.close(200, "read".into()).await.unwrap();
        taken.clone()
    }

    fn refused(&self, event: Event) -> Option<Event> {
        Some(event.with_data("text/plain", vec![b'x'; RABBITMQ_MESSAGE_BYTES_MAX + 1]))
    }

    fn oversized(&self, event: Event) -> Option<Event> {
        Some(event.with_data("text/plain", vec![b'x'; 800_001]))
    }

    async fn kill(&self) {
        let Server::Alone(server) = &self.server else {
            panic!("others use it")
        };
        server.lock().await.kill();
    }

    async fn start(&self) {
        let Server::Alone(server) = &self.server else {
            panic!("others use it")
        };
        server.lock().await.restart();
    }
}

semel_testkit::sink_laws!(Bed::new);
