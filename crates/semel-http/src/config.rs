//! Settings of a layer, each with its default and its limit.

use std::sync::Arc;

use http::Method;
use http::header::{HeaderName, HeaderValue};
use semel_core::claim::WITHDRAWN_MS;
use semel_core::issued::IssuedIds;
use semel_core::limits::{self, LimitExceeded};
use semel_core::{Keep, OwnerLost, RetryPolicy};

use crate::fingerprint::Profile;
use crate::headers::IDEMPOTENCY_KEY;
use crate::key::{BodyKey, KeyForm};
use crate::policy::{Guarantee, StatusPolicy};
use crate::problem::CHALLENGE;

/// Headers in a fingerprint beside its own, at most.
pub const FINGERPRINT_HEADERS_MAX: usize = 6;

/// What happens to a keyed request while the store gives no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Outage {
    /// 503 with `Retry-After`; nothing is run. The default.
    #[default]
    Closed,
    /// It is run without protection: twice when it is sent twice. Not while the store tells what it has of the key and only takes no
    /// claim, such as a file or a row that somebody holds. The answer says `Semel-Guarantee: none`, and it is
    /// counted ([`Event::OpenPassed`](crate::Event::OpenPassed)). For routes where a refusal costs more than a second run.
    Open,
}

/// Whether keys decide anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// They do. The default.
    #[default]
    Enforce,
    /// Nothing is refused and nothing replayed: it is only counted and told to the observer what would have been a
    /// duplicate, a mismatch or a refusal. For trying the layer before relying on it. Its records stand in a scope of
    /// their own and mean nothing once keys are enforced.
    Shadow,
}

/// Keys that the server gave out: [`Config::issued`].
///
/// Give one out with the request's scope, as your [`ScopeResolver`](crate::ScopeResolver) makes it, and put it where the
/// client sends its key from ([`Config::body_keys`] for a form). One that was made up, was given out to another caller, or
/// whose time is over and of which there is no record is not run (SEM0432, SEM0433). One that was used in time is answered
/// by its record for as long as that is kept; a key is taken for `store_ms_max` longer than its time.
///
/// ```
/// # fn f(secret: semel_keys::Secret) -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use semel_core::{Clock as _, Scope, SystemClock, host::random_16};
/// use semel_http::{BodyKey, Config, IssuedKeys};
/// use semel_keys::Issuer;
///
/// let issuer = Arc::new(Issuer::new([secret])?);
/// let config = Config {
///     body_keys: vec![BodyKey::Form("order_key".to_owned())],
///     issued: Some(IssuedKeys { ids: issuer.clone(), required: true }),
///     ..Config::default()
/// };
///
/// // GET /orders/new, of user 4: the form's hidden field.
/// let scope = Scope::of_parts(&[b"orders", b"user-4"]);
/// let field = issuer.issue_in(&scope, SystemClock.now().plus_ms(3_600_000), random_16());
/// # let _ = (config, field);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct IssuedKeys {
    /// What recognises them.
    pub ids: Arc<dyn IssuedIds>,
    /// Whether a key that has not their form is refused. Else it is the client's own.
    pub required: bool,
}

