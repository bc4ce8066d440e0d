//! What reaches the upstream, and what comes back.

use std::convert::Infallible;

use axum::Router;
use axum::routing::post as route_post;
use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::sync::mpsc;

use super::upstream::{Upstream, answer};
use super::{World, post, request};

#[tokio::test]
async fn the_upstream_learns_key_token_attempt_and_deadline_and_who_asked() {
    let upstream = Upstream::start(|_| answer("200 OK", &[], "")).await;
    let world = World::new(upstream.address, "total_timeout_ms = 7000");
    let mut forged = request("POST", "/orders?x=1", "\"a b\"");
    for name in [
        "semel-token",
        "semel-attempt",
        "semel-deadline-ms",
        "semel-no-store",
        "x-forwarded-for",
    ] {
        forged
            .headers_mut()
            .insert(name, HeaderValue::from_static("forged"));
    }
    forged
        .headers_mut()
        .insert("connection", HeaderValue::from_static("keep-alive, x-hop"));
    forged
        .headers_mut()
        .insert("x-hop", HeaderValue::from_static("1"));
    assert_eq!(world.send(forged).await.status, 200);
    let seen = upstream.seen().remove(0).to_ascii_lowercase();
    let deadline = seen
        .lines()
        .find_map(|line| line.strip_prefix("semel-deadline-ms: "))
        .and_then(|ms| ms.parse::<u64>().ok());
    assert!(deadline.is_some_and(|ms| (6_000..=7_000).contains(&ms)), "{seen}");
    for line in [
        "post /orders?x=1 http/1.1",
        "idempotency-key: \"a b\"",
        "semel-token: 1",
        "semel-attempt: 1",
        &format!("host: {}", upstream.address),
        "x-forwarded-for: 10.0.0.2",
        "x-forwarded-host: shop.example",
        "x-forwarded-proto: http",
        "forwarded: for=10.0.0.2;host=\"shop.example\";proto=http",
        "content-length: 2",
    ] {
        assert!(
            seen.lines().any(|found| found == line),
            "{line} is not in\n{seen}"
        );
    }
    assert!(!seen.contains("forged") && !seen.contains("x-hop"), "{seen}");
}

/// Else the claim would be made in one caller's name and the upstream would see none.
#[tokio::test]
async fn a_client_cannot_have_the_key_or_the_principal_dropped_by_naming_them_in_connection() {
    let upstream = Upstream::start(|_| {
        answer(
            "200 OK",
            &["connection: semel-outcome", "semel-outcome: refused"],
            "",
        )
    })
    .await;
    let world = World::with(upstream.address, "principal_header = \"X-User\"");
    for method in ["POST", "GET"] {
        let mut request = request(method, "/orders", "a");
        for (name, value) in [
            ("x-user", "alice"),
            ("x-hop", "1"),
            ("connection", "close, X-User, x-hop"),
            ("connection", "Idempotency-Key, Semel-Token, x-forwarded-for"),
        ] {
            request
                .headers_mut()
                .append(name, HeaderValue::from_static(value));
        }
        assert_eq!(world.send(request).await.outcome(), "refused");
        let seen = upstream.seen().remove(upstream.count() - 1).to_ascii_lowercase();
        for line in ["x-user: alice", "idempotency-key: a", "x-forwarded-for: 10.0.0.2"] {
            assert!(
                seen.lines().any(|found| found == line),
                "{line} is not in\n{seen}"
            );
        }
        assert!(!seen.contains("x-hop"), "{seen}");
        assert_eq!(seen.contains("semel-token: 1"), method == "POST", "{seen}");
    }
}

