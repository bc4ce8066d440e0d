//! Ids given by the server.

use std::fmt;

use hmac::{Hmac, Mac as _};
use semel_core::issued::IssuedIds;
use semel_core::key::{derive, hex};
use semel_core::limits::{self, LimitExceeded};
use semel_core::{Key, Scope, Timestamp};
use sha2::Sha256;

/// Bytes of a secret at least.
pub const SECRET_BYTES_MIN: usize = 32;
/// Secrets of an issuer: 1 to this many.
pub const SECRETS_MAX: usize = 16;

/// The form of ids.
const VERSION: &str = "s1";

/// What ids are signed with. Keep it outside of the code; all processes that issue or check ids share it.
#[derive(Clone)]
pub struct Secret {
    name: String,
    bytes: Vec<u8>,
}

impl Secret {
    /// From at least [`SECRET_BYTES_MIN`] random bytes.
    ///
    /// # Errors
    /// Fewer.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, LimitExceeded> {
        let bytes = bytes.as_ref();
        let help = "make one of random bytes, such as by: openssl rand -hex 32";
        let (actual, min) = (bytes.len() as u64, SECRET_BYTES_MIN as u64);
        limits::check("secret", "bytes", actual, min, u64::MAX, help)?;
        Ok(Self {
            name: hex(&derive(&[b"semel secret", bytes])[..4]),
            bytes: bytes.to_vec(),
        })
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        // HMAC takes keys of any length: this arm is never taken.
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.bytes).unwrap_or_else(|_| Hmac::new(&Default::default()));
        for part in parts {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac
    }

    /// Recognises whom an id was issued to, without naming them in it.
    fn owner(&self, scope: &Scope, principal: &[u8]) -> Vec<u8> {
        let mac = self.mac(&[b"owner", scope.as_bytes(), principal]);
        mac.finalize().into_bytes()[..8].to_vec()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.name)
    }
}

/// Why an id is not taken. Nothing was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IssuedError {
    /// It has not the form of an issued id.
    #[error("SEM0114: this is not an id that a server issued; ask for one first")]
    Malformed,
    /// It was signed with a secret that this issuer does not have (any more).
    #[error(
        "SEM0114: the id was signed with a secret that is not known here (any more); if it was sent before, look what came of it, else ask for a new one"
    )]
    UnknownSecret,
    /// It was changed, or made by somebody without the secret.
    #[error(
        "SEM0114: the id's signature is wrong: it was changed on its way or made up; open the form again as the same user"
    )]
    Forged,
    /// It is genuine and belongs to another principal or scope.
    #[error(
        "SEM0114: the id was issued to somebody else or for something else; open the form again as the same user"
    )]
    NotYours,
    /// It is genuine and too old.
    #[error("SEM0115: the id was good until {}; ask for a new one, unless it was used already", until.rfc3339())]
    Expired {
        /// The end of its time.
        until: Timestamp,
    },
}

impl IssuedError {
    /// The page under `docs/errors/` that explains it.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Malformed | Self::UnknownSecret | Self::Forged | Self::NotYours => "SEM0114",
            Self::Expired { .. } => "SEM0115",
        }
    }
}

