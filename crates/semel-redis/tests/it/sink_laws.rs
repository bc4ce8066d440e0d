//! The sink of Redis Streams obeys the laws of sinks.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use semel_core::{Event, Sink};
use semel_redis::{RedisSink, RedisSinkConfig};
use semel_testkit::laws::sink::{Arrived, Line, Receiver, SinkBed};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::{RedisServer, redis};

use super::world::Raw;

/// Bytes that the sink takes.
const LARGE: usize = 100_000;

struct Bed {
    sink: RedisSink,
    proxy: Proxy,
    /// Past the proxy.
    url: String,
    /// A server of its own, where the law kills it.
    own: Option<Mutex<RedisServer>>,
}

impl Bed {
    async fn new(receiver: Receiver) -> Self {
        let own = (receiver == Receiver::Alone)
            .then(|| RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]));
        let (port, url) = match &own {
            Some(server) => (server.port(), server.url()),
            None => (redis().port(), redis().fresh_database()),
        };
        let proxy = Proxy::to_port(port).await.unwrap();
        let through = url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
        let mut config = RedisSinkConfig::new(through);
        config.create_streams = false;
        config.entry_bytes_max = LARGE;
        Self {
            sink: RedisSink::new(config).unwrap(),
            proxy,
            url,
            own: own.map(Mutex::new),
        }
    }
}

fn fresh_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// As the documentation of the sink says.
fn decode(stream: &str, fields: &[Vec<u8>]) -> Arrived {
    let value = |name: &str| {
        let pair = fields.chunks(2).find(|pair| pair[0] == name.as_bytes())?;
        Some(pair[1].clone())
    };
    let text = |name: &str| value(name).map(|bytes| String::from_utf8(bytes).unwrap());
    assert_eq!(text("ce_specversion").unwrap(), "1.0");
    assert_eq!(text("topic").unwrap(), stream);
    let id = text("ce_id").unwrap().parse().unwrap();
    let mut event = Event::new(id, stream, text("ce_type").unwrap());
    event.source = text("ce_source").unwrap();
    event.key = value("ce_partitionkey").map(Into::into);
    event.content_type = text("content-type");
    event.traceparent = text("traceparent");
    event.data = value("data").map(Into::into);
    event.headers = fields
        .chunks(2)
        .filter_map(|pair| {
            let name = pair[0].strip_prefix(b"h:")?;
            Some((String::from_utf8(name.to_vec()).unwrap(), pair[1].clone().into()))
        })
        .collect();
    Arrived {
        event,
        time: text("ce_time").unwrap(),
        sequence: text("ce_sequence"),
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
        let topic = fresh_name();
        self.make_topic(&topic).await;
        topic
    }

    async fn missing_topic(&self) -> Option<String> {
        Some(fresh_name())
    }

    async fn make_topic(&self, topic: &str) {
        let mut raw = Raw::open(&self.url).await;
        let _: () = raw
            .ask(&[b"XGROUP", b"CREATE", topic.as_bytes(), b"g", b"$", b"MKSTREAM"])
            .await;
    }

    async fn arrived(&self, topic: &str) -> Vec<Arrived> {
        let mut raw = Raw::open(&self.url).await;
        let found: Vec<(String, Vec<Vec<u8>>)> = raw.ask(&[b"XRANGE", topic.as_bytes(), b"-", b"+"]).await;
        found.iter().map(|(_, fields)| decode(topic, fields)).collect()
    }

    /// Redis refuses no entry for what is in it.
    fn refused(&self, _: Event) -> Option<Event> {
        None
    }

    fn oversized(&self, event: Event) -> Option<Event> {
        Some(event.with_data("text/plain", vec![b'x'; LARGE + 1]))
    }

    async fn kill(&self) {
        self.own.as_ref().unwrap().lock().unwrap().kill();
    }

    async fn start(&self) {
        self.own.as_ref().unwrap().lock().unwrap().restart();
    }
}

semel_testkit::sink_laws!(Bed::new);
