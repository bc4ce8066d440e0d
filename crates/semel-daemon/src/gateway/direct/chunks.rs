//! A body in chunks (RFC 9112, 7.1), as it comes.

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Bytes of a line with a chunk's size, of all extensions of a body, and of its trailers.
const LINE_MAX: usize = 4 << 10;
const EXTENSIONS_MAX: usize = 16 << 10;
const TRAILERS_MAX: usize = 16 << 10;
/// How many trailers there may be.
const TRAILERS: usize = 100;

/// Where a body in chunks stands.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    state: State,
    /// Bytes of extensions so far.
    extensions: usize,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Size,
    Data(u64),
    DataEnd,
    Trailers,
    Over,
}

/// What the bytes at hand come to.
#[derive(Debug)]
pub(super) enum Step {
    /// A piece of the body.
    Data(Bytes),
    /// What follows the last chunk.
    Trailers(HeaderMap),
    /// The end.
    Over,
    /// More bytes are needed.
    More,
}

impl Chunks {
    /// Whether the end has been read.
    pub(super) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Takes what it can from the bytes at hand.
    ///
    /// # Errors
    /// They are not in chunks.
    pub(super) fn step(&mut self, bytes: &mut BytesMut) -> Result<Step, &'static str> {
        loop {
            match self.state {
                State::Over => return Ok(Step::Over),
                State::Size => {
                    let Some(end) = line(bytes) else {
                        return short(bytes, LINE_MAX, "a chunk's size does not end");
                    };
                    let size = self.size(bytes.get(..end).unwrap_or_default())?;
                    bytes.advance(end + 2);
                    self.state = match size {
                        0 => State::Trailers,
                        size => State::Data(size),
                    };
                }
                State::Data(left) => {
                    if bytes.is_empty() {
                        return Ok(Step::More);
                    }
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    self.state = match left - here as u64 {
                        0 => State::DataEnd,
                        left => State::Data(left),
                    };
                    return Ok(Step::Data(bytes.split_to(here).freeze()));
                }
                State::DataEnd => {
                    if bytes.len() < 2 {
                        return Ok(Step::More);
                    }
                    if !bytes.starts_with(b"\r\n") {
                        return Err("a chunk is longer than it says");
                    }
                    bytes.advance(2);
                    self.state = State::Size;
                }
                State::Trailers => {
                    if bytes.len() < 2 {
                        return Ok(Step::More);
                    }
                    if bytes.starts_with(b"\r\n") {
                        bytes.advance(2);
                        self.state = State::Over;
                        return Ok(Step::Over);
                    }
                    let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
                        return short(bytes, TRAILERS_MAX, "trailers do not end");
                    };
                    let trailers = trailers(&bytes.split_to(at + 4))?;
                    self.state = State::Over;
                    return Ok(Step::Trailers(trailers));
                }
            }
        }
    }

    /// The size that a line says: hexadecimal digits, and perhaps extensions.
    fn size(&mut self, line: &[u8]) -> Result<u64, &'static str> {
        let said = line.split(|byte| *byte == b';').next().unwrap_or_default();
        self.extensions += line.len() - said.len();
        if self.extensions > EXTENSIONS_MAX {
            return Err("chunks have too many extensions");
        }
        let digits = said.trim_ascii_end();
        // `from_str_radix` would take a sign as well. A bare line feed is in the line, too.
        let good = digits.iter().all(u8::is_ascii_hexdigit)
            && !line.iter().any(|byte| matches!(byte, b'\r' | b'\n'));
        let digits = std::str::from_utf8(digits).ok().filter(|_| good);
        digits
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .ok_or("a chunk has no size")
    }
}

/// Where a line ends, before its `\r\n`.
fn line(bytes: &[u8]) -> Option<usize> {
    bytes.windows(2).position(|two| two == b"\r\n")
}

