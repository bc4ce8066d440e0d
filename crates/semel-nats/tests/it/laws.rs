//! The sink obeys the laws of sinks.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use async_nats::HeaderMap;
use async_nats::jetstream::{self, consumer, stream};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use semel_core::store::is_replay_header;
use semel_core::{Event, Sink};
use semel_nats::{NatsConfig, NatsSink};
use semel_testkit::laws::sink::{Arrived, Line, Receiver, SinkBed};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::NatsServer;
use tokio::sync::{Mutex, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Bytes of a message that the streams of the laws take.
const LARGE: i32 = 100_000;

/// One server for all laws; those that kill it have it to themselves.
fn server() -> Arc<RwLock<NatsServer>> {
    static SERVER: OnceLock<Arc<RwLock<NatsServer>>> = OnceLock::new();
    Arc::clone(SERVER.get_or_init(|| Arc::new(RwLock::new(NatsServer::start()))))
}

enum Server {
    Shared(OwnedRwLockReadGuard<NatsServer>),
    Alone(Mutex<OwnedRwLockWriteGuard<NatsServer>>),
}

struct Bed {
    sink: NatsSink,
    proxy: Proxy,
    server: Server,
    url: String,
}

fn percent_decoded(text: &str) -> Bytes {
    let mut bytes = text.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let hex = [bytes.next().unwrap(), bytes.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&hex).unwrap(), 16).unwrap()
            }
            byte => byte,
        });
    }
    decoded.into()
}

/// As the front page of the crate says.
fn decode(headers: &HeaderMap, payload: Bytes) -> Arrived {
    let plain = |name: &str| headers.get(name).map(|value| value.as_str().to_owned());
    let coded =
        |name: &str| plain(name).map(|value| String::from_utf8(percent_decoded(&value).to_vec()).unwrap());
    assert_eq!(plain("ce-specversion").unwrap(), "1.0");
    let id = plain("ce-id").unwrap();
    let mut unique = match plain("ce-source").unwrap().as_str() {
        "/semel" => id.clone(),
        source => format!("{source}/{id}"),
    };
    if let Some(replay) = plain("semel-replay") {
        unique.push_str(&format!(";replay={replay}"));
    }
    assert_eq!(plain("Nats-Msg-Id").unwrap(), unique);
    let mut event = Event::new(
        id.parse().unwrap(),
        plain("semel-topic").unwrap(),
        coded("ce-type").unwrap(),
    );
    event.source = coded("ce-source").unwrap();
    event.key = plain("ce-partitionkey").map(|value| percent_decoded(&value));
    event.content_type = plain("content-type");
    event.traceparent = plain("traceparent");
    event.data = (plain("semel-tombstone").as_deref() != Some("1")).then_some(payload);
    let ours = |name: &str| {
        let name = name.to_ascii_lowercase();
        !is_replay_header(&name)
            && (["nats-", "ce-", "semel-"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
                || name == "content-type"
                || name == "traceparent")
    };
    let names = match plain("semel-headers") {
        Some(names) => names.split(',').map(ToOwned::to_owned).collect(),
        None => headers
            .iter()
            .map(|(name, _)| name.to_string())
            .filter(|name| !ours(name))
            .collect::<Vec<_>>(),
    };
    let mut next = HashMap::new();
    for name in names {
        let at = next.entry(name.clone()).or_insert(0);
        let value = headers.get_all(name.as_str()).nth(*at).unwrap();
        event.headers.push((name, percent_decoded(value.as_str())));
        *at += 1;
    }
    Arrived {
        event,
        time: plain("ce-time").unwrap(),
        sequence: plain("ce-sequence"),
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
        let mut config = NatsConfig::new(format!("nats://127.0.0.1:{}", proxy.port()));
        config.message_bytes_max = 200_000;
        Self {
            sink: NatsSink::new(config).unwrap(),
            proxy,
            server,
            url,
        }
    }

    async fn fresh_name(&self, prefix: &str) -> String {
        match &self.server {
            Server::Shared(server) => server.fresh_name(prefix),
            Server::Alone(server) => server.lock().await.fresh_name(prefix),
        }
    }

    async fn context(&self) -> jetstream::Context {
        jetstream::new(async_nats::connect(&self.url).await.unwrap())
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
        let stream = stream::Config {
            name: topic.to_owned(),
            subjects: vec![topic.to_owned()],
            max_message_size: LARGE,
            ..stream::Config::default()
        };
        self.context().await.create_stream(stream).await.unwrap();
    }

    async fn arrived(&self, topic: &str) -> Vec<Arrived> {
        let mut stream = self.context().await.get_stream(topic).await.unwrap();
        let count = stream.info().await.unwrap().state.messages;
        // By a consumer: the client's reader of single messages forgets repeated headers.
        let consumer = stream
            .create_consumer(consumer::pull::Config {
                ack_policy: consumer::AckPolicy::None,
                ..consumer::pull::Config::default()
            })
            .await
            .unwrap();
        let mut arrived = Vec::new();
        while (arrived.len() as u64) < count {
            let mut messages = consumer.fetch().max_messages(500).messages().await.unwrap();
            while let Some(message) = messages.next().await {
                let message = message.unwrap();
                let payload = message.payload.clone();
                arrived.push(decode(message.headers.as_ref().unwrap(), payload));
            }
        }
        arrived
    }

    fn refused(&self, event: Event) -> Option<Event> {
        Some(event.with_data("text/plain", vec![b'x'; 100_001]))
    }

    fn oversized(&self, event: Event) -> Option<Event> {
        Some(event.with_data("text/plain", vec![b'x'; 200_001]))
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
