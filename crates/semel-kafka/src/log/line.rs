//! The two producers of a shard, taking turns: while one commits, the other sends.
//!
//! # Order
//! A transaction's records are sent when those of the one before it are delivered, and it is committed when that one is.
//! One that fails takes those behind it with it. So the log has them in order, and none without those before it.
//!
//! Two are needed for another reason, too: a broker goes on writing the markers of a transaction after it has said that
//! it is committed, and until then turns the same producer's next one away; librdkafka asks again 20 ms later.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::producer::BaseRecord;
use semel_core::relay::{LogPlace, ShardId};
use semel_core::store::{OutboxRow, SinkError, SinkErrorClass, TransactionEnd};
use semel_core::{Clock as _, SystemClock, crash_point};
use tokio::sync::oneshot;

use super::config::KafkaLogConfig;
use super::cursor;
use crate::client::{self, Said};
use crate::sink::class::class;
use crate::sink::record;
use crate::transaction::producer::{Producer, Record, Settings, Trouble};
use crate::transaction::verdict::{Verdict, fenced};

/// Transactions after which a producer that sends record by record becomes an ordinary one again.
const SINGLE_COMMITS: u32 = 20;

/// One transaction to be carried out.
struct Job {
    number: u64,
    rows: Vec<Arc<OutboxRow>>,
    place: LogPlace,
    reply: oneshot::Sender<TransactionEnd>,
}

/// How far the transactions of a line have got.
#[derive(Debug, Default)]
struct Turns {
    handed: u64,
    /// Handed over and not answered.
    open: u64,
    /// The last whose records are delivered, and the last committed.
    delivered: u64,
    committed: u64,
    /// One was aborted: those behind it are, too, until whoever hands them over has heard of it. When the line itself is empty that
    /// may not be so yet: the next one could be on its way here, and would pass the one that was refused.
    aborting: bool,
    /// Nothing goes through this line any more.
    dead: Option<SinkError>,
    /// A batch was too large: which record is to blame shows when they go one by one.
    too_large: bool,
}

