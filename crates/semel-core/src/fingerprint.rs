//! Fingerprints: a versioned hash of what was asked, so that a key reused for something else is noticed.

use sha2::{Digest, Sha256};

use crate::key::hex;

/// The version of [`Fingerprint::builder`]. A record is compared in the version it was written in; whoever has a recipe of
/// its own (the HTTP layer has several) gives it a number of its own by [`Fingerprint::builder_of`].
pub const FINGERPRINT_VERSION: u8 = 1;

/// A versioned 256-bit hash of a request. Same key with another fingerprint is a mismatch.
///
/// A recipe may give the last bytes to tags of the request's parts ([`FingerprintBuilder::tag`]): they say which part
/// differs, and the hash has 160 bits.
///
/// ```
/// use semel_core::Fingerprint;
/// let a = Fingerprint::builder().part(b"POST").part(b"/orders").part(b"{}").finish();
/// let b = Fingerprint::builder().part(b"POST").part(b"/order").part(b"s{}").finish();
/// assert_ne!(a, b);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    version: u8,
    hash: [u8; 32],
}

impl Fingerprint {
    /// Bytes of the stored form: the version, then the hash.
    pub const BYTES: usize = 33;

    /// Tags at most; more are left out.
    pub const TAGS_MAX: usize = 12;

    /// Starts a fingerprint of the current version.
    #[must_use]
    pub fn builder() -> FingerprintBuilder {
        Self::builder_of(FINGERPRINT_VERSION)
    }

    /// Starts a fingerprint by a recipe of this number.
    #[must_use]
    pub fn builder_of(version: u8) -> FingerprintBuilder {
        FingerprintBuilder {
            version,
            hash: Sha256::new(),
            gathered: Vec::with_capacity(GATHERED_MAX),
            tags: [0; Self::TAGS_MAX],
            count: 0,
        }
    }

    /// The fingerprint of one byte string.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self::builder().part(bytes).finish()
    }

    /// The stored form.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = self.version;
        bytes[1..].copy_from_slice(&self.hash);
        bytes
    }

    /// Reads the stored form; `None` when it is not 33 bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (version, hash) = bytes.split_first()?;
        Some(Self {
            version: *version,
            hash: hash.try_into().ok()?,
        })
    }

    /// The version of the hash's recipe.
    #[must_use]
    pub const fn version(&self) -> u8 {
        self.version
    }

    /// The tags, in the recipe's order, where its recipe has tags; 0 where there is none.
    #[must_use]
    pub fn tags(&self) -> &[u8] {
        &self.hash[32 - Self::TAGS_MAX..]
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fingerprint(v{} {}…)", self.version, hex(&self.hash[..4]))
    }
}

/// Bytes that go into the hash at once; what is larger goes by itself.
const GATHERED_MAX: usize = 384;

/// Collects the parts of a fingerprint, each length-prefixed.
#[derive(Clone)]
pub struct FingerprintBuilder {
    version: u8,
    hash: Sha256,
    /// Parts that are not hashed yet: small ones go into the hash together.
    gathered: Vec<u8>,
    tags: [u8; Fingerprint::TAGS_MAX],
    count: usize,
}

/// Never the parts: they are what a caller sent.
impl std::fmt::Debug for FingerprintBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FingerprintBuilder")
            .field("version", &self.version)
            .field("tags", &self.count)
            .finish_non_exhaustive()
    }
}

impl FingerprintBuilder {
    /// Adds one part.
    #[must_use]
    #[inline]
    pub fn part(mut self, bytes: &[u8]) -> Self {
        self.add(bytes);
        self
    }

    /// The same, in place.
    pub fn add(&mut self, bytes: &[u8]) {
        let length = (bytes.len() as u64).to_be_bytes();
        if self.gathered.len() + length.len() + bytes.len() > GATHERED_MAX {
            self.hash.update(&self.gathered);
            self.gathered.clear();
        }
        self.gathered.extend_from_slice(&length);
        if self.gathered.len() + bytes.len() <= GATHERED_MAX {
            self.gathered.extend_from_slice(bytes);
        } else {
            self.hash.update(&self.gathered);
            self.gathered.clear();
            self.hash.update(bytes);
        }
    }

    /// Adds a tag, by which a reader of two fingerprints can say that this part differs. It decides nothing: two parts may
    /// have the same tag. Left out when there are [`Fingerprint::TAGS_MAX`] already.
    #[must_use]
    #[inline]
    pub const fn tag(mut self, tag: u8) -> Self {
        self.add_tag(tag);
        self
    }

    /// The same, in place.
    pub const fn add_tag(&mut self, tag: u8) {
        if self.count < Fingerprint::TAGS_MAX {
            self.tags[self.count] = tag;
            self.count += 1;
        }
    }

    /// The fingerprint over the parts so far. Tags, where there are any, take the place of the hash's last bytes.
    #[must_use]
    pub fn finish(mut self) -> Fingerprint {
        self.hash.update(&self.gathered);
        let mut hash: [u8; 32] = self.hash.finalize().into();
        if self.count > 0 {
            hash[32 - Fingerprint::TAGS_MAX..].copy_from_slice(&self.tags);
        }
        Fingerprint {
            version: self.version,
            hash,
        }
    }
}

/// A tag of these bytes, never 0: FNV-1a of 64 bits (<http://www.isthe.com/chongo/tech/comp/fnv/>), folded.
#[must_use]
pub fn tag(parts: &[&[u8]]) -> u8 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for part in parts {
        for byte in part.iter().chain(std::iter::once(&0xff)) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    // 1 to 255, evenly enough.
    (hash % 255) as u8 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_take_the_last_bytes_and_the_stored_form_comes_back() {
        let plain = Fingerprint::of(b"a");
        assert_eq!(Fingerprint::from_bytes(&plain.to_bytes()), Some(plain));
        let tagged = (1..=20).fold(Fingerprint::builder_of(9).part(b"a"), |all, n| all.tag(n));
        let tagged = tagged.finish();
        assert_eq!(tagged.tags(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(tagged.to_bytes()[1..21], plain.to_bytes()[1..21]);
        assert_eq!(
            (tagged.version(), Fingerprint::from_bytes(&tagged.to_bytes())),
            (9, Some(tagged))
        );
        let one = Fingerprint::builder_of(9).part(b"a").tag(7).finish();
        assert_eq!(one.tags(), [7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Fingerprint::from_bytes(&[1; 34]), None);
    }

    #[test]
    fn parts_of_any_size_are_hashed_one_after_the_other() {
        for sizes in [
            &[0, 1][..],
            &[GATHERED_MAX - 8, 1],
            &[GATHERED_MAX - 7, 1],
            &[200, 200, 200],
            &[5_000, 3, 5_000],
        ] {
            let parts: Vec<Vec<u8>> = sizes.iter().map(|size| vec![7; *size]).collect();
            let built = parts
                .iter()
                .fold(Fingerprint::builder(), |all, part| all.part(part));
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            assert_eq!(
                built.finish().to_bytes()[1..],
                crate::key::derive(&parts),
                "{sizes:?}"
            );
        }
    }

    /// Stored tags must be met again by later builds: these are the contract.
    #[test]
    fn tags_are_stable_over_versions_and_parts_do_not_run_together() {
        assert_eq!(
            [tag(&[]), tag(&[b"POST"]), tag(&[b"a", b"bc"])],
            [KNOWN[0], KNOWN[1], KNOWN[2]]
        );
        assert_ne!(tag(&[b"ab", b"c"]), tag(&[b"a", b"bc"]));
    }

    const KNOWN: [u8; 3] = [48, 53, 68];
}
