//! A connection of HTTP/1.1 to an upstream that is read and written by its request itself.
//!
//! hyper's has a task of its own, and between that and a request's stand three channels: six changes of tasks for a
//! request whose body is at hand and whose answer is short, which most are. What streams, changes its protocol or speaks
//! HTTP/2 goes over hyper.
//!
//! # Guarantees
//! - Nothing is written before [`Direct::is_alive`] was asked; whatever fails after the first write is unknown.
//! - A connection is used again only when the request was written whole, the answer was read to an end that both sides
//!   know, no byte follows it, and neither side says `close`.

mod chunks;
mod head;
mod wire;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http::request::Parts;
use http::{Method, Response};
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio_util::io::poll_read_buf;

use super::timer::Timer;
use chunks::Step;
use head::Framing;
pub(super) use head::one_length;
pub(super) use wire::Wire;

/// Bodies up to so many bytes are written with their head, in one piece.
const JOINED_MAX: usize = 4 << 10;
/// Bytes that are read at once, and of a long body.
const READ: usize = 8 << 10;
const READ_LONG: usize = 64 << 10;
/// Pieces of an answer up to so many bytes are copied, so that the connection keeps its buffer.
const COPIED_MAX: usize = 1 << 10;
/// A buffer larger than that is not kept.
const KEPT_MAX: usize = 64 << 10;

/// A connection, and the request that is on it.
pub(super) struct Direct {
    io: Wire,
    /// The head, perhaps with its body, and how much of it was written.
    out: Vec<u8>,
    written: usize,
    /// What of the body is still to be written.
    rest: Bytes,
    /// All of it has left this process.
    flushed: bool,
    /// Why no more can be written. An answer may have come all the same.
    stuck: Option<io::Error>,
    /// What was read and not taken.
    read: BytesMut,
    /// How much of it has been looked at for the end of a head.
    seen: usize,
    /// The answer has no body, whatever it says.
    bare: bool,
    /// For the time of its requests.
    pub(super) timer: Timer,
}

impl Direct {
    /// Over this stream, which nothing was sent on.
    pub(super) fn new(io: Wire) -> Self {
        Self {
            io,
            out: Vec::new(),
            written: 0,
            rest: Bytes::new(),
            flushed: true,
            stuck: None,
            read: BytesMut::new(),
            seen: 0,
            bare: false,
            timer: Timer::default(),
        }
    }

    /// Whether the upstream has neither closed it nor said what nobody asked for, as far as is known here.
    pub(super) fn is_alive(&mut self) -> bool {
        let mut byte = [0];
        let mut byte = ReadBuf::new(&mut byte);
        let mut nobody = Context::from_waker(Waker::noop());
        // Not on the task's budget: when that is used up, a dead one is pending, too.
        let asked = std::future::poll_fn(|cx| Pin::new(&mut self.io).poll_read(cx, &mut byte));
        std::pin::pin!(tokio::task::coop::unconstrained(asked))
            .poll(&mut nobody)
            .is_pending()
    }

    /// The stream, where it is at rest.
    pub(super) fn into_wire(self) -> Wire {
        self.io
    }

    /// Puts a request on it. Nothing is written yet.
    pub(super) fn begin(&mut self, parts: &Parts, body: Bytes) {
        self.out.clear();
        head::write(&mut self.out, parts, body.len());
        if body.len() <= JOINED_MAX {
            self.out.extend_from_slice(&body);
            self.rest = Bytes::new();
        } else {
            self.rest = body;
        }
        self.written = 0;
        self.flushed = false;
        self.seen = 0;
        self.bare = parts.method == Method::HEAD;
    }

    /// Writes the request and reads the answer's head.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(Response<()>, Ending), String>> {
        self.write_on(cx);
        loop {
            if let Some(head) = head::read(&mut self.read, self.bare, &mut self.seen)? {
                let ending = Ending {
                    framing: head.framing,
                    keeps: head.keeps,
                };
                return Poll::Ready(Ok((head.answer, ending)));
            }
            match ready!(self.fill(cx, READ)) {
                Ok(0) => return Poll::Ready(Err(self.broken("it closed the connection before its answer"))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Err(self.broken(&error.to_string()))),
            }
        }
    }

    fn broken(&self, why: &str) -> String {
        match &self.stuck {
            Some(stuck) => format!("{why}; the request could not be written: {stuck}"),
            None => why.to_owned(),
        }
    }

    /// Writes as much as it can.
    fn write_on(&mut self, cx: &mut Context<'_>) {
        while self.stuck.is_none() {
            let head = self.out.get(self.written..).unwrap_or_default();
            let polled = match (head.is_empty(), self.rest.is_empty()) {
                (true, true) => break,
                (false, true) => Pin::new(&mut self.io).poll_write(cx, head),
                _ => {
                    let both = [io::IoSlice::new(head), io::IoSlice::new(&self.rest)];
                    Pin::new(&mut self.io).poll_write_vectored(cx, &both)
                }
            };
            match polled {
                Poll::Ready(Ok(0)) => self.stuck = Some(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(bytes)) => {
                    let of_head = bytes.min(head.len());
                    self.written += of_head;
                    self.rest.advance(bytes - of_head);
                }
                Poll::Ready(Err(error)) => self.stuck = Some(error),
                Poll::Pending => return,
            }
        }
        if self.stuck.is_none() && !self.flushed {
            match Pin::new(&mut self.io).poll_flush(cx) {
                Poll::Ready(Ok(())) => self.flushed = true,
                Poll::Ready(Err(error)) => self.stuck = Some(error),
                Poll::Pending => {}
            }
        }
    }

    /// Whether the request was written whole.
    fn is_written(&self) -> bool {
        self.flushed
    }

    /// Reads more; 0 where the upstream has closed.
    fn fill(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        if self.read.capacity() - self.read.len() < READ / 2 {
            self.read.reserve(most.max(READ));
        }
        poll_read_buf(Pin::new(&mut self.io), cx, &mut self.read)
    }

    /// Takes a piece of so many bytes off what was read, at most.
    fn take(&mut self, most: u64) -> Bytes {
        let here = usize::try_from(most).unwrap_or(usize::MAX).min(self.read.len());
        if here > COPIED_MAX {
            return self.read.split_to(here).freeze();
        }
        let piece = Bytes::copy_from_slice(self.read.get(..here).unwrap_or_default());
        self.read.advance(here);
        piece
    }

    /// Makes it small for its rest.
    fn rests(&mut self) {
        if self.out.capacity() > KEPT_MAX {
            self.out = Vec::new();
        }
        if self.read.capacity() > KEPT_MAX {
            self.read = BytesMut::new();
        }
    }
}

