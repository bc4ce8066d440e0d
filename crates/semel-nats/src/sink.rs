//! The sink.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, Message};
use async_trait::async_trait;
use futures_util::{FutureExt as _, StreamExt as _};
use semel_core::limits::LimitExceeded;
use semel_core::relay::Waves;
use semel_core::store::{OutboxRow, Sink, SinkError, SinkErrorClass, SinkFuture, SinkOrder};
use semel_core::template::Template;
use semel_core::{Event, StoreError};

use crate::class;
use crate::config::{self, NatsConfig};
use crate::link::{ANSWERS_MAX, Inbox, Link, away};
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
    subject: Template,
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
            subject: config::subject(&config.subject)?,
            in_flight_max: config.in_flight_max.clamp(1, ANSWERS_MAX),
            message_bytes_max: config.message_bytes_max,
            link: Link::new(config)?,
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }
}

/// One call of [`Sink::publish_many`].
struct Call<'a> {
    rows: &'a [Arc<OutboxRow>],
    waves: &'a mut Waves,
    inbox: Inbox,
    /// The number in the inbox of the first row's message; the others follow it.
    first: u64,
    /// Which rows are on their way, and how many.
    open: Vec<bool>,
    waiting: usize,
    /// Nothing more leaves.
    closing: bool,
}

impl Call<'_> {
    /// What leaves now, each with the subject for its answer: it is on its way.
    fn leaving(&mut self, in_flight_max: usize) -> Vec<(usize, String)> {
        if self.closing {
            return Vec::new();
        }
        let next = self.waves.next(in_flight_max.saturating_sub(self.waiting));
        self.waiting += next.len();
        next.into_iter()
            .map(|index| {
                self.open[index] = true;
                (index, self.inbox.subject(self.first + index as u64))
            })
            .collect()
    }

    /// What became of a row, unless that is known already.
    fn settle(&mut self, index: usize, result: Result<(), SinkError>) {
        if self.open.get_mut(index).is_some_and(std::mem::take) {
            // Nothing more leaves when the server is away.
            self.closing |= matches!(&result, Err(error) if error.class == SinkErrorClass::Away);
            self.waiting -= 1;
            self.waves.settle(index, result);
        }
    }

    fn answered(&mut self, answer: &Message, subject: &Template) {
        let number = self.inbox.number(answer.subject.as_str());
        let index = number.and_then(|number| usize::try_from(number.checked_sub(self.first)?).ok());
        if let Some(index) = index
            && let Some(row) = self.rows.get(index)
        {
            self.settle(index, class::answer(answer, || subject.fill(&row.event)));
        }
    }

    /// The server says, outside of any answer, that the user may not do something.
    fn barred(&mut self, text: &str, subject: &Template) {
        self.closing = true;
        for index in 0..self.rows.len() {
            if self.open[index] && class::bars(text, &subject.fill(&self.rows[index].event)) {
                self.settle(index, Err(class::barred(text)));
            }
        }
    }
}

impl Shared {
    async fn connected(&self) -> Result<(Client, Inbox), SinkError> {
        let client = self.link.client().await?;
        let inbox = self.link.inbox(&client).await?;
        Ok((client, inbox))
    }

    /// Hands rows to the client, which writes them in this order; returns those that it did not take.
    async fn hand_over(
        &self,
        client: &Client,
        rows: &[Arc<OutboxRow>],
        leaving: Vec<(usize, String)>,
    ) -> Vec<(usize, SinkError)> {
        let mut refused = Vec::new();
        for (index, reply) in leaving {
            let row = &rows[index];
            let (subject, headers) = (self.subject.fill(&row.event), record::of_row(row));
            let payload = row.event.data.clone().unwrap_or_default();
            let taken = client.publish_with_reply_and_headers(subject, reply, headers, payload);
            if let Err(error) = taken.await {
                refused.push((index, class::not_sent(&error)));
            }
        }
        refused
    }

    /// Keeps as many rows on their way as may be; what is not settled when the future is dropped is on its way.
    async fn publish(&self, rows: &[Arc<OutboxRow>], waves: &mut Waves, deadline: Duration) {
        let (mut lost, mut said) = (self.link.lost(), self.link.said());
        let (client, mut inbox) = match self.connected().await {
            Ok(connected) => connected,
            Err(error) => {
                for index in waves.next(rows.len()) {
                    waves.settle(index, Err(error.clone()));
                }
                return;
            }
        };
        let mut call = Call {
            rows,
            waves,
            first: inbox.numbers(rows.len()),
            inbox,
            open: vec![false; rows.len()],
            waiting: 0,
            closing: false,
        };
        // What would leave later than this has no time left for its acknowledgement.
        let mut late = std::pin::pin!(tokio::time::sleep(deadline / 4 * 3));
        loop {
            let leaving = call.leaving(self.in_flight_max);
            if !leaving.is_empty() {
                let refused = tokio::select! {
                    biased;
                    refused = self.hand_over(&client, rows, leaving) => refused,
                    _ = lost.changed() => break,
                };
                for (index, error) in refused {
                    call.settle(index, Err(error));
                }
                if call.waiting == 0 {
                    continue;
                }
            }
            if call.waiting == 0 {
                if !call.closing {
                    self.link.keep(call.inbox);
                }
                return;
            }
            tokio::select! {
                biased;
                answer = call.inbox.answers.next() => {
                    // The client is gone: so is its connection.
                    let Some(answer) = answer else { break };
                    call.answered(&answer, &self.subject);
                    while let Some(Some(answer)) = call.inbox.answers.next().now_or_never() {
                        call.answered(&answer, &self.subject);
                    }
                }
                _ = lost.changed() => break,
                Ok(()) = said.changed() => {
                    let text = said.borrow_and_update().clone();
                    if class::is_barred(&text) {
                        call.barred(&text, &self.subject);
                    }
                }
                () = &mut late, if !call.closing => call.closing = true,
            }
        }
        for index in 0..rows.len() {
            call.settle(index, Err(away("the connection was lost")));
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
                        *error = class::heard(&error.message, &said);
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
