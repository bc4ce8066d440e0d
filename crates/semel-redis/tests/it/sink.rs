//! The sink over real servers: what arrives, in which order, and what each trouble is called.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use semel_core::store::{OutboxRow, SinkError, SinkErrorClass};
use semel_core::{Event, Sink as _, Timestamp};
use semel_redis::{RedisSink, RedisSinkConfig};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::{RedisCluster, RedisServer, redis};
use uuid::Uuid;

use super::world::Raw;

const LONG: Duration = Duration::from_secs(20);

/// A row of a key for a topic; its number is its id and its data.
fn row(number: u32, key: &str, topic: &str) -> Arc<OutboxRow> {
    Arc::new(OutboxRow {
        row: number.into(),
        created_at: Timestamp(0),
        batch_no: 0,
        event: Event::new(Uuid::from_u128(number.into()), topic, "t")
            .with_key(key.to_owned())
            .with_data("text/plain", number.to_string()),
    })
}

fn sink(url: &str) -> RedisSink {
    RedisSink::new(RedisSinkConfig::new(url)).unwrap()
}

fn classes(results: &[Result<(), SinkError>]) -> Vec<Option<SinkErrorClass>> {
    results
        .iter()
        .map(|it| it.as_ref().err().map(|error| error.class))
        .collect()
}

/// The entries of a stream, each its fields and values in order.
async fn entries(raw: &mut Raw, stream: &str) -> Vec<Vec<Vec<u8>>> {
    let found: Vec<(String, Vec<Vec<u8>>)> = raw.ask(&[b"XRANGE", stream.as_bytes(), b"-", b"+"]).await;
    found.into_iter().map(|(_, fields)| fields).collect()
}

fn value<'a>(entry: &'a [Vec<u8>], field: &str) -> Option<&'a [u8]> {
    let pair = entry.chunks(2).find(|pair| pair[0] == field.as_bytes())?;
    Some(&pair[1])
}

/// The data of a stream's entries: the rows' numbers.
async fn numbers(raw: &mut Raw, stream: &str) -> Vec<u32> {
    let text = |entry: &Vec<Vec<u8>>| String::from_utf8(value(entry, "data").unwrap().to_vec()).unwrap();
    let entries = entries(raw, stream).await;
    entries.iter().map(|entry| text(entry).parse().unwrap()).collect()
}

#[tokio::test]
async fn rows_arrive_in_their_order_over_the_parts_of_a_call() {
    let url = redis().fresh_database();
    let (sink, mut raw) = (sink(&url), Raw::open(&url).await);
    let rows: Vec<_> = (0..700)
        .map(|n| row(n, &format!("k{}", n % 7), if n < 600 { "a" } else { "b" }))
        .collect();
    let results = sink.publish_many(&rows, LONG).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(numbers(&mut raw, "a").await, (0..600).collect::<Vec<_>>());
    assert_eq!(numbers(&mut raw, "b").await, (600..700).collect::<Vec<_>>());
}

#[tokio::test]
async fn every_byte_of_an_event_arrives() {
    let url = redis().fresh_database();
    let mut event = Event::new(Uuid::from_u128(7), "orders", "order.placed")
        .with_key(vec![0xff, 0])
        .with_data("application/octet-stream", vec![0, 1, 0xff])
        .with_header("b", vec![0xfe])
        .with_header("a", "")
        .with_header("b", "2");
    event.traceparent = Some("00-1-2-01".to_owned());
    let row = Arc::new(OutboxRow {
        row: 1,
        created_at: Timestamp(1),
        batch_no: 0,
        event,
    });
    sink(&url).publish_many(&[row], LONG).await.remove(0).unwrap();
    let entry = entries(&mut Raw::open(&url).await, "orders").await.remove(0);
    for (field, expected) in [
        ("ce_id", Some(&b"00000000-0000-0000-0000-000000000007"[..])),
        ("ce_time", Some(b"1970-01-01T00:00:00.000001Z")),
        ("ce_partitionkey", Some(&[0xff, 0])),
        ("content-type", Some(b"application/octet-stream")),
        ("traceparent", Some(b"00-1-2-01")),
        ("data", Some(&[0, 1, 0xff])),
    ] {
        assert_eq!(value(&entry, field), expected, "{field}");
    }
    let headers: Vec<_> = entry
        .chunks(2)
        .filter(|pair| pair[0].starts_with(b"h:"))
        .collect();
    let expected: [[&[u8]; 2]; 3] = [[b"h:b", &[0xfe]], [b"h:a", b""], [b"h:b", b"2"]];
    assert_eq!(headers, expected);
}

