//! From SQLite to a web server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use semel_webhook::{WebhookConfig, WebhookSink};

use crate::bed::{config, event, sqlite, start, until, write};

type Seen = Arc<Mutex<Vec<(HeaderMap, Bytes)>>>;

/// A server that answers each event first 503, then 200, and remembers what came.
async fn serve(seen: Seen) -> String {
    let take = move |headers: HeaderMap, body: Bytes| {
        let seen = Arc::clone(&seen);
        async move {
            let mut seen = seen.lock().unwrap();
            let again = seen
                .iter()
                .any(|(before, _)| before["idempotency-key"] == headers["idempotency-key"]);
            seen.push((headers, body));
            if again {
                StatusCode::NO_CONTENT
            } else {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    };
    let app = Router::new().route("/in/orders", post(take));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/in", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

#[tokio::test]
async fn events_are_posted_byte_for_byte_and_repeated_with_the_same_key() {
    let (db, _dir) = sqlite().await;
    let seen = Seen::default();
    let mut webhook = WebhookConfig::new(serve(Arc::clone(&seen)).await);
    webhook.topic_in_path = true;
    let sink = Arc::new(WebhookSink::new(webhook).unwrap());
    let relay = start(db.clone(), sink, config());
    let mut binary = event("k", "");
    binary.data = Some(Bytes::from_static(b"\0\xff\r\n"));
    let events = [binary, event("k", "2"), event("other", "3")];
    write(&db, &events).await;
    until("each came twice", async || seen.lock().unwrap().len() == 6).await;
    until("all are settled", async || relay.handle.stats().published == 3).await;
    relay.stop().await.unwrap();
    // dbz#37: every attempt is the same request, but for when it was sent.
    let mut seen = seen.lock().unwrap().clone();
    for (headers, _) in &mut seen {
        assert!(headers.remove("webhook-timestamp").is_some());
    }
    for (key, sent) in [("k", &events[..2]), ("other", &events[2..])] {
        let of: Vec<_> = seen
            .iter()
            .filter(|(headers, _)| headers["ce-partitionkey"] == key)
            .collect();
        assert_eq!(of.len(), 2 * sent.len());
        for (twice, event) in of.chunks(2).zip(sent) {
            assert_eq!(twice[0], twice[1]);
            assert_eq!(twice[0].0["idempotency-key"], format!("\"{}\"", event.id));
            assert_eq!(Some(&twice[0].1), event.data.as_ref());
        }
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_away_and_waited_for() {
    let (db, _dir) = sqlite().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    drop(listener);
    let sink = Arc::new(WebhookSink::new(WebhookConfig::new(format!("http://{at}/in/orders"))).unwrap());
    let relay = start(db.clone(), sink, config());
    write(&db, &[event("k", "1")]).await;
    until("it says why", async || {
        let stats = relay.handle.stats();
        stats.shards.iter().any(|it| {
            it.paused
                .as_ref()
                .is_some_and(|it| it.reason.contains("could not reach"))
        })
    })
    .await;
    assert_eq!(relay.handle.stats().published, 0);
    let listener = tokio::net::TcpListener::bind(at).await.unwrap();
    tokio::spawn(async move {
        let app = Router::new().route("/in/orders", post(|| async { StatusCode::OK }));
        axum::serve(listener, app).await
    });
    until("it has arrived", async || relay.handle.stats().published == 1).await;
    tokio::time::timeout(Duration::from_secs(5), relay.stop())
        .await
        .unwrap()
        .unwrap();
}