/// Gives out ids and recognises them again: the answer to a form that a browser sends twice. Nothing is stored: an id
/// carries its end and a signature (HMAC-SHA256) over scope, principal, end and 128 random bits. Pure: time and
/// randomness are handed in.
///
/// # Guarantees
/// An id that [`check`](Self::check) takes was issued by a holder of one of the secrets, for this scope and principal, and
/// its time is not over. It names neither of them. Nobody can guess one.
///
/// # Not guaranteed
/// That it is used once: that is what the key made of it is for. An expired id that was used is still answered from its
/// record if you look the key up before you check the time: use [`check_at`](Self::check_at) with the moment of issue.
///
/// # Changing secrets
/// The newest signs, all are recognised: put a new one in front. Drop the old one when its last ids have expired and their
/// records have ended, which is `retention_ms` and `tombstone_ms` later: until then a request that comes again is answered.
///
/// ```
/// use semel_core::{Clock as _, Scope, SystemClock, host::random_16};
/// use semel_keys::{Issuer, Secret};
///
/// let issuer = Issuer::new([Secret::new([7; 32])?])?;
/// let (scope, user) = (Scope::new("orders")?, b"user-4");
///
/// // GET /orders/new: the form gets a hidden field.
/// let field = issuer.issue(&scope, user, SystemClock.now().plus_ms(3_600_000), random_16());
///
/// // POST /orders, perhaps twice: both name the same key, and nobody else's form does.
/// let key = issuer.check(field.as_bytes(), &scope, user, SystemClock.now())?;
/// assert_eq!(key.id(), field.as_bytes());
/// assert!(issuer.check(field.as_bytes(), &scope, b"user-5", SystemClock.now()).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Issuer(Vec<Secret>);

impl Issuer {
    /// The newest secret first.
    ///
    /// # Errors
    /// None, or more than [`SECRETS_MAX`].
    pub fn new(secrets: impl IntoIterator<Item = Secret>) -> Result<Self, LimitExceeded> {
        let secrets: Vec<Secret> = secrets.into_iter().collect();
        let (actual, max) = (secrets.len() as u64, SECRETS_MAX as u64);
        limits::check(
            "secrets",
            "secrets",
            actual,
            1,
            max,
            "drop those whose last ids have expired and whose records have ended",
        )?;
        Ok(Self(secrets))
    }

    /// A new id, good until that moment: printable ASCII, 119 bytes. `random`: 128 fresh random bits
    /// ([`random_16`](semel_core::host::random_16)).
    #[must_use]
    pub fn issue(&self, scope: &Scope, principal: &[u8], until: Timestamp, random: [u8; 16]) -> String {
        let Some(secret) = self.0.first() else {
            return String::new();
        };
        let (until, owner) = (hex(&until.0.to_be_bytes()), hex(&secret.owner(scope, principal)));
        let body = format!("{VERSION}.{}.{until}.{owner}.{}", secret.name, hex(&random));
        let signature = secret.mac(&[b"id", body.as_bytes()]).finalize().into_bytes();
        format!("{body}.{}", hex(&signature[..SIGNATURE_BYTES]))
    }

    /// A new id for a scope that belongs to one principal, as those of the HTTP layer and of gateways do; they recognise it
    /// by [`IssuedIds`]. Else as [`issue`](Self::issue).
    #[must_use]
    pub fn issue_in(&self, scope: &Scope, until: Timestamp, random: [u8; 16]) -> String {
        self.issue(scope, b"", until, random)
    }

    /// Whether this has the form of an issued id, whoever made it: such an id means something only together with its
    /// principal, so what claims it without one is refused.
    #[must_use]
    pub fn has_form(id: &[u8]) -> bool {
        let hex_of =
            |part: &str, length| part.len() == length && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let Ok(text) = std::str::from_utf8(id) else {
            return false;
        };
        let parts: Vec<&str> = text.split('.').collect();
        let [VERSION, name, until, owner, random, signature] = parts[..] else {
            return false;
        };
        hex_of(name, 8)
            && hex_of(until, 16)
            && hex_of(owner, 16)
            && hex_of(random, 32)
            && hex_of(signature, 2 * SIGNATURE_BYTES)
    }

    /// The key of an id, if it was issued for this scope and principal and is still good at `now`.
    ///
    /// # Errors
    /// [`IssuedError`].
    pub fn check(
        &self,
        id: &[u8],
        scope: &Scope,
        principal: &[u8],
        now: Timestamp,
    ) -> Result<Key, IssuedError> {
        let (key, until) = self.check_at(id, scope, principal)?;
        if until <= now {
            return Err(IssuedError::Expired { until });
        }
        Ok(key)
    }

