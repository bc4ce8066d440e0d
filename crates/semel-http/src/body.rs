//! The one body type of this crate: whole, passed through, or pumped from an owned task.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use tokio::sync::mpsc;

/// An error of any body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of requests that a layered service gets and of responses that it gives.
pub struct Body(Kind);

enum Kind {
    Whole(Full<Bytes>),
    Passed(UnsyncBoxBody<Bytes, BoxError>),
    Pumped(Pumped),
}

struct Pumped {
    first: VecDeque<Frame<Bytes>>,
    rest: mpsc::Receiver<Pumping>,
    ended: bool,
}

/// What an owned task sends. A channel that closes without [`Pumping::End`] is a broken body, never a whole one.
pub(crate) enum Pumping {
    Frame(Frame<Bytes>),
    Error(BoxError),
    End,
}

impl Body {
    /// A body that passes another one through.
    pub fn new<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Kind::Passed(body.map_err(Into::into).boxed_unsync()))
    }

    /// A body of these bytes.
    #[must_use]
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        Self(Kind::Whole(Full::new(bytes.into())))
    }

    /// A body of no bytes.
    #[must_use]
    pub fn empty() -> Self {
        Self::whole(Bytes::new())
    }

    /// Frames already read, then what an owned task sends.
    pub(crate) fn pumped(first: VecDeque<Frame<Bytes>>, rest: mpsc::Receiver<Pumping>) -> Self {
        Self(Kind::Pumped(Pumped {
            first,
            rest,
            ended: false,
        }))
    }
}

impl Pumped {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(frame) = self.first.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        self.rest.poll_recv(cx).map(|sent| match sent {
            Some(Pumping::Frame(frame)) => Some(Ok(frame)),
            Some(Pumping::End) => {
                self.ended = true;
                None
            }
            Some(Pumping::Error(error)) => {
                self.ended = true;
                Some(Err(error))
            }
            None => {
                self.ended = true;
                Some(Err("the answer broke off".into()))
            }
        })
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Kind::Whole(_) => "Body(whole)",
            Kind::Passed(_) => "Body(passed through)",
            Kind::Pumped(_) => "Body(pumped)",
        })
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::empty()
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::whole(bytes)
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.get_mut().0 {
            Kind::Whole(body) => Pin::new(body)
                .poll_frame(cx)
                .map_err(|never: Infallible| match never {}),
            Kind::Passed(body) => Pin::new(body).poll_frame(cx),
            Kind::Pumped(body) => body.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(body) => body.is_end_stream(),
            Kind::Passed(body) => body.is_end_stream(),
            Kind::Pumped(body) => body.ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(body) => body.size_hint(),
            Kind::Passed(body) => body.size_hint(),
            Kind::Pumped(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The owned task was stopped: what came so far must not look whole.
    #[tokio::test]
    async fn a_channel_that_closes_without_an_end_is_a_broken_body() {
        for whole in [true, false] {
            let (sender, rest) = mpsc::channel(2);
            let body = Body::pumped(VecDeque::from([Frame::data(Bytes::from_static(b"a"))]), rest);
            if whole {
                assert!(sender.send(Pumping::End).await.is_ok());
            }
            drop(sender);
            assert_eq!(body.collect().await.is_ok(), whole);
        }
    }
}
