//! What is known of the target.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Uri};

/// `semel conformance http`.
#[derive(Debug, Args)]
pub(crate) struct HttpArgs {
    /// Where the service is, such as `http://127.0.0.1:8080` or with the path of the operation
    pub(super) url: String,
    /// The operation's method
    #[arg(long, default_value = "POST")]
    method: String,
    /// The operation's path and query; instead of that of the URL
    #[arg(long)]
    path: Option<String>,
    /// A file with the operation's body; needs --other-body [default: a small JSON object]
    #[arg(long, value_name = "FILE", requires = "other_body")]
    body: Option<PathBuf>,
    /// A file with another valid body, for the same key with another body: what it says must differ, not only how it is
    /// written [default: the small JSON object with another amount]
    #[arg(long, value_name = "FILE")]
    other_body: Option<PathBuf>,
    /// A header of every request, such as `Authorization: Bearer alice`; may be repeated
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// A header that makes the request that of another caller, such as `Authorization: Bearer bob`
    #[arg(long, value_name = "NAME: VALUE")]
    other_principal: Option<String>,
    /// The header that carries the key
    #[arg(long, value_name = "NAME", default_value = "Idempotency-Key")]
    key_header: String,
    /// Requests without a key are allowed here
    #[arg(long)]
    key_optional: bool,
    /// Another operation with the same method and body, for the same key on another path
    #[arg(long, value_name = "PATH")]
    other_path: Option<String>,
    /// The same operation, but it takes some time (half a second or more), for duplicates while it runs
    #[arg(long, value_name = "PATH")]
    slow_path: Option<String>,
    /// A GET of this path answers how many runs there were so far, all operations together: a number and nothing else
    #[arg(long, value_name = "PATH")]
    count_path: Option<String>,
    /// Where in a JSON answer the value is that is new for each run, such as `/order/id` [default: the whole body]
    #[arg(long, value_name = "JSON POINTER")]
    run_pointer: Option<String>,
    /// Requests of a burst
    #[arg(long, value_name = "N", default_value_t = 20)]
    burst: usize,
    /// Milliseconds to wait for an answer
    #[arg(long, value_name = "MS", default_value_t = 30_000)]
    timeout_ms: u64,
    /// A required check that was not made is a failure, too
    #[arg(long)]
    pub(super) all: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Connections of a burst at most.
pub(super) const BURST_MAX: usize = 1_000;

/// The same, read.
#[derive(Debug)]
pub(super) struct Options {
    /// Scheme and authority.
    pub(super) base: Uri,
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) other_path: Option<String>,
    pub(super) slow_path: Option<String>,
    pub(super) count_path: Option<String>,
    pub(super) body: Bytes,
    pub(super) other_body: Bytes,
    pub(super) headers: HeaderMap,
    pub(super) other_principal: Option<(HeaderName, HeaderValue)>,
    pub(super) key_header: HeaderName,
    pub(super) key_optional: bool,
    pub(super) run_pointer: Option<String>,
    pub(super) burst: usize,
    pub(super) timeout: Duration,
}

impl Options {
    /// Reads the arguments.
    ///
    /// # Errors
    /// What cannot be understood, in words.
    pub(super) fn read(args: &HttpArgs) -> Result<Self, String> {
        let url: Uri = args
            .url
            .parse()
            .map_err(|error| format!("{}: {error}", args.url))?;
        let (Some("http" | "https"), Some(authority)) = (url.scheme_str(), url.authority()) else {
            return Err(format!(
                "{}: write it as http://host:port/path or https://…",
                args.url
            ));
        };
        let base = format!("{}://{authority}", url.scheme_str().unwrap_or("http"));
        let base = base.parse().map_err(|error| format!("{base}: {error}"))?;
        let path = match &args.path {
            Some(path) => path.clone(),
            None => url
                .path_and_query()
                .map_or_else(|| "/".to_owned(), ToString::to_string),
        };
        let paths = [&args.other_path, &args.slow_path, &args.count_path];
        for path in paths.into_iter().flatten().chain([&path]) {
            if !path.starts_with('/') || path.parse::<Uri>().is_err() {
                return Err(format!("{path}: a path begins with /"));
            }
        }
        let method: Method = args
            .method
            .parse()
            .map_err(|_| format!("{}: no method", args.method))?;
        if method.is_safe() {
            return Err(format!(
                "{method} does nothing that could happen twice; name another method"
            ));
        }
        if !(2..=BURST_MAX).contains(&args.burst) {
            return Err(format!("--burst: {} is outside 2..={BURST_MAX}", args.burst));
        }
        let file = |path: &PathBuf| {
            std::fs::read(path)
                .map(Bytes::from)
                .map_err(|error| format!("{}: {error}", path.display()))
        };
        let body = match &args.body {
            Some(path) => file(path)?,
            None => Bytes::from_static(b"{\"amount\":100,\"currency\":\"EUR\"}"),
        };
        let other_body = match &args.other_body {
            Some(path) => file(path)?,
            None => Bytes::from_static(b"{\"amount\":999999,\"currency\":\"EUR\"}"),
        };
        if same(&body, &other_body) {
            return Err(
                "--other-body says the same as the body: name a file with another valid request".to_owned(),
            );
        }
        let mut headers = HeaderMap::new();
        for text in &args.header {
            let (name, value) = header(text)?;
            headers.append(name, value);
        }
        headers
            .entry(CONTENT_TYPE)
            .or_insert(HeaderValue::from_static("application/json"));
        let host = authority.as_str().rsplit('@').next().unwrap_or_default();
        let host = HeaderValue::from_str(host).map_err(|error| format!("{authority}: {error}"))?;
        headers.entry(HOST).or_insert(host);
        let other_principal = args.other_principal.as_deref().map(header).transpose()?;
        Ok(Self {
            base,
            method,
            path,
            other_path: args.other_path.clone(),
            slow_path: args.slow_path.clone(),
            count_path: args.count_path.clone(),
            body,
            other_body,
            headers,
            other_principal,
            key_header: args
                .key_header
                .parse()
                .map_err(|_| format!("{}: no header name", args.key_header))?,
            key_optional: args.key_optional,
            run_pointer: args.run_pointer.clone(),
            burst: args.burst,
            timeout: Duration::from_millis(args.timeout_ms.max(1)),
        })
    }
}

/// Whether two bodies are one request to a service that compares bytes, or JSON by its value.
fn same(one: &[u8], other: &[u8]) -> bool {
    let json = |bytes| serde_json::from_slice::<serde_json::Value>(bytes).ok();
    one == other || json(one).is_some_and(|one| json(other) == Some(one))
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let parts = text.split_once(':').and_then(|(name, value)| {
        let value = HeaderValue::from_str(value.trim()).ok()?;
        Some((name.trim().parse().ok()?, value))
    });
    // The value may be a credential: it is not repeated.
    parts.ok_or_else(|| "a header is written as `Name: value`".to_owned())
}
