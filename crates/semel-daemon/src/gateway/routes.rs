//! Which policy a request meets.

use http::Method;

use super::config::{KeyRule, RouteConfig};
use super::path::forms;

/// The index of the route that a request meets; `None` where none counts and it passes through.
///
/// The first that matches wins. A path that is one route as sent and another with its escapes and dots taken out is
/// taken for that which requires a key, else for the one as sent.
pub(crate) fn find(routes: &[RouteConfig], method: &Method, path: &str) -> Option<usize> {
    let mut first = None;
    for (n, form) in forms(path).enumerate() {
        let found = routes.iter().position(|route| route.matches(method, &form));
        if found.is_some_and(|at| routes.get(at).is_some_and(|route| route.key == KeyRule::Required)) {
            return found;
        }
        if n == 0 {
            first = found;
        } else if first.is_none() {
            // As sent it is nothing; with its dots and escapes taken out it may be.
            first = found;
        }
    }
    first
}

impl RouteConfig {
    /// Whether it covers this method and this form of a path.
    pub(crate) fn matches(&self, method: &Method, path: &str) -> bool {
        // Methods differ by case (RFC 9110, 9.1), but many services take `post` for `POST`.
        let same = |it: &Method| it.as_str().eq_ignore_ascii_case(method.as_str());
        self.methods.iter().any(same) && self.paths.iter().any(|pattern| pattern.covers(path))
    }

    /// Whether no request that `other` covers passes this one by.
    pub(crate) fn hides(&self, other: &Self) -> bool {
        other.methods.iter().all(|method| self.methods.contains(method))
            && other
                .paths
                .iter()
                .all(|path| self.paths.iter().any(|mine| mine.includes(path)))
    }
}
