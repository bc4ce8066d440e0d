//! The one integration test binary of this crate: the sink against a web server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic here is a failed test"
)]

mod destinations;
mod laws;
mod signed;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::response::Redirect;
use axum::routing::{any, post};
use semel_core::store::{OutboxRow, SinkError, SinkErrorClass};
use semel_core::{Event, Sink as _, Timestamp};
use semel_webhook::{WebhookConfig, WebhookSink};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use uuid::Uuid;

async fn serve(app: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

fn sink(url: &str) -> WebhookSink {
    let mut config = WebhookConfig::new(format!("{url}/in"));
    config.response_bytes_max = 1_000;
    WebhookSink::new(config).unwrap()
}

async fn send(sink: &WebhookSink, deadline: Duration) -> Result<(), SinkError> {
    let event = Event::new(Uuid::from_u128(7), "t", "e").with_data("text/plain", "x");
    let row = OutboxRow {
        row: 1,
        created_at: Timestamp(0),
        batch_no: 0,
        event,
    };
    sink.publish_many(&[Arc::new(row)], deadline).await.remove(0)
}

const LONG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let followed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&followed);
    let app = Router::new()
        .route("/in", post(|| async { Redirect::temporary("/other") }))
        .route(
            "/other",
            any(move || async move {
                count.fetch_add(1, Ordering::SeqCst);
            }),
        );
    let error = send(&sink(&serve(app).await), LONG).await.unwrap_err();
    assert_eq!(error.class, SinkErrorClass::Destination);
    assert_eq!(followed.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn an_answer_too_long_is_cut_and_judged_by_its_status() {
    for (status, class) in [
        (StatusCode::OK, None),
        (StatusCode::BAD_REQUEST, Some(SinkErrorClass::Message)),
        (StatusCode::NOT_FOUND, Some(SinkErrorClass::Destination)),
        (StatusCode::INTERNAL_SERVER_ERROR, Some(SinkErrorClass::Away)),
    ] {
        let app = Router::new().route("/in", post(move || async move { (status, "x".repeat(1_001)) }));
        let error = send(&sink(&serve(app).await), LONG).await.err();
        assert_eq!(error.as_ref().map(|error| error.class), class, "{status}");
        if let Some(error) = error {
            assert!(error.message.contains("response_bytes_max = 1000"), "{error}");
            assert!(error.message.contains(status.as_str()), "{error}");
        }
    }
}

#[tokio::test]
async fn a_receiver_that_does_not_answer_is_away_at_the_deadline() {
    let app = Router::new().route("/in", post(std::future::pending::<()>));
    let error = send(&sink(&serve(app).await), Duration::from_millis(50))
        .await
        .unwrap_err();
    assert_eq!(error.class, SinkErrorClass::Away);
    assert!(error.message.contains("nothing within"), "{error}");
}

/// The head says what became of the event; what is lost after it changes nothing.
#[tokio::test]
async fn an_answer_whose_body_is_cut_or_does_not_end_is_judged_by_its_head() {
    for (head, class) in [
        ("200 OK", None),
        ("410 Gone\r\nsemel-outcome: succeeded", None),
        ("422 Unprocessable", Some(SinkErrorClass::Message)),
        ("404 Not Found", Some(SinkErrorClass::Destination)),
        ("503 Unavailable", Some(SinkErrorClass::Away)),
    ] {
        for cut in [true, false] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let text = format!("HTTP/1.1 {head}\r\ncontent-length: 100\r\n\r\nbegun");
            let serving = tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\nx") {
                    assert!(stream.read_buf(&mut request).await.unwrap() > 0);
                }
                stream.write_all(text.as_bytes()).await.unwrap();
                if !cut {
                    std::future::pending::<()>().await;
                }
            });
            let deadline = if cut { LONG } else { Duration::from_secs(1) };
            let error = send(&sink(&url), deadline).await.err();
            assert_eq!(error.as_ref().map(|error| error.class), class, "{head} {cut}");
            serving.abort();
        }
    }
}

#[tokio::test]
async fn no_error_shows_the_path_or_the_query_of_a_url() {
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = gone.local_addr().unwrap();
    drop(gone);
    let app = Router::new().fallback(|| async { (StatusCode::BAD_REQUEST, "x".repeat(1_001)) });
    for url in [format!("http://{address}"), serve(app).await] {
        let mut config = WebhookConfig::new(format!("{url}/T0/hunter2?token=hunter3"));
        config.response_bytes_max = 1_000;
        let shared = config.destinations.clone();
        let sink = WebhookSink::new(config).unwrap();
        let error = send(&sink, LONG).await.unwrap_err();
        assert!(error.message.contains(&url), "{error}");
        let probed = format!("{:?}", sink.probe().await);
        for shown in [error.message, probed, format!("{:?} {sink:?}", shared.states())] {
            assert!(!shown.contains("hunter"), "{shown}");
        }
    }
}

#[tokio::test]
async fn a_probe_asks_whether_anybody_is_there() {
    let app = Router::new().route("/in", post(|| async { StatusCode::OK }));
    sink(&serve(app).await).probe().await.unwrap();
    for status in [
        StatusCode::NOT_FOUND,
        StatusCode::METHOD_NOT_ALLOWED,
        StatusCode::INTERNAL_SERVER_ERROR,
        StatusCode::NOT_IMPLEMENTED,
    ] {
        let app = Router::new().route("/in", any(move || async move { status }));
        sink(&serve(app).await).probe().await.unwrap();
    }
    for status in [
        StatusCode::BAD_GATEWAY,
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::GATEWAY_TIMEOUT,
    ] {
        let app = Router::new().route("/in", any(move || async move { status }));
        let error = sink(&serve(app).await).probe().await.unwrap_err();
        assert_eq!(error.class, SinkErrorClass::Away, "{status}");
    }
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", gone.local_addr().unwrap());
    drop(gone);
    assert_eq!(sink(&url).probe().await.unwrap_err().class, SinkErrorClass::Away);
}
