//! What all clones of one layer share.

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http::request::Parts;
use semel_core::{Key, KeyStore, Timestamp};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::body::Body;
use crate::config::Config;
use crate::headers::{SEMEL_GUARANTEE, SEMEL_NO_STORE, SEMEL_OUTCOME, SEMEL_RETAINED_UNTIL};
use crate::policy::OutcomeWord;
use crate::problem::{Problem, ProblemKind};
use crate::scope::ScopeResolver;
use crate::wait::{Latency, Waiters};

/// Seconds in `Retry-After` when the store or this process has no room now.
pub(crate) const RETRY_SOON_S: u64 = 2;

pub(crate) type Target = Box<dyn Fn(&Parts) -> Vec<u8> + Send + Sync>;
pub(crate) type StatusUrl = Box<dyn Fn(&Key) -> String + Send + Sync>;

pub(crate) struct Shared {
    pub(crate) store: Arc<dyn KeyStore>,
    pub(crate) config: Config,
    pub(crate) scope: Box<dyn ScopeResolver>,
    pub(crate) target: Target,
    pub(crate) status_url: Option<StatusUrl>,
    pub(crate) tasks: TaskTracker,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) latency: Latency,
    pub(crate) running: Arc<Semaphore>,
}

impl Shared {
    pub(crate) fn store_timeout(&self) -> Duration {
        Duration::from_millis(self.config.store_ms_max)
    }

    /// Marks an answer with what it says about the operation; the handler's control headers go.
    pub(crate) fn stamp(
        &self,
        response: &mut Response<Body>,
        word: OutcomeWord,
        retained: Option<Timestamp>,
    ) {
        let headers = response.headers_mut();
        headers.remove(SEMEL_NO_STORE);
        headers.insert(SEMEL_OUTCOME, word.header());
        if let Some(until) = retained.and_then(|until| until.rfc3339().parse().ok()) {
            headers.insert(SEMEL_RETAINED_UNTIL, until);
        }
        if !headers.contains_key(SEMEL_GUARANTEE) {
            let survives = self.store.capabilities().token_survives_failover;
            headers.insert(SEMEL_GUARANTEE, self.config.guarantee.header(survives));
        }
    }

    /// A problem as a marked response.
    pub(crate) fn answer(&self, problem: &Problem) -> Response<Body> {
        let mut response = problem.response();
        self.stamp(&mut response, problem.kind().outcome(), None);
        response
    }

    pub(crate) fn problem(&self, kind: ProblemKind, detail: impl Into<String>) -> Response<Body> {
        self.answer(&Problem::new(kind, detail))
    }

    /// "Still running": with a `Retry-After` from what runs usually take.
    pub(crate) fn still_running(&self) -> Response<Body> {
        let kind = ProblemKind::Running;
        let detail = "the first request with this key has not ended; send the same request again later";
        self.answer(&Problem::new(kind, detail).retry_after(self.latency.retry_after_s()))
    }

    /// "Not known": a state of its own, so no `Retry-After` that a client would loop on (rule K11).
    pub(crate) fn unknown(&self, key: &Key) -> Response<Body> {
        let kind = ProblemKind::Unknown;
        let detail = "an earlier request with this key began and its end is not known; it is not run again until \
                      its operator has found out what happened";
        let url = self.status_url.as_ref().map(|url| url(key));
        self.answer(&Problem::new(kind, detail).status_url(url))
    }

    pub(crate) fn no_store(&self) -> Response<Body> {
        let kind = ProblemKind::StoreUnavailable;
        let detail =
            "the store of keys gives no answer, so nothing was run; send the same request again later";
        self.answer(&Problem::new(kind, detail).retry_after(RETRY_SOON_S))
    }

    pub(crate) fn too_busy(&self) -> Response<Body> {
        let kind = ProblemKind::Busy;
        let detail = format!(
            "running_max = {} keyed requests are running; send it again later",
            self.config.running_max
        );
        self.answer(&Problem::new(kind, detail).retry_after(RETRY_SOON_S))
    }
}
