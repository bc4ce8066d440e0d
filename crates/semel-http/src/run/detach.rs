//! A run that its connection cannot take along when it goes.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tracing::Instrument as _;

use super::Turn;

/// Polled by the connection as long as that waits; when the connection goes before the end, the run goes on in a task of
/// its own. So a request costs no task, and a client that goes away still stops nothing.
///
/// Whoever holds this without polling it holds up the run, and with it the renewal of its claim. Servers and time-out
/// layers poll or drop.
pub(crate) struct Detach<F, S, E>
where
    F: Future<Output = Turn<S, E>> + Send + 'static,
    S: Send + 'static,
    E: Send + 'static,
{
    run: Option<Pin<Box<F>>>,
}

impl<F, S, E> Detach<F, S, E>
where
    F: Future<Output = Turn<S, E>> + Send + 'static,
    S: Send + 'static,
    E: Send + 'static,
{
    pub(crate) fn new(run: F) -> Self {
        Self {
            run: Some(Box::pin(run)),
        }
    }
}

impl<F, S, E> Future for Detach<F, S, E>
where
    F: Future<Output = Turn<S, E>> + Send + 'static,
    S: Send + 'static,
    E: Send + 'static,
{
    type Output = Turn<S, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Turn<S, E>> {
        let this = self.get_mut();
        let Some(run) = &mut this.run else {
            // Polled again after its end, which no caller of ours does.
            return Poll::Pending;
        };
        let turn = std::task::ready!(run.as_mut().poll(cx));
        this.run = None;
        Poll::Ready(turn)
    }
}

impl<F, S, E> Drop for Detach<F, S, E>
where
    F: Future<Output = Turn<S, E>> + Send + 'static,
    S: Send + 'static,
    E: Send + 'static,
{
    fn drop(&mut self) {
        let Some(run) = self.run.take() else {
            return;
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            tracing::error!("a connection ended outside of a runtime; what it ran is cut off");
            return;
        };
        let rest = async move {
            if let Turn::Stream(_, rest) = run.await {
                rest.await;
            }
        };
        // Tracked by its place among those that run, as before.
        drop(runtime.spawn(rest.instrument(tracing::Span::current())));
    }
}
