//! Participants over HTTP: no SDK needed, status and headers decide.
//!
//! A call is a `POST` with a JSON body and these headers: `Semel-Saga-Id`, `Semel-Step`, `Semel-Op` (`action` or
//! `compensation`), `Semel-Epoch`, `Idempotency-Key` (64 hexadecimal digits, the same on every attempt) and
//! `Semel-Deadline` (milliseconds since 1970). A compensation also carries `Semel-Action` (`succeeded` or `unknown`) and
//! `Semel-Action-Key`. The body holds `saga`, `definition`, `step`, `op`, `input`, the `outputs` of the steps before, and
//! for a compensation `action` with `key`, `succeeded` and `output`. Bytes that are not JSON stand under the same name
//! with `_base64` behind it. The same operation always has the same body, byte for byte.
//!
//! | answer | taken for |
//! | --- | --- |
//! | 2xx but 202 | succeeded; the body is the output |
//! | 409 or 422 with `Semel-Outcome: refused` | refused; the body is the reason |
//! | 202, 425, or `Semel-Outcome: running` | running; asked again after `Retry-After`, spends no attempt |
//! | `Semel-Code: stale_epoch` or `barrier_lost` | what the barrier said |
//! | 408, 429, 5xx, a broken connection | unknown; repeated with back-off, not before `Retry-After` |
//! | anything else | unknown; few attempts, then a person |
//! | no connection | not sent |
//!
//! # Not yet
//! Status URLs, `Retry-After` as a date.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Uri, header};
use semel_client::{ClientErrorKind, HttpClient, Limits};
use semel_core::limits::SAGA_PAYLOAD_BYTES_MAX;
use semel_core::saga::{ActionFacts, Answer, BarrierCode, Call, CheckedDefinition};
use semel_core::wire;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::participants::{Participants, targets};

/// Calls participants over HTTP/1.1 and HTTP/2.
#[derive(Debug, Clone)]
pub struct HttpParticipants {
    client: HttpClient,
}

impl Default for HttpParticipants {
    fn default() -> Self {
        // One byte more than a saga keeps, so that an output at the limit is read whole.
        Self::new(HttpClient::new(Limits {
            response_bytes_max: SAGA_PAYLOAD_BYTES_MAX,
            ..Limits::default()
        }))
    }
}

impl HttpParticipants {
    /// Calls over this client. Its limit of the answer's size is the limit of a step's output.
    #[must_use]
    pub const fn new(client: HttpClient) -> Self {
        Self { client }
    }
}

#[async_trait]
impl Participants for HttpParticipants {
    fn serves(&self, definition: &CheckedDefinition) -> Result<(), String> {
        targets(definition).try_for_each(|target| parse(target).map(|_| ()))
    }

    fn destination(&self, target: &str) -> String {
        let authority = parse(target)
            .ok()
            .and_then(|uri| uri.authority().map(ToString::to_string));
        authority.unwrap_or_else(|| target.to_owned())
    }

    async fn call(&self, call: &Call) -> Answer {
        let request = match request(call) {
            Ok(request) => request,
            Err(why) => return Answer::Unservable(why),
        };
        let unknown = |why: String| Answer::Unknown {
            why,
            retry_after: None,
            hopeless: false,
        };
        match self.client.send(request, call.timeout).await {
            Ok(answer) => read(answer),
            Err(error) => match error.kind() {
                ClientErrorKind::NotSent | ClientErrorKind::Private => Answer::NotSent(error.to_string()),
                ClientErrorKind::Unknown => unknown(error.to_string()),
                ClientErrorKind::ResponseTooLarge => match error.status() {
                    Some(status) if status.is_success() && status != StatusCode::ACCEPTED => Answer::TooLarge,
                    _ => unknown(error.to_string()),
                },
            },
        }
    }
}

fn parse(target: &str) -> Result<Uri, String> {
    let uri: Uri = target
        .parse()
        .map_err(|error| format!("{target} is not a URL: {error}"))?;
    match (uri.scheme_str(), uri.authority()) {
        (Some("http" | "https"), Some(_)) => Ok(uri),
        _ => Err(format!("{target} is not a URL of the form http://host/path")),
    }
}

