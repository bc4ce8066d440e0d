//! Where a client can look up a key whose end nobody knows.

use std::fmt::Write as _;

use http::Uri;
use semel_core::Key;

/// What stands for the key.
const PLACE: &str = "{key}";

/// An address with a place for the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatusUrl {
    before: String,
    behind: String,
}

impl StatusUrl {
    /// `None` for what is no `http` or `https` URL with exactly one place for the key, behind its host.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (before, behind) = text.split_once(PLACE)?;
        let host: Uri = before.parse().ok()?;
        let whole: Uri = format!("{before}k{behind}").parse().ok()?;
        let is_http = matches!(whole.scheme_str(), Some("http" | "https"));
        let same = whole.authority() == host.authority();
        // It stands in a `Link` and between its signs.
        let plain = !text.contains(['<', '>', '"', ' ']) && !behind.contains(PLACE);
        (is_http && same && plain).then(|| Self {
            before: before.to_owned(),
            behind: behind.to_owned(),
        })
    }

    /// The address of this key: as the client named it, with all but unreserved signs escaped (RFC 3986, 2.1).
    pub(in crate::gateway) fn of(&self, key: &Key) -> String {
        let mut url = self.before.clone();
        for byte in key.id() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
                url.push(char::from(*byte));
            } else {
                // Writing to a string does not fail.
                let _ = write!(url, "%{byte:02X}");
            }
        }
        url + &self.behind
    }
}

#[cfg(test)]
mod tests {
    use semel_core::Scope;

    use super::*;

    #[test]
    fn a_key_stands_in_its_place_and_leaves_it_by_no_sign() {
        let key = Key::new(Scope::new("s").unwrap(), "a/b?c#d \u{e4}~1").unwrap();
        for (text, url) in [
            (
                "https://shop.example/ops/{key}",
                "https://shop.example/ops/a%2Fb%3Fc%23d%20%C3%A4~1",
            ),
            (
                "http://h/ops?id={key}&x=1",
                "http://h/ops?id=a%2Fb%3Fc%23d%20%C3%A4~1&x=1",
            ),
        ] {
            assert_eq!(StatusUrl::parse(text).unwrap().of(&key), url);
        }
        for wrong in [
            "https://shop.example/ops",
            "https://{key}.example/",
            "https://shop.example{key}",
            "ftp://shop.example/{key}",
            "/ops/{key}",
            "{key}",
            "https://shop.example/{key}/{key}",
            "https://shop.example/>{key}",
        ] {
            assert_eq!(StatusUrl::parse(wrong), None, "{wrong}");
        }
    }
}
