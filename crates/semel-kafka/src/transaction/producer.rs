//! One transactional producer, good until its first result that is not definite.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::config::{FromClientConfigAndContext as _, RDKafkaLogLevel};
use rdkafka::consumer::ConsumerGroupMetadata;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext};
use rdkafka::util::Timeout;
use rdkafka::{ClientContext, TopicPartitionList};
use semel_core::{Clock as _, ErrorKind, StoreError, SystemClock};

use super::verdict::{Facts, Step, Verdict, verdict};
use crate::access::KafkaAccess;
use crate::client::{self, Said};

/// As of the idempotent producer: each end of it costs up to a millisecond of a processor.
const POLL: Duration = Duration::from_secs(1);
/// How long connecting may take before the producer is initialised all the same.
const CONNECT: Duration = Duration::from_secs(1);
/// How long between two looks whether librdkafka has put away what it has reported.
const PUT_AWAY: Duration = Duration::from_micros(50);

/// Trouble in a transaction, judged.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) verdict: Verdict,
    pub(crate) code: Code,
    pub(crate) why: String,
    /// The input whose output was refused for itself.
    pub(crate) blames: Option<usize>,
    /// The input whose output was not delivered.
    pub(crate) input: Option<usize>,
    /// A batch was too large: which of its records is to blame shows when they go one by one.
    pub(crate) batch_too_large: bool,
}

impl Trouble {
    fn new(step: Step, error: &KafkaError, time_left: bool) -> Self {
        let facts = Facts::of(error, time_left);
        Self {
            verdict: verdict(step, &facts),
            code: facts.code,
            why: format!("{step:?}: {error}"),
            blames: None,
            input: None,
            batch_too_large: false,
        }
    }
}

/// A record with the number of the input that it came from.
pub(crate) type Record<'a> = BaseRecord<'a, [u8], [u8], Box<usize>>;

/// Receives delivery reports, on the polling thread.
#[derive(Default)]
struct Reports {
    /// The first record of this transaction that was not delivered, by the input it came from.
    failed: Mutex<Option<(usize, KafkaError)>>,
    /// Reports in all, and at which number somebody waits.
    count: AtomicU64,
    awaited: AtomicU64,
    /// The awaited number is reached, or a record was not delivered. Goes with `failed`.
    woken: Condvar,
    said: Arc<Said>,
}

impl Reports {
    fn failed(&self) -> MutexGuard<'_, Option<(usize, KafkaError)>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A record was delivered, or not.
    fn report(&self, failed: Option<(usize, KafkaError)>) {
        let is_bad = failed.is_some();
        if let Some(failed) = failed {
            self.failed().get_or_insert(failed);
        }
        let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        if is_bad || count == self.awaited.load(Ordering::SeqCst) {
            // With the lock, so that it does not fall between a look and the wait that follows.
            drop(self.failed());
            self.woken.notify_all();
        }
    }

