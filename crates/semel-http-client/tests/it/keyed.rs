//! What Semel's layer says, understood.

use semel_http_client::{Outcome, RequestKey};
use tower::ServiceExt as _;

use super::support::*;

fn with_key(port: u16, key: &str) -> http::request::Builder {
    post(port).extension(RequestKey::new(key).unwrap())
}

#[tokio::test]
async fn who_comes_second_waits_for_the_first_and_gets_its_answer() {
    let server = Server::gated(|config| config.wait_ms_max = 0).await;
    let first = client(quick()).oneshot(with_key(server.port, "a").body(body()).unwrap());
    let first = tokio::spawn(first);
    server.running(1).await;
    let second = client(quick()).oneshot(with_key(server.port, "a").body(body()).unwrap());
    let second = tokio::spawn(second);
    // Its first attempt is told "running, Retry-After" while the gate is closed; nothing tells from outside when it
    // was, and a gate that opens before it shows less, not wrong.
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    server.open();
    assert_eq!(short(&first.await.unwrap().unwrap()), "succeeded 201 after 1");
    let second = short(&second.await.unwrap().unwrap());
    assert!(second.ends_with("replayed"), "{second}");
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn a_handler_that_died_is_unknown_and_not_run_again() {
    let server = Server::keyed(&[(0, &[])]).await;
    let outcome = client(trusting())
        .oneshot(with_key(server.port, "a").body(body()).unwrap())
        .await
        .unwrap();
    assert_eq!(short(&outcome), "unknown ReceiverSaysSo after 1, Look");
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn a_declined_card_is_an_answer_and_a_refusal_is_a_refusal() {
    let server = Server::keyed(&[(402, &[]), (422, &[("semel-outcome", "refused")])]).await;
    for (key, wanted) in [("a", "succeeded 402 after 1"), ("b", "refused 422 after 1")] {
        let call = client(quick()).oneshot(with_key(server.port, key).body(body()).unwrap());
        assert_eq!(short(&call.await.unwrap()), wanted);
    }
    let again = client(quick())
        .oneshot(with_key(server.port, "b").body(body()).unwrap())
        .await
        .unwrap();
    assert_eq!(short(&again), "refused 422 after 1, replayed");
    let other = with_key(server.port, "b").uri(format!("http://127.0.0.1:{}/refunds", server.port));
    let other = client(quick())
        .oneshot(other.body(body()).unwrap())
        .await
        .unwrap();
    assert_eq!(short(&other), "refused 422 after 1");
    assert_eq!(server.runs(), 2);
}

#[tokio::test]
async fn neither_debug_nor_display_shows_a_key() {
    let server = Server::keyed(&[(0, &[])]).await;
    let outcome = client(quick())
        .oneshot(with_key(server.port, "secret-7").body(body()).unwrap())
        .await
        .unwrap();
    let Outcome::Unknown(unknown) = outcome else {
        panic!("{}", short(&outcome));
    };
    let text = format!("{unknown} {:?}", unknown.key);
    assert!(text.contains("SEM0462") && !text.contains("secret"), "{text}");
    assert_eq!(unknown.key.unwrap().as_str(), "secret-7");
}