/// The upstream answers each host for itself, so a key is each host's own.
#[tokio::test]
async fn where_the_upstream_sees_the_host_one_hosts_answer_is_not_another_ones() {
    for (principal, host, apart) in [
        ("anonymous = true", "preserve", true),
        ("principal_header = \"X-User\"", "preserve", true),
        ("principal_header = \"X-User\"", "upstream", false),
    ] {
        let upstream = Upstream::start(|n| answer("200 OK", &[], &n.to_string())).await;
        let world = World::with(upstream.address, &format!("{principal}\nhost = \"{host}\""));
        let ask = async |host: &'static str| {
            let mut request = post("a");
            request
                .headers_mut()
                .insert("host", HeaderValue::from_static(host));
            request
                .headers_mut()
                .insert("x-user", HeaderValue::from_static("alice"));
            world.send(request).await
        };
        assert_eq!(ask("a.example").await.body, "1");
        assert!(ask("A.example").await.replayed(), "{principal}");
        assert_eq!(ask("b.example").await.replayed(), !apart, "{principal}, {host}");
    }
    let upstream = Upstream::start(|_| answer("200 OK", &[], "")).await;
    let world = World::new(upstream.address, "host = \"preserve\"");
    let mut request = post("a");
    request
        .headers_mut()
        .insert("authorization", HeaderValue::from_static("Bearer a"));
    assert_eq!(world.send(request).await.code(), "SEM0410");
}

#[tokio::test]
async fn what_counts_of_a_json_body_is_each_routes_own() {
    let upstream = Upstream::start(|n| answer("200 OK", &[], &n.to_string())).await;
    let lines = "fingerprint_except = [\"/at\"]\n[[gateway.route]]\npaths = [\"/only\"]\nfingerprint_only = [\"/id\"]\n\
                 [[gateway.route]]\npaths = [\"/all\"]\nfingerprint = \"json\"";
    let world = World::new(upstream.address, lines);
    let ask = async |path: &str, body: &'static str| {
        let mut request = request("POST", path, path);
        *request.body_mut() = axum::body::Body::from(body);
        let answer = world.send(request).await;
        (answer.replayed(), answer.status)
    };
    let first = r#"{"id": 1, "at": 5, "n": 1}"#;
    for path in ["/orders", "/only", "/all"] {
        assert_eq!(ask(path, first).await, (false, 200));
    }
    let later = r#"{"n": 1, "at": 6, "id": 1}"#;
    let other = r#"{"id": 1, "at": 5, "n": 2}"#;
    assert_eq!(ask("/orders", later).await, (true, 200));
    assert_eq!(ask("/orders", other).await, (false, 422));
    assert_eq!(ask("/only", other).await, (true, 200));
    assert_eq!(ask("/all", later).await, (false, 422));
}

#[tokio::test]
async fn the_upstreams_control_headers_are_obeyed_and_stripped() {
    let upstream = Upstream::start(|n| match n {
        1 => answer("409 Conflict", &["semel-outcome: refused"], "out of stock"),
        _ => answer(
            "200 OK",
            &["semel-no-store: 1", "keep-alive: timeout=5"],
            "secret",
        ),
    })
    .await;
    let world = World::new(upstream.address, "");
    for replayed in [false, true] {
        let refused = world.send(post("a")).await;
        assert_eq!(
            (refused.status, refused.outcome(), refused.replayed()),
            (409, "refused", replayed)
        );
    }
    let secret = world.send(post("b")).await;
    assert_eq!(&secret.body[..], b"secret");
    assert_eq!(
        (secret.header("semel-no-store"), secret.header("keep-alive")),
        (None, None)
    );
    assert_eq!(world.send(post("b")).await.code(), "SEM0407");
    let plain = world.send(request("PUT", "/orders", "c")).await;
    assert_eq!(plain.header("semel-no-store"), None);
}

/// Rule K12.
#[tokio::test]
async fn an_inner_semels_running_is_passed_on_and_the_retry_asks_it_again() {
    let (guarantee, hop) = ("semel-guarantee: guarded", "semel-hop: {hop}");
    let upstream = Upstream::start(move |n| match n {
        1 => answer(
            "409 Conflict",
            &["semel-outcome: running", guarantee, hop, "retry-after: 1"],
            "",
        ),
        2 => answer("409 Conflict", &["semel-outcome: unknown", guarantee, hop], ""),
        3 => answer(
            "503 Away",
            &["semel-outcome: refused", guarantee, "retry-after: 1"],
            "",
        ),
        _ => answer(
            "201 Created",
            &["semel-outcome: succeeded", guarantee, "idempotent-replayed: true"],
            "done",
        ),
    })
    .await;
    let world = World::new(upstream.address, "");
    for outcome in ["running", "unknown", "refused", "succeeded"] {
        let answer = world.send(post("a")).await;
        assert_eq!(answer.outcome(), outcome);
        assert_eq!(
            answer.header("semel-guarantee"),
            Some("guarded"),
            "the inner one's word"
        );
        assert_eq!(answer.header("semel-hop"), None);
    }
    let kept = world.send(post("a")).await;
    assert_eq!(
        (kept.status, &kept.body[..], kept.replayed()),
        (201, &b"done"[..], true)
    );
    assert_eq!(upstream.count(), 4);
}

