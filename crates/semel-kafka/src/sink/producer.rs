//! One idempotent producer, good until its first failed record.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::config::{FromClientConfigAndContext as _, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{
    BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext, PurgeConfig,
};
use semel_core::StoreError;
use semel_core::store::{SinkError, SinkErrorClass};

use super::KafkaSinkConfig;
use super::class::class;
use super::page::Page;
use super::record;
use crate::client::{self, Said};

/// How long the polling thread serves what comes before it looks whether it should stop. Each end costs up to a millisecond
/// of a processor: the driver rounds the last part of one down to nothing and asks again and again.
const POLL: Duration = Duration::from_secs(1);

/// Requests to a broker at once. A broker works on one of a connection at a time, so that more than a few hide no waiting. With
/// as many as there are partitions, librdkafka's thread would not sleep while requests are on their way and records wait behind
/// them: it asks without end whether one may go (decision 0068).
const REQUESTS_IN_FLIGHT: &str = "3";

/// Records that are handed over before a failure is looked for again.
const AT_ONCE: usize = 64;

/// A producer with its polling thread. The thread owns it and takes it down, which can block for a while; dropping
/// this only tells it to.
#[derive(Debug)]
pub(super) struct Producer {
    inner: Weak<BaseProducer<Reports>>,
    flags: Arc<Flags>,
    /// Whether each record is a batch of its own.
    single: bool,
}

#[derive(Debug, Default)]
struct Flags {
    /// A record was not delivered: nothing may go through this producer any more. Held while records are handed over,
    /// so that none slips in between a failure and the purge that follows it.
    failed: RwLock<bool>,
    /// Rows whose reports are still to come.
    out: Mutex<Out>,
    /// A batch was too large: which of its records is to blame shows when they go one by one.
    batch_too_large: AtomicBool,
    stop: AtomicBool,
    said: Said,
}

/// What the producer has taken and not reported of. With each record it keeps one number, [`opaque`], so that a record
/// costs no memory of its own here.
#[derive(Debug, Default)]
struct Out {
    pages: Vec<Option<(Arc<Page>, usize)>>,
}

/// Half of a number for the place of the page, half for that of the row in it.
const ROW_BITS: u32 = usize::BITS / 2;
/// Rows of one page that have a number.
const ROWS_MAX: usize = 1 << ROW_BITS;

/// The number that stands for a row.
const fn opaque(place: usize, index: usize) -> usize {
    place << ROW_BITS | index
}

impl Out {
    /// A place for a page of which so many reports are to come.
    fn expect(&mut self, page: &Arc<Page>, reports: usize) -> usize {
        let out = Some((Arc::clone(page), reports));
        match self.pages.iter().position(Option::is_none) {
            Some(place) => {
                self.pages[place] = out;
                place
            }
            None => {
                self.pages.push(out);
                self.pages.len() - 1
            }
        }
    }

    /// So many of its reports came, or never will.
    fn came(&mut self, place: usize, reports: usize) -> Option<Arc<Page>> {
        let place = self.pages.get_mut(place)?;
        let (page, left) = place.as_mut()?;
        *left = left.saturating_sub(reports);
        if *left == 0 {
            place.take().map(|(page, _)| page)
        } else {
            Some(Arc::clone(page))
        }
    }
}

