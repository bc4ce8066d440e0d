//! Brokers that speak TLS and want to know who comes: events arrive, and who is not let in reads why.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use semel_core::relay::{LogPlace, ShardId};
use semel_core::store::{LogSink as _, OutboxRow, Sink as _, SinkError, SinkErrorClass, TransactionEnd};
use semel_core::{ErrorKind, Event, Nonce, Timestamp};
use semel_kafka::{
    ArrivalsConfig, KafkaAccess, KafkaCertificate, KafkaLog, KafkaLogConfig, KafkaSasl, KafkaSink,
    KafkaSinkConfig, KafkaTls, Output, Processor, ProcessorConfig, SaslMechanism, read_arrivals,
};
use semel_testkit::certificates::Authority;
use semel_testkit::servers::{GuardedKafka, KafkaGuards};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{LIMIT, flush, producer, read_all, send, until};

const USER: &str = "shop";
const PASSWORD: &str = "open sesame";
/// How long a call may take that nobody answers.
const PATIENCE: Duration = Duration::from_secs(3);

/// The broker of these tests, with files for its clients.
struct World {
    kafka: GuardedKafka,
    ca: PathBuf,
    foreign_ca: PathBuf,
    client: KafkaCertificate,
    foreign_client: KafkaCertificate,
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let (authority, foreign) = (Authority::new(), Authority::new());
        let (certificate_pem, key_pem) = authority.issue("127.0.0.1");
        let kafka = GuardedKafka::start(&KafkaGuards {
            certificate_pem,
            key_pem,
            clients_ca_pem: authority.pem.clone(),
            user: USER.to_owned(),
            password: PASSWORD.to_owned(),
        });
        let folder = kafka.folder();
        let certificate = |of: &Authority, name: &str| {
            let (certificate, key) = of.issue(name);
            KafkaCertificate {
                cert_file: write(folder, &format!("{name}.pem"), &certificate),
                key_file: write(folder, &format!("{name}.key"), &key),
            }
        };
        World {
            client: certificate(&authority, "orders"),
            foreign_client: certificate(&foreign, "stranger"),
            ca: write(folder, "ca.pem", &authority.pem),
            foreign_ca: write(folder, "foreign.pem", &foreign.pem),
            kafka,
        }
    })
}

/// Starting the broker blocks, and is waited for beside the runtime.
async fn started() -> &'static World {
    tokio::task::spawn_blocking(world).await.unwrap()
}

impl World {
    fn tls(&self, client: Option<&KafkaCertificate>) -> Option<KafkaTls> {
        Some(KafkaTls {
            ca_file: Some(self.ca.clone()),
            client: client.cloned(),
        })
    }

    /// By SCRAM over TLS, as most clusters want it.
    fn usual(&self) -> KafkaAccess {
        KafkaAccess {
            tls: self.tls(None),
            sasl: sasl(SaslMechanism::ScramSha512, PASSWORD),
        }
    }
}

fn sasl(mechanism: SaslMechanism, password: &str) -> Option<KafkaSasl> {
    Some(KafkaSasl {
        mechanism,
        user: USER.to_owned(),
        password: password.to_owned(),
    })
}