fn request(call: &Call) -> Result<Request<Bytes>, String> {
    let mut request = Request::post(parse(&call.target)?)
        .header(header::CONTENT_TYPE, "application/json")
        .header(wire::SAGA_ID, call.saga.as_str())
        .header(wire::STEP, &call.step)
        .header(wire::OP, call.op.as_str())
        .header(wire::EPOCH, call.epoch)
        .header(wire::IDEMPOTENCY_KEY, &call.key)
        .header(wire::DEADLINE, call.not_after.0 / 1_000);
    if let Some(action) = &call.undoes {
        let known = if action.succeeded { "succeeded" } else { "unknown" };
        request = request
            .header(wire::ACTION, known)
            .header(wire::ACTION_KEY, &action.key);
    }
    let body = body(call).map_err(|error| format!("the call has no JSON form: {error}"))?;
    request
        .body(body)
        .map_err(|error| format!("the call is no HTTP request: {error}"))
}

/// Bytes as they are where they are JSON, otherwise in base64 under a name of its own.
#[derive(Serialize)]
struct Body<'a> {
    saga: &'a str,
    definition: &'a str,
    step: &'a str,
    op: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_base64: Option<String>,
    outputs: BTreeMap<&'a str, Option<&'a RawValue>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    outputs_base64: BTreeMap<&'a str, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<Action<'a>>,
}

#[derive(Serialize)]
struct Action<'a> {
    key: &'a str,
    succeeded: bool,
    output: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_base64: Option<String>,
}

/// JSON, or its base64 form; nothing at all is `null`.
fn value(bytes: &[u8]) -> (Option<&RawValue>, Option<String>) {
    if bytes.is_empty() {
        return (None, None);
    }
    match serde_json::from_slice(bytes) {
        Ok(raw) => (Some(raw), None),
        Err(_) => (None, Some(STANDARD.encode(bytes))),
    }
}

fn body(call: &Call) -> Result<Bytes, serde_json::Error> {
    let (input, input_base64) = value(&call.input);
    let mut outputs = BTreeMap::new();
    let mut outputs_base64 = BTreeMap::new();
    for (step, output) in &call.outputs {
        let (json, other) = value(output.as_deref().unwrap_or_default());
        match other {
            Some(text) => drop(outputs_base64.insert(step.as_str(), text)),
            None => drop(outputs.insert(step.as_str(), json)),
        }
    }
    let facts = |action: &'_ ActionFacts| {
        let (output, output_base64) = value(action.output.as_deref().unwrap_or_default());
        let output = output.map(ToOwned::to_owned);
        (output, output_base64)
    };
    let known = call.undoes.as_ref().map(facts);
    let action = call
        .undoes
        .as_ref()
        .zip(known.as_ref())
        .map(|(action, (output, output_base64))| Action {
            key: &action.key,
            succeeded: action.succeeded,
            output: output.as_deref(),
            output_base64: output_base64.clone(),
        });
    let body = Body {
        saga: call.saga.as_str(),
        definition: &call.definition,
        step: &call.step,
        op: call.op.as_str(),
        input,
        input_base64,
        outputs,
        outputs_base64,
        action,
    };
    serde_json::to_vec(&body).map(Bytes::from)
}

