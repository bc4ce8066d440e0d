//! What a sink's tests bring along.

use std::time::Duration;

use async_trait::async_trait;
use semel_core::{Event, Sink};

use crate::proxy::Proxy;

/// Longer than anything healthy takes on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(60);

/// What the law does with the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receiver {
    /// Other tests may use it at the same time.
    Shared,
    /// The law kills it and starts it again.
    Alone,
}

/// How headers come out at the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderForm {
    /// In order, with their names as they were given.
    Exact,
    /// As HTTP has them: names without their case, and only the values of one name keep their order.
    ByName,
}

/// One event as a consumer sees it, decoded as the sink's documentation says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    /// The event. Its stream is not on the wire: leave `default`.
    pub event: Event,
    /// CloudEvents `time`, as it stands on the wire.
    pub time: String,
    /// CloudEvents `sequence`, where there is one.
    pub sequence: Option<String>,
}

/// What lies between a sink and its receiver, to be broken. [`Proxy`] is one.
#[async_trait]
pub trait Line: Send + Sync {
    /// Nothing gets through until [`Line::restore`]; connections stay open.
    fn hold(&self);

    /// Connections are cut, and new ones too, until [`Line::restore`].
    fn sever(&self);

    /// All is well again.
    fn restore(&self);

    /// Once: the connection is cut when so many more bytes have gone to the receiver.
    fn cut_sends(&self, bytes: u64);

    /// Once: the connection is cut when so many more bytes have come back.
    fn cut_answers(&self, bytes: u64);

    /// How many of those cuts have happened.
    fn cuts(&self) -> u64;
}

impl Line for Proxy {
    fn hold(&self) {
        self.pause();
    }

    fn sever(&self) {
        self.refuse(true);
        self.cut();
    }

    fn restore(&self) {
        self.refuse(false);
        self.resume();
    }

    fn cut_sends(&self, bytes: u64) {
        self.cut_after(bytes);
    }

    fn cut_answers(&self, bytes: u64) {
        self.cut_reply_after(bytes);
    }

    fn cuts(&self) -> u64 {
        self.hits()
    }
}

/// A sink with its receiver. One bed serves one law.
#[async_trait]
pub trait SinkBed: Send + Sync {
    /// The sink. It reaches its receiver by way of [`SinkBed::line`].
    fn sink(&self) -> &dyn Sink;

    /// What lies between them.
    fn line(&self) -> &dyn Line;

    /// A destination that is there, is empty, and is nobody else's.
    async fn topic(&self) -> String;

    /// A destination that is not there; nothing where the receiver takes every name.
    async fn missing_topic(&self) -> Option<String>;

    /// Makes that destination; it is there for the sink when this returns.
    async fn make_topic(&self, topic: &str);

    /// Everything that has arrived at a destination, repeats included; the rows of a key in the order of arrival. Called
    /// when the line is whole and the receiver runs.
    async fn arrived(&self, topic: &str) -> Vec<Arrived>;

    /// Makes of this event one that passes [`Sink::check`] and that the receiver refuses for good, at a destination of
    /// [`SinkBed::topic`]; nothing where it refuses none.
    fn refused(&self, event: Event) -> Option<Event>;

    /// Makes of this event one that is too large for the sink or its receiver; nothing where there is no such limit
    /// below the one of every event.
    fn oversized(&self, event: Event) -> Option<Event>;

    /// Kills the receiver as `kill -9` does. Only under [`Receiver::Alone`].
    async fn kill(&self);

    /// Starts it again, with what it had; returns when it answers.
    async fn start(&self);

    /// How headers come out.
    fn headers(&self) -> HeaderForm {
        HeaderForm::Exact
    }
}
