//! Signatures of webhooks, as Standard Webhooks has them: who sent it, that the bytes are whole, and when.
//!
//! Signed is `id.timestamp.body`, with HMAC-SHA256 by a secret that both sides hold. While a secret is being replaced the
//! sender signs with both, the receiver knows either. **Not signed** are all other headers, CloudEvents' attributes in
//! binary mode among them: where they must be trusted, send structured mode, which has them in the body.
//!
//! Source: <https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::host::Timestamp;

/// Bytes of a secret.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// How a secret begins in its written form.
const SECRET_PREFIX: &str = "whsec_";
/// How a signature by HMAC-SHA256 begins.
const VERSION: &str = "v1,";
/// Signatures of one delivery that are looked at; a sender has as many as it has secrets.
const SIGNATURES_MAX: usize = 16;
/// How far a delivery's time may be from the receiver's, in seconds: 5 minutes, as the specification has it.
pub const TOLERANCE_S: u64 = 300;

/// A secret that both sides hold. Never shown.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// A text that is no secret. It does not show the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a webhook secret is whsec_ and the base64 of 24 to 64 random bytes; make one with: echo whsec_$(openssl rand -base64 \
     32)"
)]
pub struct SecretError;

impl Secret {
    /// Reads `whsec_BASE64`.
    ///
    /// # Errors
    /// No such text, or fewer than 24 or more than 64 bytes.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let encoded = text.strip_prefix(SECRET_PREFIX).ok_or(SecretError)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| SecretError)?;
        if SECRET_BYTES.contains(&bytes.len()) {
            Ok(Self(bytes))
        } else {
            Err(SecretError)
        }
    }

    fn mac(&self, id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
        // HMAC takes a key of any length; the other arm is never reached.
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).unwrap_or_else(|_| Hmac::new(&Default::default()));
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        mac
    }
}

/// The value of `webhook-timestamp`: whole seconds since 1970.
#[must_use]
pub fn timestamp(now: Timestamp) -> String {
    now.0.div_euclid(1_000_000).to_string()
}

/// The value of `webhook-signature`: one signature for each secret, separated by spaces.
///
/// `id` must not contain a dot, or two deliveries could be signed alike; Semel's are UUIDs.
#[must_use]
pub fn sign(secrets: &[Secret], id: &str, timestamp: &str, body: &[u8]) -> String {
    let mut text = String::new();
    for secret in secrets {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(VERSION);
        let code = secret.mac(id, timestamp, body).finalize().into_bytes();
        STANDARD.encode_string(code, &mut text);
    }
    text
}

/// Why a delivery is not taken for the sender's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// `webhook-timestamp` is no number of seconds.
    #[error("webhook-timestamp is no number of seconds")]
    Timestamp,
    /// Older than allowed: it may be an old delivery that somebody sends again, or one of the clocks is wrong.
    #[error("webhook-timestamp is {0} seconds old, which is more than allowed; look at the clocks")]
    Old(u64),
    /// Further in the future than allowed: one of the clocks is wrong.
    #[error("webhook-timestamp is {0} seconds in the future, which is more than allowed; look at the clocks")]
    Early(u64),
    /// No signature is by one of the secrets over these bytes.
    #[error(
        "no signature in webhook-signature is by a secret that is known here, over this id, time and body"
    )]
    NoMatch,
}