/// Settings of a layer. `Config::default()` is meant to be right for most services.
#[derive(Debug, Clone)]
pub struct Config {
    /// The header that carries the key. Default `Idempotency-Key`.
    pub header: HeaderName,
    /// Which forms of a key are taken. Default quoted and bare.
    pub key_form: KeyForm,
    /// Other headers that may carry the key, such as `X-Idempotency-Key` or `PayPal-Request-Id`: quoted or bare, whatever
    /// `key_form` says. A request whose sources name two keys is refused. Default none.
    pub aliases: Vec<HeaderName>,
    /// Fields of the body that may carry the key. Bodies of such routes are read before it is known whether there is a
    /// key. Default none.
    pub body_keys: Vec<BodyKey>,
    /// Keys that the server gave out, such as the hidden field of a form that a browser may send twice. Default none: every
    /// key is the client's own.
    pub issued: Option<IssuedKeys>,
    /// Bytes of a key at most, decoded: 1 to 255. Default 255.
    pub key_bytes_max: usize,
    /// Methods that must carry a key; others may. Safe methods ignore it. Default none.
    pub required_for: Vec<Method>,
    /// Methods for which a key means nothing, beside the safe ones. Default none.
    pub ignored_for: Vec<Method>,
    /// Bytes of a keyed request's body at most; more is 413. Default 1 MiB.
    pub request_bytes_max: usize,
    /// Milliseconds that a keyed request's body may pause while it is read; one that pauses longer is refused, and nothing
    /// is run. Default 30 000.
    pub body_idle_ms: u64,
    /// Bytes of an answer's body that are kept at most; the first caller gets a larger one whole, a retry is told
    /// "done, answer not kept". Default 960 KiB; the stored form with its headers has a limit of its own,
    /// [`limits::OUTCOME_BYTES_MAX`].
    pub response_bytes_max: usize,
    /// What counts as the same request. Default [`Profile::Raw`]: the body's bytes.
    pub profile: Profile,
    /// Headers outside the fingerprint's own that count as a part of what was asked; at most
    /// [`FINGERPRINT_HEADERS_MAX`]. Default none.
    pub fingerprint_headers: Vec<HeaderName>,
    /// Milliseconds of a claim; renewed at a third while the handler runs. A crashed process blocks a key for this
    /// long before it reads as unknown. Default 30 000.
    pub lease_ms: i64,
    /// What becomes of a key whose process died: unknown (the default), or run again by the next request.
    pub owner_lost: OwnerLost,
    /// How long answers are kept, from completion, and how long after that a late retry is still refused instead of
    /// run. Default a day, then 30 days.
    pub keep: Keep,
    /// Milliseconds that a duplicate waits for the first one's answer before 409. 0 answers at once. Default 10 000.
    pub wait_ms_max: u64,
    /// Duplicates of one key that wait at most; more get 409 at once. Default 64.
    pub waiters_per_key_max: usize,
    /// Duplicates of all keys that wait at most, in this process. Default 4 096.
    pub waiters_max: usize,
    /// Keyed requests that run at most, in this process; more get 503. Waiting ones do not count. Default 4 096.
    pub running_max: usize,
    /// Milliseconds after which a run's claim is no longer renewed: the key then reads as unknown until the handler
    /// ends (under [`OwnerLost::Rerun`] the handler is stopped). Default 10 minutes.
    pub run_ms_max: u64,
    /// Milliseconds that one call to the store may take, at most [`WITHDRAWN_MS`]. Default 5 000.
    pub store_ms_max: u64,
    /// Milliseconds that a reconcile hook may take. Default 5 000.
    pub reconcile_ms_max: u64,
    /// What happens while the store gives no answer to a claim. Default closed.
    pub outage: Outage,
    /// Whether keys decide anything. Default they do.
    pub mode: Mode,
    /// Milliseconds that the store may hold a request up under [`Mode::Shadow`], once before its handler and once behind
    /// it. Default 50.
    pub shadow_ms_max: u64,
    /// How long an outcome that could not be stored is tried again, after its answer was sent. Default 50 ms growing
    /// to 5 s, for 10 minutes.
    pub completion_retry: RetryPolicy,
    /// Withdrawals and outcomes that wait for a store that gives no answer, after their requests were answered. From so
    /// many on no more claims are sent, for each may leave another one behind: the store counts as away until some have ended.
    /// Those of requests that run already still come on top, at most `running_max`. Default 4 096.
    pub behind_max: usize,
    /// Bytes of the outcomes among them. Of one that goes beyond it only what came of it is kept: a retry is told "done, answer not
    /// kept". Default 64 MiB.
    pub behind_bytes_max: usize,
    /// Milliseconds that the client of a streamed answer may take nothing of it, while more is there to be sent. Then its
    /// stream is broken off, and the run goes on as if it had left. Default 75 000.
    pub client_idle_ms: u64,
    /// What each status means. See [`StatusPolicy`].
    pub status: StatusPolicy,
    /// How a caller that is not known may say who it is: `WWW-Authenticate` of the 401. Default `Bearer`.
    pub challenge: HeaderValue,
    /// The strength told to callers. Default guarded.
    pub guarantee: Guarantee,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            header: IDEMPOTENCY_KEY,
            key_form: KeyForm::Lenient,
            aliases: Vec::new(),
            body_keys: Vec::new(),
            issued: None,
            key_bytes_max: limits::KEY_ID_BYTES_MAX,
            required_for: Vec::new(),
            ignored_for: Vec::new(),
            request_bytes_max: 1 << 20,
            body_idle_ms: 30_000,
            response_bytes_max: 960 << 10,
            profile: Profile::Raw,
            fingerprint_headers: Vec::new(),
            lease_ms: 30_000,
            owner_lost: OwnerLost::Hold,
            keep: Keep::default(),
            wait_ms_max: 10_000,
            waiters_per_key_max: 64,
            waiters_max: 4_096,
            running_max: 4_096,
            run_ms_max: 600_000,
            store_ms_max: 5_000,
            reconcile_ms_max: 5_000,
            outage: Outage::Closed,
            mode: Mode::Enforce,
            shadow_ms_max: 50,
            completion_retry: RetryPolicy {
                initial_ms: 50,
                cap_ms: 5_000,
                attempts_max: u32::MAX,
                total_ms_max: 600_000,
                ..RetryPolicy::default()
            },
            behind_max: 4_096,
            behind_bytes_max: 64 << 20,
            client_idle_ms: 75_000,
            status: StatusPolicy::default(),
            challenge: HeaderValue::from_static(CHALLENGE),
            guarantee: Guarantee::Guarded,
        }
    }
}

