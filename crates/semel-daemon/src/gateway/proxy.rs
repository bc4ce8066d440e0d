//! From a request to the upstream's answer, and what is known when there is none.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use hyper::upgrade::OnUpgrade;
use semel_core::host::random_16;
use semel_core::key::hex;
use semel_core::{Clock as _, Key, SystemClock, crash_point};
use semel_http::headers::{SEMEL_GUARANTEE, SEMEL_HOP, SEMEL_OUTCOME};
use semel_http::policy::{Ending, OutcomeWord};
use semel_http::{Body, ClaimInfo, Disposition, KeepFor, Problem, SentBefore, StatusPolicy};
use tokio_util::sync::CancellationToken;
use tower::Service;

use super::Answering;
use super::body::{Answer, Outgoing, Patience, Reply, Watch};
use super::client::{Arriving, Client, Limits, SendError};
use super::config::{ProxyConfig, Sending};
use super::failure::{Refusal, broke_off, failed, not_supported, still_open, too_slow, unreachable};
use super::forward::{self, NOT_EXECUTED, PERSIST_FOR};
use super::peer::Peer;
use super::reconcile::{Reconciler, Verdict};
use super::stats::Stats;
use super::tunnel;

/// How often a request with a key goes to an upstream that deduplicates, at most, and the pause between.
const SENDS_MAX: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

/// Bytes of an answer up to which it is read whole where somebody can be asked what became of a request whose answer
/// breaks off.
const WHOLE_MAX: u64 = 960 << 10;

/// Sends the requests of one route on. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Proxy(Arc<Inner>);

struct Inner {
    client: Client,
    config: Arc<ProxyConfig>,
    sending: Sending,
    /// What the layer makes of statuses.
    policy: StatusPolicy,
    unkeyed_bytes_max: Option<u64>,
    reconciler: Option<Reconciler>,
    stats: Arc<Stats>,
    stop: CancellationToken,
}

impl Proxy {
    /// Over these connections; `stop` ends tunnels.
    pub(crate) fn new(
        client: Client,
        config: Arc<ProxyConfig>,
        (sending, policy): (Sending, StatusPolicy),
        unkeyed_bytes_max: Option<u64>,
        stats: Arc<Stats>,
        stop: CancellationToken,
    ) -> Self {
        let reconciler = sending.reconcile.as_ref();
        let reconciler = reconciler.map(|who| Reconciler::new(who, &config.kept));
        Self(Arc::new(Inner {
            client,
            config,
            sending,
            policy,
            unkeyed_bytes_max,
            reconciler,
            stats,
            stop,
        }))
    }

    /// Who knows what became of a key.
    pub(super) fn reconciler(&self) -> Option<&Reconciler> {
        self.0.reconciler.as_ref()
    }

    /// A request without a key: bodies stream both ways. Prepared here, so that what waits is small.
    pub(crate) fn plain(&self, request: Request<Outgoing>, peer: Option<&Peer>) -> Answering {
        let inner = &*self.0;
        let (mut parts, body) = request.into_parts();
        let upgrade = forward::upgrade(&parts.headers);
        if upgrade.is_none() && forward::wants_websocket(&parts.headers) {
            return not_supported(
                "a WebSocket needs `Connection: Upgrade` over HTTP/1.1; it is not carried over HTTP/2",
            )
            .into();
        }
        if inner
            .unkeyed_bytes_max
            .is_some_and(|max| body.size_hint().lower() > max)
        {
            return inner.too_long("nothing was sent").into();
        }
        if let Err(refused) = inner.prepare(&mut parts, peer, upgrade.clone()) {
            return (*refused).into();
        }
        let tunnel = upgrade.map(|protocol| {
            let place = parts.extensions.remove::<tunnel::Place>();
            let client = hyper::upgrade::on(Request::from_parts(parts.clone(), ()));
            Box::new((client, protocol, place))
        });
        parts.extensions.clear();
        let request = Request::from_parts(parts, body);
        Answering::later(Arc::clone(&self.0).stream(request, tunnel))
    }

