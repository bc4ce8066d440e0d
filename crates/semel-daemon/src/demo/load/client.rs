//! The customers: impatient, with bad connections, and with one key per order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use semel_client::{HttpClient, Limits};
use semel_core::wire;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::plan::{OrderPlan, SendPlan};
use crate::demo::moment::Moment;

/// How long a customer waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Before the first retry of an order that got no definite answer; each next wait is twice as long.
const RETRY_AFTER: Duration = Duration::from_millis(250);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(2);

/// What the client has done so far.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Orders begun.
    pub(crate) placed: AtomicU64,
    /// Orders with a definite answer.
    pub(crate) answered: AtomicU64,
    /// Requests in all.
    pub(crate) requests: AtomicU64,
    /// Requests beyond the first of their order.
    pub(crate) duplicates: AtomicU64,
    /// Connections cut before the answer.
    pub(crate) cut: AtomicU64,
}

/// A definite answer: what a customer would act on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

/// What one customer heard about one order.
#[derive(Debug, Clone)]
pub(crate) struct Heard {
    pub(crate) reference: String,
    /// Every *different* definite answer to the one key. There should be one.
    pub(crate) answers: Vec<Answer>,
}

/// All customers.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: HttpClient,
    ports: [u16; 2],
    traffic: Arc<Traffic>,
    give_up: CancellationToken,
}

impl Client {
    /// Customers of the shop whose two copies of orders listen on `ports`. They retry until `give_up`.
    pub(crate) fn new(ports: [u16; 2], traffic: Arc<Traffic>, give_up: CancellationToken) -> Self {
        Self {
            http: HttpClient::new(Limits::default()),
            ports,
            traffic,
            give_up,
        }
    }

    /// Places one order as planned, and then asks on with the same key until there is a definite answer.
    pub(crate) async fn place(self, start: Moment, plan: OrderPlan) -> Heard {
        let begin = start.plus(plan.at);
        begin.reached().await;
        self.traffic.placed.fetch_add(1, Ordering::Relaxed);
        let sends = plan.sends.iter().enumerate().map(|(n, send)| {
            let client = &self;
            let plan = &plan;
            async move {
                begin.plus(send.after).reached().await;
                client.send(plan, send, n > 0).await
            }
        });
        let mut answers = Vec::new();
        for answer in join_all(sends).await.into_iter().flatten() {
            note(&mut answers, answer);
        }
        let (mut copy, mut wait) = (0, RETRY_AFTER);
        while answers.is_empty() {
            tokio::select! {
                () = self.give_up.cancelled() => break,
                () = sleep(wait) => {}
            }
            let again = SendPlan {
                after: Duration::ZERO,
                copy,
                cut_after: None,
            };
            copy = 1 - copy;
            wait = (wait * 2).min(RETRY_AFTER_MAX);
            if let Some(answer) = self.send(&plan, &again, true).await {
                note(&mut answers, answer);
            }
        }
        if !answers.is_empty() {
            self.traffic.answered.fetch_add(1, Ordering::Relaxed);
        }
        Heard {
            reference: plan.order.reference,
            answers,
        }
    }

    /// One request; `None` when it brought nothing definite.
    async fn send(&self, plan: &OrderPlan, send: &SendPlan, duplicate: bool) -> Option<Answer> {
        self.traffic.requests.fetch_add(1, Ordering::Relaxed);
        if duplicate {
            self.traffic.duplicates.fetch_add(1, Ordering::Relaxed);
        }
        let port = self.ports[send.copy];
        let request = Request::post(format!("http://127.0.0.1:{port}/orders"))
            .header("content-type", "application/json")
            .header(wire::IDEMPOTENCY_KEY, format!("\"{}\"", plan.key))
            .body(Bytes::from(serde_json::to_vec(&plan.order).ok()?))
            .ok()?;
        let call = self.http.send(request, PATIENCE);
        let response = match send.cut_after {
            None => call.await,
            // Dropping the call closes its connection.
            Some(cut) => match timeout(cut, call).await {
                Ok(result) => result,
                Err(_) => {
                    self.traffic.cut.fetch_add(1, Ordering::Relaxed);
                    return None;
                }
            },
        };
        response.ok().and_then(definite)
    }
}

fn note(answers: &mut Vec<Answer>, answer: Answer) {
    if !answers.contains(&answer) {
        answers.push(answer);
    }
}

/// Whether a customer may take this as the answer, by what HTTP says about the status, and by `Semel-Outcome` where
/// it is there. Everything else is asked again.
fn definite(response: Response<Bytes>) -> Option<Answer> {
    let status = response.status();
    let again = matches!(
        status,
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
    );
    let outcome = response
        .headers()
        .get(wire::OUTCOME)
        .map(http::HeaderValue::as_bytes);
    let open = matches!(outcome, Some(b"running" | b"unknown"));
    (!status.is_server_error() && !again && !open).then(|| Answer {
        status,
        body: response.into_body(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, outcome: Option<&str>) -> Option<Answer> {
        let mut builder = Response::builder().status(status);
        if let Some(outcome) = outcome {
            builder = builder.header("semel-outcome", outcome);
        }
        definite(builder.body(Bytes::from_static(b"{}")).unwrap())
    }

    #[test]
    fn only_a_definite_answer_ends_the_asking() {
        for status in [500, 502, 503, 504, 408, 425, 429] {
            assert_eq!(answer(status, None), None, "{status}");
        }
        assert_eq!(answer(409, Some("running")), None);
        assert_eq!(answer(409, Some("unknown")), None);
        for status in [200, 201, 402, 409, 422] {
            assert!(answer(status, None).is_some(), "{status}");
        }
        assert!(answer(409, Some("refused")).is_some());
    }
}
