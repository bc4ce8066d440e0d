//! Heads of HTTP/1.1: a request's as bytes, and an answer's from them.

use std::io::Write as _;
use std::mem::MaybeUninit;

use bytes::{Buf as _, Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version, header};
use httparse::ParserConfig;
use hyper::ext::ReasonPhrase;

use super::chunks::Chunks;

/// Fields and bytes that an answer's head may have; as many as hyper takes.
const FIELDS_MAX: usize = 100;
const HEAD_MAX: usize = 400 << 10;

/// How the end of an answer's body is known (RFC 9112, 6.3).
#[derive(Debug)]
pub(super) enum Framing {
    /// So many bytes are still to come.
    Length(u64),
    Chunked(Chunks),
    /// It goes on until the upstream closes.
    Close,
}

/// An answer's head.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) answer: Response<()>,
    pub(super) framing: Framing,
    /// The upstream keeps the connection open behind it.
    pub(super) keeps: bool,
}

/// Writes a request's head, for a body of so many bytes that follows.
pub(super) fn write(out: &mut Vec<u8>, parts: &Parts, length: usize) {
    let mut put = |bytes: &[u8]| out.extend_from_slice(bytes);
    put(parts.method.as_str().as_bytes());
    put(b" ");
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    if !target.starts_with(['/', '*']) {
        // A query alone.
        put(b"/");
    }
    put(target.as_bytes());
    put(b" HTTP/1.1\r\n");
    // Of one without a body only what its client said is told on.
    let mut counted = length > 0;
    for (name, value) in &parts.headers {
        if *name == header::CONTENT_LENGTH {
            counted = true;
            continue;
        }
        put(name.as_str().as_bytes());
        put(b": ");
        put(value.as_bytes());
        put(b"\r\n");
    }
    if counted {
        // A vector takes whatever is written.
        let _ = write!(out, "content-length: {length}\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Reads an answer's head off the bytes at hand, `None` while it is not whole. Informational ones before it are passed
/// over. `bare` is of a request whose answer has no body, whatever it says: `HEAD`. `seen` bytes have been looked at before.
///
/// # Errors
/// It is no answer, or not one whose end can be known.
pub(super) fn read(bytes: &mut BytesMut, bare: bool, seen: &mut usize) -> Result<Option<Head>, String> {
    loop {
        // The first piece shows whether it is HTTP at all; then it is worth reading when its end is there.
        let first = std::mem::replace(seen, bytes.len());
        if bytes.is_empty() || (first > 0 && bytes.len() <= HEAD_MAX && !ends(bytes, first)) {
            return Ok(None);
        }
        let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
        let mut parsed = httparse::Response::new(&mut []);
        let read =
            ParserConfig::default().parse_response_with_uninit_headers(&mut parsed, bytes, &mut fields);
        let length = match read {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if bytes.len() > HEAD_MAX => {
                return Err(format!("its answer's head is longer than {HEAD_MAX} bytes"));
            }
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(error) => return Err(format!("its answer is not HTTP/1.1: {error}")),
        };
        let code = parsed.code.unwrap_or_default();
        let status = StatusCode::from_u16(code).map_err(|_| format!("its answer has the status {code}"))?;
        if status == StatusCode::SWITCHING_PROTOCOLS {
            return Err("it changed the protocol, which nobody had asked for".into());
        }
        if status.is_informational() {
            bytes.advance(length);
            *seen = 0;
            continue;
        }
        let version = match parsed.version {
            Some(1) => Version::HTTP_11,
            _ => Version::HTTP_10,
        };
        let mut answer = Response::new(());
        *answer.status_mut() = status;
        *answer.version_mut() = version;
        if let Some(reason) = parsed
            .reason
            .filter(|reason| Some(*reason) != status.canonical_reason())
            && let Ok(reason) = ReasonPhrase::try_from(reason.as_bytes())
        {
            answer.extensions_mut().insert(reason);
        }
        // Values share one copy, so that the connection keeps its buffer.
        let whole = Bytes::copy_from_slice(bytes.get(..length).unwrap_or_default());
        let from = bytes.as_ptr().addr();
        let headers = answer.headers_mut();
        headers.reserve(parsed.headers.len());
        for field in parsed.headers.iter() {
            let at = field.value.as_ptr().addr().wrapping_sub(from);
            let wrong = || format!("its answer has the field {:?}", field.name);
            let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| wrong())?;
            let value = match field.value.len() {
                // Of an empty one nobody says where it is.
                0 => HeaderValue::from_static(""),
                length => {
                    HeaderValue::from_maybe_shared(whole.slice(at..at + length)).map_err(|_| wrong())?
                }
            };
            headers.append(name, value);
        }
        bytes.advance(length);
        *seen = 0;
        let framing = framing(version, status, answer.headers(), bare)?;
        let clear = one_length(answer.headers_mut());
        let keeps = clear && keeps(version, answer.headers()) && !matches!(framing, Framing::Close);
        return Ok(Some(Head {
            answer,
            framing,
            keeps,
        }));
    }
}

/// Whether an empty line ends behind the first so many bytes, or near their end.
fn ends(bytes: &[u8], seen: usize) -> bool {
    let fresh = bytes.get(seen.saturating_sub(3)..).unwrap_or_default();
    fresh.windows(2).any(|two| two == b"\n\n") || fresh.windows(3).any(|three| three == b"\n\r\n")
}

/// Leaves an answer's length said once, or not at all where its coding says the end: whoever is told both may believe the
/// wrong one (RFC 9112, 6.3). False where both were said.
pub(in crate::gateway) fn one_length(headers: &mut HeaderMap) -> bool {
    if headers.contains_key(header::TRANSFER_ENCODING) {
        return headers.remove(header::CONTENT_LENGTH).is_none();
    }
    let mut values = headers.get_all(header::CONTENT_LENGTH).iter();
    let first = values.next().map(|value| {
        let word = value.as_bytes().split(|byte| *byte == b',').next();
        (value.clone(), word.unwrap_or_default().trim_ascii().to_vec())
    });
    let several = values.next().is_some();
    if let Some((value, word)) = first
        && (several || value.as_bytes() != word)
        && let Ok(word) = HeaderValue::from_bytes(&word)
    {
        headers.insert(header::CONTENT_LENGTH, word);
    }
    true
}

/// How the body's end is known. Codings but `chunked` alone are refused by who reads the answer.
fn framing(version: Version, status: StatusCode, headers: &HeaderMap, bare: bool) -> Result<Framing, String> {
    if bare || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        return Ok(Framing::Length(0));
    }
    if let Some(coding) = headers.get(header::TRANSFER_ENCODING) {
        if version == Version::HTTP_10 {
            return Err("its answer of HTTP/1.0 has a transfer coding".into());
        }
        return Ok(
            if coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") {
                Framing::Chunked(Chunks::default())
            } else {
                Framing::Close
            },
        );
    }
    let mut said = None;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        for length in value.as_bytes().split(|byte| *byte == b',') {
            let length = number(length.trim_ascii());
            if length.is_none() || said.is_some_and(|said| Some(said) != length) {
                return Err("its answer says no single length".into());
            }
            said = length;
        }
    }
    Ok(said.map_or(Framing::Close, Framing::Length))
}

