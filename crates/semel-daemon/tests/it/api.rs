//! The key API of a real daemon: tokens on the wire, crashes in the middle, two daemons on one store.

use bytes::Bytes;
use http::{Request, Response};
use semel_client::{ClientError, HttpClient, Limits};
use semel_testkit::servers::{PostgresServer, free_port, postgres};
use serde_json::{Value, json};

use super::daemon::{Daemon, Folder, LIMIT, json as body, run, texts, until};

const NONCE: &str = "00112233445566778899aabbccddeeff";
const OTHER: &str = "ffeeddccbbaa99887766554433221100";

/// A caller of one API.
struct Caller {
    base: String,
    token: Option<&'static str>,
    client: HttpClient,
}

impl Caller {
    fn new(port: u16) -> Self {
        Self {
            base: format!("http://127.0.0.1:{port}"),
            token: None,
            client: HttpClient::new(Limits::default()),
        }
    }

    async fn try_ask(&self, operation: &str, body: Value) -> Result<Response<Bytes>, ClientError> {
        let mut request = Request::post(format!("{}/v1/keys/{operation}", self.base))
            .header("content-type", "application/json");
        if let Some(token) = self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Bytes::from(body.to_string())).unwrap();
        self.client.send(request, LIMIT).await
    }

    async fn ask(&self, operation: &str, body: Value) -> Response<Bytes> {
        self.try_ask(operation, body).await.unwrap()
    }

    async fn claim(&self, nonce: &str) -> Response<Bytes> {
        self.ask("claim", claim(nonce)).await
    }
}

fn claim(nonce: &str) -> Value {
    json!({"scope": "orders", "id": "o-7", "input": "2 teapots", "nonce": nonce, "lease_ms": 60_000})
}

fn complete(token: &Value, nonce: &str) -> Value {
    json!({"scope": "orders", "id": "o-7", "token": token, "nonce": nonce, "outcome": "succeeded", "output": "order 7"})
}

/// A folder whose daemon has an API, and the API's port.
fn folder(store: &str, more: &str) -> (Folder, u16) {
    let port = free_port();
    let config = format!("[store]\n{store}\n[api]\nlisten = \"127.0.0.1:{port}\"\n{more}");
    (Folder::new(&config), port)
}

const SQLITE: &str = "url = \"sqlite:semel.db\"";

async fn started(folder: &Folder) -> Daemon {
    let daemon = folder.start().await;
    daemon.until_ready().await;
    daemon
}

#[tokio::test]
async fn a_key_is_claimed_completed_and_answered_from_then_on() {
    let (folder, port) = folder(SQLITE, "");
    let daemon = started(&folder).await;
    let caller = Caller::new(port);
    let granted = caller.claim(NONCE).await;
    assert_eq!(granted.status(), 201, "{granted:?}");
    assert_eq!(granted.headers()["cache-control"], "no-store");
    assert_eq!(caller.claim(OTHER).await.status(), 409);
    let done = caller
        .ask("complete", complete(&body(&granted)["token"], NONCE))
        .await;
    assert_eq!(done.status(), 200, "{done:?}");
    let again = caller.claim(OTHER).await;
    assert_eq!(
        (again.status().as_u16(), &body(&again)["output"]),
        (200, &json!("order 7"))
    );

    for (operation, status, count) in [
        ("claim", 201, 1.0),
        ("claim", 409, 1.0),
        ("claim", 200, 1.0),
        ("complete", 200, 1.0),
    ] {
        let name = format!("semel_api_requests_total{{operation=\"{operation}\",status=\"{status}\"}}");
        assert_eq!(daemon.metric(&name).await, Some(count), "{name}");
    }
    assert_eq!(daemon.metric("semel_api_waiting").await, Some(0.0));
    assert_eq!(
        daemon.metric("semel_ready{kind=\"api\",name=\"keys\"}").await,
        Some(1.0)
    );
    assert_eq!(daemon.stop().await.0, 0);
}

