//! The inbox in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{ErrorKind, StoreError};
use crate::host::{Clock, SystemClock, Timestamp};
use crate::inbox::{AdvancePosition, AssignPosition, Mark, MarkPlan, Position, PositionKey, position};
use crate::key::Scope;
use crate::store::{InboxStore, Parked, TakenParked};

/// An inbox in this process's memory. Gone with the process; for tests and as the specification.
///
/// Transactions see the state as of their beginning, and of two that overlap the first to commit wins: the other gets
/// `NotApplied` and is to be repeated. Servers make the second wait instead; what is durable in the end is the same.
pub struct MemoryInbox {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Clone, Default)]
struct State {
    /// Commits so far.
    commits: u64,
    /// Until when each mark is kept.
    marks: BTreeMap<(Scope, Bytes), Timestamp>,
    positions: HashMap<PositionKey, Position>,
    /// By number.
    parked: BTreeMap<i64, (Scope, Parked)>,
    /// The number given last.
    parked_last: i64,
    parked_keys: BTreeSet<(Scope, Bytes)>,
}

/// A transaction of [`MemoryInbox`]: its own copy of everything.
pub struct MemoryTx {
    begun_at: u64,
    state: State,
    savepoint: Option<Box<State>>,
}

impl State {
    /// Takes messages out of the list, and their keys with the last message of each.
    fn unpark(&mut self, numbers: impl IntoIterator<Item = i64>) -> Vec<Parked> {
        let mut taken = Vec::new();
        for number in numbers {
            let Some((scope, message)) = self.parked.remove(&number) else {
                continue;
            };
            if let Some(key) = message.key.clone()
                && !self
                    .parked
                    .values()
                    .any(|(s, m)| *s == scope && m.key == message.key)
            {
                self.parked_keys.remove(&(scope, key));
            }
            taken.push(message);
        }
        taken
    }
}

impl Default for MemoryInbox {
    fn default() -> Self {
        Self::new(Arc::new(SystemClock))
    }
}

impl MemoryInbox {
    /// An empty inbox that reads this clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl InboxStore for MemoryInbox {
    type Tx = MemoryTx;

    async fn begin_inbox(&self) -> Result<MemoryTx, StoreError> {
        let state = self.lock().clone();
        Ok(MemoryTx {
            begun_at: state.commits,
            state,
            savepoint: None,
        })
    }

    async fn mark_many(
        &self,
        tx: &mut MemoryTx,
        scope: &Scope,
        ids: &[Bytes],
        retention_ms: i64,
    ) -> Result<Vec<Mark>, StoreError> {
        let plan = MarkPlan::new(ids)?;
        let until = self.clock.now().plus_ms(retention_ms);
        let marks = &mut tx.state.marks;
        let inserted: Vec<Bytes> = plan
            .distinct()
            .iter()
            .filter(|id| !marks.contains_key(&(scope.clone(), Bytes::clone(id))))
            .cloned()
            .collect();
        marks.extend(inserted.iter().map(|id| ((scope.clone(), id.clone()), until)));
        Ok(plan.answer(inserted))
    }

    async fn savepoint(&self, tx: &mut MemoryTx) -> Result<(), StoreError> {
        tx.savepoint = Some(Box::new(tx.state.clone()));
        Ok(())
    }

    async fn release(&self, tx: &mut MemoryTx) -> Result<(), StoreError> {
        tx.savepoint.take().map(drop).ok_or_else(no_savepoint)
    }

    async fn rollback_to(&self, tx: &mut MemoryTx) -> Result<(), StoreError> {
        tx.state = *tx.savepoint.take().ok_or_else(no_savepoint)?;
        Ok(())
    }

    async fn parked_keys(
        &self,
        tx: &mut MemoryTx,
        scope: &Scope,
        keys: &[Bytes],
    ) -> Result<Vec<bool>, StoreError> {
        let parked = &tx.state.parked_keys;
        Ok(keys
            .iter()
            .map(|key| parked.contains(&(scope.clone(), key.clone())))
            .collect())
    }

