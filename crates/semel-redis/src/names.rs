//! The names of what is stored.
//!
//! `semel{1f}` + key bytes is a record, `semel:run{1f}` the registry of the runs of its tag, `semel:ended` the channel
//! of hints. The part in braces, the tag, decides the slot in a cluster; it is made from the key, so that a script
//! about a key touches one slot. The key bytes carry the scope's length (rule K10).

use semel_core::claim::Token;
use semel_core::key::{derive, hex};
use semel_core::{Key, Scope};

/// Tags over which keys are spread. Part of the layout: never configured, so that no two processes can differ in it.
pub(crate) const TAGS: u8 = 64;
/// 2026-01-01, from which the milliseconds of tokens count; so they stay below 2^53, which every JSON reader keeps.
const EPOCH_MS: i64 = 1_767_225_600_000;
/// Tokens of one millisecond: 128 of each tag. The scripts know it, too.
const PER_MS: i64 = 8_192;

#[derive(Debug, Clone)]
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    pub(crate) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
        }
    }

    pub(crate) fn record(&self, key: &Key) -> Vec<u8> {
        let bytes = key.to_bytes();
        let tag = derive(&[&bytes])[0] % TAGS;
        let mut name = Vec::with_capacity(self.prefix.len() + 4 + bytes.len());
        name.extend_from_slice(self.prefix.as_bytes());
        name.extend_from_slice(b"{");
        name.extend_from_slice(hex(&[tag]).as_bytes());
        name.extend_from_slice(b"}");
        name.extend_from_slice(&bytes);
        name
    }

    /// The key of a record's name.
    pub(crate) fn key(&self, name: &[u8]) -> Option<Key> {
        Key::from_bytes(name.get(self.prefix.len() + 4..)?)
    }

    /// The tag in a record's name.
    pub(crate) fn tag(&self, record: &[u8]) -> u8 {
        let at = self.prefix.len() + 1;
        let digits = record.get(at..at + 2).and_then(|it| std::str::from_utf8(it).ok());
        digits
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .unwrap_or(0)
    }

    pub(crate) fn registry(&self, tag: u8) -> Vec<u8> {
        format!("{}:run{{{}}}", self.prefix, hex(&[tag])).into_bytes()
    }

    pub(crate) fn registry_of(&self, record: &[u8]) -> Vec<u8> {
        self.registry(self.tag(record))
    }

    pub(crate) fn channel(&self) -> Vec<u8> {
        format!("{}:ended", self.prefix).into_bytes()
    }

    /// The pattern of all records, or those of a scope.
    pub(crate) fn pattern(&self, scope: Option<&Scope>) -> Vec<u8> {
        let mut pattern = self.prefix.clone().into_bytes();
        pattern.extend_from_slice(b"{??}");
        if let Some(scope) = scope {
            let bytes = scope.as_bytes();
            let length = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
            for byte in [&[length], bytes].concat() {
                if b"*?[]^-\\".contains(&byte) {
                    pattern.push(b'\\');
                }
                pattern.push(byte);
            }
        }
        pattern.push(b'*');
        pattern
    }
}

/// The registry's entry of a token.
pub(crate) fn entry_id(token: Token) -> String {
    let (ms, rest) = (token.0.div_euclid(PER_MS), token.0.rem_euclid(PER_MS));
    format!("{}-{}", ms + EPOCH_MS, rest / i64::from(TAGS))
}

/// The token of an entry in a tag's registry. Unlike the entry it names no run of another tag.
pub(crate) fn token_of(tag: u8, entry: &str) -> Option<Token> {
    let (ms, seq) = entry.split_once('-')?;
    let (ms, seq): (i64, i64) = (ms.parse().ok()?, seq.parse().ok()?);
    let rest = seq.checked_mul(i64::from(TAGS))?.checked_add(i64::from(tag))?;
    Some(Token((ms - EPOCH_MS).checked_mul(PER_MS)?.checked_add(rest)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(scope: &[u8], id: &[u8]) -> Key {
        Key::new(Scope::new(scope).unwrap(), id).unwrap()
    }

    #[test]
    fn a_name_gives_its_key_back_and_two_keys_have_two_names() {
        let names = Names::new("semel");
        let binary: Vec<u8> = (0..=254).collect();
        let keys = [
            key(b"ab", b"c"),
            key(b"a", b"bc"),
            key(b"a", b"{x}"),
            key(&binary, &binary),
        ];
        let mut seen = std::collections::BTreeSet::new();
        for key in keys {
            let name = names.record(&key);
            assert_eq!(names.key(&name), Some(key));
            assert!(names.tag(&name) < TAGS);
            assert!(seen.insert(name));
        }
    }

    #[test]
    fn tokens_and_entries_of_the_registry_are_the_same_numbers() {
        for (tag, entry, token) in [
            (0, "1767225600000-0", 0),
            (63, "1796083199999-7", 28_857_599_999 * 8_192 + 7 * 64 + 63),
        ] {
            assert_eq!(token_of(tag, entry), Some(Token(token)));
            assert_eq!(entry_id(Token(token)), entry);
        }
        // 30 years on a token is still a number that JSON readers keep.
        assert!(token_of(63, "2713910400000-127").unwrap().0 < 1 << 53);
    }

    #[test]
    fn a_scope_is_searched_for_as_it_is_written() {
        let scope = Scope::new(b"a*[b]").unwrap();
        let pattern = Names::new("semel").pattern(Some(&scope));
        assert_eq!(pattern, b"semel{??}\x05a\\*\\[b\\]*");
    }
}