/// Whether one of the signatures is by one of the secrets, and the delivery's time is near `now`. Signatures are compared in
/// a time that does not depend on where they differ; those of other versions than `v1` are passed over.
///
/// # Errors
/// See [`SignatureError`]. Sending the same again may help after a wrong clock was mended; nothing else does.
pub fn verify(
    secrets: &[Secret],
    id: &str,
    timestamp: &str,
    signatures: &str,
    body: &[u8],
    now: Timestamp,
    tolerance_s: u64,
) -> Result<(), SignatureError> {
    // Digits only: a sign or a space would be another text for the same time.
    if timestamp.is_empty() || !timestamp.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(SignatureError::Timestamp);
    }
    let sent: i64 = timestamp.parse().map_err(|_| SignatureError::Timestamp)?;
    let age = now.0.div_euclid(1_000_000).saturating_sub(sent);
    if age.unsigned_abs() > tolerance_s {
        return Err(if age > 0 {
            SignatureError::Old(age.unsigned_abs())
        } else {
            SignatureError::Early(age.unsigned_abs())
        });
    }
    let signatures: Vec<Vec<u8>> = signatures
        .split(' ')
        .filter_map(|signature| STANDARD.decode(signature.strip_prefix(VERSION)?).ok())
        .take(SIGNATURES_MAX)
        .collect();
    let matches = secrets.iter().any(|secret| {
        let mac = secret.mac(id, timestamp, body);
        signatures
            .iter()
            .any(|signature| mac.clone().verify_slice(signature).is_ok())
    });
    if matches {
        Ok(())
    } else {
        Err(SignatureError::NoMatch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The example of the specification's own libraries.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const TIME: &str = "1614265330";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    const NOW: Timestamp = Timestamp(1_614_265_330_000_000);

    fn secret(text: &str) -> Secret {
        Secret::parse(text).unwrap()
    }

    fn other() -> Secret {
        secret("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX")
    }

    fn verified(signatures: &str, timestamp: &str, body: &[u8], at: Timestamp) -> Result<(), SignatureError> {
        verify(
            &[other(), secret(SECRET)],
            ID,
            timestamp,
            signatures,
            body,
            at,
            TOLERANCE_S,
        )
    }

    #[test]
    fn the_known_vector_is_met() {
        assert_eq!(sign(&[secret(SECRET)], ID, TIME, BODY), SIGNATURE);
        assert_eq!(timestamp(NOW), TIME);
        assert_eq!(verified(SIGNATURE, TIME, BODY, NOW), Ok(()));
    }

    #[test]
    fn while_a_secret_is_replaced_either_is_enough() {
        let both = sign(&[other(), secret(SECRET)], ID, TIME, BODY);
        assert_eq!(both.split(' ').count(), 2);
        for known in [other(), secret(SECRET)] {
            let result = verify(&[known], ID, TIME, &both, BODY, NOW, TOLERANCE_S);
            assert_eq!(result, Ok(()));
        }
        assert_eq!(verified(&format!("v1a,xyz {SIGNATURE}"), TIME, BODY, NOW), Ok(()));
    }

    #[test]
    fn what_was_changed_or_is_from_somebody_else_is_refused() {
        use SignatureError::{Early, NoMatch, Old, Timestamp as Time};
        let stranger = sign(
            &[secret("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")],
            ID,
            TIME,
            BODY,
        );
        for (signatures, time, body, expected) in [
            (SIGNATURE, TIME, &b"{\"test\": 2432232315}"[..], NoMatch),
            (SIGNATURE, "1614265331", BODY, NoMatch),
            (stranger.as_str(), TIME, BODY, NoMatch),
            ("", TIME, BODY, NoMatch),
            ("v1,", TIME, BODY, NoMatch),
            (&SIGNATURE[3..], TIME, BODY, NoMatch),
            (&SIGNATURE[..SIGNATURE.len() - 1], TIME, BODY, NoMatch),
            (SIGNATURE, "", BODY, Time),
            (SIGNATURE, "+1614265330", BODY, Time),
            (SIGNATURE, "99999999999999999999", BODY, Time),
            (SIGNATURE, "1614265029", BODY, Old(301)),
            (SIGNATURE, "1614265631", BODY, Early(301)),
        ] {
            assert_eq!(
                verified(signatures, time, body, NOW),
                Err(expected),
                "{signatures} {time}"
            );
        }
        assert_eq!(verified(SIGNATURE, TIME, BODY, NOW.plus_ms(300_000)), Ok(()));
        let result = verify(
            &[secret(SECRET)],
            "other",
            TIME,
            SIGNATURE,
            BODY,
            NOW,
            TOLERANCE_S,
        );
        assert_eq!(result, Err(NoMatch));
    }

    #[test]
    fn a_text_that_is_no_secret_is_refused_and_not_shown() {
        for text in [
            "",
            "whsec_",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_c2hvcnQ=",
            "whsec_%%%",
        ] {
            let error = Secret::parse(text).unwrap_err().to_string();
            assert!(text.len() < 7 || !error.contains(text), "{error}");
        }
        assert_eq!(format!("{:?}", secret(SECRET)), "Secret");
        let long = format!("whsec_{}", STANDARD.encode([7; 65]));
        assert!(Secret::parse(&long).is_err());
    }
}
