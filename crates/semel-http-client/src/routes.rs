//! Which routes have shown that they deduplicate.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use http::{HeaderMap, HeaderValue, Method};
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

    /// Learns from an answer's headers. One that says nothing changes nothing; a promise that is not (or no longer)
    /// of use takes back what was shown before.
    pub(crate) fn learn(&self, route: &Route, headers: &HeaderMap) {
        match headers.get(wire::GUARANTEE) {
            Some(value) if shows(value) => self.add(route),
            Some(_) => self.remove(route),
            None => {}
        }
    }

    fn remove(&self, route: &Route) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.set.remove(route) {
            known.oldest_first.retain(|it| it != route);
        }
    }

    fn add(&self, route: &Route) {
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

/// Whether a guarantee shows that its route deduplicates, whatever happens. One that forgets after a fail-over needs the
/// caller's word (rule K9).
fn shows(value: &HeaderValue) -> bool {
    wire::Memory::of(value.as_bytes()) == wire::Memory::Keys
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
        let route = Route::new(&Method::POST, Some("http"), Some("a"), "/1");
        let routes = Routes::new(2);
        let says = |value: Option<&'static str>| {
            let value = value.map(HeaderValue::from_static);
            let headers = value
                .into_iter()
                .map(|it| (http::HeaderName::from_static("semel-guarantee"), it));
            routes.learn(&route, &headers.collect());
            routes.has(&route)
        };
        assert!(!says(None) && !says(Some("guarded;failover=forgets")));
        assert!(says(Some("guarded")) && says(Some("atomic")));
        assert!(says(None), "the answer of a proxy takes nothing back");
        assert!(!says(Some("none")) && !says(None));
    }
}
