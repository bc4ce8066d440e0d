//! The key of one call.

use std::fmt;

use http::{HeaderMap, HeaderValue, header::HeaderName};
use semel_core::key::{derive, hex};
use semel_core::{Key, Timestamp, host, limits};
use sfv::{BareItem, Item, Parser};

use crate::config::KeyForm;
use crate::error::Error;

/// The name of one operation, for its receiver. Put it into the request's extensions; a request without one, and
/// without a header, gets 128 random bits.
///
/// Printable ASCII, 1 to 255 bytes: what a Structured Field String can carry.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestKey {
    text: Box<str>,
    /// When it is for a repeat: when the key was first sent, by any process.
    first_sent: Option<Timestamp>,
}

impl RequestKey {
    /// A key with this text, such as an order's number.
    ///
    /// # Errors
    /// Empty, longer than 255 bytes, or not printable ASCII.
    pub fn new(text: impl Into<String>) -> Result<Self, Error> {
        let text = text.into();
        let (bytes, max) = (text.len(), limits::KEY_ID_BYTES_MAX);
        if bytes == 0 || bytes > max {
            return Err(Error::key(format!(
                "the key has {bytes} bytes, outside 1..={max}; derive one with RequestKey::of"
            )));
        }
        if sfv::StringRef::from_str(&text).is_err() {
            return Err(Error::key(
                "the key is not printable ASCII; derive one with RequestKey::of",
            ));
        }
        Ok(Self {
            text: text.into(),
            first_sent: None,
        })
    }

    /// A key that no other call has: 128 random bits, in hexadecimal.
    #[must_use]
    pub fn random() -> Self {
        Self {
            text: hex(&host::random_16()).into(),
            first_sent: None,
        }
    }

    /// The key of an operation that has a name here: made of business fields ([`Key::derive`]) or of the key of what is
    /// being served ([`Key::child`]). The hexadecimal SHA-256 over scope and id, each prefixed by its length as in
    /// [`derive()`]; so it is the same after a restart, in another version and in another language.
    ///
    /// ```
    /// use semel_core::{Key, Scope};
    /// use semel_http_client::RequestKey;
    /// let order = Key::derive(Scope::new("orders")?, &[b"tenant-4", b"7"]);
    /// assert_eq!(RequestKey::of(&order.child("charge")), RequestKey::of(&order.child("charge")));
    /// assert_ne!(RequestKey::of(&order.child("charge")), RequestKey::of(&order.child("refund")));
    /// # Ok::<(), semel_core::limits::LimitExceeded>(())
    /// ```
    #[must_use]
    pub fn of(key: &Key) -> Self {
        Self {
            text: hex(&derive(&[key.scope().as_bytes(), key.id()])).into(),
            first_sent: None,
        }
    }

    /// The same key, which was first sent at this moment: by another process, or in a call that ended as unknown. The
    /// call counts as a repeat: it is made only where [`Config::repeat`](crate::Config::repeat) calls that keyed.
    #[must_use]
    pub const fn first_sent(mut self, at: Timestamp) -> Self {
        self.first_sent = Some(at);
        self
    }

    /// The text, as the receiver decodes it.
    #[must_use]
    pub const fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) const fn when_first_sent(&self) -> Option<Timestamp> {
        self.first_sent
    }

    /// The header's value.
    pub(crate) fn value(&self, form: KeyForm) -> Result<HeaderValue, Error> {
        let text = match form {
            KeyForm::Quoted => format!("\"{}\"", self.text.replace('\\', "\\\\").replace('"', "\\\"")),
            KeyForm::Bare => {
                let fits = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b';' | b'\\');
                if !self.text.bytes().all(fits) {
                    return Err(Error::key(
                        "a bare key has no space, comma, semicolon, quote or backslash; send it quoted (KeyForm::Quoted)",
                    ));
                }
                self.text.to_string()
            }
        };
        HeaderValue::from_str(&text).map_err(|_| Error::key("the key does not fit into a header"))
    }
}

