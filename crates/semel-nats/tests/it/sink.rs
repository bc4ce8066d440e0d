//! What is JetStream's own.

use std::sync::Arc;
use std::time::Instant;

use async_nats::jetstream::{self, stream};
use semel_core::store::{OutboxRow, REPLAY_HEADER, Sink as _, SinkError, SinkErrorClass};
use semel_core::{Event, Timestamp};
use semel_nats::{NatsAccess, NatsConfig, NatsSink};
use semel_testkit::laws::sink::LIMIT;
use semel_testkit::servers::{NatsServer, nats};
use uuid::Uuid;

fn row(topic: &str, n: u32, key: &str) -> Arc<OutboxRow> {
    let event = Event::new(Uuid::from_u128(u128::from(n)), topic, "test")
        .with_key(key.to_owned())
        .with_data("text/plain", n.to_string());
    Arc::new(OutboxRow {
        row: i64::from(n),
        created_at: Timestamp(0),
        batch_no: 0,
        event,
    })
}

async fn made(config: stream::Config) -> stream::Stream {
    let context = jetstream::new(async_nats::connect(nats().url()).await.unwrap());
    context.create_stream(config).await.unwrap()
}

fn named(name: &str) -> stream::Config {
    stream::Config {
        name: name.to_owned(),
        subjects: vec![format!("shop.{name}")],
        ..stream::Config::default()
    }
}

fn sink() -> NatsSink {
    let mut config = NatsConfig::new(nats().url());
    config.subject = "shop.{topic}".to_owned();
    NatsSink::new(config).unwrap()
}

fn classes(results: Vec<Result<(), SinkError>>) -> Vec<Option<SinkErrorClass>> {
    results
        .into_iter()
        .map(|result| result.err().map(|error| error.class))
        .collect()
}

#[tokio::test]
async fn a_row_sent_again_inside_the_window_is_kept_once_and_acknowledged() {
    let name = nats().fresh_name("s");
    let mut stream = made(named(&name)).await;
    let rows = [row(&name, 1, "k"), row(&name, 2, "k")];
    for _ in 0..3 {
        assert_eq!(classes(sink().publish_many(&rows, LIMIT).await), [None, None]);
    }
    assert_eq!(stream.info().await.unwrap().state.messages, 2);
}

/// A replay that a person asked for arrives inside the window, once for each replay; sent again it is a repeat.
#[tokio::test]
async fn a_replay_inside_the_window_arrives_once_for_each_replay() {
    let name = nats().fresh_name("s");
    let mut stream = made(named(&name)).await;
    let live = row(&name, 1, "k");
    let replayed = |replay: u128| {
        let mut row = (*live).clone();
        let id = Uuid::from_u128(replay).to_string();
        row.event.headers.push((REPLAY_HEADER.to_owned(), id.into()));
        assert!(sink().check(&row.event).is_ok());
        Arc::new(row)
    };
    let rows = [live.clone(), replayed(1), replayed(2)];
    for (sent, kept) in [(0..1, 1), (0..2, 2), (1..2, 2), (0..3, 3), (0..3, 3)] {
        let rows = &rows[sent];
        assert!(
            classes(sink().publish_many(rows, LIMIT).await)
                .iter()
                .all(Option::is_none)
        );
        assert_eq!(stream.info().await.unwrap().state.messages, kept);
    }
    for n in 1..=3 {
        let message = stream.get_raw_message(n).await.unwrap();
        let id = message.headers.get("ce-id").unwrap().as_str().to_owned();
        assert_eq!(id, live.event.id.to_string(), "a consumer knows it as the same");
    }
}

#[tokio::test]
async fn a_stream_that_is_full_and_discards_new_messages_is_away_and_costs_no_order() {
    let name = nats().fresh_name("s");
    made(stream::Config {
        max_messages: 2,
        discard: stream::DiscardPolicy::New,
        ..named(&name)
    })
    .await;
    let rows: Vec<_> = (0..5).map(|n| row(&name, n, "k")).collect();
    let held_back = Some(SinkErrorClass::HeldBack);
    let results = classes(sink().publish_many(&rows, LIMIT).await);
    assert_eq!(
        results,
        [None, None, Some(SinkErrorClass::Away), held_back, held_back]
    );
}

#[tokio::test]
async fn a_subject_that_no_stream_takes_is_named() {
    let name = nats().fresh_name("none");
    let results = sink().publish_many(&[row(&name, 1, "k")], LIMIT).await;
    let error = results[0].clone().unwrap_err();
    assert_eq!(error.class, SinkErrorClass::Destination);
    assert!(error.message.contains(&format!("shop.{name}")), "{error}");
}

