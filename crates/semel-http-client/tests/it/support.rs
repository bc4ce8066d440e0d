//! Servers that remember what they saw, and clients in front of them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::routing::any;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use semel_core::RetryPolicy;
use semel_core::model::MemoryKeys;
use semel_http::IdempotencyLayer;
use semel_http_client::{Config, KeyedClient, KeyedLayer, Outcome, Refusal, Repeat, Report, Unknown};
use tokio::sync::Semaphore;
use tower::Layer as _;

pub(crate) type Plain = Client<HttpConnector, Full<Bytes>>;

/// A server with what reached its handler.
pub(crate) struct Server {
    pub(crate) port: u16,
    runs: Arc<AtomicU32>,
    seen: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    /// A handler waits here while it is closed.
    gate: Arc<Semaphore>,
}

impl Server {
    /// Answers run by run what `script` says, and beyond it 201 with the number of the run. Without a layer.
    pub(crate) async fn plain(script: &'static [(u16, &'static [(&'static str, &'static str)])]) -> Self {
        Self::start(script, true, None).await
    }

    /// The same behind Semel's layer.
    pub(crate) async fn keyed(script: &'static [(u16, &'static [(&'static str, &'static str)])]) -> Self {
        Self::start(script, true, Some(semel_http::Config::default())).await
    }

    /// Behind Semel's layer with other settings; its handlers wait until [`Server::open`].
    pub(crate) async fn gated(change: impl FnOnce(&mut semel_http::Config)) -> Self {
        let mut config = semel_http::Config::default();
        change(&mut config);
        Self::start(&[], false, Some(config)).await
    }

    async fn start(
        script: &'static [(u16, &'static [(&'static str, &'static str)])],
        open: bool,
        layer: Option<semel_http::Config>,
    ) -> Self {
        let (runs, seen) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
        let gate = Arc::new(Semaphore::new(if open { 1_000 } else { 0 }));
        let (counted, noted, passed) = (Arc::clone(&runs), Arc::clone(&seen), Arc::clone(&gate));
        let handler = any(move |headers: HeaderMap, body: Bytes| {
            let n = counted.fetch_add(1, Ordering::SeqCst) + 1;
            noted.lock().unwrap().push((headers, body));
            let passed = Arc::clone(&passed);
            async move {
                passed.acquire().await.unwrap().forget();
                let (status, more) = script.get(n as usize - 1).copied().unwrap_or((201, &[]));
                assert_ne!(status, 0, "the handler panics as it was told to");
                let headers: HeaderMap = more
                    .iter()
                    .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
                    .collect();
                (StatusCode::from_u16(status).unwrap(), headers, format!("run {n}"))
            }
        });
        let mut app = Router::new().fallback(handler);
        if let Some(config) = layer {
            let layer = IdempotencyLayer::builder(Arc::new(MemoryKeys::default()))
                .config(config)
                .anonymous_scope("tests");
            app = app.layer(layer.build().unwrap());
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self {
            port,
            runs,
            seen,
            gate,
        }
    }

    pub(crate) fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    /// The keys that reached the handler, as sent.
    pub(crate) fn keys(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        seen.iter()
            .flat_map(|(headers, _)| headers.get_all("idempotency-key"))
            .map(|value| value.to_str().unwrap().to_owned())
            .collect()
    }

    pub(crate) fn bodies(&self) -> Vec<Bytes> {
        self.seen
            .lock()
            .unwrap()
            .iter()
            .map(|(_, body)| body.clone())
            .collect()
    }

    /// Lets the handlers go on, now and later.
    pub(crate) fn open(&self) {
        self.gate.add_permits(1_000);
    }

    /// Waits until that many runs have begun.
    pub(crate) async fn running(&self, runs: u32) {
        for _ in 0..2_000 {
            if self.runs() >= runs {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("run {runs} has not begun within ten seconds");
    }
}

/// Settings that try again soon.
pub(crate) fn quick() -> Config {
    Config {
        retry: RetryPolicy {
            initial_ms: 5,
            cap_ms: 50,
            attempts_max: 6,
            total_ms_max: 60_000,
            ..RetryPolicy::default()
        },
        ..Config::default()
    }
}

/// The same by the caller's word that the receiver deduplicates.
pub(crate) fn trusting() -> Config {
    Config {
        repeat: Repeat::Keyed {
            window_ms: 86_400_000,
        },
        ..quick()
    }
}

pub(crate) fn client(config: Config) -> KeyedClient<Plain> {
    let plain = Client::builder(TokioExecutor::new()).build_http();
    KeyedLayer::new(config).unwrap().layer(plain)
}

/// `POST /orders` on this port.
pub(crate) fn post(port: u16) -> http::request::Builder {
    Request::post(format!("http://127.0.0.1:{port}/orders"))
}

pub(crate) fn body() -> Full<Bytes> {
    Full::new(Bytes::from_static(b"{\"amount\":1}"))
}

/// How a call ended, short: `201 after 2, replayed`.
pub(crate) fn short<B>(outcome: &Outcome<http::Response<B>>) -> String {
    let told = |word: &str, answer: &http::Response<B>| {
        let report = answer.extensions().get::<Report>().unwrap();
        let replayed = if report.replayed { ", replayed" } else { "" };
        format!(
            "{word} {} after {}{replayed}",
            answer.status().as_u16(),
            report.attempts
        )
    };
    match outcome {
        Outcome::Succeeded(answer) => told("succeeded", answer),
        Outcome::Refused(Refusal::Answer(answer)) => told("refused", answer),
        Outcome::Refused(Refusal::NotSent(_)) => "not sent".to_owned(),
        Outcome::Unknown(unknown) => {
            let Unknown {
                why,
                attempts,
                can_do,
                ..
            } = &**unknown;
            let can_do = format!("{can_do:?}");
            let can_do = can_do.split_whitespace().next().unwrap();
            format!("unknown {why:?} after {attempts}, {can_do}")
        }
    }
}
