//! A receiver that does as told, relays that are run, and events that are written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use semel_core::host::uuid_v7;
use semel_core::limits::LimitExceeded;
use semel_core::store::{OutboxRow, SinkError, SinkErrorClass, SinkFuture, SinkOrder};
use semel_core::{Event, OutboxStore, Sink, StoreError, SystemClock};
use semel_outbox::{Clean, Relay, RelayConfig, RelayHandle};
use semel_sqlite::{Config, Sqlite};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// What a receiver does with a row, given how often it has been sent before.
pub(crate) type Rule = Box<dyn Fn(&OutboxRow, usize) -> Verdict + Send + Sync>;

#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    Take,
    Fail(SinkErrorClass),
    /// Arrives, but the answer is lost.
    TakeInSilence,
    /// Never answers.
    Hang,
    /// Nor does this, which it holds for as long as somebody waits.
    HangWith(Option<Arc<()>>),
    Panic,
}

/// A receiver in memory.
pub(crate) struct Receiver {
    order: SinkOrder,
    rule: Mutex<Rule>,
    pub(crate) arrived: Mutex<Vec<OutboxRow>>,
    sent: Mutex<BTreeMap<Uuid, usize>>,
    pub(crate) in_flight: Mutex<(usize, usize)>,
}

impl Receiver {
    pub(crate) fn new(order: SinkOrder) -> Arc<Self> {
        Arc::new(Self {
            order,
            rule: Mutex::new(Box::new(|_, _| Verdict::Take)),
            arrived: Mutex::default(),
            sent: Mutex::default(),
            in_flight: Mutex::default(),
        })
    }

    pub(crate) fn rule(&self, rule: impl Fn(&OutboxRow, usize) -> Verdict + Send + Sync + 'static) {
        *self.rule.lock().unwrap() = Box::new(rule);
    }

    fn decide(&self, row: &OutboxRow) -> Verdict {
        let mut sent = self.sent.lock().unwrap();
        let before = sent.entry(row.event.id).or_default();
        let verdict = (self.rule.lock().unwrap())(row, *before);
        *before += 1;
        verdict
    }

    /// How often this event was sent.
    pub(crate) fn sends(&self, id: Uuid) -> usize {
        self.sent.lock().unwrap().get(&id).copied().unwrap_or(0)
    }

    /// What has arrived, once each, in order.
    pub(crate) fn texts(&self) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let arrived = self.arrived.lock().unwrap();
        let first = arrived.iter().filter(|row| seen.insert(row.event.id));
        first
            .map(|row| String::from_utf8_lossy(row.event.data.as_deref().unwrap_or_default()).into_owned())
            .collect()
    }

    /// Every key's rows, first arrivals only, came in order.
    pub(crate) fn check_order(&self) {
        let mut seen = BTreeSet::new();
        let mut last = BTreeMap::new();
        for row in self
            .arrived
            .lock()
            .unwrap()
            .iter()
            .filter(|row| seen.insert(row.event.id))
        {
            let before = last.insert(row.event.key.clone(), row.row);
            assert!(
                before.is_none_or(|before| before < row.row),
                "out of order: {row:?}"
            );
        }
    }

    pub(crate) fn ids(&self) -> BTreeSet<Uuid> {
        self.arrived
            .lock()
            .unwrap()
            .iter()
            .map(|row| row.event.id)
            .collect()
    }
}

/// The handle by which a relay sees the receiver.
pub(crate) struct To(pub(crate) Arc<Receiver>);

