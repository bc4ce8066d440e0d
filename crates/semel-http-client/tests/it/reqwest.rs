//! The same through reqwest.

use reqwest::redirect;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use semel_http_client::{Config, KeyedMiddleware, Outcome, Refusal, RequestKey, outcome};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::free_port;

use super::support::{Server, quick, trusting};

fn client(config: Config) -> ClientWithMiddleware {
    let plain = reqwest::Client::builder()
        .redirect(redirect::Policy::none())
        .build()
        .unwrap();
    let keyed = KeyedMiddleware::new(config).unwrap();
    ClientBuilder::new(plain).with(keyed).build()
}

async fn send(config: Config, port: u16, key: &str) -> Outcome<reqwest::Response> {
    let request = client(config)
        .post(format!("http://127.0.0.1:{port}/orders"))
        .with_extension(RequestKey::new(key).unwrap())
        .body("{}");
    outcome(request.send().await).unwrap()
}

fn short(outcome: &Outcome<reqwest::Response>) -> String {
    match outcome {
        Outcome::Succeeded(answer) => format!("succeeded {}", answer.status().as_u16()),
        Outcome::Refused(Refusal::Answer(answer)) => format!("refused {}", answer.status().as_u16()),
        Outcome::Refused(Refusal::NotSent(_)) => "not sent".to_owned(),
        Outcome::Unknown(unknown) => format!(
            "unknown {:?}, answer {:?}",
            unknown.why,
            unknown.answer.as_ref().map(|answer| answer.status().as_u16())
        ),
    }
}

#[tokio::test]
async fn a_lost_reply_is_asked_for_again_and_the_effect_is_there_once() {
    let server = Server::keyed(&[]).await;
    let proxy = Proxy::to_port(server.port).await.unwrap();
    proxy.drop_reply();
    let outcome = send(trusting(), proxy.port(), "a").await;
    assert_eq!(short(&outcome), "succeeded 201");
    let Outcome::Succeeded(answer) = outcome else {
        unreachable!()
    };
    let report = answer.extensions().get::<semel_http_client::Report>().unwrap();
    assert_eq!((report.attempts, report.replayed, server.runs()), (2, true, 1));
    assert_eq!(server.keys(), ["\"a\""]);
}

#[tokio::test]
async fn the_three_outcomes_come_through_with_and_without_an_answer() {
    let server = Server::keyed(&[(0, &[]), (422, &[("semel-outcome", "refused")])]).await;
    for (key, wanted) in [
        ("a", "unknown ReceiverSaysSo, answer Some(500)"),
        ("b", "refused 422"),
        ("c", "succeeded 201"),
    ] {
        assert_eq!(short(&send(quick(), server.port, key).await), wanted);
    }
    let proxy = Proxy::to_port(server.port).await.unwrap();
    proxy.drop_reply();
    assert_eq!(
        short(&send(quick(), proxy.port(), "d").await),
        "unknown Broken, answer None"
    );
    assert_eq!(short(&send(quick(), free_port(), "e").await), "not sent");
    assert_eq!(server.runs(), 4);
}

#[tokio::test]
async fn what_cannot_be_sent_again_is_not_sent() {
    let server = Server::keyed(&[]).await;
    let config = Config {
        body_bytes_max: 1,
        ..quick()
    };
    let request = client(config)
        .post(format!("http://127.0.0.1:{}/orders", server.port))
        .body("{}");
    let error = outcome(request.send().await).unwrap_err();
    assert!(error.to_string().contains("SEM0461"), "{error}");
    assert_eq!(server.runs(), 0);
}
