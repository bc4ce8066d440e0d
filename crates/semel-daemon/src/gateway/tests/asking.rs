//! Another service says who calls.

use http::HeaderValue;

use super::upstream::{Does, Upstream, answer};
use super::{World, post};

fn lines(auth: &Upstream) -> String {
    format!(
        "principal_header = \"X-User\"\nauth_url = \"http://{}/who\"\nauth_timeout_ms = 300",
        auth.address
    )
}

fn by(token: &str, key: &str) -> http::Request<axum::body::Body> {
    let mut request = post(key);
    let token = HeaderValue::from_str(token).unwrap();
    request.headers_mut().insert("authorization", token);
    request
        .headers_mut()
        .insert("x-user", HeaderValue::from_static("forged"));
    request
}

/// Services read one line of cookies (RFC 9113, 8.2.3).
#[tokio::test]
async fn a_cookie_in_crumbs_is_one_line_to_the_auth_url_too() {
    let auth = Upstream::start(|_| answer("200 OK", &["x-user: alice"], "")).await;
    let upstream = Upstream::start(|_| answer("200 OK", &[], "")).await;
    let world = World::with(upstream.address, &lines(&auth));
    let mut request = by("Bearer a", "k");
    for crumb in ["session=7", "theme=dark"] {
        let crumb = HeaderValue::from_static(crumb);
        request.headers_mut().append("cookie", crumb);
    }
    assert_eq!(world.send(request).await.status, 200);
    let asked = auth.seen().remove(0);
    let cookies: Vec<&str> = asked.lines().filter(|line| line.starts_with("cookie")).collect();
    assert_eq!(cookies, ["cookie: session=7; theme=dark"]);
}

