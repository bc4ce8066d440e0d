//! What a stream holds, read once from its beginning to its end: for audits.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::jetstream::stream::{RetentionPolicy, Stream};
use async_nats::jetstream::{self, ErrorCode};
use bytes::Bytes;
use futures_util::StreamExt as _;
use semel_core::cloudevents::header_bytes;
use semel_core::error::chain;
use semel_core::store::{ARRIVED_UNREADABLE, Arrived, ArrivedRead, SinkError, SinkErrorClass};
use semel_core::{ErrorKind, StoreError};

use crate::config::NatsConfig;
use crate::link::Link;

/// How long one question may take, and how long nothing may come while there is more.
const SILENCE: Duration = Duration::from_secs(30);
/// Bytes asked for at once.
const FETCH_BYTES: i64 = 4 << 20;

/// Reads a stream of JetStream from its beginning to where it ended when this was called, and hands each message over in order.
/// It reads by an ephemeral ordered consumer of its own, which acknowledges nothing and goes when this ends; other consumers
/// do not notice.
///
/// # Errors
/// `Invalid` where there is no such stream, it may not be read, or it keeps messages only until a consumer has them; `Unavailable`
/// where the servers do not answer, or nothing came for half a minute. What was read before was handed over.
///
/// # Limits
/// About 4 MiB of messages wait in memory at most.
pub async fn read_arrivals(
    config: &NatsConfig,
    stream: &str,
    mut each: impl FnMut(Arrived),
) -> Result<ArrivedRead, StoreError> {
    let link = Link::new(config.clone())?;
    let client = link.client().await.map_err(|error| told(stream, &error))?;
    let context = jetstream::new(client);
    let found = within(stream, context.get_stream(stream)).await?;
    let mut found = found.map_err(|error| {
        let none = match error.kind() {
            jetstream::context::GetStreamErrorKind::JetStream(error) => {
                error.error_code() == ErrorCode::STREAM_NOT_FOUND
            }
            _ => false,
        };
        if none {
            let text = format!("there is no stream {stream}; `nats stream ls` lists them");
            return StoreError::new(ErrorKind::Invalid, "read stream", text).with_code(ARRIVED_UNREADABLE);
        }
        failed(stream, &error)
    })?;
    let retention = found.cached_info().config.retention;
    if retention != RetentionPolicy::Limits {
        let text = format!(
            "the stream {stream} keeps a message only until its consumers have it (retention {retention:?}), so nobody can say \
             what has arrived in it; log what consumers take, and compare that with --arrived"
        );
        return Err(StoreError::new(ErrorKind::Invalid, "read stream", text).with_code(ARRIVED_UNREADABLE));
    }
    let info = within(stream, found.info()).await?;
    let state = &info.map_err(|error| failed(stream, &error))?.state;
    let (first, last) = (state.first_sequence, state.last_sequence);
    let mut read = ArrivedRead {
        messages: 0,
        gone: last.saturating_sub(state.messages),
    };
    if state.messages > 0 {
        read.messages = read_to(&found, stream, first, last, &mut each).await?;
    }
    Ok(read)
}

/// Reads up to `last`; how many there were.
async fn read_to(
    found: &Stream,
    stream: &str,
    first: u64,
    last: u64,
    each: &mut impl FnMut(Arrived),
) -> Result<u64, StoreError> {
    let consumer = found.create_consumer(OrderedConfig {
        description: Some("semel audit outbox".to_owned()),
        deliver_policy: DeliverPolicy::ByStartSequence {
            start_sequence: first,
        },
        max_bytes: FETCH_BYTES,
        ..OrderedConfig::default()
    });
    let consumer = within(stream, consumer).await?;
    let consumer = consumer.map_err(|error| failed(stream, &error))?;
    let mut name = consumer.cached_info().name.clone();
    let some = consumer.cached_info().num_pending > 0;
    let messages = within(stream, consumer.messages()).await?;
    let mut messages = messages.map_err(|error| failed(stream, &error))?;
    let mut read = 0;
    while some && let Some(message) = within(stream, messages.next()).await? {
        let message = message.map_err(|error| failed(stream, &error))?;
        let at = message.info().map_err(|error| {
            let text = format!("a message of the stream {stream} does not tell its place: {error}");
            StoreError::new(ErrorKind::Unavailable, "read stream", text).with_code(ARRIVED_UNREADABLE)
        })?;
        let (sequence, pending) = (at.stream_sequence, at.pending);
        if at.consumer != name {
            // Made anew, behind the last message that came.
            at.consumer.clone_into(&mut name);
        }
        if sequence <= last {
            read += 1;
            each(arrived(message.headers.as_ref(), &message.payload));
        }
        // The last one may have been deleted: then what is left to come says that it is over.
        if sequence >= last || pending == 0 {
            break;
        }
    }
    drop(messages);
    // Left alone it would go by itself in a while.
    let _ = tokio::time::timeout(SILENCE, found.delete_consumer(&name)).await;
    Ok(read)
}

fn arrived(headers: Option<&HeaderMap>, data: &Bytes) -> Arrived {
    let header = |name: &str| {
        headers
            .and_then(|headers| headers.get(name))
            .map(|value| value.as_str())
    };
    Arrived::read(
        header("ce-id"),
        header("content-type"),
        header("ce-partitionkey").map(|key| header_bytes(key).into()),
        header("semel-tombstone").is_none().then_some(&data[..]),
    )
}

async fn within<T>(stream: &str, answer: impl Future<Output = T>) -> Result<T, StoreError> {
    tokio::time::timeout(SILENCE, answer).await.map_err(|_| {
        let text = format!(
            "nothing was heard of the stream {stream} for {} s",
            SILENCE.as_secs()
        );
        StoreError::new(ErrorKind::Unavailable, "read stream", text).with_code(ARRIVED_UNREADABLE)
    })
}

fn failed(stream: &str, error: &(dyn std::error::Error + 'static)) -> StoreError {
    let text = format!("the stream {stream} could not be read: {}", chain(error));
    StoreError::new(ErrorKind::Unavailable, "read stream", text).with_code(ARRIVED_UNREADABLE)
}

fn told(stream: &str, error: &SinkError) -> StoreError {
    let kind = match error.class {
        SinkErrorClass::Destination => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    let text = format!("the stream {stream} could not be read: {}", error.message);
    StoreError::new(kind, "read stream", text).with_code(ARRIVED_UNREADABLE)
}
