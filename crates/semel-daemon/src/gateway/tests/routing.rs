//! Which policy a request meets.

use super::upstream::{Does, Upstream, answer};
use super::{World, request};

const ROUTES: &str = "key = \"off\"\n\
    [[gateway.route]]\npaths = [\"/payments/*/notes\"]\nkey = \"optional\"\n\
    [[gateway.route]]\npaths = [\"/payments\"]\nmethods = [\"POST\", \"DELETE\"]\nkey = \"required\"\nresponse_bytes_max = 0\n\
    [[gateway.route]]\npaths = [\"/public\"]\nkey = \"off\"\n";

/// The status and code of a request without a key.
async fn without_key(world: &World, method: &str, target: &str) -> (u16, String) {
    let mut request = request(method, target, "x");
    request.headers_mut().remove("idempotency-key");
    let answer = world.send(request).await;
    (answer.status, answer.code())
}

#[tokio::test]
async fn the_first_route_that_matches_counts_and_each_has_its_own_policy() {
    let upstream = Upstream::start(|n| answer("200 OK", &[], &n.to_string())).await;
    let world = World::new(upstream.address, ROUTES);
    let required = (400, "SEM0401".to_owned());
    let passes = (200, "none".to_owned());
    assert_eq!(without_key(&world, "POST", "/payments").await, required);
    assert_eq!(without_key(&world, "post", "/payments").await, required);
    assert_eq!(without_key(&world, "DELETE", "/payments/7").await, required);
    assert_eq!(without_key(&world, "PATCH", "/payments/7").await, passes);
    assert_eq!(without_key(&world, "POST", "/payments/7/notes").await, passes);
    assert_eq!(without_key(&world, "POST", "/elsewhere").await, passes);
    assert_eq!(without_key(&world, "GET", "/payments").await, passes);
    let sent = upstream.count();
    // An answer too large for this route's records, though not for the other's.
    assert_eq!(world.send(request("POST", "/payments", "a")).await.status, 200);
    assert_eq!(
        world.send(request("POST", "/payments", "a")).await.code(),
        "SEM0407"
    );
    for replayed in [false, true] {
        let note = world.send(request("POST", "/payments/7/notes", "b")).await;
        assert_eq!((note.status, note.replayed()), (200, replayed));
    }
    // Off: the key is passed on unread, each time.
    for _ in 0..2 {
        let off = world.send(request("POST", "/public", "not a valid\" key")).await;
        assert_eq!((off.status, off.header("semel-outcome")), (200, None));
    }
    assert_eq!(upstream.count(), sent + 4);
}

/// Session one's hole: another spelling of the path went by the route that requires a key.
#[tokio::test]
async fn no_spelling_of_a_path_passes_by_the_route_that_requires_a_key_and_each_is_forwarded_as_sent() {
    let upstream = Upstream::start(|_| answer("200 OK", &[], "")).await;
    let world = World::new(upstream.address, ROUTES);
    for (n, target) in [
        "/payments/",
        "//payments",
        "/./payments",
        "/%70ayments",
        "/%2570ayments",
        "/payments;x=1",
        "/public/../payments",
        "/public/%2e%2e/payments",
        "/public%2f..%2fpayments",
        "/public/..;/payments",
        "/payments/../public",
        "/payments?x=/../public",
        "/a%2Fb/../payments",
        "/a//../../payments",
    ]
    .into_iter()
    .enumerate()
    {
        let refused = without_key(&world, "POST", target).await;
        assert_eq!(refused, (400, "SEM0401".to_owned()), "{target}");
        let sent = world.send(request("POST", target, &n.to_string())).await;
        assert_eq!(sent.outcome(), "succeeded", "{target}");
        let seen = upstream.seen().pop().unwrap();
        assert!(seen.starts_with(&format!("POST {target} HTTP/1.1\r\n")), "{seen}");
    }
    assert_eq!(upstream.count(), 14);
}

#[tokio::test]
async fn a_route_says_where_its_key_stands_and_what_counts_as_the_same_body() {
    let upstream = Upstream::start(|n| answer("200 OK", &[], &n.to_string())).await;
    let lines = "key = \"required\"\nkey_headers = [\"X-Request-Id\"]\nkey_pointers = [\"/id\"]\nfingerprint = \"json\"";
    let world = World::new(upstream.address, lines);
    let send = async |headers: &[(&'static str, &'static str)], body: &'static str| {
        let mut request = request("POST", "/orders", "x");
        request.headers_mut().remove("idempotency-key");
        for (name, value) in headers {
            request
                .headers_mut()
                .insert(*name, http::HeaderValue::from_static(value));
        }
        *request.body_mut() = axum::body::Body::from(body);
        let answer = world.send(request).await;
        (answer.status, answer.replayed())
    };
    assert_eq!(
        send(&[("x-request-id", "a")], "{\"a\":1,\"b\":2}").await,
        (200, false)
    );
    assert_eq!(
        send(&[("idempotency-key", "a")], "{ \"b\": 2, \"a\": 1 }").await,
        (200, true)
    );
    assert_eq!(send(&[], "{\"id\":\"b\"}").await, (200, false));
    assert_eq!(
        send(&[("x-request-id", "b")], "{\"id\":\"b\"}").await,
        (200, true)
    );
    assert_eq!(send(&[("x-request-id", "c")], "{\"id\":\"b\"}").await.0, 400);
    assert_eq!(send(&[], "{}").await.0, 400);
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn in_shadow_nothing_is_refused_and_nothing_replayed() {
    let upstream = Upstream::start(|_| answer("200 OK", &[], "")).await;
    let world = World::new(upstream.address, "key = \"required\"\nshadow = true");
    for _ in 0..2 {
        let passed = world.send(request("POST", "/orders", "a")).await;
        assert_eq!((passed.status, passed.replayed()), (200, false));
    }
    assert_eq!(without_key(&world, "POST", "/orders").await.0, 200);
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn a_route_without_keys_has_its_own_times() {
    let upstream = Upstream::start(|_| Does::Hangs("")).await;
    let lines = "first_byte_timeout_ms = 86400000\n[[gateway.route]]\npaths = [\"/off\"]\nkey = \"off\"\n\
                 first_byte_timeout_ms = 50";
    let world = World::new(upstream.address, lines);
    let slow = world.send(request("POST", "/off", "a"));
    let slow = tokio::time::timeout(std::time::Duration::from_secs(30), slow).await;
    let slow = slow.expect("the time of the route, not a day");
    assert_eq!((slow.status, slow.code().as_str()), (504, "SEM0423"));
}