fn short(bytes: &[u8], max: usize, why: &'static str) -> Result<Step, &'static str> {
    if bytes.len() > max {
        Err(why)
    } else {
        Ok(Step::More)
    }
}

fn trailers(bytes: &[u8]) -> Result<HeaderMap, &'static str> {
    const WRONG: &str = "its trailers are no fields";
    let mut fields = [httparse::EMPTY_HEADER; TRAILERS];
    let Ok(httparse::Status::Complete((_, fields))) = httparse::parse_headers(bytes, &mut fields) else {
        return Err(WRONG);
    };
    let mut trailers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| WRONG)?;
        trailers.append(name, HeaderValue::from_bytes(field.value).map_err(|_| WRONG)?);
    }
    Ok(trailers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body, its trailers and what is left behind it, when the bytes come in pieces of this size.
    fn read(text: &[u8], piece: usize) -> Result<(Vec<u8>, HeaderMap, bool), &'static str> {
        let mut chunks = Chunks::default();
        let (mut at_hand, mut body, mut said) = (BytesMut::new(), Vec::new(), HeaderMap::new());
        let mut pieces = text.chunks(piece);
        loop {
            match chunks.step(&mut at_hand)? {
                Step::Data(data) => body.extend_from_slice(&data),
                Step::Trailers(trailers) => said = trailers,
                Step::Over => return Ok((body, said, at_hand.is_empty() && pieces.next().is_none())),
                Step::More => match pieces.next() {
                    Some(piece) => at_hand.extend_from_slice(piece),
                    None => return Err("it ends early"),
                },
            }
        }
    }

    #[test]
    fn a_body_in_chunks_is_read_however_it_is_cut() {
        let plain = b"5\r\nhello\r\n1A ;x=\"y\"\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\n\r\n";
        let with = b"3\r\nabc\r\n0;last\r\nGrpc-Status: 0\r\nx: 1\r\nx: 2\r\n\r\n";
        for piece in 1..60 {
            let (body, said, whole) = read(plain, piece).unwrap();
            assert_eq!(body, b"helloabcdefghijklmnopqrstuvwxyz", "{piece}");
            assert!(said.is_empty() && whole);
            let (body, said, whole) = read(with, piece).unwrap();
            assert_eq!((&body[..], said.len(), whole), (&b"abc"[..], 3, true), "{piece}");
            assert_eq!(said["grpc-status"], "0");
        }
        let (_, _, whole) = read(b"0\r\n\r\nHTTP/1.1 200 OK", 99).unwrap();
        assert!(!whole, "what follows belongs to nobody");
    }

    #[test]
    fn what_is_not_in_chunks_is_an_error() {
        for wrong in [
            &b"\r\n"[..],
            b"+5\r\nhello\r\n0\r\n\r\n",
            b"0x5\r\nhello\r\n0\r\n\r\n",
            b"5 5\r\nhello\r\n0\r\n\r\n",
            b"5\nhello\r\n0\r\n\r\n",
            b"5;\n\r\nhello\r\n0\r\n\r\n",
            b"5\r\nhello!\r\n0\r\n\r\n",
            b"fffffffffffffffff\r\n",
            b"0\r\nno field\r\n\r\n",
            b"5\r\nhell",
            b"5\r\nhello\r\n",
            b"0\r\n",
        ] {
            for piece in [1, 3, 99] {
                assert!(
                    read(wrong, piece).is_err(),
                    "{:?}",
                    wrong.escape_ascii().to_string()
                );
            }
        }
        let long = [&b"1;"[..], &[b'x'; 5 << 10], b"\r\n"].concat();
        assert!(read(&long, 1 << 10).is_err());
        let many: Vec<u8> = [&b"1;"[..], &[b'x'; 2 << 10], b"\r\na\r\n"].concat().repeat(9);
        assert!(read(&many, 1 << 10).is_err());
        let trailers = [&b"0\r\nx: "[..], &[b'x'; 17 << 10]].concat();
        assert_eq!(read(&trailers, 1 << 10).unwrap_err(), "trailers do not end");
    }
}