    async fn park_many(
        &self,
        tx: &mut MemoryTx,
        scope: &Scope,
        messages: &[Parked],
    ) -> Result<(), StoreError> {
        for message in messages {
            if let Some(key) = &message.key {
                tx.state.parked_keys.insert((scope.clone(), key.clone()));
            }
            let here = |(s, m): &(Scope, Parked)| s == scope && m.id == message.id;
            if !tx.state.parked.values().any(here) {
                let message = Parked {
                    reason: message.reason_cut(),
                    ..message.clone()
                };
                tx.state.parked_last += 1;
                let number = tx.state.parked_last;
                tx.state.parked.insert(number, (scope.clone(), message));
            }
        }
        Ok(())
    }

    async fn take_parked(
        &self,
        tx: &mut MemoryTx,
        scope: &Scope,
        after: i64,
        limit: u32,
    ) -> Result<Option<TakenParked>, StoreError> {
        let parked = &tx.state.parked;
        let lane = |message: &Parked| {
            let key = message.key.clone();
            let id = key.is_none().then(|| message.id.clone());
            (key, id)
        };
        let mut lanes = BTreeSet::new();
        let firsts = parked
            .iter()
            .filter(|(_, (s, m))| s == scope && lanes.insert(lane(m)));
        let Some((&first, (_, oldest))) = firsts.into_iter().find(|(n, _)| **n > after) else {
            return Ok(None);
        };
        let wanted = lane(oldest);
        let numbers: Vec<i64> = parked
            .iter()
            .filter(|(_, (s, m))| s == scope && lane(m) == wanted)
            .map(|(n, _)| *n)
            .take(limit as usize)
            .collect();
        let messages = tx.state.unpark(numbers);
        Ok(Some(TakenParked { first, messages }))
    }

    async fn discard_parked(
        &self,
        tx: &mut MemoryTx,
        scope: &Scope,
        id: &Bytes,
    ) -> Result<Option<Parked>, StoreError> {
        let mut parked = tx.state.parked.iter();
        let Some((&number, _)) = parked.find(|(_, (s, m))| s == scope && m.id == id) else {
            return Ok(None);
        };
        Ok(tx.state.unpark([number]).pop())
    }

    async fn assign_positions(&self, wishes: &[AssignPosition]) -> Result<Vec<Position>, StoreError> {
        wishes.iter().try_for_each(|wish| wish.key.check())?;
        let mut state = self.lock();
        state.commits += 1;
        Ok(wishes
            .iter()
            .map(|wish| {
                let position = position::assign(state.positions.get(&wish.key).copied(), wish);
                state.positions.insert(wish.key.clone(), position);
                position
            })
            .collect())
    }

    async fn advance_positions(
        &self,
        tx: &mut MemoryTx,
        steps: &[AdvancePosition],
    ) -> Result<(), StoreError> {
        for step in steps {
            let stored = tx.state.positions.get(&step.key).copied();
            let Some(position) = position::advance(stored, step) else {
                let text = "a partition is not this owner's any more, or not where this batch began";
                return Err(StoreError::new(ErrorKind::LeaseLost, "advance_positions", text));
            };
            tx.state.positions.insert(step.key.clone(), position);
        }
        Ok(())
    }

    async fn commit_inbox(&self, tx: MemoryTx) -> Result<(), StoreError> {
        let mut state = self.lock();
        if state.commits != tx.begun_at {
            let text = "another transaction was in the way; repeat the whole transaction";
            return Err(StoreError::new(ErrorKind::NotApplied, "commit", text));
        }
        *state = tx.state;
        state.commits += 1;
        Ok(())
    }

    async fn rollback_inbox(&self, _tx: MemoryTx) -> Result<(), StoreError> {
        Ok(())
    }

    async fn purge_inbox(&self, limit: u32) -> Result<u64, StoreError> {
        let now = self.clock.now();
        let mut state = self.lock();
        state.commits += 1;
        let due: Vec<_> = state
            .marks
            .iter()
            .filter(|(_, until)| **until <= now)
            .map(|(mark, _)| mark.clone())
            .take(limit as usize)
            .collect();
        for mark in &due {
            state.marks.remove(mark);
        }
        Ok(due.len() as u64)
    }
}

fn no_savepoint() -> StoreError {
    StoreError::new(ErrorKind::Invalid, "savepoint", "none is set")
}
