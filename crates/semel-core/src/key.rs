//! Keys: scope + id, naming one operation.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::limits::{self, LimitExceeded};

/// Where ids are unique: an API or handler name, with the tenant or principal where there is one.
///
/// Bytes, never trimmed, folded or collated. 1 to [`limits::SCOPE_BYTES_MAX`] bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope(Arc<[u8]>); // Shared: a key is copied several times on its way.

impl Scope {
    /// A scope of these bytes.
    ///
    /// # Errors
    /// Empty, or longer than [`limits::SCOPE_BYTES_MAX`].
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, LimitExceeded> {
        let bytes = bytes.as_ref();
        limits::check(
            "scope",
            "bytes",
            bytes.len() as u64,
            1,
            limits::SCOPE_BYTES_MAX as u64,
            "name the scope, or use a hash of a longer name",
        )?;
        Ok(Self(bytes.into()))
    }

    /// A scope made of parts, each length-prefixed, so that ("ab","c") and ("a","bc") differ.
    /// Parts that together exceed the limit are replaced by their SHA-256.
    #[must_use]
    pub fn of_parts(parts: &[&[u8]]) -> Self {
        let room = parts.iter().map(|part| part.len() + 4).sum();
        let mut bytes = Vec::with_capacity(room);
        for part in parts {
            put_decimal(&mut bytes, part.len());
            bytes.push(b':');
            bytes.extend_from_slice(part);
        }
        if bytes.is_empty() || bytes.len() > limits::SCOPE_BYTES_MAX {
            return Self(derive(parts).into());
        }
        Self(bytes.into())
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The name of one operation. Same key, same operation, for as long as it is kept.
///
/// ```
/// use semel_core::{Key, Scope};
/// let scope = Scope::new("orders/tenant-4")?;
/// let key = Key::new(scope, "order-7")?;
/// assert_eq!(key.id(), b"order-7");
/// // A key for a downstream call, stable over retries, restarts and versions:
/// let charge = key.child("charge");
/// assert_eq!(charge, key.child("charge"));
/// assert_ne!(charge, key.child("refund"));
/// # Ok::<(), semel_core::limits::LimitExceeded>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    scope: Scope,
    id: Arc<[u8]>,
}

impl Key {
    /// A key with this id, as given: bytes, 1 to [`limits::KEY_ID_BYTES_MAX`].
    ///
    /// # Errors
    /// Empty or too long; hash it or use [`Key::derive`].
    pub fn new(scope: Scope, id: impl AsRef<[u8]>) -> Result<Self, LimitExceeded> {
        let id = id.as_ref();
        limits::check(
            "key id",
            "bytes",
            id.len() as u64,
            1,
            limits::KEY_ID_BYTES_MAX as u64,
            "send a shorter key, or derive one with Key::derive",
        )?;
        Ok(Self { scope, id: id.into() })
    }

    /// A key made of business fields: the SHA-256 of the parts, each length-prefixed (8 bytes, big endian).
    /// The same fields give the same key in every version and language.
    #[must_use]
    pub fn derive(scope: Scope, parts: &[&[u8]]) -> Self {
        Self {
            scope,
            id: derive(parts).into(),
        }
    }

    /// A key for a call made on behalf of this one.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        self.child_bytes(&[name.as_bytes()])
    }

    /// A key for a call made on behalf of this one, named by bytes such as a business id; differs from every
    /// [`child`](Self::child) with another name, and is the same as the child of the same bytes.
    ///
    /// ```
    /// # use semel_core::{Key, Scope};
    /// # let key = Key::new(Scope::new("s")?, "order-7")?;
    /// assert_eq!(key.child_bytes(&[b"charge"]), key.child("charge"));
    /// assert_ne!(key.child_bytes(&[b"line", b"7"]), key.child_bytes(&[b"line7"]));
    /// # Ok::<(), semel_core::limits::LimitExceeded>(())
    /// ```
    #[must_use]
    pub fn child_bytes(&self, names: &[&[u8]]) -> Self {
        let mut parts = vec![self.scope.as_bytes(), &self.id];
        parts.extend_from_slice(names);
        Self {
            scope: self.scope.clone(),
            id: derive(&parts).into(),
        }
    }

    /// The key of the n-th item of a batch that this key names: the child of `"item"` and the number as 8 bytes, big
    /// endian.
    #[must_use]
    pub fn item(&self, n: u64) -> Self {
        self.child_bytes(&[b"item", &n.to_be_bytes()])
    }

