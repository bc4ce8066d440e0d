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

/// The forms in which a path is compared: as sent, and where they differ from that, with escapes taken out not at
/// all, all but those of `/` and `\`, once, and as often as there are any; with dots resolved, whether an empty segment
/// counts as one or not, and whether `\` is `/` or not; parameters of segments left out.
pub(crate) fn forms(path: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let plain = !path.contains(['%', ';', '\\']) && !path.contains("/.");
    let mut others = Vec::new();
    let mut add = |bytes: &[u8]| {
        for (empty_counts, backslash) in [(false, true), (true, true), (false, false), (true, false)] {
            let form = resolve(bytes, empty_counts, backslash);
            if !others.contains(&form) {
                others.push(form);
            }
        }
    };
    if !plain {
        let mut decoded = path.as_bytes().to_vec();
        add(&decoded);
        // Some servers keep `%2F` one segment while they resolve `%2e%2e`.
        add(&decode(&decoded, true));
        for _ in 0..DECODINGS_MAX {
            let next = decode(&decoded, false);
            if next == decoded {
                break;
            }
            decoded = next;
            add(&decoded);
        }
    }
    std::iter::once(Cow::Borrowed(path)).chain(others.into_iter().map(Cow::Owned))
}

/// Takes out one layer of escapes; with `keep` not those of separators.
fn decode(path: &[u8], keep: bool) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut out = Vec::with_capacity(path.len());
    let mut at = 0;
    while let Some(byte) = path.get(at) {
        let escaped = match (byte, digit(path.get(at + 1)), digit(path.get(at + 2))) {
            (b'%', Some(high), Some(low)) => u8::try_from(high * 16 + low).ok(),
            _ => None,
        };
        match escaped {
            Some(found) if !(keep && matches!(found, b'/' | b'\\')) => {
                out.push(found);
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
fn resolve(path: &[u8], empty_counts: bool, backslash: bool) -> String {
    let mut text = String::from_utf8_lossy(path).into_owned();
    if backslash {
        text = text.replace('\\', "/");
    }
    let rest = text.strip_prefix('/').unwrap_or(&text);
    let mut segments: Vec<&str> = Vec::new();
    for segment in rest.split('/') {
        match segment.split(';').next().unwrap_or_default() {
            "." => {}
            "" if !empty_counts => {}
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
            "/a%2Fb/../payments",
            "/a%2Fb/%2e%2e/payments",
            "/a\\b/../payments",
        ] {
            let found = forms(spelling).any(|form| pattern("/payments").covers(&form));
            assert!(found, "{spelling}: {:?}", forms(spelling).collect::<Vec<_>>());
        }
        // A server that counts empty segments takes this for `/a/payments`, one that merges them for `/payments`.
        for wanted in ["/a/payments", "/payments"] {
            assert!(
                forms("/a//../payments").any(|form| pattern(wanted).covers(&form)),
                "{wanted}"
            );
        }
        assert_eq!(forms("/a/b").count(), 1);
    }
}