#[derive(Debug, Default)]
struct Shared {
    turns: Mutex<Turns>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Turns)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits for its turn; false when there will be none.
    fn wait(&self, come: impl Fn(&Turns) -> bool) -> bool {
        let mut turns = self.lock();
        loop {
            if turns.aborting || turns.dead.is_some() {
                return false;
            }
            if come(&turns) {
                return true;
            }
            turns = self.changed.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What one shard's transactions go through, until the first of which nobody knows how it ended.
#[derive(Debug)]
pub(super) struct Line {
    shared: Arc<Shared>,
    jobs: [Sender<Job>; 2],
}

impl Line {
    /// Makes both producers: whatever is open under their ids is ended, and whoever used them before is fenced. Blocks.
    pub(super) fn start(
        config: &Arc<KafkaLogConfig>,
        shard: &ShardId,
        single: bool,
    ) -> Result<Self, SinkError> {
        let [a, b] = config.transactional_ids(shard);
        let said = Arc::new(Said::default());
        // At the same time: each takes up to half a second.
        let (a, b) = std::thread::scope(|scope| {
            let other = scope.spawn(|| start(config, shard, b, single, &said));
            let a = start(config, shard, a, single, &said);
            let died = || Err(SinkError::new(SinkErrorClass::Away, "a producer's thread died"));
            (a, other.join().unwrap_or_else(|_| died()))
        });
        let producers = [a?, b?];
        let shared = Arc::new(Shared::default());
        shared.change(|turns| turns.too_large = single);
        let mut jobs = Vec::with_capacity(2);
        for (producer, id) in producers.into_iter().zip(config.transactional_ids(shard)) {
            let (sender, receiver) = channel();
            let worker = Worker {
                config: Arc::clone(config),
                shard: shard.clone(),
                topic: config.topic(&shard.stream),
                key: cursor::key_of(shard),
                id,
                shared: Arc::clone(&shared),
                said: Arc::clone(&said),
                producer,
                commits: 0,
                spent: false,
            };
            std::thread::Builder::new()
                .name("semel-kafka-log".to_owned())
                .spawn(move || worker.run(&receiver))
                .map_err(|error| {
                    let text = format!("no thread can be started for the producer: {error}");
                    SinkError::new(SinkErrorClass::Away, text)
                })?;
            jobs.push(sender);
        }
        let jobs = jobs
            .try_into()
            .map_err(|_| SinkError::new(SinkErrorClass::Away, "there are not two producers"))?;
        Ok(Self { shared, jobs })
    }

    /// Hands a transaction over; they are carried out in the order of these calls.
    pub(super) fn hand_over(
        &self,
        rows: &[Arc<OutboxRow>],
        place: LogPlace,
    ) -> oneshot::Receiver<TransactionEnd> {
        let (reply, answer) = oneshot::channel();
        let mut turns = self.shared.lock();
        turns.handed += 1;
        turns.open += 1;
        let number = turns.handed;
        let job = Job {
            number,
            rows: rows.to_vec(),
            place,
            reply,
        };
        let turn = usize::from(number.is_multiple_of(2));
        // A worker that has died drops its jobs, and the answer is that there is none.
        let _ = self.jobs[turn].send(job);
        answer
    }

    /// Whoever hands over has had the ends of all, and begins anew.
    pub(super) fn go_on(&self) {
        self.shared.change(|turns| {
            if turns.open == 0 {
                turns.aborting = false;
                (turns.delivered, turns.committed) = (turns.handed, turns.handed);
            }
        });
    }

    /// Nothing is begun any more.
    pub(super) fn kill(&self, why: &str) {
        self.shared.change(|turns| {
            turns
                .dead
                .get_or_insert_with(|| SinkError::new(SinkErrorClass::Away, why));
        });
    }

    /// Whether it ended because a batch was too large.
    pub(super) fn too_large(&self) -> bool {
        self.shared.lock().too_large
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.kill("the shard was given back");
    }
}

fn start(
    config: &KafkaLogConfig,
    shard: &ShardId,
    transactional_id: String,
    single: bool,
    said: &Arc<Said>,
) -> Result<Producer, SinkError> {
    let kbytes = (config.in_flight_bytes_max / 1_024).max(1).to_string();
    let settings = Settings {
        bootstrap: &config.bootstrap,
        access: &config.access,
        transactional_id: transactional_id.clone(),
        timeout: config.transaction_timeout,
        own: vec![
            ("linger.ms", (config.linger.as_secs_f64() * 1_000.0).to_string()),
            ("queue.buffering.max.messages", (config.rows_max * 2).to_string()),
            ("queue.buffering.max.kbytes", kbytes),
            // A topic that is missing is named before the record's time is over.
            (
                client::TOPIC_WAIT_SETTING,
                client::TOPIC_WAIT
                    .min(config.transaction_timeout / 2)
                    .as_millis()
                    .to_string(),
            ),
        ],
        properties: config.properties.clone(),
        topic: Some(config.topic(&shard.stream)),
        said: Arc::clone(said),
    };
    Producer::start(&settings, single).map_err(|error| {
        let class = match error.retry() {
            semel_core::Retry::Never => SinkErrorClass::Destination,
            semel_core::Retry::Later | semel_core::Retry::OutcomeUnknown => SinkErrorClass::Away,
        };
        let why = semel_core::error::chain(&error);
        said.explain(SinkError::new(
            class,
            format!("transactional id {transactional_id}: {why}"),
        ))
    })
}

/// Why a transaction is not committed.
enum Failed {
    /// One before it failed.
    Before,
    Trouble(Trouble),
}

impl From<Trouble> for Failed {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

/// One producer with its thread: every call of a transaction blocks.
struct Worker {
    config: Arc<KafkaLogConfig>,
    shard: ShardId,
    topic: String,
    key: String,
    id: String,
    shared: Arc<Shared>,
    said: Arc<Said>,
    producer: Producer,
    /// Since the producer was made.
    commits: u32,
    /// The producer has to be made anew before it is used again.
    spent: bool,
}

impl Worker {
    fn run(mut self, jobs: &Receiver<Job>) {
        for job in jobs {
            let end = self.carry_out(&job);
            self.shared.change(|turns| {
                turns.open -= 1;
                match &end {
                    TransactionEnd::Committed => turns.committed = job.number,
                    TransactionEnd::Aborted(_) => turns.aborting = true,
                    TransactionEnd::Unknown(error) => {
                        turns.dead.get_or_insert_with(|| error.clone());
                    }
                }
            });
            // Nobody listens any more when the relay has given the shard up.
            let _ = job.reply.send(end);
            let single = self.producer.single();
            if self.spent {
                self.another(single);
            } else if single && self.commits >= SINGLE_COMMITS {
                // All went through one by one for a while: batches again.
                self.another(false);
            }
        }
    }

    /// Another producer of the same id.
    fn another(&mut self, single: bool) {
        match start(&self.config, &self.shard, self.id.clone(), single, &self.said) {
            Ok(producer) => {
                self.producer = producer;
                self.commits = 0;
                self.spent = false;
                self.shared.change(|turns| turns.too_large = single);
            }
            Err(error) => self.shared.change(|turns| {
                turns.dead.get_or_insert(error);
            }),
        }
    }

    fn carry_out(&mut self, job: &Job) -> TransactionEnd {
        if let Some(error) = self.shared.lock().dead.clone() {
            return TransactionEnd::Unknown(error);
        }
        match self.transact(job) {
            Ok(()) => {
                self.commits += 1;
                TransactionEnd::Committed
            }
            Err(Failed::Before) => self.abort(job, None, "a transaction before it failed"),
            Err(Failed::Trouble(trouble)) => self.failed(job, trouble),
        }
    }

    fn transact(&mut self, job: &Job) -> Result<(), Failed> {
        let before = job.number - 1;
        self.producer.begin()?;
        if !self.shared.wait(|turns| turns.delivered >= before) {
            return Err(Failed::Before);
        }
        for (index, row) in job.rows.iter().enumerate() {
            self.producer.send(index, record_of(index, row))?;
        }
        let value = cursor::encode(&self.shard, &job.place);
        // The cursor is nobody's fault: its number is that of no row.
        let cursor = BaseRecord::with_opaque_to(&self.topic, Box::new(job.rows.len()))
            .partition(i32::from(self.shard.index))
            .key(self.key.as_bytes())
            .payload(&value[..]);
        self.producer.send(job.rows.len(), cursor)?;
        self.producer.drain()?;
        crash_point("log.sent");
        self.shared
            .change(|turns| turns.delivered = turns.delivered.max(job.number));
        if !self.shared.wait(|turns| turns.committed >= before) {
            return Err(Failed::Before);
        }
        crash_point("log.before_commit");
        self.producer.commit()?;
        crash_point("log.committed");
        Ok(())
    }

    fn failed(&mut self, job: &Job, trouble: Trouble) -> TransactionEnd {
        tracing::warn!(shard = %self.shard, why = trouble.why, verdict = ?trouble.verdict, "a transaction failed");
        if trouble.batch_too_large {
            self.shared.change(|turns| turns.too_large = true);
            let text = "a batch of records was too large; they go one by one";
            return TransactionEnd::Unknown(SinkError::new(SinkErrorClass::Away, text));
        }
        if let Some(blamed) = trouble.blames.filter(|index| *index < job.rows.len()) {
            // So that the transaction behind it does not go on.
            self.shared.change(|turns| turns.aborting = true);
            // After a refusal the broker takes this producer's next records for out of order. It is replaced when the
            // refusal is told: that counts whatever becomes of the producer.
            self.spent = true;
            return self.abort(job, Some(blamed), &trouble.why);
        }
        let class = match (trouble.verdict, class(trouble.code)) {
            (Verdict::Fatal, _) | (_, SinkErrorClass::Destination) => SinkErrorClass::Destination,
            _ => SinkErrorClass::Away,
        };
        let topic = trouble.input.and_then(|index| job.rows.get(index));
        let text = if let (Some(row), SinkErrorClass::Destination) = (topic, class) {
            format!("topic {}: {}", row.event.topic, trouble.why)
        } else if fenced(trouble.code) {
            format!(
                "{} (another process uses transactional id {}; if that goes on, two outboxes have one name)",
                trouble.why, self.id
            )
        } else {
            trouble.why
        };
        TransactionEnd::Unknown(self.said.explain(SinkError::new(class, text)))
    }

    fn abort(&mut self, job: &Job, blamed: Option<usize>, why: &str) -> TransactionEnd {
        let dead = self.shared.lock().dead.clone();
        let dead = dead.or_else(|| {
            let trouble = self.producer.abort().err()?;
            Some(SinkError::new(SinkErrorClass::Away, trouble.why))
        });
        if let Some(error) = dead {
            if blamed.is_none() {
                return TransactionEnd::Unknown(error);
            }
            // Its commit was never asked for, so it is none; but nothing more goes through this line.
            self.shared.change(|turns| {
                turns.dead.get_or_insert(error);
            });
        }
        let error = |index| {
            if blamed == Some(index) {
                SinkError::new(SinkErrorClass::Message, why)
            } else {
                SinkError::new(
                    SinkErrorClass::HeldBack,
                    "another row of its transaction was refused",
                )
            }
        };
        TransactionEnd::Aborted((0..job.rows.len()).map(error).collect())
    }
}

fn record_of(index: usize, row: &OutboxRow) -> Record<'_> {
    let mut record =
        BaseRecord::with_opaque_to(&row.event.topic, Box::new(index)).headers(record::headers(row));
    if let Some(key) = &row.event.key {
        record = record.key(&key[..]);
    }
    if let Some(data) = &row.event.data {
        record = record.payload(&data[..]);
    }
    record
}

/// Waits for the end of a transaction.
pub(super) async fn end_of(answer: oneshot::Receiver<TransactionEnd>, limit: Duration) -> TransactionEnd {
    let away = |text: String| TransactionEnd::Unknown(SinkError::new(SinkErrorClass::Away, text));
    let begun = SystemClock.monotonic();
    match tokio::time::timeout(limit, answer).await {
        Ok(Ok(end)) => end,
        Ok(Err(_)) => away("the producer's thread has ended".to_owned()),
        Err(_) => {
            let ms = (SystemClock.monotonic() - begun).as_millis();
            away(format!("the transaction has not ended within {ms} ms"))
        }
    }
}
