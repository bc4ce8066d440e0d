//! Fingerprints: a versioned hash of what was asked, so that a key reused for something else is noticed.

use sha2::{Digest, Sha256};

use crate::key::hex;

/// The version written today. A record is compared in the version it was written in.
pub const FINGERPRINT_VERSION: u8 = 1;

/// A versioned 256-bit hash of a request. Same key with another fingerprint is a mismatch.
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

    /// Starts a fingerprint of the current version.
    #[must_use]
    pub fn builder() -> FingerprintBuilder {
        FingerprintBuilder(Sha256::new())
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
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fingerprint(v{} {}…)", self.version, hex(&self.hash[..4]))
    }
}

/// Collects the parts of a fingerprint, each length-prefixed.
#[derive(Debug, Clone)]
pub struct FingerprintBuilder(Sha256);

impl FingerprintBuilder {
    /// Adds one part.
    #[must_use]
    pub fn part(mut self, bytes: &[u8]) -> Self {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
        self
    }

    /// The fingerprint over the parts so far.
    #[must_use]
    pub fn finish(self) -> Fingerprint {
        Fingerprint {
            version: FINGERPRINT_VERSION,
            hash: self.0.finalize().into(),
        }
    }
}
