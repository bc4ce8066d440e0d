//! Carrying out the inbox machine over a store.

use bytes::Bytes;
use semel_core::inbox::mark::retention_ms;
use semel_core::inbox::run::{Command, End, Event, Fault, Run};
use semel_core::inbox::{AdvancePosition, Poison};
use semel_core::store::InboxStore;
use semel_core::{ErrorKind, Scope, StoreError, crash_point, error};

use crate::message::{Handler, Message};
use crate::receive::HandlerError;

/// How batches are settled.
#[derive(Debug, Clone)]
pub struct BatchOptions {
    /// The consumer's name, with the handler's where a service has several: ids are unique inside it.
    pub scope: Scope,
    /// Whether message ids are marked. Without, only the positions tell what is new.
    pub marks: bool,
    /// How long at least an id is remembered: longer than the broker keeps messages, plus every retry.
    pub retention: std::time::Duration,
    /// What is done about a message that can never be handled.
    pub poison: Poison,
}

/// Settles one batch in one transaction: marks, the handler's rows, parked messages and positions, as
/// [`Run`] decides. `advance` says which positions move when the first so many messages are settled.
///
/// # Guarantees
/// What [`End`] says was committed is durable, all of it together; for everything else nothing is, except
/// [`End::Unknown`], where all of it is or nothing.
///
/// # Cancel safety
/// A dropped future rolls back, or has committed already: the positions tell.
pub async fn settle_batch<S: InboxStore, H: Handler<S> + ?Sized>(
    store: &S,
    handler: &H,
    options: &BatchOptions,
    messages: &[Message],
    advance: &(dyn Fn(usize) -> Vec<AdvancePosition> + Sync),
) -> End {
    let retention = match retention_ms(options.retention) {
        Ok(retention) => retention,
        Err(limit) => return End::Later(limit.to_string()),
    };
    let keys = messages.iter().map(|message| message.key.clone()).collect();
    let mut run = Run::new(keys, options.marks, options.poison);
    let mut shell = Shell {
        store,
        handler,
        scope: &options.scope,
        retention,
        messages,
        advance,
        tx: None,
    };
    let mut command = run.start();
    loop {
        command = match command {
            Command::End(end) => return end,
            command => {
                let event = shell.carry_out(command).await.unwrap_or_else(Event::Failed);
                run.next(event)
            }
        };
    }
}

struct Shell<'a, S: InboxStore, H: ?Sized> {
    store: &'a S,
    handler: &'a H,
    scope: &'a Scope,
    retention: i64,
    messages: &'a [Message],
    advance: &'a (dyn Fn(usize) -> Vec<AdvancePosition> + Sync),
    tx: Option<S::Tx>,
}

impl<S: InboxStore, H: Handler<S> + ?Sized> Shell<'_, S, H> {
    async fn carry_out(&mut self, command: Command) -> Result<Event, Fault> {
        let store = self.store;
        match command {
            Command::Begin => self.tx = Some(store.begin_inbox().await.map_err(blame)?),
            Command::Commit => {
                let tx = self.tx.take().ok_or_else(no_transaction)?;
                crash_point("inbox.before_commit");
                store.commit_inbox(tx).await.map_err(|error| match error.kind() {
                    ErrorKind::ReplyLost => Fault::Unknown(error::chain(&error)),
                    _ => blame(error),
                })?;
                crash_point("inbox.committed");
            }
            Command::Rollback => {
                if let Some(tx) = self.tx.take() {
                    store.rollback_inbox(tx).await.map_err(blame)?;
                }
            }
            Command::End(_) => {}
            inside => {
                let tx = self.tx.as_mut().ok_or_else(no_transaction)?;
                match inside {
                    Command::ParkedKeys(keys) => {
                        let parked = store.parked_keys(tx, self.scope, &keys).await;
                        return parked.map(Event::ParkedKeys).map_err(blame);
                    }
                    Command::Mark(these) => {
                        let ids: Vec<Bytes> = these.iter().map(|at| self.messages[*at].id.clone()).collect();
                        let marks = store.mark_many(tx, self.scope, &ids, self.retention).await;
                        let marks = marks.map_err(blame)?;
                        crash_point("inbox.marked");
                        return Ok(Event::Marked(marks));
                    }
                    Command::Handle(these) => {
                        let messages: Vec<&Message> = these.iter().map(|at| &self.messages[*at]).collect();
                        self.handler.handle(tx, &messages).await.map_err(fault)?;
                    }
                    Command::Savepoint => store.savepoint(tx).await.map_err(blame)?,
                    Command::Release => store.release(tx).await.map_err(blame)?,
                    Command::RollbackTo => store.rollback_to(tx).await.map_err(blame)?,
                    Command::Park(these) => {
                        let parked: Vec<_> = these
                            .into_iter()
                            .map(|(at, why)| self.messages[at].parked(why))
                            .collect();
                        store.park_many(tx, self.scope, &parked).await.map_err(blame)?;
                    }
                    Command::Advance(upto) => {
                        let steps = (self.advance)(upto);
                        store.advance_positions(tx, &steps).await.map_err(blame)?;
                    }
                    Command::Begin | Command::Commit | Command::Rollback | Command::End(_) => {}
                }
            }
        }
        Ok(Event::Done)
    }
}

fn no_transaction() -> Fault {
    Fault::Later("no transaction is open".to_owned())
}

/// Whom a statement's error blames. Before the commit nothing is durable, whatever the connection said.
fn blame(error: StoreError) -> Fault {
    let text = error::chain(&error);
    match error.kind() {
        ErrorKind::Constraint | ErrorKind::LimitExceeded => Fault::Message(text),
        ErrorKind::LeaseLost => Fault::Lost(text),
        // Also what only a person can mend: nothing is parked for it, the consumer tries again and says so.
        _ => Fault::Later(text),
    }
}

fn fault(error: HandlerError) -> Fault {
    match error {
        HandlerError::Refused(why) => Fault::Message(why),
        HandlerError::Later(why) => Fault::Later(why),
        HandlerError::Store(error) => match blame(error) {
            // The handler's own leases are no business of the partition's owner.
            Fault::Lost(why) => Fault::Later(why),
            fault => fault,
        },
    }
}
