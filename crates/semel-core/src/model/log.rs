//! A log in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use crate::event::Event;
use crate::limits::LimitExceeded;
use crate::relay::{LogPlace, ShardId};
use crate::store::{
    LogSink, OutboxRow, Sink, SinkError, SinkErrorClass, SinkFuture, SinkOrder, TransactionEnd,
    TransactionFuture,
};

/// A log whose transactions hold events and places: the specification of [`LogSink`].
///
/// Each [`MemoryLog::resume`] begins a session of its shard and ends all others: what they left open never comes in.
#[derive(Debug, Default)]
pub struct MemoryLog(Mutex<BTreeMap<ShardId, ShardLog>>);

#[derive(Debug, Default)]
struct ShardLog {
    session: u64,
    place: Option<LogPlace>,
    rows: Vec<Arc<OutboxRow>>,
    open: VecDeque<Transaction>,
    /// One was aborted, and its sender has not said that it goes on.
    aborted: bool,
}

#[derive(Debug)]
struct Transaction {
    number: u64,
    rows: Vec<Arc<OutboxRow>>,
    place: LogPlace,
}

impl MemoryLog {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ShardId, ShardLog>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session; gives its number and the place.
    pub fn resume(&self, shard: &ShardId) -> (u64, Option<LogPlace>) {
        let mut shards = self.lock();
        let log = shards.entry(shard.clone()).or_default();
        log.session += 1;
        log.open.clear();
        log.aborted = false;
        (log.session, log.place)
    }

    /// Opens a transaction behind those that are open. Nothing is done in a session that has ended, nor behind an aborted one
    /// before [`MemoryLog::go_on`].
    pub fn begin(
        &self,
        shard: &ShardId,
        session: u64,
        number: u64,
        rows: &[Arc<OutboxRow>],
        place: LogPlace,
    ) {
        let mut shards = self.lock();
        let log = shards.get_mut(shard);
        if let Some(log) = log.filter(|log| log.session == session && !log.aborted) {
            log.open.push_back(Transaction {
                number,
                rows: rows.to_vec(),
                place,
            });
        }
    }

    /// Commits a transaction; false where its session has ended, or where one before it is open.
    pub fn commit(&self, shard: &ShardId, session: u64, number: u64) -> bool {
        let mut shards = self.lock();
        let Some(log) = shards.get_mut(shard).filter(|log| log.session == session) else {
            return false;
        };
        match log.open.front() {
            Some(first) if first.number == number => {}
            _ => return false,
        }
        if let Some(first) = log.open.pop_front() {
            log.place = Some(first.place);
            log.rows.extend(first.rows);
        }
        true
    }

    /// Commits the oldest open transaction of each shard whose session is not among these: a request that was long on
    /// its way when its sender gave up or died.
    pub fn commit_late(&self, alive: &[u64]) {
        for log in self.lock().values_mut() {
            if !alive.contains(&log.session)
                && let Some(first) = log.open.pop_front()
            {
                log.place = Some(first.place);
                log.rows.extend(first.rows);
            }
        }
    }

    /// Whether this session is still the last one.
    #[must_use]
    pub fn knows(&self, shard: &ShardId, session: u64) -> bool {
        self.lock().get(shard).is_some_and(|log| log.session == session)
    }

    /// Aborts a transaction and those behind it.
    pub fn abort(&self, shard: &ShardId, session: u64, number: u64) {
        let mut shards = self.lock();
        if let Some(log) = shards.get_mut(shard).filter(|log| log.session == session) {
            log.open.retain(|it| it.number < number);
            log.aborted = true;
        }
    }

    /// The sender has heard of what was aborted, and begins anew.
    pub fn go_on(&self, shard: &ShardId, session: u64) {
        let mut shards = self.lock();
        if let Some(log) = shards.get_mut(shard).filter(|log| log.session == session) {
            log.aborted = false;
        }
    }

    /// What a reader of committed events sees, shard by shard.
    #[must_use]
    pub fn rows(&self) -> Vec<Arc<OutboxRow>> {
        self.lock().values().flat_map(|log| log.rows.clone()).collect()
    }

    /// Forgets a shard's place, as a cursor topic that was deleted does.
    pub fn forget(&self, shard: &ShardId) {
        if let Some(log) = self.lock().get_mut(shard) {
            log.place = None;
        }
    }
}

/// A sink into a [`MemoryLog`]: one process of perhaps many.
#[derive(Debug, Default)]
pub struct MemoryLogSink {
    log: Arc<MemoryLog>,
    sessions: Mutex<BTreeMap<ShardId, (u64, u64)>>,
}

impl MemoryLogSink {
    /// A sink into this log.
    #[must_use]
    pub fn new(log: Arc<MemoryLog>) -> Self {
        Self {
            log,
            sessions: Mutex::default(),
        }
    }
}

#[async_trait]
impl Sink for MemoryLogSink {
    fn name(&self) -> &'static str {
        "memory log"
    }

    fn order(&self) -> SinkOrder {
        SinkOrder::Transactional {
            rows_max: 100,
            ahead: 2,
            linger_ms: 1,
        }
    }

    fn check(&self, event: &Event) -> Result<(), LimitExceeded> {
        event.check()
    }

    fn publish_many(&self, rows: &[Arc<OutboxRow>], _deadline: Duration) -> SinkFuture {
        let error = SinkError::new(
            SinkErrorClass::Destination,
            "this sink publishes in transactions only",
        );
        let results = rows.iter().map(|_| Err(error.clone())).collect();
        Box::pin(async move { results })
    }

    async fn probe(&self) -> Result<(), SinkError> {
        Ok(())
    }

    fn log(&self) -> Option<&dyn LogSink> {
        Some(self)
    }
}

#[async_trait]
impl LogSink for MemoryLogSink {
    async fn resume(&self, shard: &ShardId) -> Result<Option<LogPlace>, SinkError> {
        let (session, place) = self.log.resume(shard);
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.insert(shard.clone(), (session, 0));
        Ok(place)
    }

    fn commit(
        &self,
        shard: &ShardId,
        rows: &[Arc<OutboxRow>],
        place: LogPlace,
        _deadline: Duration,
    ) -> TransactionFuture {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let (session, number) = sessions.entry(shard.clone()).or_default();
        *number += 1;
        self.log.begin(shard, *session, *number, rows, place);
        let end = if self.log.commit(shard, *session, *number) {
            TransactionEnd::Committed
        } else {
            TransactionEnd::Unknown(SinkError::new(SinkErrorClass::Away, "another owner has come"))
        };
        Box::pin(async move { end })
    }

    fn go_on(&self, shard: &ShardId) {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((session, _)) = sessions.get(shard) {
            self.log.go_on(shard, *session);
        }
    }

    fn close(&self, shard: &ShardId) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.remove(shard);
    }
}
