//! `[[gateway]]` of the configuration.

use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use http::header::HeaderName;
use semel_core::limits;

use super::proxy::ProxyConfig;
use super::routes::Routes;
use crate::config::read::{At, Table};
use crate::config::spec::{Section, field, required};

/// `[[gateway]]`.
pub(crate) const GATEWAY: Section = Section {
    header: "[[gateway]]",
    about: "Puts Idempotency-Key in front of an upstream that knows nothing of it. Plain HTTP on both sides; WebSockets \
            and TLS are not there yet. Say who may share answers: `principal_header` or `anonymous`.",
    fields: &[
        required(
            "name",
            "name",
            "how logs, metrics and `/readyz` call it; a part of the scope of its keys, so do not change it",
        ),
        required("listen", "address", "where clients connect"),
        required(
            "upstream",
            "http URL",
            "where requests go; a path is put before theirs",
        ),
        field(
            "store",
            "name of a store",
            "the one in `[store]`",
            "where its keys live",
        ),
        field(
            "principal_header",
            "text",
            "none",
            "a header with the caller's id, set by a proxy in front that verifies it and that clients cannot pass by; keys are unique per id",
        ),
        field(
            "anonymous",
            "true or false",
            "false",
            "all callers share one scope: only for callers that may see each other's answers; requests with `Authorization` are refused then",
        ),
        field(
            "methods",
            "list of texts",
            "`[\"POST\", \"PATCH\"]`",
            "methods whose keys count; others pass through",
        ),
        field(
            "paths",
            "list of texts",
            "`[\"/\"]`",
            "paths whose keys count, with all below them, compared as sent; others pass through",
        ),
        field(
            "key",
            "`\"optional\"` or `\"required\"`",
            "`\"optional\"`",
            "whether a request of these methods and paths may come without a key; one without passes through un-buffered",
        ),
        field(
            "request_bytes_max",
            "bytes",
            "1048576",
            "a keyed request with a longer body is refused with 413",
        ),
        field(
            "response_bytes_max",
            "bytes",
            "983040",
            "a longer answer reaches the first caller whole and is not kept: a retry is told that it was done",
        ),
        field(
            "lease_ms",
            "ms",
            "30000",
            "how long a crashed gateway blocks a key before it reads as unknown; renewed while the upstream works",
        ),
        field("retention_ms", "ms", "86400000", "how long answers are kept"),
        field(
            "tombstone_ms",
            "ms",
            "2592000000",
            "how long after that a late retry is refused instead of sent",
        ),
        field(
            "wait_ms_max",
            "ms",
            "10000",
            "how long a duplicate waits for the first one's answer before 409",
        ),
        field(
            "running_max",
            "number",
            "1024",
            "keyed requests that run at a time; more get 503",
        ),
        field(
            "connect_timeout_ms",
            "ms",
            "3000",
            "how long connecting to the upstream may take; nothing was sent then",
        ),
        field(
            "total_timeout_ms",
            "ms",
            "60000",
            "how long the upstream may take for a whole answer to a keyed request; for others, how long nothing may move before the answer's head",
        ),
        field(
            "upstream_idle_ms",
            "ms",
            "2000",
            "how long an idle connection to the upstream is kept; keep it below the upstream's own",
        ),
        field(
            "trust_unavailable",
            "true or false",
            "false",
            "the upstream's 501, and 503 with `Retry-After`, prove that it did nothing: the key is given back",
        ),
        field(
            "trust_forwarded",
            "true or false",
            "false",
            "a proxy in front sets `X-Forwarded-*` and `Forwarded`: add to them instead of replacing them",
        ),
    ],
};

/// Whose answers a retry may get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Principal {
    /// The id in this header.
    Header(HeaderName),
    /// Anybody's.
    Anonymous,
}

/// One gateway.
#[derive(Debug, Clone)]
pub(crate) struct GatewayConfig {
    /// Its name.
    pub(crate) name: String,
    /// Where clients connect.
    pub(crate) listen: At<SocketAddr>,
    /// Where requests go.
    pub(crate) upstream: http::Uri,
    /// Its store's name.
    pub(crate) store: String,
    /// Whose answers a retry may get.
    pub(crate) principal: Principal,
    /// Which requests are keyed.
    pub(crate) routes: Routes,
    /// The layer's settings.
    pub(crate) layer: semel_http::Config,
    /// The way to the upstream.
    pub(crate) proxy: ProxyConfig,
}

/// Reads one `[[gateway]]`.
pub(crate) fn read(table: &Table<'_>) -> Option<GatewayConfig> {
    let name = table.name();
    table.require("listen", "\"127.0.0.1:8080\"");
    let listen = table.address("listen");
    let upstream = upstream(table);
    let store = table.store();
    let principal = principal(table);
    let methods = methods(table);
    let paths = paths(table);
    let words = [("optional", false), ("required", true)];
    let required = table.word("key", &words).unwrap_or(false);
    let mut layer = layer(table, if required { methods.clone() } else { Vec::new() });
    let proxy = proxy(table, upstream.clone(), principal.as_ref());
    if let Some(proxy) = &proxy {
        // The time-out ends a run long before its claim is no longer renewed.
        let total = u64::try_from(proxy.total.as_millis()).unwrap_or(u64::MAX);
        layer.run_ms_max = total.saturating_add(60_000);
    }
    Some(GatewayConfig {
        name: name?,
        listen: listen?,
        upstream: upstream?,
        store: store?,
        principal: principal?,
        routes: Routes { methods, paths },
        layer,
        proxy: proxy?,
    })
}

