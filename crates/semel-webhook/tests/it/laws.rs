//! The sink obeys the laws of sinks.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use bytes::Bytes;
use semel_core::{Event, Sink};
use semel_testkit::laws::sink::{Arrived, HeaderForm, Line, Receiver, SinkBed};
use semel_testkit::proxy::Proxy;
use semel_webhook::{WebhookConfig, WebhookSink};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;

/// Bytes that the receiver takes.
const LARGE: usize = 10_000;

/// What the receiver has written down: it outlives its process.
type Store = Arc<Mutex<HashMap<String, Vec<Arrived>>>>;

struct Bed {
    sink: WebhookSink,
    proxy: Proxy,
    address: SocketAddr,
    store: Store,
    /// The process: dropping what is in it cuts its connections.
    server: tokio::sync::Mutex<JoinSet<()>>,
}

impl Bed {
    async fn new(_: Receiver) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let store = Store::default();
        let proxy = Proxy::start(address).await.unwrap();
        let mut config = WebhookConfig::new(format!("http://{}/in", proxy.addr()));
        config.topic_in_path = true;
        let bed = Self {
            sink: WebhookSink::new(config).unwrap(),
            proxy,
            address,
            store,
            server: tokio::sync::Mutex::default(),
        };
        bed.serve(listener).await;
        bed
    }

    async fn serve(&self, listener: TcpListener) {
        let app = Router::new()
            .route("/in/{topic}", post(receive))
            .with_state(Arc::clone(&self.store));
        // A runtime of its own, so that its connections end with it.
        let (dead, ended) = tokio::sync::oneshot::channel::<()>();
        let listener = listener.into_std().unwrap();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    served = axum::serve(listener, app) => served.unwrap(),
                    _ = ended => {}
                }
            });
        });
        self.server.lock().await.spawn(async move {
            let _alive = OnDrop(Some((dead, thread)));
            std::future::pending::<()>().await;
        });
    }
}

/// Ends the thread, and waits for its end.
struct OnDrop(Option<(tokio::sync::oneshot::Sender<()>, std::thread::JoinHandle<()>)>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some((dead, thread)) = self.0.take() {
            drop(dead);
            thread.join().unwrap();
        }
    }
}

async fn receive(
    State(store): State<Store>,
    Path(topic): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let mut store = store.lock().unwrap();
    let Some(kept) = store.get_mut(&topic) else {
        return StatusCode::NOT_FOUND;
    };
    if body.len() > LARGE {
        return StatusCode::PAYLOAD_TOO_LARGE;
    }
    let arrived = decode(&topic, &headers, body);
    if arrived.event.kind == "refused" {
        return StatusCode::UNPROCESSABLE_ENTITY;
    }
    kept.push(arrived);
    StatusCode::NO_CONTENT
}

/// As the front page of the crate says.
fn decode(topic: &str, headers: &HeaderMap, body: Bytes) -> Arrived {
    let plain = |name: &str| Some(headers.get(name)?.to_str().unwrap().to_owned());
    let coded = |name: &str| plain(name).map(|value| String::from_utf8(percent_decoded(&value)).unwrap());
    assert_eq!(plain("ce-specversion").unwrap(), "1.0");
    assert_eq!(plain("semel-topic").unwrap(), topic);
    let id = plain("ce-id").unwrap();
    assert_eq!(plain("idempotency-key").unwrap(), format!("\"{id}\""));
    let mut event = Event::new(id.parse().unwrap(), topic, coded("ce-type").unwrap());
    event.source = coded("ce-source").unwrap();
    event.key = plain("ce-partitionkey").map(|value| percent_decoded(&value).into());
    event.content_type = plain("content-type");
    event.traceparent = plain("traceparent");
    event.data = (plain("semel-tombstone").as_deref() != Some("1")).then_some(body);
    event.headers = headers
        .iter()
        .filter_map(|(name, value)| {
            let name = name.as_str().strip_prefix("semel-h-")?;
            Some((name.to_owned(), percent_decoded(value.to_str().unwrap()).into()))
        })
        .collect();
    Arrived {
        event,
        time: plain("ce-time").unwrap(),
        sequence: plain("ce-sequence"),
    }
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let hex = [bytes.next().unwrap(), bytes.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&hex).unwrap(), 16).unwrap()
            }
            byte => byte,
        });
    }
    decoded
}

fn fresh_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

#[async_trait]
impl SinkBed for Bed {
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }

    fn line(&self) -> &dyn Line {
        &self.proxy
    }

    async fn topic(&self) -> String {
        let topic = fresh_name();
        self.make_topic(&topic).await;
        topic
    }

    async fn missing_topic(&self) -> Option<String> {
        Some(fresh_name())
    }

    async fn make_topic(&self, topic: &str) {
        self.store.lock().unwrap().insert(topic.to_owned(), Vec::new());
    }

    async fn arrived(&self, topic: &str) -> Vec<Arrived> {
        self.store.lock().unwrap().get(topic).cloned().unwrap_or_default()
    }

    fn refused(&self, mut event: Event) -> Option<Event> {
        event.kind = "refused".to_owned();
        Some(event)
    }

    fn oversized(&self, event: Event) -> Option<Event> {
        Some(event.with_data("text/plain", vec![b'x'; LARGE + 1]))
    }

    async fn kill(&self) {
        self.server.lock().await.shutdown().await;
    }

    async fn start(&self) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(self.address).unwrap();
        self.serve(socket.listen(64).unwrap()).await;
    }

    fn headers(&self) -> HeaderForm {
        HeaderForm::ByName
    }
}

semel_testkit::sink_laws!(Bed::new);
