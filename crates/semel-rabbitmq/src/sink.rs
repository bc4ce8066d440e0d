//! The sink.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use lapin::options::BasicPublishOptions;
use lapin::tcp::OwnedTLSConfig;
use lapin::{Channel, Confirmation};
use semel_core::limits::LimitExceeded;
use semel_core::relay::Waves;
use semel_core::store::{OutboxRow, Sink, SinkError, SinkErrorClass, SinkFuture, SinkOrder};
use semel_core::template::Template;
use semel_core::{Event, StoreError};

use crate::class;
use crate::config::{RabbitmqConfig, template};
use crate::link::Link;
use crate::record;

/// Bytes that are handed to the client before the first of them is written; it copies them.
const AHEAD_BYTES: usize = 1 << 20;
/// What a message takes beside its body, roughly.
const MESSAGE_BYTES: usize = 512;

/// How long [`Sink::probe`] waits.
const PROBE: Duration = Duration::from_secs(5);

/// Publishes events to RabbitMQ. See the [crate](crate).
///
/// ```
/// use semel_rabbitmq::{RabbitmqConfig, RabbitmqSink};
/// let mut config = RabbitmqConfig::new("amqp://guest:guest@127.0.0.1:5672/%2f");
/// config.exchange = "shop".to_owned();
/// config.routing_key = "{topic}.{type}".to_owned();
/// let sink = RabbitmqSink::new(config)?;
/// # Ok::<(), semel_core::StoreError>(())
/// ```
pub struct RabbitmqSink {
    shared: Arc<Shared>,
}

struct Shared {
    link: Link,
    exchange: Template,
    routing_key: Template,
    in_flight_max: usize,
    message_bytes_max: usize,
}

impl std::fmt::Debug for RabbitmqSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RabbitmqSink")
            .field("in_flight_max", &self.shared.in_flight_max)
            .finish_non_exhaustive()
    }
}

impl RabbitmqSink {
    /// A sink for this broker. Does not connect yet.
    ///
    /// # Errors
    /// `Invalid`: a URL or template that cannot be used.
    pub fn new(config: RabbitmqConfig) -> Result<Self, StoreError> {
        let tls = OwnedTLSConfig {
            identity: None,
            cert_chain: config.ca_pem.clone(),
        };
        let shared = Shared {
            link: Link::new(config.uri()?, tls, config.connect_timeout),
            exchange: template(&config.exchange)?,
            routing_key: template(&config.routing_key)?,
            in_flight_max: config.in_flight_max.max(1),
            message_bytes_max: config.message_bytes_max,
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }
}

/// How a wave ended.
enum End {
    /// Every row of it has its result.
    Settled,
    /// The channel is gone. Rows that were not settled by it may have arrived.
    Lost(lapin::Error, Vec<usize>),
}

impl Shared {
    /// Publishes these rows and waits for all their confirms. Only then are all returned messages known: the client hands
    /// them out with whichever confirm comes next.
    async fn wave(
        &self,
        channel: &Channel,
        rows: &[Arc<OutboxRow>],
        picked: &[usize],
        waves: &mut Waves,
    ) -> End {
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let (mut confirms, mut open, mut trouble) = (Vec::with_capacity(picked.len()), Vec::new(), None);
        let mut picked = picked.iter();
        while picked.len() > 0 {
            // Handed to the client in order, without waiting until each is written: it writes what it has in one go.
            let (mut leaving, mut bytes) = (Vec::with_capacity(picked.len()), 0);
            while bytes < AHEAD_BYTES
                && let Some(index) = picked.next()
            {
                if trouble.is_some() {
                    open.push(*index);
                    continue;
                }
                let row = &rows[*index];
                let event = &row.event;
                let data = event.data.as_deref().unwrap_or_default();
                bytes += data.len() + MESSAGE_BYTES;
                let mut publishing = Box::pin(channel.basic_publish(
                    self.exchange.fill(event).into(),
                    self.routing_key.fill(event).into(),
                    options,
                    data,
                    record::properties(row),
                ));
                // Polled once it is in the client's queue.
                match publishing.as_mut().now_or_never() {
                    Some(Ok(confirm)) => confirms.push((*index, confirm)),
                    Some(Err(error)) => {
                        open.push(*index);
                        trouble = Some(error);
                    }
                    None => leaving.push((*index, publishing)),
                }
            }
            for (index, publishing) in leaving {
                match publishing.await {
                    Ok(confirm) => confirms.push((index, confirm)),
                    Err(error) => {
                        open.push(index);
                        trouble.get_or_insert(error);
                    }
                }
            }
        }
        let mut answers = Vec::with_capacity(confirms.len());
        let mut returned = HashMap::new();
        for (index, confirm) in confirms {
            match confirm.await {
                Ok(Confirmation::Ack(message)) => answers.push((index, true, message)),
                Ok(Confirmation::Nack(message)) => answers.push((index, false, message)),
                Ok(Confirmation::NotRequested) => answers.push((index, false, None)),
                Err(error) => {
                    open.push(index);
                    // The channel's own reason says more than what later calls on it say.
                    trouble = match trouble {
                        Some(known) if known.is_amqp_error() => Some(known),
                        _ => Some(error),
                    };
                }
            }
        }
        for (_, _, message) in &mut answers {
            if let Some(message) = message.take()
                && let Some(id) = message.delivery.properties.message_id()
            {
                let why = format!(
                    "{} (exchange {:?}, routing key {:?}): bind a queue",
                    message.reply_text.as_str(),
                    message.delivery.exchange.as_str(),
                    message.delivery.routing_key.as_str()
                );
                returned.insert(id.as_str().to_owned(), why);
            }
        }
        if trouble.is_some() && !returned.is_empty() {
            // Whether all returned messages have come is not known.
            open.extend(answers.drain(..).map(|(index, _, _)| index));
        }
        for (index, taken, _) in answers {
            let result = match returned.get(&rows[index].event.id.to_string()) {
                Some(why) => Err(SinkError::new(SinkErrorClass::Destination, why.clone())),
                None if taken => Ok(()),
                None => Err(SinkError::new(
                    SinkErrorClass::Away,
                    "the broker did not take it: a queue is full, or it has trouble of its own (basic.nack)",
                )),
            };
            waves.settle(index, result);
        }
        match trouble {
            Some(error) => End::Lost(error, open),
            None => End::Settled,
        }
    }

