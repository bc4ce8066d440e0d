//! A time limit that costs nothing where the answer is there at once.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// The time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Elapsed;

/// The future's output, if it comes within this time. The timer is made only for one that has to wait, and apart: the room
/// for it would be taken for each request.
pub(crate) async fn within<F: Future>(time: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let once = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx)));
    if let Poll::Ready(done) = once.await {
        return Ok(done);
    }
    Box::pin(tokio::time::timeout(time, future))
        .await
        .map_err(|_| Elapsed)
}
