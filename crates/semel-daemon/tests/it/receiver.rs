//! A scripted HTTP server: it notes every request and answers what the test told it to.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// One request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> String {
        let value = self
            .headers
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {self:?}"));
        value.to_str().unwrap().to_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

type Script = Arc<dyn Fn(&Seen) -> Response + Send + Sync>;

#[derive(Clone)]
struct Shared {
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Without a script nothing is ever answered.
    script: Option<Script>,
}

/// A running server; stopped when dropped.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

impl Receiver {
    /// Answers everything with 204.
    pub(crate) async fn start() -> Self {
        Self::scripted(|_| StatusCode::NO_CONTENT.into_response()).await
    }

    /// Answers what the script says.
    pub(crate) async fn scripted(script: impl Fn(&Seen) -> Response + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), script).await
    }

    /// Notes requests and never answers.
    pub(crate) async fn silent() -> Self {
        Self::listen("127.0.0.1:0".parse().unwrap(), None).await
    }

    /// The same on a known port.
    pub(crate) async fn at(
        address: SocketAddr,
        script: impl Fn(&Seen) -> Response + Send + Sync + 'static,
    ) -> Self {
        Self::listen(address, Some(Arc::new(script))).await
    }

    async fn listen(address: SocketAddr, script: Option<Script>) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::default();
        let router = Router::new().fallback(answer).with_state(Shared {
            seen: Arc::clone(&seen),
            script,
        });
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, seen, task }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Every request so far, in the order of arrival.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(State(shared): State<Shared>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let seen = Seen {
        path: parts.uri.path().to_owned(),
        headers: parts.headers,
        body,
    };
    // Noted first: a request that was answered has been seen.
    shared.seen.lock().unwrap().push(seen.clone());
    match shared.script {
        Some(script) => script(&seen),
        None => std::future::pending().await,
    }
}
