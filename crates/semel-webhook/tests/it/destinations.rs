//! What is asked of one host: how much at once, how little while it is away, and of which addresses nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use semel_client::{DestinationPolicy, Destinations};
use semel_core::breaker::BreakerPolicy;
use semel_core::store::{OutboxRow, SinkErrorClass};
use semel_core::{Event, RetryPolicy, Sink as _, SystemClock, Timestamp};
use semel_webhook::{WebhookConfig, WebhookSink};
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::{LONG, send, serve};

/// A receiver that counts, and answers only when it is let.
#[derive(Clone)]
struct Seen {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    all: Arc<AtomicUsize>,
    go: Arc<Semaphore>,
    ill: Arc<AtomicBool>,
}

impl Seen {
    fn new(ill: bool) -> Self {
        Self {
            now: Arc::default(),
            most: Arc::default(),
            all: Arc::default(),
            go: Arc::new(Semaphore::new(0)),
            ill: Arc::new(AtomicBool::new(ill)),
        }
    }

    fn app(&self) -> Router {
        Router::new().route("/in", post(receive)).with_state(self.clone())
    }

    fn all(&self) -> usize {
        self.all.load(Ordering::SeqCst)
    }
}

async fn receive(State(seen): State<Seen>) -> StatusCode {
    seen.all.fetch_add(1, Ordering::SeqCst);
    if seen.ill.load(Ordering::SeqCst) {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let now = seen.now.fetch_add(1, Ordering::SeqCst) + 1;
    seen.most.fetch_max(now, Ordering::SeqCst);
    seen.go.acquire().await.unwrap().forget();
    seen.now.fetch_sub(1, Ordering::SeqCst);
    StatusCode::OK
}

fn destinations(concurrency_max: usize, pause_ms: u64) -> Destinations {
    let policy = DestinationPolicy {
        concurrency_max,
        breaker: BreakerPolicy {
            failures_max: 3,
            pause: RetryPolicy {
                initial_ms: pause_ms,
                jitter: 0.0,
                ..RetryPolicy::forever()
            },
        },
    };
    Destinations::new(policy, Arc::new(SystemClock))
}

fn sink(url: &str, destinations: &Destinations) -> WebhookSink {
    WebhookSink::new(WebhookConfig {
        destinations: destinations.clone(),
        ..WebhookConfig::new(format!("{url}/in"))
    })
    .unwrap()
}

fn rows(count: u128) -> Vec<Arc<OutboxRow>> {
    let row = |n| OutboxRow {
        row: i64::try_from(n).unwrap(),
        created_at: Timestamp(0),
        batch_no: 0,
        event: Event::new(Uuid::from_u128(n), "t", "e").with_data("text/plain", "x"),
    };
    (1..=count).map(|n| Arc::new(row(n))).collect()
}

#[tokio::test]
async fn two_sinks_of_one_host_share_its_places() {
    let seen = Seen::new(false);
    let url = serve(seen.app()).await;
    let shared = destinations(3, 500);
    let (one, two) = (sink(&url, &shared), sink(&url, &shared));
    let (first, second) = (rows(6), rows(6));
    let both =
        tokio::spawn(
            async move { tokio::join!(one.publish_many(&first, LONG), two.publish_many(&second, LONG)) },
        );
    while seen.now.load(Ordering::SeqCst) < 3 {
        tokio::task::yield_now().await;
    }
    assert_eq!(shared.states()[0].in_flight, 3);
    seen.go.add_permits(12);
    let (first, second) = both.await.unwrap();
    assert!(
        first.iter().chain(&second).all(Result::is_ok),
        "{first:?} {second:?}"
    );
    assert_eq!((seen.most.load(Ordering::SeqCst), seen.all()), (3, 12));
}

#[tokio::test]
async fn who_finds_no_place_is_held_back_and_spends_nothing() {
    let seen = Seen::new(false);
    let url = serve(seen.app()).await;
    let shared = destinations(1, 500);
    let sink = sink(&url, &shared);
    let results = sink.publish_many(&rows(2), Duration::from_millis(200)).await;
    let mut classes: Vec<_> = results.iter().map(|r| r.as_ref().unwrap_err().class).collect();
    classes.sort_by_key(|class| *class == SinkErrorClass::HeldBack);
    assert_eq!(
        classes,
        [SinkErrorClass::Away, SinkErrorClass::HeldBack],
        "{results:?}"
    );
    assert_eq!(seen.all(), 1);
}

#[tokio::test]
async fn a_host_that_fails_again_and_again_is_left_alone_and_asked_once_after_the_pause() {
    let seen = Seen::new(true);
    let url = serve(seen.app()).await;
    let shared = destinations(100, 300);
    let (one, two) = (sink(&url, &shared), sink(&url, &shared));
    for _ in 0..3 {
        let error = send(&one, LONG).await.unwrap_err();
        assert!(error.message.starts_with("503"), "{error}");
    }
    // Also for the other sink, and for many rows: nothing is sent.
    for result in two.publish_many(&rows(20), LONG).await {
        let error = result.unwrap_err();
        assert_eq!(error.class, SinkErrorClass::Away);
        assert!(
            error.message.contains("3 times in a row") && error.message.contains("503"),
            "{error}"
        );
        assert!(
            error
                .retry_after
                .is_some_and(|wait| wait <= Duration::from_millis(300))
        );
    }
    assert_eq!(seen.all(), 3);
    let state = &shared.states()[0];
    assert!(state.open_ms.is_some() && url.ends_with(&state.name), "{state:?}");

    // It is well again; one row tries, and then all may.
    seen.ill.store(false, Ordering::SeqCst);
    seen.go.add_permits(100);
    tokio::time::sleep(Duration::from_millis(320)).await;
    send(&two, LONG).await.unwrap();
    assert!(one.publish_many(&rows(20), LONG).await.iter().all(Result::is_ok));
    assert_eq!(seen.all(), 24);
    assert_eq!(shared.states()[0].open_ms, None);
}

#[tokio::test]
async fn an_event_that_is_refused_does_not_close_its_host_for_the_others() {
    let refuses = Router::new().route("/in", post(|| async { StatusCode::UNPROCESSABLE_ENTITY }));
    let shared = destinations(100, 10_000);
    let sink = sink(&serve(refuses).await, &shared);
    for _ in 0..5 {
        assert_eq!(
            send(&sink, LONG).await.unwrap_err().class,
            SinkErrorClass::Message
        );
    }
    assert_eq!(shared.states()[0].failures, 0);
}

#[tokio::test]
async fn a_private_address_is_refused_by_its_name_and_by_its_number() {
    let seen = Seen::new(false);
    seen.go.add_permits(100);
    let url = serve(seen.app()).await;
    let shared = destinations(100, 10_000);
    let port = url.rsplit_once(':').unwrap().1;
    for host in [
        "127.0.0.1",
        "localhost",
        "2130706433",
        "0x7f.1",
        "[::ffff:127.0.0.1]",
        "[::1]",
    ] {
        let sink = WebhookSink::new(WebhookConfig {
            allow_private: false,
            destinations: shared.clone(),
            ..WebhookConfig::new(format!("http://{host}:{port}/in"))
        })
        .unwrap();
        for error in [
            send(&sink, LONG).await.unwrap_err(),
            sink.probe().await.unwrap_err(),
        ] {
            assert_eq!(error.class, SinkErrorClass::Destination, "{host}: {error}");
            assert!(error.message.contains("allow_private"), "{host}: {error}");
        }
    }
    assert_eq!(seen.all(), 0);
    assert!(shared.states().iter().all(|state| state.failures == 0));
    // The same receiver by default.
    send(&sink(&url, &shared), LONG).await.unwrap();
}