    /// A request with a key, under its claim.
    async fn keyed(self, request: Request<Body>, claim: ClaimInfo) -> Response<Reply> {
        let inner = &*self.0;
        let (mut parts, body) = request.into_parts();
        let peer = parts.extensions.remove::<Peer>();
        if forward::wants_websocket(&parts.headers) {
            return not_supported("a request with a key cannot become a WebSocket");
        }
        if let Err(refused) = inner.prepare(&mut parts, peer.as_ref(), None) {
            return *refused;
        }
        // Trailers of a request that was collected are gone; `TE` is about the answer's.
        parts.headers.remove(header::TRAILER);
        parts.extensions.clear();
        claim.set_headers(&mut parts.headers);
        let Ok(whole) = body.collect().await else {
            return failed(&broke_off(), Disposition::NotExecuted);
        };
        let end = SystemClock.monotonic() + inner.sending.total;
        let asked = inner.reconciler.is_some().then(|| parts.headers.clone());
        // What a Semel there sends back with its own word on this key, and nobody behind it can.
        let hop = HeaderValue::try_from(hex(&random_16())).ok();
        if let Some(hop) = &hop {
            parts.headers.insert(SEMEL_HOP, hop.clone());
        }
        match inner
            .attempts(parts, whole.to_bytes(), end, claim.attempt > 1)
            .await
        {
            Sent::Answer(mut answer) => {
                only_its_own_word(answer.headers_mut(), hop.as_ref());
                if let Some(asked) = asked {
                    return Box::pin(inner.clear_answer(&asked, &claim.key, answer, end)).await;
                }
                keyed_answer(answer, end)
            }
            Sent::Nothing(response) => *response,
            Sent::Unknown(problem) => {
                if let Some(asked) = asked
                    && let Some(settled) = inner.settle(&asked, &claim.key).await
                {
                    return settled;
                }
                let url = inner.sending.status_url.as_ref().map(|url| url.of(&claim.key));
                failed(&problem.status_url(url), Disposition::Unknown)
            }
        }
    }
}

/// What sending a keyed request came to.
enum Sent {
    Answer(Response<Arriving>),
    Nothing(Box<Response<Reply>>),
    Unknown(Problem),
}

impl Inner {
    /// Sends a request that is prepared, and its body as it comes.
    async fn stream(
        self: Arc<Self>,
        mut request: Request<Outgoing>,
        tunnel: Option<Box<(OnUpgrade, HeaderValue, Option<tunnel::Place>)>>,
    ) -> Response<Reply> {
        if tunnel.is_none()
            && self.client.is_direct()
            && let Err(error) = request.body_mut().gather().await
        {
            let detail =
                format!("the body ended early ({error}), and nothing was sent; send the whole request");
            return Refusal::BodyBroken.answer(&detail, true);
        }
        let watch = request.body().watch();
        let limit = self.sending.first_byte;
        let limits = Limits {
            head: limit,
            end: None,
            // A long upload is not a slow upstream.
            watch: watch.as_deref(),
        };
        let began = SystemClock.monotonic();
        match self.client.send(request, &limits).await {
            Ok(answer) => {
                self.stats
                    .answered_after(SystemClock.monotonic().saturating_sub(began));
                let (mut parts, body) = answer.into_parts();
                forward::answer(&mut parts.headers);
                if parts.status == StatusCode::SWITCHING_PROTOCOLS {
                    return match (tunnel.map(|tunnel| *tunnel), body.into_incoming()) {
                        (Some((client, protocol, place)), Some(body)) => {
                            self.join((client, place), Response::from_parts(parts, body), protocol)
                        }
                        _ => failed(&broke_off(), Disposition::Unknown),
                    };
                }
                let body = Answer::new(body, Patience::Idle(self.sending.answer_idle));
                Response::from_parts(parts, Reply::Upstream(Box::new(body)))
            }
            Err(error) => self.unsent(error, watch.as_deref()),
        }
    }

