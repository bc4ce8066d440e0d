//! The key in the request: exactly one, or a clear refusal before the store is touched.
//!
//! It may stand in the header, in an alias of it, or in a field of the body; when it stands in several places they must
//! agree.
//!
//! Two forms name the same record: a Structured Field String (RFC 9651) as the draft asks, `"order-7"`, and the bare
//! token that most clients send, `order-7`. Once decoded, a key is opaque bytes: never trimmed, folded or collated.

mod source;
#[cfg(test)]
mod vectors;

pub use source::BodyKey;
pub(crate) use source::{Found, from_body, from_headers};

use http::HeaderMap;
use http::header::HeaderName;
use sfv::{BareItem, Item, Parser};

/// Which forms of a key are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyForm {
    /// Quoted or bare. The default.
    #[default]
    Lenient,
    /// Only a Structured Field String.
    Strict,
}

/// Why a request has no usable key. Page: SEM0402.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// More than one header line.
    #[error("the header {header} was sent {count} times; send one key per request")]
    Repeated {
        /// The header's name.
        header: HeaderName,
        /// Header lines seen.
        count: usize,
    },
    /// Two places name two keys.
    #[error("{first} and {second} name different keys; send one key per request")]
    Disagree {
        /// The first place.
        first: String,
        /// The other one.
        second: String,
    },
    /// A field of the body stands there more than once, or is no text.
    #[error("the key in the body is malformed: {field} must stand there once, as text")]
    Field {
        /// The field.
        field: String,
    },
    /// The body may hold the key and cannot be read for it, and no header names it.
    #[error("the body cannot be read for its key: {detail}; or send the key in a header")]
    Unreadable {
        /// What is in the way and how to send it.
        detail: &'static str,
    },
    /// A key of no bytes.
    #[error("the key is empty; send 1 to {max} bytes")]
    Empty {
        /// The limit.
        max: usize,
    },
    /// More bytes than allowed, counted after decoding.
    #[error(
        "the key has {actual} bytes, the limit key_bytes_max is {max}; send a shorter key or a hash of it"
    )]
    TooLong {
        /// Bytes sent.
        actual: usize,
        /// The limit.
        max: usize,
    },
    /// Neither a Structured Field String nor (where allowed) a bare token.
    #[error("the key is malformed: {detail}")]
    Malformed {
        /// What is wrong and how to send it.
        detail: &'static str,
    },
}

/// Reads the key of a request; `None` when there is no such header.
///
/// # Errors
/// [`KeyError`]: the header is there and does not hold exactly one valid key.
pub fn read(
    headers: &HeaderMap,
    header: &HeaderName,
    form: KeyForm,
    bytes_max: usize,
) -> Result<Option<Box<[u8]>>, KeyError> {
    let mut values = headers.get_all(header).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let more = values.count();
    if more > 0 {
        return Err(KeyError::Repeated {
            header: header.clone(),
            count: more + 1,
        });
    }
    parse(value.as_bytes(), form, bytes_max).map(Some)
}

/// Decodes one header value.
///
/// ```
/// use semel_http::key::{KeyForm, parse};
/// let quoted = parse(b"\"order-7\"", KeyForm::Lenient, 255)?;
/// let bare = parse(b"order-7", KeyForm::Lenient, 255)?;
/// assert_eq!(quoted, bare);
/// assert!(parse(b"order-7", KeyForm::Strict, 255).is_err());
/// assert!(parse(b"a, b", KeyForm::Lenient, 255).is_err(), "two keys that a proxy joined");
/// # Ok::<(), semel_http::key::KeyError>(())
/// ```
///
/// # Errors
/// Empty, too long, or malformed.
pub fn parse(value: &[u8], form: KeyForm, bytes_max: usize) -> Result<Box<[u8]>, KeyError> {
    // Optional white space around a field value is no part of it (RFC 9110, 5.5).
    let value = value.trim_ascii();
    let key: Box<[u8]> = if value.first() == Some(&b'"') {
        quoted(value)?
    } else if value.is_empty() {
        Box::default()
    } else {
        match form {
            KeyForm::Lenient => bare(value)?,
            KeyForm::Strict => {
                return Err(KeyError::Malformed {
                    detail: "put it in double quotes, as a Structured Field String",
                });
            }
        }
    };
    sized(key, bytes_max)
}

fn sized(key: Box<[u8]>, bytes_max: usize) -> Result<Box<[u8]>, KeyError> {
    match key.len() {
        0 => Err(KeyError::Empty { max: bytes_max }),
        actual if actual > bytes_max => Err(KeyError::TooLong {
            actual,
            max: bytes_max,
        }),
        _ => Ok(key),
    }
}

