//! Idempotency keys for any async function.
