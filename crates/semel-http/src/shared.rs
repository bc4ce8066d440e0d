//! What all clones of one layer share.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Response;
use http::header::{HeaderValue, WWW_AUTHENTICATE};
use http::request::Parts;
use semel_core::claim::Reconcile;
use semel_core::quiet::Quiet;
use semel_core::wire::Memory;
use semel_core::{Key, KeyStore, OwnerLost, Timestamp};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::behind::Behind;
use crate::body::Body;
use crate::config::Config;
use crate::headers::{SEMEL_GUARANTEE, SEMEL_NO_STORE, SEMEL_OUTCOME, SEMEL_RETAINED_UNTIL};
use crate::observe::{Counts, Event, Observer};
use crate::policy::OutcomeWord;
use crate::problem::{Problem, ProblemKind};
use crate::scope::ScopeResolver;
use crate::wait::{Latency, NoWait, Waiters};

/// Seconds in `Retry-After` when the store or this process has no room now.
pub(crate) const RETRY_SOON_S: u64 = 2;

/// Seconds in `Retry-After` when the store is full: room comes with time or with its operator.
const RETRY_FULL_S: u64 = 60;

pub(crate) type Target = Box<dyn Fn(&Parts) -> Vec<u8> + Send + Sync>;
pub(crate) type StatusUrl = Box<dyn Fn(&Key) -> String + Send + Sync>;

/// What all routes of a layer share.
pub(crate) struct Common {
    pub(crate) store: Arc<dyn KeyStore>,
    pub(crate) scope: Box<dyn ScopeResolver>,
    pub(crate) target: Option<Target>,
    pub(crate) status_url: Option<StatusUrl>,
    pub(crate) reconcile: Option<Arc<dyn Reconcile>>,
    pub(crate) observer: Option<Box<dyn Observer>>,
    pub(crate) counts: Counts,
    pub(crate) tasks: TaskTracker,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) latency: Latency,
    pub(crate) running: AtomicUsize,
    /// What waits for the store behind answers.
    pub(crate) behind: Behind,
    /// Whether a failure of the store is logged.
    pub(crate) quiet: Quiet,
}

/// What the requests of one route share: its settings, and what it shares with the other routes.
pub(crate) struct Shared {
    common: Arc<Common>,
    pub(crate) config: Config,
    guarantee: HeaderValue,
}

impl Deref for Shared {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

/// A place among the keyed requests that run in this process; given back on drop. While it lives, a drain waits.
pub(crate) struct Place {
    shared: Arc<Shared>,
    _tracked: TaskTrackerToken,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    pub(crate) fn new(common: Arc<Common>, config: Config) -> Self {
        let survives = common.store.capabilities().token_survives_failover;
        let guarantee = config.guarantee.header(survives);
        Self {
            common,
            config,
            guarantee,
        }
    }

    /// The same with other settings; places, waiters and counts are still shared.
    pub(crate) fn with_config(&self, config: Config) -> Self {
        Self::new(Arc::clone(&self.common), config)
    }

    /// A place to run, unless `running_max` are taken.
    pub(crate) fn place(self: &Arc<Self>) -> Option<Place> {
        if self.running.fetch_add(1, Ordering::Relaxed) >= self.config.running_max {
            self.running.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Place {
            shared: Arc::clone(self),
            _tracked: self.tasks.token(),
        })
    }

    /// Counts what a request came to.
    pub(crate) fn saw(&self, event: Event, key: Option<&Key>) {
        self.counts.add(event);
        if let Some(observer) = &self.observer {
            observer.saw(event, key);
        }
    }

    /// The longest that one call to the store may take.
    pub(crate) const fn store_timeout(&self) -> Duration {
        Duration::from_millis(self.config.store_ms_max)
    }

    /// Sets Semel's headers. A guarantee that the handler gave of itself is kept; its `none` is not, for this layer remembers
    /// the key whatever stands behind it.
    pub(crate) fn stamp(
        &self,
        response: &mut Response<Body>,
        word: OutcomeWord,
        retained: Option<Timestamp>,
    ) {
        let headers = response.headers_mut();
        headers.remove(SEMEL_NO_STORE);
        headers.insert(SEMEL_OUTCOME, word.header());
        if let Some(until) = retained.and_then(|until| HeaderValue::try_from(until.rfc3339()).ok()) {
            headers.insert(SEMEL_RETAINED_UNTIL, until);
        }
        let said = headers.get(SEMEL_GUARANTEE);
        if said.is_none_or(|said| Memory::of(said.as_bytes()) == Memory::None) {
            headers.insert(SEMEL_GUARANTEE, self.guarantee.clone());
        }
    }

    /// A problem as a marked response.
    pub(crate) fn answer(&self, problem: &Problem) -> Response<Body> {
        let mut response = problem.response();
        if let Some(challenge) = response.headers_mut().get_mut(WWW_AUTHENTICATE) {
            challenge.clone_from(&self.config.challenge);
        }
        self.stamp(&mut response, problem.kind().outcome(), None);
        response
    }

