//! The connection to the broker and its channels.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lapin::options::ConfirmSelectOptions;
use lapin::tcp::OwnedTLSConfig;
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionBuilder, ConnectionProperties};
use semel_core::store::{SinkError, SinkErrorClass};

use crate::class;

/// One connection, made when it is needed, and made anew after it broke. Each call has a channel to itself: what comes back
/// on it belongs to that call.
pub(crate) struct Link {
    uri: AMQPUri,
    tls: OwnedTLSConfig,
    connect_timeout: Duration,
    connection: tokio::sync::Mutex<Option<Arc<Connection>>>,
    /// Channels on which nothing is on its way.
    idle: Mutex<Vec<Channel>>,
}

impl Link {
    pub(crate) fn new(uri: AMQPUri, tls: OwnedTLSConfig, connect_timeout: Duration) -> Self {
        Self {
            uri,
            tls,
            connect_timeout,
            connection: tokio::sync::Mutex::default(),
            idle: Mutex::default(),
        }
    }

    /// A channel in confirm mode.
    pub(crate) async fn channel(&self) -> Result<Channel, SinkError> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match idle {
                Some(channel) if channel.status().connected() => return Ok(channel),
                Some(_) => {}
                None => break,
            }
        }
        let made = async {
            let channel = self.connection().await?.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok(channel)
        };
        match tokio::time::timeout(self.connect_timeout, made).await {
            Ok(made) => made.map_err(|error: lapin::Error| class::explain(&error)),
            Err(_) => Err(self.late()),
        }
    }

    async fn connection(&self) -> lapin::Result<Arc<Connection>> {
        let mut place = self.connection.lock().await;
        if let Some(connection) = &*place
            && connection.status().connected()
        {
            return Ok(Arc::clone(connection));
        }
        let properties = ConnectionProperties::default().with_connection_name("semel".into());
        let connection = ConnectionBuilder::new()?
            .with_uri(self.uri.clone())
            .with_tls_config(self.tls.clone())
            .with_properties(properties)
            .connect()
            .await?;
        Ok(Arc::clone(place.insert(Arc::new(connection))))
    }

    /// Gives a channel back on which nothing is on its way.
    pub(crate) fn keep(&self, channel: Channel) {
        if channel.status().connected() {
            self.idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(channel);
        }
    }

    /// Whether the broker answers now.
    pub(crate) async fn probe(&self, limit: Duration) -> Result<(), SinkError> {
        let asked = async {
            let channel = self.connection().await?.create_channel().await?;
            channel.close(200, "probed".into()).await
        };
        match tokio::time::timeout(limit, asked).await {
            Ok(asked) => asked.map_err(|error| class::explain(&error)),
            Err(_) => Err(self.late()),
        }
    }

    fn late(&self) -> SinkError {
        let authority = &self.uri.authority;
        let text = format!("no answer from {}:{}", authority.host, authority.port);
        SinkError::new(SinkErrorClass::Away, text)
    }
}
