//! The specification as a bed: processes over one [`MemoryLog`], a line that breaks, and the ways in which a log can be wrong.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::Event;
use semel_core::limits::LimitExceeded;
use semel_core::model::MemoryLog;
use semel_core::relay::{LogPlace, ShardId};
use semel_core::store::{
    LogSink, OutboxRow, Sink, SinkError, SinkErrorClass, SinkFuture, SinkOrder, TransactionEnd,
    TransactionFuture,
};
use semel_testkit::laws::log::LogBed;
use semel_testkit::laws::sink::{Arrived, Line};

use crate::wire::Wire;

/// Bytes of data that the log takes.
const LARGE: usize = 10_000;

/// What is wrong with the log or its sinks; nothing, for the laws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    None,
    /// A transaction without rows is nothing to it.
    SkipsEmpty,
    /// Forgets whether a batch was finished.
    RoundsPlaces,
    /// A transaction does not wait for the one before it.
    LetsPass,
    /// Whoever comes may commit.
    TakesStrangers,
    /// Whoever came before may commit, too.
    FencesNobody,
    /// Says that it is done, whatever came of it.
    Hopes,
    /// All shards are one.
    MixesShards,
    /// What is not refused of a transaction comes in.
    Halves,
    /// All rows are refused where one is.
    BlamesAll,
    /// What is behind a transaction with a refused row comes in.
    GoesOn,
    /// An answer that was lost means that nothing happened.
    CallsItNone,
    /// A lost connection is a row's fault.
    BlamesTheRow,
    /// Waits as long as it takes.
    NeverEnds,
    /// Tells a place that was not read.
    MakesPlacesUp,
    /// Goes on behind a transaction of which nobody knows.
    Stumbles,
}

#[derive(Debug)]
struct Shared {
    flaw: Flaw,
    log: MemoryLog,
    wire: Wire,
}

/// How far the transactions of a session have got.
#[derive(Debug, Default)]
struct Turns {
    handed: AtomicU64,
    /// The last one that has ended.
    ended: tokio::sync::watch::Sender<u64>,
    /// One was refused: those behind it go with it, until whoever hands them over says that it has heard.
    refused: AtomicBool,
    /// Of one nobody knows how it ended: nothing goes through this session any more.
    dead: AtomicBool,
}

/// A session of a shard, as one process has it.
#[derive(Debug, Default)]
struct Session {
    number: u64,
    turns: Arc<Turns>,
    /// The place that it was told.
    place: Option<LogPlace>,
}

#[derive(Debug)]
struct Process {
    shared: Arc<Shared>,
    sessions: Mutex<BTreeMap<ShardId, Session>>,
}

fn away(text: &str) -> SinkError {
    SinkError::new(SinkErrorClass::Away, text)
}

fn bad(row: &OutboxRow) -> bool {
    let size = row.event.data.as_ref().map_or(0, Bytes::len);
    row.event.kind == "refused" || size > LARGE
}

impl Shared {
    /// The shard as the log knows it.
    fn shard(&self, shard: &ShardId) -> ShardId {
        let mut shard = shard.clone();
        if self.flaw == Flaw::MixesShards {
            shard.index = 0;
        }
        shard
    }
}

/// One transaction on its way.
struct Job {
    shared: Arc<Shared>,
    shard: ShardId,
    session: u64,
    number: u64,
    rows: Vec<Arc<OutboxRow>>,
    place: LogPlace,
    turns: Arc<Turns>,
}

impl Job {
    async fn run(self) -> TransactionEnd {
        let end = self.carry_out().await;
        if matches!(end, TransactionEnd::Unknown(_)) {
            self.turns.dead.store(true, Ordering::SeqCst);
        }
        self.turns
            .ended
            .send_modify(|ended| *ended = (*ended).max(self.number));
        end
    }

