//! Webhook sink: every event is one HTTP POST, in CloudEvents 1.0 binary mode, repeated until the receiver has it.
//!
//! # The request
//! `POST url` (or `url/{topic}`), the body is the event's data byte for byte.
//!
//! | header | value |
//! | --- | --- |
//! | `idempotency-key` | `"<event id>"`, a structured-field string: the same on every attempt |
//! | `webhook-id` | the event id, as Standard Webhooks has it |
//! | `webhook-timestamp` | when this attempt was made, in seconds |
//! | `webhook-signature` | where there are [`secrets`](WebhookConfig::secrets): `v1,…`, one for each, over id, time and body ([`signature`](semel_core::signature)) |
//! | `ce-specversion`, `ce-id`, `ce-source`, `ce-type`, `ce-time` | CloudEvents |
//! | `ce-partitionkey` | the ordering key, where there is one |
//! | `ce-sequence` | its place among the events of its key, where there is one |
//! | `content-type` | the data's media type, where there is one |
//! | `traceparent` | the event's trace context, where there is one |
//! | `semel-topic` | the topic, as it was given |
//! | `semel-h-<name>` | one per header of the event, in order; repeats stay. HTTP folds the name to lower case |
//! | `semel-tombstone: 1` | the event has no data, which is not the same as empty data |
//!
//! None of these may be among [`headers`](WebhookConfig::headers), nor those that HTTP itself needs (`connection`,
//! `content-length`, `transfer-encoding` and the like).
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
//! A body longer than [`WebhookConfig::response_bytes_max`] is not read to its end: the head alone counts. So it does where
//! the body is cut off or does not end in time.
//!
//! Errors name scheme, host and port and no more of the URL: path and query may be secrets.
//!
//! # The host
//! At most so many requests are on their way to one host, of all sinks that share
//! [`Destinations`](WebhookConfig::destinations). After so many failures in a row (no answer, 408, 429, 5xx) it is left alone
//! for a pause that grows, but for one try at its end; whatever else would have been sent counts as away meanwhile and
//! spends no attempt.
//!
//! With [`allow_private`](WebhookConfig::allow_private) off, addresses that are not public are not connected to: the class
//! is destination.
//!
//! # Guarantees
//! Every attempt is the same request, but for its time and signatures. One per ordering key at a time. A whole exchange
//! ends within its deadline and holds [`WebhookConfig::response_bytes_max`] bytes at most.
//!
//! # Not guaranteed
//! - That a receiver sees an event once: it drops keys it has seen (`semel-inbox` does).
//! - A signature covers id, time and body, no other header.

mod answer;
mod config;
mod request;
mod sink;

pub use config::WebhookConfig;
pub use semel_client::{DestinationPolicy, DestinationState, Destinations};
pub use sink::WebhookSink;