#[tokio::test]
async fn tokens_are_asked_for_replaced_and_never_logged() {
    let tokens =
        |tokens: &str| format!("[[api.token]]\nname = \"shop\"\ntoken = {tokens}\nscopes = [\"orders\"]\n");
    let (folder, port) = folder(
        SQLITE,
        &tokens("[\"old-token-old-token\", \"new-token-new-token\"]"),
    );
    let daemon = started(&folder).await;
    let mut caller = Caller::new(port);
    let missing = caller.claim(NONCE).await;
    assert_eq!(missing.status(), 401);
    assert_eq!(missing.headers()["www-authenticate"], "Bearer");
    for (token, status) in [
        ("wrong-token-wrong-token", 401),
        ("old-token-old-token", 201),
        ("new-token-new-token", 201),
    ] {
        caller.token = Some(token);
        assert_eq!(caller.claim(NONCE).await.status(), status, "{token}");
    }
    let other = json!({"scope": "carts", "id": "1", "input": ""});
    assert_eq!(caller.ask("claim", other).await.status(), 403);
    let settle =
        json!({"scope": "orders", "id": "o-7", "token": 1, "verdict": "forgotten", "by": "a", "why": "b"});
    assert_eq!(caller.ask("settle", settle).await.status(), 403);

    let path = folder.file("semel.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"old-token-old-token\", ", "")).unwrap();
    daemon.hang_up();
    caller.token = Some("old-token-old-token");
    until("the old token is refused, without a restart", async || {
        caller.claim(NONCE).await.status() == 401
    })
    .await;
    caller.token = Some("new-token-new-token");
    assert_eq!(caller.claim(NONCE).await.status(), 201);
    let (code, log) = daemon.stop().await;
    assert!(
        code == 0 && !log.contains("token-old") && !log.contains("token-new"),
        "{log}"
    );
}

#[test]
fn an_api_that_is_open_to_other_machines_is_refused_with_the_fix() {
    let folder = Folder::new(&format!("[store]\n{SQLITE}\n[api]\nlisten = \"0.0.0.0:0\""));
    for command in ["run", "check"] {
        let (stdout, stderr, code) = texts(&run(folder.path(), &[command]));
        assert_eq!(code, 2, "{stdout}{stderr}");
        let said = stdout + &stderr;
        assert!(
            said.contains("there is no [[api.token]]") && said.contains("or listen on 127.0.0.1"),
            "{said}"
        );
    }
    folder.append("\n[[api.token]]\nname = \"a\"\ntoken = \"${SEMEL_NO_SUCH_TOKEN}\"\nscopes = [\"*\"]\n");
    let (stdout, ..) = texts(&run(folder.path(), &["check"]));
    assert!(stdout.contains("SEMEL_NO_SUCH_TOKEN is not set"), "{stdout}");
}

#[test]
fn check_looks_at_the_port_and_says_who_may_ask() {
    let (folder, port) = folder(SQLITE, "");
    let (stdout, ..) = texts(&run(folder.path(), &["check"]));
    assert!(stdout.contains("key API on"), "{stdout}");
    assert!(
        stdout.contains(&format!("ok\tapi\tport\t127.0.0.1:{port} is free")),
        "{stdout}"
    );
    assert!(stdout.contains("ok\tapi\taccess\tno tokens"), "{stdout}");
    let _taken = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let (stdout, _, code) = texts(&run(folder.path(), &["check"]));
    assert!(code == 1 && stdout.contains("bad\tapi\tport"), "{stdout}");
    let (_, stderr, code) = texts(&run(folder.path(), &["run"]));
    assert!(
        code == 1 && stderr.contains("SEM0302") && stderr.contains("[api] listen"),
        "{stderr}"
    );
}

#[test]
fn the_document_is_printed_as_it_is_served() {
    let folder = Folder::new("");
    let (stdout, _, code) = texts(&run(folder.path(), &["api", "openapi"]));
    let document: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &document["openapi"]), (0, &json!("3.1.0")));
}

