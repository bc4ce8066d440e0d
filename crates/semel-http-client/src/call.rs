//! One call from its first attempt to its outcome; what both shells share.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};
use semel_core::limits::LimitExceeded;
use semel_core::{Clock, SystemClock, Timestamp, host, wire};

use crate::config::{Config, Repeat};
use crate::course::{At, Course, Next, Rules};
use crate::error::{BoxError, Error};
use crate::key::{self, RequestKey};
use crate::outcome::{CanDo, Outcome, Refusal, Report, Unknown};
use crate::routes::{Route, Routes};
use crate::sent;
use crate::verdict::{Seen, Why, judge};

/// What an answer must tell, and where its report goes.
pub(crate) trait Answer {
    fn head(&self) -> (StatusCode, &HeaderMap);
    fn report(&mut self, report: Report);
}

/// What an attempt brought.
pub(crate) enum Attempt<R> {
    Answer(R),
    Failed(BoxError),
    TimedOut,
}

/// What the calls of one client share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    routes: Routes,
    clock: Arc<dyn Clock>,
}

impl Shared {
    pub(crate) fn new(config: Config, clock: Arc<dyn Clock>) -> Result<Self, LimitExceeded> {
        config.check()?;
        let routes = Routes::new(config.routes_max);
        Ok(Self {
            config,
            routes,
            clock,
        })
    }
}

impl Default for Shared {
    fn default() -> Self {
        let config = Config::default();
        Self {
            routes: Routes::new(config.routes_max),
            config,
            clock: Arc::new(SystemClock),
        }
    }
}

/// The key of a call.
pub(crate) struct Named {
    key: RequestKey,
    /// It was made for this call, so that nobody else can have sent it. One that was brought along may have been sent by
    /// whoever brought it.
    made_here: bool,
}

/// Finds or makes the key, and puts it into the headers. A safe method needs none.
pub(crate) fn put_key(
    config: &Config,
    method: &Method,
    headers: &mut HeaderMap,
    given: Option<RequestKey>,
) -> Result<Option<Named>, Error> {
    let brought = |key| Named {
        key,
        made_here: false,
    };
    if method.is_safe() {
        return Ok(None);
    }
    if let Some(present) = key::present(headers, &config.header)? {
        return match given {
            // The same operation; only the extension knows when it was first sent.
            Some(given) if given.as_str() == present.as_str() => Ok(Some(brought(given))),
            Some(_) => Err(Error::key(format!(
                "its header {} and the RequestKey in its extensions name different operations",
                config.header
            ))),
            None => Ok(Some(brought(present))),
        };
    }
    let named = given.map_or_else(
        || Named {
            key: RequestKey::random(),
            made_here: true,
        },
        brought,
    );
    headers.insert(config.header.clone(), named.key.value(config.form)?);
    Ok(Some(named))
}

/// One call under way.
pub(crate) struct Call {
    shared: Arc<Shared>,
    route: Route,
    key: Option<RequestKey>,
    /// Nobody else can have sent this request.
    fresh: bool,
    rules: Rules,
    course: Course,
    begun: Duration,
    begun_at: Timestamp,
}

/// What a shell does next.
pub(crate) enum Then<R> {
    Wait(Duration),
    End(Outcome<R>),
}

impl Call {
    pub(crate) fn new(shared: Arc<Shared>, route: Route, named: Option<Named>) -> Self {
        let config = &shared.config;
        let fresh = named.as_ref().is_none_or(|named| named.made_here);
        let key = named.map(|named| named.key);
        // A safe method may be repeated at any time.
        let keyed_ms = match &key {
            Some(_) => config.repeat.window_ms().saturating_sub(config.margin_ms),
            None => u64::MAX,
        };
        let rules = Rules {
            retry: config.retry,
            keyed_ms,
        };
        let course = match key.as_ref().and_then(RequestKey::when_first_sent) {
            Some(_) => Course::repeat(),
            None => Course::default(),
        };
        let (begun, begun_at) = (shared.clock.monotonic(), shared.clock.now());
        Self {
            shared,
            route,
            key,
            fresh,
            rules,
            course,
            begun,
            begun_at,
        }
    }

    /// How the call ends before its first attempt, where it must not be made.
    pub(crate) fn begin<R: Answer>(&mut self) -> Option<Outcome<R>> {
        let at = self.at();
        let why = self.course.may_begin(&self.rules, at).err()?;
        Some(self.unknown(why, at, None, None))
    }

