//! A sink of one's own, as small as one can be, and the ways in which it can be wrong.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::Event;
use semel_core::limits::{self, LimitExceeded};
use semel_core::store::{OutboxRow, Sink, SinkError, SinkErrorClass, SinkFuture, SinkOrder};
use semel_testkit::laws::sink::{Arrived, Line, Receiver, SinkBed};

use crate::wire::Wire;

/// Bytes of data that the receiver takes.
const LARGE: usize = 10_000;

/// What is wrong with the sink or its receiver; nothing, for the laws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    None,
    /// Acknowledges what it has only sent.
    Hopes,
    /// Sends on after a failure.
    Overtakes,
    /// Sends the rows of a call from the last to the first.
    Reverses,
    /// A lost connection is the row's fault.
    BlamesTheRow,
    /// A refusal is everybody's fault.
    BlamesTheNeighbours,
    /// A missing destination is told as a receiver that is away.
    HidesTheDestination,
    /// Waits as long as it takes.
    NeverEnds,
    /// One result is missing.
    AnswersTooLittle,
    /// No data and empty data are the same.
    ForgetsTombstones,
    /// Of headers with one name the last one counts.
    FoldsHeaders,
    /// A new id on every attempt.
    RenamesRows,
    /// What has an id that was there is acknowledged, and not kept.
    DropsRepeats,
    /// Stays busy for ever after a dropped call.
    StaysBusy,
    /// Says that all is well without asking.
    ProbesNothing,
    /// A row that is too large for the receiver is the fault of its whole page.
    HurtsNeighbours,
    /// An empty page is an error.
    WantsRows,
    /// The receiver keeps in memory what it should have written.
    Forgets,
}

/// What the receiver has.
#[derive(Debug, Default)]
struct Store {
    topics: HashMap<String, Vec<Arrived>>,
    dead: bool,
}

#[derive(Debug)]
struct Shared {
    flaw: Flaw,
    store: Mutex<Store>,
    wire: Wire,
    busy: std::sync::atomic::AtomicBool,
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    /// One row, there and back.
    async fn exchange(&self, row: &OutboxRow) -> Result<(), SinkError> {
        let away = |text: &str| SinkError::new(SinkErrorClass::Away, text);
        self.wire.unheld().await;
        let size = row.event.data.as_ref().map_or(0, Bytes::len) as u64 + 50;
        if !self.wire.pass(size, false) {
            return Err(away("the connection broke"));
        }
        let answer = self.take(row);
        if !self.wire.pass(10, true) {
            return Err(away("no answer came"));
        }
        answer
    }

    /// What the receiver does with it.
    fn take(&self, row: &OutboxRow) -> Result<(), SinkError> {
        let mut store = self.store();
        if store.dead {
            return Err(SinkError::new(SinkErrorClass::Away, "nobody is there"));
        }
        let Some(topic) = store.topics.get_mut(&row.event.topic) else {
            return Err(SinkError::new(SinkErrorClass::Destination, "no such topic"));
        };
        let size = row.event.data.as_ref().map_or(0, Bytes::len);
        if row.event.kind == "refused" || size > LARGE {
            return Err(SinkError::new(SinkErrorClass::Message, "not this one"));
        }
        let mut event = row.event.clone();
        if self.flaw == Flaw::DropsRepeats && topic.iter().any(|it| it.event.id == event.id) {
            return Ok(());
        }
        match self.flaw {
            Flaw::ForgetsTombstones => event.data = Some(event.data.unwrap_or_default()),
            Flaw::FoldsHeaders => {
                let last: HashMap<String, Bytes> = event.headers.iter().cloned().collect();
                event.headers.retain(|(name, value)| last[name] == *value);
            }
            Flaw::RenamesRows => event.id = uuid::Uuid::from_u128(topic.len() as u128),
            _ => {}
        }
        topic.push(Arrived {
            event,
            time: row.created_at.rfc3339(),
            sequence: row.sequence(),
        });
        Ok(())
    }
}

/// The sink.
#[derive(Debug)]
struct MemorySink {
    shared: Arc<Shared>,
    order: SinkOrder,
}