    /// What a request without a key is told when there is no answer.
    fn unsent(&self, error: SendError, watch: Option<&Watch>) -> Response<Reply> {
        if watch.is_some_and(Watch::too_long) {
            return self.too_long("the upstream saw a part of it, and its connection was closed");
        }
        if watch.is_some_and(Watch::broken) {
            // The client's doing, and nothing that the upstream is counted for.
            let detail = "the body ended early or stopped coming, and the upstream may have seen a part of it; send the \
                          whole request";
            return Refusal::BodyBroken.answer(detail, true);
        }
        match error {
            SendError::NotSent(why) => self.not_sent(&why),
            SendError::Broken(why) => {
                self.broken(&why);
                failed(&broke_off(), Disposition::Unknown)
            }
            SendError::Slow => {
                let limit = self.sending.first_byte;
                self.slow("first_byte_timeout_ms", limit);
                failed(
                    &too_slow(&limit_text("first_byte_timeout_ms", limit)),
                    Disposition::Unknown,
                )
            }
        }
    }

    /// Target and headers for the upstream.
    fn prepare(
        &self,
        parts: &mut Parts,
        peer: Option<&Peer>,
        upgrade: Option<HeaderValue>,
    ) -> Result<(), Box<Response<Reply>>> {
        let target = forward::target(&self.config.upstream, &parts.uri);
        let (Some(uri), false) = (target, parts.method == Method::CONNECT) else {
            return Err(Box::new(not_supported(
                "this gateway forwards paths; CONNECT and tunnels over HTTP/2 are not carried",
            )));
        };
        // A proxy must take the host of an absolute target, and the only one that HTTP/2 has (RFC 9112, 3.2.2).
        let authority = parts.uri.authority().map(Authority::as_str);
        let authority = authority.and_then(|authority| HeaderValue::from_str(authority).ok());
        parts.uri = uri;
        parts.version = Version::HTTP_11;
        forward::request(
            &mut parts.headers,
            &self.config,
            peer,
            authority.as_ref(),
            upgrade,
        );
        Ok(())
    }

    /// Sends it once; to an upstream that deduplicates, with the same key again, while there is time. `lost` is of a run whose
    /// earlier owner was lost, and may have sent it.
    async fn attempts(&self, parts: Parts, bytes: Bytes, end: Duration, lost: bool) -> Sent {
        let mut sends = 0;
        // Kept where it may be needed again.
        let again = self.sending.deduplicates.then(|| parts.clone());
        let mut next = Some(parts);
        loop {
            let Some(parts) = next.take().or_else(|| again.clone()) else {
                return Sent::Unknown(broke_off());
            };
            let left = end.saturating_sub(SystemClock.monotonic());
            let (limit, name) = if left < self.sending.first_byte {
                (left, "total_timeout_ms")
            } else {
                (self.sending.first_byte, "first_byte_timeout_ms")
            };
            let request = Request::from_parts(parts, Outgoing::whole(bytes.clone()));
            sends += 1;
            crash_point("gateway.before_send");
            let began = SystemClock.monotonic();
            let limits = Limits {
                head: limit,
                end: Some(end),
                watch: None,
            };
            let problem = match self.client.send(request, &limits).await {
                Ok(mut answer) => {
                    self.stats
                        .answered_after(SystemClock.monotonic().saturating_sub(began));
                    crash_point("gateway.answered");
                    let sent_before = sends > 1 || lost;
                    if sent_before && self.leaves_open(answer.status(), answer.headers()) {
                        still_open()
                    } else if self.again(sends, end) && matches!(answer.status().as_u16(), 502 | 504) {
                        broke_off()
                    } else {
                        if sent_before {
                            answer.extensions_mut().insert(SentBefore);
                        }
                        return Sent::Answer(answer);
                    }
                }
                Err(SendError::NotSent(why)) if sends == 1 && !lost => {
                    return Sent::Nothing(Box::new(self.not_sent(&why)));
                }
                // An earlier one may have been done.
                Err(SendError::NotSent(why) | SendError::Broken(why)) => {
                    self.broken(&why);
                    broke_off()
                }
                Err(SendError::Slow) => {
                    self.slow(name, limit);
                    too_slow(&limit_text(name, limit))
                }
            };
            if !self.again(sends, end) {
                return Sent::Unknown(problem);
            }
            tokio::time::sleep(PAUSE * sends).await;
        }
    }