/// The text would tell who reads a log what to send to get somebody's answer.
impl fmt::Debug for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestKey")
            .field("bytes", &self.text.len())
            .field("first_sent", &self.first_sent)
            .finish_non_exhaustive()
    }
}

/// The key that a request has already, with its header left as it is.
pub(crate) fn present(headers: &HeaderMap, name: &HeaderName) -> Result<Option<RequestKey>, Error> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(Error::key(format!(
            "it has the header {name} more than once; a request names one operation"
        )));
    }
    let bytes = value.as_bytes().trim_ascii();
    if bytes.first() != Some(&b'"') {
        let text = std::str::from_utf8(bytes).map_err(|_| Error::key("the key is not printable ASCII"))?;
        return RequestKey::new(text).map(Some);
    }
    match Parser::new(bytes).parse::<Item>() {
        Ok(Item {
            bare_item: BareItem::String(text),
            ..
        }) => RequestKey::new(text.as_str()).map(Some),
        _ => Err(Error::key(
            "its key begins with a quote and is no Structured Field String",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_keys_have_128_bits_and_differ() {
        let (one, two) = (RequestKey::random(), RequestKey::random());
        assert_eq!(one.as_str().len(), 32);
        assert_ne!(one, two);
    }

    #[test]
    fn a_quoted_key_is_read_by_the_layer_as_it_was_written() {
        for text in ["order-7", "say \"hi\"", "back\\slash", " a, b; c "] {
            let value = RequestKey::new(text).unwrap().value(KeyForm::Quoted).unwrap();
            let read = semel_http::key::parse(value.as_bytes(), semel_http::key::KeyForm::Strict, 255);
            assert_eq!(read.as_deref(), Ok(text.as_bytes()));
        }
    }

    #[test]
    fn a_bare_key_that_would_be_read_otherwise_is_refused_before_it_is_sent() {
        let bare = |text: &str| RequestKey::new(text).unwrap().value(KeyForm::Bare);
        assert_eq!(bare("order-7").unwrap(), "order-7");
        for text in ["a b", "a,b", "a;b", "a\"b", "a\\b"] {
            assert_eq!(bare(text).unwrap_err().code(), "SEM0460");
        }
    }

    #[test]
    fn keys_that_cannot_be_sent_are_refused() {
        for text in ["", "\u{e9}", "a\nb", &"k".repeat(256)] {
            assert_eq!(RequestKey::new(text).unwrap_err().code(), "SEM0460", "{text:?}");
        }
        assert!(RequestKey::new("k".repeat(255)).is_ok());
    }

    #[test]
    fn a_key_in_the_header_is_taken_in_both_forms_and_only_once() {
        let name = HeaderName::from_static("idempotency-key");
        let read = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(&name, HeaderValue::from_static(value));
            }
            present(&headers, &name).map(|key| key.map(|key| key.as_str().to_owned()))
        };
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&["a"]).unwrap().as_deref(), Some("a"));
        assert_eq!(read(&["\"a\""]).unwrap().as_deref(), Some("a"));
        for bad in [&["a", "a"][..], &[""], &["\""], &["\"\""], &["\"a\", \"b\""]] {
            assert_eq!(read(bad).unwrap_err().code(), "SEM0460", "{bad:?}");
        }
    }

    /// Other languages must compute the same value: this vector is the contract.
    #[test]
    fn a_derived_key_is_stable_over_versions_and_no_text_shows_it() {
        let key = Key::new(semel_core::Scope::new("orders").unwrap(), "7").unwrap();
        let sent = RequestKey::of(&key);
        assert_eq!(
            sent.as_str(),
            "0e0a475062e1e1d460b22ec8a2871dadc4600da12a1b671d3db892a5cd2ac057"
        );
        assert!(!format!("{sent:?}").contains(sent.as_str()));
    }
}
