//! Sending an answer on while its handler still writes it.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, Response};
use http_body::Frame;
use semel_core::{Clock, SystemClock};
use tokio::sync::mpsc;

use super::outcome;
use super::produce::{Broken, next_frame};
use crate::body::{Body, Pumping};
use crate::policy::Ending;
use crate::shared::Shared;

/// Frames between a run and a connection.
const PUMP_FRAMES: usize = 8;

/// The open end of a streamed answer.
pub(super) struct Pump(mpsc::Sender<Pumping>);

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
    (response, Pump(pump))
}

impl Pump {
    /// Passes `body` on to its end, which with its trailers it leaves to [`Pump::end`].
    ///
    /// A client that has gone does not stop the handler's stream: it may be the work. Only one that has run for longer
    /// than `run_ms_max` is not kept up for nobody.
    pub(super) async fn pass_on(
        &self,
        body: &mut Body,
        began: Duration,
        run_ms_max: u64,
    ) -> Result<Option<Box<HeaderMap>>, Broken> {
        let mut trailers: Option<Box<HeaderMap>> = None;
        while let Some(frame) = next_frame(body).await? {
            let frame = match frame.into_trailers() {
                Ok(more) => {
                    trailers.get_or_insert_default().extend(more);
                    continue;
                }
                Err(frame) => frame,
            };
            let nobody_reads = self.0.send(Pumping::Frame(frame)).await.is_err();
            let ran = SystemClock.monotonic().saturating_sub(began);
            if nobody_reads && ran.as_millis() > u128::from(run_ms_max) {
                return Err(Broken::NobodyReads);
            }
        }
        Ok(trailers)
    }

    /// Breaks the stream off, so that the client does not take what it got for a whole answer.
    pub(super) async fn break_off(&self, why: &str) {
        let _ = self.0.send(Pumping::Error(why.to_owned().into())).await;
    }

    /// Ends the stream as a whole answer.
    pub(super) async fn end(&self, trailers: Option<Box<HeaderMap>>) {
        if let Some(trailers) = trailers {
            let _ = self.0.send(Pumping::Frame(Frame::trailers(*trailers))).await;
        }
        let _ = self.0.send(Pumping::End).await;
    }
}
