//! From SQLite to a web server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use semel_webhook::{WebhookConfig, WebhookSink};

use crate::bed::{config, event, sqlite, start, until, write};

type Seen = Arc<Mutex<Vec<(String, String, Bytes)>>>;

/// A server that answers each event first 503, then 200, and remembers what came.
async fn serve(seen: Seen) -> String {
    let take = move |headers: HeaderMap, body: Bytes| {
        let seen = Arc::clone(&seen);
        async move {
            let text = |name: &str| headers[name].to_str().unwrap().to_owned();
            let mut seen = seen.lock().unwrap();
            let again = seen.iter().any(|(id, ..)| *id == text("idempotency-key"));
            seen.push((text("idempotency-key"), text("ce-partitionkey"), body));
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
    let seen = seen.lock().unwrap().clone();
    let of = |key: &str| -> Vec<_> {
        seen.iter()
            .filter(|it| it.1 == key)
            .map(|it| (it.0.clone(), it.2.clone()))
            .collect()
    };
    let sent = |n: usize| (format!("\"{}\"", events[n].id), events[n].data.clone().unwrap());
    assert_eq!(of("k"), [sent(0), sent(0), sent(1), sent(1)]);
    assert_eq!(of("other"), [sent(2), sent(2)]);
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
