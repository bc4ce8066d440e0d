//! One batch of messages becomes one transaction: the machine.
//!
//! The batch is tried plain, all messages in one call of the handler. Only after a failure that blames a message is it
//! tried again with care, message by message behind savepoints, so that the failing one is known; the
//! [`Poison`] policy then decides. A failure that blames no message ends the attempt with nothing committed.
//!
//! [`Run`] is told what came of its last [`Command`] and answers with the next one, until [`Command::End`].

use std::collections::HashSet;

use bytes::Bytes;

use super::mark::Mark;

/// What is done about a message that can never be handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Poison {
    /// What is before it commits, then the consumer stops at it, backs off and tries again. The default: nothing is
    /// passed over without somebody's decision. It stops as well before a message whose key has parked ones, of a time
    /// when the policy was [`Poison::Park`]: it would overtake them. Handle those again, or discard them.
    #[default]
    Stop,
    /// It moves to the list of parked messages, and so does every later one of its key, in the same transaction.
    Park,
}

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// A message is to blame: it would fail again.
    Message(String),
    /// No message is to blame: the batch may be tried again later.
    Later(String),
    /// A partition is not this owner's any more.
    Lost(String),
    /// The commit's answer was lost.
    Unknown(String),
}

/// What the shell is to do. Numbers are places in the batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Begin a transaction.
    Begin,
    /// Which of these ordering keys have parked messages? Answer [`Event::ParkedKeys`].
    ParkedKeys(Vec<Bytes>),
    /// Mark the ids of these messages. Answer [`Event::Marked`].
    Mark(Vec<usize>),
    /// Hand these messages to the handler, in one call.
    Handle(Vec<usize>),
    /// Set a savepoint.
    Savepoint,
    /// Keep what was written since, and check what is deferred to the commit.
    Release,
    /// Undo what was written since.
    RollbackTo,
    /// Park these messages, in this order, for these reasons.
    Park(Vec<(usize, String)>),
    /// Move the positions past the first so many messages.
    Advance(usize),
    /// Commit. When it fails there is no transaction left.
    Commit,
    /// Roll back.
    Rollback,
    /// It is over.
    End(End),
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It was carried out.
    Done,
    /// Answer to [`Command::ParkedKeys`], in the order asked.
    ParkedKeys(Vec<bool>),
    /// Answer to [`Command::Mark`], in the order asked.
    Marked(Vec<Mark>),
    /// It was not.
    Failed(Fault),
}

/// How a batch ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// Committed: effects, marks, parked messages and positions together.
    Committed(Committed),
    /// Nothing was committed, and the first message is to blame, or is behind parked ones of its key: back off, or let a
    /// person decide.
    Stopped(Stopped),
    /// Nothing was committed: try again later.
    Later(String),
    /// Nothing was committed: a partition has another owner.
    Lost(String),
    /// All of it was committed, or nothing: ask the positions.
    Unknown(String),
}

/// What a commit holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Committed {
    /// So many messages from the batch's beginning are settled; the others have not been touched.
    pub upto: usize,
    /// Of these, handled now.
    pub new: usize,
    /// Handled before, or twice in this batch.
    pub duplicates: usize,
    /// Moved to the parked messages.
    pub parked: usize,
    /// The message after them is to blame, or is behind parked ones of its key, under [`Poison::Stop`].
    pub stopped: Option<Stopped>,
}

/// A message that the batch stops at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// Its place in the batch.
    pub at: usize,
    /// Why.
    pub why: String,
}

/// The machine of one batch.
#[derive(Debug)]
pub struct Run {
    /// Ordering keys; messages without one are lanes of their own.
    keys: Vec<Option<Bytes>>,
    /// Whether ids are marked; without, positions alone tell what is new.
    marks: bool,
    poison: Poison,
    /// Message by message, with savepoints.
    careful: bool,
    /// How many messages this attempt may touch.
    limit: usize,
    /// Found guilty at the commit, alone: not tried again.
    blamed: Option<(usize, String)>,
    attempt: Attempt,
    waits_for: Waits,
}

/// What one attempt has come to.
#[derive(Debug, Default)]
struct Attempt {
    next: usize,
    parked_keys: HashSet<Bytes>,
    to_park: Vec<(usize, String)>,
    /// Handed to the handler, and not yet known to be good.
    in_hand: usize,
    committed: Committed,
}

/// Whose answer the machine waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Waits {
    Nothing,
    Begin,
    ParkedKeys(Vec<Bytes>),
    Mark(Vec<usize>),
    Handle,
    Savepoint,
    Release,
    /// Back to the savepoint, because of this.
    RollbackTo(String),
    Park,
    Advance,
    Commit,
    /// Then try with care.
    RollbackToRetry,
    RollbackToEnd(End),
}