fn at(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn row(topic: &str, n: u32) -> Arc<OutboxRow> {
    let event = Event::new(Uuid::from_u128(u128::from(n)), topic, "test")
        .with_key("k")
        .with_data("text/plain", n.to_string());
    Arc::new(OutboxRow {
        row: i64::from(n),
        created_at: Timestamp(1_000_000),
        batch_no: 0,
        event,
    })
}

fn sink(bootstrap: &str, access: &KafkaAccess) -> KafkaSink {
    KafkaSink::new(KafkaSinkConfig {
        access: access.clone(),
        ..KafkaSinkConfig::new(bootstrap)
    })
    .unwrap()
}

fn log(bootstrap: &str, access: &KafkaAccess, name: &str) -> KafkaLog {
    KafkaLog::new(KafkaLogConfig {
        access: access.clone(),
        cursor_partitions: 1,
        ..KafkaLogConfig::new(bootstrap, name)
    })
    .unwrap()
}

fn shard() -> ShardId {
    ShardId {
        stream: "default".to_owned(),
        index: 0,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_arrive_by_every_way_in() {
    let w = started().await;
    let topic = w.kafka.server.fresh_topic(1);
    let plain = |tls| KafkaAccess {
        tls,
        sasl: sasl(SaslMechanism::Plain, PASSWORD),
    };
    let certificate = KafkaAccess {
        tls: w.tls(Some(&w.client)),
        sasl: None,
    };
    let ways = [
        (w.kafka.sasl_tls, w.usual()),
        (w.kafka.sasl_tls, plain(w.tls(None))),
        (w.kafka.sasl, plain(None)),
        (w.kafka.tls, certificate),
    ];
    for (n, (port, access)) in (1..).zip(&ways) {
        let sink = sink(&at(*port), access);
        let results = sink.publish_many(&[row(&topic, n)], LIMIT).await;
        assert!(results[0].is_ok(), "{access:?}: {results:?}");
        sink.probe().await.unwrap();
    }
    assert_eq!(read_all(&w.kafka.server.bootstrap(), &topic).len(), ways.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_with_its_cursor_arrives_and_an_audit_reads_it() {
    let w = started().await;
    let (topic, name) = (w.kafka.server.fresh_topic(1), w.kafka.server.fresh_name("log"));
    let log = log(&at(w.kafka.sasl_tls), &w.usual(), &name);
    log.probe().await.unwrap();
    assert_eq!(log.resume(&shard()).await.unwrap(), None);
    let place = LogPlace {
        log: Nonce([1; 16]),
        batch_no: 1,
        batch: Nonce([2; 16]),
        last_id: 2,
        finished: true,
    };
    let end = log
        .commit(&shard(), &[row(&topic, 1), row(&topic, 2)], place, LIMIT)
        .await;
    assert!(matches!(end, TransactionEnd::Committed), "{end:?}");
    assert_eq!(log.resume(&shard()).await.unwrap(), Some(place));

    let config = ArrivalsConfig {
        access: w.usual(),
        ..ArrivalsConfig::new(at(w.kafka.sasl_tls), &topic)
    };
    let read = tokio::task::spawn_blocking(move || read_arrivals(&config, |_| {}));
    assert_eq!(read.await.unwrap().unwrap().records, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_reads_and_writes() {
    let w = started().await;
    let open = w.kafka.server.bootstrap();
    let (from, to) = (w.kafka.server.fresh_topic(1), w.kafka.server.fresh_topic(1));
    let group = w.kafka.server.fresh_name("g");
    let mut config = ProcessorConfig::new(at(w.kafka.sasl_tls), &group, [&from], format!("{group}-0"));
    config.access = w.usual();
    config.interval = Duration::from_millis(20);
    let target = to.clone();
    let copy = move |message: &semel_inbox::Message| {
        Ok(vec![Output {
            topic: target.clone(),
            data: message.data.clone(),
            ..Output::default()
        }])
    };
    let stop = CancellationToken::new();
    let processor = Processor::new(config, copy).unwrap();
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { processor.run(stop).await }
    });
    let plain = producer(&open, &[]);
    send(&plain, &from, 0, Some("1"), "one");
    flush(&plain);
    until("it is copied", async || read_all(&open, &to).len() == 1).await;
    stop.cancel();
    tokio::time::timeout(LIMIT, running)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}

/// What is wrong with an error that is to be the destination's fault and to say these words.
fn judge(error: &SinkError, words: &str) -> Option<String> {
    let right = error.class == SinkErrorClass::Destination
        && error.message.contains(words)
        && !error.message.contains(PASSWORD);
    (!right).then(|| {
        format!(
            "not the destination's, or without {words:?}: {:?}: {error}",
            error.class
        )
    })
}

/// Each of these would otherwise be a broker that is away, for ever. They wait for their time, all at once.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_let_in_is_told_why() {
    let w = started().await;
    let topic = w.kafka.server.fresh_topic(1);
    let usual = w.usual();
    let wrong = |mechanism| KafkaAccess {
        sasl: sasl(mechanism, "open barley"),
        ..usual.clone()
    };
    let unknown_ca = KafkaAccess {
        tls: Some(KafkaTls {
            ca_file: Some(w.foreign_ca.clone()),
            client: None,
        }),
        ..usual.clone()
    };
    let machine_s_cas = KafkaAccess {
        tls: Some(KafkaTls::default()),
        ..usual.clone()
    };
    let certificate = |client| KafkaAccess {
        tls: w.tls(client),
        sasl: None,
    };
    let open = KafkaAccess::default();
    let only_sasl = KafkaAccess {
        tls: None,
        sasl: sasl(SaslMechanism::Plain, PASSWORD),
    };
    let port = w.kafka.server.port();
    let cases = [
        (
            at(w.kafka.sasl_tls),
            wrong(SaslMechanism::ScramSha512),
            "uthentication",
        ),
        (at(w.kafka.sasl_tls), wrong(SaslMechanism::Plain), "uthentication"),
        (at(w.kafka.sasl_tls), unknown_ca, "certificate verify failed"),
        (at(w.kafka.sasl_tls), machine_s_cas, "certificate verify failed"),
        // The certificate is for the address, not for this name.
        (
            format!("localhost:{}", w.kafka.sasl_tls),
            usual.clone(),
            "certificate verify failed",
        ),
        (at(w.kafka.tls), certificate(None), "certificate"),
        (
            at(w.kafka.tls),
            certificate(Some(&w.foreign_client)),
            "certificate",
        ),
        (at(w.kafka.sasl_tls), open.clone(), "speaks TLS"),
        (at(w.kafka.sasl_tls), only_sasl, "speaks TLS"),
        (at(w.kafka.sasl), open.clone(), "set `sasl`"),
        (at(port), certificate(None), "does not speak TLS"),
        (at(w.kafka.sasl), usual.clone(), "does not speak TLS"),
    ];
    let mut waiting = tokio::task::JoinSet::new();
    for (bootstrap, access, words) in cases {
        let topic = topic.clone();
        waiting.spawn(async move {
            let sink = sink(&bootstrap, &access);
            let results = sink.publish_many(&[row(&topic, 1)], PATIENCE).await;
            let error = results[0].as_ref().unwrap_err();
            judge(error, words)
        });
    }
    for (access, words) in [
        (wrong(SaslMechanism::ScramSha512), "uthentication"),
        (open, "speaks TLS"),
    ] {
        let name = w.kafka.server.fresh_name("log");
        let config = ArrivalsConfig {
            access: access.clone(),
            ..ArrivalsConfig::new(at(w.kafka.sasl_tls), &topic)
        };
        waiting.spawn(async move {
            let error = log(&at(w.kafka.sasl_tls), &access, &name).resume(&shard()).await;
            judge(&error.unwrap_err(), words)
        });
        waiting.spawn_blocking(move || {
            let error = read_arrivals(&config, |_| {}).unwrap_err();
            let right = error.kind() == ErrorKind::Invalid && error.to_string().contains(words);
            (!right).then(|| format!("not for a person, or without {words:?}: {error}"))
        });
    }
    let wrong: Vec<String> = waiting.join_all().await.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(read_all(&w.kafka.server.bootstrap(), &topic).is_empty());
}
