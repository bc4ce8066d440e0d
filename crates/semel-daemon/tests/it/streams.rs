//! What a relay changes about events, for every sink, shown with Redis Streams and a webhook.

use std::collections::BTreeMap;

use axum::response::IntoResponse as _;
use semel_core::host::uuid_v7;
use semel_core::{Event, SystemClock};
use semel_testkit::servers::{RedisServer, redis};

use super::daemon::{Folder, json, run, until};
use super::receiver::Receiver;

/// The entries of a stream, each by field.
pub(crate) fn entries(server: &RedisServer, url: &str, stream: &str) -> Vec<BTreeMap<String, String>> {
    let database = url.rsplit_once('/').unwrap().1;
    let text = server.cli(&["-n", database, "--json", "XRANGE", stream, "-", "+"]);
    let found: Vec<(String, Vec<String>)> = serde_json::from_str(&text).unwrap();
    let fields = |pairs: Vec<String>| {
        pairs
            .chunks(2)
            .map(|pair| (pair[0].clone(), pair[1].clone()))
            .collect()
    };
    found.into_iter().map(|(_, pairs)| fields(pairs)).collect()
}

async fn enqueue(db: &semel_sqlite::Sqlite, topic: &str, text: &str) -> Event {
    let mut event = Event::new(uuid_v7(&SystemClock), topic, "order.placed")
        .with_key("k")
        .with_header("internal", "x")
        .with_header("kept", "y")
        .with_data("application/json", text.to_owned());
    event.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
    let mut tx = db.begin().await.unwrap();
    semel_sqlite::tx::enqueue(&mut tx, &event).await.unwrap();
    db.commit(tx).await.unwrap();
    event
}

/// Two databases, two sinks, one daemon; the same changes for both.
#[tokio::test]
async fn relays_send_to_other_topics_with_other_headers_and_in_structured_mode() {
    let url = redis().fresh_database();
    let receiver = Receiver::start().await;
    let changes = "topic = \"shop.{topic}\"\ntopics = { orders = \"orders-v2\" }\nheaders_drop = [\"Internal\"]\n\
                   headers_add = { env = \"prod\" }\ncloudevents = \"structured\"\n";
    let folder = Folder::new(&format!(
        "[stores.one]\nurl = \"sqlite:one.db\"\n[stores.two]\nurl = \"sqlite:two.db\"\n\
         [[relay]]\nname = \"stream\"\nstore = \"one\"\n{changes}sink.redis = {{ url = \"{url}\", key = \"events:{{{{topic}}}}\" }}\n\
         [[relay]]\nname = \"hook\"\nstore = \"two\"\n{changes}\
         sink.webhook = {{ url = \"{}\", secrets = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\" }}\n",
        receiver.url("/events"),
    ));
    let one = super::relays::shop(&folder.file("one.db")).await;
    let two = super::relays::shop(&folder.file("two.db")).await;
    let text = "{\"total\": 42.0}";
    let (a, b) = (
        enqueue(&one, "orders", text).await,
        enqueue(&one, "parcels", text).await,
    );
    let c = enqueue(&two, "parcels", text).await;
    let daemon = folder.start().await;
    daemon.until_ready().await;

    let document = |event: &Event, topic: &str, row: u32| {
        serde_json::json!({
            "specversion": "1.0", "id": event.id.to_string(), "source": "/semel", "type": "order.placed",
            "datacontenttype": "application/json", "partitionkey": "k", "traceparent": event.traceparent,
            "semeltopic": topic, "sequence": format!("{:019}-{row:019}", 1), "data": { "total": 42.0 },
        })
    };
    let without_time = |text: &str| {
        let mut it: serde_json::Value = serde_json::from_str(text).unwrap();
        assert!(
            it.as_object_mut()
                .unwrap()
                .remove("time")
                .is_some_and(|time| time.is_string())
        );
        it
    };
    for (event, topic, row) in [(&a, "orders-v2", 1), (&b, "shop.parcels", 2)] {
        let stream = format!("events:{{{topic}}}");
        until("it is in its stream", async || {
            !entries(redis(), &url, &stream).is_empty()
        })
        .await;
        let entry = entries(redis(), &url, &stream).remove(0);
        assert_eq!(without_time(&entry["data"]), document(event, topic, row));
        let of = |name: &str| entry.get(name).map(String::as_str);
        assert_eq!(of("ce_id"), Some(event.id.to_string().as_str()));
        assert_eq!(of("content-type"), Some("application/cloudevents+json"));
        assert_eq!(of("traceparent"), event.traceparent.as_deref());
        assert_eq!(
            (of("h:internal"), of("h:kept"), of("h:env")),
            (None, Some("y"), Some("prod"))
        );
    }

    until("it was posted", async || !receiver.seen().is_empty()).await;
    let request = receiver.seen().remove(0);
    assert_eq!(
        without_time(&request.json().to_string()),
        document(&c, "shop.parcels", 1)
    );
    assert_eq!(request.header("content-type"), "application/cloudevents+json");
    assert_eq!(request.header("semel-topic"), "shop.parcels");
    assert_eq!(request.header("traceparent"), c.traceparent.unwrap());
    assert_eq!(
        (
            request.header("semel-h-env").as_str(),
            request.header("semel-h-kept").as_str()
        ),
        ("prod", "y")
    );
    assert_eq!(request.header("webhook-id"), c.id.to_string());
    assert!(request.header("webhook-signature").starts_with("v1,"));
    daemon.stop().await;
}

