//! A receiver of each kind, with a way to read back what arrived. Each bed is one place of a server that all share.

use async_trait::async_trait;

/// One arrival, repeats too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Arrived {
    pub(super) id: String,
    pub(super) key: String,
    /// The event's number, from its data.
    pub(super) n: u64,
}

impl Arrived {
    fn new(id: impl Into<String>, key: impl Into<String>, data: &[u8]) -> Self {
        let data: serde_json::Value = serde_json::from_slice(data).unwrap();
        Self {
            id: id.into(),
            key: key.into(),
            n: data["n"].as_u64().unwrap(),
        }
    }
}

/// Where a relay sends to.
#[async_trait]
pub(super) trait Bed: Sync {
    /// The relay's sink, as a line of its configuration.
    fn sink(&self) -> String;

    /// The topic to name in events.
    fn topic(&self) -> &str;

    /// Everything that has arrived so far, each key in the order of arrival.
    async fn arrived(&self) -> Vec<Arrived>;

    /// Whether what was sent is sent again after a death.
    fn repeats(&self) -> bool {
        true
    }
}

pub(super) struct Webhook(crate::receiver::Receiver);

impl Webhook {
    pub(super) async fn new() -> Self {
        Self(crate::receiver::Receiver::start().await)
    }
}

#[async_trait]
impl Bed for Webhook {
    fn sink(&self) -> String {
        format!("sink.webhook.url = \"{}\"", self.0.url("/events"))
    }

    fn topic(&self) -> &str {
        "orders"
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let seen = self.0.seen();
        let read = |it: &crate::receiver::Seen| {
            Arrived::new(it.header("ce-id"), it.header("ce-partitionkey"), &it.body)
        };
        seen.iter().map(read).collect()
    }
}

#[cfg(feature = "kafka")]
pub(super) struct Kafka {
    server: &'static semel_testkit::servers::KafkaServer,
    topic: String,
}

#[cfg(feature = "kafka")]
impl Kafka {
    pub(super) async fn new() -> Self {
        let server = semel_testkit::servers::kafka();
        let topic = server.fresh_topic(2);
        Self { server, topic }
    }
}

#[cfg(feature = "kafka")]
#[async_trait]
impl Bed for Kafka {
    fn sink(&self) -> String {
        format!("sink.kafka.brokers = [\"{}\"]", self.server.bootstrap())
    }

    fn topic(&self) -> &str {
        &self.topic
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let records = self.server.records(&self.topic);
        let read = |it: &semel_testkit::servers::KafkaRecord| {
            let (id, key) = (it.header("ce_id").unwrap(), it.key.as_deref().unwrap());
            Arrived::new(text(id), text(key), it.value.as_deref().unwrap())
        };
        records.iter().map(read).collect()
    }
}

/// Kafka in transactions: what readers of committed records see.
#[cfg(feature = "kafka")]
pub(super) struct KafkaInTransactions {
    kafka: Kafka,
    name: String,
}

#[cfg(feature = "kafka")]
impl KafkaInTransactions {
    pub(super) async fn new() -> Self {
        let kafka = Kafka::new().await;
        let name = kafka.server.fresh_name("shop");
        Self { kafka, name }
    }
}

#[cfg(feature = "kafka")]
#[async_trait]
impl Bed for KafkaInTransactions {
    fn sink(&self) -> String {
        format!(
            "{}\nsink.kafka.mode = \"transactional\"\nsink.kafka.name = \"{}\"\nsink.kafka.cursor_replication = 1",
            self.kafka.sink(),
            self.name
        )
    }

    fn topic(&self) -> &str {
        self.kafka.topic()
    }

    async fn arrived(&self) -> Vec<Arrived> {
        // A record's data is told by one that lies there under its id, committed or not.
        let all = self.kafka.arrived().await;
        let config = semel_kafka::ArrivalsConfig::new(self.kafka.server.bootstrap(), self.topic());
        let reading = tokio::task::spawn_blocking(move || {
            let mut ids = Vec::new();
            let read = semel_kafka::read_arrivals(&config, |record| ids.push(record.id.unwrap()));
            read.map(|_| ids)
        });
        let ids = reading.await.unwrap().unwrap();
        let of = |id: &uuid::Uuid| all.iter().find(|it| it.id == id.to_string()).cloned();
        ids.iter().filter_map(of).collect()
    }

    fn repeats(&self) -> bool {
        false
    }
}

