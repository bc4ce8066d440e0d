//! The sink.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use semel_client::{HttpClient, Limits};
use semel_core::limits::LimitExceeded;
use semel_core::store::{OutboxRow, Sink, SinkError, SinkErrorClass, SinkFuture, SinkOrder};
use semel_core::{Event, StoreError};

use crate::answer;
use crate::config::{Target, WebhookConfig};
use crate::request;

/// How long [`Sink::probe`] waits.
const PROBE: Duration = Duration::from_secs(5);

/// Posts events. See the [crate](crate).
///
/// ```
/// use semel_webhook::{WebhookConfig, WebhookSink};
/// let mut config = WebhookConfig::new("https://shipping.example/events");
/// config.headers.push(("authorization".to_owned(), "Bearer …".to_owned()));
/// # config.headers.clear();
/// let sink = WebhookSink::new(config)?;
/// # Ok::<(), semel_core::StoreError>(())
/// ```
pub struct WebhookSink {
    client: HttpClient,
    target: Arc<Target>,
    in_flight_max: usize,
}

impl std::fmt::Debug for WebhookSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebhookSink")
            .field("in_flight_max", &self.in_flight_max)
            .finish_non_exhaustive()
    }
}

impl WebhookSink {
    /// A sink for this URL. Opens no connection yet.
    ///
    /// # Errors
    /// `Invalid`: a URL or header that cannot be used.
    pub fn new(config: WebhookConfig) -> Result<Self, StoreError> {
        let target = Arc::new(Target::read(&config)?);
        let client = HttpClient::new(Limits {
            response_bytes_max: config.response_bytes_max,
            connect_timeout: config.connect_timeout,
            idle_per_host_max: config.in_flight_max.max(1),
        });
        Ok(Self {
            client,
            target,
            in_flight_max: config.in_flight_max.max(1),
        })
    }
}

async fn send(
    client: HttpClient,
    target: Arc<Target>,
    row: Arc<OutboxRow>,
    deadline: Duration,
) -> Result<(), SinkError> {
    let request = request::request(&target, &row).map_err(|error| {
        SinkError::new(
            SinkErrorClass::Message,
            format!("no request can be made of it: {error}"),
        )
    })?;
    match client.send(request, deadline).await {
        Ok(answer) => answer::judge(&answer),
        Err(error) => answer::judge_failure(&error),
    }
}

#[async_trait]
impl Sink for WebhookSink {
    fn name(&self) -> &'static str {
        "webhook"
    }

    fn order(&self) -> SinkOrder {
        SinkOrder::OnePerKey {
            in_flight_max: self.in_flight_max,
        }
    }

    fn check(&self, event: &Event) -> Result<(), LimitExceeded> {
        request::check(event)
    }

    fn publish_many(&self, rows: &[Arc<OutboxRow>], deadline: Duration) -> SinkFuture {
        let sends: Vec<_> = rows
            .iter()
            .map(|row| {
                send(
                    self.client.clone(),
                    Arc::clone(&self.target),
                    Arc::clone(row),
                    deadline,
                )
            })
            .collect();
        Box::pin(join_all(sends))
    }

    /// Any answer at all to a `HEAD` of the URL: what it says about that method does not matter, so that a receiver
    /// that answers 404, 405, 500 or 501 to it is there. Only 502, 503 and 504 count as nobody: they are what a proxy
    /// says when there is none behind it.
    async fn probe(&self) -> Result<(), SinkError> {
        let away = |text: String| SinkError::new(SinkErrorClass::Away, text);
        let mut request = http::Request::head(self.target.url("probe"));
        for (name, value) in &self.target.headers {
            request = request.header(name, value);
        }
        let request = request
            .body(bytes::Bytes::new())
            .map_err(|error| away(error.to_string()))?;
        let answer = self
            .client
            .send(request, PROBE)
            .await
            .map_err(|error| away(error.to_string()))?;
        match answer.status().as_u16() {
            502..=504 => Err(away(answer.status().to_string())),
            _ => Ok(()),
        }
    }
}