/// How an answer ends.
pub(super) struct Ending {
    framing: Framing,
    keeps: bool,
}

/// An answer's body, with its connection until that is given back or closed.
pub(super) struct Arriving {
    connection: Option<Box<Direct>>,
    ending: Ending,
}

impl Arriving {
    pub(super) const fn new(connection: Box<Direct>, ending: Ending) -> Self {
        Self {
            connection: Some(connection),
            ending,
        }
    }

    /// The connection, at the end of the body; `None` where it cannot be used again. Called once.
    pub(super) fn release(&mut self) -> Option<Box<Direct>> {
        let mut connection = self.connection.take()?;
        let again =
            self.ending.keeps && self.is_over() && connection.is_written() && connection.read.is_empty();
        connection.rests();
        again.then_some(connection)
    }

    /// Closes the connection.
    pub(super) fn close(&mut self) {
        self.connection = None;
    }

    /// Whether all of the body has been taken.
    pub(super) fn is_over(&self) -> bool {
        match &self.ending.framing {
            Framing::Length(left) => *left == 0,
            Framing::Chunked(chunks) => chunks.is_over(),
            Framing::Close => self.connection.is_none(),
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match &self.ending.framing {
            Framing::Length(left) => SizeHint::with_exact(*left),
            Framing::Chunked(_) | Framing::Close => SizeHint::default(),
        }
    }

    /// The next piece.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(None);
        };
        // The answer may have begun before the request was written whole.
        if !connection.is_written() {
            connection.write_on(cx);
        }
        loop {
            let wanted = match &mut self.ending.framing {
                Framing::Length(0) => return Poll::Ready(None),
                Framing::Length(left) => {
                    if !connection.read.is_empty() {
                        let piece = connection.take(*left);
                        *left -= piece.len() as u64;
                        return Poll::Ready(Some(Ok(Frame::data(piece))));
                    }
                    usize::try_from(*left).unwrap_or(READ_LONG).min(READ_LONG)
                }
                Framing::Chunked(chunks) => {
                    match chunks.step(&mut connection.read) {
                        Ok(Step::Data(piece)) => return Poll::Ready(Some(Ok(Frame::data(piece)))),
                        Ok(Step::Trailers(fields)) => return Poll::Ready(Some(Ok(Frame::trailers(fields)))),
                        Ok(Step::Over) => return Poll::Ready(None),
                        Ok(Step::More) => {}
                        Err(why) => return self.breaks(io::Error::new(io::ErrorKind::InvalidData, why)),
                    }
                    READ
                }
                Framing::Close => {
                    if !connection.read.is_empty() {
                        let piece = connection.take(u64::MAX);
                        return Poll::Ready(Some(Ok(Frame::data(piece))));
                    }
                    READ
                }
            };
            match ready!(connection.fill(cx, wanted)) {
                Ok(0) if matches!(self.ending.framing, Framing::Close) => {
                    self.connection = None;
                    return Poll::Ready(None);
                }
                Ok(0) => return self.breaks(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) => return self.breaks(error),
            }
        }
    }

    fn breaks(&mut self, error: io::Error) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.connection = None;
        // What comes after an error is not the end of a whole body.
        self.ending.keeps = false;
        Poll::Ready(Some(Err(error)))
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Whoever asks many connections in one turn asks the last of them with nothing left of it.
    #[tokio::test]
    async fn a_closed_connection_is_seen_by_a_task_that_has_used_up_its_turn() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let mut open = Direct::new(Wire::Plain(stream));
        assert!(open.is_alive());
        drop(accepted);
        let Wire::Plain(stream) = open.into_wire() else {
            panic!("it is plain")
        };
        stream.readable().await.unwrap();
        let mut closed = Direct::new(Wire::Plain(stream));
        std::future::poll_fn(|cx| {
            while tokio::task::coop::has_budget_remaining() {
                let _ = std::pin::pin!(tokio::task::coop::consume_budget()).poll(cx);
            }
            assert!(!closed.is_alive());
            Poll::Ready(())
        })
        .await;
    }
}
