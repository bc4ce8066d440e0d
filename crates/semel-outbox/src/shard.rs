//! One owned shard: carries out what its machine says.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use semel_core::error::chain;
use semel_core::host::dice;
use semel_core::relay::{Command, Discord, End, Input, LogPlace, Machine, OwnedShard, ShardId, StoreCall};
use semel_core::store::{
    CursorSave, Guarded, Opening, OutboxRow, Page, PageRow, RedriveSave, SinkError, SinkErrorClass,
    SinkOrder, Taken, TransactionEnd, TransactionFuture, no_desk,
};
use semel_core::{ErrorKind, OutboxStore, Retry, Sink, StoreError, crash_point};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::clock::LocalClock;
use crate::config::RelayConfig;
use crate::leases::Held;
use crate::looks::Looks;
use crate::status::Status;

/// Answers that are taken together, where so many are there: each decision looks through what is on its way.
const ANSWERS_MAX: usize = 64;

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
    pub(crate) looks: Arc<Looks>,
    pub(crate) config: RelayConfig,
}

impl Shell {
    /// Runs one term of ownership to its end.
    pub(crate) async fn run(
        &self,
        owned: &OwnedShard,
        mut held: watch::Receiver<Held>,
        mut shards: watch::Receiver<usize>,
        stop: CancellationToken,
    ) -> Result<End, StoreError> {
        let until = match *held.borrow_and_update() {
            Held::Until(until) => until,
            Held::Lost => return Ok(End::Lost),
        };
        let policy = self.config.policy.clone();
        let order = self.sink.order();
        if matches!(order, SinkOrder::Transactional { .. }) && self.sink.log().is_none() {
            let text = format!("{} calls itself transactional and has no log", self.sink.name());
            return Err(StoreError::new(ErrorKind::Invalid, "relay", text));
        }
        let _open = OpenLog(&*self.sink, &owned.lease.shard);
        let mut machine = Machine::new(owned, order, policy, self.clock.now_ms(), until);
        let mut answers = Answers::new();
        let mut hints = self.status.hints();
        let mut stopping = false;
        let mut inputs = vec![(Input::Share(*shards.borrow_and_update()), dice())];
        loop {
            let now = self.clock.now_ms();
            for command in machine.steps(now, inputs.drain(..)) {
                match command {
                    Command::End(End::Refused(discord)) => return Err(refused(owned, discord)),
                    Command::End(end) => return Ok(end),
                    command => answers.push(self.carry_out(owned, command)),
                }
            }
            self.status.update(&owned.lease.shard, &machine, now);
            let wake = machine
                .wake_at()
                .map(|at| Duration::from_millis(at.saturating_sub(now)));
            let input = tokio::select! {
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
                Ok(()) = shards.changed() => Input::Share(*shards.borrow_and_update()),
                Ok(()) = hints.changed() => Input::Hint,
                () = tokio::time::sleep(wake.unwrap_or_default()), if wake.is_some() => Input::Tick,
            };
            inputs.push((input, dice()));
            while inputs.len() < ANSWERS_MAX
                && let Some(Some(answer)) = answers.next().now_or_never()
            {
                inputs.push((answer?, dice()));
            }
        }
    }

    fn carry_out(&self, owned: &OwnedShard, command: Command) -> Answer {
        let store = Arc::clone(&self.store);
        let sink = Arc::clone(&self.sink);
        let lease = owned.lease.clone();
        let status = Arc::clone(&self.status);
        match command {
            Command::OpenBatch { from, advance, first } => Box::pin(async move {
                let mut reply = store.open_batch(&lease, &from, advance, first).await;
                if let Ok(Guarded::Done(Opening::Opened(_, page))) = &mut reply {
                    page.iter_mut().for_each(|page| judge_page(page, &*sink));
                    crash_point("relay.batch_opened");
                    if from.open.is_some() {
                        crash_point("relay.batch_finished");
                    }
                }
                answer(&status, reply, StoreCall::Read, Input::Opened)
            }),
            Command::Look { from } => {
                let looks = Arc::clone(&self.looks);
                Box::pin(async move { Ok(Input::Looked(looks.ask(lease, from).await)) })
            }
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
            Command::Take { size } => Box::pin(async move {
                let Some(desk) = store.desk() else {
                    return Ok(Input::Taken(Guarded::Done(Taken::default())));
                };
                let reply = desk.take(&lease, size).await;
                let reply = reply.map(|reply| judge_taken(reply, &*sink));
                answer(&status, reply, StoreCall::Desk, Input::Taken)
            }),
            Command::Settle(save) => Box::pin(async move {
                let reply = settle(&*store, &lease, &save).await;
                answer(&status, reply, StoreCall::Desk, Input::Settled)
            }),
            Command::Publish {
                call,
                rows,
                deadline_ms,
            } => publish(&*sink, call, rows, Duration::from_millis(deadline_ms)),
            Command::Resume => {
                Box::pin(async move { Ok(Input::Resumed(resume(&*sink, &lease.shard).await)) })
            }
            Command::Commit {
                call,
                rows,
                place,
                deadline_ms,
                anew,
            } => {
                // Handed over now: transactions go in the order in which the machine asks for them.
                let deadline = Duration::from_millis(deadline_ms);
                let sent = sink.log().map(|log| {
                    if anew {
                        log.go_on(&lease.shard);
                    }
                    log.commit(&lease.shard, &rows, place, deadline)
                });
                Box::pin(async move {
                    let end = committed(sent, deadline).await;
                    if matches!(end, TransactionEnd::Committed) {
                        crash_point("log.answered");
                    }
                    Ok(Input::Committed { call, end })
                })
            }
            Command::Probe => Box::pin(async move { Ok(Input::Probed(sink.probe().await)) }),
            // Handled by the caller; an End has nothing to carry out.
            Command::End(_) => Box::pin(async { Ok(Input::Tick) }),
        }
    }
}