/// Digits and nothing else.
fn number(digits: &[u8]) -> Option<u64> {
    let all = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits)
        .ok()
        .filter(|_| all)
        .and_then(|text| text.parse().ok())
}

/// Whether the upstream keeps the connection open. Once it says `close`, no other word of it counts.
fn keeps(version: Version, headers: &HeaderMap) -> bool {
    let mut keeps = version == Version::HTTP_11;
    for value in headers.get_all(header::CONNECTION) {
        for word in value.as_bytes().split(|byte| *byte == b',') {
            let word = word.trim_ascii();
            if word.eq_ignore_ascii_case(b"close") {
                return false;
            }
            keeps |= word.eq_ignore_ascii_case(b"keep-alive");
        }
    }
    keeps
}

#[cfg(test)]
mod tests {
    use http::{Method, Request};

    use super::*;

    fn head(text: &str) -> Result<Option<Head>, String> {
        read(&mut BytesMut::from(text), false, &mut 0)
    }

    fn length(text: &str) -> Option<u64> {
        match head(text).unwrap().unwrap().framing {
            Framing::Length(length) => Some(length),
            Framing::Chunked(_) | Framing::Close => None,
        }
    }

    #[test]
    fn a_request_says_its_own_length_once() {
        let written = |method: Method, said: Option<&str>, length: usize| {
            let mut request = Request::builder()
                .method(method)
                .uri("/a?b=c")
                .header("host", "h");
            if let Some(said) = said {
                request = request.header("content-length", said);
            }
            let mut out = Vec::new();
            write(&mut out, &request.body(()).unwrap().into_parts().0, length);
            String::from_utf8(out).unwrap()
        };
        let first = "POST /a?b=c HTTP/1.1\r\nhost: h\r\n";
        assert_eq!(written(Method::POST, None, 0), format!("{first}\r\n"));
        for said in [None, Some("3")] {
            assert_eq!(
                written(Method::POST, said, 3),
                format!("{first}content-length: 3\r\n\r\n")
            );
        }
        let query = Request::builder().uri("http://h?b=c").body(()).unwrap();
        let mut out = Vec::new();
        write(&mut out, &query.into_parts().0, 0);
        assert!(out.starts_with(b"GET /?b=c HTTP/1.1\r\n"), "{out:?}");
        assert!(written(Method::GET, Some("0"), 0).ends_with("content-length: 0\r\n\r\n"));
    }

