//! Asking what became of a request whose end is not known.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use semel_client::{HttpClient, Limits};
use semel_core::{Clock as _, Key, SystemClock};
use semel_http::headers::{IDEMPOTENCY_KEY, SEMEL_OUTCOME};
use semel_http::policy::OutcomeWord;
use semel_http::{Body, Disposition};

use super::body::Reply;
use super::forward::{NOT_EXECUTED, says_yes};
use super::proxy::said;

/// Bytes of an answer at most.
const ANSWER_BYTES_MAX: usize = 960 << 10;

/// The pause before it is asked again, where it says that the request still runs.
const PAUSE: Duration = Duration::from_millis(250);

/// Who knows what became of a key.
pub(super) struct Reconciler {
    url: Uri,
    /// Fields that say who asked.
    kept: Vec<HeaderName>,
    most: Duration,
    client: Arc<HttpClient>,
}

/// What it says.
pub(super) enum Verdict {
    /// This is the answer, with what it means for the key.
    Settled(Box<Response<Reply>>),
    /// Nobody knows, for this reason.
    Unknown(String),
}

impl Reconciler {
    pub(super) fn new((url, most): &(Uri, Duration), kept: &[HeaderName]) -> Self {
        Self {
            url: url.clone(),
            kept: kept.to_vec(),
            most: *most,
            client: Arc::new(HttpClient::new(Limits {
                response_bytes_max: ANSWER_BYTES_MAX,
                ..Limits::default()
            })),
        }
    }

    /// `GET` with the key, the token and the principal of the request that was sent. Asked again while
    /// it answers `running` and the time lasts. Only a word of `Semel-Outcome` settles: that nothing is known of a key
    /// may mean that its request is still on its way.
    pub(super) async fn ask(&self, sent: &HeaderMap, key: &Key) -> Verdict {
        let end = SystemClock.monotonic() + self.most;
        loop {
            let left = end.saturating_sub(SystemClock.monotonic());
            let mut request = Request::new(Bytes::new());
            *request.method_mut() = Method::GET;
            *request.uri_mut() = self.url.clone();
            for (name, value) in sent {
                if *name == IDEMPOTENCY_KEY || name.as_str().starts_with("semel-") || self.kept.contains(name)
                {
                    request.headers_mut().append(name.clone(), value.clone());
                }
            }
            // It may have come in another header, or in the body.
            if let (false, Some(key)) = (request.headers().contains_key(IDEMPOTENCY_KEY), quoted(key)) {
                request.headers_mut().insert(IDEMPOTENCY_KEY, key);
            }
            let answer = match self.client.send(request, left).await {
                Ok(answer) => answer,
                Err(error) => return Verdict::Unknown(error.to_string()),
            };
            match OutcomeWord::read(answer.headers().get(SEMEL_OUTCOME)) {
                Some(OutcomeWord::Succeeded) => return settled(answer, Disposition::Settled),
                Some(OutcomeWord::Refused) => {
                    let gone = says_yes(answer.headers(), &NOT_EXECUTED);
                    let meaning = if gone {
                        Disposition::NotExecuted
                    } else {
                        Disposition::Refused
                    };
                    return settled(answer, meaning);
                }
                Some(OutcomeWord::Running) if SystemClock.monotonic() + PAUSE < end => {
                    tokio::time::sleep(PAUSE).await;
                }
                Some(word) => return Verdict::Unknown(format!("it says {}", word.as_str())),
                None => return Verdict::Unknown(format!("{} without Semel-Outcome", answer.status())),
            }
        }
    }
}

/// A key as a string of a structured field (RFC 9651, 3.3.3); `None` for one that no header can carry.
fn quoted(key: &Key) -> Option<HeaderValue> {
    let id = std::str::from_utf8(key.id()).ok()?;
    let escaped = id.replace('\\', "\\\\").replace('"', "\\\"");
    HeaderValue::from_str(&format!("\"{escaped}\"")).ok()
}

fn settled(answer: Response<Bytes>, meaning: Disposition) -> Verdict {
    let (mut parts, body) = answer.into_parts();
    super::forward::strip_hop_by_hop(&mut parts.headers, &[]);
    parts.headers.remove(header::TRAILER);
    said(&mut parts.headers, &mut parts.extensions);
    parts.extensions.insert(meaning);
    if parts.status == StatusCode::NOT_MODIFIED {
        parts.status = StatusCode::OK;
    }
    Verdict::Settled(Box::new(Response::from_parts(
        parts,
        Reply::Own(Body::whole(body)),
    )))
}