const BEHIND: &str = "an earlier message of its key is parked";

impl Run {
    /// A machine for messages with these ordering keys.
    #[must_use]
    pub fn new(keys: Vec<Option<Bytes>>, marks: bool, poison: Poison) -> Self {
        Self {
            limit: keys.len(),
            keys,
            marks,
            poison,
            careful: false,
            blamed: None,
            attempt: Attempt::default(),
            waits_for: Waits::Nothing,
        }
    }

    /// The first command.
    pub fn start(&mut self) -> Command {
        if self.keys.is_empty() {
            return Command::End(End::Committed(Committed::default()));
        }
        self.begin()
    }

    fn begin(&mut self) -> Command {
        self.attempt = Attempt::default();
        self.ask(Waits::Begin, Command::Begin)
    }

    fn ask(&mut self, waits_for: Waits, command: Command) -> Command {
        self.waits_for = waits_for;
        command
    }

    fn end(&mut self, end: End) -> Command {
        self.ask(Waits::Nothing, Command::End(end))
    }

    /// The next command, now that this came of the last one.
    pub fn next(&mut self, event: Event) -> Command {
        let waits_for = std::mem::replace(&mut self.waits_for, Waits::Nothing);
        match event {
            Event::Failed(fault) => self.failed(waits_for, fault),
            event => self.done(waits_for, event),
        }
    }

    fn done(&mut self, waits_for: Waits, event: Event) -> Command {
        match (waits_for, event) {
            (Waits::Begin, _) => {
                let keys = self.distinct_keys();
                if !keys.is_empty() {
                    return self.ask(Waits::ParkedKeys(keys.clone()), Command::ParkedKeys(keys));
                }
                self.go()
            }
            (Waits::ParkedKeys(keys), Event::ParkedKeys(parked)) => {
                let parked = keys.into_iter().zip(parked).filter(|(_, parked)| *parked);
                self.attempt.parked_keys = parked.map(|(key, _)| key).collect();
                self.go()
            }
            (Waits::Mark(asked), Event::Marked(marks)) => {
                let new: Vec<usize> = asked
                    .iter()
                    .zip(marks)
                    .filter(|(_, mark)| *mark == Mark::New)
                    .map(|(at, _)| *at)
                    .collect();
                self.attempt.committed.duplicates += asked.len() - new.len();
                self.handle(new)
            }
            (Waits::Handle, _) if self.careful => self.ask(Waits::Release, Command::Release),
            (Waits::Handle, _) => {
                self.attempt.committed.new += std::mem::take(&mut self.attempt.in_hand);
                self.finish()
            }
            (Waits::Savepoint, _) => {
                let at = self.attempt.next;
                self.mark_or_handle(vec![at])
            }
            (Waits::Release, _) => {
                self.attempt.committed.new += std::mem::take(&mut self.attempt.in_hand);
                self.attempt.next += 1;
                self.one()
            }
            (Waits::RollbackTo(why), _) => self.poisoned(why),
            (Waits::Park, _) => self.advance(),
            (Waits::Advance, _) => self.ask(Waits::Commit, Command::Commit),
            (Waits::Commit, _) => {
                let committed = std::mem::take(&mut self.attempt.committed);
                self.end(End::Committed(committed))
            }
            (Waits::RollbackToRetry, _) => {
                self.careful = true;
                self.begin()
            }
            (Waits::RollbackToEnd(end), _) => self.end(end),
            (Waits::Nothing | Waits::ParkedKeys(_) | Waits::Mark(_), _) => {
                // An answer to another question: the shell is wrong, and nothing may be committed on its word.
                let end = End::Later("the inbox was answered out of turn".to_owned());
                self.ask(Waits::RollbackToEnd(end), Command::Rollback)
            }
        }
    }

    fn failed(&mut self, waits_for: Waits, fault: Fault) -> Command {
        let end = match fault {
            Fault::Message(why) => return self.blames(waits_for, why),
            Fault::Later(why) => End::Later(why),
            Fault::Lost(why) => End::Lost(why),
            Fault::Unknown(why) => End::Unknown(why),
        };
        match waits_for {
            // No transaction is left, or none has begun.
            Waits::Begin | Waits::Commit | Waits::Nothing => self.end(end),
            // A rollback without an answer is one all the same: the connection is gone.
            Waits::RollbackToRetry => {
                self.careful = true;
                self.begin()
            }
            Waits::RollbackToEnd(end) => self.end(end),
            _ => self.ask(Waits::RollbackToEnd(end), Command::Rollback),
        }
    }

