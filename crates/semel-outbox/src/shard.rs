//! One owned shard: carries out what its machine says.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use semel_core::error::chain;
use semel_core::host::dice;
use semel_core::relay::{Command, End, Input, Machine, OwnedShard, StoreCall};
use semel_core::store::{CursorSave, Guarded, Opening, OutboxRow, Page, SinkError, SinkErrorClass};
use semel_core::{ErrorKind, OutboxStore, Retry, Sink, StoreError, crash_point};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::LocalClock;
use crate::config::RelayConfig;
use crate::leases::Held;
use crate::status::Status;

/// How long after its deadline a sink may still answer before it counts as away.
const SINK_GRACE: Duration = Duration::from_millis(500);

type Answer = Pin<Box<dyn Future<Output = Result<Input, StoreError>> + Send>>;
type Answers = FuturesUnordered<Answer>;

/// What all shards of one relay share; each shard's task is one [`Shell::run`].
pub(crate) struct Shell {
    pub(crate) store: Arc<dyn OutboxStore>,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) clock: Arc<LocalClock>,
    pub(crate) status: Arc<Status>,
    pub(crate) config: RelayConfig,
}

impl Shell {
    /// Runs one term of ownership to its end.
    pub(crate) async fn run(
        &self,
        owned: &OwnedShard,
        mut held: watch::Receiver<Held>,
        stop: CancellationToken,
    ) -> Result<End, StoreError> {
        let until = match *held.borrow_and_update() {
            Held::Until(until) => until,
            Held::Lost => return Ok(End::Lost),
        };
        let policy = self.config.policy.clone();
        let mut machine = Machine::new(owned, self.sink.order(), policy, self.clock.now_ms(), until);
        let mut answers = Answers::new();
        let mut stopping = false;
        let mut input = Input::Tick;
        loop {
            let now = self.clock.now_ms();
            for command in machine.step(now, input, dice()) {
                match command {
                    Command::End(end) => return Ok(end),
                    command => answers.push(self.carry_out(owned, command)),
                }
            }
            self.status.update(&owned.lease.shard, &machine, now);
            let wake = machine
                .wake_at()
                .map(|at| Duration::from_millis(at.saturating_sub(now)));
            input = tokio::select! {
                biased;
                changed = held.changed() => match (changed, *held.borrow_and_update()) {
                    (Ok(()), Held::Until(until)) => Input::LeaseUntil(until),
                    _ => Input::LeaseLost,
                },
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    Input::Stop
                }
                Some(answer) = answers.next() => answer?,
                () = self.status.hint.notified() => Input::Hint,
                () = tokio::time::sleep(wake.unwrap_or_default()), if wake.is_some() => Input::Tick,
            };
        }
    }

    fn carry_out(&self, owned: &OwnedShard, command: Command) -> Answer {
        let store = Arc::clone(&self.store);
        let sink = Arc::clone(&self.sink);
        let lease = owned.lease.clone();
        let status = Arc::clone(&self.status);
        match command {
            Command::OpenBatch { from, advance } => Box::pin(async move {
                let reply = store.open_batch(&lease, &from, advance).await;
                if let Ok(Guarded::Done(Opening::Opened(_))) = &reply {
                    crash_point("relay.batch_opened");
                    if from.open.is_some() {
                        crash_point("relay.batch_finished");
                    }
                }
                answer(&status, reply, StoreCall::Read, Input::Opened)
            }),
            Command::ReadPage { cursor, after, size } => Box::pin(async move {
                let reply = store.read_page(&lease, &cursor, after, size).await;
                let reply = reply.map(|reply| judge(reply, &*sink));
                answer(&status, reply, StoreCall::Read, Input::Read)
            }),
            Command::Save(save) => Box::pin(async move {
                let reply = save_cursor(&*store, &lease, &save).await;
                answer(&status, reply, StoreCall::Save, Input::Saved)
            }),
            Command::Load => Box::pin(async move {
                let reply = store.load(&lease).await;
                answer(&status, reply, StoreCall::Read, Input::Loaded)
            }),
            Command::Publish {
                call,
                rows,
                deadline_ms,
            } => Box::pin(publish(sink, call, rows, Duration::from_millis(deadline_ms))),
            Command::Probe => Box::pin(async move { Ok(Input::Probed(sink.probe().await)) }),
            // Handled by the caller; an End has nothing to carry out.
            Command::End(_) => Box::pin(async { Ok(Input::Tick) }),
        }
    }
}

async fn save_cursor(
    store: &dyn OutboxStore,
    lease: &semel_core::relay::ShardLease,
    save: &CursorSave,
) -> Result<Guarded<semel_core::relay::Cursor>, StoreError> {
    crash_point("relay.before_cursor");
    let reply = store.save_cursor(lease, save).await;
    if let Ok(Guarded::Done(_)) = &reply {
        crash_point("relay.cursor_saved");
        for it in &save.exceptions {
            tracing::warn!(
                stream = %lease.shard.stream,
                shard = lease.shard.index,
                row = it.row,
                event = %it.event_id,
                kind = it.kind.as_str(),
                reason = %it.reason,
                "an event was set aside and will not be sent"
            );
        }
        if save.finished {
            crash_point("relay.batch_finished");
        }
    }
    reply
}

async fn publish(
    sink: Arc<dyn Sink>,
    call: u64,
    rows: Vec<Arc<OutboxRow>>,
    deadline: Duration,
) -> Result<Input, StoreError> {
    let sent = sink.publish_many(&rows, deadline);
    let results = tokio::time::timeout(deadline + SINK_GRACE, sent)
        .await
        .unwrap_or_else(|_| {
            let text = format!(
                "{} gave no answer within {} ms",
                sink.name(),
                deadline.as_millis()
            );
            rows.iter()
                .map(|_| Err(SinkError::new(SinkErrorClass::Away, text.clone())))
                .collect()
        });
    if results.iter().any(Result::is_ok) {
        crash_point("relay.sent");
    }
    Ok(Input::Published { call, results })
}

/// Marks rows that can never be sent, so that they are not tried.
fn judge(reply: Guarded<Page>, sink: &dyn Sink) -> Guarded<Page> {
    match reply {
        Guarded::Done(mut page) => {
            for row in page.rows.iter_mut().filter(|row| row.barred.is_none()) {
                let event = &row.row.event;
                row.barred = event
                    .check()
                    .and_then(|()| sink.check(event))
                    .err()
                    .map(|limit| limit.to_string());
            }
            Guarded::Done(page)
        }
        other => other,
    }
}

/// Turns a store's answer into an input; only what cannot get better by itself ends the relay.
fn answer<T>(
    status: &Status,
    reply: Result<Guarded<T>, StoreError>,
    call: StoreCall,
    input: impl FnOnce(Guarded<T>) -> Input,
) -> Result<Input, StoreError> {
    match reply {
        Ok(reply) => Ok(input(reply)),
        Err(error) if error.kind() == ErrorKind::LeaseLost => Ok(Input::LeaseLost),
        Err(error) => match error.retry() {
            Retry::Never => Err(error),
            Retry::Later | Retry::OutcomeUnknown => {
                tracing::warn!(error = chain(&error), "the outbox did not answer");
                status.totals(|totals| totals.trouble = Some(chain(&error)));
                Ok(Input::StoreFailed(call))
            }
        },
    }
}
