//! The connection to the servers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::{Client, ConnectOptions, Event, RequestErrorKind};
use semel_core::StoreError;
use semel_core::error::chain;
use semel_core::store::{SinkError, SinkErrorClass};
use tokio::sync::{Mutex, watch};

use crate::class;
use crate::config::{NatsAccess, NatsConfig, invalid};

/// The client's own limit for an acknowledgement; a call's deadline ends before.
const ACK: Duration = Duration::from_secs(600);

/// Requests without an answer after which the client is made anew: it keeps a place for each of them for as long as it lives.
const UNANSWERED_MAX: usize = 20_000;

/// Asked for, and read here: the client's own form of the answer wants fields that older servers do not send.
const INFO: &str = "$JS.API.INFO";

/// One connection, made when it is first needed; the client makes it anew by itself after it broke.
pub(crate) struct Link {
    config: NatsConfig,
    /// Counts how often the connection was lost.
    lost: watch::Sender<u64>,
    /// What the server or the client said last, outside of any answer.
    said: watch::Sender<String>,
    /// Requests that no answer came to.
    unanswered: AtomicUsize,
    context: Mutex<Option<Context>>,
}

impl Link {
    pub(crate) fn new(config: NatsConfig) -> Result<Self, StoreError> {
        let link = Self {
            config,
            lost: watch::Sender::new(0),
            said: watch::Sender::default(),
            unanswered: AtomicUsize::new(0),
            context: Mutex::default(),
        };
        link.options()?;
        for server in link.config.url.split(',') {
            let read: Result<async_nats::ServerAddr, _> = server.trim().parse();
            // The reason could hold a password.
            read.map_err(|_| invalid("the URL cannot be read: write nats://host:port"))?;
        }
        Ok(link)
    }

    fn options(&self) -> Result<ConnectOptions, StoreError> {
        let (lost, said) = (self.lost.clone(), self.said.clone());
        let mut options = ConnectOptions::new()
            .name("semel")
            .connection_timeout(self.config.connect_timeout)
            .reconnect_delay_callback(|attempt| Duration::from_millis(50 << attempt.min(5)))
            .event_callback(move |event| {
                match event {
                    Event::Disconnected | Event::Closed => lost.send_modify(|count| *count += 1),
                    Event::ServerError(error) => drop(said.send_replace(error.to_string())),
                    Event::ClientError(error) => drop(said.send_replace(error.to_string())),
                    _ => {}
                }
                std::future::ready(())
            });
        options = match &self.config.access {
            NatsAccess::Open => options,
            NatsAccess::Password(user, password) => options.user_and_password(user.clone(), password.clone()),
            NatsAccess::Token(token) => options.token(token.clone()),
            NatsAccess::Credentials(text) => options
                .credentials(text)
                .map_err(|_| invalid("the credentials cannot be read: give the text of a .creds file"))?,
        };
        if let Some(file) = &self.config.ca_file {
            options = options.add_root_certificates(file.clone()).require_tls(true);
        }
        Ok(options)
    }

    /// Hears when the connection is lost from now on.
    pub(crate) fn lost(&self) -> watch::Receiver<u64> {
        self.lost.subscribe()
    }

    /// Hears what the server says from now on that is no answer: it does not answer what a user may not publish.
    pub(crate) fn said(&self) -> watch::Receiver<String> {
        self.said.subscribe()
    }

    /// A request begins; say when it was answered.
    pub(crate) const fn asked(&self) -> Asked<'_> {
        Asked {
            link: self,
            answered: false,
        }
    }

    /// A connected client.
    pub(crate) async fn context(&self) -> Result<Context, SinkError> {
        let mut place = self.context.lock().await;
        if self.unanswered.load(Ordering::Relaxed) >= UNANSWERED_MAX {
            // Calls that use the old one keep it until they end.
            *place = None;
            self.unanswered.store(0, Ordering::Relaxed);
        }
        if let Some(context) = &*place {
            return match context.client().connection_state() {
                State::Connected => Ok(context.clone()),
                State::Pending | State::Disconnected => {
                    Err(away("the connection was lost and is being made anew"))
                }
            };
        }
        let options = self.options().map_err(|error| away(chain(&error)))?;
        let connecting = options.connect(self.config.url.as_str());
        let client: Client = match tokio::time::timeout(self.config.connect_timeout, connecting).await {
            Ok(connected) => connected.map_err(|error| class::not_connected(&error))?,
            Err(_) => return Err(away("nobody answered in time")),
        };
        let context = ContextBuilder::new()
            .timeout(ACK)
            .ack_timeout(Duration::from_secs(30))
            .max_ack_inflight(1 << 20)
            .build(client);
        Ok(place.insert(context).clone())
    }

    /// Whether JetStream answers now.
    pub(crate) async fn probe(&self, limit: Duration) -> Result<(), SinkError> {
        let mut lost = self.lost();
        let asked = async {
            let client = self.context().await?.client();
            tokio::select! {
                answer = client.request(INFO, bytes::Bytes::new()) => match answer {
                    Ok(answer) => class::info(&answer.payload),
                    Err(error) if error.kind() == RequestErrorKind::NoResponders => Err(class::no_jetstream()),
                    Err(error) => Err(away(chain(&error))),
                },
                _ = lost.changed() => Err(away("the connection was lost")),
            }
        };
        match tokio::time::timeout(limit, asked).await {
            Ok(asked) => asked,
            Err(_) => Err(away("JetStream does not answer")),
        }
    }
}

/// A request on its way; dropped without an answer it is counted.
pub(crate) struct Asked<'a> {
    link: &'a Link,
    answered: bool,
}

impl Asked<'_> {
    pub(crate) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.link.unanswered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

pub(crate) fn away(text: impl Into<String>) -> SinkError {
    SinkError::new(SinkErrorClass::Away, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_testkit::servers::nats;

    #[tokio::test]
    async fn a_client_that_keeps_too_many_unanswered_requests_is_made_anew() {
        let link = Link::new(NatsConfig::new(nats().url())).unwrap();
        let id = async || link.context().await.unwrap().client().server_info().client_id;
        let first = id().await;
        for _ in 0..UNANSWERED_MAX {
            link.asked().answered();
        }
        assert_eq!(id().await, first, "all were answered");
        for _ in 0..UNANSWERED_MAX {
            drop(link.asked());
        }
        let second = id().await;
        assert_ne!(second, first);
        assert_eq!(id().await, second);
    }
}
