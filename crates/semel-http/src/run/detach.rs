//! A run that its connection cannot take along when it goes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tracing::Instrument as _;

use super::Turn;
use crate::shared::Shared;

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
    shared: Arc<Shared>,
}

impl<F, S, E> Detach<F, S, E>
where
    F: Future<Output = Turn<S, E>> + Send + 'static,
    S: Send + 'static,
    E: Send + 'static,
{
    pub(crate) fn new(shared: Arc<Shared>, run: F) -> Self {
        Self {
            run: Some(Box::pin(run)),
            shared,
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
        drop(
            self.shared
                .tasks
                .spawn_on(rest.instrument(tracing::Span::current()), &runtime),
        );
    }
}