    /// The whole key as bytes that name no other one: the scope's length in one byte, the scope, the id. At most 511.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let scope = self.scope.as_bytes();
        let mut bytes = Vec::with_capacity(1 + scope.len() + self.id.len());
        // A scope has at most 255 bytes.
        bytes.push(u8::try_from(scope.len()).unwrap_or(u8::MAX));
        bytes.extend_from_slice(scope);
        bytes.extend_from_slice(&self.id);
        bytes
    }

    /// Reads [`Key::to_bytes`] back; `None` for anything else.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first()?;
        let (scope, id) = rest.split_at_checked(usize::from(*length))?;
        Self::new(Scope::new(scope).ok()?, id).ok()
    }

    /// The scope.
    #[must_use]
    pub const fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The id's bytes.
    #[must_use]
    pub fn id(&self) -> &[u8] {
        &self.id
    }
}

/// Appends a number in decimal digits: a scope is made for each request, and `to_string` takes several times as long.
fn put_decimal(bytes: &mut Vec<u8>, number: usize) {
    let begin = bytes.len();
    let mut left = number;
    loop {
        bytes.push(b'0' + (left % 10) as u8);
        left /= 10;
        if left == 0 {
            break;
        }
    }
    bytes[begin..].reverse();
}

/// SHA-256 over parts, each prefixed with its length as 8 bytes, big endian.
#[must_use]
pub fn derive(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// Lower-case hexadecimal, for logs, headers and derived ids on the wire.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

fn show(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => f.write_str(text),
        _ => write!(f, "0x{}", hex(bytes)),
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(&self.0, f)
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({self})")
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", Id(&self.id), self.scope)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

struct Id<'a>(&'a [u8]);

impl fmt::Display for Id<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_and_oversized_names_are_refused_with_the_limit() {
        let empty = Scope::new("").unwrap_err();
        assert_eq!((empty.min, empty.max, empty.actual), (1, 255, 0));
        let scope = Scope::new("s").unwrap();
        assert!(Key::new(scope.clone(), "").is_err());
        assert!(Key::new(scope.clone(), [0_u8; 255]).is_ok());
        let long = Key::new(scope, [0_u8; 256]).unwrap_err();
        assert!(
            long.to_string().contains("256 bytes is outside 1..=255"),
            "{long}"
        );
    }

    #[test]
    fn keys_are_bytes_never_trimmed_or_folded() {
        let scope = || Scope::new("s").unwrap();
        for (a, b) in [("a", "A"), ("a", "a "), ("\u{e9}", "e\u{301}")] {
            assert_ne!(Key::new(scope(), a).unwrap(), Key::new(scope(), b).unwrap());
        }
    }

    #[test]
    fn a_key_as_bytes_names_no_other_one() {
        let key = |scope: &[u8], id: &[u8]| Key::new(Scope::new(scope).unwrap(), id).unwrap();
        for key in [key(b"a", b"bc"), key(&[0; 255], &[255; 255])] {
            assert_eq!(Key::from_bytes(&key.to_bytes()), Some(key));
        }
        assert_ne!(key(b"ab", b"c").to_bytes(), key(b"a", b"bc").to_bytes());
        for bad in [&b""[..], b"\x00a", b"\x02a", b"\x01a"] {
            assert_eq!(Key::from_bytes(bad), None);
        }
    }

    #[test]
    fn parts_are_length_prefixed() {
        assert_ne!(Scope::of_parts(&[b"ab", b"c"]), Scope::of_parts(&[b"a", b"bc"]));
        let scope = || Scope::new("s").unwrap();
        assert_ne!(
            Key::derive(scope(), &[b"ab", b"c"]),
            Key::derive(scope(), &[b"a", b"bc"])
        );
    }

    #[test]
    fn a_scope_of_parts_has_the_same_bytes_in_every_version() {
        let long = [b'x'; 120];
        let expected = [&b"0:7:tenant-120:"[..], &long].concat();
        assert_eq!(Scope::of_parts(&[b"", b"tenant-", &long]).as_bytes(), expected);
    }

    #[test]
    fn items_and_children_are_all_different_and_stable() {
        let key = Key::new(Scope::new("s").unwrap(), "batch-1").unwrap();
        let keys = [
            key.item(0),
            key.item(1),
            key.item(256),
            key.child("item"),
            key.child("0"),
        ];
        for (n, one) in keys.iter().enumerate() {
            assert!(keys[n + 1..].iter().all(|other| other != one), "{n}");
        }
        let by_hand = derive(&[b"s", b"batch-1", b"item", &[0, 0, 0, 0, 0, 0, 1, 0]]);
        assert_eq!(key.item(256).id(), by_hand);
    }

    /// Other languages must compute the same value: this vector is the contract.
    #[test]
    fn derived_id_is_stable_over_versions() {
        assert_eq!(
            hex(&derive(&[b"order", b"7"])),
            hex(&Sha256::digest(b"\0\0\0\0\0\0\0\x05order\0\0\0\0\0\0\0\x017"))
        );
    }
}
