//! Calling the handler and taking its answer: whole where it fits, streamed where it does not.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Response;
use http::header::CONTENT_TYPE;
use http::response::Parts;
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt;
use semel_core::{Clock, StoredOutcome, SystemClock};
use tokio::sync::mpsc;

use super::catch::catch;
use super::{Turn, TurnSender, keep};
use crate::body::{Body, BoxError, Pumping};
use crate::policy::{Disposition, Ending, OutcomeWord};
use crate::shared::Shared;

/// Frames between the owned task and a connection.
const PUMP_FRAMES: usize = 8;

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

/// The open end of a streamed answer.
pub(super) struct Pump(mpsc::Sender<Pumping>);

impl Pump {
    /// Breaks the stream off, so that the client does not take what it got for a whole answer.
    pub(super) async fn break_off(self, why: &str) {
        let _ = self.0.send(Pumping::Error(why.to_owned().into())).await;
    }

    /// Ends the stream as a whole answer.
    pub(super) async fn end(self) {
        let _ = self.0.send(Pumping::End).await;
    }
}

/// Runs `call` to the end of its body.
pub(super) async fn produce<S, B, E>(
    shared: &Arc<Shared>,
    began: Duration,
    call: impl Future<Output = Result<Response<B>, E>>,
    turn: &mut Option<TurnSender<S, E>>,
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
    let said = response.extensions().get::<Disposition>().copied();
    let ending = shared
        .config
        .status
        .judge(response.status(), response.headers(), said);
    match ending {
        Ending::Store | Ending::Refuse | Ending::Forget => {}
        Ending::Release | Ending::Unknown | Ending::Defer => {
            return Produced::Unstored(response.map(Body::new), ending);
        }
    }
    let (parts, body) = response.into_parts();
    let mut body = Body::new(body);
    let max = shared.config.response_bytes_max;
    let endless = parts
        .headers
        .get(CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"));
    let mut first = VecDeque::new();
    if !endless && body.size_hint().lower() <= max as u64 {
        let mut bytes = BytesMut::new();
        loop {
            match catch(body.frame()).await {
                Ok(None) => return Produced::Whole(parts, bytes.freeze(), ending),
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if bytes.len() + data.len() <= max => bytes.extend_from_slice(&data),
                    // Too long, or trailers, which have no place in the stored form.
                    Ok(data) => {
                        first.push_back(Frame::data(data));
                        break;
                    }
                    Err(trailers) => {
                        first.push_back(trailers);
                        break;
                    }
                },
                Ok(Some(Err(error))) => {
                    return Produced::Broken(Broken::Body(error), None);
                }
                Err(panic) => return Produced::Broken(Broken::Panic(panic), None),
            }
        }
        if !bytes.is_empty() {
            first.push_front(Frame::data(bytes.freeze()));
        }
    }
    let outcome = keep::without_body(ending, &parts);
    let (pump, rest) = mpsc::channel(PUMP_FRAMES);
    let mut response = Response::from_parts(parts, Body::pumped(first, rest));
    let word = if ending == Ending::Refuse {
        OutcomeWord::Refused
    } else {
        OutcomeWord::Succeeded
    };
    shared.stamp(&mut response, word, None);
    if let Some(turn) = turn.take() {
        let _ = turn.send(Turn::Answer(Ok(response)));
    }
    let pump = Pump(pump);
    loop {
        match catch(body.frame()).await {
            Ok(None) => return Produced::Streamed(pump, outcome),
            // A client that has gone does not stop the handler's stream: it may be the work. Only one that never
            // ends is not kept up for nobody.
            Ok(Some(Ok(frame))) => {
                let nobody_reads = pump.0.send(Pumping::Frame(frame)).await.is_err();
                let ran = SystemClock.monotonic().saturating_sub(began);
                if nobody_reads && ran.as_millis() > u128::from(shared.config.run_ms_max) {
                    return Produced::Broken(Broken::NobodyReads, None);
                }
            }
            Ok(Some(Err(error))) => {
                return Produced::Broken(Broken::Body(error), Some(pump));
            }
            Err(panic) => {
                return Produced::Broken(Broken::Panic(panic), Some(pump));
            }
        }
    }
}