    /// The key of an id that was issued for this scope and principal, and until when it is good, which the caller judges.
    ///
    /// # Errors
    /// [`IssuedError`], but never `Expired`.
    pub fn check_at(
        &self,
        id: &[u8],
        scope: &Scope,
        principal: &[u8],
    ) -> Result<(Key, Timestamp), IssuedError> {
        let text = std::str::from_utf8(id).map_err(|_| IssuedError::Malformed)?;
        let (body, signature) = text.rsplit_once('.').ok_or(IssuedError::Malformed)?;
        let parts: Vec<&str> = body.split('.').collect();
        let [VERSION, name, until, owner, random] = parts[..] else {
            return Err(IssuedError::Malformed);
        };
        let signature = bytes::<SIGNATURE_BYTES>(signature)?;
        let until = Timestamp(i64::from_be_bytes(bytes(until)?));
        let (owner, _) = (bytes::<8>(owner)?, bytes::<16>(random)?);
        let secret = self.0.iter().find(|secret| secret.name == name);
        let secret = secret.ok_or(IssuedError::UnknownSecret)?;
        // Both comparisons take the same time whatever differs.
        let mac = secret.mac(&[b"id", body.as_bytes()]);
        mac.verify_truncated_left(&signature)
            .map_err(|_| IssuedError::Forged)?;
        let mine = secret.mac(&[b"owner", scope.as_bytes(), principal]);
        mine.verify_truncated_left(&owner)
            .map_err(|_| IssuedError::NotYours)?;
        let key = Key::new(scope.clone(), id).map_err(|_| IssuedError::Malformed)?;
        Ok((key, until))
    }
}

impl IssuedIds for Issuer {
    fn has_form(&self, id: &[u8]) -> bool {
        Self::has_form(id)
    }

    fn good_until(&self, id: &[u8], scope: &Scope) -> Result<Timestamp, String> {
        let checked = self.check_at(id, scope, b"");
        checked.map(|(_, until)| until).map_err(|error| error.to_string())
    }
}

/// Bytes of a signature in an id.
const SIGNATURE_BYTES: usize = 20;