    /// Whether an answer to a request that was sent before leaves open what became of the first one: "not now" is of the last
    /// sending alone, and a conflict may be the upstream's "in progress". A word on the key says more.
    fn leaves_open(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        let word =
            OutcomeWord::read(headers.get(SEMEL_OUTCOME)).filter(|word| *word != OutcomeWord::Succeeded);
        if word.is_some() || forward::says_yes(headers, &NOT_EXECUTED) {
            return false;
        }
        let conflict = status == StatusCode::CONFLICT && !headers.contains_key(SEMEL_OUTCOME);
        conflict || self.policy.judge(status, headers, None) == Ending::Release
    }

    /// Whether the same request may be sent once more.
    fn again(&self, sends: u32, end: Duration) -> bool {
        self.sending.deduplicates && sends < SENDS_MAX && SystemClock.monotonic() + PAUSE * sends < end
    }

    /// Asks what became of it, where somebody knows.
    async fn settle(&self, asked: &HeaderMap, key: &Key) -> Option<Response<Reply>> {
        let reconciler = self.reconciler.as_ref()?;
        match Box::pin(reconciler.ask(asked, key)).await {
            Verdict::Settled(answer) => {
                self.stats.reconciled.inc();
                Some(*answer)
            }
            Verdict::Unknown(why) => {
                if let Some(more) = self.stats.quiet_reconcile.may_speak() {
                    tracing::warn!(%key, why, more, "the reconcile_url does not know what became of a request");
                }
                None
            }
        }
    }

    /// The upstream's answer, or what is known of one that says nothing of the end or breaks off before it has begun to
    /// leave.
    async fn clear_answer(
        &self,
        asked: &HeaderMap,
        key: &Key,
        answer: Response<Arriving>,
        end: Duration,
    ) -> Response<Reply> {
        let silent = !answer.headers().contains_key(SEMEL_OUTCOME)
            && !forward::says_yes(answer.headers(), &NOT_EXECUTED);
        let unclear = matches!(answer.status().as_u16(), 408 | 500 | 502 | 503 | 504);
        if silent
            && unclear
            && let Some(settled) = self.settle(asked, key).await
        {
            return settled;
        }
        let length = answer.body().size_hint().exact();
        let version = answer.version();
        let answer = keyed_answer(answer, end);
        // One of known length has no trailers over HTTP/1.1.
        if version == Version::HTTP_2 || length.is_none_or(|length| length > WHOLE_MAX) {
            return answer;
        }
        let (parts, body) = answer.into_parts();
        match body.collect().await {
            Ok(whole) => Response::from_parts(parts, Reply::Own(Body::whole(whole.to_bytes()))),
            Err(error) => match self.settle(asked, key).await {
                Some(settled) => settled,
                None => {
                    let problem = error.downcast::<Problem>().map_or_else(|_| broke_off(), |it| *it);
                    failed(&problem, Disposition::Unknown)
                }
            },
        }
    }

