//! Connections that are refused, cut and slow.

use semel_http_client::{CanDo, Config, Outcome, Refusal};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::free_port;
use tower::ServiceExt as _;

use super::support::*;

/// What a layer over a store that survives a fail-over says; that of the model in memory says that it forgets.
const SHOWN: &[(u16, &[(&str, &str)])] = &[(201, &[("semel-guarantee", "guarded")])];

#[tokio::test]
async fn a_lost_reply_is_asked_for_again_where_the_route_has_shown_that_it_deduplicates() {
    let server = Server::keyed(SHOWN).await;
    let proxy = Proxy::to_port(server.port).await.unwrap();
    let client = client(quick());
    let first = client
        .clone()
        .oneshot(post(proxy.port()).body(body()).unwrap())
        .await
        .unwrap();
    assert_eq!(short(&first), "succeeded 201 after 1");
    proxy.drop_reply();
    let second = client
        .oneshot(post(proxy.port()).body(body()).unwrap())
        .await
        .unwrap();
    assert_eq!(short(&second), "succeeded 201 after 2, replayed");
    assert_eq!((server.runs(), proxy.hits()), (2, 1));
}

#[tokio::test]
async fn a_lost_reply_of_a_route_that_has_shown_nothing_is_unknown_at_once() {
    let server = Server::keyed(&[]).await;
    let proxy = Proxy::to_port(server.port).await.unwrap();
    proxy.drop_reply();
    let client = client(quick());
    let outcome = client
        .clone()
        .oneshot(post(proxy.port()).body(body()).unwrap())
        .await
        .unwrap();
    assert_eq!(short(&outcome), "unknown Broken after 1, Look");
    let Outcome::Unknown(unknown) = outcome else {
        unreachable!()
    };
    assert_eq!((unknown.code(), server.runs()), ("SEM0462", 1));
    // The caller knows the receiver: the key that is handed back brings the answer, and nothing runs again.
    let again = post(proxy.port())
        .extension(unknown.key.unwrap())
        .body(body())
        .unwrap();
    let again = super::support::client(trusting()).oneshot(again).await.unwrap();
    assert_eq!(short(&again), "succeeded 201 after 1, replayed");
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn a_store_that_may_forget_needs_the_callers_word() {
    let server = Server::keyed(&[]).await;
    let proxy = Proxy::to_port(server.port).await.unwrap();
    let client = client(quick());
    let first = client
        .clone()
        .oneshot(post(proxy.port()).body(body()).unwrap())
        .await
        .unwrap();
    let Outcome::Succeeded(answer) = first else {
        panic!("{}", short(&first));
    };
    assert_eq!(answer.headers()["semel-guarantee"], "guarded;failover=forgets");
    proxy.drop_reply();
    let outcome = client
        .oneshot(post(proxy.port()).body(body()).unwrap())
        .await
        .unwrap();
    assert_eq!(short(&outcome), "unknown Broken after 1, Look");
}

#[tokio::test]
async fn another_route_of_the_same_service_speaks_for_itself() {
    let server = Server::keyed(SHOWN).await;
    let proxy = Proxy::to_port(server.port).await.unwrap();
    let client = client(quick());
    let first = client
        .clone()
        .oneshot(post(proxy.port()).body(body()).unwrap())
        .await
        .unwrap();
    assert_eq!(short(&first), "succeeded 201 after 1");
    proxy.drop_reply();
    let other = http::Request::post(format!("http://127.0.0.1:{}/refunds", proxy.port()));
    let outcome = client.oneshot(other.body(body()).unwrap()).await.unwrap();
    assert_eq!(short(&outcome), "unknown Broken after 1, Look");
}

#[tokio::test]
async fn a_request_that_was_cut_on_its_way_runs_once() {
    let server = Server::keyed(&[]).await;
    let proxy = Proxy::to_port(server.port).await.unwrap();
    proxy.drop_request(b"amount");
    let outcome = client(trusting())
        .oneshot(post(proxy.port()).body(body()).unwrap())
        .await
        .unwrap();
    assert_eq!(short(&outcome), "succeeded 201 after 2");
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn a_service_that_was_never_reached_is_a_refusal_even_without_keys() {
    let never = Config {
        repeat: semel_http_client::Repeat::Never,
        ..quick()
    };
    let outcome = client(never)
        .oneshot(post(free_port()).body(body()).unwrap())
        .await
        .unwrap();
    let Outcome::Refused(Refusal::NotSent(error)) = outcome else {
        panic!("{}", short(&outcome));
    };
    assert!(error.to_string().contains("onnect"), "{error}");
}

#[tokio::test]
async fn a_service_that_cannot_be_reached_after_a_lost_reply_is_unknown() {
    let server = Server::keyed(&[]).await;
    let proxy = Proxy::to_port(server.port).await.unwrap();
    let client = client(trusting());
    proxy.drop_reply();
    let port = proxy.port();
    let call = tokio::spawn(client.oneshot(post(port).body(body()).unwrap()));
    proxy.hit(1).await;
    drop(proxy);
    let outcome = call.await.unwrap().unwrap();
    let Outcome::Unknown(unknown) = outcome else {
        panic!("{}", short(&outcome));
    };
    assert!(matches!(unknown.can_do, CanDo::Repeat { .. }), "{unknown}");
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn an_attempt_that_takes_too_long_is_followed_by_another_that_gets_its_answer() {
    let server = Server::gated(|config| config.wait_ms_max = 0).await;
    let config = Config {
        attempt_ms_max: 300,
        retry: semel_core::RetryPolicy {
            attempts_max: 1_000,
            ..trusting().retry
        },
        ..trusting()
    };
    let request = post(server.port).body(body()).unwrap();
    let call = tokio::spawn(client(config).oneshot(request));
    server.running(1).await;
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    server.open();
    let outcome = call.await.unwrap().unwrap();
    assert!(
        short(&outcome).starts_with("succeeded 201") && short(&outcome).ends_with("replayed"),
        "{}",
        short(&outcome)
    );
    assert_eq!(server.runs(), 1);
}
