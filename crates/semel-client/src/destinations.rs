//! What many callers of one process ask of one host: so many at once, and nothing while it does not answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::breaker::{Breaker, BreakerPolicy, Pass, Seen};
use semel_core::host::dice;
use semel_core::{Clock, SystemClock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of the last error that are kept for the breaker's reason.
const WHY_BYTES_MAX: usize = 300;

/// Limits of each destination.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DestinationPolicy {
    /// Requests on their way at once, of all callers that share the [`Destinations`]. Default 256.
    pub concurrency_max: usize,
    /// When nothing is asked of it any more.
    pub breaker: BreakerPolicy,
}

impl Default for DestinationPolicy {
    fn default() -> Self {
        Self {
            concurrency_max: 256,
            breaker: BreakerPolicy::default(),
        }
    }
}

/// All destinations of a process, by their authority (`host:port`). Cheap to clone; clones share. Destinations are kept for
/// good, so name only those that the configuration names.
#[derive(Clone)]
pub struct Destinations(Arc<Inner>);

struct Inner {
    policy: DestinationPolicy,
    clock: Arc<dyn Clock>,
    map: Mutex<BTreeMap<String, Arc<Destination>>>,
}

struct Destination {
    permits: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    breaker: Breaker,
    /// The last failure.
    why: String,
}

impl Destination {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Destinations {
    fn default() -> Self {
        Self::new(DestinationPolicy::default(), Arc::new(SystemClock))
    }
}

impl std::fmt::Debug for Destinations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Destinations").field(&self.states()).finish()
    }
}

/// How a destination stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestinationState {
    /// Its authority.
    pub name: String,
    /// Requests on their way.
    pub in_flight: usize,
    /// Failures in a row.
    pub failures: u32,
    /// For how many milliseconds its breaker has been open, if it is.
    pub open_ms: Option<u64>,
    /// The last failure, if the breaker is open.
    pub why: Option<String>,
}

/// Why a request may not be made now. It is certain that nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// The breaker is open.
    #[error(
        "{destination} has not answered {failures} times in a row and is left alone; somebody tries again in \
         {} ms; the last failure: {why}", .retry_after.as_millis()
    )]
    Open {
        /// Whose.
        destination: String,
        /// Failures in a row.
        failures: u32,
        /// When to ask again.
        retry_after: Duration,
        /// The last failure.
        why: String,
    },
    /// All places were taken for as long as the caller would wait.
    #[error("{max} requests are on their way to {destination} already (concurrency_max of [destinations])")]
    Full {
        /// To whom.
        destination: String,
        /// The limit.
        max: usize,
    },
}

impl Destinations {
    /// Destinations with these limits, each of them.
    #[must_use]
    pub fn new(policy: DestinationPolicy, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner {
            policy,
            clock,
            map: Mutex::default(),
        }))
    }

    /// Waits for a place, at most this long.
    ///
    /// # Errors
    /// [`Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future, or [`Entered`], gives the place back and says nothing about the destination.
    pub async fn enter(&self, authority: &str, wait: Duration) -> Result<Entered, Closed> {
        self.door(authority).enter(wait).await
    }

    /// The destination itself, for who enters it again and again.
    #[must_use]
    pub fn door(&self, authority: &str) -> Door {
        Door {
            inner: Arc::clone(&self.0),
            destination: self.0.destination(authority),
            authority: authority.to_owned(),
        }
    }

    /// How all destinations stand that were ever entered.
    #[must_use]
    pub fn states(&self) -> Vec<DestinationState> {
        let map = self.0.map.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.0.now();
        let one = |(name, destination): (&String, &Arc<Destination>)| {
            let state = destination.lock();
            let open_ms = state.breaker.open_since().map(|since| now.saturating_sub(since));
            DestinationState {
                name: name.clone(),
                in_flight: self
                    .0
                    .policy
                    .concurrency_max
                    .max(1)
                    .saturating_sub(destination.permits.available_permits()),
                failures: state.breaker.failures(),
                why: open_ms.map(|_| state.why.clone()),
                open_ms,
            }
        };
        map.iter().map(one).collect()
    }
}

/// One destination. See [`Destinations::door`].
pub struct Door {
    inner: Arc<Inner>,
    destination: Arc<Destination>,
    authority: String,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Door").field(&self.authority).finish()
    }
}

