//! Calling the handler and taking its answer: whole where it fits, to be streamed where it does not.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, Response};
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt;

use super::buffer::{Buffered, buffer};
use super::catch::catch;
use crate::body::{Body, BoxError};
use crate::headers::SEMEL_OUTCOME;
use crate::policy::{Disposition, Ending, OutcomeWord, SentBefore, grpc};
use crate::shared::Shared;

/// What came of a handler.
pub(super) enum Produced<E> {
    /// A whole answer, to be stored first and sent then.
    Whole(Box<Parts>, Bytes, Option<Box<HeaderMap>>, Ending),
    /// One that cannot be kept: it is sent on as it comes.
    Stream(Box<Head>),
    /// An answer that is not to be stored.
    Unstored(Box<Response<Body>>, Ending),
    /// The service failed, without an answer.
    Failed(E),
    /// It panicked or its body broke, before anything was sent.
    Broken(Broken),
}

/// An answer whose body is still being written.
pub(super) struct Head {
    pub(super) parts: Parts,
    /// Read already.
    pub(super) read: VecDeque<Frame<Bytes>>,
    pub(super) body: Body,
    pub(super) ending: Ending,
}

/// Why there is no whole answer.
pub(super) enum Broken {
    Panic(String),
    Body(BoxError),
    NobodyReads,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic(text) => write!(f, "the handler panicked: {text}"),
            Self::Body(error) => write!(f, "the answer's body broke off: {error}"),
            Self::NobodyReads => f.write_str("nobody reads the stream, and run_ms_max has passed"),
        }
    }
}

/// Runs `call` and says what came of it: an answer that is not to be stored is handed back untouched; one that fits is
/// read whole; of all others the body is left where it is.
pub(super) async fn produce<B, E>(
    shared: &Arc<Shared>,
    call: Pin<&mut impl Future<Output = Result<Response<B>, E>>>,
) -> Produced<E>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let response = match catch(call).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Produced::Failed(error),
        Err(panic) => return Produced::Broken(Broken::Panic(panic)),
    };
    let ending = judge(shared, &response);
    match ending {
        Ending::Store | Ending::Refuse | Ending::Forget => {}
        Ending::Release | Ending::Unknown | Ending::Defer => {
            return Produced::Unstored(Box::new(response.map(Body::new)), ending);
        }
    }
    let (parts, body) = response.into_parts();
    let mut body = Body::new(body);
    match buffer(&parts.headers, &mut body, shared.config.response_bytes_max).await {
        Ok(Buffered::Whole(bytes, trailers)) => whole(shared, parts, bytes, trailers, ending),
        Ok(Buffered::Stream(read)) => Produced::Stream(Box::new(Head {
            parts,
            read,
            body,
            ending,
        })),
        Err(why) => Produced::Broken(why),
    }
}

fn whole<E>(
    shared: &Shared,
    parts: Parts,
    bytes: Bytes,
    trailers: Option<Box<HeaderMap>>,
    ending: Ending,
) -> Produced<E> {
    match judge_behind(shared, &parts, trailers.as_deref(), ending) {
        ending @ (Ending::Release | Ending::Unknown | Ending::Defer) => {
            let response = Response::from_parts(parts, Body::with_trailers(bytes, trailers));
            Produced::Unstored(Box::new(response), ending)
        }
        ending => Produced::Whole(Box::new(parts), bytes, trailers, ending),
    }
}

/// gRPC says only behind the body what came of it.
pub(super) fn judge_behind(
    shared: &Shared,
    parts: &Parts,
    trailers: Option<&HeaderMap>,
    ending: Ending,
) -> Ending {
    if parts.extensions.get::<Disposition>().is_some() || !grpc::is_grpc(&parts.headers) {
        return ending;
    }
    let says = |fields: &HeaderMap| fields.contains_key(grpc::STATUS);
    match trailers {
        Some(fields) if says(fields) => {
            let ending = grpc::settle(ending, fields, shared.config.status.distrust_unavailable);
            after_an_earlier(ending, &parts.headers, &parts.extensions)
        }
        // A server that was cut off behind the message: it says "done" only by its status.
        _ if grpc::is_native(&parts.headers)
            && !says(&parts.headers)
            && matches!(ending, Ending::Store | Ending::Forget) =>
        {
            Ending::Unknown
        }
        _ => ending,
    }
}

/// What the answer means for its key, by the service's policy and by the handler's own word.
pub(super) fn judge<B>(shared: &Shared, response: &Response<B>) -> Ending {
    let said = response.extensions().get::<Disposition>().copied();
    let policy = &shared.config.status;
    let ending = policy.judge(response.status(), response.headers(), said);
    // A gRPC answer without a body has its status in the headers.
    let ending = if said.is_none() && grpc::is_grpc(response.headers()) {
        grpc::settle(ending, response.headers(), policy.distrust_unavailable)
    } else {
        ending
    };
    after_an_earlier(ending, response.headers(), response.extensions())
}

/// What is left of an ending where the same request was sent before: "nothing happened" is of the last sending alone, unless
/// a word on the key says it.
fn after_an_earlier(ending: Ending, headers: &HeaderMap, extensions: &http::Extensions) -> Ending {
    let of_the_last = ending == Ending::Release
        && extensions.get::<SentBefore>().is_some()
        && extensions.get::<Disposition>().is_none();
    let word =
        || OutcomeWord::read(headers.get(SEMEL_OUTCOME)).filter(|word| *word != OutcomeWord::Succeeded);
    if of_the_last && word().is_none() {
        Ending::Unknown
    } else {
        ending
    }
}

/// The next frame of a handler's body, `None` at its end. The body is the handler's code, too: it may panic.
pub(super) async fn next_frame(body: &mut Body) -> Result<Option<Frame<Bytes>>, Broken> {
    match catch(body.frame()).await {
        Ok(None) => Ok(None),
        Ok(Some(Ok(frame))) => Ok(Some(frame)),
        Ok(Some(Err(error))) => Err(Broken::Body(error)),
        Err(panic) => Err(Broken::Panic(panic)),
    }
}
