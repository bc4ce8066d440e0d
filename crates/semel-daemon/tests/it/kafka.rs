//! From an outbox in SQLite to Kafka, through the daemon: the settings arrive where they belong.

use semel_core::host::uuid_v7;
use semel_core::{Event, SystemClock};
use semel_testkit::servers;

use super::daemon::{Folder, run, texts, until};

#[tokio::test]
async fn events_reach_the_topics_they_name() {
    let kafka = servers::kafka();
    let topic = kafka.fresh_topic(2);
    let folder = Folder::new(&format!(
        "[store]\nurl = \"sqlite:shop.db\"\n[[relay]]\nname = \"orders\"\n\
         sink.kafka = {{ brokers = [\"{}\"], linger_ms = 1, properties = {{ \"client.id\" = \"shop\" }} }}\n",
        kafka.bootstrap()
    ));
    let (stdout, _, code) = texts(&run(folder.path(), &["check"]));
    assert_eq!(code, 0, "{stdout}");
    assert!(stdout.contains("can be reached"), "{stdout}");

    let db = super::relays::shop(&folder.file("shop.db")).await;
    for n in 0..20 {
        let event = Event::new(uuid_v7(&SystemClock), topic.as_str(), "order.placed")
            .with_key(format!("k{}", n % 3))
            .with_data("application/json", format!("{{\"n\":{n}}}"));
        let mut tx = db.begin().await.unwrap();
        semel_sqlite::tx::enqueue(&mut tx, &event).await.unwrap();
        db.commit(tx).await.unwrap();
    }
    let daemon = folder.start().await;
    until("all are acknowledged", async || {
        daemon
            .metric("semel_relay_published_total{relay=\"orders\",stream=\"default\"}")
            .await
            == Some(20.0)
    })
    .await;
    daemon.until_ready().await;
    let (code, log) = daemon.stop().await;
    assert_eq!(code, 0, "{log}");
}

#[test]
fn settings_that_carry_a_guarantee_are_refused_and_a_broker_that_is_away_is_named() {
    let config = |properties: &str| {
        Folder::new(&format!(
            "[store]\nurl = \"sqlite:shop.db\"\n[[relay]]\nname = \"orders\"\n\
             sink.kafka = {{ brokers = [\"127.0.0.1:1\"], properties = {{ {properties} }} }}\n"
        ))
    };
    let (stdout, _, code) = texts(&run(config("\"acks\" = \"0\"").path(), &["check"]));
    assert_eq!(code, 1, "{stdout}");
    assert!(stdout.contains("acks"), "{stdout}");
    let (stdout, _, code) = texts(&run(config("").path(), &["check"]));
    assert_eq!(code, 1, "{stdout}");
    assert!(
        stdout.contains("bad\trelay orders\treceiver\t127.0.0.1:1"),
        "{stdout}"
    );
}
