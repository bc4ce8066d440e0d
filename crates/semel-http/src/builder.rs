//! From choices to a layer.

use std::sync::Arc;

use http::Method;
use http::request::Parts;
use semel_core::claim::Reconcile;
use semel_core::limits::LimitExceeded;
use semel_core::{Key, KeyStore, Scope};

use crate::config::Config;
use crate::layer::IdempotencyLayer;
use crate::observe::Observer;
use crate::route::{Choose, Route, Routes};
use crate::scope::{Anonymous, ScopeResolver};
use crate::shared::{Common, Shared, StatusUrl, Target};

/// Builds an [`IdempotencyLayer`]. It has no `build` until a scope is chosen.
pub struct Builder<S = NoScope> {
    choices: Choices,
    scope: S,
}

/// All choices but the scope.
struct Choices {
    store: Arc<dyn KeyStore>,
    config: Config,
    named: Vec<(&'static str, Config)>,
    choose: Option<Choose>,
    target: Option<Target>,
    status_url: Option<StatusUrl>,
    reconcile: Option<Arc<dyn Reconcile>>,
    observer: Option<Box<dyn Observer>>,
}

/// No scope was chosen yet.
#[derive(Debug)]
pub struct NoScope(());

/// A scope was chosen.
pub struct Scoped(Result<Box<dyn ScopeResolver>, LimitExceeded>);

impl Builder<NoScope> {
    pub(crate) fn new(store: Arc<dyn KeyStore>) -> Self {
        let choices = Choices {
            store,
            config: Config::default(),
            named: Vec::new(),
            choose: None,
            target: None,
            status_url: None,
            reconcile: None,
            observer: None,
        };
        Self {
            choices,
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
            choices: self.choices,
            scope: Scoped(scope),
        }
    }
}

impl<S> Builder<S> {
    /// Replaces all settings.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.choices.config = config;
        self
    }

    /// POST and PATCH without a key are refused with 400.
    #[must_use]
    pub fn require_key(mut self) -> Self {
        self.choices.config.required_for = vec![Method::POST, Method::PATCH];
        self
    }

    /// What the fingerprint takes for the target. Default the URI's path and query as this layer sees it: inside a
    /// nested router that is without the prefix, so a layer there names the whole target itself.
    #[must_use]
    pub fn target(mut self, target: impl Fn(&Parts) -> Vec<u8> + Send + Sync + 'static) -> Self {
        self.choices.target = Some(Box::new(target));
        self
    }

    /// Settings for the requests that [`choose`](Self::choose) sends here. Limits of the whole process (`running_max`,
    /// `waiters_max`) count all routes together, each against its own setting.
    #[must_use]
    pub fn route(mut self, name: &'static str, config: Config) -> Self {
        self.choices.named.push((name, config));
        self
    }

    /// Which settings a request falls under, by its head: method, path, headers, extensions. Without it all requests have
    /// those of [`config`](Self::config). In axum [`IdempotencyLayer::with_config`] on the route itself does the same.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use semel_core::model::MemoryKeys;
    /// use semel_http::{Config, IdempotencyLayer, Route};
    ///
    /// let payments = Config { required_for: vec![http::Method::POST], ..Config::default() };
    /// let layer = IdempotencyLayer::builder(Arc::new(MemoryKeys::default()))
    ///     .anonymous_scope("shop")
    ///     .route("payments", payments)
    ///     .choose(|request| match request.uri.path() {
    ///         "/payments" => Route::Named("payments"),
    ///         "/search" => Route::Off,
    ///         _ => Route::Default,
    ///     })
    ///     .build()?;
    /// # Ok::<(), semel_core::limits::LimitExceeded>(())
    /// ```
    #[must_use]
    pub fn choose(mut self, choose: impl Fn(&Parts) -> Route + Send + Sync + 'static) -> Self {
        self.choices.choose = Some(Box::new(choose));
        self
    }

    /// Asks this hook when a request meets a key whose outcome is unknown, and settles the key by its verdict. What it
    /// says happened is an answer in the form of [`StoredResponse::encode`](crate::response::StoredResponse::encode).
    #[must_use]
    pub fn reconcile(mut self, hook: Arc<dyn Reconcile>) -> Self {
        self.choices.reconcile = Some(hook);
        self
    }

    /// Tells this observer what each keyed request comes to; [`IdempotencyLayer::counts`] counts them in any case.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.choices.observer = Some(Box::new(observer));
        self
    }

    /// Where a caller can see what became of a key whose outcome is unknown; sent as a link with that answer.
    #[must_use]
    pub fn status_url(mut self, url: impl Fn(&Key) -> String + Send + Sync + 'static) -> Self {
        self.choices.status_url = Some(Box::new(url));
        self
    }
}

impl Builder<Scoped> {
    /// The layer.
    ///
    /// # Errors
    /// The first setting that is outside its limits.
    pub fn build(self) -> Result<IdempotencyLayer, LimitExceeded> {
        let Choices {
            store,
            config,
            named,
            choose,
            target,
            status_url,
            reconcile,
            observer,
        } = self.choices;
        config.check()?;
        named.iter().try_for_each(|(_, config)| config.check())?;
        let common = Common {
            store,
            scope: self.scope.0?,
            target,
            status_url,
            reconcile,
            observer,
            counts: Default::default(),
            tasks: Default::default(),
            waiters: Default::default(),
            latency: Default::default(),
            running: Default::default(),
            behind: Default::default(),
            quiet: Default::default(),
        };
        let base = Shared::new(Arc::new(common), config);
        Ok(IdempotencyLayer::new(Routes::new(base, named, choose)))
    }
}

impl<S> std::fmt::Debug for Builder<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("config", &self.choices.config)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Scoped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scoped")
    }
}
