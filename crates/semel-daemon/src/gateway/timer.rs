//! A timer for deadlines that move away again and again before they come.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

/// Made when it is first needed and moved only when it has rung: setting the clock of a runtime costs more than a bell
/// that is rung too early now and then.
#[derive(Default)]
pub(crate) struct Timer(Option<(Duration, Pin<Box<Sleep>>)>);

impl Timer {
    /// Whether `deadline` is over `now`, both on the monotonic clock; the task is woken when it will be.
    pub(crate) fn over(&mut self, now: Duration, deadline: Duration, cx: &mut Context<'_>) -> bool {
        if now >= deadline {
            return true;
        }
        loop {
            match &mut self.0 {
                Some((at, sleep)) if *at <= deadline => match sleep.as_mut().poll(cx) {
                    Poll::Pending => return false,
                    Poll::Ready(()) => self.0 = None,
                },
                _ => {
                    let sleep = tokio::time::sleep(deadline.saturating_sub(now));
                    self.0 = Some((deadline, Box::pin(sleep)));
                }
            }
        }
    }
}