/// The upstream did something of its own, called another Semel, and passes that one's answer on.
#[tokio::test]
async fn the_word_of_a_semel_behind_the_upstream_does_not_give_the_key_back() {
    for (word, hop) in [
        ("running", "x-other: 1"),
        ("unknown", "x-other: 1"),
        ("running", "semel-hop: 00"),
    ] {
        let upstream = Upstream::start(move |_| {
            let word = format!("semel-outcome: {word}");
            answer("409 Conflict", &[&word, "semel-guarantee: guarded", hop], "")
        })
        .await;
        let world = World::new(upstream.address, "");
        for _ in 0..2 {
            assert_eq!(world.send(post("a")).await.outcome(), "unknown", "{word}");
        }
        assert_eq!(upstream.count(), 1, "{word}: what it did is not done again");
    }
}

/// A page of a shop, its API behind a gateway on another origin.
#[tokio::test]
async fn a_replay_and_a_problem_can_be_read_by_a_page_of_another_origin() {
    let shop = "https://shop.example";
    let upstream = Upstream::start(|_| {
        let own = "access-control-allow-origin: https://of-the-upstream.example";
        answer("201 Created", &[own], "done")
    })
    .await;
    for (lines, allowed) in [
        (
            "cors_origins = [\"https://other.example\", \"https://shop.example\"]",
            shop,
        ),
        ("cors_origins = [\"*\"]", "*"),
    ] {
        let world = World::new(upstream.address, &format!("{lines}\nrequest_bytes_max = 5"));
        let from = |mut request: Request<axum::body::Body>, origin: &'static str| {
            let origin = HeaderValue::from_static(origin);
            request.headers_mut().insert("origin", origin);
            request
        };
        let large = || {
            let mut request = post("b");
            *request.body_mut() = axum::body::Body::from("longer than that");
            request
        };
        let answers = [
            world.send(from(post("a"), shop)).await,
            world.send(from(post("a"), shop)).await,
            world.send(from(large(), shop)).await,
            world.send(from(request("PUT", "/orders", "a"), shop)).await,
        ];
        assert!(answers[1].replayed());
        assert_eq!(answers[2].code(), "SEM0403");
        for answer in &answers {
            assert_eq!(
                answer.header("access-control-allow-origin"),
                Some(allowed),
                "{answer:?}"
            );
            let credentials = answer.header("access-control-allow-credentials");
            assert_eq!(credentials, (allowed != "*").then_some("true"));
            let exposed = answer.header("access-control-expose-headers").unwrap();
            assert!(exposed.contains("Idempotent-Replayed") && exposed.contains("Semel-Outcome"));
        }
        let mut asks = from(request("OPTIONS", "/orders", "a"), shop);
        for (name, value) in [
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "idempotency-key"),
        ] {
            let value = HeaderValue::from_static(value);
            asks.headers_mut().insert(name, value);
        }
        let sent = upstream.count();
        let may = world.send(asks).await;
        assert_eq!((may.status, upstream.count()), (204, sent), "answered here");
        assert_eq!(may.header("access-control-allow-origin"), Some(allowed));
        assert_eq!(may.header("access-control-allow-methods"), Some("POST"));
        assert_eq!(
            may.header("access-control-allow-headers"),
            Some("idempotency-key")
        );
        let stranger = world.send(from(post("a"), "https://evil.example")).await;
        let told = stranger.header("access-control-allow-origin");
        assert_eq!(told, (allowed == "*").then_some("*"));
    }
}

#[tokio::test]
async fn only_configured_methods_and_paths_are_keyed() {
    let upstream = Upstream::start(|n| answer("200 OK", &[], &n.to_string())).await;
    let world = World::new(
        upstream.address,
        "methods = [\"POST\"]\npaths = [\"/orders\"]\nkey = \"required\"",
    );
    assert_eq!(world.send(request("POST", "/orders/7", "a")).await.body, "1");
    assert_eq!(world.send(request("POST", "/orders/7", "a")).await.body, "1");
    assert_eq!(world.send(request("PUT", "/orders/7", "a")).await.body, "2");
    assert_eq!(world.send(request("POST", "/carts", "a")).await.body, "3");
    assert_eq!(world.send(request("GET", "/orders/7", "a")).await.body, "4");
    let mut keyless = post("x");
    keyless.headers_mut().remove("idempotency-key");
    let refused = world.send(keyless).await;
    assert_eq!((refused.status, refused.code().as_str()), (400, "SEM0401"));
    assert_eq!(upstream.count(), 4);
}

