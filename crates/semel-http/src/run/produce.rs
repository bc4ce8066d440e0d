//! Calling the handler and taking its answer: whole where it fits, streamed where it does not.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::response::Parts;
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt;
use semel_core::StoredOutcome;

use super::buffer::{Buffered, buffer};
use super::catch::catch;
use super::pump::{self, Pump};
use super::{TurnSender, outcome};
use crate::body::{Body, BoxError};
use crate::policy::{Disposition, Ending};
use crate::shared::Shared;

/// What came of a handler.
pub(super) enum Produced<E> {
    /// A whole answer, to be stored first and sent then.
    Whole(Parts, Bytes, Ending),
    /// It was sent on while it came, to its end; the connection's stream stays open until this outcome is durable.
    Streamed(Pump, StoredOutcome),
    /// An answer that is not to be stored; its body was not touched.
    Unstored(Response<Body>, Ending),
    /// The service failed, without an answer.
    Failed(E),
    /// It panicked or its body broke; with a pump, a part was sent already.
    Broken(Broken, Option<Pump>),
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

/// Runs `call` to the end of its body, and says what came of it. Three ways: an answer that is not to be stored is
/// handed back untouched; one that fits is read whole; of all others `tell` gets the head at once and the body as it
/// comes, so that `tell` is gone when this returns [`Produced::Streamed`] or breaks off midway.
pub(super) async fn produce<S, B, E>(
    shared: &Arc<Shared>,
    began: Duration,
    call: impl Future<Output = Result<Response<B>, E>>,
    tell: &mut Option<TurnSender<S, E>>,
) -> Produced<E>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let response = match catch(call).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Produced::Failed(error),
        Err(panic) => return Produced::Broken(Broken::Panic(panic), None),
    };
    let ending = judge(shared, &response);
    match ending {
        Ending::Store | Ending::Refuse | Ending::Forget => {}
        Ending::Release | Ending::Unknown | Ending::Defer => {
            return Produced::Unstored(response.map(Body::new), ending);
        }
    }
    let (parts, body) = response.into_parts();
    let mut body = Body::new(body);
    let read = match buffer(&parts.headers, &mut body, shared.config.response_bytes_max).await {
        Ok(Buffered::Whole(bytes)) => return Produced::Whole(parts, bytes, ending),
        Ok(Buffered::Stream(read)) => read,
        Err(why) => return Produced::Broken(why, None),
    };
    let outcome = outcome::without_body(ending, &parts);
    let pump = pump::open(shared, parts, read, ending, tell);
    match pump.pass_on(&mut body, began, shared.config.run_ms_max).await {
        Ok(()) => Produced::Streamed(pump, outcome),
        Err(why) => Produced::Broken(why, Some(pump)),
    }
}

/// What the answer means for its key, by the service's policy and by the handler's own word.
fn judge<B>(shared: &Shared, response: &Response<B>) -> Ending {
    let said = response.extensions().get::<Disposition>().copied();
    shared
        .config
        .status
        .judge(response.status(), response.headers(), said)
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
