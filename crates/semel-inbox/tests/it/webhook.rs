//! A webhook receiver over SQLite, driven through axum.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use axum::response::{IntoResponse as _, Response as AxumResponse};
use axum::routing::post;
use semel_core::Scope;
use semel_inbox::{Delivery, DeliveryLimits, HandlerError, receive};
use semel_sqlite::{Config, Sqlite, classify};
use tower::ServiceExt as _;

#[derive(Clone)]
struct App {
    db: Sqlite,
    runs: Arc<AtomicU32>,
}

async fn ship(State(app): State<App>, delivery: Delivery) -> AxumResponse {
    let scope = Scope::new("shipping").unwrap();
    let received = receive(&app.db, &scope, &delivery, async |tx, delivery| {
        app.runs.fetch_add(1, Ordering::SeqCst);
        sqlx::query("INSERT INTO parcel (label) VALUES (?1)")
            .bind(&delivery.data[..])
            .execute(tx.conn())
            .await
            .map_err(|error| classify("ship", error))?;
        match &delivery.data[..] {
            b"refuse" => Err(HandlerError::Refused("no such address".to_owned())),
            b"later" if app.runs.load(Ordering::SeqCst) == 1 => {
                Err(HandlerError::Later("carrier closed".to_owned()))
            }
            _ => Ok(StatusCode::CREATED),
        }
    })
    .await;
    match received {
        Ok(received) => received.into_response(),
        Err(error) => error.into_response(),
    }
}

struct World {
    app: App,
    router: Router,
    _dir: tempfile::TempDir,
}

async fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let db = Sqlite::open(Config::new(dir.path().join("shipping.db")))
        .await
        .unwrap();
    db.migrate().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    sqlx::query("CREATE TABLE parcel (label BLOB NOT NULL CHECK (length(label) < 100))")
        .execute(&mut *tx)
        .await
        .unwrap();
    db.commit(tx).await.unwrap();
    let app = App {
        db,
        runs: Arc::default(),
    };
    let router = Router::new()
        .route("/parcels", post(ship))
        .layer(axum::Extension(DeliveryLimits {
            body_bytes_max: 1_000,
        }))
        .with_state(app.clone());
    World {
        app,
        router,
        _dir: dir,
    }
}

impl World {
    async fn send(&self, key: Option<&str>, body: impl Into<Body>) -> Response<Body> {
        let mut request = Request::post("/parcels");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(body.into()).unwrap();
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn parcels(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM parcel")
            .fetch_one(self.app.db.readers())
            .await
            .unwrap()
    }
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> &'a str {
    response
        .headers()
        .get(name)
        .map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn a_redelivery_is_answered_with_success_and_changes_nothing() {
    let w = world().await;
    let first = w.send(Some("\"e1\""), "a").await;
    assert_eq!(first.status(), StatusCode::CREATED);
    assert_eq!(header(&first, "semel-outcome"), "succeeded");
    assert_eq!(header(&first, "idempotent-replayed"), "");

    let again = w.send(Some("e1"), "a").await;
    assert_eq!(again.status(), StatusCode::OK);
    assert_eq!(header(&again, "semel-outcome"), "succeeded");
    assert_eq!(header(&again, "idempotent-replayed"), "true");
    assert_eq!((w.parcels().await, w.app.runs.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test]
async fn copies_that_arrive_at_the_same_moment_are_handled_once() {
    let w = Arc::new(world().await);
    let sends: Vec<_> = (0..8)
        .map(|_| {
            let w = w.clone();
            tokio::spawn(async move { w.send(Some("e1"), "a").await.status() })
        })
        .collect();
    let mut created = 0;
    for send in sends {
        let status = send.await.unwrap();
        assert!(status.is_success(), "{status}");
        created += u32::from(status == StatusCode::CREATED);
    }
    assert_eq!((created, w.parcels().await), (1, 1));
}

#[tokio::test]
async fn a_handler_that_fails_after_the_mark_takes_the_mark_with_it() {
    let w = world().await;
    let first = w.send(Some("e1"), "later").await;
    assert_eq!(first.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(header(&first, "semel-outcome"), "unknown");
    assert_eq!(w.parcels().await, 0);
    assert_eq!(w.send(Some("e1"), "later").await.status(), StatusCode::CREATED);
    assert_eq!(w.parcels().await, 1);
}

#[tokio::test]
async fn a_refusal_is_certain_and_says_why() {
    let w = world().await;
    let answer = w.send(Some("e1"), "refuse").await;
    assert_eq!(answer.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(header(&answer, "semel-outcome"), "refused");
    assert_eq!(header(&answer, "content-type"), "application/problem+json");
    let body = to_bytes(answer.into_body(), 10_000).await.unwrap();
    assert!(String::from_utf8_lossy(&body).contains("no such address"));
    assert_eq!(w.parcels().await, 0);

    // A constraint of the receiver's own table blames the message as well, without telling the table's secrets.
    let answer = w.send(Some("e2"), "x".repeat(200)).await;
    assert_eq!(answer.status(), StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn what_is_no_delivery_is_refused_before_the_handler_runs() {
    let w = world().await;
    assert_eq!(w.send(None, "a").await.status(), StatusCode::BAD_REQUEST);
    let large = w.send(Some("e1"), "x".repeat(1_001)).await;
    assert_eq!(large.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let body = to_bytes(large.into_body(), 10_000).await.unwrap();
    let text = String::from_utf8_lossy(&body).into_owned();
    assert!(
        text.contains("1000 bytes") && text.contains("body_bytes_max"),
        "{text}"
    );
    assert_eq!((w.parcels().await, w.app.runs.load(Ordering::SeqCst)), (0, 0));
}

#[tokio::test]
async fn a_database_that_cannot_answer_makes_the_sender_deliver_again() {
    let w = world().await;
    w.app.db.close().await;
    let answer = w.send(Some("e1"), "a").await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(header(&answer, "semel-outcome"), "unknown");
}
