//! What the HTTP layer costs beside bare axum: over sockets with each store, and alone on one thread.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::Router;
use axum::routing::post;
use http::StatusCode;
use semel_core::KeyStore;
use semel_core::model::MemoryKeys;
use semel_http::IdempotencyLayer;
use semel_postgres::Postgres;
use semel_sqlite::Sqlite;
use semel_testkit::servers::postgres;
use tokio::net::TcpListener;

use crate::Plan;
use crate::harness::Table;
use crate::load;

mod alone;

const CONNECTIONS: usize = 32;
/// Bytes of an answer.
const ANSWER: usize = 200;

pub(crate) async fn run(plan: Plan) {
    alone::run(plan);
    let dir = tempfile::tempdir().unwrap();
    let sqlite = Sqlite::open(semel_sqlite::Config::new(dir.path().join("keys.db")))
        .await
        .unwrap();
    sqlite.migrate().await.unwrap();
    let postgresql = Postgres::connect(semel_postgres::Config::new(postgres().fresh_database()))
        .await
        .unwrap();
    postgresql.migrate().await.unwrap();
    let bare = serve(orders()).await;
    let memory = serve(keyed(Arc::new(MemoryKeys::default()))).await;
    let replays = serve(keyed(Arc::new(MemoryKeys::default()))).await;
    let sqlite = serve(keyed(Arc::new(sqlite))).await;
    let postgresql = serve(keyed(Arc::new(postgresql))).await;
    let keys = Arc::new(AtomicU64::new(0));
    let load = |port| load::post(port, CONNECTIONS, plan.run, Arc::clone(&keys));
    Table::new(
        format!("POST requests, {CONNECTIONS} connections, load and server on the same processors"),
        "requests",
    )
    .contender("limit: axum without the layer", || load(bare))
    .contender("new keys in memory", || load(memory))
    .contender("replays from memory", || {
        load::repeat_one(replays, CONNECTIONS, plan.run)
    })
    .contender("new keys on SQLite", || load(sqlite))
    .contender("new keys on PostgreSQL", || load(postgresql))
    .measure(plan.rounds)
    .await;
}

fn orders() -> Router {
    Router::new().route(
        "/orders",
        post(|body: bytes::Bytes| async move {
            let mut answer = format!("{{\"order\":7,\"bytes\":{},\"note\":\"", body.len());
            answer.extend(std::iter::repeat_n('x', ANSWER - 2 - answer.len()));
            answer.push_str("\"}");
            (StatusCode::CREATED, answer)
        }),
    )
}

fn keyed(store: Arc<dyn KeyStore>) -> Router {
    let layer = IdempotencyLayer::builder(store)
        .anonymous_scope("bench")
        .require_key()
        .build()
        .unwrap();
    orders().layer(layer)
}

async fn serve(app: Router) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    port
}
