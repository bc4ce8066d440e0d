//! A batch on the desk: records read, decided one by one by the pure machine, to be written back at once.

use std::collections::HashMap;

use semel_core::claim::{
    Abandonment, Claim, ClaimReply, Completion, Extension, LeaseReply, Record, Release, Settlement, Token,
    step,
};
use semel_core::limits::LimitExceeded;
use semel_core::store::Replies;
use semel_core::{Key, StoreError, Timestamp};

use super::key_table::KeyTable;
use crate::direct::Changed;

/// For what draws none.
const NO_TOKEN: Token = Token(i64::MIN);

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

/// What a batch of decisions came to, or why none of it holds.
type Decided<R> = Result<R, StoreError>;

/// One key of the batch.
struct Slot {
    key: Key,
    /// The number of its row in the file.
    row: Option<i64>,
    /// What is known about it now, or why its row cannot be read.
    record: Result<Option<Record>, StoreError>,
    changed: bool,
}

/// The records that a batch concerns, each read when it is first asked for, and what decisions have made of them so far.
pub(super) struct Desk<'c> {
    table: KeyTable<'c>,
    places: HashMap<Key, usize>,
    slots: Vec<Slot>,
    now: Timestamp,
    /// The token drawn last, here or before, once that has been asked for.
    last: Option<Token>,
    drawn: bool,
}

impl<'c> Desk<'c> {
    pub(super) fn new(table: KeyTable<'c>, now: Timestamp) -> Self {
        Self {
            table,
            places: HashMap::new(),
            slots: Vec::new(),
            now,
            last: None,
            drawn: false,
        }
    }

    /// Decides a batch, in order.
    pub(super) fn decide_all<T, R>(
        &mut self,
        items: &[T],
        transition: &Transition<T, R>,
    ) -> Decided<Replies<R>> {
        items.iter().map(|item| self.decide(item, transition)).collect()
    }

    fn decide<T, R>(&mut self, item: &T, transition: &Transition<T, R>) -> Decided<Result<R, StoreError>> {
        if let Err(limit) = (transition.check)(item) {
            return Ok(Err(limit.into()));
        }
        let next = self.next_token(transition.draws)?;
        let place = self.place((transition.key)(item))?;
        let slot = &mut self.slots[place];
        let before = match &slot.record {
            Ok(record) => record,
            Err(error) => return Ok(Err(error.clone())),
        };
        let (after, reply) = (transition.step)(before.clone(), item, self.now, next);
        if step::changes(before.as_ref(), after.as_ref(), self.now) {
            let lease = after.as_ref().and_then(Record::lease);
            if transition.draws && lease.is_some_and(|lease| lease.token == next) {
                (self.last, self.drawn) = (Some(next), true);
            }
            (slot.record, slot.changed) = (Ok(after), true);
        }
        Ok(Ok(reply))
    }

    /// The reply to one item, unless something would have to be written for it. Remembers nothing: of two items of one
    /// key neither sees what the other one would do.
    pub(super) fn look<T, R>(
        &mut self,
        item: &T,
        transition: &Transition<T, R>,
    ) -> Decided<Result<Option<R>, StoreError>> {
        if let Err(limit) = (transition.check)(item) {
            return Ok(Err(limit.into()));
        }
        let place = self.place((transition.key)(item))?;
        let before = match &self.slots[place].record {
            Ok(record) => record,
            Err(error) => return Ok(Err(error.clone())),
        };
        let (after, reply) = (transition.step)(before.clone(), item, self.now, NO_TOKEN);
        let changes = step::changes(before.as_ref(), after.as_ref(), self.now);
        Ok(Ok((!changes).then_some(reply)))
    }

    /// Writes what has changed.
    pub(super) fn save(mut self) -> Decided<Changed> {
        let mut changed = Changed::No;
        for slot in self.slots.iter().filter(|slot| slot.changed) {
            changed = Changed::Yes;
            match (slot.row, slot.record.as_ref().ok().and_then(Option::as_ref)) {
                (Some(row), Some(record)) => self.table.update(row, record)?,
                (None, Some(record)) => self.table.insert(&slot.key, record)?,
                (Some(row), None) => self.table.delete(row)?,
                (None, None) => {}
            }
        }
        if let Some(last) = self.last.filter(|_| self.drawn) {
            self.table.set_token(last)?;
        }
        Ok(changed)
    }

    fn next_token(&mut self, draws: bool) -> Decided<Token> {
        if !draws {
            return Ok(NO_TOKEN);
        }
        let last = match self.last {
            Some(last) => last,
            None => *self.last.insert(self.table.last_token(self.now)?),
        };
        Ok(Token(last.0.saturating_add(1)))
    }

    fn place(&mut self, key: &Key) -> Decided<usize> {
        if let Some(place) = self.places.get(key) {
            return Ok(*place);
        }
        let (row, record) = self
            .table
            .load(key)?
            .map(|found| (found.row, found.record))
            .unzip();
        let place = self.slots.len();
        self.places.insert(key.clone(), place);
        self.slots.push(Slot {
            key: key.clone(),
            row,
            record: record.transpose(),
            changed: false,
        });
        Ok(place)
    }
}
