//! Which routes have shown that they deduplicate.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use http::{HeaderMap, Method};
use semel_core::wire;

/// Method and target without query: a service may wear the layer on one route only.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Route(Box<str>);

impl Route {
    pub(crate) fn new(method: &Method, scheme: Option<&str>, authority: Option<&str>, path: &str) -> Self {
        let (scheme, authority) = (scheme.unwrap_or_default(), authority.unwrap_or_default());
        Self(format!("{method} {scheme}://{authority}{path}").into())
    }
}

#[derive(Debug, Default)]
struct Known {
    set: HashSet<Route>,
    oldest_first: VecDeque<Route>,
}

/// The routes that have shown a guarantee, bounded.
#[derive(Debug)]
pub(crate) struct Routes {
    known: Mutex<Known>,
    max: usize,
}

impl Routes {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            known: Mutex::default(),
            max,
        }
    }

    pub(crate) fn has(&self, route: &Route) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.set.contains(route)
    }

    pub(crate) fn add(&self, route: &Route) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.set.insert(route.clone()) {
            return;
        }
        known.oldest_first.push_back(route.clone());
        if known.oldest_first.len() > self.max
            && let Some(oldest) = known.oldest_first.pop_front()
        {
            known.set.remove(&oldest);
        }
    }
}

/// Whether an answer shows that its route deduplicates, whatever happens. One that forgets after a fail-over needs the
/// caller's word (rule K9).
pub(crate) fn shows(headers: &HeaderMap) -> bool {
    headers
        .get(wire::GUARANTEE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| !value.contains("failover=forgets"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_speaks_for_itself_and_the_oldest_is_forgotten() {
        let route = |path: &str| Route::new(&Method::POST, Some("http"), Some("a"), path);
        let routes = Routes::new(2);
        for path in ["/1", "/2", "/2", "/3"] {
            routes.add(&route(path));
        }
        assert!(!routes.has(&route("/1")));
        assert!(routes.has(&route("/2")) && routes.has(&route("/3")));
        assert!(!routes.has(&Route::new(&Method::PUT, Some("http"), Some("a"), "/2")));
    }

    #[test]
    fn a_guarantee_that_a_failover_forgets_is_none_without_the_callers_word() {
        let says = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("semel-guarantee", http::HeaderValue::from_static(value));
            shows(&headers)
        };
        assert!(says("guarded") && says("atomic"));
        assert!(!says("guarded;failover=forgets"));
        assert!(!shows(&HeaderMap::new()));
    }
}