impl Config {
    /// Refuses settings outside their limits.
    ///
    /// # Errors
    /// The first one, by name.
    pub fn check(&self) -> Result<(), LimitExceeded> {
        let help = "choose a value within the limit";
        limits::check(
            "key_bytes_max",
            "bytes",
            self.key_bytes_max as u64,
            1,
            limits::KEY_ID_BYTES_MAX as u64,
            help,
        )?;
        limits::check(
            "response_bytes_max",
            "bytes",
            self.response_bytes_max as u64,
            0,
            limits::OUTCOME_BYTES_MAX as u64,
            help,
        )?;
        limits::check(
            "fingerprint_headers",
            "names",
            self.fingerprint_headers.len() as u64,
            0,
            FINGERPRINT_HEADERS_MAX as u64,
            help,
        )?;
        limits::check_renewed_lease(self.lease_ms)?;
        self.keep.check()?;
        limits::check(
            "running_max",
            "requests",
            self.running_max as u64,
            1,
            1 << 20,
            help,
        )?;
        limits::check("body_idle_ms", "ms", self.body_idle_ms, 1, u64::MAX, help)?;
        limits::check("client_idle_ms", "ms", self.client_idle_ms, 1, u64::MAX, help)?;
        limits::check("behind_max", "calls", self.behind_max as u64, 1, 1 << 20, help)?;
        limits::check("run_ms_max", "ms", self.run_ms_max, 1, u64::MAX, help)?;
        // A store that is given longer could take in a claim when it has forgotten the withdrawal of that claim, and
        // the key would be held by nobody.
        limits::check(
            "store_ms_max",
            "ms",
            self.store_ms_max,
            1,
            WITHDRAWN_MS as u64,
            "a claim without an answer is withdrawn, and WITHDRAWN_MS is for how long that is remembered: choose \
             store_ms_max below it",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_to_the_store_ends_while_its_withdrawal_is_remembered() {
        let config = |store_ms_max| Config {
            store_ms_max,
            ..Config::default()
        };
        assert_eq!(config(60_000).check(), Ok(()));
        let error = config(60_001).check().unwrap_err().to_string();
        for name in ["store_ms_max: 60001 ms", "1..=60000", "WITHDRAWN_MS"] {
            assert!(error.contains(name), "{error}");
        }
    }
}
