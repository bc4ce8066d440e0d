//! A request that is being served: until its answer is there, and until that has been sent.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{HeaderValue, Response, StatusCode, Version};
use hyper::body::{Body, Frame, SizeHint};

use semel_http::{Body as Own, grpc};

use super::guard::InFlight;
use crate::gateway::{Answering, Reply};

/// An answer on its way, for hyper: small, because hyper moves it about.
pub(crate) struct Serving {
    answer: Answering,
    running: Option<InFlight>,
    /// The content type of a request that speaks gRPC.
    grpc: Option<Box<HeaderValue>>,
}

impl Serving {
    pub(crate) fn new(answer: Answering, running: InFlight, grpc: Option<HeaderValue>) -> Self {
        Self {
            answer,
            running: Some(running),
            grpc: grpc.map(Box::new),
        }
    }
}

impl Future for Serving {
    type Output = Result<Response<Held<Reply>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = match ready!(Pin::new(&mut self.answer).poll(cx)) {
            Ok(response) => response,
            Err(never) => match never {},
        };
        if let Some(running) = &self.running {
            let conn = running.conn();
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                conn.becomes_tunnel();
            }
            if let Some(stats) = conn.stats() {
                stats.answered(response.status(), response.headers());
            }
        }
        let mut response = match self.grpc.take() {
            Some(asked) => grpc::answer(response, *asked, || Reply::Own(Own::empty())),
            None => response,
        };
        // The version is this hop's (RFC 9110, 2.5): under an upstream's HTTP/1.0 a body that breaks off would end like a whole one.
        *response.version_mut() = Version::HTTP_11;
        // A request runs until its answer has been sent.
        let running = self.running.take();
        Poll::Ready(Ok(response.map(|reply| Held::new(reply, running))))
    }
}

/// A body and the request that runs until it ends, breaks off, or nobody wants it any more.
pub(crate) struct Held<B> {
    body: B,
    running: Option<InFlight>,
}

impl<B> Held<B> {
    /// A body that was empty from the start holds it too, until hyper has taken note of that.
    pub(crate) const fn new(body: B, running: Option<InFlight>) -> Self {
        Self { body, running }
    }
}

impl<B: Body + Unpin> Body for Held<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.running = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