/// Lower-case hexadecimal of exactly so many bytes: an id has one form only.
fn bytes<const N: usize>(text: &str) -> Result<[u8; N], IssuedError> {
    let mut bytes = [0; N];
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return Err(IssuedError::Malformed);
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        for digit in pair {
            let value = match digit {
                b'0'..=b'9' => digit - b'0',
                b'a'..=b'f' => digit - b'a' + 10,
                _ => return Err(IssuedError::Malformed),
            };
            *byte = *byte << 4 | value;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_800_000_000_000_000);
    const UNTIL: Timestamp = Timestamp(1_800_000_060_000_000);

    fn secret(byte: u8) -> Secret {
        Secret::new([byte; 32]).unwrap()
    }

    fn scope(name: &str) -> Scope {
        Scope::new(name).unwrap()
    }

    fn issued(issuer: &Issuer) -> String {
        issuer.issue(&scope("orders"), b"ada", UNTIL, [9; 16])
    }

    #[test]
    fn an_id_is_good_for_its_owner_until_its_end() {
        let issuer = Issuer::new([secret(1)]).unwrap();
        let id = issued(&issuer);
        assert_eq!(id.len(), 119);
        let check = |scope_name, principal: &[u8], now| {
            issuer.check(id.as_bytes(), &scope(scope_name), principal, now)
        };
        let key = check("orders", b"ada", NOW).unwrap();
        assert_eq!((key.scope(), key.id()), (&scope("orders"), id.as_bytes()));
        assert_eq!(check("orders", b"bob", NOW), Err(IssuedError::NotYours));
        assert_eq!(check("invoices", b"ada", NOW), Err(IssuedError::NotYours));
        let late = check("orders", b"ada", UNTIL).unwrap_err();
        assert_eq!(late, IssuedError::Expired { until: UNTIL });
        assert!(
            late.to_string()
                .starts_with("SEM0115: the id was good until 2027-"),
            "{late}"
        );
        assert!(!id.contains("ada"), "it names nobody");
    }

    #[test]
    fn its_form_is_known_without_a_secret() {
        let issuer = Issuer::new([secret(1)]).unwrap();
        let id = issued(&issuer);
        assert!(Issuer::has_form(id.as_bytes()));
        for other in [
            "order-7",
            "s1.a.b.c.d.e",
            "",
            &id[1..],
            &id[..118],
            &id.replace("s1.", "s2."),
            "8e03978e-40d5-43dd-bc93-6894a57f9324",
        ] {
            assert!(!Issuer::has_form(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn an_id_of_a_scope_is_good_in_that_scope_alone() {
        let issuer = Issuer::new([secret(1)]).unwrap();
        let id = issuer.issue_in(&scope("orders/ada"), UNTIL, [9; 16]);
        assert_eq!(issuer.good_until(id.as_bytes(), &scope("orders/ada")), Ok(UNTIL));
        let other = issuer.good_until(id.as_bytes(), &scope("orders/bob"));
        assert!(other.unwrap_err().contains("SEM0114"));
        let of_a_principal = issuer.good_until(issued(&issuer).as_bytes(), &scope("orders"));
        assert!(of_a_principal.is_err());
    }

    #[test]
    fn scope_and_principal_cannot_be_shifted_into_each_other() {
        let issuer = Issuer::new([secret(1)]).unwrap();
        let id = issuer.issue(&scope("ab"), b"c", UNTIL, [9; 16]);
        let shifted = issuer.check(id.as_bytes(), &scope("a"), b"bc", NOW);
        assert_eq!(shifted, Err(IssuedError::NotYours));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let issuer = Issuer::new([secret(1)]).unwrap();
        let id = issued(&issuer).into_bytes();
        for n in 0..id.len() {
            for bit in [1, 2, 4, 0x20] {
                let mut changed = id.clone();
                changed[n] ^= bit;
                let error = issuer.check(&changed, &scope("orders"), b"ada", NOW).unwrap_err();
                assert!(!matches!(error, IssuedError::Expired { .. }), "byte {n}: {error}");
            }
        }
        for malformed in [&b""[..], b"order-7", b"s1.....", &id[..118], &[0xff; 119]] {
            let error = issuer.check(malformed, &scope("orders"), b"ada", NOW);
            assert_eq!(error, Err(IssuedError::Malformed));
        }
    }

    #[test]
    fn the_newest_secret_signs_and_older_ones_are_recognised_until_dropped() {
        let old = Issuer::new([secret(1)]).unwrap();
        let both = Issuer::new([secret(2), secret(1)]).unwrap();
        let new = Issuer::new([secret(2)]).unwrap();
        let check = |issuer: &Issuer, id: &str| issuer.check(id.as_bytes(), &scope("orders"), b"ada", NOW);
        assert!(check(&both, &issued(&old)).is_ok());
        assert!(check(&new, &issued(&both)).is_ok());
        assert_eq!(check(&new, &issued(&old)), Err(IssuedError::UnknownSecret));
        // Somebody else's secret under our secret's name.
        let forger = Secret {
            name: secret(2).name,
            ..secret(3)
        };
        let forged = issued(&Issuer(vec![forger]));
        assert_eq!(check(&new, &forged), Err(IssuedError::Forged));
    }

    #[test]
    fn short_secrets_and_no_secret_are_refused() {
        let short = Secret::new([1; 31]).unwrap_err().to_string();
        assert!(
            short.contains("secret: 31 bytes") && short.contains("openssl rand"),
            "{short}"
        );
        assert!(Issuer::new([]).is_err());
        assert_eq!(
            format!("{:?}", secret(1)).len(),
            "Secret(01234567)".len(),
            "never shown"
        );
    }
}
