//! Sending an answer on while its handler still writes it.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, Response};
use http_body::Frame;
use semel_core::{Clock, SystemClock};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::outcome;
use super::produce::{Broken, next_frame};
use crate::body::{Body, Pumping};
use crate::policy::Ending;
use crate::shared::Shared;
use crate::within::within;

/// Frames between a run and a connection.
const PUMP_FRAMES: usize = 8;

/// The open end of a streamed answer.
pub(super) struct Pump {
    /// Gone with its client: one that left, or one that took nothing for too long.
    to: Option<mpsc::Sender<Pumping>>,
    idle: Duration,
}

/// The head of the answer, whose body is the frames `read` so far and then what the pump sends.
pub(super) fn open(
    shared: &Shared,
    parts: &Parts,
    read: VecDeque<Frame<Bytes>>,
    ending: Ending,
) -> (Response<Body>, Pump) {
    let (pump, rest) = mpsc::channel(PUMP_FRAMES);
    let mut response = Response::new(Body::pumped(read, rest));
    *response.status_mut() = parts.status;
    *response.version_mut() = parts.version;
    response.headers_mut().clone_from(&parts.headers);
    response.extensions_mut().clone_from(&parts.extensions);
    shared.stamp(&mut response, outcome::word(ending), None);
    let pump = Pump {
        to: Some(pump),
        idle: Duration::from_millis(shared.config.client_idle_ms),
    };
    (response, pump)
}

impl Pump {
    /// Passes `body` on to its end, which with its trailers it leaves to [`Pump::end`].
    ///
    /// A client that has gone, or takes nothing for `client_idle_ms`, does not stop the handler's stream: it may be the
    /// work. Only one that has run for longer than `run_ms_max` is not kept up for nobody, and a silent one neither.
    pub(super) async fn pass_on(
        &mut self,
        body: &mut Body,
        began: Duration,
        run_ms_max: u64,
    ) -> Result<Option<Box<HeaderMap>>, Broken> {
        let mut trailers: Option<Box<HeaderMap>> = None;
        loop {
            let next = match &self.to {
                Some(to) => tokio::select! {
                    biased;
                    next = next_frame(body) => next?,
                    () = to.closed() => {
                        self.to = None;
                        continue;
                    }
                },
                None => {
                    let ran = SystemClock.monotonic().saturating_sub(began);
                    let left = Duration::from_millis(run_ms_max).saturating_sub(ran);
                    match within(left, next_frame(body)).await {
                        Ok(next) => next?,
                        Err(_) => return Err(Broken::NobodyReads),
                    }
                }
            };
            let Some(frame) = next else {
                return Ok(trailers);
            };
            let frame = match frame.into_trailers() {
                Ok(more) => {
                    trailers.get_or_insert_default().extend(more);
                    continue;
                }
                Err(frame) => frame,
            };
            let nobody_reads = !self.send(Pumping::Frame(frame)).await;
            let ran = SystemClock.monotonic().saturating_sub(began);
            if nobody_reads && ran.as_millis() > u128::from(run_ms_max) {
                return Err(Broken::NobodyReads);
            }
        }
    }

    /// Whether somebody reads. What a client leaves unread for too long breaks off behind what was sent.
    async fn send(&mut self, sent: Pumping) -> bool {
        let Some(to) = &self.to else { return false };
        match to.try_send(sent) {
            Ok(()) => return true,
            Err(TrySendError::Full(sent)) => match within(self.idle, to.send(sent)).await {
                Ok(Ok(())) => return true,
                Ok(Err(_)) => {}
                Err(_) => {
                    let client_idle_ms = self.idle.as_millis();
                    tracing::info!(%client_idle_ms, "the client of a streamed answer takes nothing of it; it is broken off");
                }
            },
            Err(TrySendError::Closed(_)) => {}
        }
        self.to = None;
        false
    }

    /// Breaks the stream off, so that the client does not take what it got for a whole answer.
    pub(super) async fn break_off(&mut self, why: &str) {
        self.send(Pumping::Error(why.to_owned().into())).await;
    }

    /// Ends the stream as a whole answer.
    pub(super) async fn end(&mut self, trailers: Option<Box<HeaderMap>>) {
        if let Some(trailers) = trailers {
            self.send(Pumping::Frame(Frame::trailers(*trailers))).await;
        }
        self.send(Pumping::End).await;
    }
}
