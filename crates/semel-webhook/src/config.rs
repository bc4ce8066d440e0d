//! Where events are posted, and how.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};
use semel_client::Destinations;
use semel_core::signature::Secret;
use semel_core::{Clock, ErrorKind, StoreError, SystemClock};

use crate::request;

/// Settings of one webhook.
#[derive(Clone)]
pub struct WebhookConfig {
    /// An `http` or `https` URL.
    pub url: String,
    /// Whether the topic is the last part of the path: `url/{topic}`. Default no.
    pub topic_in_path: bool,
    /// Headers added to every request, such as `authorization`; none of those that the sink sets. Default none.
    pub headers: Vec<(String, String)>,
    /// Requests on their way at most, for each shard. Default 64.
    pub in_flight_max: usize,
    /// How long connecting may take. Default 3 s.
    pub connect_timeout: Duration,
    /// Bytes of an answer's body that are read; of a longer one only the status counts. Default 64 KiB.
    pub response_bytes_max: usize,
    /// Secrets to sign with, `whsec_` and base64 each; while one is being replaced, the new and the old. Default none: then
    /// nothing is signed.
    pub secrets: Vec<String>,
    /// Whether addresses that are not public may be posted to. Default yes, as receivers in one's own network are the
    /// rule; turn it off where the URL comes from somebody else.
    pub allow_private: bool,
    /// What this process asks of each host, shared by all sinks that are given the same. Default its own.
    pub destinations: Destinations,
    /// The clock of `webhook-timestamp`.
    pub clock: Arc<dyn Clock>,
}

impl WebhookConfig {
    /// The defaults for this URL.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            topic_in_path: false,
            headers: Vec::new(),
            in_flight_max: 64,
            connect_timeout: Duration::from_secs(3),
            response_bytes_max: 64 << 10,
            secrets: Vec::new(),
            allow_private: true,
            destinations: Destinations::default(),
            clock: Arc::new(SystemClock),
        }
    }
}

impl std::fmt::Debug for WebhookConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Headers and the URL's user part may hold secrets.
        f.debug_struct("WebhookConfig")
            .field("topic_in_path", &self.topic_in_path)
            .field(
                "headers",
                &self.headers.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            )
            .field("in_flight_max", &self.in_flight_max)
            .field("secrets", &self.secrets.len())
            .field("allow_private", &self.allow_private)
            .finish_non_exhaustive()
    }
}

/// The settings, read.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) base: String,
    /// `host:port`, by which limits are kept.
    pub(crate) authority: String,
    pub(crate) query: String,
    /// Where all topics go to one.
    uri: Option<Uri>,
    pub(crate) topic_in_path: bool,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) secrets: Vec<Secret>,
}