    /// Waits until so many records are reported, one was not delivered, or the time is over.
    fn wait(&self, count: u64, limit: Duration) {
        // First said, then looked: whoever reports looks the other way round.
        self.awaited.store(count, Ordering::SeqCst);
        let waits = |failed: &mut Option<_>| failed.is_none() && self.count.load(Ordering::SeqCst) < count;
        let waited = self.woken.wait_timeout_while(self.failed(), limit, waits);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.said.overhear(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.said.hear(&error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<usize>;

    fn delivery(&self, result: &DeliveryResult<'_>, input: Self::DeliveryOpaque) {
        let failed = result.as_ref().err().map(|(error, _)| (*input, error.clone()));
        if failed.is_none() {
            self.said.forget();
        }
        self.report(failed);
    }
}

/// What a transactional producer is made of.
pub(crate) struct Settings<'a> {
    pub(crate) bootstrap: &'a str,
    pub(crate) access: &'a KafkaAccess,
    pub(crate) transactional_id: String,
    /// How long a transaction may last at the broker.
    pub(crate) timeout: Duration,
    /// More settings of the caller's own, which the user may not contradict.
    pub(crate) own: Vec<(&'static str, String)>,
    pub(crate) properties: BTreeMap<String, String>,
    /// A topic that is there, to connect by; without one the first transaction may begin half a second later.
    pub(crate) topic: Option<String>,
    /// Where what the client says outside of its answers is kept.
    pub(crate) said: Arc<Said>,
}

/// A transactional producer with its polling thread, without which aborts would wait for their whole time-out.
pub(crate) struct Producer {
    inner: Arc<BaseProducer<Reports>>,
    stop: Arc<AtomicBool>,
    /// Whether each record is a batch of its own.
    single: bool,
    /// How long a transaction may last at the broker.
    limit: Duration,
    /// When the open transaction began.
    begun: Duration,
    /// Records handed over since the producer was made.
    sent: AtomicU64,
}

impl Producer {
    /// Makes one and ends whatever its predecessor under the same id left open: it is fenced from here on. `single`
    /// makes each record a batch of its own.
    pub(crate) fn start(settings: &Settings<'_>, single: bool) -> Result<Self, StoreError> {
        let limit = settings.timeout;
        let mut own = vec![
            ("transactional.id", settings.transactional_id.clone()),
            ("transaction.timeout.ms", limit.as_millis().to_string()),
            // Below the transaction's: a record is given up before the transaction is.
            ("message.timeout.ms", (limit.as_millis() * 4 / 5).to_string()),
            ("enable.idempotence", "true".to_owned()),
            ("acks", "all".to_owned()),
            ("partitioner", "murmur2_random".to_owned()),
        ];
        if single {
            own.push(("batch.num.messages", "1".to_owned()));
        }
        own.extend(settings.own.iter().cloned());
        let all = client::settings(settings.bootstrap, settings.access, &own, &settings.properties)?;
        let reports = Reports {
            said: Arc::clone(&settings.said),
            ..Reports::default()
        };
        let inner = BaseProducer::from_config_and_context(&all, reports).map_err(client::not_made)?;
        let inner = Arc::new(inner);
        let stop = Arc::new(AtomicBool::new(false));
        let (polled, stopped) = (Arc::clone(&inner), Arc::clone(&stop));
        std::thread::Builder::new()
            .name("semel-kafka-tx".to_owned())
            .spawn(move || {
                while !stopped.load(Ordering::Acquire) {
                    polled.poll(POLL);
                }
            })
            .map_err(|error| {
                let text = "no thread can be started for the producer";
                StoreError::new(ErrorKind::Unavailable, "kafka producer", text).with_source(error)
            })?;
        let producer = Self {
            inner,
            stop,
            single,
            limit,
            begun: SystemClock.monotonic(),
            sent: AtomicU64::new(0),
        };
        if let Some(topic) = &settings.topic {
            // librdkafka looks for the coordinator over a connection that is up, and again half a second later where there
            // is none. Metadata is not enough: they come over the first connection, which is given up for those they name.
            // What is wrong shows below.
            let _ = producer.inner.client().fetch_watermarks(topic, 0, CONNECT);
        }
        producer
            .repeat(Step::Init, || {
                producer.inner.init_transactions(Duration::from_secs(5))
            })
            .map_err(|trouble| trouble.into_error("init_transactions"))?;
        Ok(producer)
    }

    pub(crate) const fn single(&self) -> bool {
        self.single
    }

    fn time_left(&self) -> bool {
        SystemClock.monotonic() - self.begun < self.limit
    }

    /// A call, repeated as long as the verdict is to repeat it.
    fn repeat(&self, step: Step, call: impl Fn() -> Result<(), KafkaError>) -> Result<(), Trouble> {
        let mut pause = Duration::from_millis(20);
        loop {
            let Err(error) = call() else {
                return Ok(());
            };
            let trouble = Trouble::new(step, &error, self.time_left());
            if trouble.verdict != Verdict::Retry {
                return Err(trouble);
            }
            tracing::debug!(%error, ?step, "a call of the transaction is repeated");
            std::thread::sleep(pause);
            pause = (pause * 4).min(Duration::from_secs(1));
        }
    }

    pub(crate) fn begin(&mut self) -> Result<(), Trouble> {
        *self.inner.context().failed() = None;
        self.begun = SystemClock.monotonic();
        self.repeat(Step::Begin, || self.inner.begin_transaction())
    }

    /// Hands a record over; when the queue is full, waits, so that none passes another.
    pub(crate) fn send(&self, input: usize, record: Record<'_>) -> Result<(), Trouble> {
        let mut record = record;
        loop {
            let (error, again) = match self.inner.send(record) {
                Ok(()) => {
                    self.sent.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                Err(refused) => refused,
            };
            let full = error.rdkafka_error_code() == Some(Code::QueueFull);
            if !full || !self.time_left() {
                // Refused by the client, so for itself.
                return Err(not_delivered(input, &error, self.time_left(), true));
            }
            record = again;
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until every record is delivered. Not librdkafka's flush, which takes 100 ms at least.
    pub(crate) fn drain(&self) -> Result<(), Trouble> {
        let left = self.limit.saturating_sub(SystemClock.monotonic() - self.begun);
        let reports = self.inner.context();
        reports.wait(self.sent.load(Ordering::Relaxed), left);
        // A record counts as in flight until its report is put away, and with one in flight a commit takes 100 ms.
        while self.inner.in_flight_count() > 0 && reports.failed().is_none() {
            if !self.time_left() {
                let error = KafkaError::Flush(Code::OperationTimedOut);
                return Err(Trouble::new(Step::Drain, &error, false));
            }
            std::thread::sleep(PUT_AWAY);
        }
        match &*self.inner.context().failed() {
            Some((input, error)) => Err(not_delivered(*input, error, self.time_left(), self.single)),
            None => Ok(()),
        }
    }

    pub(crate) fn send_offsets(
        &self,
        offsets: &TopicPartitionList,
        group: &ConsumerGroupMetadata,
    ) -> Result<(), Trouble> {
        self.repeat(Step::Offsets, || {
            let limit = Duration::from_secs(5).min(self.limit);
            self.inner.send_offsets_to_transaction(offsets, group, limit)
        })
    }

    pub(crate) fn commit(&self) -> Result<(), Trouble> {
        // Without a limit of ours: the rest of the transaction's time. Everything is drained, so nothing is flushed.
        self.repeat(Step::Commit, || self.inner.commit_transaction(Timeout::Never))
    }

    pub(crate) fn abort(&mut self) -> Result<(), Trouble> {
        self.begun = SystemClock.monotonic();
        self.repeat(Step::Abort, || self.inner.abort_transaction(Timeout::Never))
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // The polling thread gives up its own hold then, and the client ends with the last one.
        self.stop.store(true, Ordering::Release);
    }
}

/// `alone`: the record was judged for itself, not with its batch.
fn not_delivered(input: usize, error: &KafkaError, time_left: bool, alone: bool) -> Trouble {
    let mut trouble = Trouble::new(Step::Send, error, time_left);
    trouble.input = Some(input);
    match trouble.code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge if !alone => trouble.batch_too_large = true,
        Code::MessageSizeTooLarge
        | Code::MessageBatchTooLarge
        | Code::InvalidMessageSize
        | Code::InvalidRecord
        | Code::InvalidTimestamp => trouble.blames = Some(input),
        _ => {}
    }
    trouble
}

impl Trouble {
    pub(crate) fn into_error(self, operation: &'static str) -> StoreError {
        let kind = match self.verdict {
            Verdict::Fatal => ErrorKind::Invalid,
            Verdict::Retry | Verdict::AbortAndRewind | Verdict::RecreateProducer => ErrorKind::Unavailable,
        };
        StoreError::new(kind, operation, self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any test waits: who is not woken fails by it.
    const LONG: Duration = Duration::from_secs(20);

    fn in_time(wait: impl FnOnce()) -> bool {
        let begun = SystemClock.monotonic();
        wait();
        SystemClock.monotonic() - begun < LONG / 2
    }

    #[test]
    fn who_waits_for_deliveries_is_woken_by_the_last_one_and_by_the_first_that_failed() {
        // Many times: the last report has to come while the other one waits.
        for failing in [None, Some(1)].into_iter().cycle().take(400) {
            let all = Reports::default();
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| in_time(|| all.wait(3, LONG)));
                all.report(None);
                while all.awaited.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                std::thread::yield_now();
                all.report(failing.map(|it| (it, KafkaError::Flush(Code::MessageTimedOut))));
                if failing.is_none() {
                    all.report(None);
                }
                assert!(waiting.join().unwrap(), "{failing:?}: nobody woke it");
            });
            assert_eq!(all.failed().as_ref().map(|(index, _)| *index), failing);
            assert!(in_time(|| all.wait(3, LONG)), "nothing to wait for any more");
        }
    }

    #[test]
    fn reports_that_do_not_come_are_not_waited_for_longer_than_said() {
        let none = Reports::default();
        assert!(in_time(|| none.wait(1, Duration::from_millis(1))));
    }
}
