//! The headers that the layer reads and writes: names of [`semel_core::wire`], ready for a header map.

use http::header::HeaderName;
use semel_core::wire;

/// The client's key: a Structured Field String or a bare token.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static(wire::IDEMPOTENCY_KEY);
/// `true` on an answer that was stored earlier.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static(wire::IDEMPOTENT_REPLAYED);
/// What is known about the operation: see [`OutcomeWord`](crate::policy::OutcomeWord).
pub const SEMEL_OUTCOME: HeaderName = HeaderName::from_static(wire::OUTCOME);
/// The strength in force: see [`Guarantee`](crate::Guarantee).
pub const SEMEL_GUARANTEE: HeaderName = HeaderName::from_static(wire::GUARANTEE);
/// Until when a retry gets the same answer: RFC 3339, UTC.
pub const SEMEL_RETAINED_UNTIL: HeaderName = HeaderName::from_static(wire::RETAINED_UNTIL);
/// Set by a handler whose answer must not be stored; a retry is told "done, answer not kept". Never sent on.
pub const SEMEL_NO_STORE: HeaderName = HeaderName::from_static(wire::NO_STORE);
/// The claim's fencing token, for an upstream.
pub const SEMEL_TOKEN: HeaderName = HeaderName::from_static(wire::TOKEN);
/// Which attempt this is, from 1, for an upstream.
pub const SEMEL_ATTEMPT: HeaderName = HeaderName::from_static(wire::ATTEMPT);
/// What a gateway sends and an inner Semel sends back with its own word on the key.
pub const SEMEL_HOP: HeaderName = HeaderName::from_static(wire::HOP);
/// Milliseconds that the caller will wait, from when it sent the request.
pub const SEMEL_DEADLINE_MS: HeaderName = HeaderName::from_static(wire::DEADLINE_MS);
