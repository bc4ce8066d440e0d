//! Asking what became of a request whose end is not known.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use semel_client::{HttpClient, Limits};
use semel_core::claim::{Reconcile, ReconcileError, Token, Verdict as Settles};
use semel_core::{Clock as _, Key, StoredOutcome, SystemClock};
use semel_http::headers::{IDEMPOTENCY_KEY, SEMEL_OUTCOME, SEMEL_TOKEN};
use semel_http::policy::OutcomeWord;
use semel_http::response::StoredResponse;
use semel_http::{Body, Disposition};

use super::body::Reply;
use super::forward::{NOT_EXECUTED, says_yes};
use super::proxy::said;
use super::stats::Stats;

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

/// An answer that settles, as it came.
type Found = Result<(Response<Bytes>, Disposition), String>;

tokio::task_local! {
    /// What a request says of its caller and its key, while the layer works on it: the layer's hook knows only the key.
    static CALLER: HeaderMap;
}

/// Carries a request through the layer, whose hook may then ask in its caller's name. Where keys belong to principals,
/// nobody is asked about a request whose client went away meanwhile: the next retry asks.
pub(super) async fn on_behalf<T>(caller: HeaderMap, work: impl Future<Output = T>) -> T {
    CALLER.scope(caller, work).await
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

    /// What a request says of its caller and its key.
    pub(super) fn caller(&self, sent: &HeaderMap) -> HeaderMap {
        let says = |name: &HeaderName| *name == IDEMPOTENCY_KEY || self.kept.iter().any(|kept| kept == name);
        let fields = sent.iter().filter(|(name, _)| says(name));
        fields
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }

    /// About a request that was sent just now, with its key, its token and its principal.
    pub(super) async fn ask(&self, sent: &HeaderMap, key: &Key) -> Verdict {
        let mut fields = self.caller(sent);
        for (name, value) in sent {
            if name.as_str().starts_with("semel-") {
                fields.append(name.clone(), value.clone());
            }
        }
        match self.look(fields, key).await {
            Ok((answer, meaning)) => settled(answer, meaning),
            Err(why) => Verdict::Unknown(why),
        }
    }

    /// `GET` with these fields. Asked again while it answers `running` and the time lasts. Only a word of `Semel-Outcome`
    /// settles: that nothing is known of a key may mean that its request is still on its way.
    async fn look(&self, mut fields: HeaderMap, key: &Key) -> Found {
        // It may have come in another header, or in the body.
        if let (false, Some(key)) = (fields.contains_key(IDEMPOTENCY_KEY), quoted(key)) {
            fields.insert(IDEMPOTENCY_KEY, key);
        }
        let end = SystemClock.monotonic() + self.most;
        loop {
            let left = end.saturating_sub(SystemClock.monotonic());
            let mut request = Request::new(Bytes::new());
            *request.method_mut() = Method::GET;
            *request.uri_mut() = self.url.clone();
            *request.headers_mut() = fields.clone();
            let answer = match self.client.send(request, left).await {
                Ok(answer) => answer,
                Err(error) => return Err(error.to_string()),
            };
            match OutcomeWord::read(answer.headers().get(SEMEL_OUTCOME)) {
                Some(OutcomeWord::Succeeded) => return Ok((answer, Disposition::Settled)),
                Some(OutcomeWord::Refused) => {
                    let gone = says_yes(answer.headers(), &NOT_EXECUTED);
                    let meaning = if gone {
                        Disposition::NotExecuted
                    } else {
                        Disposition::Refused
                    };
                    return Ok((answer, meaning));
                }
                Some(OutcomeWord::Running) if SystemClock.monotonic() + PAUSE < end => {
                    tokio::time::sleep(PAUSE).await;
                }
                Some(word) => return Err(format!("it says {}", word.as_str())),
                None => return Err(format!("{} without Semel-Outcome", answer.status())),
            }
        }
    }
}

/// Asks for the layer about a key that reads as unknown: its gateway died, or nobody knew when it was asked before.
pub(super) struct Hook {
    reconciler: Reconciler,
    stats: Arc<Stats>,
}

impl Hook {
    pub(super) const fn new(reconciler: Reconciler, stats: Arc<Stats>) -> Self {
        Self { reconciler, stats }
    }
}

#[async_trait]
impl Reconcile for Hook {
    async fn reconcile(&self, key: &Key, token: Token) -> Result<Option<Settles>, ReconcileError> {
        let mut fields = match CALLER.try_with(HeaderMap::clone) {
            Ok(fields) => fields,
            // The same key may be another principal's too, and theirs would be told of.
            Err(_) if !self.reconciler.kept.is_empty() => return Ok(None),
            Err(_) => HeaderMap::new(),
        };
        fields.insert(SEMEL_TOKEN, HeaderValue::from(token.0));
        let (answer, meaning) = match self.reconciler.look(fields, key).await {
            Ok(found) => found,
            Err(why) => {
                if let Some(more) = self.stats.quiet_reconcile.may_speak() {
                    tracing::warn!(%key, why, more, "the reconcile_url does not know what became of a request");
                }
                return Ok(None);
            }
        };
        self.stats.reconciled.inc();
        Ok(Some(match meaning {
            Disposition::NotExecuted => Settles::DidNotHappen,
            Disposition::Refused => Settles::Happened(StoredOutcome::Refused(stored(answer))),
            _ => Settles::Happened(StoredOutcome::Succeeded(stored(answer))),
        }))
    }
}

/// An answer as the layer keeps it; it is below the limit of what is kept.
fn stored(answer: Response<Bytes>) -> Bytes {
    let (mut parts, body) = answer.into_parts();
    clean(&mut parts);
    StoredResponse::keep(parts.status, &parts.headers, body).encode()
}

/// A key as a string of a structured field (RFC 9651, 3.3.3); `None` for one that no header can carry.
fn quoted(key: &Key) -> Option<HeaderValue> {
    let id = std::str::from_utf8(key.id()).ok()?;
    let escaped = id.replace('\\', "\\\\").replace('"', "\\\"");
    HeaderValue::from_str(&format!("\"{escaped}\"")).ok()
}

fn settled(answer: Response<Bytes>, meaning: Disposition) -> Verdict {
    let (mut parts, body) = answer.into_parts();
    clean(&mut parts);
    parts.extensions.insert(meaning);
    Verdict::Settled(Box::new(Response::from_parts(
        parts,
        Reply::Own(Body::whole(body)),
    )))
}

/// Takes out what was said to this gateway only.
fn clean(parts: &mut http::response::Parts) {
    super::forward::strip_hop_by_hop(&mut parts.headers, &[]);
    parts.headers.remove(header::TRAILER);
    said(&mut parts.headers, &mut parts.extensions);
    if parts.status == StatusCode::NOT_MODIFIED {
        parts.status = StatusCode::OK;
    }
}