impl Flags {
    fn failed(&self) -> bool {
        *self.failed.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the first failure. Waits for what is being handed over.
    fn fail(&self) -> bool {
        let mut failed = self.failed.write().unwrap_or_else(PoisonError::into_inner);
        !std::mem::replace(&mut *failed, true)
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives delivery reports, on the polling thread.
struct Reports {
    flags: Arc<Flags>,
    single: bool,
    /// To give up what is queued in the moment of the first failure. Set once the producer exists.
    producer: OnceLock<Weak<BaseProducer<Self>>>,
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.flags.said.overhear(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.flags.said.hear(&error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: Self::DeliveryOpaque) {
        let Some(page) = self.flags.out().came(opaque >> ROW_BITS, 1) else {
            return;
        };
        let index = opaque & (ROWS_MAX - 1);
        match result {
            Ok(_) => {
                self.flags.said.forget();
                page.set(index, Ok(()));
            }
            Err((error, _)) => {
                let producer = self.producer.get().and_then(Weak::upgrade);
                let first = self.flags.fail();
                if let Some(producer) = &producer
                    && first
                {
                    give_up(producer);
                }
                let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
                if too_large(code) && !self.single {
                    self.flags.batch_too_large.store(true, Ordering::Release);
                    let text = "its batch was too large; it goes again in one of its own";
                    page.set(index, Err(SinkError::new(SinkErrorClass::HeldBack, text)));
                    return;
                }
                let fatal = producer.and_then(|producer| producer.client().fatal_error());
                let topic = &page.rows()[index].event.topic;
                let error = explain(code, error, fatal, topic);
                page.set(index, Err(self.flags.said.explain(error)));
            }
        }
    }
}

/// The error of a row. Behind `Fatal` stands the producer's own reason.
fn explain(code: Code, error: &KafkaError, fatal: Option<(Code, String)>, topic: &str) -> SinkError {
    match fatal {
        Some((reason, text)) if code == Code::Fatal => {
            let class = match class(reason) {
                // The producer's trouble, not this record's.
                SinkErrorClass::Message | SinkErrorClass::HeldBack => SinkErrorClass::HeldBack,
                class => class,
            };
            SinkError::new(class, format!("{reason}: {text}"))
        }
        _ => match class(code) {
            class @ SinkErrorClass::Destination => SinkError::new(class, format!("topic {topic}: {error}")),
            class => SinkError::new(class, error.to_string()),
        },
    }
}

/// The broker refused a batch for its size. Unlike Java's, librdkafka's producer does not split it.
const fn too_large(code: Code) -> bool {
    matches!(code, Code::MessageSizeTooLarge | Code::MessageBatchTooLarge)
}

fn give_up(producer: &BaseProducer<Reports>) {
    producer.purge(PurgeConfig::default().queue().inflight());
}

fn send_part(
    producer: &BaseProducer<Reports>,
    page: &Page,
    place: usize,
    rows: Range<usize>,
) -> Result<(), (usize, SinkError)> {
    for (index, row) in rows.clone().zip(&page.rows()[rows]) {
        if index >= ROWS_MAX {
            let text = "there are too many rows in one call";
            return Err((index, SinkError::new(SinkErrorClass::HeldBack, text)));
        }
        let event = &row.event;
        let mut record: BaseRecord<'_, [u8], [u8], _> =
            BaseRecord::with_opaque_to(&event.topic, opaque(place, index)).headers(record::headers(row));
        if let Some(key) = &event.key {
            record = record.key(key);
        }
        if let Some(data) = &event.data {
            record = record.payload(data);
        }
        if let Err((error, _)) = producer.send(record) {
            let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
            let fatal = producer.client().fatal_error();
            return Err((index, explain(code, &error, fatal, &event.topic)));
        }
    }
    Ok(())
}

impl Producer {
    /// Starts one; does not wait for a broker. `single` makes each record a batch of its own.
    pub(super) fn start(config: &KafkaSinkConfig, single: bool) -> Result<Arc<Self>, StoreError> {
        let kbytes = (config.in_flight_bytes_max / 1_024).max(1).to_string();
        let mut own = vec![
            ("enable.idempotence", "true".to_owned()),
            ("acks", "all".to_owned()),
            // A refused record stops the producer instead of letting the next ones close the gap.
            ("enable.gapless.guarantee", "true".to_owned()),
            (
                "message.timeout.ms",
                config.message_timeout.as_millis().to_string(),
            ),
            (
                "max.in.flight.requests.per.connection",
                REQUESTS_IN_FLIGHT.to_owned(),
            ),
            ("message.send.max.retries", i32::MAX.to_string()),
            // Keys go to the partitions that Java's producers choose.
            ("partitioner", "murmur2_random".to_owned()),
            ("linger.ms", config.linger.as_millis().to_string()),
            (
                // Shards share the producer, each with rows in flight of its own; what bounds memory are the bytes.
                "queue.buffering.max.messages",
                config
                    .in_flight_max
                    .saturating_mul(2)
                    .clamp(100_000, 10_000_000)
                    .to_string(),
            ),
            ("queue.buffering.max.kbytes", kbytes),
        ];
        if single {
            own.push(("batch.num.messages", "1".to_owned()));
        }
        let mut settings = client::settings(&config.bootstrap, &config.access, &own, &config.properties)?;
        if settings.get(client::TOPIC_WAIT_SETTING).is_none() {
            settings.set(
                client::TOPIC_WAIT_SETTING,
                config.topic_wait.as_millis().to_string(),
            );
        }
        let flags = Arc::new(Flags::default());
        let reports = Reports {
            flags: Arc::clone(&flags),
            single,
            producer: OnceLock::new(),
        };
        let producer = BaseProducer::from_config_and_context(&settings, reports).map_err(client::not_made)?;
        let producer = Arc::new(producer);
        let inner = Arc::downgrade(&producer);
        let _ = producer.context().producer.set(Weak::clone(&inner));
        let stop = Arc::clone(&flags);
        let polling = std::thread::Builder::new()
            .name("semel-kafka-sink".to_owned())
            .spawn(move || {
                while !stop.stop.load(Ordering::Acquire) {
                    producer.poll(POLL);
                }
            });
        polling.map_err(|error| {
            let text = "no thread can be started for the producer";
            StoreError::new(semel_core::ErrorKind::Unavailable, "kafka producer", text).with_source(error)
        })?;
        Ok(Arc::new(Self { inner, flags, single }))
    }

    /// Whether a record was not delivered.
    pub(super) fn failed(&self) -> bool {
        self.flags.failed()
    }

    /// Whether records may go through it: none has failed, and the thread that polls it goes on.
    pub(super) fn lives(&self) -> bool {
        !self.failed() && self.inner.strong_count() > 0
    }

    /// Its thread ends, as by a panic.
    #[cfg(test)]
    pub(super) fn end(&self) {
        self.flags.stop.store(true, Ordering::Release);
    }

    /// Whether each record is a batch of its own.
    pub(super) const fn single(&self) -> bool {
        self.single
    }

    /// Whether it failed for a batch's size.
    pub(super) fn batch_too_large(&self) -> bool {
        self.flags.batch_too_large.load(Ordering::Acquire)
    }

    /// Hands rows over, up to the first that it does not take: which one, and why.
    pub(super) fn send(&self, page: &Arc<Page>, rows: Range<usize>) -> Result<(), (usize, SinkError)> {
        let gone = || SinkError::new(SinkErrorClass::HeldBack, "the producer was thrown away");
        let Some(producer) = self.inner.upgrade() else {
            return Err((rows.start, gone()));
        };
        if rows.is_empty() {
            return Ok(());
        }
        let place = self.flags.out().expect(page, rows.len());
        let end = rows.end;
        for start in rows.step_by(AT_ONCE) {
            let part = start..end.min(start + AT_ONCE);
            let failed = self.flags.failed.read().unwrap_or_else(PoisonError::into_inner);
            let sent = if *failed {
                Err((start, gone()))
            } else {
                send_part(&producer, page, place, part)
            };
            drop(failed);
            if let Err((index, error)) = sent {
                self.flags.out().came(place, end - index);
                return Err((index, error));
            }
        }
        Ok(())
    }

    /// An error of a broker that is away, with what librdkafka said of it.
    pub(super) fn explain(&self, error: SinkError) -> SinkError {
        self.flags.said.explain(error)
    }

    /// Gives up everything it holds; the results come as errors.
    pub(super) fn purge(&self) {
        self.flags.fail();
        if let Some(producer) = self.inner.upgrade() {
            give_up(&producer);
        }
    }

    /// Asks the brokers for the cluster's metadata.
    pub(super) fn probe(&self, limit: Duration) -> Result<(), SinkError> {
        let Some(producer) = self.inner.upgrade() else {
            return Err(SinkError::new(
                SinkErrorClass::Away,
                "the producer was thrown away",
            ));
        };
        match producer.client().fetch_metadata(None, limit) {
            Ok(_) => Ok(()),
            Err(error) => {
                let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
                Err(self.explain(SinkError::new(class(code), error.to_string())))
            }
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.flags.stop.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_known_until_its_last_report_and_its_place_is_then_used_again() {
        let page = || Page::new(&[]).0;
        let (first, second) = (page(), page());
        let mut out = Out::default();
        assert_eq!((out.expect(&first, 3), out.expect(&second, 1)), (0, 1));
        let is = |found: Option<Arc<Page>>, page| found.is_some_and(|found| Arc::ptr_eq(&found, page));
        assert!(is(out.came(0, 1), &first));
        assert!(is(out.came(1, 1), &second));
        assert!(out.came(1, 1).is_none());
        // Two were not taken.
        assert!(is(out.came(0, 2), &first));
        assert!(out.came(0, 1).is_none());
        assert_eq!(out.expect(&second, 1), 0);
        assert_eq!(Arc::strong_count(&first), 1);
    }

    #[test]
    fn a_number_names_a_page_and_a_row_of_it() {
        for (place, index) in [(0, 0), (0, ROWS_MAX - 1), (7, 0), (ROWS_MAX - 1, ROWS_MAX - 1)] {
            let number = opaque(place, index);
            assert_eq!((number >> ROW_BITS, number & (ROWS_MAX - 1)), (place, index));
        }
    }
}