fn upstream(table: &Table<'_>) -> Option<http::Uri> {
    table.require("upstream", "\"http://127.0.0.1:9000\"");
    let At { value, span } = table.http_url("upstream")?;
    let mistake = |message: &str, fix: &str| table.mistake(span.clone(), message, fix);
    if value.scheme_str() == Some("https") {
        let fix = "use http://, to a proxy on this machine where the way needs TLS";
        mistake("gateways do not speak TLS to the upstream yet", fix);
        return None;
    }
    if value.query().is_some() {
        mistake("`upstream` has a query", "write scheme, host and at most a path");
        return None;
    }
    Some(value)
}

fn principal(table: &Table<'_>) -> Option<Principal> {
    let anonymous = table.boolean("anonymous").unwrap_or(false);
    let Some(header) = table.text("principal_header") else {
        if anonymous {
            return Some(Principal::Anonymous);
        }
        // A wrong value has its own mistake already.
        if !table.has("principal_header") {
            let fix = "add `principal_header = \"X-Authenticated-User\"`, set by a proxy that verifies it, or \
                       `anonymous = true` where all callers may see each other's answers";
            table.mistake(table.span(), "nothing says whose keys these are", fix);
        }
        return None;
    };
    if anonymous {
        let fix = "keep one of the two";
        table.mistake(
            header.span,
            "`principal_header` and `anonymous` exclude each other",
            fix,
        );
        return None;
    }
    match HeaderName::from_bytes(header.value.as_bytes()) {
        Ok(name) => Some(Principal::Header(name)),
        Err(_) => {
            let fix = "write it like `principal_header = \"X-Authenticated-User\"`";
            table.mistake(header.span, "this is no name of a header", fix);
            None
        }
    }
}

fn methods(table: &Table<'_>) -> Vec<Method> {
    let Some(names) = table.texts("methods") else {
        return vec![Method::POST, Method::PATCH];
    };
    let mut methods = Vec::with_capacity(names.len());
    for name in names {
        match Method::from_bytes(name.value.as_bytes()) {
            Ok(method) if !method.is_safe() && name.value.bytes().all(|byte| byte.is_ascii_uppercase()) => {
                methods.push(method);
            }
            _ => {
                let fix = "name methods that change something, in capitals: POST, PATCH, PUT, DELETE";
                table.mistake(name.span, "this method cannot be keyed", fix);
            }
        }
    }
    methods
}

fn paths(table: &Table<'_>) -> Vec<String> {
    let Some(paths) = table.texts("paths") else {
        return vec!["/".to_owned()];
    };
    let mut found = Vec::with_capacity(paths.len());
    for path in paths {
        if path.value.starts_with('/') && !path.value.contains(['?', '#', '*']) {
            found.push(path.value);
        } else {
            let fix = "begin it with / and leave out queries and wildcards: what lies below is meant too";
            table.mistake(path.span, "this is no path", fix);
        }
    }
    found
}

fn layer(table: &Table<'_>, required_for: Vec<Method>) -> semel_http::Config {
    let base = semel_http::Config::default();
    let retention = limits::RETENTION_MS_MAX as u64;
    let ms = |name, range, default: i64| {
        let given = table.number(name, range);
        given.and_then(|ms| i64::try_from(ms).ok()).unwrap_or(default)
    };
    let count = |name, range, default: usize| {
        let given = table.number(name, range);
        given
            .and_then(|count| usize::try_from(count).ok())
            .unwrap_or(default)
    };
    let keep = semel_core::Keep {
        retention_ms: ms("retention_ms", 1..=retention, base.keep.retention_ms),
        tombstone_ms: ms("tombstone_ms", 0..=retention, base.keep.tombstone_ms),
    };
    semel_http::Config {
        required_for,
        request_bytes_max: count("request_bytes_max", 0..=1 << 30, base.request_bytes_max),
        response_bytes_max: count(
            "response_bytes_max",
            0..=limits::OUTCOME_BYTES_MAX as u64,
            base.response_bytes_max,
        ),
        lease_ms: ms("lease_ms", 1_000..=limits::LEASE_MS_MAX as u64, base.lease_ms),
        keep,
        wait_ms_max: table
            .number("wait_ms_max", 0..=600_000)
            .unwrap_or(base.wait_ms_max),
        running_max: count("running_max", 1..=100_000, 1_024),
        status: semel_http::StatusPolicy {
            distrust_unavailable: !table.boolean("trust_unavailable").unwrap_or(false),
            defer_to_inner: true,
            ..base.status
        },
        ..base
    }
}

fn proxy(
    table: &Table<'_>,
    upstream: Option<http::Uri>,
    principal: Option<&Principal>,
) -> Option<ProxyConfig> {
    let ms = |name, default| {
        let given = table.number(name, 1..=86_400_000);
        Duration::from_millis(given.unwrap_or(default))
    };
    let (connect, total) = (ms("connect_timeout_ms", 3_000), ms("total_timeout_ms", 60_000));
    let idle = ms("upstream_idle_ms", 2_000);
    let trust_forwarded = table.boolean("trust_forwarded").unwrap_or(false);
    Some(ProxyConfig {
        upstream: upstream?,
        connect,
        total,
        idle,
        trust_forwarded,
        principal: match principal {
            Some(Principal::Header(name)) => Some(name.clone()),
            Some(Principal::Anonymous) | None => None,
        },
    })
}
