//! Which settings a request falls under.

use std::sync::Arc;

use http::request::Parts;

use crate::config::Config;
use crate::shared::Shared;

/// The settings of a request, as [`Builder::choose`](crate::Builder::choose) names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// The layer's own settings.
    Default,
    /// Those given to [`Builder::route`](crate::Builder::route) under this name. One that was never given counts as
    /// [`Route::Default`] and is logged: a misspelt name must not switch protection off.
    Named(&'static str),
    /// Keys mean nothing here: the request passes through untouched.
    Off,
}

pub(crate) type Choose = Box<dyn Fn(&Parts) -> Route + Send + Sync>;

/// All settings of a layer.
pub(crate) struct Routes {
    pub(crate) base: Arc<Shared>,
    named: Vec<(&'static str, Arc<Shared>)>,
    choose: Option<Choose>,
}

impl Routes {
    pub(crate) fn new(base: Shared, named: Vec<(&'static str, Config)>, choose: Option<Choose>) -> Self {
        let named = named
            .into_iter()
            .map(|(name, config)| (name, Arc::new(base.with_config(config))))
            .collect();
        Self {
            base: Arc::new(base),
            named,
            choose,
        }
    }

    /// The same layer for one route.
    pub(crate) fn only(&self, config: Config) -> Self {
        Self {
            base: Arc::new(self.base.with_config(config)),
            named: Vec::new(),
            choose: None,
        }
    }

    /// What this request falls under; `None` where keys mean nothing.
    pub(crate) fn of(&self, request: &Parts) -> Option<&Arc<Shared>> {
        let Some(choose) = &self.choose else {
            return Some(&self.base);
        };
        match choose(request) {
            Route::Off => None,
            Route::Default => Some(&self.base),
            Route::Named(wanted) => {
                let found = self.named.iter().find(|(name, _)| *name == wanted);
                if found.is_none() {
                    tracing::error!(
                        wanted,
                        "no settings were given under this name; the layer's own are taken"
                    );
                }
                Some(found.map_or(&self.base, |(_, shared)| shared))
            }
        }
    }
}