    /// A message is to blame.
    fn blames(&mut self, waits_for: Waits, why: String) -> Command {
        match waits_for {
            Waits::Mark(_) | Waits::Handle | Waits::Release if self.careful => {
                self.ask(Waits::RollbackTo(why), Command::RollbackTo)
            }
            Waits::Mark(_) | Waits::Handle => self.ask(Waits::RollbackToRetry, Command::Rollback),
            Waits::Commit if !self.careful => {
                self.careful = true;
                self.begin()
            }
            // Even with care nothing failed before the commit: halve until one is left (rule I2).
            Waits::Commit => self.bisect(why),
            other => self.failed(other, Fault::Later(why)),
        }
    }

    fn bisect(&mut self, why: String) -> Command {
        let tried = self.attempt.committed.upto;
        if tried > 1 {
            self.limit = tried / 2;
            return self.begin();
        }
        match self.poison {
            Poison::Stop => self.end(End::Stopped(Stopped { at: 0, why })),
            Poison::Park if self.blamed.is_none() => {
                self.blamed = Some((0, why));
                self.begin()
            }
            // It fails though the message was only set aside: whatever it is, it is not the message.
            Poison::Park => self.end(End::Later(why)),
        }
    }

    fn distinct_keys(&self) -> Vec<Bytes> {
        let mut keys: Vec<Bytes> = self.keys[..self.limit].iter().flatten().cloned().collect();
        keys.sort();
        keys.dedup();
        keys
    }

    fn go(&mut self) -> Command {
        if self.careful {
            return self.one();
        }
        let mut free = Vec::new();
        self.attempt.next = self.limit;
        for at in 0..self.limit {
            if !self.behind_parked(at) {
                free.push(at);
            } else if self.poison == Poison::Park {
                self.attempt.to_park.push((at, BEHIND.to_owned()));
            } else if at == 0 {
                return self.stopped_at_first(BEHIND.to_owned());
            } else {
                self.attempt.next = at;
                self.attempt.committed.stopped = Some(Stopped {
                    at,
                    why: BEHIND.to_owned(),
                });
                break;
            }
        }
        self.mark_or_handle(free)
    }

    fn behind_parked(&self, at: usize) -> bool {
        let key = self.keys[at].as_ref();
        key.is_some_and(|key| self.attempt.parked_keys.contains(key))
    }

    /// The next message, behind a savepoint; those behind parked ones without.
    fn one(&mut self) -> Command {
        while self.attempt.next < self.limit {
            let at = self.attempt.next;
            if self.behind_parked(at) {
                if self.poison == Poison::Stop {
                    return self.poisoned(BEHIND.to_owned());
                }
                self.attempt.to_park.push((at, BEHIND.to_owned()));
            } else if let Some((blamed, why)) = &self.blamed
                && *blamed == at
            {
                let why = why.clone();
                self.set_aside(at, why);
            } else {
                return self.ask(Waits::Savepoint, Command::Savepoint);
            }
            self.attempt.next += 1;
        }
        self.finish()
    }

    fn set_aside(&mut self, at: usize, why: String) {
        self.attempt.to_park.push((at, why));
        if let Some(key) = &self.keys[at] {
            self.attempt.parked_keys.insert(key.clone());
        }
    }

    fn mark_or_handle(&mut self, these: Vec<usize>) -> Command {
        if self.marks && !these.is_empty() {
            return self.ask(Waits::Mark(these.clone()), Command::Mark(these));
        }
        self.handle(these)
    }

    fn handle(&mut self, these: Vec<usize>) -> Command {
        if these.is_empty() {
            // As if it had been carried out.
            return self.done(Waits::Handle, Event::Done);
        }
        self.attempt.in_hand = these.len();
        self.ask(Waits::Handle, Command::Handle(these))
    }

    /// The message at hand cannot be handled; what it wrote is undone.
    fn poisoned(&mut self, why: String) -> Command {
        let at = self.attempt.next;
        self.attempt.in_hand = 0;
        match self.poison {
            Poison::Park => {
                self.set_aside(at, why);
                self.attempt.next += 1;
                self.one()
            }
            Poison::Stop if at == 0 => self.stopped_at_first(why),
            Poison::Stop => {
                self.attempt.committed.stopped = Some(Stopped { at, why });
                self.finish()
            }
        }
    }

    fn stopped_at_first(&mut self, why: String) -> Command {
        let end = End::Stopped(Stopped { at: 0, why });
        self.ask(Waits::RollbackToEnd(end), Command::Rollback)
    }

    fn finish(&mut self) -> Command {
        let committed = &mut self.attempt.committed;
        committed.upto = self.attempt.next;
        committed.parked = self.attempt.to_park.len();
        let to_park = std::mem::take(&mut self.attempt.to_park);
        if to_park.is_empty() {
            return self.advance();
        }
        self.ask(Waits::Park, Command::Park(to_park))
    }

    fn advance(&mut self) -> Command {
        let upto = self.attempt.committed.upto;
        self.ask(Waits::Advance, Command::Advance(upto))
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