/// Whatever happens to the task, the sink hears that the shard is not ours any more.
struct OpenLog<'a>(&'a dyn Sink, &'a ShardId);

impl Drop for OpenLog<'_> {
    fn drop(&mut self) {
        if let Some(log) = self.0.log() {
            log.close(self.1);
        }
    }
}

async fn resume(sink: &dyn Sink, shard: &ShardId) -> Result<Option<LogPlace>, SinkError> {
    let Some(log) = sink.log() else {
        return Err(SinkError::new(SinkErrorClass::Destination, "this sink is no log"));
    };
    crash_point("log.before_resume");
    let place = log.resume(shard).await;
    match &place {
        Ok(_) => crash_point("log.resumed"),
        Err(error) => tracing::warn!(%shard, %error, "the log does not say how far it has got"),
    }
    place
}

async fn committed(sent: Option<TransactionFuture>, deadline: Duration) -> TransactionEnd {
    let unknown = |text: String| TransactionEnd::Unknown(SinkError::new(SinkErrorClass::Away, text));
    let Some(sent) = sent else {
        return unknown("this sink is no log".to_owned());
    };
    let end = tokio::time::timeout(deadline + SINK_GRACE, sent).await;
    end.unwrap_or_else(|_| {
        unknown(format!(
            "the log gave no answer within {} ms",
            deadline.as_millis()
        ))
    })
}

/// Log and outbox do not belong together: a person must say which one is right.
fn refused(owned: &OwnedShard, discord: Discord) -> StoreError {
    let text = format!("{}: {}", owned.lease.shard, discord.explain());
    StoreError::new(ErrorKind::IdentityChanged, "resume", text).with_code("SEM0204")
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

async fn settle(
    store: &dyn OutboxStore,
    lease: &semel_core::relay::ShardLease,
    save: &RedriveSave,
) -> Result<Guarded<Vec<Bytes>>, StoreError> {
    let Some(desk) = store.desk() else {
        return Err(no_desk(store.capabilities().name));
    };
    crash_point("redrive.before_settle");
    let reply = desk.settle(lease, save).await;
    if let Ok(Guarded::Done(_)) = &reply {
        crash_point("redrive.settled");
        for row in &save.removed {
            tracing::info!(shard = %lease.shard, row, "an event that was set aside is sent or dropped, as asked");
        }
        for it in &save.failed {
            tracing::warn!(shard = %lease.shard, row = it.row, reason = %it.reason, "an event that was sent again was refused again");
        }
    }
    reply
}

/// Hands rows over; the call goes on beside the shard's own task, which meanwhile reads and decides.
fn publish(sink: &dyn Sink, call: u64, rows: Vec<Arc<OutboxRow>>, deadline: Duration) -> Answer {
    let name = sink.name();
    let sent = sink.publish_many(&rows, deadline);
    let sent = async move {
        let results = tokio::time::timeout(deadline + SINK_GRACE, sent)
            .await
            .unwrap_or_else(|_| {
                let text = format!("{name} gave no answer within {} ms", deadline.as_millis());
                rows.iter()
                    .map(|_| Err(SinkError::new(SinkErrorClass::Away, text.clone())))
                    .collect()
            });
        if results.iter().any(Result::is_ok) {
            crash_point("relay.sent");
        }
        Ok(Input::Published { call, results })
    };
    // What the shard's task waited for ends with it.
    let sent = AbortOnDropHandle::new(tokio::spawn(sent));
    Box::pin(async move {
        match sent.await {
            Ok(answer) => answer,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime ends, and this task with it: nobody knows what arrived.
                Err(_) => std::future::pending().await,
            },
        }
    })
}

/// Marks rows that can never be sent, so that they are not tried.
fn judge(reply: Guarded<Page>, sink: &dyn Sink) -> Guarded<Page> {
    match reply {
        Guarded::Done(mut page) => {
            judge_page(&mut page, sink);
            Guarded::Done(page)
        }
        other => other,
    }
}

fn judge_page(page: &mut Page, sink: &dyn Sink) {
    page.rows.iter_mut().for_each(|row| bar(row, sink));
}

fn judge_taken(reply: Guarded<Taken>, sink: &dyn Sink) -> Guarded<Taken> {
    match reply {
        Guarded::Done(mut taken) => {
            taken
                .rows
                .iter_mut()
                .for_each(|row| bar(&mut row.stored.row, sink));
            Guarded::Done(taken)
        }
        other => other,
    }
}

fn bar(row: &mut PageRow, sink: &dyn Sink) {
    let event = &row.row.event;
    if row.barred.is_none() {
        let checked = event.check().and_then(|()| sink.check(event));
        row.barred = checked.err().map(|limit| limit.to_string());
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