#[cfg(feature = "rabbitmq")]
pub(super) struct Rabbitmq {
    url: String,
    queue: String,
    _connection: lapin::Connection,
    channel: lapin::Channel,
    /// A queue gives each message once.
    taken: tokio::sync::Mutex<Vec<Arrived>>,
}

#[cfg(feature = "rabbitmq")]
impl Rabbitmq {
    pub(super) async fn new() -> Self {
        use lapin::options::QueueDeclareOptions;
        let server = semel_testkit::servers::rabbitmq();
        let (url, queue) = (server.url(), server.fresh_name("orders"));
        let properties = lapin::ConnectionProperties::default();
        let connection = lapin::Connection::connect(&url, properties).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let (options, none) = (
            QueueDeclareOptions::durable(),
            lapin::types::FieldTable::default(),
        );
        channel
            .queue_declare(queue.as_str().into(), options, none)
            .await
            .unwrap();
        Self {
            url,
            queue,
            _connection: connection,
            channel,
            taken: tokio::sync::Mutex::default(),
        }
    }
}

#[cfg(feature = "rabbitmq")]
#[async_trait]
impl Bed for Rabbitmq {
    fn sink(&self) -> String {
        format!(
            "sink.rabbitmq = {{ url = \"{}\", routing_key = \"{{topic}}\" }}",
            self.url
        )
    }

    fn topic(&self) -> &str {
        &self.queue
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let options = lapin::options::BasicGetOptions { no_ack: true };
        let mut taken = self.taken.lock().await;
        while let Some(message) = self
            .channel
            .basic_get(self.queue.as_str().into(), options)
            .await
            .unwrap()
        {
            let properties = &message.delivery.properties;
            let id = properties.message_id().as_ref().unwrap().as_str().to_owned();
            let headers = properties.headers().as_ref().unwrap().inner();
            let key = match &headers["cloudEvents:partitionkey"] {
                lapin::types::AMQPValue::LongString(text) => text.to_string(),
                other => panic!("{other:?}"),
            };
            taken.push(Arrived::new(id, key, &message.delivery.data));
        }
        taken.clone()
    }
}

#[cfg(feature = "nats")]
pub(super) struct Nats {
    url: String,
    topic: String,
    stream: async_nats::jetstream::stream::Stream,
}

#[cfg(feature = "nats")]
impl Nats {
    pub(super) async fn new() -> Self {
        use async_nats::jetstream::{self, stream};
        let server = semel_testkit::servers::nats();
        let (url, topic) = (server.url(), server.fresh_name("orders"));
        let context = jetstream::new(async_nats::connect(&url).await.unwrap());
        let config = stream::Config {
            name: topic.clone(),
            subjects: vec![format!("shop.{topic}")],
            ..stream::Config::default()
        };
        let stream = context.create_stream(config).await.unwrap();
        Self { url, topic, stream }
    }
}

#[cfg(feature = "nats")]
#[async_trait]
impl Bed for Nats {
    fn sink(&self) -> String {
        format!(
            "sink.nats = {{ url = \"{}\", subject = \"shop.{{topic}}\" }}",
            self.url
        )
    }

    fn topic(&self) -> &str {
        &self.topic
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let last = self.stream.get_info().await.unwrap().state.last_sequence;
        let mut arrived = Vec::new();
        for sequence in 1..=last {
            let message = self.stream.get_raw_message(sequence).await.unwrap();
            let header = |name: &str| message.headers.get(name).unwrap().as_str();
            arrived.push(Arrived::new(
                header("ce-id"),
                header("ce-partitionkey"),
                &message.payload,
            ));
        }
        arrived
    }
}

#[cfg(feature = "redis")]
pub(super) struct Redis(String);

#[cfg(feature = "redis")]
impl Redis {
    pub(super) async fn new() -> Self {
        Self(semel_testkit::servers::redis().fresh_database())
    }
}

#[cfg(feature = "redis")]
#[async_trait]
impl Bed for Redis {
    fn sink(&self) -> String {
        format!("sink.redis.url = \"{}\"", self.0)
    }

    fn topic(&self) -> &str {
        "orders"
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let entries = crate::streams::entries(semel_testkit::servers::redis(), &self.0, "orders");
        let read = |it: &std::collections::BTreeMap<String, String>| {
            Arrived::new(&it["ce_id"], &it["ce_partitionkey"], it["data"].as_bytes())
        };
        entries.iter().map(read).collect()
    }
}