/// The caller's view of a daemon that dies at some point: no answer, then the same request again.
async fn dies_at(store: &str, point: &str) {
    let (folder, port) = folder(&format!("{store}\nmigrate = true"), "");
    let caller = Caller::new(port);
    let mut armed = folder.spawn(&[("SEMEL_CRASH_POINT", point)]);
    armed.until_alive().await;
    armed.until_ready().await;
    let mut died = 0;
    let first = caller.try_ask("claim", claim(NONCE)).await.ok();
    let granted = match first {
        Some(granted) => granted,
        None => {
            assert!(point.starts_with("key.claimed"), "{point}");
            died += 1;
            armed.ended().await;
            armed = started(&folder).await;
            let repeated = caller.claim(NONCE).await;
            assert_eq!(
                repeated.status(),
                201,
                "rule K3: granted to the same nonce after the crash"
            );
            repeated
        }
    };
    assert_eq!(caller.claim(OTHER).await.status(), 409, "nobody else runs it");
    let done = complete(&body(&granted)["token"], NONCE);
    if caller.try_ask("complete", done.clone()).await.is_err() {
        assert!(
            point.starts_with("key.before_complete") || point.starts_with("key.completed"),
            "{point}"
        );
        died += 1;
        armed.ended().await;
        armed = started(&folder).await;
        assert_eq!(
            caller.ask("complete", done).await.status(),
            200,
            "rule K2: stored once, whenever it died"
        );
    }
    assert_eq!(died, 1, "{point}: it died once, and there");
    let again = caller.claim(OTHER).await;
    assert_eq!(
        (again.status().as_u16(), &body(&again)["output"]),
        (200, &json!("order 7")),
        "{point}"
    );
    let read = caller.ask("read", json!({"scope": "orders", "id": "o-7"})).await;
    assert_eq!(body(&read)["token"], body(&granted)["token"], "one run");
    let (_, log) = armed.stop().await;
    assert!(!log.contains("panicked"), "{log}");
}

#[tokio::test]
async fn a_daemon_that_dies_in_a_claim_or_completion_leaves_one_run_on_sqlite() {
    for point in ["key.claimed", "key.before_complete", "key.completed"] {
        dies_at(SQLITE, point).await;
    }
}

#[tokio::test]
async fn a_daemon_that_dies_in_a_claim_or_completion_leaves_one_run_on_postgresql() {
    for point in ["key.claimed", "key.before_complete", "key.completed"] {
        dies_at(&format!("url = \"{}\"", postgres().fresh_database()), point).await;
    }
}

#[tokio::test]
async fn after_kill_9_what_was_answered_is_there() {
    let (folder, port) = folder(SQLITE, "");
    let mut daemon = started(&folder).await;
    let caller = Caller::new(port);
    let granted = caller.claim(NONCE).await;
    daemon.process.kill();
    let mut daemon = started(&folder).await;
    assert_eq!(caller.claim(OTHER).await.status(), 409);
    let done = complete(&body(&granted)["token"], NONCE);
    assert_eq!(caller.ask("complete", done).await.status(), 200);
    daemon.process.kill();
    let _daemon = started(&folder).await;
    assert_eq!(body(&caller.claim(OTHER).await)["output"], "order 7");
}

/// Two daemons share a store: what one grants the other refuses, and a wait on one ends by an end on the other.
async fn two_daemons(store: &str) {
    let (one, port_one) = folder(store, "");
    let (two, port_two) = folder(store, "");
    let (_a, _b) = (started(&one).await, started(&two).await);
    let (a, b) = (Caller::new(port_one), Caller::new(port_two));
    let mut granted = 0;
    for n in 0..20 {
        let claim = json!({"scope": "race", "id": n.to_string(), "input": ""});
        let (x, y) = tokio::join!(a.ask("claim", claim.clone()), b.ask("claim", claim));
        let pair = [x.status().as_u16(), y.status().as_u16()];
        assert!(pair == [201, 409] || pair == [409, 201], "{pair:?}");
        granted += 1;
    }
    assert_eq!(granted, 20);

    let lease = body(&a.claim(NONCE).await);
    let waiting = async {
        let wait = json!({"scope": "orders", "id": "o-7", "wait_ms": 30_000});
        body(&b.ask("wait", wait).await)
    };
    let ending = async {
        until("the other one waits", async || {
            _b.metric("semel_api_waiting").await == Some(1.0)
        })
        .await;
        a.ask("complete", complete(&lease["token"], NONCE)).await
    };
    let began = std::time::Instant::now();
    let (seen, done) = tokio::join!(waiting, ending);
    assert_eq!((done.status().as_u16(), &seen["state"]), (200, &json!("done")));
    assert_eq!(seen["output"], "order 7");
    assert!(began.elapsed().as_secs() < 25, "woken or found, not timed out");
}