/// Status and headers decide; bodies are never searched for words.
fn read(answer: Response<Bytes>) -> Answer {
    let (head, body) = answer.into_parts();
    let text = |name: &str| {
        head.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("")
    };
    let outcome = text(wire::OUTCOME);
    let code = text(wire::CODE);
    let retry_after = retry_after(&head.headers);
    let status = head.status;
    let unknown = |hopeless| Answer::Unknown {
        why: format!(
            "status {status}{}",
            if code.is_empty() {
                String::new()
            } else {
                format!(", {code}")
            }
        ),
        retry_after,
        hopeless,
    };
    match (status.as_u16(), outcome) {
        _ if code == BarrierCode::StaleEpoch.as_str() => Answer::StaleEpoch,
        _ if code == BarrierCode::BarrierLost.as_str() => Answer::BarrierLost,
        (_, "running") | (202 | 425, _) => Answer::Running { retry_after },
        (200..=299, "" | "succeeded") => Answer::Succeeded(body),
        // It was done before, and its answer was not kept.
        (410, "succeeded") => Answer::TooLarge,
        (409 | 422, "refused") => {
            let reason = String::from_utf8_lossy(&body);
            let reason = if reason.is_empty() {
                status.to_string()
            } else {
                reason.into_owned()
            };
            Answer::Refused(if code.is_empty() {
                reason
            } else {
                format!("{code}: {reason}")
            })
        }
        (408 | 429 | 500..=599, _) => unknown(false),
        _ => unknown(true),
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers
        .get(header::RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use semel_core::Timestamp;
    use semel_core::saga::{Op, SagaId};

    use super::*;

    fn answer(status: u16, headers: &[(&'static str, &'static str)]) -> Answer {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        read(
            response
                .body(Bytes::from_static(b"refused unknown running"))
                .unwrap(),
        )
    }

    fn call() -> Call {
        Call {
            saga: SagaId::new("s").unwrap(),
            definition: "order".into(),
            step: "charge".into(),
            op: Op::Compensation,
            target: "http://pay.example/refund".into(),
            key: "k".into(),
            epoch: 3,
            attempt: 1,
            timeout: Duration::from_secs(1),
            not_after: Timestamp(5_000_000),
            input: Bytes::from_static(b"{\"a\": 1.0}"),
            outputs: BTreeMap::from([
                ("reserve".into(), Some(Bytes::from_static(b"\xff"))),
                ("look".into(), None),
            ]),
            undoes: Some(ActionFacts {
                key: "ak".into(),
                succeeded: true,
                output: Some("7".into()),
            }),
        }
    }

    #[test]
    fn status_and_headers_decide_never_the_body() {
        assert!(matches!(answer(200, &[]), Answer::Succeeded(_)));
        assert!(matches!(
            answer(201, &[("semel-outcome", "succeeded")]),
            Answer::Succeeded(_)
        ));
        assert!(matches!(
            answer(422, &[("semel-outcome", "refused")]),
            Answer::Refused(_)
        ));
        let not_kept = answer(410, &[("semel-outcome", "succeeded")]);
        assert!(matches!(not_kept, Answer::TooLarge), "{not_kept:?}");
        for status in [409, 410, 422, 400, 404, 301] {
            assert!(
                matches!(answer(status, &[]), Answer::Unknown { hopeless: true, .. }),
                "{status}"
            );
        }
        for status in [408, 429, 500, 503] {
            assert!(
                matches!(answer(status, &[]), Answer::Unknown { hopeless: false, .. }),
                "{status}"
            );
        }
        for status in [202, 425] {
            assert!(matches!(answer(status, &[]), Answer::Running { .. }), "{status}");
        }
    }

    #[test]
    fn a_semel_layer_that_says_running_or_mismatch_is_understood() {
        let running = answer(409, &[("semel-outcome", "running"), ("retry-after", "7")]);
        assert_eq!(
            running,
            Answer::Running {
                retry_after: Some(Duration::from_secs(7))
            }
        );
        assert!(matches!(
            answer(422, &[("semel-outcome", "mismatch")]),
            Answer::Unknown { hopeless: true, .. }
        ));
        assert!(matches!(
            answer(200, &[("semel-outcome", "unknown")]),
            Answer::Unknown { .. }
        ));
    }

    #[test]
    fn what_the_barrier_says_is_understood() {
        assert_eq!(answer(412, &[("semel-code", "stale_epoch")]), Answer::StaleEpoch);
        assert_eq!(
            answer(500, &[("semel-code", "barrier_lost")]),
            Answer::BarrierLost
        );
        let cancelled = answer(
            409,
            &[("semel-outcome", "refused"), ("semel-code", "step_cancelled")],
        );
        assert!(matches!(cancelled, Answer::Refused(why) if why.starts_with("step_cancelled")));
    }

    #[test]
    fn the_request_carries_the_key_and_what_is_known_of_the_action() {
        let request = request(&call()).unwrap();
        let header = |name: &str| request.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(
            (header("idempotency-key"), header("semel-epoch")),
            ("k".into(), "3".into())
        );
        assert_eq!(
            (header("semel-action"), header("semel-action-key")),
            ("succeeded".into(), "ak".into())
        );
        assert_eq!(header("semel-deadline"), "5000");
        let body = std::str::from_utf8(request.body()).unwrap();
        assert_eq!(
            body,
            "{\"saga\":\"s\",\"definition\":\"order\",\"step\":\"charge\",\"op\":\"compensation\",\"input\":{\"a\": 1.0},\
             \"outputs\":{\"look\":null},\"outputs_base64\":{\"reserve\":\"/w==\"},\
             \"action\":{\"key\":\"ak\",\"succeeded\":true,\"output\":7}}"
        );
    }

    #[test]
    fn a_target_that_is_no_url_is_named() {
        assert!(parse("charge").unwrap_err().contains("charge"));
        assert!(parse("ftp://x/y").is_err());
        assert!(parse("http://127.0.0.1:80/x").is_ok());
    }
}
