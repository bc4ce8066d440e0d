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

/// The same for what a neighbour in the same task has at hand and gives only when it was asked once: it is asked again
/// before a timer is made.
pub(crate) async fn within_soon<F: Future>(time: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut asked = false;
    let twice = poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if asked => Poll::Ready(None),
        Poll::Pending => {
            asked = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    });
    if let Some(done) = twice.await {
        return Ok(done);
    }
    within(time, future).await
}
