//! `semel audit outbox` reads what arrived from streams itself: each kind of fault is planted there and found.

use semel_core::host::uuid_v7;
use semel_core::{Event, SystemClock};
use serde_json::{Value, json};

use super::daemon::{Folder, run, texts, until};

/// Events in a stream of their topic: four with a key that is no text, four without a key, and four of each of two keys.
const EVENTS: usize = 16;

struct Bed {
    folder: Folder,
    /// The arguments that say where to read.
    source: [String; 2],
}

impl Bed {
    /// All events are in the stream, and the relay is gone.
    async fn filled(sink: &str, topic: &str, option: &str, stream: &str) -> Self {
        let folder = Folder::new(&format!(
            "[store]\nurl = \"sqlite:shop.db\"\n[[relay]]\nname = \"orders\"\nlease_ms = 1500\nsend_timeout_ms = 1000\n{sink}\n"
        ));
        let db = super::relays::shop(&folder.file("shop.db")).await;
        for n in 0..EVENTS {
            let event = Event::new(uuid_v7(&SystemClock), topic, "order.placed");
            let event = match n % 4 {
                0 => event,
                1 => event.with_key(vec![0xff, b' ']),
                _ => event.with_key(format!("k{}", n % 4)),
            };
            let event = if n == 5 {
                event
            } else {
                event.with_data("text/plain", format!("{n}"))
            };
            let mut tx = db.begin().await.unwrap();
            semel_sqlite::tx::enqueue(&mut tx, &event).await.unwrap();
            db.commit(tx).await.unwrap();
        }
        let daemon = folder.start().await;
        let bed = Self {
            folder,
            source: [option.to_owned(), stream.to_owned()],
        };
        until("all are there and settled", async || {
            // The stream may be made by the first event.
            let (stdout, _, code) = bed.audit(&["--json"]);
            let found = serde_json::from_str(&stdout).unwrap_or(Value::Null);
            code == 0 && found["sent"] == EVENTS
        })
        .await;
        let (code, log) = daemon.stop().await;
        assert_eq!(code, 0, "{log}");
        bed
    }

    fn audit(&self, more: &[&str]) -> (String, String, i32) {
        let source = [self.source[0].as_str(), self.source[1].as_str()];
        self.run(&[&source[..], more].concat())
    }

    fn run(&self, more: &[&str]) -> (String, String, i32) {
        texts(&run(self.folder.path(), &[&["audit", "outbox"], more].concat()))
    }

    fn json(&self) -> (Value, i32) {
        let (stdout, stderr, code) = self.audit(&["--json"]);
        let value = serde_json::from_str(&stdout);
        (
            value.unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}")),
            code,
        )
    }

    /// All is well, whatever the events are like.
    fn is_clean(&self, words: &str) {
        let (stdout, stderr, code) = self.audit(&[]);
        assert!(
            code == 0 && stdout.contains("all that was sent arrived, once and in order"),
            "{stdout}{stderr}"
        );
        assert!(stderr.contains(words), "{stderr}");
        assert!(!stderr.contains("are gone"), "{stderr}");
    }

    /// Rows of each kind of finding.
    fn finds(&self, wanted: &Value) {
        let (found, code) = self.json();
        let rows = |kind: &str| -> Vec<i64> {
            let first = found[kind]["first"].as_array().unwrap();
            first.iter().map(|it| it["row"].as_i64().unwrap()).collect()
        };
        let kinds = ["missing", "doubled", "reordered", "altered"];
        let seen: serde_json::Map<_, _> = kinds
            .iter()
            .map(|kind| ((*kind).to_owned(), json!(rows(kind))))
            .collect();
        assert_eq!((&Value::Object(seen), code), (wanted, 1), "{found}");
    }
}

#[cfg(feature = "redis")]
mod redis {
    use semel_testkit::servers;

    use super::*;

    /// Ids of entries, and their fields and values in turn.
    type Entries = Vec<(String, Vec<String>)>;

