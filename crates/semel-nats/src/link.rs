//! The connection to the servers.

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

/// Asked for, and read here: the client's own form of the answer wants fields that older servers do not send.
const INFO: &str = "$JS.API.INFO";

/// One connection, made when it is first needed; the client makes it anew by itself after it broke.
pub(crate) struct Link {
    config: NatsConfig,
    /// Counts how often the connection was lost.
    lost: watch::Sender<u64>,
    context: Mutex<Option<Context>>,
}

impl Link {
    pub(crate) fn new(config: NatsConfig) -> Result<Self, StoreError> {
        let link = Self {
            config,
            lost: watch::Sender::new(0),
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
        let lost = self.lost.clone();
        let mut options = ConnectOptions::new()
            .name("semel")
            .connection_timeout(self.config.connect_timeout)
            .reconnect_delay_callback(|attempt| Duration::from_millis(50 << attempt.min(5)))
            .event_callback(move |event| {
                if matches!(event, Event::Disconnected | Event::Closed) {
                    lost.send_modify(|count| *count += 1);
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

    /// A connected client.
    pub(crate) async fn context(&self) -> Result<Context, SinkError> {
        let mut place = self.context.lock().await;
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

pub(crate) fn away(text: impl Into<String>) -> SinkError {
    SinkError::new(SinkErrorClass::Away, text)
}
