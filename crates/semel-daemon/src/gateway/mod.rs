//! The gateway: Idempotency-Key in front of an upstream that knows nothing of it.
