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

/// The shared broker speaks no TLS and knows no users: that it says so shows that the settings arrive, in both modes.
#[cfg(feature = "kafka-tls")]
#[tokio::test]
async fn tls_and_the_user_reach_the_client() {
    let kafka = servers::kafka();
    let sasl = "sasl = { mechanism = \"PLAIN\", user = \"shop\", password = \"hunter2\" }";
    let mut checks = tokio::task::JoinSet::new();
    for (access, words) in [("tls = {}", "does not speak TLS"), (sasl, "SASL")] {
        for mode in ["", "mode = \"transactional\", name = \"shop\","] {
            let folder = Folder::new(&format!(
                "[store]\nurl = \"sqlite:shop.db\"\n[[relay]]\nname = \"orders\"\n\
                 sink.kafka = {{ brokers = [\"{}\"], {mode} {access} }}\n",
                kafka.bootstrap()
            ));
            checks.spawn_blocking(move || {
                let (stdout, stderr, code) = texts(&run(folder.path(), &["check"]));
                assert_eq!(code, 1, "{stdout}{stderr}");
                assert!(stdout.contains(words), "{words}: {stdout}{stderr}");
                assert!(!stdout.contains("hunter2") && !stderr.contains("hunter2"));
            });
        }
    }
    while let Some(checked) = checks.join_next().await {
        checked.unwrap();
    }
}

/// The audit reads the topic itself, with the brokers of the relay: what is there once, twice, altered, missing.
#[tokio::test]
async fn an_audit_reads_what_arrived_from_the_topic() {
    let kafka = servers::kafka();
    let (topic, empty) = (kafka.fresh_topic(3), kafka.fresh_topic(1));
    let folder = Folder::new(&format!(
        "[store]\nurl = \"sqlite:shop.db\"\n[[relay]]\nname = \"orders\"\nlease_ms = 1500\nsend_timeout_ms = 1000\n\
         sink.kafka = {{ brokers = [\"{}\"], linger_ms = 1 }}\n",
        kafka.bootstrap()
    ));
    let audit = |more: &[&str]| texts(&run(folder.path(), &[&["audit", "outbox"], more].concat()));
    let json = |more: &[&str]| -> (serde_json::Value, i32) {
        let (stdout, stderr, code) = audit(&[more, &["--json"]].concat());
        let value = serde_json::from_str(&stdout);
        (
            value.unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}")),
            code,
        )
    };
    let db = super::relays::shop(&folder.file("shop.db")).await;
    for n in 0..20 {
        let event = Event::new(uuid_v7(&SystemClock), topic.as_str(), "order.placed").with_data("", "{}");
        let event = match n % 4 {
            0 => event,
            // Of bytes that are no text.
            1 => event.with_key(vec![0xff, 0]),
            _ => event.with_key(format!("k{}", n % 4)),
        };
        let mut tx = db.begin().await.unwrap();
        semel_sqlite::tx::enqueue(&mut tx, &event).await.unwrap();
        db.commit(tx).await.unwrap();
    }
    let daemon = folder.start().await;
    until("all are there and settled", async || {
        let (found, code) = json(&["--kafka", &topic]);
        code == 0 && found["sent"] == 20
    })
    .await;
    let (stdout, stderr, code) = audit(&["--kafka", &topic]);
    assert!(
        code == 0 && stdout.contains("all that was sent arrived, once and in order"),
        "{stdout}"
    );
    assert!(stderr.contains("20 records in 3 partitions"), "{stderr}");
    let brokers = kafka.bootstrap();
    let (found, code) = json(&["--kafka", &empty, "--brokers", &brokers]);
    assert_eq!((&found["missing"]["count"], code), (&serde_json::json!(20), 1));
    let (found, _) = json(&["--kafka", &empty, "--kafka", &topic]);
    assert_eq!(found["clean"], true, "several topics count together");

    let mut tx = db.begin().await.unwrap();
    sqlx::query("UPDATE semel_outbox SET data = x'00' WHERE id = 7")
        .execute(&mut *tx)
        .await
        .unwrap();
    db.commit(tx).await.unwrap();
    let who = ["--by", "ann", "--why", "they lost some", "--yes"];
    let again = run(
        folder.path(),
        &[&["outbox", "replay", "--key", "k2"], &who[..]].concat(),
    );
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    until("the replay came", async || {
        json(&["--kafka", &topic]).0["doubled"]["count"] == 5
    })
    .await;
    let (found, code) = json(&["--kafka", &topic]);
    assert_eq!(
        (&found["altered"]["first"][0]["row"], code),
        (&serde_json::json!(7), 1)
    );
    assert_eq!(found["missing"]["count"], 0);
    assert_eq!(daemon.stop().await.0, 0);

    let (_, stderr, code) = audit(&["--kafka", "no-such-topic"]);
    assert!(
        code == 1 && stderr.contains("SEM0270") && stderr.contains("no topic no-such-topic"),
        "{stderr}"
    );
    let (_, stderr, code) = audit(&["--kafka", &topic, "--brokers", "127.0.0.1:1"]);
    assert!(
        code == 1 && stderr.contains("no broker of 127.0.0.1:1 answers"),
        "{stderr}"
    );
    assert_eq!(audit(&[]).2, 2, "where it arrived must be said");
    assert_eq!(audit(&["--kafka", &topic, "--arrived", "-"]).2, 2, "and once");
}