/// Parameters after the string are allowed by the syntax and mean nothing here.
fn quoted(value: &[u8]) -> Result<Box<[u8]>, KeyError> {
    // The common case without a parser: nothing escaped, nothing behind.
    if let [b'"', plain @ .., b'"'] = value
        && plain
            .iter()
            .all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\'))
    {
        return Ok(plain.into());
    }
    match Parser::new(value).parse::<Item>() {
        Ok(Item {
            bare_item: BareItem::String(text),
            ..
        }) => Ok(text.as_str().as_bytes().into()),
        _ => Err(KeyError::Malformed {
            detail: "a quoted key is printable ASCII with only \\\" and \\\\ escaped, and ends with a quote",
        }),
    }
}

/// Visible ASCII without what would make it ambiguous: quotes, list and parameter separators, white space.
fn bare(value: &[u8]) -> Result<Box<[u8]>, KeyError> {
    let fits = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b';' | b'\\');
    if value.iter().all(fits) {
        return Ok(value.into());
    }
    Err(KeyError::Malformed {
        detail: "a bare key is visible ASCII without space, comma, semicolon, quote or backslash; put others in double quotes",
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;
    use crate::headers::IDEMPOTENCY_KEY;

    fn lenient(value: &[u8]) -> Result<Box<[u8]>, KeyError> {
        parse(value, KeyForm::Lenient, 255)
    }

    #[test]
    fn quoted_and_bare_keys_name_the_same_record() {
        for text in [
            "order-7",
            "8e03978e-40d5-43dd-bc93-6894a57f9324",
            "a:b/c.d_e~f",
            "=)(",
        ] {
            let quoted = format!("\"{text}\"");
            assert_eq!(lenient(text.as_bytes()), lenient(quoted.as_bytes()), "{text}");
        }
    }

    #[test]
    fn what_is_not_exactly_one_key_is_refused() {
        for bad in [
            &b""[..],
            b" \t",
            b"\"\"",
            b"\"",
            b"\"a",
            b"a\"",
            b"\"a\"b",
            b"\"a\", \"b\"",
            b"a,b",
            b"a, b",
            b"a b",
            b"a;b",
            b"a\\b",
            b"\"a\\b\"",
            b"\"\xc3\xa9\"",
            b"\xc3\xa9",
            b"\"a\tb\"",
        ] {
            assert!(lenient(bad).is_err(), "{:?}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn a_quoted_key_keeps_spaces_separators_and_escapes() {
        for (sent, key) in [
            (&b"\" a, b; c \""[..], &b" a, b; c "[..]),
            (b"\"say \\\"hi\\\"\"", b"say \"hi\""),
            (b"\"back\\\\slash\"", b"back\\slash"),
            (b"\"with\";p=1", b"with"),
        ] {
            assert_eq!(lenient(sent).as_deref(), Ok(key));
        }
    }

    #[test]
    fn the_length_counts_decoded_bytes() {
        let escaped = format!("\"{}\"", "\\\"".repeat(255));
        assert_eq!(lenient(escaped.as_bytes()).unwrap().len(), 255);
        let long = "k".repeat(256);
        let error = lenient(long.as_bytes()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("256 bytes, the limit key_bytes_max is 255"),
            "{error}"
        );
    }

    #[test]
    fn two_header_lines_are_refused_even_when_equal() {
        let mut headers = HeaderMap::new();
        headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static("a"));
        headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static("a"));
        let error = read(&headers, &IDEMPOTENCY_KEY, KeyForm::Lenient, 255).unwrap_err();
        assert!(matches!(error, KeyError::Repeated { count: 2, .. }));
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_key_within_the_limit_or_an_error(value in proptest::collection::vec(any::<u8>(), 0..600)) {
            if let Ok(key) = lenient(&value) {
                prop_assert!((1..=255).contains(&key.len()));
                prop_assert!(key.iter().all(|byte| (0x20..0x7f).contains(byte)));
            }
        }

        #[test]
        fn a_quoted_string_comes_back_as_it_was(text in "[ -~]{1,255}") {
            let sent = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
            let key = lenient(sent.as_bytes());
            prop_assert_eq!(key.as_deref(), Ok(text.as_bytes()));
        }

        #[test]
        fn a_bare_token_comes_back_as_it_was(text in "[!#-+\\--:<-\\[\\]-~]{1,255}") {
            let key = lenient(text.as_bytes());
            prop_assert_eq!(key.as_deref(), Ok(text.as_bytes()));
        }
    }
}
