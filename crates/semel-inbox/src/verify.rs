//! Who sent a delivery: signatures of Standard Webhooks.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use semel_core::signature::{self, Secret, SecretError, TOLERANCE_S};
use semel_core::{Clock, SystemClock, wire};

use crate::delivery::{Delivery, DeliveryError, text};

/// Takes only deliveries that were signed with a secret it knows, lately. Cheap to clone.
///
/// A signature covers the delivery's id, its time and its body. It does **not** cover other headers: the CloudEvents
/// attributes of binary mode (`ce-type`, `ce-source`, …) are as trustworthy as the connection. In structured mode they
/// stand in the body. `Idempotency-Key` must name the signed id, or whoever saw one delivery could send it again under
/// another name.
///
/// In axum services, `axum::Extension(verifier)` as a layer makes the extractor [`Delivery`] ask it; without axum call
/// [`Delivery::from_signed_parts`].
#[derive(Clone)]
pub struct Verifier {
    secrets: Arc<[Secret]>,
    tolerance_s: u64,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verifier")
            .field("secrets", &self.secrets.len())
            .field("tolerance_s", &self.tolerance_s)
            .finish_non_exhaustive()
    }
}

impl Verifier {
    /// Knows these secrets (`whsec_` and base64): one, or two while one is being replaced. With none it takes nothing.
    ///
    /// # Errors
    /// A text that is no secret.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Result<Self, SecretError> {
        let secrets: Result<Vec<_>, _> = secrets.into_iter().map(Secret::parse).collect();
        Ok(Self {
            secrets: secrets?.into(),
            tolerance_s: TOLERANCE_S,
            clock: Arc::new(SystemClock),
        })
    }

    /// How far a delivery's time may be from this clock's, in seconds. Default 300. A relay signs each attempt anew.
    #[must_use]
    pub const fn with_tolerance_s(mut self, tolerance_s: u64) -> Self {
        self.tolerance_s = tolerance_s;
        self
    }

    /// Another clock than the system's.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// The signed id.
    fn verify(&self, headers: &HeaderMap, body: &[u8]) -> Result<String, DeliveryError> {
        let one = |name: &'static str| {
            let missing = || DeliveryError::Signature {
                why: format!("the header {name} is missing"),
            };
            text(headers, name)?.ok_or_else(missing)
        };
        let id = one(wire::WEBHOOK_ID)?;
        signature::verify(
            &self.secrets,
            &id,
            &one(wire::WEBHOOK_TIMESTAMP)?,
            &one(wire::WEBHOOK_SIGNATURE)?,
            body,
            self.clock.now(),
            self.tolerance_s,
        )
        .map_err(|error| DeliveryError::Signature {
            why: error.to_string(),
        })?;
        Ok(id)
    }
}

impl Delivery {
    /// A delivery of these headers and this body, as it came, if its signature is one that the verifier takes.
    ///
    /// # Errors
    /// [`DeliveryError::Signature`], and all others of [`Delivery::from_parts`].
    pub fn from_signed_parts(
        headers: HeaderMap,
        body: Bytes,
        verifier: &Verifier,
    ) -> Result<Self, DeliveryError> {
        let signed = verifier.verify(&headers, &body)?;
        let delivery = Self::from_parts(headers, body)?;
        if delivery.id != signed {
            return Err(DeliveryError::Signature {
                why: "Idempotency-Key is not the webhook-id that was signed".to_owned(),
            });
        }
        Ok(delivery)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_core::Timestamp;
    use std::time::Duration;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;

    struct At(i64);

    impl Clock for At {
        fn now(&self) -> Timestamp {
            Timestamp(self.0 * 1_000_000)
        }

        fn monotonic(&self) -> Duration {
            Duration::ZERO
        }
    }

    fn verifier(now: i64) -> Verifier {
        Verifier::new([SECRET]).unwrap().with_clock(Arc::new(At(now)))
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
            ("webhook-timestamp", "1614265330"),
            ("webhook-signature", SIGNATURE),
        ]
        .iter()
        .chain(pairs)
        {
            headers.insert(*name, value.parse().unwrap());
        }
        headers
    }

    fn taken(headers: HeaderMap, now: i64) -> Result<Delivery, DeliveryError> {
        Delivery::from_signed_parts(headers, Bytes::from_static(BODY), &verifier(now))
    }

    #[test]
    fn a_signed_delivery_is_taken_once_its_time_is_near() {
        let delivery = taken(headers(&[]), 1_614_265_400).unwrap();
        assert_eq!(delivery.id, "msg_p5jXN8AQM9LWM0D4loKWxJek");
        let old = taken(headers(&[]), 1_614_265_330 + 301).unwrap_err().to_string();
        assert!(
            old.starts_with("SEM0609") && old.contains("301 seconds old"),
            "{old}"
        );
        let patient = verifier(1_614_265_330 + 301).with_tolerance_s(400);
        Delivery::from_signed_parts(headers(&[]), Bytes::from_static(BODY), &patient).unwrap();
    }

    #[test]
    fn without_a_signature_or_under_another_name_nothing_is_taken() {
        let now = 1_614_265_330;
        for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
            let mut headers = headers(&[]);
            headers.remove(name);
            let error = taken(headers, now).unwrap_err();
            assert!(
                matches!(&error, DeliveryError::Signature { why } if why.contains(name)),
                "{error}"
            );
        }
        let other = headers(&[("idempotency-key", "\"another\"")]);
        assert!(matches!(taken(other, now), Err(DeliveryError::Signature { .. })));
        let same = headers(&[("idempotency-key", "\"msg_p5jXN8AQM9LWM0D4loKWxJek\"")]);
        taken(same, now).unwrap();
        let nobody = Verifier::new([]).unwrap().with_clock(Arc::new(At(now)));
        let error = Delivery::from_signed_parts(headers(&[]), Bytes::from_static(BODY), &nobody);
        assert!(error.is_err());
    }
}
