//! What an answer means.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use semel_client::{ClientError, ClientErrorKind};
use semel_core::store::{SinkError, SinkErrorClass};
use semel_core::wire;

/// Bytes of an answer's body that are shown in an error.
const SHOWN_BYTES: usize = 200;

/// `Ok` only when the receiver has said that it has the event: by its status, or as a Semel receiver that has it and has
/// not kept its answer.
pub(crate) fn judge(answer: &Response<Bytes>) -> Result<(), SinkError> {
    let body = &answer.body()[..answer.body().len().min(SHOWN_BYTES)];
    judge_head(answer.status(), answer.headers(), &String::from_utf8_lossy(body))
}

/// No whole answer came. One whose body is too long, is cut off or does not end is still an answer: its head says all there
/// is to know. An event that was taken must not be sent again and again for what came after it, and one that is refused is
/// refused.
pub(crate) fn judge_failure(error: &ClientError) -> Result<(), SinkError> {
    if let (Some(status), Some(headers)) = (error.status(), error.headers()) {
        return judge_head(status, headers, &error.to_string());
    }
    let class = match error.kind() {
        ClientErrorKind::Private => SinkErrorClass::Destination,
        _ => SinkErrorClass::Away,
    };
    Err(SinkError::new(class, error.to_string()))
}

fn judge_head(status: StatusCode, headers: &HeaderMap, text: &str) -> Result<(), SinkError> {
    if status.is_success() {
        return Ok(());
    }
    let outcome = headers.get(wire::OUTCOME).map(|value| value.as_bytes());
    if status == StatusCode::GONE && outcome == Some(b"succeeded") {
        return Ok(());
    }
    let mut error = SinkError::new(class(status, outcome), format!("{status}: {text}"));
    error.retry_after = retry_after(headers);
    Err(error)
}

/// What an answer says about the whole host: `false` when it cannot take anything now. One that is at work on this very
/// event, or asks for patience with it, is there.
pub(crate) fn is_there(status: StatusCode) -> bool {
    !matches!(status.as_u16(), 408 | 429 | 500..=599)
}

const fn class(status: StatusCode, outcome: Option<&[u8]>) -> SinkErrorClass {
    match status.as_u16() {
        408 | 425 | 429 | 500..=599 => SinkErrorClass::Away,
        // A Semel receiver that is at work on this very event: it is not refused (rule S10).
        409 if matches!(outcome, Some(b"running")) => SinkErrorClass::Away,
        401 | 403 | 404 | 405 | 407 | 410 | 421 => SinkErrorClass::Destination,
        400..=499 => SinkErrorClass::Message,
        // 1xx never gets here; 3xx is not followed: somebody must change the URL.
        _ => SinkErrorClass::Destination,
    }
}

/// `Retry-After` in seconds; the form with a date is left to the back-off.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(http::header::RETRY_AFTER)?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(status: u16, headers: &[(&str, &str)]) -> Option<SinkError> {
        let mut answer = Response::builder().status(status);
        for (name, value) in headers {
            answer = answer.header(*name, *value);
        }
        judge(&answer.body(Bytes::from_static(b"why\n")).unwrap()).err()
    }

    #[test]
    fn each_status_has_its_class() {
        use SinkErrorClass::{Away, Destination, Message};
        for (status, class) in [
            (200, None),
            (202, None),
            (204, None),
            (301, Some(Destination)),
            (307, Some(Destination)),
            (400, Some(Message)),
            (401, Some(Destination)),
            (403, Some(Destination)),
            (404, Some(Destination)),
            (408, Some(Away)),
            (409, Some(Message)),
            (410, Some(Destination)),
            (413, Some(Message)),
            (422, Some(Message)),
            (425, Some(Away)),
            (429, Some(Away)),
            (500, Some(Away)),
            (503, Some(Away)),
        ] {
            assert_eq!(judged(status, &[]).map(|error| error.class), class, "{status}");
        }
        let running = judged(409, &[("semel-outcome", "running"), ("retry-after", "7")]).unwrap();
        assert_eq!(
            (running.class, running.retry_after),
            (Away, Some(Duration::from_secs(7)))
        );
        let taken = judged(410, &[("semel-outcome", "succeeded")]);
        assert!(taken.is_none(), "its answer was not kept: {taken:?}");
        assert_eq!(
            judged(410, &[("semel-outcome", "unknown")]).map(|error| error.class),
            Some(Destination)
        );
        assert_eq!(
            judged(503, &[("retry-after", "Wed, 21 Oct 2026")])
                .unwrap()
                .retry_after,
            None
        );
        assert_eq!(
            judged(422, &[]).unwrap().message,
            "422 Unprocessable Entity: why "
        );
    }
}