    pub(crate) fn problem(&self, kind: ProblemKind, detail: impl Into<String>) -> Response<Body> {
        self.answer(&Problem::new(kind, detail))
    }

    /// The request itself is at fault; nothing was run and the store was not touched.
    pub(crate) fn refused(&self, kind: ProblemKind, detail: impl Into<String>) -> Response<Body> {
        self.saw(Event::Refused, None);
        self.problem(kind, detail)
    }

    /// "Still running", and which limit ended the wait for it: with a `Retry-After` from what runs usually take.
    pub(crate) fn still_running(&self, key: &Key, why: NoWait) -> Response<Body> {
        let config = &self.config;
        let limit = match why {
            NoWait::TooLong => format!("within wait_ms_max = {} ms", config.wait_ms_max),
            NoWait::KeyFull => format!(
                "and waiters_per_key_max = {} wait for it already",
                config.waiters_per_key_max
            ),
            NoWait::AllFull => format!("and waiters_max = {} requests wait already", config.waiters_max),
        };
        self.running(key, &format!(" {limit}"))
    }

    /// "Still running", to an owner that has lost its claim to another one.
    pub(crate) fn run_by_another(&self, key: &Key) -> Response<Body> {
        self.running(key, "")
    }

    fn running(&self, key: &Key, limit: &str) -> Response<Body> {
        self.saw(Event::Running, Some(key));
        let detail = format!(
            "the first request with this key has not ended{limit}; send the same request again later"
        );
        self.answer(&Problem::new(ProblemKind::Running, detail).retry_after(self.latency.retry_after_s()))
    }

    /// "Not known": a state of its own, so no `Retry-After` that a client would loop on (rule K11).
    pub(crate) fn unknown(&self, key: &Key) -> Response<Body> {
        self.saw(Event::Unknown, Some(key));
        let kind = ProblemKind::Unknown;
        let detail = "an earlier request with this key began and its end is not known; it is not run again until \
                      its operator has found out what happened";
        let url = self.status_url.as_ref().map(|url| url(key));
        self.answer(&Problem::new(kind, detail).status_url(url))
    }

    /// "Not known", to an owner that has lost its claim and whose record says no more.
    pub(crate) fn lost(&self, key: &Key) -> Response<Body> {
        if self.config.owner_lost == OwnerLost::Hold {
            return self.unknown(key);
        }
        self.saw(Event::Unknown, Some(key));
        let detail = "this run lost its claim before it had ended, and what it did is not known; the key may be run \
                      again, so a later request with it may run";
        let url = self.status_url.as_ref().map(|url| url(key));
        self.answer(&Problem::new(ProblemKind::Unknown, detail).status_url(url))
    }

    pub(crate) fn no_store(&self, key: &Key) -> Response<Body> {
        self.saw(Event::StoreDown, Some(key));
        let kind = ProblemKind::StoreUnavailable;
        let detail = format!(
            "the store of keys gives no answer (it has store_ms_max = {} ms), so nothing was run; send the same request \
             again later",
            self.config.store_ms_max
        );
        self.answer(&Problem::new(kind, detail).retry_after(RETRY_SOON_S))
    }

    /// The store is there and does not take the claim, by its error of this code.
    pub(crate) fn turned_away(&self, key: &Key, code: &str) -> Response<Body> {
        self.saw(Event::StoreDown, Some(key));
        let kind = ProblemKind::StoreUnavailable;
        let detail = format!(
            "the store of keys is there and does not take this key ({code}), so this request was not run; send the same \
             request again later; its operator finds the cause in the log, by that code"
        );
        self.answer(&Problem::new(kind, detail).retry_after(RETRY_SOON_S))
    }

    pub(crate) fn store_full(&self, key: &Key) -> Response<Body> {
        self.saw(Event::StoreFull, Some(key));
        let kind = ProblemKind::StoreFull;
        let detail = "the store of keys has no room for another record, so nothing was run; no record that counts is \
                      thrown away for it; send the same request again later";
        self.answer(&Problem::new(kind, detail).retry_after(RETRY_FULL_S))
    }

    pub(crate) fn scope_full(&self, key: &Key) -> Response<Body> {
        self.saw(Event::ScopeFull, Some(key));
        let kind = ProblemKind::ScopeFull;
        let detail = "this caller holds as many keys, or as many bytes of kept answers, as its quota allows (records_max, \
                      bytes_max), so nothing was run; requests whose key is there already are still answered; make no \
                      new key for a retry, and send this request again later";
        self.answer(&Problem::new(kind, detail).retry_after(RETRY_FULL_S))
    }

    pub(crate) fn too_busy(&self, key: &Key) -> Response<Body> {
        self.saw(Event::TooBusy, Some(key));
        let kind = ProblemKind::Busy;
        let detail = format!(
            "running_max = {} keyed requests are running; send it again later",
            self.config.running_max
        );
        self.answer(&Problem::new(kind, detail).retry_after(RETRY_SOON_S))
    }
}
