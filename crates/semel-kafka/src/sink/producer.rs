//! One idempotent producer, good until its first failed record.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
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
    /// A record was not delivered: nothing may go through this producer any more. Held while a record is handed over,
    /// so that none slips in between a failure and the purge that follows it.
    failed: Mutex<bool>,
    /// A batch was too large: which of its records is to blame shows when they go one by one.
    batch_too_large: AtomicBool,
    stop: AtomicBool,
    said: Said,
}

impl Flags {
    fn failed(&self) -> MutexGuard<'_, bool> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
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
        client::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.flags.said.hear(&error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<(Arc<Page>, usize)>;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: Self::DeliveryOpaque) {
        let (page, index) = *opaque;
        match result {
            Ok(_) => {
                self.flags.said.forget();
                page.set(index, Ok(()));
            }
            Err((error, _)) => {
                let producer = self.producer.get().and_then(Weak::upgrade);
                let first = !std::mem::replace(&mut *self.flags.failed(), true);
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
            ("max.in.flight.requests.per.connection", "5".to_owned()),
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
        let mut settings = client::settings(&config.bootstrap, &own, &config.properties)?;
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
        *self.flags.failed()
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

    /// Hands one row over.
    pub(super) fn send(&self, page: &Arc<Page>, index: usize) -> Result<(), SinkError> {
        let gone = || SinkError::new(SinkErrorClass::HeldBack, "the producer was thrown away");
        let producer = self.inner.upgrade().ok_or_else(gone)?;
        let failed = self.flags.failed();
        if *failed {
            return Err(gone());
        }
        let row = &page.rows()[index];
        let mut record: BaseRecord<'_, [u8], [u8], _> =
            BaseRecord::with_opaque_to(&row.event.topic, Box::new((Arc::clone(page), index)))
                .headers(record::headers(row));
        if let Some(key) = &row.event.key {
            record = record.key(key);
        }
        if let Some(data) = &row.event.data {
            record = record.payload(data);
        }
        let sent = producer.send(record);
        drop(failed);
        sent.map_err(|(error, _)| {
            let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
            explain(code, &error, producer.client().fatal_error(), &row.event.topic)
        })
    }

    /// An error of a broker that is away, with what librdkafka said of it.
    pub(super) fn explain(&self, error: SinkError) -> SinkError {
        self.flags.said.explain(error)
    }

    /// Gives up everything it holds; the results come as errors.
    pub(super) fn purge(&self) {
        *self.flags.failed() = true;
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