impl Target {
    pub(crate) fn read(config: &WebhookConfig) -> Result<Self, StoreError> {
        let invalid = |text: String| StoreError::new(ErrorKind::Invalid, "webhook", text);
        let uri: Uri = config
            .url
            .parse()
            .map_err(|_| invalid("the URL cannot be read".to_owned()))?;
        let (Some("http" | "https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(invalid(
                "the URL must begin with http:// or https:// and name a host".to_owned(),
            ));
        };
        if uri.scheme_str() == Some("https") && !cfg!(feature = "tls") {
            return Err(invalid(
                "this build cannot speak https: build it with the feature tls".to_owned(),
            ));
        }
        if authority.as_str().contains('@') {
            return Err(invalid(
                "the URL holds a user name; send an authorization header instead".to_owned(),
            ));
        }
        let scheme = uri.scheme_str().unwrap_or("http");
        let path = uri.path().trim_end_matches('/');
        let path = if config.topic_in_path { path } else { uri.path() };
        let headers = config
            .headers
            .iter()
            .map(|(name, value)| {
                let read = (name.parse::<HeaderName>(), HeaderValue::from_str(value));
                let (Ok(name), Ok(mut value)) = read else {
                    return Err(invalid(format!("header {name:?} cannot be sent")));
                };
                if request::is_ours(&name) {
                    return Err(invalid(format!(
                        "header {name} is set by the sink or by HTTP itself; take it out of headers"
                    )));
                }
                value.set_sensitive(true);
                Ok((name, value))
            })
            .collect::<Result<_, _>>()?;
        let secrets = config.secrets.iter().map(|text| Secret::parse(text));
        let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
        let mut target = Self {
            authority: format!("{}:{port}", authority.host().to_ascii_lowercase()),
            secrets: secrets
                .collect::<Result<_, _>>()
                .map_err(|error| invalid(error.to_string()))?,
            base: format!("{scheme}://{authority}{path}"),
            query: uri.query().map(|query| format!("?{query}")).unwrap_or_default(),
            topic_in_path: config.topic_in_path,
            headers,
            uri: None,
        };
        if !config.topic_in_path {
            target.uri = target.url("").parse().ok();
        }
        Ok(target)
    }

    /// Where events of this topic go.
    pub(crate) fn uri(&self, topic: &str) -> Result<Uri, http::Error> {
        match &self.uri {
            Some(uri) => Ok(uri.clone()),
            None => Ok(self.url(topic).parse::<Uri>()?),
        }
    }

    /// The same as text. Topics hold nothing that a path would have to encode.
    pub(crate) fn url(&self, topic: &str) -> String {
        if self.topic_in_path {
            format!("{}/{topic}{}", self.base, self.query)
        } else {
            format!("{}{}", self.base, self.query)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str, topic_in_path: bool) -> Result<String, String> {
        let config = WebhookConfig {
            topic_in_path,
            ..WebhookConfig::new(text)
        };
        Target::read(&config)
            .map(|target| target.url("orders.v1"))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_topic_is_the_last_part_of_the_path_when_asked() {
        assert_eq!(url("http://h:1/in", false).unwrap(), "http://h:1/in");
        assert_eq!(url("http://h:1/in/", false).unwrap(), "http://h:1/in/");
        assert_eq!(
            url("http://h:1/in/?a=b", true).unwrap(),
            "http://h:1/in/orders.v1?a=b"
        );
        assert_eq!(url("https://h", true).unwrap(), "https://h/orders.v1");
    }

    #[test]
    fn a_host_is_one_destination_however_its_urls_are_written() {
        let authority = |url| Target::read(&WebhookConfig::new(url)).unwrap().authority;
        assert_eq!(authority("http://Host/a"), "host:80");
        assert_eq!(authority("http://host:80/b?c"), "host:80");
        assert_eq!(authority("https://host"), "host:443");
        assert_eq!(authority("http://[::1]:8080/"), "[::1]:8080");
    }

    #[test]
    fn a_secret_that_is_none_is_refused_and_not_shown() {
        let config = WebhookConfig {
            secrets: vec!["hunter2".to_owned()],
            ..WebhookConfig::new("http://h/")
        };
        let error = Target::read(&config).err().unwrap().to_string();
        assert!(error.contains("whsec_") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn headers_that_the_sink_or_http_sets_are_refused_and_named() {
        let read = |name: &str| {
            let mut config = WebhookConfig::new("http://h/");
            config.headers.push((name.to_owned(), "hunter2".to_owned()));
            Target::read(&config).map(drop).map_err(|error| error.to_string())
        };
        for name in [
            "Content-Type",
            "Idempotency-Key",
            "webhook-id",
            "CE-Source",
            "semel-h-a",
            "traceparent",
            "content-length",
            "Transfer-Encoding",
            "connection",
        ] {
            let error = read(name).unwrap_err();
            assert!(error.contains(&name.to_ascii_lowercase()), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        for name in ["authorization", "x-api-key", "host"] {
            read(name).unwrap();
        }
    }

    #[test]
    fn a_url_that_cannot_be_posted_to_is_refused_and_no_secret_is_shown() {
        for text in ["", "/in", "ftp://h/", "h:1", "http://user:secret@h/"] {
            let error = url(text, false).unwrap_err();
            assert!(
                error.starts_with("SEM0301") && !error.contains("secret"),
                "{error}"
            );
        }
    }
}
