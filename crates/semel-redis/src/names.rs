//! The names of what is stored.
//!
//! `semel{1f}` + key bytes is a record, `semel:run{1f}` the registry of the runs of its tag (on a single server of all
//! tags: `semel:run{00}`), `semel:ended` the channel of hints. The part in braces, the tag, decides the slot in a cluster; it is made from the key, so that a script
//! about a key touches one slot. The key bytes carry the scope's length (rule K10).

use semel_core::claim::Token;
use semel_core::{Key, Scope, Timestamp};

/// Tags over which keys are spread. Part of the layout: never configured, so that no two processes can differ in it.
pub(crate) const TAGS: u8 = 64;
/// 2026-01-01, from which the milliseconds of tokens count; so they stay below 2^53, which every JSON reader keeps.
const EPOCH_MS: i64 = 1_767_225_600_000;
/// Tokens of one millisecond: 128 entries of a registry. The scripts know it, too.
const PER_MS: i64 = 8_192;
/// Tokens of one entry: of a cluster one of each tag, of a single server one of each item of the call.
pub(crate) const TOKENS: u8 = 64;

#[derive(Debug, Clone)]
pub(crate) struct Names {
    prefix: String,
    channel: Vec<u8>,
    /// By tag.
    registries: Vec<Vec<u8>>,
}

impl Names {
    pub(crate) fn new(prefix: &str, in_cluster: bool) -> Self {
        Self {
            prefix: prefix.to_owned(),
            channel: format!("{prefix}:ended").into_bytes(),
            registries: (0..if in_cluster { TAGS } else { 1 })
                .map(|tag| format!("{prefix}:run{{{tag:02x}}}").into_bytes())
                .collect(),
        }
    }

    pub(crate) fn record(&self, key: &Key) -> Vec<u8> {
        let bytes = key.to_bytes();
        let tag = u8::try_from(spread(&bytes) % u64::from(TAGS)).unwrap_or(0);
        let mut name = Vec::with_capacity(self.prefix.len() + 4 + bytes.len());
        name.extend_from_slice(self.prefix.as_bytes());
        name.extend_from_slice(b"{");
        name.extend([tag >> 4, tag & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
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

    /// The registry of a tag that has one.
    pub(crate) fn registry(&self, tag: u8) -> &[u8] {
        self.registries.get(usize::from(tag)).map_or(b"", Vec::as_slice)
    }

    /// The tag of the registry that names a record's runs. A single server has one registry, so that a call needs one
    /// entry, whatever keys it is about.
    pub(crate) fn registry_tag(&self, record: &[u8]) -> u8 {
        if self.registries.len() > 1 {
            self.tag(record)
        } else {
            0
        }
    }

    /// The tags that have a registry.
    pub(crate) fn registries(&self) -> u8 {
        u8::try_from(self.registries.len()).unwrap_or(TAGS)
    }

    pub(crate) fn channel(&self) -> &[u8] {
        &self.channel
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

/// Spreads keys over tags (FNV-1a, whose high bits are mixed in). Part of the layout.
pub(crate) fn spread(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash ^ hash >> 32
}

/// The registry's entry under which a token was drawn.
pub(crate) fn entry_of(token: Token) -> String {
    let (ms, rest) = (token.0.div_euclid(PER_MS), token.0.rem_euclid(PER_MS));
    format!("{}-{}", ms + EPOCH_MS, rest / i64::from(TOKENS))
}

/// The first token of an entry in a registry.
pub(crate) fn token_of(entry: &str) -> Option<Token> {
    let (ms, seq) = entry.split_once('-')?;
    let (ms, seq): (i64, i64) = (ms.parse().ok()?, seq.parse().ok()?);
    let rest = seq.checked_mul(i64::from(TOKENS))?;
    Some(Token((ms - EPOCH_MS).checked_mul(PER_MS)?.checked_add(rest)?))
}

/// The end of the millisecond in which a token was drawn, as the scripts take it.
pub(crate) const fn drawn_at(token: Token) -> Timestamp {
    Timestamp((token.0.div_euclid(PER_MS) + EPOCH_MS) * 1_000 + 999)
}

/// Names of records as one entry of a registry holds several: each with its length before it.
pub(crate) fn pack<'n>(names: impl Iterator<Item = &'n [u8]>) -> Vec<u8> {
    let mut packed = Vec::new();
    for name in names {
        // A prefix has at most 64 bytes, a key 511.
        let length = u16::try_from(name.len()).unwrap_or(u16::MAX);
        packed.extend_from_slice(&length.to_be_bytes());
        packed.extend_from_slice(name);
    }
    packed
}

/// Reads [`pack`] back.
pub(crate) fn unpack(mut packed: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    while let Some((length, rest)) = packed.split_first_chunk() {
        let (name, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        names.push(name.to_vec());
        packed = rest;
    }
    packed.is_empty().then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(scope: &[u8], id: &[u8]) -> Key {
        Key::new(Scope::new(scope).unwrap(), id).unwrap()
    }

    #[test]
    fn a_name_gives_its_key_back_and_two_keys_have_two_names() {
        let names = Names::new("semel", true);
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
        for (entry, token) in [
            ("1767225600000-0", 0),
            ("1796083199999-7", 28_857_599_999 * 8_192 + 7 * 64),
        ] {
            assert_eq!(token_of(entry), Some(Token(token)));
            assert_eq!(entry_of(Token(token)), entry);
            assert_eq!(entry_of(Token(token + 63)), entry);
        }
        assert_eq!(
            drawn_at(Token(8_192 + 8_191)),
            Timestamp((EPOCH_MS + 1) * 1_000 + 999)
        );
        // 30 years on a token is still a number that JSON readers keep.
        assert!(token_of("2713910400000-128").unwrap().0 < 1 << 53);
    }

    #[test]
    fn names_in_one_entry_are_read_back() {
        let names = [b"semel{00}\x01a\0\xff".to_vec(), Vec::new(), vec![7; 575]];
        let packed = pack(names.iter().map(Vec::as_slice));
        assert_eq!(unpack(&packed).unwrap(), names);
        assert_eq!(unpack(&packed[..packed.len() - 1]), None);
        assert_eq!(unpack(b"\0"), None);
    }

    #[test]
    fn keys_are_spread_evenly_over_tags() {
        let names = Names::new("semel", true);
        let mut counts = [0; TAGS as usize];
        for n in 0..6_400_u32 {
            let name = names.record(&key(b"orders", n.to_string().as_bytes()));
            counts[usize::from(names.tag(&name))] += 1;
        }
        assert!(counts.iter().all(|count| (50..200).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_scope_is_searched_for_as_it_is_written() {
        let scope = Scope::new(b"a*[b]").unwrap();
        let pattern = Names::new("semel", true).pattern(Some(&scope));
        assert_eq!(pattern, b"semel{??}\x05a\\*\\[b\\]*");
    }
}
