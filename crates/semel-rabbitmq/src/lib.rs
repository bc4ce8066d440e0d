//! RabbitMQ sink: every event is one persistent message, published with confirms and `mandatory`.
//!
//! # The message
//! | place | value |
//! | --- | --- |
//! | exchange, routing key | by [`RabbitmqConfig::exchange`] and [`RabbitmqConfig::routing_key`]; by default the queue named like the topic |
//! | body | the data, byte for byte |
//! | `message-id` | the event's id, the same on every attempt |
//! | `type`, `content-type`, `timestamp` | the event's type, media type and time (in seconds) |
//! | `delivery-mode` | 2: persistent |
//! | `cloudEvents:specversion`, `:id`, `:source`, `:type`, `:time` | headers; CloudEvents 1.0, binary mode |
//! | `cloudEvents:partitionkey` | the ordering key, where there is one |
//! | `traceparent` | the event's trace context, where there is one |
//! | `semel-topic` | the topic, as it was given |
//! | `semel-tombstone` | true on an event without data, which is not the same as empty data |
//! | every header of the event | under its own name; of headers with one name the first |
//! | `semel-headers` | an array of names and values in turn, where the event has two headers or more |
//!
//! Values of headers are long strings, which hold any bytes. A table of AMQP has no order and no name twice: whoever needs
//! either reads `semel-headers`, which has all of the event's headers as they were given.
//!
//! # What answers mean
//! | answer | class |
//! | --- | --- |
//! | confirmed, not returned | the queues have it; a durable queue on disk |
//! | returned (no queue is bound), exchange or virtual host missing, access refused | destination |
//! | refused with an error of its own, such as a body above the broker's `max_message_size` | this message |
//! | negative acknowledgement (a full queue with `reject-publish`), channel or connection lost, no answer | away |
//!
//! An error closes the channel and names no message. So the rows of that moment go again one by one, and the one that meets
//! it alone is to blame.
//!
//! # Guarantees
//! - `Ok` means: confirmed by the broker and not returned. On durable queues the message is on disk, on quorum queues on a
//!   majority of disks.
//! - Order: at most one row of a key is on its way. RabbitMQ takes the next message of a connection after it has refused one,
//!   so that nothing else keeps a key's order (decision 0040). Different keys share the
//!   connection, as many rows at once as [`RabbitmqConfig::in_flight_max`].
//!
//! # Not guaranteed
//! - That a queue is durable: whoever declares it decides. Nothing is declared here.
//! - That an alternate exchange does not hide that no queue is bound: then nothing is returned.
//! - A message once: a confirm that was lost is a message sent again, with the same `message-id`. A consumer drops ids it has
//!   seen (`semel-inbox` does).
//!
//! # Logs
//! The client (`lapin`) logs a message that comes back with its whole body, at the level WARN. Where bodies must not stand in logs,
//! filter with `lapin=error`, as the daemon does unless it is told otherwise.
//!
//! # Limits
//! [`RabbitmqConfig::message_bytes_max`] for the body; 255 bytes for names of headers, routing keys and exchanges. The names
//! `CC` and `BCC`, which RabbitMQ reads, and those of the table above are refused.

mod class;
mod config;
mod link;
mod record;
mod sink;

pub use config::RabbitmqConfig;
pub use sink::RabbitmqSink;
