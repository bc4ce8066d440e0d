//! The one body type of this crate: whole, passed through, or pumped from an owned task.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::sync::mpsc;

/// An error of any body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of requests that a layered service gets and of responses that it gives.
pub struct Body(Kind);

enum Kind {
    Whole {
        data: Option<Bytes>,
        trailers: Option<Box<HeaderMap>>,
    },
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
        Self::with_trailers(bytes.into(), None)
    }

    /// A body of these bytes, and trailers behind it.
    pub(crate) fn with_trailers(bytes: Bytes, trailers: Option<Box<HeaderMap>>) -> Self {
        Self(Kind::Whole {
            data: Some(bytes).filter(|bytes| !bytes.is_empty()),
            trailers,
        })
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
            Kind::Whole { .. } => "Body(whole)",
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
            Kind::Whole { data, trailers } => {
                let frame = data.take().map(Frame::data);
                let frame = frame.or_else(|| trailers.take().map(|trailers| Frame::trailers(*trailers)));
                Poll::Ready(frame.map(Ok))
            }
            Kind::Passed(body) => Pin::new(body).poll_frame(cx),
            Kind::Pumped(body) => body.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole { data, trailers } => data.is_none() && trailers.is_none(),
            Kind::Passed(body) => body.is_end_stream(),
            Kind::Pumped(body) => body.ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            // With a length there would be no place for trailers in HTTP/1.1.
            Kind::Whole {
                trailers: Some(_), ..
            } => SizeHint::default(),
            Kind::Whole { data, .. } => SizeHint::with_exact(data.as_ref().map_or(0, Bytes::len) as u64),
            Kind::Passed(body) => body.size_hint(),
            Kind::Pumped(_) => SizeHint::default(),
        }
    }
}

/// Bytes as they come in frames: no copy where there is one frame.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    first: Option<Bytes>,
    all: BytesMut,
}

impl Gathered {
    pub(crate) fn len(&self) -> usize {
        self.first.as_ref().map_or(self.all.len(), Bytes::len)
    }

    pub(crate) fn add(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        if self.len() == 0 {
            self.first = Some(data);
            return;
        }
        if let Some(first) = self.first.take() {
            self.all.extend_from_slice(&first);
        }
        self.all.extend_from_slice(&data);
    }

    pub(crate) fn whole(self) -> Bytes {
        self.first.unwrap_or_else(|| self.all.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathered_bytes_are_those_of_the_frames() {
        for frames in [&[][..], &["a"], &["", "a"], &["ab", "", "c"], &["a", "b", "c"]] {
            let mut gathered = Gathered::default();
            for frame in frames {
                gathered.add(Bytes::from_static(frame.as_bytes()));
            }
            assert_eq!(gathered.len(), frames.concat().len());
            assert_eq!(gathered.whole(), frames.concat());
        }
    }

    #[tokio::test]
    async fn a_whole_body_has_a_length_unless_trailers_follow() {
        let plain = Body::whole("ab");
        assert_eq!(plain.size_hint().exact(), Some(2));
        assert!(Body::empty().is_end_stream());
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
        let with = Body::with_trailers(Bytes::new(), Some(Box::new(trailers.clone())));
        assert!(!with.is_end_stream() && with.size_hint().exact().is_none());
        assert_eq!(with.collect().await.unwrap().trailers(), Some(&trailers));
    }

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