    async fn carry_out(&self) -> TransactionEnd {
        let (shared, flaw) = (&self.shared, self.shared.flaw);
        let mut turn = self.turns.ended.subscribe();
        if flaw != Flaw::LetsPass {
            turn.wait_for(|ended| *ended + 1 >= self.number).await.unwrap();
        } else if !self.number.is_multiple_of(2) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if self.turns.dead.load(Ordering::SeqCst) && flaw != Flaw::Stumbles {
            return self.lost("of one before it nobody knows how it ended");
        }
        shared.wire.unheld().await;
        let size: usize = self
            .rows
            .iter()
            .map(|row| row.event.data.as_ref().map_or(0, Bytes::len) + 50)
            .sum();
        if !shared.wire.pass(size as u64 + 50, false) {
            return self.lost("the connection broke");
        }
        let refused: Vec<bool> = self.rows.iter().map(|row| bad(row)).collect();
        let mut rows = self.rows.clone();
        if refused.contains(&true) {
            if flaw != Flaw::Halves {
                self.turns.refused.store(true, Ordering::SeqCst);
                return TransactionEnd::Aborted(
                    refused.iter().map(|refused| blame(flaw, *refused)).collect(),
                );
            }
            rows.retain(|row| !bad(row));
        }
        if self.turns.refused.load(Ordering::SeqCst) && flaw != Flaw::GoesOn {
            return TransactionEnd::Aborted(refused.iter().map(|_| blame(flaw, false)).collect());
        }
        let done = self.commit(&rows);
        if !shared.wire.pass(10, true) {
            return match flaw {
                Flaw::CallsItNone => {
                    TransactionEnd::Aborted(self.rows.iter().map(|_| blame(flaw, false)).collect())
                }
                _ => self.lost("no answer came"),
            };
        }
        match flaw {
            Flaw::Halves if refused.contains(&true) => {
                TransactionEnd::Aborted(refused.iter().map(|refused| blame(flaw, *refused)).collect())
            }
            _ if done => TransactionEnd::Committed,
            _ => self.lost("another owner has come"),
        }
    }

    fn commit(&self, rows: &[Arc<OutboxRow>]) -> bool {
        let (shared, flaw) = (&self.shared, self.shared.flaw);
        if rows.is_empty() && flaw == Flaw::SkipsEmpty {
            return true;
        }
        let mut place = self.place;
        place.finished &= flaw != Flaw::RoundsPlaces;
        let mut session = self.session;
        if matches!(flaw, Flaw::FencesNobody | Flaw::TakesStrangers) {
            // Into whatever session there is.
            session = (0..100)
                .find(|session| shared.log.knows(&self.shard, *session))
                .unwrap_or_else(|| shared.log.resume(&self.shard).0);
        }
        shared.log.begin(&self.shard, session, self.number, rows, place);
        shared.log.commit(&self.shard, session, self.number)
    }

    /// Nobody knows.
    fn lost(&self, text: &str) -> TransactionEnd {
        match self.shared.flaw {
            Flaw::Hopes => TransactionEnd::Committed,
            Flaw::BlamesTheRow => {
                let error = SinkError::new(SinkErrorClass::Message, text);
                TransactionEnd::Aborted(self.rows.iter().map(|_| error.clone()).collect())
            }
            _ => TransactionEnd::Unknown(away(text)),
        }
    }
}

fn blame(flaw: Flaw, refused: bool) -> SinkError {
    if refused || flaw == Flaw::BlamesAll {
        SinkError::new(SinkErrorClass::Message, "not this one")
    } else {
        SinkError::new(SinkErrorClass::HeldBack, "another row was refused")
    }
}

#[async_trait]
impl Sink for Process {
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

    fn publish_many(&self, rows: &[Arc<OutboxRow>], _: Duration) -> SinkFuture {
        let error = SinkError::new(SinkErrorClass::Destination, "in transactions only");
        let results = rows.iter().map(|_| Err(error.clone())).collect();
        Box::pin(std::future::ready(results))
    }

    async fn probe(&self) -> Result<(), SinkError> {
        Ok(())
    }

