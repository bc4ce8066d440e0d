//! What is no proof: of a receiver that holds the key, of a route that deduplicates, of an attempt that did nothing.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use semel_http_client::{Config, KeyedLayer, Outcome, RequestKey};
use tower::{Layer as _, ServiceExt as _, service_fn};

use super::support::{body, quick, short, trusting};

/// What a client underneath brings: an answer, or a connection that breaks under way.
#[derive(Clone, Copy)]
enum Brings {
    Answer(u16, &'static [(&'static str, &'static str)]),
    Breaks,
}
use Brings::{Answer, Breaks};

/// Calls one after another through one client; what is brought in all their attempts, in order.
struct Line {
    layer: KeyedLayer,
    brings: Arc<Mutex<VecDeque<Brings>>>,
}

impl Line {
    fn new(config: Config, brings: &[Brings]) -> Self {
        Self {
            layer: KeyedLayer::new(config).unwrap(),
            brings: Arc::new(Mutex::new(brings.iter().copied().collect())),
        }
    }

    async fn call(&self, key: Option<RequestKey>) -> Outcome<Response<()>> {
        let brings = Arc::clone(&self.brings);
        let client = self.layer.layer(service_fn(move |_: Request<Full<Bytes>>| {
            let next = brings.lock().unwrap().pop_front().unwrap();
            async move {
                match next {
                    Breaks => Err(io::Error::from(io::ErrorKind::ConnectionReset)),
                    Answer(status, headers) => {
                        let answer = Response::builder().status(StatusCode::from_u16(status).unwrap());
                        let answer = headers
                            .iter()
                            .fold(answer, |a, (name, value)| a.header(*name, *value));
                        Ok(answer.body(()).unwrap())
                    }
                }
            }
        }));
        let mut request = Request::post("http://receiver/orders");
        if let Some(key) = key {
            request = request.extension(key);
        }
        client.oneshot(request.body(body()).unwrap()).await.unwrap()
    }

    fn left(&self) -> usize {
        self.brings.lock().unwrap().len()
    }
}

const BUSY: Brings = Answer(409, &[("retry-after", "0")]);
const SHOWS: Brings = Answer(201, &[("semel-guarantee", "guarded")]);

#[tokio::test]
async fn a_bare_409_with_retry_after_is_no_proof_that_the_receiver_holds_the_key() {
    // The first is the business's own "come back later", the second was carried out. A third would be carried out again.
    let line = Line::new(quick(), &[BUSY, Breaks, SHOWS]);
    assert_eq!(short(&line.call(None).await), "unknown Broken after 2, Look");
    assert_eq!(line.left(), 1);
    // What it says of a key that somebody else may have sent is "perhaps at work", and no more.
    let order = || Some(RequestKey::new("order-7").unwrap());
    let line = Line::new(quick(), &[BUSY, SHOWS]);
    assert_eq!(
        short(&line.call(order()).await),
        "unknown Answered(409) after 1, Look"
    );
    let line = Line::new(trusting(), &[BUSY, SHOWS]);
    assert_eq!(short(&line.call(order()).await), "succeeded 201 after 2");
    // Semel's word is one.
    let running = Answer(409, &[("retry-after", "0"), ("semel-outcome", "running")]);
    let line = Line::new(quick(), &[running, Breaks, SHOWS]);
    assert_eq!(short(&line.call(order()).await), "succeeded 201 after 3");
}

#[tokio::test]
async fn a_guarantee_of_none_shows_nothing() {
    // Its store is away, and it lets requests pass without keys (`Outage::Open`).
    let passed = Answer(
        201,
        &[("semel-guarantee", "none"), ("semel-outcome", "succeeded")],
    );
    let line = Line::new(quick(), &[passed, Breaks, SHOWS]);
    assert_eq!(short(&line.call(None).await), "succeeded 201 after 1");
    assert_eq!(short(&line.call(None).await), "unknown Broken after 1, Look");
    // It takes back what was shown before.
    let line = Line::new(quick(), &[SHOWS, passed, Breaks, SHOWS]);
    assert_eq!(short(&line.call(None).await), "succeeded 201 after 1");
    assert_eq!(short(&line.call(None).await), "succeeded 201 after 1");
    assert_eq!(short(&line.call(None).await), "unknown Broken after 1, Look");
    assert_eq!(line.left(), 1);
}

#[tokio::test]
async fn a_mismatch_after_an_unknown_attempt_is_unknown() {
    let mismatch = Answer(422, &[("semel-outcome", "mismatch")]);
    let line = Line::new(trusting(), &[Breaks, mismatch]);
    let outcome = short(&line.call(None).await);
    assert!(outcome.starts_with("unknown Broken after 2"), "{outcome}");
    let line = Line::new(trusting(), &[mismatch]);
    assert_eq!(short(&line.call(None).await), "refused 422 after 1");
}

#[tokio::test]
async fn a_key_that_was_brought_along_is_never_fresh() {
    // "In progress" at some services, a conflict of the business at others.
    let conflict = Answer(409, &[]);
    let own = Line::new(quick(), &[conflict]);
    assert_eq!(short(&own.call(None).await), "refused 409 after 1");
    // The caller's second call with its key, which the first one may have left at work.
    let key = RequestKey::random();
    let line = Line::new(quick(), &[Breaks, conflict]);
    assert_eq!(
        short(&line.call(Some(key.clone())).await),
        "unknown Broken after 1, Look"
    );
    assert_eq!(
        short(&line.call(Some(key)).await),
        "unknown Answered(409) after 1, Look"
    );
    // The same with a key that was made here and handed back beside the answer.
    let line = Line::new(quick(), &[Answer(201, &[]), conflict]);
    let Outcome::Succeeded(answer) = line.call(None).await else {
        panic!("201 is a success");
    };
    let report = answer.extensions().get::<semel_http_client::Report>().unwrap();
    let again = line.call(report.key.clone()).await;
    assert_eq!(short(&again), "unknown Answered(409) after 1, Look");
}
