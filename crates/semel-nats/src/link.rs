//! The connection to the servers, and the inboxes that their acknowledgements come to.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, ConnectOptions, Event, RequestErrorKind, Subscriber};
use semel_core::StoreError;
use semel_core::error::chain;
use semel_core::store::{SinkError, SinkErrorClass};
use tokio::sync::watch;

use crate::class;
use crate::config::{NatsAccess, NatsConfig, invalid};

/// Answers that an inbox holds at most until somebody reads them; so many rows of a call may be on their way.
pub(crate) const ANSWERS_MAX: usize = 65_536;

/// Asked for, and read here: the client's own form of the answer wants fields that older servers do not send.
const INFO: &str = "$JS.API.INFO";

/// One connection, made when it is first needed; the client makes it anew by itself after it broke.
pub(crate) struct Link {
    config: NatsConfig,
    /// Counts how often the connection was lost.
    lost: watch::Sender<u64>,
    /// What the server or the client said last, outside of any answer.
    said: watch::Sender<String>,
    /// Why the connection is not made anew, while there is none.
    refused: watch::Sender<Option<String>>,
    client: tokio::sync::Mutex<Option<Client>>,
    /// Inboxes to which nothing more can come.
    idle: Mutex<Vec<Inbox>>,
}

/// Where the answers to a call's messages come to. One subscription for all of them: the client's own requests cost a
/// channel, two timers and a place in a map for each message, and keep those that nobody answers.
pub(crate) struct Inbox {
    pub(crate) answers: Subscriber,
    /// What the subjects of answers begin with.
    prefix: String,
    /// The number of the next message. No number comes twice, so that an answer that comes twice, or late, is never taken for
    /// that to another message.
    next: u64,
}

impl Inbox {
    /// Numbers for this many messages: the first of them.
    pub(crate) const fn numbers(&mut self, messages: usize) -> u64 {
        let first = self.next;
        self.next += messages as u64;
        first
    }

    /// The subject for the answer to a message.
    pub(crate) fn subject(&self, number: u64) -> String {
        format!("{}{number}", self.prefix)
    }

    /// Which message an answer is for.
    pub(crate) fn number(&self, subject: &str) -> Option<u64> {
        subject.strip_prefix(self.prefix.as_str())?.parse().ok()
    }
}

impl Link {
    pub(crate) fn new(config: NatsConfig) -> Result<Self, StoreError> {
        let link = Self {
            config,
            lost: watch::Sender::new(0),
            said: watch::Sender::default(),
            refused: watch::Sender::default(),
            client: tokio::sync::Mutex::default(),
            idle: Mutex::default(),
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
        let (lost, said, refused) = (self.lost.clone(), self.said.clone(), self.refused.clone());
        let mut options = ConnectOptions::new()
            .name("semel")
            .connection_timeout(self.config.connect_timeout)
            .subscription_capacity(ANSWERS_MAX)
            .reconnect_delay_callback(|attempt| Duration::from_millis(50 << attempt.min(5)))
            .event_callback(move |event| {
                match event {
                    Event::Connected => drop(refused.send_replace(None)),
                    Event::Disconnected | Event::Closed => {
                        refused.send_replace(None);
                        lost.send_modify(|count| *count += 1);
                    }
                    Event::ServerError(error) => drop(said.send_replace(error.to_string())),
                    Event::ClientError(error) => {
                        said.send_replace(error.to_string());
                        refused.send_replace(Some(error.to_string()));
                    }
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

    /// A connected client.
    pub(crate) async fn client(&self) -> Result<Client, SinkError> {
        let mut place = self.client.lock().await;
        if let Some(client) = &*place {
            return match client.connection_state() {
                State::Connected => Ok(client.clone()),
                State::Pending | State::Disconnected => {
                    let lost = "the connection was lost and is being made anew";
                    Err(match &*self.refused.borrow() {
                        Some(why) => class::heard(lost, why),
                        None => away(lost),
                    })
                }
            };
        }
        let options = self.options().map_err(|error| away(chain(&error)))?;
        let connecting = options.connect(self.config.url.as_str());
        let client: Client = match tokio::time::timeout(self.config.connect_timeout, connecting).await {
            Ok(connected) => connected.map_err(|error| class::not_connected(&error))?,
            Err(_) => return Err(away("nobody answered in time")),
        };
        Ok(place.insert(client).clone())
    }

    /// An inbox to which nothing is on its way.
    pub(crate) async fn inbox(&self, client: &Client) -> Result<Inbox, SinkError> {
        if let Some(inbox) = self.idle().pop() {
            return Ok(inbox);
        }
        let prefix = format!("{}.", client.new_inbox());
        let answers = client.subscribe(format!("{prefix}*")).await;
        Ok(Inbox {
            answers: answers.map_err(|error| away(chain(&error)))?,
            prefix,
            next: 0,
        })
    }

    /// Gives an inbox back: every message that named it was answered. Any other is to be dropped.
    pub(crate) fn keep(&self, inbox: Inbox) {
        self.idle().push(inbox);
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Inbox>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether JetStream answers now.
    pub(crate) async fn probe(&self, limit: Duration) -> Result<(), SinkError> {
        let mut lost = self.lost();
        let asked = async {
            let client = self.client().await?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use semel_testkit::servers::nats;

    #[tokio::test]
    async fn an_inbox_gives_no_number_twice_and_knows_its_own_answers() {
        let link = Link::new(NatsConfig::new(nats().url())).unwrap();
        let client = link.client().await.unwrap();
        let mut inbox = link.inbox(&client).await.unwrap();
        assert_eq!((inbox.numbers(3), inbox.numbers(2)), (0, 3));
        assert_eq!(inbox.number(&inbox.subject(4)), Some(4));
        let mut other = link.inbox(&client).await.unwrap();
        assert_eq!(other.number(&inbox.subject(4)), None);
        assert_eq!(other.numbers(1), 0);
        link.keep(inbox);
        let mut again = link.inbox(&client).await.unwrap();
        assert_eq!(again.numbers(1), 5);
    }
}