/// Sends rows one after the other; what stands behind a failed row of its key is held back.
async fn send_all(
    shared: Arc<Shared>,
    rows: Vec<Arc<OutboxRow>>,
    deadline: Duration,
) -> Vec<Result<(), SinkError>> {
    let ends = tokio::time::Instant::now() + deadline;
    let mut failed: Vec<Option<Bytes>> = Vec::new();
    let mut results = Vec::new();
    for row in &rows {
        if row.event.key.is_some() && failed.contains(&row.event.key) && shared.flaw != Flaw::Overtakes {
            let error = SinkError::new(SinkErrorClass::HeldBack, "an earlier row of its key failed");
            results.push(Err(error));
            continue;
        }
        let mut result = match shared.flaw {
            Flaw::NeverEnds => shared.exchange(row).await,
            _ => tokio::time::timeout_at(ends, shared.exchange(row))
                .await
                .unwrap_or_else(|_| Err(SinkError::new(SinkErrorClass::Away, "the time is over"))),
        };
        if let Err(error) = &mut result {
            match (shared.flaw, error.class) {
                (Flaw::BlamesTheRow, SinkErrorClass::Away) => error.class = SinkErrorClass::Message,
                (Flaw::HidesTheDestination, SinkErrorClass::Destination) => {
                    error.class = SinkErrorClass::Away
                }
                _ => {}
            }
            failed.push(row.event.key.clone());
        }
        if shared.flaw == Flaw::Hopes {
            result = Ok(());
        }
        results.push(result);
    }
    let refused =
        |result: &Result<(), SinkError>| matches!(result, Err(e) if e.class == SinkErrorClass::Message);
    match shared.flaw {
        Flaw::WantsRows if rows.is_empty() => {
            results.push(Err(SinkError::new(SinkErrorClass::Message, "no rows")));
        }
        Flaw::BlamesTheNeighbours | Flaw::HurtsNeighbours if results.iter().any(refused) => {
            results.fill(Err(SinkError::new(SinkErrorClass::Message, "one of these")));
        }
        Flaw::AnswersTooLittle => drop(results.pop()),
        _ => {}
    }
    results
}

#[async_trait]
impl Sink for MemorySink {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn order(&self) -> SinkOrder {
        self.order
    }

    fn check(&self, event: &Event) -> Result<(), LimitExceeded> {
        let bytes = event.data.as_ref().map_or(0, Bytes::len);
        let max = if self.shared.flaw == Flaw::HurtsNeighbours {
            usize::MAX
        } else {
            LARGE
        };
        limits::check("event data", "bytes", bytes as u64, 0, max as u64, "send less")
    }

    fn publish_many(&self, rows: &[Arc<OutboxRow>], deadline: Duration) -> SinkFuture {
        let shared = Arc::clone(&self.shared);
        let mut rows = rows.to_vec();
        if shared.flaw == Flaw::Reverses {
            rows.reverse();
        }
        Box::pin(async move {
            if shared.flaw == Flaw::StaysBusy {
                if shared.busy.swap(true, Ordering::SeqCst) {
                    let busy = |_| Err(SinkError::new(SinkErrorClass::Away, "another call is under way"));
                    return rows.iter().map(busy).collect();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let mut results = send_all(Arc::clone(&shared), rows, deadline).await;
            if shared.flaw == Flaw::Reverses {
                results.reverse();
            }
            shared.busy.store(false, Ordering::SeqCst);
            results
        })
    }

    async fn probe(&self) -> Result<(), SinkError> {
        let lost = self.shared.wire.severed() || self.shared.store().dead;
        if lost && self.shared.flaw != Flaw::ProbesNothing {
            return Err(SinkError::new(SinkErrorClass::Away, "nobody is there"));
        }
        Ok(())
    }
}

/// The bed.
#[derive(Debug)]
pub(super) struct Memory {
    shared: Arc<Shared>,
    sink: MemorySink,
}

impl Memory {
    pub(super) fn new(order: SinkOrder, flaw: Flaw) -> Self {
        let shared = Arc::new(Shared {
            flaw,
            store: Mutex::default(),
            wire: Wire::default(),
            busy: false.into(),
        });
        Self {
            sink: MemorySink {
                shared: Arc::clone(&shared),
                order,
            },
            shared,
        }
    }

    fn fresh_name() -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

#[async_trait]
impl SinkBed for Memory {
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }

    fn line(&self) -> &dyn Line {
        &self.shared.wire
    }

    async fn topic(&self) -> String {
        let name = Self::fresh_name();
        self.make_topic(&name).await;
        name
    }

    async fn missing_topic(&self) -> Option<String> {
        Some(Self::fresh_name())
    }

    async fn make_topic(&self, topic: &str) {
        self.shared.store().topics.insert(topic.to_owned(), Vec::new());
    }

    async fn arrived(&self, topic: &str) -> Vec<Arrived> {
        self.shared.store().topics.get(topic).cloned().unwrap_or_default()
    }

    fn refused(&self, mut event: Event) -> Option<Event> {
        event.kind = "refused".to_owned();
        Some(event)
    }

    fn oversized(&self, event: Event) -> Option<Event> {
        Some(event.with_data("text/plain", vec![b'x'; LARGE + 1]))
    }

    async fn kill(&self) {
        let mut store = self.shared.store();
        store.dead = true;
        if self.shared.flaw == Flaw::Forgets {
            store.topics.values_mut().for_each(Vec::clear);
        }
    }

    async fn start(&self) {
        self.shared.store().dead = false;
    }
}

/// A bed without a flaw.
pub(super) async fn pipelined(_: Receiver) -> Memory {
    Memory::new(SinkOrder::Pipelined { in_flight_max: 300 }, Flaw::None)
}

/// The same for a sink that leaves the order to its caller.
pub(super) async fn one_per_key(_: Receiver) -> Memory {
    Memory::new(SinkOrder::OnePerKey { in_flight_max: 16 }, Flaw::None)
}
