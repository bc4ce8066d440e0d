//! What comes in: who may ask, and what a body says.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use semel_core::saga::{CheckedDefinition, Definition, SagaId};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::Api;
use crate::run::browser::from_a_browser;
use crate::run::problem::Problem;
use crate::run::server::may_see;

/// How long a client may take to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Lets those through who hold the token. Without a token the daemon listens on this machine only, and then pages that
/// a browser of this machine shows are kept out: they could name us by a host of their own.
pub(super) async fn guard(State(api): State<Api>, request: Request, next: Next) -> Response {
    if !may_see(api.token.as_ref(), request.headers()) {
        return Problem::unauthorized().into_response();
    }
    if api.token.is_none() && from_a_browser(request.headers()) {
        let detail =
            "without a token, requests from web pages are refused; set `token` of [server] to allow them";
        return Problem::forbidden(detail).into_response();
    }
    next.run(request).await
}

/// Reads a whole body.
///
/// # Errors
/// It is larger than allowed, slow, or breaks off.
pub(super) async fn body(body: Body, bytes_max: usize) -> Result<Bytes, Problem> {
    let limited = Limited::new(body, bytes_max).collect();
    match tokio::time::timeout(BODY_TIMEOUT, limited).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Problem::too_large(format!(
            "the body is larger than body_bytes_max = {bytes_max} of [server]; raise it, or store the payload \
             elsewhere and send a reference"
        ))),
        Ok(Err(_)) => Err(Problem::bad_request("the body broke off")),
        Err(_) => Err(Problem::bad_request(format!(
            "the body did not come within {} s",
            BODY_TIMEOUT.as_secs()
        ))),
    }
}

/// Reads JSON; mistakes are named with their path.
///
/// # Errors
/// The bytes are not JSON of this form.
pub(super) fn json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Problem> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        let at = if path == "." {
            String::new()
        } else {
            format!("{path}: ")
        };
        Problem::bad_request(format!("{at}{inner}"))
    })?;
    reader
        .end()
        .map_err(|error| Problem::bad_request(format!("after the JSON: {error}")))?;
    Ok(value)
}

/// Refuses a body that does not call itself JSON: a form of a web page could not be told apart from it.
///
/// # Errors
/// Another media type, or none.
pub(super) fn must_be_json(headers: &HeaderMap) -> Result<(), Problem> {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let kind = kind.map_or("", |kind| kind.split(';').next().unwrap_or("").trim());
    if kind.eq_ignore_ascii_case("application/json") {
        Ok(())
    } else {
        Err(Problem::bad_request(
            "send the body with content-type: application/json",
        ))
    }
}

/// The body of a submission.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Submit<'a> {
    id: SagaId,
    definition: Definition,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
}

/// A submission that holds.
pub(super) struct Wanted {
    pub(super) id: SagaId,
    pub(super) definition: CheckedDefinition,
    pub(super) input: Bytes,
}

/// Reads a submission and refuses what could not be carried out.
///
/// # Errors
/// Each reason.
pub(super) fn submission(bytes: &[u8], participants: &[String]) -> Result<Wanted, Problem> {
    let submit: Submit<'_> = json(bytes)?;
    let mut refusals = targets(&submit.definition, participants);
    match submit.definition.check() {
        Ok(definition) if refusals.is_empty() => Ok(Wanted {
            id: submit.id,
            definition,
            // The very bytes of the input: same input means same bytes.
            input: submit
                .input
                .map_or_else(Bytes::new, |raw| Bytes::copy_from_slice(raw.get().as_bytes())),
        }),
        Ok(_) => Err(Problem::definition(refusals)),
        Err(error) => {
            refusals.insert(0, error.to_string());
            Err(Problem::definition(refusals))
        }
    }
}

/// What is wrong with the URLs of a definition.
fn targets(definition: &Definition, participants: &[String]) -> Vec<String> {
    let mut refusals = Vec::new();
    for step in &definition.steps {
        let targets = [
            ("action", Some(&step.action)),
            ("compensation", step.compensation.as_ref()),
        ];
        for (what, target) in targets {
            let Some(target) = target else { continue };
            let uri = target.parse::<http::Uri>().ok().filter(|uri| {
                matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some()
            });
            let Some(uri) = uri else {
                refusals.push(format!("step {}: its {what} is no http URL", step.name));
                continue;
            };
            if participants.is_empty() {
                continue;
            }
            if !target.contains('#') && is_plain(uri.path()) {
                if !participants.iter().any(|known| is_under(&uri, known)) {
                    refusals.push(format!(
                        "step {}: its {what} is not among `participants` of [saga]",
                        step.name
                    ));
                }
            } else {
                refusals.push(format!(
                    "step {}: the path of its {what} has a segment that is empty, `.` or `..`, a backslash or a \
                     fragment, also if percent-encoded; with `participants` of [saga] it must be written out",
                    step.name
                ));
            }
        }
    }
    refusals
}

/// How often a path may be percent-encoded over itself.
const DECODED_MAX: usize = 3;