    /// Publishes wave after wave; what is not settled when the future is dropped is on its way.
    async fn publish(&self, rows: &[Arc<OutboxRow>], waves: &mut Waves, deadline: Duration) {
        // What would leave later than this has no time left for its confirm.
        let mut late = Box::pin(tokio::time::sleep(deadline / 4 * 3)).fuse();
        let mut alone = false;
        let mut channel = None;
        loop {
            let picked = waves.next(if alone { 1 } else { self.in_flight_max });
            if picked.is_empty() {
                break;
            }
            let current = match channel.take() {
                Some(channel) => channel,
                None => match self.link.channel().await {
                    Ok(channel) => channel,
                    Err(error) => {
                        for index in picked {
                            waves.settle(index, Err(error.clone()));
                        }
                        return;
                    }
                },
            };
            match self.wave(&current, rows, &picked, waves).await {
                End::Settled => channel = Some(current),
                End::Lost(error, open) => {
                    let explained = class::explain(&error);
                    if explained.class == SinkErrorClass::Away {
                        for index in open {
                            waves.settle(index, Err(explained.clone()));
                        }
                        return;
                    }
                    let fixed = self.exchange.is_fixed();
                    if fixed && class::is_missing(&error) {
                        // One exchange for all, and it is not there: going one by one would open a channel for each.
                        for index in open {
                            waves.settle(index, Err(explained.clone()));
                        }
                        return;
                    }
                    if let ([index], true) = (&open[..], picked.len() == 1) {
                        let everybodys = fixed && explained.class == SinkErrorClass::Destination;
                        waves.settle(*index, Err(explained));
                        if everybodys {
                            return;
                        }
                    } else {
                        // Who of them is to blame shows when they go one by one.
                        alone = true;
                        open.into_iter().for_each(|index| waves.again(index));
                    }
                }
            }
            if (&mut late).now_or_never().is_some() {
                break;
            }
        }
        if let Some(channel) = channel {
            self.link.keep(channel);
        }
    }
}

#[async_trait]
impl Sink for RabbitmqSink {
    fn name(&self) -> &'static str {
        "rabbitmq"
    }

    fn order(&self) -> SinkOrder {
        SinkOrder::Pipelined {
            in_flight_max: self.shared.in_flight_max,
        }
    }

    fn check(&self, event: &Event) -> Result<(), LimitExceeded> {
        let shared = &self.shared;
        let (exchange, routing_key) = (shared.exchange.fill(event), shared.routing_key.fill(event));
        record::check(event, &exchange, &routing_key, shared.message_bytes_max)
    }

    fn publish_many(&self, rows: &[Arc<OutboxRow>], deadline: Duration) -> SinkFuture {
        let (shared, rows) = (Arc::clone(&self.shared), rows.to_vec());
        Box::pin(async move {
            let mut waves = Waves::new(&rows);
            let published = shared.publish(&rows, &mut waves, deadline);
            let why = match tokio::time::timeout(deadline, published).await {
                Ok(()) => "it was not sent before an earlier one failed or the time was over",
                Err(_) => "the time was over before it was sent",
            };
            waves.finish(why)
        })
    }

    async fn probe(&self) -> Result<(), SinkError> {
        self.shared.link.probe(PROBE).await
    }
}
