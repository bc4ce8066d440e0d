//! Sending calls: one at a time per operation, bounded per destination, never without a lease.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use semel_core::saga::{Answer, Call, Event, Op, SagaId, call_for};
use semel_core::{Clock, crash_point};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::Engine;
use crate::participants::Participants;

pub(super) struct CallEnd {
    pub(super) id: SagaId,
    pub(super) number: u64,
    pub(super) step: usize,
    pub(super) op: Op,
    pub(super) answer: Answer,
}

impl Engine {
    /// Sends what is out by the durable state and does not run here yet.
    pub(super) fn dispatch(&mut self, id: &SagaId) {
        let (now, stopping) = (self.now(), self.stopping());
        self.set_timer(id);
        let Some(saga) = self.sagas.get_mut(id) else {
            return;
        };
        if saga.loading || saga.instance.halted.is_some() {
            return;
        }
        let known = saga.known_calls();
        let mut held = false;
        for (step, op) in saga.instance.in_flight() {
            if known.contains(&(step, op)) {
                continue;
            }
            let which = (step, op);
            let epoch = saga.ownership.epoch;
            let call = call_for(
                &saga.definition,
                &saga.instance,
                id,
                &saga.input,
                which,
                epoch,
                now,
            );
            let answer = match call {
                _ if stopping => Answer::Held,
                None => Answer::Unservable("the definition has no target for it".to_owned()),
                Some(call) => {
                    self.calls_made += 1;
                    let number = self.calls_made;
                    saga.live.insert(which, number);
                    let destination = self.participants.destination(&call.target);
                    let permits = self
                        .permits
                        .entry(destination)
                        .or_insert_with(|| Arc::new(Semaphore::new(self.config.per_destination_max)));
                    let send = Sending {
                        participants: self.participants.clone(),
                        permits: permits.clone(),
                        lease: saga.lease.subscribe(),
                        clock: self.clock.clone(),
                        stop: self.stop.clone(),
                    };
                    let id = id.clone();
                    self.calls.spawn(async move {
                        let answer = send.send(call).await;
                        CallEnd {
                            id,
                            number,
                            step,
                            op,
                            answer,
                        }
                    });
                    continue;
                }
            };
            saga.queue.push_back((Event::Answered { step, op, answer }, 0));
            held = true;
        }
        if held {
            self.advance(id);
        }
    }
}

struct Sending {
    participants: Arc<dyn Participants>,
    permits: Arc<Semaphore>,
    lease: watch::Receiver<Duration>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
}

impl Sending {
    async fn send(mut self, call: Call) -> Answer {
        let permit = tokio::select! {
            permit = self.permits.clone().acquire_owned() => permit,
            () = self.stop.cancelled() => return Answer::Held,
        };
        // Semaphores are never closed; held as if stopping, should one be.
        let Ok(_permit) = permit else { return Answer::Held };
        if !self.leased().await {
            return Answer::Held;
        }
        crash_point("saga.started");
        let calling = AssertUnwindSafe(self.participants.call(&call)).catch_unwind();
        let unknown = |why: String| Answer::Unknown {
            why,
            retry_after: None,
            hopeless: false,
        };
        match tokio::time::timeout(call.timeout, calling).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => unknown("its handler panicked".to_owned()),
            Err(_) => unknown(format!("no answer within {} ms", call.timeout.as_millis())),
        }
    }

    /// Rule S1: immediately before the send, by our own clock. A lease that has run out is waited for, not ignored.
    async fn leased(&mut self) -> bool {
        loop {
            if self.stop.is_cancelled() {
                return false;
            }
            if self.clock.monotonic() < *self.lease.borrow_and_update() {
                return true;
            }
            tokio::select! {
                changed = self.lease.changed() => if changed.is_err() {
                    // The saga is no longer ours.
                    return false;
                },
                () = self.stop.cancelled() => return false,
            }
        }
    }
}