/// A revoked caller gets no stored answer (notes: authorise replays now).
#[tokio::test]
async fn the_principal_of_each_request_is_asked_for_replays_too() {
    let auth = Upstream::start(|n| match n {
        1 | 2 => answer("200 OK", &["x-user: alice"], ""),
        3 => answer("200 OK", &["x-user: bob"], ""),
        _ => answer("403 Forbidden", &["x-why: revoked"], "no"),
    })
    .await;
    let upstream = Upstream::start(|n| answer("200 OK", &[], &n.to_string())).await;
    let world = World::with(upstream.address, &lines(&auth));
    assert_eq!(world.send(by("Bearer a", "k")).await.body, "1");
    let again = world.send(by("Bearer b", "k")).await;
    assert_eq!((&again.body[..], again.replayed()), (&b"1"[..], true));
    assert_eq!(world.send(by("Bearer c", "k")).await.body, "2", "another caller");
    let revoked = world.send(by("Bearer a", "k")).await;
    assert_eq!((revoked.status, &revoked.body[..]), (403, &b"no"[..]));
    assert_eq!(
        (revoked.header("x-why"), revoked.outcome()),
        (Some("revoked"), "refused")
    );
    let asked = auth.seen().remove(0).to_ascii_lowercase();
    for line in [
        "get /who http/1.1",
        "authorization: bearer a",
        "x-original-method: post",
        "x-original-uri: /orders",
    ] {
        assert!(
            asked.lines().any(|found| found == line),
            "{line} is not in\n{asked}"
        );
    }
    let seen = upstream.seen().remove(0).to_ascii_lowercase();
    assert!(
        seen.contains("x-user: alice") && !seen.contains("forged"),
        "{seen}"
    );
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn who_cannot_be_verified_is_told_so_and_nothing_is_done() {
    let auth = Upstream::start(|n| match n {
        1 => answer("500 Oops", &[], ""),
        2 => answer("200 OK", &[], "nobody is named"),
        3 => answer("200 OK", &["x-user: a", "x-user: b"], ""),
        4 => Does::Hangs(""),
        _ => Does::Closes,
    })
    .await;
    let upstream = Upstream::start(|_| answer("200 OK", &[], "")).await;
    let world = World::with(upstream.address, &lines(&auth));
    for _ in 0..5 {
        let refused = world.send(by("Bearer a", "k")).await;
        assert_eq!(
            (refused.status, refused.code().as_str(), refused.outcome()),
            (503, "SEM0473", "refused")
        );
        assert_eq!(refused.header("retry-after"), Some("1"));
    }
    assert_eq!(upstream.count(), 0);
    let mut keyless = by("Bearer a", "k");
    keyless.headers_mut().remove("idempotency-key");
    assert_eq!(
        world.send(keyless).await.status,
        200,
        "the upstream's own business"
    );
    assert_eq!(auth.count(), 5);
    let seen = upstream.seen().remove(0).to_ascii_lowercase();
    assert!(!seen.contains("x-user"), "nobody named the caller:\n{seen}");
}

/// What passes through by its method or path is not named by the client either, and what a proxy names stays.
#[tokio::test]
async fn a_client_cannot_name_itself_on_any_route_that_auth_url_speaks_for() {
    let auth = Upstream::start(|_| answer("200 OK", &["x-user: alice"], "")).await;
    let upstream = Upstream::start(|_| answer("200 OK", &[], "")).await;
    let world = World::with(upstream.address, &lines(&auth));
    let mut get = by("Bearer a", "k");
    *get.method_mut() = http::Method::GET;
    assert_eq!(world.send(get).await.status, 200);
    let seen = upstream.seen().remove(0);
    assert!(!seen.contains("forged"), "{seen}");
}

#[tokio::test]
async fn in_shadow_the_service_stands_in_nobodys_way() {
    let auth = Upstream::start(|n| match n {
        1 => answer("403 Forbidden", &[], "no"),
        2 => Does::Closes,
        _ => Does::Hangs(""),
    })
    .await;
    let upstream = Upstream::start(|_| answer("200 OK", &[], "")).await;
    let lines = lines(&auth).replace("= 300", "= 60000") + "\nshadow = true";
    let world = World::with(upstream.address, &lines);
    for n in 0..3 {
        let sent = world.send(by("Bearer a", "k"));
        let passed = tokio::time::timeout(std::time::Duration::from_secs(15), sent).await;
        assert_eq!(passed.expect("it does not wait for it").status, 200);
        let seen = upstream.seen().remove(n);
        assert!(!seen.contains("forged"), "{seen}");
    }
}

/// Else a client chooses the address that the service believes to be asked from.
#[tokio::test]
async fn the_service_learns_who_asked_from_the_gateway_and_not_from_the_client() {
    for (line, shown) in [
        ("", "10.0.0.2"),
        ("\ntrust_forwarded = true", "10.0.0.9, 10.0.0.2"),
    ] {
        let auth = Upstream::start(|_| answer("200 OK", &["x-user: alice"], "")).await;
        let upstream = Upstream::start(|_| answer("200 OK", &[], "")).await;
        let world = World::with(upstream.address, &(lines(&auth) + line));
        let mut request = by("Bearer a", "k");
        for (name, value) in [
            ("x-forwarded-for", "10.0.0.9"),
            ("x-forwarded-user", "admin"),
            ("forwarded", "for=10.0.0.9"),
            ("semel-token", "7"),
        ] {
            request
                .headers_mut()
                .insert(name, HeaderValue::from_static(value));
        }
        assert_eq!(world.send(request).await.status, 200);
        let asked = auth.seen().remove(0).to_ascii_lowercase();
        for line in [&format!("x-forwarded-for: {shown}"), "x-forwarded-proto: http"] {
            assert!(
                asked.lines().any(|found| found == line),
                "{line} is not in\n{asked}"
            );
        }
        assert!(!asked.contains("semel-token"), "{asked}");
        let trusted = !line.is_empty();
        assert_eq!(asked.contains("admin"), trusted, "{asked}");
        assert_eq!(asked.contains("for=10.0.0.9"), trusted, "{asked}");
    }
}
