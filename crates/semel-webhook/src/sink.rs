//! The sink.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use semel_client::{ClientErrorKind, Closed, Destinations, Door, HttpClient, Limits};
use semel_core::limits::LimitExceeded;
use semel_core::store::{OutboxRow, Sink, SinkError, SinkErrorClass, SinkFuture, SinkOrder};
use semel_core::{Clock, Event, StoreError};

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
    post: Arc<Post>,
    in_flight_max: usize,
}

/// What every request needs.
struct Post {
    client: HttpClient,
    target: Target,
    destinations: Destinations,
    /// The target's, from the first request on.
    door: OnceLock<Door>,
    clock: Arc<dyn Clock>,
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
    /// `Invalid`: a URL, header or secret that cannot be used.
    pub fn new(config: WebhookConfig) -> Result<Self, StoreError> {
        let target = Target::read(&config)?;
        let client = HttpClient::new(Limits {
            response_bytes_max: config.response_bytes_max,
            connect_timeout: config.connect_timeout,
            idle_per_host_max: config.in_flight_max.max(1),
            allow_private: config.allow_private,
        });
        let post = Post {
            client,
            target,
            destinations: config.destinations,
            door: OnceLock::new(),
            clock: config.clock,
        };
        Ok(Self {
            post: Arc::new(post),
            in_flight_max: config.in_flight_max.max(1),
        })
    }
}

async fn send(post: Arc<Post>, row: Arc<OutboxRow>, deadline: Duration) -> Result<(), SinkError> {
    let begun = post.clock.monotonic();
    // Whoever waits longer than half of the time for a place would have too little left for the exchange itself.
    let door = post
        .door
        .get_or_init(|| post.destinations.door(&post.target.authority));
    let entered = match door.enter(deadline / 2).await {
        Ok(entered) => entered,
        Err(closed) => return Err(kept_back(&closed)),
    };
    let request = request::request(&post.target, &row, post.clock.now()).map_err(|error| {
        SinkError::new(
            SinkErrorClass::Message,
            format!("no request can be made of it: {error}"),
        )
    })?;
    let left = deadline.saturating_sub(post.clock.monotonic().saturating_sub(begun));
    match post.client.send(request, left).await {
        Ok(answer) => {
            let result = answer::judge(&answer);
            match &result {
                Err(error) if !answer::is_there(answer.status()) => entered.failed(&error.message),
                _ => entered.answered(),
            }
            result
        }
        Err(error) => {
            let result = answer::judge_failure(&error);
            match (&result, error.status()) {
                (_, Some(status)) if answer::is_there(status) => entered.answered(),
                (Err(error), _) if error.class == SinkErrorClass::Away => entered.failed(&error.message),
                // Refused by the guard: nobody was asked.
                _ => drop(entered),
            }
            result
        }
    }
}

/// Nothing was sent.
fn kept_back(closed: &Closed) -> SinkError {
    match closed {
        Closed::Open { retry_after, .. } => {
            let mut error = SinkError::new(SinkErrorClass::Away, closed.to_string());
            error.retry_after = Some(*retry_after);
            error
        }
        Closed::Full { .. } => SinkError::new(SinkErrorClass::HeldBack, closed.to_string()),
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
        let send = |row| send(Arc::clone(&self.post), Arc::clone(row), deadline);
        // As a relay asks. A request on its way is large: it is moved as seldom as can be.
        if let [row] = rows {
            let sent = send(row);
            return Box::pin(async move { vec![sent.await] });
        }
        Box::pin(join_all(rows.iter().map(|row| Box::pin(send(row)))))
    }

    /// Any answer at all to a `HEAD` of the URL: what it says about that method does not matter, so that a receiver
    /// that answers 404, 405, 500 or 501 to it is there. Only 502, 503 and 504 count as nobody: they are what a proxy
    /// says when there is none behind it.
    async fn probe(&self) -> Result<(), SinkError> {
        let away = |text: String| SinkError::new(SinkErrorClass::Away, text);
        let mut request = http::Request::head(self.post.target.url("probe"));
        for (name, value) in &self.post.target.headers {
            request = request.header(name, value);
        }
        let request = request
            .body(bytes::Bytes::new())
            .map_err(|error| away(error.to_string()))?;
        let answer = match self.post.client.send(request, PROBE).await {
            Ok(answer) => answer,
            Err(error) => {
                let class = match error.kind() {
                    ClientErrorKind::Private => SinkErrorClass::Destination,
                    _ => SinkErrorClass::Away,
                };
                return Err(SinkError::new(class, error.to_string()));
            }
        };
        match answer.status().as_u16() {
            502..=504 => Err(away(answer.status().to_string())),
            _ => Ok(()),
        }
    }
}