#[tokio::test]
async fn no_row_passes_an_earlier_one_of_its_key_that_failed() {
    use SinkErrorClass::{Destination, HeldBack};
    let url = redis().fresh_database();
    let (sink, mut raw) = (sink(&url), Raw::open(&url).await);
    let _: () = raw.ask(&[b"SET", b"wrong", b"x"]).await;
    let rows = [
        row(1, "a", "right"),
        row(2, "b", "wrong"),
        row(3, "c", "right"),
        row(4, "b", "right"),
        row(5, "c", "right"),
    ];
    let results = sink.publish_many(&rows, LONG).await;
    assert_eq!(
        classes(&results),
        [None, Some(Destination), None, Some(HeldBack), Some(HeldBack)]
    );
    assert!(results[1].as_ref().unwrap_err().message.contains("WRONGTYPE"));
    assert_eq!(numbers(&mut raw, "right").await, [1, 3]);
    let _: () = raw.ask(&[b"DEL", b"wrong"]).await;
    let again = [Arc::clone(&rows[1]), Arc::clone(&rows[3]), Arc::clone(&rows[4])];
    assert_eq!(
        classes(&sink.publish_many(&again, LONG).await),
        [None, None, None]
    );
    assert_eq!(numbers(&mut raw, "right").await, [1, 3, 4, 5]);
}

#[tokio::test]
async fn a_stream_that_is_missing_is_made_or_named() {
    let url = redis().fresh_database();
    let mut config = RedisSinkConfig::new(&url);
    config.create_streams = false;
    config.key = "events:{{topic}}".to_owned();
    let (strict, mut raw) = (RedisSink::new(config).unwrap(), Raw::open(&url).await);
    let error = strict
        .publish_many(&[row(1, "a", "t")], LONG)
        .await
        .remove(0)
        .unwrap_err();
    assert_eq!(error.class, SinkErrorClass::Destination);
    assert!(error.message.contains("create_streams"), "{error}");
    let _: () = raw
        .ask(&[b"XGROUP", b"CREATE", b"events:{t}", b"g", b"$", b"MKSTREAM"])
        .await;
    strict
        .publish_many(&[row(1, "a", "t")], LONG)
        .await
        .remove(0)
        .unwrap();
    assert_eq!(numbers(&mut raw, "events:{t}").await, [1]);
}

#[tokio::test]
async fn old_entries_are_trimmed_when_asked() {
    let url = redis().fresh_database();
    let mut config = RedisSinkConfig::new(&url);
    config.entries_max = Some(100);
    let (sink, mut raw) = (RedisSink::new(config).unwrap(), Raw::open(&url).await);
    let rows: Vec<_> = (0..1_000).map(|n| row(n, "k", "t")).collect();
    assert!(sink.publish_many(&rows, LONG).await.iter().all(Result::is_ok));
    let kept = numbers(&mut raw, "t").await;
    assert!((100..=300).contains(&kept.len()), "{}", kept.len());
    assert_eq!(kept.last(), Some(&999));
}

