//! Webhook sink: every event is one HTTP POST, in CloudEvents 1.0 binary mode, repeated until the receiver has it.
//!
//! # The request
//! `POST url` (or `url/{topic}`), the body is the event's data byte for byte.
//!
//! | header | value |
//! | --- | --- |
//! | `idempotency-key` | `"<event id>"`, a structured-field string: the same on every attempt |
//! | `ce-specversion`, `ce-id`, `ce-source`, `ce-type`, `ce-time` | CloudEvents |
//! | `ce-partitionkey` | the ordering key, where there is one |
//! | `content-type` | the data's media type, where there is one |
//! | `traceparent` | the event's trace context, where there is one |
//! | `semel-topic` | the topic, as it was given |
//! | `semel-h-<name>` | one per header of the event, in order; repeats stay. HTTP folds the name to lower case |
//! | `semel-tombstone: 1` | the event has no data, which is not the same as empty data |
//!
//! In `ce-*` and `semel-h-*` values every byte outside printable ASCII, and space, `"` and `%`, is percent-encoded (the
//! rule of the CloudEvents HTTP binding); so decoding gives the bytes back.
//!
//! # What answers mean
//! | answer | class |
//! | --- | --- |
//! | 2xx | the receiver has it, however long the body is |
//! | 408, 425, 429, 5xx, none, a broken one; 409 with `semel-outcome: running` | away: again later, no attempt spent; `retry-after` in seconds is honoured |
//! | 3xx (never followed), 401, 403, 404, 405, 407, 410, 421 | destination: the stream pauses and says why |
//! | other 4xx | this message: an attempt is spent, then the poison policy |
//!
//! A body longer than [`WebhookConfig::response_bytes_max`] is not read to its end: the status alone counts.
//!
//! # Guarantees
//! Every attempt is the same request. One per ordering key at a time. A whole exchange ends within its deadline and
//! holds [`WebhookConfig::response_bytes_max`] bytes at most.
//!
//! # Not guaranteed
//! - That a receiver sees an event once: it drops keys it has seen (`semel-inbox` does).
//! - Who sent it: signatures (Standard Webhooks) are not built yet; use TLS and a header with a secret, see
//!   [`WebhookConfig::headers`]. Addresses in private networks are not refused: URLs come from the operator.

mod answer;
mod config;
mod request;
mod sink;

pub use config::WebhookConfig;
pub use sink::WebhookSink;