    fn log(&self) -> Option<&dyn LogSink> {
        Some(self)
    }
}

#[async_trait]
impl LogSink for Process {
    async fn resume(&self, shard: &ShardId) -> Result<Option<LogPlace>, SinkError> {
        let shared = &self.shared;
        let last = {
            let mut sessions = self.sessions.lock().unwrap();
            sessions.remove(shard).and_then(|session| session.place)
        };
        shared.wire.unheld().await;
        if shared.wire.severed() {
            return match shared.flaw {
                Flaw::MakesPlacesUp => Ok(last),
                _ => Err(away("nobody is there")),
            };
        }
        let (number, place) = shared.log.resume(&shared.shard(shard));
        let session = Session {
            number,
            place,
            ..Session::default()
        };
        self.sessions.lock().unwrap().insert(shard.clone(), session);
        Ok(place)
    }

    fn commit(
        &self,
        shard: &ShardId,
        rows: &[Arc<OutboxRow>],
        place: LogPlace,
        deadline: Duration,
    ) -> TransactionFuture {
        let flaw = self.shared.flaw;
        let mut sessions = self.sessions.lock().unwrap();
        if flaw == Flaw::TakesStrangers {
            sessions.entry(shard.clone()).or_default();
        }
        let Some(session) = sessions.get_mut(shard) else {
            let error = away("the place was not read");
            return Box::pin(std::future::ready(TransactionEnd::Unknown(error)));
        };
        let job = Job {
            shared: Arc::clone(&self.shared),
            shard: self.shared.shard(shard),
            session: session.number,
            number: session.turns.handed.fetch_add(1, Ordering::SeqCst) + 1,
            rows: rows.to_vec(),
            place,
            turns: Arc::clone(&session.turns),
        };
        // On its way, whether anybody waits for its end or not.
        let running = tokio::spawn(job.run());
        Box::pin(async move {
            if flaw == Flaw::NeverEnds {
                return running.await.unwrap();
            }
            match tokio::time::timeout(deadline, running).await {
                Ok(end) => end.unwrap(),
                Err(_) => TransactionEnd::Unknown(away("the time is over")),
            }
        })
    }

    fn go_on(&self, shard: &ShardId) {
        if let Some(session) = self.sessions.lock().unwrap().get(shard) {
            session.turns.refused.store(false, Ordering::SeqCst);
        }
    }

    fn close(&self, shard: &ShardId) {
        self.sessions.lock().unwrap().remove(shard);
    }
}

/// The bed.
#[derive(Debug)]
pub(super) struct Memory(Arc<Shared>);

impl Memory {
    pub(super) fn new(flaw: Flaw) -> Self {
        Self(Arc::new(Shared {
            flaw,
            log: MemoryLog::default(),
            wire: Wire::default(),
        }))
    }
}

#[async_trait]
impl LogBed for Memory {
    fn process(&self) -> Arc<dyn Sink> {
        Arc::new(Process {
            shared: Arc::clone(&self.0),
            sessions: Mutex::default(),
        })
    }

    fn line(&self) -> &dyn Line {
        &self.0.wire
    }

    async fn topic(&self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed))
    }

    async fn committed(&self, topic: &str) -> Vec<Arrived> {
        let rows = self.0.log.rows();
        rows.iter()
            .filter(|row| row.event.topic == topic)
            .map(|row| Arrived {
                event: row.event.clone(),
                time: row.created_at.rfc3339(),
                sequence: row.sequence(),
            })
            .collect()
    }

    fn refused(&self, mut event: Event) -> Option<Event> {
        event.kind = "refused".to_owned();
        Some(event)
    }

    fn oversized(&self, event: Event) -> Option<Event> {
        Some(event.with_data("text/plain", vec![b'x'; LARGE + 1]))
    }
}

/// A bed without a flaw.
pub(super) async fn bed() -> Memory {
    Memory::new(Flaw::None)
}
