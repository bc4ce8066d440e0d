//! The handle.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use redis::{Cmd, Value};
use semel_core::claim::Token;
use semel_core::{Clock as _, Key, StoreError, SystemClock, Timestamp};

use crate::clock::ServerTime;
use crate::config::Config;
use crate::error::Doing;
use crate::health::{self, Facts};
use crate::hints::Hints;
use crate::link::{LOOK, Link, Node};
use crate::names::{Names, entry_of};
use crate::runs::Runs;
use crate::sweep::Place;

/// Keys on a Redis. Cheap to clone; all clones share a connection.
#[derive(Clone)]
pub struct Redis(Arc<Inner>);

struct Inner {
    config: Config,
    link: Link,
    names: Names,
    hints: Hints,
    durable: AtomicBool,
    /// Why claims are refused now.
    refusal: Mutex<Option<StoreError>>,
    /// What was logged last about what a crash may cost.
    said: Mutex<Option<String>>,
    /// When the settings are looked at again, by this process's monotonic clock in µs.
    next_check: AtomicI64,
    server_time: ServerTime,
    runs: Runs,
    place: Mutex<Place>,
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis")
            .field("config", &self.0.config)
            .finish_non_exhaustive()
    }
}

impl Redis {
    /// Connects, and refuses a server on which keys would not be safe: see [`Facts::check`]. What may be lost in a crash is
    /// logged as a warning.
    ///
    /// # Errors
    /// `Invalid` for settings that do not fit, `Unavailable` when the server cannot be reached.
    pub async fn connect(config: Config) -> Result<Self, StoreError> {
        let store = Self::open(config).await?;
        store.check().await?;
        Ok(store)
    }

    /// Connects without looking at the settings, for tools that show them: [`Redis::facts`].
    ///
    /// # Errors
    /// `Invalid` for a URL that cannot be read or a user that is refused, `Unavailable` when the server cannot be reached.
    pub async fn open(config: Config) -> Result<Self, StoreError> {
        config.check()?;
        let hints = Hints::default();
        let woken = hints.clone();
        let link = Link::new(config.clone(), Arc::new(move |record| woken.wake(record)))?;
        link.live("connect").await?;
        let store = Self(Arc::new(Inner {
            names: Names::new(&config.prefix, config.cluster),
            link,
            hints,
            durable: AtomicBool::new(false),
            refusal: Mutex::new(None),
            said: Mutex::default(),
            next_check: AtomicI64::new(0),
            server_time: ServerTime::default(),
            runs: Runs::default(),
            place: Mutex::default(),
            config,
        }));
        store.check_is_due_later();
        Ok(store)
    }

    /// What each server that holds keys says about itself: one, or the primaries of a cluster.
    ///
    /// # Errors
    /// It cannot be reached.
    pub async fn facts(&self) -> Result<Vec<Facts>, StoreError> {
        health::ask(&self.0.link).await
    }

    /// Looks at the servers' settings now; claims are refused from now on if they do not fit, and no longer if they do. What
    /// a crash may cost is logged when it is new.
    ///
    /// # Errors
    /// What is wrong, or that they cannot be asked.
    pub async fn check(&self) -> Result<(), StoreError> {
        let judged = self.judge(&self.facts().await?);
        self.look_at_the_clock().await;
        judged
    }

    /// Claims ask for the time themselves as long as this did not work.
    async fn look_at_the_clock(&self) {
        let looked = self.link().run("check", Doing::Reading, &LOOK, 0, |_| ()).await;
        if let Ok((Value::Array(values), _)) = looked
            && let [Value::Int(now)] = values[..]
        {
            self.server_time().seen(Timestamp(now));
        }
    }

    fn judge(&self, facts: &[Facts]) -> Result<(), StoreError> {
        let durable = !facts.is_empty() && facts.iter().all(Facts::is_durable);
        self.0.durable.store(durable, Ordering::Relaxed);
        let warning = facts.iter().find_map(Facts::warning);
        let mut said = self.0.said.lock().unwrap_or_else(PoisonError::into_inner);
        if *said != warning {
            if let Some(warning) = &warning {
                tracing::warn!("{warning}");
            }
            *said = warning;
        }
        drop(said);
        let judged = health::judge(facts, self.0.link.is_cluster());
        let mut refusal = self.0.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        *refusal = judged.clone().err();
        judged
    }

    /// Forgets the connection; a later call makes a new one.
    pub fn close(&self) {
        self.0.link.close();
        self.0.hints.wake(None);
    }

    pub(crate) fn link(&self) -> &Link {
        &self.0.link
    }

    pub(crate) fn names(&self) -> &Names {
        &self.0.names
    }

    pub(crate) fn server_time(&self) -> &ServerTime {
        &self.0.server_time
    }

    pub(crate) fn runs(&self) -> &Runs {
        &self.0.runs
    }

    pub(crate) fn hints(&self) -> &Hints {
        &self.0.hints
    }

    pub(crate) fn place(&self) -> &Mutex<Place> {
        &self.0.place
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.0.durable.load(Ordering::Relaxed)
    }

    /// Why no claims are taken now. Looks at the settings again when it is time, beside the claims.
    pub(crate) fn refuses_claims(&self) -> Option<StoreError> {
        let now = i64::try_from(SystemClock.monotonic().as_micros()).unwrap_or(i64::MAX);
        if now >= self.0.next_check.load(Ordering::Relaxed) {
            self.check_is_due_later();
            let store = self.clone();
            tokio::spawn(async move {
                if let Err(error) = store.check().await {
                    tracing::warn!(error = semel_core::error::chain(&error), "Redis does not fit");
                }
            });
        }
        let refusal = self.0.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        refusal.clone()
    }

    fn check_is_due_later(&self) {
        let next = SystemClock.monotonic().saturating_add(self.0.config.check_every);
        let next = i64::try_from(next.as_micros()).unwrap_or(i64::MAX);
        self.0.next_check.store(next, Ordering::Relaxed);
    }

    /// Notes that a run is over. Its entry in the registry is removed with others, later.
    pub(crate) fn run_ended(&self, key: &Key, token: Token) {
        let Some((tag, tokens)) = self.runs().ended(self.names(), &self.names().record(key), token) else {
            return;
        };
        let mut command: Cmd = redis::cmd("XDEL");
        command.arg(self.names().registry(tag));
        for token in tokens {
            command.arg(entry_of(token));
        }
        let store = self.clone();
        tokio::spawn(async move {
            if let Err(error) = store.link().ask("forget", &Node::Only, command).await {
                tracing::debug!(error = semel_core::error::chain(&error), "left to the sweep");
            }
        });
    }
}