#[tokio::test]
async fn two_daemons_on_one_sqlite_file_are_one_api() {
    let shared = tempfile::tempdir().unwrap();
    two_daemons(&format!(
        "url = \"sqlite:{}\"",
        shared.path().join("keys.db").display()
    ))
    .await;
}

#[tokio::test]
async fn two_daemons_on_one_postgresql_are_one_api() {
    two_daemons(&format!(
        "url = \"{}\"\nmigrate = true",
        postgres().fresh_database()
    ))
    .await;
}

#[tokio::test]
async fn while_the_store_is_away_nothing_is_granted_and_afterwards_the_same_request_goes_on() {
    let mut server = PostgresServer::start();
    let url = server.fresh_database();
    let (folder, port) = folder(
        &format!("url = \"{url}\"\nmigrate = true\nacquire_timeout_ms = 500"),
        "",
    );
    let daemon = started(&folder).await;
    let caller = Caller::new(port);
    let granted = caller.claim(NONCE).await;
    server.kill();
    let done = complete(&body(&granted)["token"], NONCE);
    let away = caller.ask("complete", done.clone()).await;
    assert_eq!(away.status(), 503, "{away:?}");
    assert!(away.headers().contains_key("retry-after"));
    assert!(
        ["SEM0714", "SEM0715"].contains(&body(&away)["code"].as_str().unwrap()),
        "{away:?}"
    );
    server.restart();
    daemon.until_ready().await;
    until("the completion is stored", async || {
        caller.ask("complete", done.clone()).await.status() == 200
    })
    .await;
    assert_eq!(body(&caller.claim(OTHER).await)["output"], "order 7");
}

#[tokio::test]
async fn a_stopping_daemon_answers_those_who_wait() {
    let (folder, port) = folder(SQLITE, "");
    let mut daemon = started(&folder).await;
    let caller = Caller::new(port);
    caller.claim(NONCE).await;
    let waiting = caller.ask("wait", json!({"scope": "orders", "id": "o-7", "wait_ms": 30_000}));
    let stopping = async {
        until("it waits", async || {
            daemon.metric("semel_api_waiting").await == Some(1.0)
        })
        .await;
        daemon.process.terminate();
    };
    let began = std::time::Instant::now();
    let (answer, ()) = tokio::join!(waiting, stopping);
    assert_eq!(body(&answer)["state"], "claimed");
    assert!(began.elapsed().as_secs() < 25);
    assert_eq!(daemon.ended().await.0, 0);
}

#[tokio::test]
async fn who_settled_and_why_is_logged() {
    let (folder, port) = folder(SQLITE, "");
    let daemon = started(&folder).await;
    let caller = Caller::new(port);
    let lease = body(&caller.claim(NONCE).await);
    let abandoned = json!({"scope": "orders", "id": "o-7", "token": lease["token"], "nonce": NONCE});
    caller.ask("abandon", abandoned).await;
    let settle = json!({"scope": "orders", "id": "o-7", "token": lease["token"], "verdict": "did_not_happen",
                        "by": "ann", "why": "not at the bank"});
    assert_eq!(caller.ask("settle", settle).await.status(), 200);
    let (_, log) = daemon.stop().await;
    let line = log
        .lines()
        .find(|line| line.contains("settles a key over the API"))
        .unwrap_or_default();
    assert!(
        ["ann", "not at the bank", "o-7", "result=\"settled\""]
            .iter()
            .all(|wanted| line.contains(wanted)),
        "{log}"
    );
}