    fn join(
        &self,
        client: (OnUpgrade, Option<tunnel::Place>),
        answer: Response<hyper::body::Incoming>,
        protocol: HeaderValue,
    ) -> Response<Reply> {
        let (mut parts, _) = tunnel::join(
            client,
            answer,
            self.sending.answer_idle,
            self.stop.clone(),
            Arc::clone(&self.stats),
        )
        .into_parts();
        parts
            .headers
            .insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.entry(header::UPGRADE).or_insert(protocol);
        Response::from_parts(parts, Reply::Own(Body::empty()))
    }

    fn too_long(&self, so: &str) -> Response<Reply> {
        let max = self.unkeyed_bytes_max.unwrap_or_default();
        let detail = format!("it is longer than unkeyed_bytes_max = {max}; {so}");
        Refusal::BodyTooLarge.answer(&detail, true)
    }

    fn not_sent(&self, why: &str) -> Response<Reply> {
        self.stats.failed.get("not_sent").inc();
        if let Some(more) = self.stats.quiet.may_speak() {
            tracing::warn!(upstream = %self.config.upstream, error = why, more, "upstream unreachable");
        }
        unreachable()
    }

    fn broken(&self, why: &str) {
        self.stats.failed.get("broken").inc();
        if let Some(more) = self.stats.quiet.may_speak() {
            tracing::warn!(upstream = %self.config.upstream, error = why, more, "upstream broke off");
        }
    }

    fn slow(&self, name: &str, limit: Duration) {
        self.stats.failed.get("slow").inc();
        if let Some(more) = self.stats.quiet.may_speak() {
            let limit = limit_text(name, limit);
            tracing::warn!(upstream = %self.config.upstream, limit, more, "no answer in time");
        }
    }
}

fn limit_text(name: &str, limit: Duration) -> String {
    format!("{name} = {}", limit.as_millis())
}

/// The upstream's answer to a keyed request, with its own word on the key.
fn keyed_answer(answer: Response<Arriving>, end: Duration) -> Response<Reply> {
    let (mut parts, body) = answer.into_parts();
    forward::strip_hop_by_hop(&mut parts.headers, &[]);
    said(&mut parts.headers, &mut parts.extensions);
    let body = Answer::new(body, Patience::Until(end));
    Response::from_parts(parts, Reply::Upstream(Box::new(body)))
}

/// Takes `running` and `unknown` for a Semel's word on this very key only where it was sent back what this request had. What
/// an upstream passes on from one behind it is not: the upstream may have done something itself before.
fn only_its_own_word(headers: &mut HeaderMap, hop: Option<&HeaderValue>) {
    if headers.remove(SEMEL_HOP).as_ref() == hop {
        return;
    }
    let word = OutcomeWord::read(headers.get(SEMEL_OUTCOME));
    if matches!(word, Some(OutcomeWord::Running | OutcomeWord::Unknown)) {
        headers.remove(SEMEL_GUARANTEE);
    }
}

/// Takes the control headers out of an answer and obeys them. `Semel-Outcome` and `Semel-No-Store` are the layer's.
pub(super) fn said(headers: &mut HeaderMap, extensions: &mut http::Extensions) {
    let nothing_happened = forward::says_yes(headers, &NOT_EXECUTED);
    headers.remove(NOT_EXECUTED);
    if nothing_happened {
        extensions.insert(Disposition::NotExecuted);
    }
    let seconds = headers.remove(PERSIST_FOR);
    let seconds = seconds.and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
    if let Some(seconds) = seconds {
        extensions.insert(KeepFor(Duration::from_secs(seconds)));
    }
}

impl Service<Request<Body>> for Proxy {
    type Response = Response<Reply>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Answering {
        match request.extensions_mut().remove::<ClaimInfo>() {
            Some(claim) => Answering::later(self.clone().keyed(request, claim)),
            None => {
                let peer = request.extensions_mut().remove::<Peer>();
                let max = self.0.unkeyed_bytes_max;
                self.plain(request.map(|body| Outgoing::layer(body, max)), peer.as_ref())
            }
        }
    }
}