/// Whether a path means the same to everyone: servers differ in whether `..` is resolved before or after decoding, and
/// the target is sent as it was written.
fn is_plain(path: &str) -> bool {
    let mut path = path.as_bytes().to_vec();
    // A server behind another decodes once more; what is encoded deeper than any of them goes is no honest path.
    for _ in 0..DECODED_MAX {
        path = decoded(&path);
    }
    if decoded(&path) != path || path.contains(&b'\\') {
        return false;
    }
    let path = path.strip_prefix(b"/").unwrap_or(&path);
    let path = path.strip_suffix(b"/").unwrap_or(path);
    path.is_empty()
        || path.split(|byte| *byte == b'/').all(|segment| {
            // Some servers cut parameters off a segment before they resolve it.
            let name = segment.split(|byte| *byte == b';').next().unwrap_or_default();
            !matches!(name, b"" | b"." | b"..")
        })
}

/// A path with its percent escapes decoded once.
fn decoded(path: &[u8]) -> Vec<u8> {
    let hex = |at: usize| {
        let digit = char::from(*path.get(at)?).to_digit(16)?;
        u8::try_from(digit).ok()
    };
    let mut found = Vec::with_capacity(path.len());
    let mut at = 0;
    while let Some(byte) = path.get(at) {
        match (byte, hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                found.push(high * 16 + low);
                at += 3;
            }
            _ => {
                found.push(*byte);
                at += 1;
            }
        }
    }
    found
}

/// Whether a URL is `known` or something below it, by whole segments of its path.
fn is_under(target: &http::Uri, known: &str) -> bool {
    let Ok(known) = known.parse::<http::Uri>() else {
        return false;
    };
    target.scheme() == known.scheme()
        && target.authority() == known.authority()
        && target
            .path()
            .strip_prefix(known.path().trim_end_matches('/'))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Who wants something of a saga, and why.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Person {
    pub(super) by: Option<String>,
    pub(super) why: Option<String>,
}

/// Reads an optional body.
///
/// # Errors
/// It is there and wrong.
pub(super) fn optional<T: DeserializeOwned + Default>(
    headers: &HeaderMap,
    bytes: &[u8],
) -> Result<T, Problem> {
    if bytes.is_empty() {
        return Ok(T::default());
    }
    must_be_json(headers)?;
    json(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_keep_their_bytes() {
        let body = br#"{"id":"o-1","definition":{"name":"n","steps":[{"name":"a","action":"http://x/a","pivot":true}]},
            "input": {"n": 1.10,  "big": 12345678901234567890} }"#;
        let wanted = submission(body, &[]).map_err(|_| ()).unwrap();
        assert_eq!(&wanted.input[..], br#"{"n": 1.10,  "big": 12345678901234567890}"#);
    }

    /// Whether a definition with this action is accepted.
    fn accepted(action: &str, participant: &str) -> bool {
        let step = serde_json::json!({"name": "a", "action": action, "pivot": true});
        let body = serde_json::json!({"id": "o-1", "definition": {"name": "n", "steps": [step]}});
        submission(body.to_string().as_bytes(), &[participant.to_owned()]).is_ok()
    }

    #[test]
    fn a_participant_is_an_origin_or_a_folder_and_not_a_prefix_of_letters() {
        for (target, participant) in [
            ("http://a:1", "http://a:1"),
            ("http://a:1/", "http://a:1"),
            ("http://a:1/x", "http://a:1"),
            ("http://a:1/x", "http://a:1/"),
            ("http://A:1/x?to=../b", "http://a:1"),
            ("http://a:1/pay", "http://a:1/pay/"),
            ("http://a:1/pay?n=1", "http://a:1/pay"),
            ("http://a:1/pay/x.y/...", "http://a:1/pay"),
            ("http://a:1/pay/50%25/", "http://a:1/pay"),
        ] {
            assert!(accepted(target, participant), "{target}");
        }
        for (target, participant) in [
            ("http://a:10/x", "http://a:1"),
            ("https://a:1/x", "http://a:1"),
            ("http://a.evil/x", "http://a"),
            ("http://a@evil/x", "http://a"),
            ("http://x@a/x", "http://a"),
            ("http://a/payroll", "http://a/pay"),
            ("http://a", "http://a/pay"),
        ] {
            assert!(!accepted(target, participant), "{target}");
        }
    }

    #[test]
    fn a_participants_folder_cannot_be_left_by_dots_however_they_are_written() {
        for rest in [
            "/../admin",
            "/..",
            "/./x",
            "/%2e%2e/admin",
            "/%2E%2e/admin",
            "/.%2e/admin",
            "/%252e%252e/admin",
            "/x%2f..%2f..%2fadmin",
            "/..;a=b/admin",
            "/..\\admin",
            "/%5c..%5cadmin",
            "//admin",
            "/x//",
            "/%2Fadmin",
            "#/../admin",
        ] {
            let target = format!("http://127.0.0.1:1/pay{rest}");
            assert!(!accepted(&target, "http://127.0.0.1:1/pay"), "{target}");
        }
    }
}