    #[tokio::test]
    async fn an_audit_reads_a_redis_stream_and_finds_each_kind_of_fault() {
        let server = servers::redis();
        let url = server.fresh_database();
        let database = url.rsplit_once('/').unwrap().1;
        let cli = |arguments: &[&str]| server.cli(&[&["-n", database, "--json"], arguments].concat());
        let sink = format!("sink.redis = {{ url = \"{url}\", key = \"events:{{topic}}\" }}");
        let bed = Bed::filled(&sink, "orders", "--redis", "events:orders").await;
        // Who reads it keeps its place.
        cli(&["XGROUP", "CREATE", "events:orders", "mail", "0"]);
        cli(&[
            "XREADGROUP",
            "GROUP",
            "mail",
            "a",
            "COUNT",
            "3",
            "STREAMS",
            "events:orders",
            ">",
        ]);
        let group = || cli(&["XINFO", "GROUPS", "events:orders"]);
        let before = group();
        bed.is_clean("stream events:orders: 16 entries");
        assert_eq!(group(), before);

        let entries: Entries = serde_json::from_str(&cli(&["XRANGE", "events:orders", "-", "+"])).unwrap();
        let add = |fields: &[String]| {
            let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
            cli(&[&["XADD", "events:orders", "*"], &fields[..]].concat());
        };
        // Row 3 comes behind row 7, row 4 twice, row 8 with other data, row 12 not at all.
        for row in [3, 8, 12] {
            cli(&["XDEL", "events:orders", &entries[row - 1].0]);
        }
        let mut altered = entries[7].1.clone();
        let data = altered.iter().position(|field| field == "data").unwrap();
        altered[data + 1] = "other".to_owned();
        add(&entries[2].1);
        add(&entries[3].1);
        add(&altered);
        cli(&["XADD", "events:orders", "*", "what", "from elsewhere"]);
        bed.finds(&json!({ "missing": [12], "doubled": [4], "reordered": [3, 8], "altered": [8] }));
        let (found, _) = bed.json();
        assert_eq!(found["unknown"], 1);
        let (_, stderr, _) = bed.audit(&[]);
        assert!(stderr.contains("3 entries that were there are gone"), "{stderr}");

        let (_, stderr, code) = bed.run(&["--redis", "none"]);
        assert!(
            code == 1 && stderr.contains("SEM0270") && stderr.contains("no key none"),
            "{stderr}"
        );
        cli(&["SET", "text", "x"]);
        let (_, stderr, code) = bed.run(&["--redis", "text"]);
        assert!(code == 1 && stderr.contains("holds no stream"), "{stderr}");
    }

    /// What is larger than a page, small entries and large ones, comes whole.
    #[tokio::test]
    async fn a_redis_stream_of_many_pages_is_read_to_its_end() {
        let server = servers::redis();
        let url = server.fresh_database();
        let database = url.rsplit_once('/').unwrap().1;
        let sink = format!("sink.redis = {{ url = \"{url}\" }}");
        let bed = Bed::filled(&sink, "orders", "--redis", "orders").await;
        // 5,000 small ones, 3 of half a page, 50 small ones.
        let script = "for n = 1, 5000 do redis.call('XADD', KEYS[1], '*', 'n', n) end \
             for n = 1, 3 do redis.call('XADD', KEYS[1], '*', 'n', string.rep('x', 600000)) end \
             for n = 1, 50 do redis.call('XADD', KEYS[1], '*', 'n', n) end";
        server.cli(&["-n", database, "EVAL", script, "1", "orders"]);
        let (stdout, stderr, code) = bed.audit(&[]);
        assert_eq!(code, 0, "{stdout}{stderr}");
        assert!(stderr.contains("stream orders: 5069 entries"), "{stderr}");
    }
}

#[cfg(feature = "nats")]
mod nats {
    use async_nats::jetstream::{self, consumer, stream};
    use futures_util::StreamExt as _;
    use semel_testkit::servers;

    use super::*;

