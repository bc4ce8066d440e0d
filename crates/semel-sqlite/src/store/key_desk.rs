//! A batch on the desk: records read, decided one by one by the pure machine, to be written back at once.

use std::collections::HashSet;

use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, LeaseReply, Record, Release, Settlement, Token,
    step,
};
use semel_core::limits::LimitExceeded;
use semel_core::store::Replies;
use semel_core::{Key, StoreError, Timestamp};

use super::key_rows::Records;

/// One kind of transition: what it is called, what it concerns, and its pure machine.
pub(super) struct Transition<T, R> {
    pub(super) operation: &'static str,
    pub(super) key: fn(&T) -> &Key,
    check: fn(&T) -> Result<(), LimitExceeded>,
    /// Whether it may draw a token.
    pub(super) draws: bool,
    step: Step<T, R>,
}

/// One of the functions of [`step`]; those that draw no token ignore it.
type Step<T, R> = fn(Option<Record>, &T, Timestamp, Token) -> (Option<Record>, R);

pub(super) const CLAIM: Transition<Claim, ClaimReply> = Transition {
    operation: "claim",
    key: |claim| &claim.key,
    check: Claim::check,
    draws: true,
    step: step::claim,
};

pub(super) const COMPLETE: Transition<Completion, LeaseReply> = Transition {
    operation: "complete",
    key: |done| &done.key,
    check: Completion::check,
    draws: false,
    step: |record, done, now, _| step::complete(record, done, now),
};

pub(super) const EXTEND: Transition<Extension, LeaseReply> = Transition {
    operation: "extend",
    key: |wish| &wish.key,
    check: Extension::check,
    draws: false,
    step: |record, wish, now, _| step::extend(record, wish, now),
};

pub(super) const RELEASE: Transition<Release, LeaseReply> = Transition {
    operation: "release",
    key: |release| &release.key,
    check: |_| Ok(()),
    draws: false,
    step: |record, release, now, _| step::release(record, release, now),
};

pub(super) const ABANDON: Transition<Abandonment, LeaseReply> = Transition {
    operation: "abandon",
    key: |abandonment| &abandonment.key,
    check: |_| Ok(()),
    draws: false,
    step: |record, abandonment, now, _| step::abandon(record, abandonment, now),
};

pub(super) const SETTLE: Transition<Settlement, LeaseReply> = Transition {
    operation: "settle",
    key: |settlement| &settlement.key,
    check: Settlement::check,
    draws: false,
    step: |record, settlement, now, _| step::settle(record, settlement, now),
};

pub(super) const READ: Transition<Key, Option<Record>> = Transition {
    operation: "read",
    key: |key| key,
    check: |_| Ok(()),
    draws: false,
    step: |record, _, now, _| {
        let record = record.and_then(|record| record.at(now));
        let seen = record.clone().and_then(|record| record.visible_at(now));
        (record, seen)
    },
};

/// Each key once.
pub(super) fn distinct<'a>(keys: impl Iterator<Item = &'a Key>) -> Vec<&'a Key> {
    let mut seen = HashSet::new();
    keys.filter(|key| seen.insert(*key)).collect()
}

/// Records, and what decisions have made of them so far.
pub(super) struct Desk {
    records: Records,
    /// Keys whose records differ from what is stored.
    pub(super) changed: HashSet<Key>,
    now: Timestamp,
    last: Token,
}

impl Desk {
    /// `last` is the token before the first that may be drawn.
    pub(super) fn new(records: Records, now: Timestamp, last: Token) -> Self {
        Self {
            records,
            changed: HashSet::new(),
            now,
            last,
        }
    }

    /// Decides a batch, in order.
    pub(super) fn decide_all<T, R>(&mut self, items: &[T], transition: &Transition<T, R>) -> Replies<R> {
        items.iter().map(|item| self.decide(item, transition)).collect()
    }

    /// Decides one item.
    pub(super) fn decide<T, R>(&mut self, item: &T, transition: &Transition<T, R>) -> Result<R, StoreError> {
        (transition.check)(item)?;
        let key = (transition.key)(item);
        let before = self.records.get(key).cloned().transpose()?;
        let next = Token(self.last.0.saturating_add(1));
        let (after, reply) = (transition.step)(before.clone(), item, self.now, next);
        if step::changes(before.as_ref(), after.as_ref(), self.now) {
            let lease = after.as_ref().and_then(Record::lease);
            if lease.is_some_and(|lease| lease.token == next) {
                self.last = next;
            }
            self.changed.insert(key.clone());
            match after {
                Some(record) => self.records.insert(key.clone(), Ok(record)),
                None => self.records.remove(key),
            };
        }
        Ok(reply)
    }

    /// The reply to one item, unless something would have to be written for it. Remembers nothing: of two items of one
    /// key neither sees what the other one would do.
    pub(super) fn look<T, R>(
        &self,
        item: &T,
        transition: &Transition<T, R>,
    ) -> Result<Option<R>, StoreError> {
        (transition.check)(item)?;
        let before = self.records.get((transition.key)(item)).cloned().transpose()?;
        let (after, reply) = (transition.step)(before.clone(), item, self.now, self.last);
        let changes = step::changes(before.as_ref(), after.as_ref(), self.now);
        Ok((!changes).then_some(reply))
    }

    /// The records to write; `None` for one to remove.
    pub(super) fn changed(mut self) -> Vec<(Key, Option<Record>)> {
        let record = |key: Key| {
            let record = self.records.remove(&key).and_then(Result::ok);
            (key, record)
        };
        self.changed.into_iter().map(record).collect()
    }
}
