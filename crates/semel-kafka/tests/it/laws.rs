//! The sink obeys the laws of sinks.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::{Event, Sink};
use semel_kafka::{KafkaSink, KafkaSinkConfig};
use semel_testkit::laws::sink::{Arrived, Line, Receiver, SinkBed};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::{KafkaServer, free_port};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::support::{Record, read_all};

/// A broker tells its clients where to come, so that it can only stand behind one proxy: one law at a time.
struct Broker {
    server: KafkaServer,
    advertised: u16,
}

fn broker() -> Arc<Mutex<Broker>> {
    static BROKER: OnceLock<Arc<Mutex<Broker>>> = OnceLock::new();
    let start = || {
        let advertised = free_port();
        let server = KafkaServer::start_behind(Some(advertised));
        Arc::new(Mutex::new(Broker { server, advertised }))
    };
    Arc::clone(BROKER.get_or_init(start))
}

/// A broker that one law has to itself, behind a proxy.
pub(crate) struct Behind {
    proxy: Proxy,
    broker: Mutex<OwnedMutexGuard<Broker>>,
}

/// Takes the broker.
pub(crate) async fn behind() -> Behind {
    let shared = tokio::task::spawn_blocking(broker).await.unwrap();
    let broker = shared.lock_owned().await;
    let to = SocketAddr::from(([127, 0, 0, 1], broker.server.port()));
    // The one of the law before gives its port back a moment after its end.
    let proxy = loop {
        match Proxy::at(broker.advertised, to).await {
            Ok(proxy) => break proxy,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse),
        }
        tokio::task::yield_now().await;
    };
    Behind {
        proxy,
        broker: Mutex::new(broker),
    }
}

/// Bytes of a record that the topics of the laws take.
pub(crate) const LARGE: usize = 300_000;

/// Settings of clients: what they send at most, and that they are soon back.
pub(crate) fn properties() -> BTreeMap<String, String> {
    [
        ("batch.size", "100000"),
        ("message.max.bytes", "500000"),
        ("reconnect.backoff.max.ms", "200"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

impl Behind {
    pub(crate) fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.proxy.port())
    }

    pub(crate) fn line(&self) -> &dyn Line {
        &self.proxy
    }

    pub(crate) async fn fresh_name(&self, prefix: &str) -> String {
        self.broker.lock().await.server.fresh_name(prefix)
    }

    pub(crate) async fn topic(&self) -> String {
        let broker = self.broker.lock().await;
        let topic = broker.server.fresh_name("law");
        let max = LARGE.to_string();
        broker
            .server
            .create_topic(&topic, 3, &[("max.message.bytes", &max)]);
        topic
    }

    /// What a reader of committed records sees.
    pub(crate) async fn read(&self, topic: &str) -> Vec<Arrived> {
        let (bootstrap, name) = (self.bootstrap(), topic.to_owned());
        let records = tokio::task::spawn_blocking(move || read_all(&bootstrap, &name))
            .await
            .unwrap();
        records.iter().map(|record| decode(topic, record)).collect()
    }
}

struct Bed {
    sink: KafkaSink,
    behind: Behind,
}

impl Bed {
    async fn new(_: Receiver) -> Self {
        let behind = behind().await;
        let mut config = KafkaSinkConfig::new(behind.bootstrap());
        config.properties.extend(properties());
        Self {
            sink: KafkaSink::new(config).unwrap(),
            behind,
        }
    }
}

fn decode(topic: &str, record: &Record) -> Arrived {
    let text = |name: &str| String::from_utf8(record.header(name).to_vec()).unwrap();
    let optional = |name: &str| {
        let found = record.headers.iter().any(|(found, _)| found == name);
        found.then(|| text(name))
    };
    assert_eq!(text("ce_specversion"), "1.0");
    let own = |name: &str| !(name.starts_with("ce_") || name == "content-type" || name == "traceparent");
    let mut event = Event::new(text("ce_id").parse().unwrap(), topic, text("ce_type"));
    event.source = text("ce_source");
    event.key = record.key.clone().map(Bytes::from);
    event.data = record.value.clone().map(Bytes::from);
    event.content_type = optional("content-type");
    event.traceparent = optional("traceparent");
    event.headers = record
        .headers
        .iter()
        .filter(|(name, _)| own(name))
        .map(|(name, value)| (name.clone(), Bytes::from(value.clone().unwrap())))
        .collect();
    Arrived {
        event,
        time: text("ce_time"),
        sequence: optional("ce_sequence"),
    }
}

#[async_trait]
impl SinkBed for Bed {
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }

    fn line(&self) -> &dyn Line {
        self.behind.line()
    }

    async fn topic(&self) -> String {
        self.behind.topic().await
    }

    async fn missing_topic(&self) -> Option<String> {
        Some(self.behind.fresh_name("missing").await)
    }

    async fn make_topic(&self, topic: &str) {
        self.behind.broker.lock().await.server.create_topic(topic, 1, &[]);
    }

    async fn arrived(&self, topic: &str) -> Vec<Arrived> {
        self.behind.read(topic).await
    }

    fn refused(&self, event: Event) -> Option<Event> {
        Some(event.with_data("text/plain", vec![b'x'; LARGE + 1]))
    }

    fn oversized(&self, event: Event) -> Option<Event> {
        // More than the client sends.
        Some(event.with_data("text/plain", vec![b'x'; 500_001]))
    }

    async fn kill(&self) {
        self.behind.broker.lock().await.server.kill();
    }

    async fn start(&self) {
        self.behind.broker.lock().await.server.restart();
    }
}

semel_testkit::sink_laws!(Bed::new);
