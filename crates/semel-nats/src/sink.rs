//! The sink.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use semel_core::limits::LimitExceeded;
use semel_core::relay::Waves;
use semel_core::store::{OutboxRow, Sink, SinkError, SinkErrorClass, SinkFuture, SinkOrder};
use semel_core::{Event, StoreError};

use crate::class;
use crate::config::{NatsConfig, Subject};
use crate::link::{Link, away};
use crate::record;

/// How long [`Sink::probe`] waits.
const PROBE: Duration = Duration::from_secs(5);

/// Publishes events to JetStream. See the [crate](crate).
///
/// ```
/// use semel_nats::{NatsConfig, NatsSink};
/// let mut config = NatsConfig::new("nats://127.0.0.1:4222");
/// config.subject = "shop.{topic}".to_owned();
/// let sink = NatsSink::new(config)?;
/// # Ok::<(), semel_core::StoreError>(())
/// ```
pub struct NatsSink {
    shared: Arc<Shared>,
}

struct Shared {
    link: Link,
    subject: Subject,
    in_flight_max: usize,
    message_bytes_max: usize,
}

impl std::fmt::Debug for NatsSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsSink")
            .field("in_flight_max", &self.shared.in_flight_max)
            .finish_non_exhaustive()
    }
}

impl NatsSink {
    /// A sink for these servers. Does not connect yet.
    ///
    /// # Errors
    /// `Invalid`: a URL, subject or credentials that cannot be used.
    pub fn new(config: NatsConfig) -> Result<Self, StoreError> {
        let shared = Shared {
            subject: Subject::read(&config.subject)?,
            in_flight_max: config.in_flight_max.max(1),
            message_bytes_max: config.message_bytes_max,
            link: Link::new(config)?,
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }
}

impl Shared {
    /// Sends one row and waits for its acknowledgement.
    async fn one(&self, context: &Context, index: usize, row: &OutboxRow) -> (usize, Result<(), SinkError>) {
        let subject = self.subject.fill(&row.event);
        let payload = row.event.data.clone().unwrap_or_default();
        let asked = self.link.asked();
        let sent = context.publish_with_headers(subject.clone(), record::of_row(row), payload);
        let acknowledged = match sent.await {
            Ok(acknowledged) => acknowledged.into_future().await,
            Err(error) => Err(error),
        };
        asked.answered();
        // A duplicate is one that the stream has already: the acknowledgement of an earlier attempt was lost.
        let result = acknowledged
            .map(drop)
            .map_err(|error| class::published(&error, &subject));
        (index, result)
    }

    /// Keeps as many rows on their way as may be; what is not settled when the future is dropped is on its way.
    async fn publish(&self, rows: &[Arc<OutboxRow>], waves: &mut Waves, deadline: Duration) {
        let (mut lost, mut said) = (self.link.lost(), self.link.said());
        let context = match self.link.context().await {
            Ok(context) => context,
            Err(error) => {
                for index in waves.next(rows.len()) {
                    waves.settle(index, Err(error.clone()));
                }
                return;
            }
        };
        // What would leave later than this has no time left for its acknowledgement.
        let mut late = std::pin::pin!(tokio::time::sleep(deadline / 4 * 3));
        let (mut closing, mut open, mut waiting) = (false, vec![false; rows.len()], 0_usize);
        let mut on_their_way = FuturesUnordered::new();
        loop {
            if !closing {
                for index in waves.next(self.in_flight_max.saturating_sub(waiting)) {
                    open[index] = true;
                    waiting += 1;
                    on_their_way.push(self.one(&context, index, &rows[index]));
                }
            }
            if waiting == 0 {
                return;
            }
            tokio::select! {
                biased;
                Some((index, result)) = on_their_way.next() => if open[index] {
                    // Nothing more leaves when the server is away.
                    closing |= matches!(&result, Err(error) if error.class == SinkErrorClass::Away);
                    open[index] = false;
                    waiting -= 1;
                    waves.settle(index, result);
                },
                _ = lost.changed() => break,
                Ok(()) = said.changed() => {
                    let text = said.borrow_and_update().clone();
                    if class::is_barred(&text) {
                        closing = true;
                        for index in 0..rows.len() {
                            if open[index] && class::bars(&text, &self.subject.fill(&rows[index].event)) {
                                open[index] = false;
                                waiting -= 1;
                                waves.settle(index, Err(class::barred(&text)));
                            }
                        }
                    }
                }
                () = &mut late, if !closing => closing = true,
            }
        }
        drop(on_their_way);
        for index in (0..rows.len()).filter(|index| open[*index]) {
            waves.settle(index, Err(away("the connection was lost")));
        }
    }
}

#[async_trait]
impl Sink for NatsSink {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn order(&self) -> SinkOrder {
        SinkOrder::Pipelined {
            in_flight_max: self.shared.in_flight_max,
        }
    }

    fn check(&self, event: &Event) -> Result<(), LimitExceeded> {
        let subject = self.shared.subject.fill(event);
        record::check(event, &subject, self.shared.message_bytes_max)
    }

    fn publish_many(&self, rows: &[Arc<OutboxRow>], deadline: Duration) -> SinkFuture {
        let (shared, rows) = (Arc::clone(&self.shared), rows.to_vec());
        Box::pin(async move {
            let said = shared.link.said();
            let mut waves = Waves::new(&rows);
            let published = shared.publish(&rows, &mut waves, deadline);
            let why = match tokio::time::timeout(deadline, published).await {
                Ok(()) => "it was not sent before an earlier one failed or the time was over",
                Err(_) => "the time was over before it was sent",
            };
            let mut results = waves.finish(why);
            if said.has_changed().unwrap_or(false) {
                // It may be why nothing was answered.
                let said = said.borrow();
                for error in results.iter_mut().filter_map(|result| result.as_mut().err()) {
                    if error.class == SinkErrorClass::Away {
                        *error = away(format!("{}; the last that was heard: {}", error.message, *said));
                    }
                }
            }
            results
        })
    }

    async fn probe(&self) -> Result<(), SinkError> {
        self.shared.link.probe(PROBE).await
    }
}
