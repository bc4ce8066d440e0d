//! A timer for deadlines that move away again and again before they come.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Sleep;

/// Made when it is first needed and moved only when it has rung: setting the clock of a runtime costs more than a bell
/// that is rung too early now and then. Asked again by the same task before that, it is not touched at all.
#[derive(Default)]
pub(crate) struct Timer(Option<Set>);

struct Set {
    at: Duration,
    sleep: Pin<Box<Sleep>>,
    /// Who will be woken.
    wakes: Option<Waker>,
}

impl Timer {
    /// Whether `deadline` is over `now`, both on the monotonic clock; the task is woken when it will be.
    pub(crate) fn over(&mut self, now: Duration, deadline: Duration, cx: &mut Context<'_>) -> bool {
        if now >= deadline {
            return true;
        }
        loop {
            match &mut self.0 {
                Some(set) if set.at <= deadline => {
                    if now < set.at
                        && set
                            .wakes
                            .as_ref()
                            .is_some_and(|waker| waker.will_wake(cx.waker()))
                    {
                        return false;
                    }
                    // The bell may have rung already, and the task been woken by it: then there is another one.
                    match set.sleep.as_mut().poll(cx) {
                        Poll::Pending => {
                            // A task that has used up its turn is told so and set down nowhere; it is woken at once instead.
                            let set_down = tokio::task::coop::has_budget_remaining();
                            set.wakes = set_down.then(|| cx.waker().clone());
                            return false;
                        }
                        Poll::Ready(()) => self.0 = None,
                    }
                }
                _ => {
                    let sleep = tokio::time::sleep(deadline.saturating_sub(now));
                    self.0 = Some(Set {
                        at: deadline,
                        sleep: Box::pin(sleep),
                        wakes: None,
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use semel_core::{Clock as _, SystemClock};

    use super::*;

    #[tokio::test]
    async fn a_task_that_has_used_up_its_turn_is_woken_all_the_same() {
        let began = SystemClock.monotonic();
        let deadline = began + Duration::from_millis(30);
        let mut timer = Timer::default();
        let rung = poll_fn(|cx| {
            if SystemClock.monotonic() < deadline {
                while tokio::task::coop::has_budget_remaining() {
                    let _ = std::pin::pin!(tokio::task::coop::consume_budget()).poll(cx);
                }
            }
            if timer.over(SystemClock.monotonic(), deadline, cx) {
                return Poll::Ready(());
            }
            Poll::Pending
        });
        tokio::time::timeout(Duration::from_secs(20), rung).await.unwrap();
        let by_itself = SystemClock.monotonic() - began < Duration::from_secs(15);
        assert!(by_itself, "the time-out of this test woke it");
    }

    #[tokio::test]
    async fn who_asked_last_is_woken_and_who_asks_again_still_is() {
        let began = SystemClock.monotonic();
        let mut timer = Timer::default();
        let mut nobody = Context::from_waker(Waker::noop());
        assert!(!timer.over(began, began + Duration::from_millis(10), &mut nobody));
        // The bell rings before that; then there is another one.
        let deadline = began + Duration::from_millis(30);
        let mut asked = 0;
        poll_fn(|cx| {
            asked += 1;
            let now = SystemClock.monotonic();
            if timer.over(now, deadline, cx) {
                return Poll::Ready(());
            }
            assert!(!timer.over(now, deadline, cx));
            Poll::Pending
        })
        .await;
        assert!(SystemClock.monotonic() >= deadline);
        assert!(asked <= 4, "{asked} times");
    }
}