    #[tokio::test]
    async fn an_audit_reads_a_stream_of_jetstream_and_finds_each_kind_of_fault() {
        let server = servers::nats();
        let (url, topic) = (server.url(), server.fresh_name("audit"));
        let context = jetstream::new(async_nats::connect(&url).await.unwrap());
        let config = stream::Config {
            name: topic.clone(),
            subjects: vec![format!("shop.{topic}")],
            ..stream::Config::default()
        };
        let stream = context.create_stream(config).await.unwrap();
        let sink = format!("sink.nats = {{ url = \"{url}\", subject = \"shop.{{topic}}\" }}");
        let bed = Bed::filled(&sink, &topic, "--nats", &topic).await;
        // Who reads it keeps its place, and nobody else is left.
        let durable = consumer::pull::Config {
            durable_name: Some("mail".to_owned()),
            ..consumer::pull::Config::default()
        };
        let mut mail = stream.create_consumer(durable).await.unwrap();
        let mut some = mail.fetch().max_messages(3).messages().await.unwrap();
        while let Some(message) = some.next().await {
            message.unwrap().ack().await.unwrap();
        }
        let place = async |mail: &mut consumer::PullConsumer| {
            let info = mail.info().await.unwrap();
            (info.delivered.stream_sequence, info.num_pending)
        };
        let before = place(&mut mail).await;
        bed.is_clean(&format!("stream {topic}: 16 messages"));
        assert_eq!(place(&mut mail).await, before);
        let consumers: Vec<_> = stream.consumer_names().collect().await;
        assert_eq!(consumers.len(), 1, "{consumers:?}");

        // Keys go at once: where a row is, its data says.
        let mut places = std::collections::BTreeMap::new();
        for sequence in 1..=EVENTS as u64 {
            let message = stream.get_raw_message(sequence).await.unwrap();
            let n: Option<u64> = std::str::from_utf8(&message.payload).unwrap().parse().ok();
            places.insert(n.map_or(6, |n| n + 1), sequence);
        }
        // Row 3 comes behind row 7, row 4 twice, row 8 with other data, row 12 not at all.
        let again = async |row: u64, data: Option<&'static str>| {
            let message = stream.get_raw_message(places[&row]).await.unwrap();
            let mut headers = async_nats::HeaderMap::new();
            for (name, values) in message.headers.iter() {
                if name.to_string() != "Nats-Msg-Id" {
                    values
                        .iter()
                        .for_each(|value| headers.append(name.clone(), value.clone()));
                }
            }
            let data = data.map_or(message.payload, |data| data.into());
            let sent = context.publish_with_headers(format!("shop.{topic}"), headers, data);
            sent.await.unwrap().await.unwrap();
        };
        again(3, None).await;
        again(4, None).await;
        again(8, Some("other")).await;
        for row in [3, 8, 12] {
            stream.delete_message(places[&row]).await.unwrap();
        }
        let sent = context.publish(format!("shop.{topic}"), "from elsewhere".into());
        sent.await.unwrap().await.unwrap();
        bed.finds(&json!({ "missing": [12], "doubled": [4], "reordered": [3, 8], "altered": [8] }));
        let (found, _) = bed.json();
        assert_eq!(found["unknown"], 1);
        let (_, stderr, _) = bed.audit(&[]);
        assert!(stderr.contains("3 messages that were there are gone"), "{stderr}");

        // The last one is not there: what says that it is over is that no more waits.
        stream.delete_message(20).await.unwrap();
        assert_eq!(bed.json().0["unknown"], 0);
        stream.purge().await.unwrap();
        assert_eq!(bed.json().0["missing"]["count"], EVENTS);

        let (_, stderr, code) = bed.run(&["--nats", "none"]);
        assert!(
            code == 1 && stderr.contains("SEM0270") && stderr.contains("no stream none"),
            "{stderr}"
        );
        let work = stream::Config {
            name: format!("{topic}-work"),
            subjects: vec![format!("work.{topic}")],
            retention: stream::RetentionPolicy::WorkQueue,
            ..stream::Config::default()
        };
        context.create_stream(work).await.unwrap();
        let (_, stderr, code) = bed.run(&["--nats", &format!("{topic}-work")]);
        assert!(
            code == 1 && stderr.contains("only until its consumers have it"),
            "{stderr}"
        );
    }
}

/// Where nothing says what to read, the relay's own sink says what can be done.
#[test]
fn an_audit_without_a_source_says_what_each_receiver_can_be_asked() {
    let told = |relays: &[&str], more: &[&str]| {
        let relays: String = relays
            .iter()
            .enumerate()
            .map(|(n, sink)| format!("[[relay]]\nname = \"r{n}\"\n{sink}\n"))
            .collect();
        let folder = Folder::new(&format!("[store]\nurl = \"sqlite:shop.db\"\n{relays}"));
        let (_, stderr, code) = texts(&run(folder.path(), &[&["audit", "outbox"], more].concat()));
        assert_eq!(code, 2, "{stderr}");
        stderr
    };
    let hook = "sink.webhook = { url = \"http://127.0.0.1:1/\" }";
    let webhook = told(&[hook], &[]);
    assert!(
        webhook.contains("cannot be asked what it was given") && webhook.contains("--arrived FILE"),
        "{webhook}"
    );
    let other = told(&[hook], &["--stream", "other"]);
    assert!(other.contains("no relay publishes the stream other"), "{other}");
    #[cfg(feature = "rabbitmq")]
    {
        let rabbit = told(&["sink.rabbitmq = { url = \"amqp://127.0.0.1:1\" }"], &[]);
        assert!(
            rabbit.contains("give a message away when they are read") && rabbit.contains("--arrived FILE"),
            "{rabbit}"
        );
    }
    #[cfg(feature = "redis")]
    {
        let redis = "sink.redis = { url = \"redis://127.0.0.1:1\" }";
        assert!(told(&[redis], &[]).contains("--redis KEY"));
        assert!(told(&[hook], &["--redis", "orders"]).contains("0 relays"));
    }
    #[cfg(feature = "nats")]
    assert!(told(&["sink.nats = { url = \"nats://127.0.0.1:1\" }"], &[]).contains("--nats STREAM"));
}
