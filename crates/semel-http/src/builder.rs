//! From choices to a layer.

use std::sync::Arc;

use http::Method;
use http::request::Parts;
use semel_core::limits::LimitExceeded;
use semel_core::{Key, KeyStore, Scope};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::fingerprint;
use crate::layer::IdempotencyLayer;
use crate::scope::{Anonymous, ScopeResolver};
use crate::shared::{Shared, StatusUrl, Target};
use crate::wait::{Latency, Waiters};

/// Builds an [`IdempotencyLayer`]. It has no `build` until a scope is chosen.
pub struct Builder<S = NoScope> {
    store: Arc<dyn KeyStore>,
    config: Config,
    target: Target,
    status_url: Option<StatusUrl>,
    scope: S,
}

/// No scope was chosen yet.
#[derive(Debug)]
pub struct NoScope(());

/// A scope was chosen.
pub struct Scoped(Result<Box<dyn ScopeResolver>, LimitExceeded>);

impl Builder<NoScope> {
    pub(crate) fn new(store: Arc<dyn KeyStore>) -> Self {
        Self {
            store,
            config: Config::default(),
            target: Box::new(fingerprint::target),
            status_url: None,
            scope: NoScope(()),
        }
    }

    /// Keys are unique per verified principal: see [`ScopeResolver`].
    #[must_use]
    pub fn scope(self, resolver: impl ScopeResolver) -> Builder<Scoped> {
        self.scoped(Ok(Box::new(resolver)))
    }

    /// All callers share one scope of this name. Only for services without users, or whose callers are one trusted
    /// party: whoever knows a key and its request gets the stored answer. Requests with `Authorization` are refused,
    /// for they show that there are users; other signs, such as cookies, are not looked at.
    #[must_use]
    pub fn anonymous_scope(self, name: &str) -> Builder<Scoped> {
        let scope = Scope::new(name).map(|scope| Box::new(Anonymous(scope)) as Box<dyn ScopeResolver>);
        self.scoped(scope)
    }

    fn scoped(self, scope: Result<Box<dyn ScopeResolver>, LimitExceeded>) -> Builder<Scoped> {
        Builder {
            store: self.store,
            config: self.config,
            target: self.target,
            status_url: self.status_url,
            scope: Scoped(scope),
        }
    }
}

impl<S> Builder<S> {
    /// Replaces all settings.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// POST and PATCH without a key are refused with 400.
    #[must_use]
    pub fn require_key(mut self) -> Self {
        self.config.required_for = vec![Method::POST, Method::PATCH];
        self
    }

    /// What the fingerprint takes for the target. Default the URI's path and query as this layer sees it: inside a
    /// nested router that is without the prefix, so a layer there names the whole target itself.
    #[must_use]
    pub fn target(mut self, target: impl Fn(&Parts) -> Vec<u8> + Send + Sync + 'static) -> Self {
        self.target = Box::new(target);
        self
    }

    /// Where a caller can see what became of a key whose outcome is unknown; sent as a link with that answer.
    #[must_use]
    pub fn status_url(mut self, url: impl Fn(&Key) -> String + Send + Sync + 'static) -> Self {
        self.status_url = Some(Box::new(url));
        self
    }
}

impl Builder<Scoped> {
    /// The layer.
    ///
    /// # Errors
    /// The first setting that is outside its limits.
    pub fn build(self) -> Result<IdempotencyLayer, LimitExceeded> {
        self.config.check()?;
        let running = Arc::new(Semaphore::new(self.config.running_max));
        Ok(IdempotencyLayer::new(Shared {
            store: self.store,
            config: self.config,
            scope: self.scope.0?,
            target: self.target,
            status_url: self.status_url,
            tasks: TaskTracker::new(),
            waiters: Arc::new(Waiters::default()),
            latency: Latency::default(),
            running,
        }))
    }
}

impl<S> std::fmt::Debug for Builder<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Scoped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scoped")
    }
}