/// The server does not answer what a user may not publish; it says so beside.
#[tokio::test]
async fn a_subject_that_the_user_may_not_publish_to_is_named_long_before_the_deadline() {
    let server = NatsServer::start_with(
        "authorization { users = [ \
           { user: all, password: all }, \
           { user: relay, password: relay, permissions: { publish: { deny: \"shop.barred\" } } } ] }\n\
         no_auth_user: all\n",
    );
    let context = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let config = stream::Config {
        name: "shop".to_owned(),
        subjects: vec!["shop.>".to_owned()],
        ..stream::Config::default()
    };
    let mut stream = context.create_stream(config).await.unwrap();
    let mut config = NatsConfig::new(server.url());
    config.access = NatsAccess::Password("relay".to_owned(), "relay".to_owned());
    config.subject = "shop.{topic}".to_owned();
    let sink = NatsSink::new(config).unwrap();
    let rows = [
        row("barred", 1, "a"),
        row("barred", 2, "a"),
        row("barred", 3, "b"),
        row("free", 4, "c"),
    ];
    let begun = Instant::now();
    let results = sink.publish_many(&rows, LIMIT * 4).await;
    assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
    let error = results[0].clone().unwrap_err();
    assert!(error.message.contains("Permissions Violation"), "{error}");
    assert!(error.message.contains("shop.barred"), "{error}");
    let destination = Some(SinkErrorClass::Destination);
    assert_eq!(
        classes(results),
        [destination, Some(SinkErrorClass::HeldBack), destination, None]
    );
    assert_eq!(stream.info().await.unwrap().state.messages, 1);
}

/// A user is taken away under a connection that works, and comes back.
#[tokio::test]
async fn a_user_who_is_let_in_no_more_reads_why_and_goes_on_when_he_is_again() {
    let users = |password: &str| {
        format!(
            "authorization {{ users = [ {{ user: all, password: all }}, {{ user: relay, password: {password} }} ] }}\n\
             no_auth_user: all\n"
        )
    };
    let mut server = NatsServer::start_with(&users("relay"));
    let context = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let config = stream::Config {
        name: "shop".to_owned(),
        subjects: vec!["shop.>".to_owned()],
        ..stream::Config::default()
    };
    context.create_stream(config).await.unwrap();
    let mut config = NatsConfig::new(server.url());
    config.access = NatsAccess::Password("relay".to_owned(), "relay".to_owned());
    config.subject = "shop.{topic}".to_owned();
    let sink = NatsSink::new(config).unwrap();
    let send = async |n| sink.publish_many(&[row("a", n, "k")], LIMIT).await.remove(0);
    send(1).await.unwrap();

    server.kill();
    server.restart_with(&users("other"));
    let until = Instant::now() + LIMIT;
    let told = loop {
        let error = send(2).await.unwrap_err();
        if error.class == SinkErrorClass::Destination {
            break error;
        }
        assert!(Instant::now() < until, "{error}");
        tokio::task::yield_now().await;
    };
    assert!(told.message.contains("authorization violation"), "{told}");
    let probed = sink.probe().await.unwrap_err();
    assert_eq!(probed.class, SinkErrorClass::Destination, "{probed}");

    server.kill();
    server.restart_with(&users("relay"));
    let until = Instant::now() + LIMIT;
    while let Err(error) = send(2).await {
        assert!(Instant::now() < until, "{error}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn no_server_at_all_is_away() {
    let sink = NatsSink::new(NatsConfig::new("nats://127.0.0.1:1")).unwrap();
    assert_eq!(sink.probe().await.unwrap_err().class, SinkErrorClass::Away);
    let results = sink
        .publish_many(&[row("t", 1, "k"), row("t", 2, "k")], LIMIT)
        .await;
    assert_eq!(
        classes(results),
        [Some(SinkErrorClass::Away), Some(SinkErrorClass::HeldBack)]
    );
}

#[test]
fn settings_that_cannot_work_are_refused_and_no_secret_is_shown() {
    let wrong = |config: NatsConfig| NatsSink::new(config).unwrap_err().to_string();
    let mut config = NatsConfig::new("nats://a:secret@h:x");
    assert!(!wrong(config.clone()).contains("secret"));
    config.url = nats().url();
    config.subject = "a..b".to_owned();
    assert!(wrong(config).contains("subject"));
}