impl Door {
    /// As [`Destinations::enter`].
    ///
    /// # Errors
    /// [`Closed`].
    pub async fn enter(&self, wait: Duration) -> Result<Entered, Closed> {
        let Self {
            inner,
            destination,
            authority,
        } = self;
        let permits = &destination.permits;
        let permit = match Arc::clone(permits).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                // Without a place first: whoever finds it open does not wait for those that are on their way.
                if let Some(open) = inner.open(authority, destination) {
                    return Err(open);
                }
                let waiting = Arc::clone(permits).acquire_owned();
                let Ok(Ok(permit)) = tokio::time::timeout(wait, waiting).await else {
                    return Err(Closed::Full {
                        destination: authority.clone(),
                        max: inner.policy.concurrency_max,
                    });
                };
                permit
            }
        };
        let now = inner.now();
        let mut state = destination.lock();
        let pass = state.breaker.pass(now);
        let pass = pass.map_err(|wait| closed(authority, &state, wait))?;
        drop(state);
        Ok(Entered {
            inner: Arc::clone(inner),
            destination: Arc::clone(destination),
            pass,
            _permit: permit,
            settled: false,
        })
    }
}

fn closed(authority: &str, state: &State, wait_ms: u64) -> Closed {
    Closed::Open {
        destination: authority.to_owned(),
        failures: state.breaker.failures(),
        retry_after: Duration::from_millis(wait_ms),
        why: state.why.clone(),
    }
}

impl Inner {
    fn now(&self) -> u64 {
        u64::try_from(self.clock.monotonic().as_millis()).unwrap_or(u64::MAX)
    }

    fn destination(&self, authority: &str) -> Arc<Destination> {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = map.get(authority) {
            return Arc::clone(known);
        }
        let new = Arc::new(Destination {
            permits: Arc::new(Semaphore::new(
                self.policy.concurrency_max.clamp(1, Semaphore::MAX_PERMITS),
            )),
            state: Mutex::default(),
        });
        map.insert(authority.to_owned(), Arc::clone(&new));
        new
    }

    /// Looks without taking the try of an open breaker.
    fn open(&self, authority: &str, destination: &Destination) -> Option<Closed> {
        let state = destination.lock();
        let wait = state.breaker.clone().pass(self.now()).err()?;
        Some(closed(authority, &state, wait))
    }
}

/// A place at a destination. Say how it went with [`Entered::answered`] or [`Entered::failed`]; dropping it says nothing.
pub struct Entered {
    inner: Arc<Inner>,
    destination: Arc<Destination>,
    pass: Pass,
    _permit: OwnedSemaphorePermit,
    settled: bool,
}

impl std::fmt::Debug for Entered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Entered").field(&self.pass).finish()
    }
}

impl Entered {
    /// The destination answered, whatever it said.
    pub fn answered(mut self) {
        self.settle(Seen::Answered, None);
    }

    /// It did not answer, or only to say that it cannot.
    pub fn failed(mut self, why: &str) {
        self.settle(Seen::Failed, Some(why));
    }

    fn settle(&mut self, seen: Seen, why: Option<&str>) {
        self.settled = true;
        let now = self.inner.now();
        let mut state = self.destination.lock();
        if let Some(why) = why {
            let end = why.floor_char_boundary(WHY_BYTES_MAX);
            why[..end].clone_into(&mut state.why);
        }
        state
            .breaker
            .settle(now, self.pass, seen, &self.inner.policy.breaker, dice());
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if !self.settled {
            self.settle(Seen::Nothing, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destinations(concurrency_max: usize) -> Destinations {
        let policy = DestinationPolicy {
            concurrency_max,
            breaker: BreakerPolicy {
                failures_max: 2,
                ..BreakerPolicy::default()
            },
        };
        Destinations::new(policy, Arc::new(SystemClock))
    }

    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn places_are_shared_by_all_and_given_back() {
        let all = destinations(2);
        let (one, two) = (all.clone(), all.clone());
        let first = one.enter("h:1", LONG).await.unwrap();
        let second = two.enter("h:1", LONG).await.unwrap();
        let full = all.enter("h:1", Duration::from_millis(5)).await.unwrap_err();
        assert!(
            full.to_string().contains("2 requests are on their way to h:1"),
            "{full}"
        );
        // Another destination has places of its own.
        all.enter("h:2", LONG).await.unwrap().answered();
        assert_eq!(all.states()[0].in_flight, 2);
        drop(first);
        second.answered();
        all.enter("h:1", LONG).await.unwrap();
        assert_eq!(all.states()[0].in_flight, 0);
    }

    #[tokio::test]
    async fn an_open_breaker_lets_nobody_in_and_says_why() {
        let all = destinations(9);
        for _ in 0..2 {
            all.enter("h:1", LONG).await.unwrap().failed("connection refused");
        }
        let Err(closed @ Closed::Open { retry_after, .. }) = all.enter("h:1", LONG).await else {
            panic!("it is open")
        };
        assert!(retry_after <= Duration::from_millis(500) && !retry_after.is_zero());
        assert!(closed.to_string().contains("connection refused"), "{closed}");
        let state = &all.states()[0];
        assert_eq!(
            (state.failures, state.why.as_deref()),
            (2, Some("connection refused"))
        );
        assert!(state.open_ms.is_some());
    }
}
