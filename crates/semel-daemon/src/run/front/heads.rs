//! Follows a client's HTTP/1.1 bytes from head to head, beside hyper, for the two things that hyper does not tell: how
//! far a request has come, and whether its head says twice and differently where its body ends.
//!
//! hyper takes a request with both `Content-Length` and `Transfer-Encoding` by the latter, and what it forwards is
//! sound. But some proxy in front may have taken it by the former, and would then see another request where this one
//! sees a body (RFC 9112, 6.3 and 11.2): so it is refused and its connection closed.

/// Bytes of a line that are kept when it comes in pieces: enough for the fields that matter.
const CARRY_MAX: usize = 256;

/// Where a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Between requests.
    Between,
    /// In a head.
    Head,
    /// In a body.
    Body,
    /// HTTP/2, or what hyper will refuse: not followed.
    Raw,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    RequestLine,
    Field,
    Body(u64),
    ChunkSize,
    ChunkData(u64),
    ChunkEnd,
    Trailer,
    Raw,
}

/// The follower of one connection.
#[derive(Debug)]
pub(super) struct Heads {
    state: State,
    /// The beginning of a line whose end has not come.
    carry: Vec<u8>,
    length: Option<u64>,
    chunked: bool,
    /// A head said it twice.
    framing: bool,
}

impl Heads {
    pub(super) const fn new() -> Self {
        Self {
            state: State::RequestLine,
            carry: Vec::new(),
            length: None,
            chunked: false,
            framing: false,
        }
    }

    pub(super) fn stage(&self) -> Stage {
        match self.state {
            State::RequestLine if self.carry.is_empty() => Stage::Between,
            State::RequestLine | State::Field => Stage::Head,
            State::Raw => Stage::Raw,
            _ => Stage::Body,
        }
    }

    /// Whether a head said twice where its body ends.
    pub(super) const fn framing(&self) -> bool {
        self.framing
    }

    /// Takes what came.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = match self.state {
                State::Raw => return,
                State::Body(left) => self.skip(bytes, left, State::Body, State::RequestLine),
                State::ChunkData(left) => self.skip(bytes, left, State::ChunkData, State::ChunkEnd),
                _ => self.line(bytes),
            };
        }
    }

    fn skip<'a>(&mut self, bytes: &'a [u8], left: u64, on: fn(u64) -> State, then: State) -> &'a [u8] {
        let here = left.min(bytes.len() as u64);
        self.state = if here == left { then } else { on(left - here) };
        usize::try_from(here)
            .ok()
            .and_then(|here| bytes.get(here..))
            .unwrap_or_default()
    }

    fn line<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let (line, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
        if self.carry.is_empty() && end.is_some() {
            self.whole(line);
        } else {
            let room = CARRY_MAX.saturating_sub(self.carry.len());
            self.carry.extend_from_slice(line.get(..room).unwrap_or(line));
            if end.is_some() {
                let carried = std::mem::take(&mut self.carry);
                self.whole(&carried);
            }
        }
        rest.get(1..).unwrap_or_default()
    }

    fn whole(&mut self, line: &[u8]) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.state = match self.state {
            // Empty lines before a request are passed over.
            State::RequestLine if line.is_empty() => State::RequestLine,
            State::RequestLine if line == b"PRI * HTTP/2.0" => State::Raw,
            State::RequestLine => {
                (self.length, self.chunked) = (None, false);
                State::Field
            }
            State::Field if line.is_empty() => self.body(),
            State::Field => {
                self.field(line);
                State::Field
            }
            State::ChunkSize => match size(line) {
                Some(0) => State::Trailer,
                Some(size) => State::ChunkData(size),
                None => State::Raw,
            },
            State::ChunkEnd => State::ChunkSize,
            State::Trailer if line.is_empty() => State::RequestLine,
            other => other,
        };
    }

    fn field(&mut self, line: &[u8]) {
        let named = |name: &[u8]| {
            line.get(..name.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(name))
                .then(|| line.get(name.len()..).unwrap_or_default())
        };
        match line.first() {
            Some(b'c' | b'C') => {
                if let Some(value) = named(b"content-length:") {
                    let digits = std::str::from_utf8(value).ok();
                    // What is no number, hyper refuses.
                    self.length = Some(digits.and_then(|text| text.trim().parse().ok()).unwrap_or(0));
                }
            }
            Some(b't' | b'T') => self.chunked |= named(b"transfer-encoding:").is_some(),
            _ => {}
        }
    }

    fn body(&mut self) -> State {
        self.framing |= self.chunked && self.length.is_some();
        match self.length {
            _ if self.chunked => State::ChunkSize,
            Some(length) if length > 0 => State::Body(length),
            _ => State::RequestLine,
        }
    }
}

/// The size of a chunk, its extensions left out.
fn size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii();
    // `from_str_radix` would take a sign as well.
    let all_hex = digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| all_hex)?;
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    const LONG: &str = "POST / HTTP/1.1\r\nContent-Length: 26\r\n\r\ntransfer-encoding: chunked\n";
    const CHUNKED: &str = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\
                           1a;x=y\r\ncontent-length: 5\r\n\r\nabcde\r\n0\r\nx: y\r\n\r\n";

    fn follow(text: &str, piece: usize) -> Heads {
        let mut heads = Heads::new();
        for piece in text.as_bytes().chunks(piece) {
            heads.feed(piece);
        }
        heads
    }

    #[test]
    fn it_knows_where_a_request_ends_however_it_is_cut() {
        let text = [PLAIN, CHUNKED, LONG.trim_end(), "\r\n", PLAIN].concat();
        for piece in 1..text.len() {
            let heads = follow(&text, piece);
            assert_eq!(
                (heads.stage(), heads.framing()),
                (Stage::Between, false),
                "{piece}"
            );
        }
        assert_eq!(follow("GET / HT", 3).stage(), Stage::Head);
        assert_eq!(follow("GET / HTTP/1.1\r\nhos", 99).stage(), Stage::Head);
        assert_eq!(follow(&LONG[..60], 99).stage(), Stage::Body);
        assert_eq!(follow("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 99).stage(), Stage::Raw);
    }

    #[test]
    fn a_chunk_size_is_hexadecimal_digits_and_nothing_else() {
        assert_eq!(size(b"1A ;x=y"), Some(26));
        for wrong in ["+5", "-5", "0x5", "5 5", "", "\u{665}"] {
            assert_eq!(size(wrong.as_bytes()), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_head_that_says_it_twice_is_found_in_either_order_and_behind_a_good_one() {
        let (one, other) = (
            "content-LENGTH: 5\r\n",
            "Transfer-Encoding : chunked\r\ntransfer-encoding:chunked\r\n",
        );
        for (first, second) in [(one, other), (other, one)] {
            let text = format!("{CHUNKED}POST / HTTP/1.1\r\n{first}x: y\r\n{second}\r\n");
            for piece in 1..text.len() {
                assert!(follow(&text, piece).framing(), "{piece}");
            }
        }
    }
}
