//! Paths: patterns of routes, and the forms in which a request's path is compared with them.
//!
//! A path is forwarded as it was sent, and compared in more than one form: servers differ in what they make of
//! `%2F`, `//`, `..`, `;x=1`, `\` and a trailing slash, and a spelling that the upstream takes for `/payments` must not
//! pass by the route of `/payments`.

use std::borrow::Cow;

/// A path of a route: it covers itself and all that lies below it; a segment `*` stands for any one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern(Vec<Box<str>>);

/// Why a text is no pattern.
pub(crate) const PATTERN_FIX: &str = "begin it with / and leave out queries, `..`, `%` and `;`: what lies below is meant too, and a segment * stands for \
     any one segment, as in \"/orders/*/items\"";

impl Pattern {
    /// Reads a pattern; `None` where it could never be meant.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix('/')?;
        if rest.contains(['?', '#', '%', ';', '\\']) {
            return None;
        }
        let segments: Vec<Box<str>> = rest
            .split('/')
            .filter(|segment| !segment.is_empty())
            .map(Into::into)
            .collect();
        let plain =
            |segment: &str| segment == "*" || !(segment.contains('*') || segment == "." || segment == "..");
        segments
            .iter()
            .all(|segment| plain(segment))
            .then_some(Self(segments))
    }

    /// Whether it covers a path in one form.
    pub(crate) fn covers(&self, path: &str) -> bool {
        let mut segments = path.split('/').filter(|segment| !segment.is_empty());
        self.0.iter().all(|wanted| {
            segments
                .next()
                .is_some_and(|found| &**wanted == "*" || **wanted == *found)
        })
    }

    /// Whether every path that `other` covers is covered by this one.
    pub(crate) fn includes(&self, other: &Self) -> bool {
        self.0.len() <= other.0.len()
            && self
                .0
                .iter()
                .zip(&other.0)
                .all(|(mine, theirs)| &**mine == "*" || mine == theirs)
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for segment in &self.0 {
            write!(f, "/{segment}")?;
        }
        if self.0.is_empty() {
            f.write_str("/")?;
        }
        Ok(())
    }
}

/// How often escapes are taken out at most: some servers do it twice.
const DECODINGS_MAX: usize = 3;

/// The forms in which a path is compared: as sent, and where they differ from that, with escapes taken out once and
/// as often as there are any, `\` as `/`, parameters of segments left out, and dots resolved.
pub(crate) fn forms(path: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let plain = !path.contains(['%', ';', '\\']) && !path.contains("/.");
    let mut others = Vec::new();
    if !plain {
        let mut decoded = path.as_bytes().to_vec();
        for _ in 0..DECODINGS_MAX {
            let next = decode(&decoded);
            let last = next == decoded;
            decoded = next;
            let form = resolve(&decoded);
            if !others.contains(&form) {
                others.push(form);
            }
            if last {
                break;
            }
        }
    }
    std::iter::once(Cow::Borrowed(path)).chain(others.into_iter().map(Cow::Owned))
}

/// Takes out one layer of escapes.
fn decode(path: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut out = Vec::with_capacity(path.len());
    let mut at = 0;
    while let Some(byte) = path.get(at) {
        match (byte, digit(path.get(at + 1)), digit(path.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                out.push(u8::try_from(high * 16 + low).unwrap_or(b'%'));
                at += 3;
            }
            _ => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    out
}

/// Resolves dots, and leaves out what follows `;` in a segment.
fn resolve(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path).replace('\\', "/");
    let mut segments: Vec<&str> = Vec::new();
    for segment in text.split('/') {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            name => segments.push(name),
        }
    }
    format!("/{}", segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).unwrap()
    }

    #[test]
    fn a_pattern_covers_itself_and_what_lies_below() {
        for (text, path, covered) in [
            ("/payments", "/payments", true),
            ("/payments", "/payments/", true),
            ("/payments", "//payments", true),
            ("/payments", "/payments/7", true),
            ("/payments", "/paymentsx", false),
            ("/payments", "/", false),
            ("/payments/", "/payments", true),
            ("/", "/anything", true),
            ("/orders/*/items", "/orders/7/items/2", true),
            ("/orders/*/items", "/orders/items", false),
        ] {
            assert_eq!(pattern(text).covers(path), covered, "{text} {path}");
        }
        for wrong in ["payments", "/a?b", "/a*", "/..", "/%41", "/a;b"] {
            assert_eq!(Pattern::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_pattern_that_hides_another_is_known() {
        assert!(pattern("/a").includes(&pattern("/a/b")));
        assert!(pattern("/a/*").includes(&pattern("/a/b/c")));
        assert!(!pattern("/a/b").includes(&pattern("/a/*")));
        assert!(!pattern("/a/b").includes(&pattern("/a")));
    }

    #[test]
    fn every_spelling_of_a_path_is_among_its_forms() {
        for spelling in [
            "/payments",
            "/%70ayments",
            "/%2570ayments",
            "/./payments",
            "/x/../payments",
            "/x/%2e%2e/payments",
            "/x%2f..%2fpayments",
            "/payments;v=1",
            "/x/..;/payments",
            "/x\\..\\payments",
        ] {
            let found = forms(spelling).any(|form| pattern("/payments").covers(&form));
            assert!(found, "{spelling}: {:?}", forms(spelling).collect::<Vec<_>>());
        }
        assert_eq!(forms("/a/b").count(), 1);
    }
}
