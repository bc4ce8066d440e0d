//! NATS JetStream sink: every event is one message, acknowledged by the stream that keeps it.
//!
//! # The message
//! | place | value |
//! | --- | --- |
//! | subject | by [`NatsConfig::subject`]; by default the topic |
//! | payload | the data, byte for byte |
//! | `Nats-Msg-Id` | the event's id, or `source/id` where the source is not `/semel` (the source percent-encoded); the same on every attempt: inside its window the stream keeps the message once. Of a replay with `;replay=REPLAY` behind it: it arrives although the stream has had the event, once |
//! | `ce-specversion`, `ce-id`, `ce-source`, `ce-type`, `ce-time` | CloudEvents 1.0, binary mode |
//! | `ce-partitionkey` | the ordering key, where there is one |
//! | `ce-sequence` | its place among the events of its key, where there is one |
//! | `content-type`, `traceparent` | where there is one |
//! | `semel-topic` | the topic, as it was given |
//! | `semel-tombstone: 1` | the event has no data, which is not the same as empty data |
//! | every header of the event | under its own name, repeats in order; a replay has `semel-replay` |
//! | `semel-headers` | the names of the event's headers in order, separated by commas, where there are two or more |
//!
//! In values of `ce-*` and of the event's own headers every byte outside printable ASCII, and space, `"` and `%`, is
//! percent-encoded (the rule of the CloudEvents bindings for HTTP and NATS), so that decoding gives the bytes back. NATS keeps
//! the order of headers with one name alone; `semel-headers` has the order of all.
//!
//! # What answers mean
//! | answer | class |
//! | --- | --- |
//! | acknowledged, also as a duplicate | the stream has it |
//! | nobody answers for the subject, the stream is missing or sealed, JetStream is off, credentials refused, the user may not publish to the subject | destination |
//! | above `max_msg_size` of the stream or `max_payload` of the server | this message |
//! | the stream is full and discards new messages, no resources, connection lost, no answer | away |
//!
//! # Guarantees
//! - `Ok` means that the stream has acknowledged the message.
//! - Order: at most one row of a key is on its way. A stream that refuses one message takes the next one, so that nothing else
//!   keeps a key's order (decision 0040). Different keys go at once, as many rows as [`NatsConfig::in_flight_max`].
//!
//! # Not guaranteed
//! - That an acknowledged message survives a power cut of all servers: by default a stream is synced every two minutes. Keep
//!   rows for a while after their acknowledgement (`keep_ms` of a relay), or set `sync_interval` to `always`.
//! - A message once beyond the stream's window (`duplicate_window`, two minutes by default). A consumer drops ids it has seen
//!   (`semel-inbox` does).
//! - That two stores whose events all have the default source, and ids that can be equal, lose nothing in one stream: give them
//!   sources of their own.
//! - That a row which somebody sends again under its own id arrives: inside the window the stream takes it for a repeat. Wait
//!   longer, or replay with fresh ids.
//!
//! # Limits
//! [`NatsConfig::message_bytes_max`] for payload and headers together. Names of headers that begin with `nats-`, `ce-` or
//! `semel-` are refused, and `content-type` and `traceparent`; a topic with an empty part is no subject.

mod arrivals;
mod class;
mod config;
mod link;
mod record;
mod sink;

pub use arrivals::read_arrivals;
pub use config::{NatsAccess, NatsConfig};
pub use sink::NatsSink;
