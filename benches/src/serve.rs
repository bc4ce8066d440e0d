//! A server to be tested and measured from outside: by black-box tests that kill it, by load generators, and as the target
//! of `semel conformance`.
//!
//! `POST /orders`, `/other`, `/slow` and `/bench` are behind the layer; `GET /health`, `/runs` (how many runs there were)
//! and `/effects?op=NAME` are not. `/bench` only answers. The others first add a line to the file of effects, so that runs
//! are counted over crashes, and are steered by headers, which are no part of the fingerprint:
//!
//! | header | does |
//! | --- | --- |
//! | `x-test-op` | the name that the run leaves in the file |
//! | `x-test-sleep` | milliseconds to wait after the effect |
//! | `x-test-status` | the answer's status instead of 201 |
//! | `x-test-crash` | `before` or `after`: the process dies at once, before or after the effect |
//! | `x-test-latin1` | adds a header with a byte above 127 |

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::routing::{get, post};
use clap::{Args, ValueEnum};
use http::header::{AUTHORIZATION, CONTENT_TYPE, ETAG, LINK, LOCATION, SET_COOKIE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use semel_core::model::MemoryKeys;
use semel_core::{KeyStore, OwnerLost, Scope};
use semel_http::{Config, IdempotencyLayer, ScopeError};
use semel_keys::Batched;

/// `serve-http`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServeArgs {
    /// Where keys live; `none` serves the same without the layer.
    #[arg(long, value_enum, default_value = "memory")]
    store: Store,
    /// The database's address, or SQLite's file.
    #[arg(long, env = "STORE_URL", default_value = "keys.db")]
    url: String,
    #[arg(long, env = "LISTEN", default_value = "127.0.0.1:18080")]
    listen: String,
    /// The file of effects.
    #[arg(long, env = "EFFECTS", default_value = "effects.log")]
    effects: PathBuf,
    /// Milliseconds of a claim.
    #[arg(long, env = "LEASE_MS", default_value_t = 30_000)]
    lease_ms: i64,
    /// Milliseconds that a duplicate waits.
    #[arg(long, env = "WAIT_MS", default_value_t = 10_000)]
    wait_ms: u64,
    /// Runs the operation again when its owner has died, instead of leaving it unknown.
    #[arg(long, env = "RERUN")]
    rerun: bool,
    /// Lets requests come without a key.
    #[arg(long)]
    key_optional: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Store {
    None,
    Memory,
    Sqlite,
    Postgres,
    Mysql,
    Redis,
}

#[derive(Clone)]
struct Effects {
    file: Arc<Path>,
    runs: Arc<AtomicU64>,
}

impl Effects {
    fn add(&self, op: &str) -> u64 {
        let mut file = std::fs::File::options()
            .append(true)
            .create(true)
            .open(&self.file)
            .unwrap();
        file.write_all(format!("{op}\n").as_bytes()).unwrap();
        self.runs.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn count(&self, op: &str) -> usize {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        text.lines().filter(|line| *line == op).count()
    }
}

/// Serves until it is killed.
pub(crate) async fn run(args: ServeArgs) {
    let effects = Effects {
        file: args.effects.clone().into(),
        runs: Arc::default(),
    };
    let mut keyed = Router::new()
        .route("/orders", post(order))
        .route("/other", post(order))
        .route("/slow", post(slow))
        .route("/bench", post(bench))
        .with_state(effects.clone());
    if let Some(store) = open(&args).await {
        keyed = keyed.layer(layer(store, &args));
    }
    let app =
        Router::new()
            .route("/health", get(|| async { "ok" }))
            .route(
                "/runs",
                get(|State(effects): State<Effects>| async move {
                    effects.runs.load(Ordering::SeqCst).to_string()
                }),
            )
            .route("/effects", get(counted))
            .with_state(effects)
            .merge(keyed);
    let listener = tokio::net::TcpListener::bind(&args.listen).await.unwrap();
    axum::serve(listener, app).await.unwrap();
}

/// The store, with the batcher in front of it as in the daemon.
async fn open(args: &ServeArgs) -> Option<Arc<dyn KeyStore>> {
    Some(match args.store {
        Store::None => return None,
        Store::Memory => Arc::new(MemoryKeys::default()),
        Store::Sqlite => {
            let db = semel_sqlite::Sqlite::open(semel_sqlite::Config::new(&args.url))
                .await
                .unwrap();
            db.migrate().await.unwrap();
            Arc::new(Batched::new(db))
        }
        Store::Postgres => {
            let db = semel_postgres::Postgres::connect(semel_postgres::Config::new(&args.url))
                .await
                .unwrap();
            db.migrate().await.unwrap();
            Arc::new(Batched::new(db))
        }
        Store::Mysql => {
            let db = semel_mysql::Mysql::connect(semel_mysql::Config::new(&args.url))
                .await
                .unwrap();
            db.migrate().await.unwrap();
            Arc::new(Batched::new(db))
        }
        Store::Redis => {
            let store = semel_redis::Redis::connect(semel_redis::Config::new(&args.url)).await;
            Arc::new(Batched::new(store.unwrap()))
        }
    })
}

fn layer(store: Arc<dyn KeyStore>, args: &ServeArgs) -> IdempotencyLayer {
    let config = Config {
        lease_ms: args.lease_ms,
        wait_ms_max: args.wait_ms,
        owner_lost: if args.rerun {
            OwnerLost::Rerun
        } else {
            OwnerLost::Hold
        },
        ..Config::default()
    };
    // A service has verified who this is; the test's word stands for that.
    let scope = |request: &http::request::Parts| {
        let who = request
            .headers
            .get(AUTHORIZATION)
            .ok_or(ScopeError::NoPrincipal)?;
        Ok(Scope::of_parts(&[b"orders", who.as_bytes()]))
    };
    let builder = IdempotencyLayer::builder(store).config(config).scope(scope);
    let builder = if args.key_optional {
        builder
    } else {
        builder.require_key()
    };
    builder.build().unwrap()
}

async fn counted(State(effects): State<Effects>, RawQuery(query): RawQuery) -> String {
    let query = query.unwrap_or_default();
    effects
        .count(query.strip_prefix("op=").unwrap_or_default())
        .to_string()
}

/// An answer of 211 bytes, and nothing done for it.
async fn bench(body: bytes::Bytes) -> Response<Body> {
    let filler = "x".repeat(150);
    let text = format!(
        "{{\"id\":\"ord_0000000000000007\",\"received\":{:>6},\"note\":\"{filler}\"}}",
        body.len()
    );
    let mut answer = Response::new(Body::from(text));
    *answer.status_mut() = StatusCode::CREATED;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

async fn slow(effects: State<Effects>, headers: HeaderMap, body: bytes::Bytes) -> Response<Body> {
    let answer = order(effects, headers, body).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    answer
}

async fn order(State(effects): State<Effects>, headers: HeaderMap, _: bytes::Bytes) -> Response<Body> {
    let steer = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if steer("x-test-crash") == Some("before") {
        std::process::abort();
    }
    let run = effects.add(steer("x-test-op").unwrap_or("none"));
    if steer("x-test-crash") == Some("after") {
        std::process::abort();
    }
    if let Some(ms) = steer("x-test-sleep").and_then(|ms| ms.parse().ok()) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
    let status = steer("x-test-status")
        .and_then(|status| status.parse().ok())
        .unwrap_or(201);
    let who = steer("authorization").unwrap_or("nobody");
    let mut answer = Response::new(Body::from(format!("{{\"order\":{run},\"who\":\"{who}\"}}")));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap();
    let told = answer.headers_mut();
    told.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    told.insert(LOCATION, format!("/orders/{run}").parse().unwrap());
    told.insert(ETAG, format!("\"v{run}\"").parse().unwrap());
    told.append(LINK, HeaderValue::from_static("</orders>; rel=\"up\""));
    told.append(LINK, HeaderValue::from_static("</orders/next>; rel=\"next\""));
    told.append(SET_COOKIE, HeaderValue::from_static("session=secret"));
    told.append(SET_COOKIE, HeaderValue::from_static("theme=dark"));
    if headers.contains_key("x-test-latin1") {
        told.insert("x-name", HeaderValue::from_bytes(b"Andr\xe9").unwrap());
    }
    answer
}