/// Two relays of one outbox, one of them to a port where nobody listens.
#[tokio::test]
async fn a_receiver_that_is_away_holds_up_no_other_relay() {
    let receiver = Receiver::start().await;
    let gone = semel_testkit::servers::free_port();
    let folder = Folder::new(&format!(
        "[store]\nurl = \"sqlite:shop.db\"\n\
         [[relay]]\nname = \"dead\"\nstreams = [\"dead\"]\nsink.webhook.url = \"http://127.0.0.1:{gone}/\"\n\
         [[relay]]\nname = \"alive\"\nstreams = [\"alive\"]\nsink.webhook.url = \"{}\"\n",
        receiver.url("/events"),
    ));
    let db = super::relays::shop(&folder.file("shop.db")).await;
    let write = async |stream: &str| {
        let event = Event {
            stream: stream.to_owned(),
            ..Event::new(uuid_v7(&SystemClock), "orders", "order.placed").with_key("k")
        };
        let mut tx = db.begin().await.unwrap();
        semel_sqlite::tx::enqueue(&mut tx, &event).await.unwrap();
        db.commit(tx).await.unwrap();
    };
    write("dead").await;
    let daemon = folder.start().await;
    until("one is away", async || {
        let text = json(&daemon.get("/readyz").await).to_string();
        text.contains("the receiver is away")
    })
    .await;
    for sent in 1..=20 {
        write("dead").await;
        write("alive").await;
        until("the other's event arrives", async || {
            receiver.seen().len() == sent
        })
        .await;
    }
    let parts = daemon.readyz().await["parts"].as_array().unwrap().clone();
    let state = |name: &str| {
        let part = parts
            .iter()
            .find(|part| part["name"].as_str().unwrap().contains(name));
        part.unwrap()["state"].clone()
    };
    assert_ne!(state("alive"), state("dead"), "{parts:?}");
    daemon.stop().await;
}

#[tokio::test]
async fn a_host_that_is_left_alone_is_named_and_costs_no_attempt() {
    let gone = semel_testkit::servers::free_port();
    let folder = Folder::new(&format!(
        "[destinations]\nfailures_max = 2\npause_ms_initial = 300\npause_ms_max = 400\n[store]\nurl = \"sqlite:shop.db\"\n\
         [[relay]]\nname = \"orders\"\nattempts_max = 1\npoison = \"skip\"\nretry_cap_ms = 100\n\
         sink.webhook.url = \"http://127.0.0.1:{gone}/events\"\n"
    ));
    let db = super::relays::shop(&folder.file("shop.db")).await;
    let event = enqueue(&db, "orders", "{}").await;
    let daemon = folder.start().await;
    until("readiness names the host", async || {
        let shown = daemon.get("/readyz").await;
        let text = json(&shown).to_string();
        text.contains("left alone") && text.contains(&format!("127.0.0.1:{gone}"))
    })
    .await;
    let address = ([127, 0, 0, 1], gone).into();
    let receiver = Receiver::at(address, |_| http::StatusCode::OK.into_response()).await;
    until("it arrived", async || !receiver.seen().is_empty()).await;
    assert_eq!(receiver.seen()[0].header("ce-id"), event.id.to_string());
    daemon.stop().await;
}

#[tokio::test]
async fn a_private_address_is_refused_where_the_relay_says_so() {
    let receiver = Receiver::start().await;
    let folder = Folder::new(&format!(
        "[store]\nurl = \"sqlite:shop.db\"\n[[relay]]\nname = \"orders\"\n\
         sink.webhook = {{ url = \"{}\", allow_private = false }}\n",
        receiver.url("/events"),
    ));
    let db = super::relays::shop(&folder.file("shop.db")).await;
    enqueue(&db, "orders", "{}").await;
    let (stdout, _, code) = super::daemon::texts(&run(folder.path(), &["check"]));
    assert!(code != 0 && stdout.contains("allow_private"), "{code}: {stdout}");
    let daemon = folder.start().await;
    until("readiness says why", async || {
        let text = json(&daemon.get("/readyz").await).to_string();
        text.contains("the destination is missing or forbidden") && text.contains("allow_private")
    })
    .await;
    assert!(receiver.seen().is_empty());
    daemon.stop().await;
}