#[async_trait]
impl Sink for To {
    fn name(&self) -> &'static str {
        "receiver"
    }

    fn order(&self) -> SinkOrder {
        self.0.order
    }

    fn check(&self, _: &Event) -> Result<(), LimitExceeded> {
        Ok(())
    }

    fn publish_many(&self, rows: &[Arc<OutboxRow>], _: Duration) -> SinkFuture {
        let receiver = Arc::clone(&self.0);
        let rows = rows.to_vec();
        Box::pin(async move {
            {
                let mut in_flight = receiver.in_flight.lock().unwrap();
                in_flight.0 += rows.len();
                in_flight.1 = in_flight.1.max(in_flight.0);
            }
            let mut results = Vec::new();
            let mut failed = false;
            for row in &rows {
                tokio::task::yield_now().await;
                if failed {
                    results.push(Err(SinkError::new(
                        SinkErrorClass::HeldBack,
                        "behind a failed row",
                    )));
                    continue;
                }
                let verdict = receiver.decide(row);
                if matches!(verdict, Verdict::Take | Verdict::TakeInSilence) {
                    receiver.arrived.lock().unwrap().push((**row).clone());
                }
                let result = match verdict {
                    Verdict::Take => Ok(()),
                    Verdict::TakeInSilence => Err(SinkError::new(SinkErrorClass::Away, "no answer")),
                    Verdict::Fail(class) => Err(SinkError::new(class, "no")),
                    Verdict::Hang => std::future::pending().await,
                    Verdict::HangWith(held) => {
                        let _held = held;
                        std::future::pending().await
                    }
                    Verdict::Panic => panic!("a bug"),
                };
                failed = result.is_err();
                results.push(result);
            }
            receiver.in_flight.lock().unwrap().0 -= rows.len();
            results
        })
    }

    async fn probe(&self) -> Result<(), SinkError> {
        Ok(())
    }
}

/// A relay that runs until it is stopped, or aborted like a process that dies.
pub(crate) struct Running {
    pub(crate) handle: RelayHandle,
    stop: CancellationToken,
    task: JoinHandle<Result<(), StoreError>>,
}

impl Running {
    pub(crate) async fn stop(self) -> Result<(), StoreError> {
        self.stop.cancel();
        self.task.await.unwrap()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Its end, without being told.
    pub(crate) async fn end(self) -> Result<(), StoreError> {
        self.task.await.unwrap()
    }

    pub(crate) async fn abort(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

pub(crate) fn start(store: Arc<dyn OutboxStore>, sink: Arc<dyn Sink>, config: RelayConfig) -> Running {
    let relay = Relay::new(store, sink, config);
    let (handle, stop) = (relay.handle(), CancellationToken::new());
    let token = stop.clone();
    let task = tokio::spawn(async move { relay.run(token).await });
    Running { handle, stop, task }
}

/// Quick: short leases, short waits, cleaning only where a test wants it.
pub(crate) fn config() -> RelayConfig {
    let mut config = RelayConfig {
        lease: Duration::from_millis(1_500),
        clean: None,
        ..RelayConfig::default()
    };
    config.policy.send_timeout_ms = 1_000;
    config.policy.idle_max_ms = 10;
    config.policy.away.initial_ms = 5;
    config.policy.away.cap_ms = 50;
    config.policy.destination = config.policy.away;
    config.policy.retry.initial_ms = 2;
    config.policy.retry.cap_ms = 20;
    config.policy.retry.attempts_max = 3;
    config
}

/// Cleans everything at once.
pub(crate) fn clean_at_once() -> Clean {
    Clean {
        keep: Duration::ZERO,
        every: Duration::from_millis(20),
        ..Clean::default()
    }
}

/// A file of its own.
pub(crate) async fn sqlite() -> (Arc<Sqlite>, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let db = Sqlite::open(Config::new(dir.path().join("test.db")))
        .await
        .unwrap();
    db.migrate().await.unwrap();
    (Arc::new(db), dir)
}

pub(crate) fn event(key: &str, data: &str) -> Event {
    Event::new(uuid_v7(&SystemClock), "orders", "order.placed")
        .with_key(key.to_owned())
        .with_data("text/plain", data.to_owned())
}

/// Writes events in one transaction.
pub(crate) async fn write(db: &Sqlite, events: &[Event]) -> Vec<i64> {
    let mut tx = db.begin().await.unwrap();
    let rows = semel_sqlite::tx::enqueue_many(&mut tx, events).await.unwrap();
    db.commit(tx).await.unwrap();
    rows
}

/// Waits for a state, with a limit that only a failure reaches.
pub(crate) async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    for _ in 0..3_000 {
        if is().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never happened: {what}");
}