    /// Time for the next attempt: its own limit, within what is left for the call.
    pub(crate) fn attempt_time(&self) -> Duration {
        let left = self.rules.retry.total_ms_max.saturating_sub(self.elapsed_ms());
        Duration::from_millis(self.shared.config.attempt_ms_max.min(left.max(1)))
    }

    /// What follows an attempt.
    pub(crate) fn after<R: Answer>(&mut self, attempt: Attempt<R>) -> Then<R> {
        let config = &self.shared.config;
        let now = self.shared.clock.now();
        let seen = match &attempt {
            Attempt::Answer(answer) => {
                let (status, headers) = answer.head();
                self.shared.routes.learn(&self.route, headers);
                Seen::Answer(status, headers)
            }
            Attempt::Failed(error) if sent::never(&**error) => Seen::NotSent,
            Attempt::Failed(_) => Seen::Broken,
            Attempt::TimedOut => Seen::TimedOut,
        };
        let fresh = self.fresh && self.course.is_certain();
        let verdict = judge(seen, fresh, config.trust_unavailable, now);
        let at = self.at();
        let next = self.course.after(verdict, &self.rules, at);
        let attempts = self.course.attempts();
        tracing::debug!(attempts, ?verdict, ?next, "an attempt ended");
        let (answer, source) = match attempt {
            Attempt::Answer(answer) => (Some(self.reported(answer)), None),
            Attempt::Failed(error) => (None, Some(error)),
            Attempt::TimedOut => (None, None),
        };
        Then::End(match (next, answer) {
            (Next::Wait(ms), _) => return Then::Wait(Duration::from_millis(ms)),
            (Next::Succeeded, Some(answer)) => Outcome::Succeeded(answer),
            (Next::Refused, Some(answer)) => Outcome::Refused(Refusal::Answer(answer)),
            (Next::Refused, None) => {
                let source = source.unwrap_or_else(|| "no connection could be made".into());
                Outcome::Refused(Refusal::NotSent(source))
            }
            (Next::Unknown(why), answer) => self.unknown(why, at, answer, source),
            // Without an answer nothing is said to have succeeded.
            (Next::Succeeded, None) => self.unknown(Why::Broken, at, None, source),
        })
    }

    fn reported<R: Answer>(&self, mut answer: R) -> R {
        let replayed = answer
            .head()
            .1
            .get(wire::IDEMPOTENT_REPLAYED)
            .is_some_and(|value| value.as_bytes() == b"true");
        answer.report(Report {
            key: self.key.clone(),
            attempts: self.course.attempts(),
            replayed,
        });
        answer
    }

    fn unknown<R>(&self, why: Why, at: At, answer: Option<R>, source: Option<BoxError>) -> Outcome<R> {
        let left = self.rules.keyed_ms.saturating_sub(at.age_ms);
        let can_do = match why {
            Why::ReceiverSaysSo | Why::WindowOver => CanDo::Look,
            _ if self.key.is_some() && at.deduplicates && left > 0 => CanDo::Repeat { within_ms: left },
            Why::StillRunning if self.key.is_some() && left > 0 => CanDo::Repeat { within_ms: left },
            _ => CanDo::Look,
        };
        // A repeat must know when the key was first sent.
        let key = self.key.clone().map(|key| match key.when_first_sent() {
            Some(_) => key,
            None => key.first_sent(self.begun_at),
        });
        Outcome::Unknown(Box::new(Unknown {
            why,
            key,
            attempts: self.course.attempts(),
            can_do,
            answer,
            source,
        }))
    }

    fn elapsed_ms(&self) -> u64 {
        let elapsed = self.shared.clock.monotonic().saturating_sub(self.begun);
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }

    fn at(&self) -> At {
        let elapsed_ms = self.elapsed_ms();
        // The wall clock counts suspend; the other one cannot be set back. The receiver's window runs in both.
        let first = self
            .key
            .as_ref()
            .and_then(RequestKey::when_first_sent)
            .unwrap_or(self.begun_at);
        let wall = u64::try_from(self.shared.clock.now().ms_since(first)).unwrap_or(0);
        At {
            elapsed_ms,
            age_ms: wall.max(elapsed_ms),
            dice: host::dice(),
            deduplicates: self.deduplicates(),
        }
    }

    fn deduplicates(&self) -> bool {
        match self.shared.config.repeat {
            _ if self.key.is_none() => true,
            Repeat::Never => false,
            Repeat::IfShown { .. } => self.shared.routes.has(&self.route),
            Repeat::Keyed { .. } => true,
        }
    }
}