#[tokio::test]
async fn an_event_over_the_limit_is_refused_before_it_is_sent() {
    let mut config = RedisSinkConfig::new("redis://127.0.0.1:1/0");
    config.entry_bytes_max = 100;
    let sink = RedisSink::new(config).unwrap();
    let event = Event::new(Uuid::from_u128(1), "t", "t");
    sink.check(&event).unwrap();
    let error = sink
        .check(&event.with_data("text/plain", vec![b'x'; 100]))
        .unwrap_err();
    assert!(error.to_string().contains("entry_bytes_max"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_full_forbids_or_follows_another_is_called_by_its_trouble() {
    use SinkErrorClass::{Away, Destination};
    let server = RedisServer::start(&[]);
    let rows = [row(1, "a", "t"), row(2, "b", "t")];
    let sink = sink(&server.url());
    let mut raw = Raw::open(&server.url()).await;

    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let full = sink.publish_many(&rows, LONG).await;
    let first = full[0].as_ref().unwrap_err();
    assert!(first.class == Away && first.message.contains("OOM"), "{first}");
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(numbers(&mut raw, "t").await, [0_u32; 0]);

    server.cli(&["ACL", "SETUSER", "relay", "on", ">pass", "~*", "+@all", "-xadd"]);
    let url = server.url().replace("redis://", "redis://relay:pass@");
    let barred = self::sink(&url).publish_many(&rows, LONG).await;
    let first = barred[0].as_ref().unwrap_err();
    assert!(
        first.class == Destination && first.message.contains("NOPERM"),
        "{first}"
    );
    let wrong = self::sink(&url.replace("pass", "word"))
        .publish_many(&rows, LONG)
        .await;
    assert_eq!(wrong[0].as_ref().unwrap_err().class, Destination, "{wrong:?}");

    let replica = RedisServer::start(&["--replicaof", &format!("127.0.0.1 {}", server.port())]);
    let read_only = self::sink(&replica.url()).publish_many(&rows, LONG).await;
    let first = read_only[0].as_ref().unwrap_err();
    assert!(
        first.class == Away && first.message.contains("READONLY"),
        "{first}"
    );

    let results = sink.publish_many(&rows, LONG).await;
    assert_eq!(classes(&results), [None, None]);
    assert_eq!(numbers(&mut raw, "t").await, [1, 2]);
}

#[tokio::test]
async fn replicas_that_are_asked_for_confirm_or_the_rows_are_away() {
    let server = RedisServer::start(&[]);
    let mut config = RedisSinkConfig::new(server.url());
    config.redis.replicas_min = 1;
    config.redis.reply_timeout = Duration::from_millis(400);
    let alone = RedisSink::new(config.clone()).unwrap();
    let error = alone
        .publish_many(&[row(1, "a", "t")], LONG)
        .await
        .remove(0)
        .unwrap_err();
    assert_eq!(error.class, SinkErrorClass::Away);
    assert!(error.message.contains("0 of 1 replicas"), "{error}");
    // Nothing more is sent while they are missing, and what was sent is there once.
    for _ in 0..3 {
        let again = alone
            .publish_many(&[row(1, "a", "t"), row(2, "a", "t")], LONG)
            .await;
        assert_eq!(
            classes(&again),
            [Some(SinkErrorClass::Away), Some(SinkErrorClass::HeldBack)]
        );
        assert!(again[0].as_ref().unwrap_err().message.contains("0 of 1 replicas"));
    }
    assert_eq!(server.cli(&["XLEN", "t"]), "1");
    let _replica = RedisServer::start(&["--replicaof", &format!("127.0.0.1 {}", server.port())]);
    while !server.cli(&["INFO", "replication"]).contains("state=online") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    config.redis.reply_timeout = Duration::from_secs(10);
    let both = RedisSink::new(config).unwrap();
    both.publish_many(&[row(1, "a", "t")], LONG)
        .await
        .remove(0)
        .unwrap();
    // Whoever has missed them goes on when they are back; on a busy machine they may be late.
    while alone
        .publish_many(&[row(2, "a", "t")], LONG)
        .await
        .remove(0)
        .is_err()
    {}
}

/// `WAIT n 0` waits for ever, and whatever comes behind it on the connection.
#[tokio::test]
async fn the_shortest_time_for_a_reply_is_no_wait_for_ever() {
    let server = RedisServer::start(&[]);
    let mut config = RedisSinkConfig::new(server.url());
    config.redis.replicas_min = 1;
    config.redis.reply_timeout = Duration::from_millis(1);
    let sink = RedisSink::new(config).unwrap();
    let mut raw = Raw::open(&server.url()).await;
    while numbers(&mut raw, "t").await.is_empty() {
        let error = sink.publish_many(&[row(1, "a", "t")], LONG).await.remove(0);
        assert_eq!(error.unwrap_err().class, SinkErrorClass::Away);
    }
    loop {
        let blocked = server.cli(&["INFO", "clients"]);
        if blocked.contains("blocked_clients:0") {
            break;
        }
    }
}

/// A sink whose connections go to whom the proxy says, and are not cut when that changes.
async fn behind(proxy: &Proxy, reply_timeout: Duration) -> RedisSink {
    let mut config = RedisSinkConfig::new(format!("redis://127.0.0.1:{}/", proxy.port()));
    config.redis.reply_timeout = reply_timeout;
    let sink = RedisSink::new(config).unwrap();
    sink.publish_many(&[row(1, "a", "t")], LONG)
        .await
        .remove(0)
        .unwrap();
    sink
}

fn port(server: &RedisServer) -> std::net::SocketAddr {
    ([127, 0, 0, 1], server.port()).into()
}

#[tokio::test]
async fn a_primary_that_became_a_replica_is_left_for_the_one_that_the_address_leads_to_now() {
    let (old, new) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let proxy = Proxy::to_port(old.port()).await.unwrap();
    let sink = behind(&proxy, LONG).await;
    old.cli(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    proxy.set_upstream(port(&new));
    let rows = [row(2, "a", "t"), row(3, "a", "t")];
    let refused = sink.publish_many(&rows, LONG).await.remove(0).unwrap_err();
    assert!(refused.class == SinkErrorClass::Away && refused.message.contains("READONLY"));
    assert_eq!(classes(&sink.publish_many(&rows, LONG).await), [None, None]);
    assert_eq!(numbers(&mut Raw::open(&new.url()).await, "t").await, [2, 3]);
    // One that nobody publishes over is seen by asking.
    new.cli(&["REPLICAOF", "127.0.0.1", &old.port().to_string()]);
    old.cli(&["REPLICAOF", "NO", "ONE"]);
    proxy.set_upstream(port(&old));
    let refused = sink.probe().await.unwrap_err();
    assert!(refused.class == SinkErrorClass::Away && refused.message.contains("READONLY"));
    sink.probe().await.unwrap();
}

#[tokio::test]
async fn a_connection_whose_other_end_is_silent_is_left() {
    let (silent, new) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let proxy = Proxy::to_port(silent.port()).await.unwrap();
    let sink = behind(&proxy, Duration::from_millis(500)).await;
    silent.pause();
    proxy.set_upstream(port(&new));
    let rows = [row(2, "a", "t")];
    assert_eq!(
        classes(&sink.publish_many(&rows, LONG).await),
        [Some(SinkErrorClass::Away)]
    );
    // On a busy machine an answer may be late for other reasons.
    while sink.publish_many(&rows, LONG).await[0].is_err() {}
    assert!(numbers(&mut Raw::open(&new.url()).await, "t").await.contains(&2));
    silent.resume();
}

#[tokio::test]
async fn a_server_that_dies_is_away_and_the_sink_goes_on_when_it_is_back() {
    let mut server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let sink = sink(&server.url());
    sink.publish_many(&[row(1, "a", "t")], LONG)
        .await
        .remove(0)
        .unwrap();
    sink.probe().await.unwrap();
    server.kill();
    let rows = [row(2, "a", "t"), row(3, "a", "t")];
    let error = sink.publish_many(&rows, LONG).await.remove(0).unwrap_err();
    assert_eq!(error.class, SinkErrorClass::Away, "{error}");
    assert_eq!(sink.probe().await.unwrap_err().class, SinkErrorClass::Away);
    server.restart();
    assert_eq!(classes(&sink.publish_many(&rows, LONG).await), [None, None]);
    let mut raw = Raw::open(&server.url()).await;
    assert_eq!(numbers(&mut raw, "t").await, [1, 2, 3]);
}

#[tokio::test]
async fn a_server_that_stands_still_is_away_at_the_deadline_and_order_outlives_it() {
    let server = RedisServer::start(&[]);
    let sink = sink(&server.url());
    let rows: Vec<_> = (1..=600).map(|n| row(n, "a", "t")).collect();
    sink.probe().await.unwrap();
    server.pause();
    let results = sink.publish_many(&rows, Duration::from_millis(200)).await;
    server.resume();
    assert_eq!(results[0].as_ref().unwrap_err().class, SinkErrorClass::Away);
    assert_eq!(results[599].as_ref().unwrap_err().class, SinkErrorClass::HeldBack);
    assert!(sink.publish_many(&rows, LONG).await.iter().all(Result::is_ok));
    once_in_order(&numbers(&mut Raw::open(&server.url()).await, "t").await, 600);
}

#[tokio::test]
async fn a_lost_reply_is_away_and_the_repeat_has_the_same_id() {
    let url = redis().fresh_database();
    let proxy = Proxy::to_port(redis().port()).await.unwrap();
    let through = url.replace(&format!(":{}/", redis().port()), &format!(":{}/", proxy.port()));
    let sink = sink(&through);
    let rows = [row(1, "a", "t"), row(2, "a", "t")];
    proxy.drop_reply_to(b"00000000-0000-0000-0000-000000000002");
    let results = sink.publish_many(&rows, LONG).await;
    assert_eq!(
        classes(&results),
        [Some(SinkErrorClass::Away), Some(SinkErrorClass::Away)]
    );
    assert_eq!(classes(&sink.publish_many(&rows, LONG).await), [None, None]);
    let mut raw = Raw::open(&url).await;
    assert_eq!(numbers(&mut raw, "t").await, [1, 2, 1, 2]);
    let ids: HashSet<_> = entries(&mut raw, "t")
        .await
        .iter()
        .map(|it| value(it, "ce_id").unwrap().to_vec())
        .collect();
    assert_eq!(ids.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_streams_are_spread_and_keys_keep_their_order() {
    let cluster = RedisCluster::start();
    let mut config = RedisSinkConfig::new(cluster.url());
    config.redis.cluster = true;
    let spread = RedisSink::new(config).unwrap();
    let topics = ["a", "b", "c", "d", "e", "f"];
    let rows: Vec<_> = (0..300)
        .map(|n| row(n, &format!("k{}", n % 50), topics[n as usize % topics.len()]))
        .collect();
    let results = spread.publish_many(&rows, LONG).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    for (at, topic) in topics.iter().enumerate() {
        let node = cluster
            .nodes()
            .iter()
            .find(|node| node.cli(&["EXISTS", topic]) == "1")
            .unwrap();
        let mut raw = Raw::open(&node.url()).await;
        let expected: Vec<u32> = (0..300).filter(|n| *n as usize % topics.len() == at).collect();
        assert_eq!(numbers(&mut raw, topic).await, expected, "{topic}");
    }
    // Who did not say that it is a cluster is told so.
    let error = sink(&cluster.url()).publish_many(&rows, LONG).await;
    let refused = error
        .iter()
        .filter_map(|it| it.as_ref().err())
        .find(|it| it.class == SinkErrorClass::Destination);
    assert!(
        refused.is_some_and(|error| error.message.contains("MOVED")),
        "{refused:?}"
    );
}

/// Each number once and in order, after those seen before are dropped.
fn once_in_order(numbers: &[u32], count: u32) {
    let mut seen = HashSet::new();
    let first: Vec<u32> = numbers.iter().copied().filter(|n| seen.insert(*n)).collect();
    assert_eq!(first, (1..=count).collect::<Vec<_>>());
}