    #[test]
    fn an_answer_is_read_however_it_is_cut() {
        let text = "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 201 Made\r\nSet-Cookie: a\r\nX-Empty:\r\n\
                    set-cookie: b\r\nContent-Length: 2, 2\r\n\r\nok";
        for piece in 1..text.len() {
            let (mut bytes, mut seen) = (BytesMut::new(), 0);
            let mut found = None;
            for piece in text.as_bytes().chunks(piece) {
                bytes.extend_from_slice(piece);
                if found.is_none() {
                    found = read(&mut bytes, false, &mut seen).unwrap();
                }
            }
            let Head {
                answer,
                framing,
                keeps,
            } = found.unwrap();
            assert!(keeps && matches!(framing, Framing::Length(2)), "{piece}");
            assert_eq!(answer.status(), 201);
            let cookies: Vec<&[u8]> = answer
                .headers()
                .get_all("set-cookie")
                .iter()
                .map(HeaderValue::as_bytes)
                .collect();
            assert_eq!(
                (cookies, &answer.headers()["x-empty"]),
                (vec![&b"a"[..], b"b"], &HeaderValue::from_static(""))
            );
            let reason = answer
                .extensions()
                .get::<ReasonPhrase>()
                .map(ReasonPhrase::as_bytes);
            assert_eq!((reason, &bytes[..]), (Some(&b"Made"[..]), &b"ok"[..]));
        }
    }

    #[test]
    fn the_end_of_a_body_is_what_the_head_says_of_it() {
        for (rest, wanted) in [
            ("204 No Content\r\ncontent-length: 5", Some(0)),
            ("304 Not Modified\r\ntransfer-encoding: chunked", Some(0)),
            ("200 OK\r\ncontent-length: 7", Some(7)),
            ("200 OK\r\ncontent-length: 7\r\nContent-Length: 7", Some(7)),
            ("200 OK\r\ncontent-length: 7\r\ntransfer-encoding: Chunked", None),
            ("200 OK\r\nx: y", None),
        ] {
            assert_eq!(length(&format!("HTTP/1.1 {rest}\r\n\r\n")), wanted, "{rest}");
        }
        let bare = read(
            &mut BytesMut::from("HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n"),
            true,
            &mut 0,
        );
        assert!(matches!(bare.unwrap().unwrap().framing, Framing::Length(0)));
        for wrong in [
            "1.1 200 OK\r\ncontent-length: 7\r\ncontent-length: 8",
            "1.1 200 OK\r\ncontent-length: 7, 8",
            "1.1 200 OK\r\ncontent-length: +7",
            "1.1 200 OK\r\ncontent-length:",
            "1.1 200 OK\r\ncontent-length: 99999999999999999999",
            "1.0 200 OK\r\ntransfer-encoding: chunked",
            "1.1 101 Switching Protocols\r\nupgrade: x",
            "1.1 200 OK\r\nx: a\r\n b",
            "1.1 200 OK\r\nx y: a",
            "2 200 OK\r\nx: a",
            "1.1 42 OK\r\nx: a",
        ] {
            assert!(head(&format!("HTTP/{wrong}\r\n\r\n")).is_err(), "{wrong}");
        }
        let long = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(HEAD_MAX));
        assert!(head(&long).is_err(), "no head goes on for ever");
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(FIELDS_MAX + 1));
        assert!(head(&many).is_err());
    }

    /// Both at once is how an answer is made to end at one place here and at another one behind: what is left could pass for
    /// the client's next answer.
    #[test]
    fn an_answer_says_its_length_once_and_not_beside_a_coding() {
        let both = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n";
        let read = head(both).unwrap().unwrap();
        assert!(matches!(read.framing, Framing::Chunked(_)) && !read.keeps);
        assert_eq!(read.answer.headers().get("content-length"), None);
        for said in [
            "content-length: 2, 2",
            "content-length: 2\r\ncontent-length: 2",
            "content-length: 2",
        ] {
            let read = head(&format!("HTTP/1.1 200 OK\r\n{said}\r\n\r\n"))
                .unwrap()
                .unwrap();
            let lengths: Vec<_> = read.answer.headers().get_all("content-length").iter().collect();
            assert!(lengths == ["2"] && read.keeps, "{lengths:?}");
        }
    }

    #[test]
    fn a_connection_is_kept_where_both_know_the_end() {
        for (rest, kept) in [
            ("1.1 200 OK\r\ncontent-length: 0", true),
            ("1.1 200 OK\r\ntransfer-encoding: chunked", true),
            ("1.1 200 OK\r\nx: y", false),
            ("1.1 200 OK\r\ncontent-length: 0\r\nconnection: x, Close", false),
            (
                "1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\nconnection: keep-alive",
                false,
            ),
            ("1.0 200 OK\r\ncontent-length: 0", false),
            ("1.0 200 OK\r\ncontent-length: 0\r\nconnection: Keep-Alive", true),
        ] {
            assert_eq!(
                head(&format!("HTTP/{rest}\r\n\r\n")).unwrap().unwrap().keeps,
                kept,
                "{rest}"
            );
        }
    }
}