#[tokio::test]
async fn principals_do_not_share_answers_and_must_be_named_once() {
    let upstream = Upstream::start(|n| answer("200 OK", &[], &n.to_string())).await;
    let world = World::with(upstream.address, "principal_header = \"X-User\"");
    let by = |users: &[&'static str]| {
        let mut request = post("a");
        for user in users {
            request
                .headers_mut()
                .append("x-user", HeaderValue::from_static(user));
        }
        request
            .headers_mut()
            .insert("authorization", HeaderValue::from_static("Bearer x"));
        request
    };
    assert_eq!(world.send(by(&["alice"])).await.body, "1");
    assert_eq!(world.send(by(&["bob"])).await.body, "2");
    assert_eq!(world.send(by(&["alice"])).await.body, "1");
    for (challenge, shown) in [
        ("", "Bearer"),
        ("challenge = \"Basic realm=shop\"", "Basic realm=shop"),
    ] {
        let world = World::with(
            upstream.address,
            &format!("principal_header = \"X-User\"\n{challenge}"),
        );
        let refused = world.send(by(&[])).await;
        assert_eq!(refused.header("www-authenticate"), Some(shown));
    }
    for nobody in [&[][..], &[""], &["alice", "bob"]] {
        let refused = world.send(by(nobody)).await;
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (401, "SEM0409"),
            "{nobody:?}"
        );
    }
    let anonymous = World::new(upstream.address, "");
    assert_eq!(anonymous.send(by(&["alice"])).await.code(), "SEM0410");
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn a_websocket_that_is_not_asked_for_in_due_form_is_refused_clearly() {
    let upstream = Upstream::start(|_| answer("200 OK", &[], "")).await;
    let world = World::new(upstream.address, "");
    let mut upgrade = request("GET", "/live", "a");
    upgrade
        .headers_mut()
        .insert("upgrade", HeaderValue::from_static("WebSocket"));
    let answer = world.send(upgrade).await;
    assert_eq!(
        (answer.status, answer.code().as_str(), upstream.count()),
        (501, "SEM0424", 0)
    );
}

#[tokio::test]
async fn an_answer_over_the_limit_reaches_the_first_caller_and_its_retry_is_told() {
    let long = "x".repeat(1_001);
    let sent = long.clone();
    let upstream = Upstream::start(move |_| answer("200 OK", &[], &sent)).await;
    let world = World::new(upstream.address, "response_bytes_max = 1000");
    assert_eq!(world.send(post("a")).await.body, long);
    assert_eq!(world.send(post("a")).await.code(), "SEM0407");
    assert_eq!(upstream.count(), 1);
}

/// Each side sees a part before the other has sent its last: nothing is collected on the way.
#[tokio::test]
async fn a_request_without_a_key_streams_both_ways() {
    let echo = Router::new().route("/echo", route_post(|body: axum::body::Body| async move { body }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move { axum::serve(listener, echo).await });
    let world = World::new(address, "request_bytes_max = 3");
    let (sender, parts) = mpsc::channel::<Result<Frame<Bytes>, Infallible>>(1);
    let stream =
        futures_util::stream::unfold(parts, |mut parts| async { Some((parts.recv().await?, parts)) });
    let body = axum::body::Body::new(StreamBody::new(stream));
    let request = Request::post("/echo").body(body).unwrap();
    let send = |text: &'static str| sender.send(Ok(Frame::data(Bytes::from_static(text.as_bytes()))));
    send("one").await.unwrap();
    let mut answer = world.begin(request).await.into_body();
    assert_eq!(answer.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
    send("two").await.unwrap();
    assert_eq!(answer.frame().await.unwrap().unwrap().into_data().unwrap(), "two");
    drop(sender);
    assert!(answer.frame().await.is_none());
    serving.abort();
}
