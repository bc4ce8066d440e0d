//! What stays the same over all attempts, and what is never sent.

use http::Request;
use http_body_util::Full;
use semel_core::{Clock as _, Key, Scope, SystemClock};
use semel_http_client::{Config, KeyForm, Outcome, Report, RequestKey};
use tower::ServiceExt as _;

use super::support::*;

#[tokio::test]
async fn every_attempt_carries_the_same_key_and_the_same_bytes() {
    let server = Server::plain(&[
        (503, &[("retry-after", "0")]),
        (429, &[]),
        (425, &[]),
        (409, &[("semel-outcome", "running")]),
        (201, &[]),
    ])
    .await;
    let outcome = client(quick())
        .oneshot(post(server.port).body(body()).unwrap())
        .await
        .unwrap();
    assert_eq!(short(&outcome), "succeeded 201 after 5");
    let keys = server.keys();
    assert_eq!(keys.len(), 5, "one key in each request");
    assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    assert!(
        keys[0].starts_with('"') && keys[0].len() == 34,
        "128 bits, quoted: {}",
        keys[0]
    );
    assert!(server.bodies().iter().all(|body| &body[..] == b"{\"amount\":1}"));
    let Outcome::Succeeded(answer) = outcome else {
        unreachable!()
    };
    let report = answer.extensions().get::<Report>().unwrap();
    assert_eq!(format!("\"{}\"", report.key.as_ref().unwrap().as_str()), keys[0]);
}

#[tokio::test]
async fn the_callers_key_is_sent_as_it_was_given() {
    let server = Server::plain(&[]).await;
    let client = client(quick());
    let charge = Key::derive(Scope::new("orders").unwrap(), &[b"7"]).child("charge");
    let derived = RequestKey::of(&charge);
    for (request, sent) in [
        (
            post(server.port).header("idempotency-key", "bare-7"),
            "bare-7".to_owned(),
        ),
        (
            post(server.port).header("idempotency-key", "\"q\""),
            "\"q\"".to_owned(),
        ),
        (
            post(server.port).extension(RequestKey::new("a b").unwrap()),
            "\"a b\"".to_owned(),
        ),
        (
            post(server.port).extension(derived.clone()),
            format!("\"{}\"", derived.as_str()),
        ),
    ] {
        let outcome = client
            .clone()
            .oneshot(request.body(body()).unwrap())
            .await
            .unwrap();
        assert!(matches!(outcome, Outcome::Succeeded(_)));
        assert_eq!(server.keys().pop(), Some(sent));
    }
    let bare = Config {
        form: KeyForm::Bare,
        ..quick()
    };
    let request = post(server.port).extension(derived.clone()).body(body()).unwrap();
    let outcome = super::support::client(bare).oneshot(request).await.unwrap();
    assert!(matches!(outcome, Outcome::Succeeded(_)));
    assert_eq!(server.keys().pop().as_deref(), Some(derived.as_str()));
}

#[tokio::test]
async fn a_request_that_cannot_keep_its_promise_is_not_sent() {
    let server = Server::plain(&[]).await;
    let config = Config {
        body_bytes_max: 11,
        ..quick()
    };
    let twice = post(server.port)
        .header("idempotency-key", "a")
        .header("idempotency-key", "a");
    let two = post(server.port)
        .header("idempotency-key", "a")
        .extension(RequestKey::new("b").unwrap());
    for (request, code, word) in [
        (post(server.port), "SEM0461", "body_bytes_max = 11"),
        (twice, "SEM0460", "more than once"),
        (two, "SEM0460", "different operations"),
    ] {
        let error = client(config.clone())
            .oneshot(request.body(body()).unwrap())
            .await
            .unwrap_err();
        assert_eq!(error.code(), code);
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_eq!(server.runs(), 0);
}

#[tokio::test]
async fn a_safe_method_needs_no_key_and_is_asked_again() {
    let server = Server::plain(&[(502, &[]), (200, &[])]).await;
    let request = Request::get(format!("http://127.0.0.1:{}/orders", server.port)).body(Full::default());
    let outcome = client(quick()).oneshot(request.unwrap()).await.unwrap();
    assert_eq!(short(&outcome), "succeeded 200 after 2");
    assert_eq!(server.keys(), Vec::<String>::new());
}

#[tokio::test]
async fn a_502_of_a_service_that_showed_nothing_is_not_sent_again() {
    for (config, wanted) in [
        (quick(), "unknown Answered(502) after 1, Look"),
        (trusting(), "succeeded 201 after 2"),
    ] {
        let server = Server::plain(&[(502, &[])]).await;
        let outcome = client(config)
            .oneshot(post(server.port).body(body()).unwrap())
            .await
            .unwrap();
        assert_eq!(short(&outcome), wanted);
    }
}

#[tokio::test]
async fn a_repeat_of_an_old_call_is_sent_only_within_the_receivers_window() {
    let server = Server::plain(&[]).await;
    let key = |hours: i64| {
        let at = SystemClock.now().plus_ms(-hours * 3_600_000);
        RequestKey::new("order-7").unwrap().first_sent(at)
    };
    for (config, hours, wanted, runs) in [
        (trusting(), 25, "unknown WindowOver after 0, Look", 0),
        (quick(), 1, "unknown EarlierCall after 0, Look", 0),
        (trusting(), 23, "succeeded 201 after 1", 1),
    ] {
        let request = post(server.port).extension(key(hours)).body(body()).unwrap();
        let outcome = client(config).oneshot(request).await.unwrap();
        assert_eq!((short(&outcome).as_str(), server.runs()), (wanted, runs));
    }
}
