//! Which requests are keyed.

use http::Method;

/// Methods and paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Routes {
    /// The methods.
    pub(crate) methods: Vec<Method>,
    /// Paths, each with all below it.
    pub(crate) paths: Vec<String>,
}

impl Routes {
    /// Whether keys count for this request. Paths are compared as sent: no decoding, no `..`.
    pub(crate) fn keyed(&self, method: &Method, path: &str) -> bool {
        self.methods.contains(method) && self.paths.iter().any(|prefix| below(path, prefix))
    }
}

fn below(path: &str, prefix: &str) -> bool {
    let Some(rest) = path.strip_prefix(prefix) else {
        return false;
    };
    rest.is_empty() || prefix.ends_with('/') || rest.starts_with('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_covers_itself_and_what_lies_below() {
        let routes = Routes {
            methods: vec![Method::POST],
            paths: vec!["/payments".to_owned(), "/orders/".to_owned()],
        };
        for (path, keyed) in [
            ("/payments", true),
            ("/payments/7", true),
            ("/paymentsx", false),
            ("/orders/7", true),
            ("/orders", false),
            ("/", false),
        ] {
            assert_eq!(routes.keyed(&Method::POST, path), keyed, "{path}");
        }
        assert!(!routes.keyed(&Method::PUT, "/payments"));
    }
}
