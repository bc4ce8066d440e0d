//! `[[gateway]]` of the configuration.

mod fields;
mod policy;
mod status_url;
mod tls;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use http::{Method, Uri};
use rustls::{ClientConfig, ServerConfig};

use super::cors::Origins;
use super::path::Pattern;
use crate::config::read::{At, Table};

pub(crate) use fields::{GATEWAY, ROUTE, TLS, UPSTREAM_TLS};
pub(crate) use status_url::StatusUrl;

/// Whose answers a retry may get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Principal {
    /// The id in this header.
    Header(HeaderName),
    /// The id in this header of the answer of another service, asked each time.
    Auth {
        /// Whom to ask.
        url: Uri,
        /// The header of its answer, which the upstream sees too.
        header: HeaderName,
        /// How long it may take.
        timeout: Duration,
    },
    /// Anybody's.
    Anonymous,
}

impl Principal {
    /// The field that says who asks, as the upstream sees it.
    pub(crate) const fn header(&self) -> Option<&HeaderName> {
        match self {
            Self::Header(header) | Self::Auth { header, .. } => Some(header),
            Self::Anonymous => None,
        }
    }
}

/// What a key is to a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyRule {
    /// Passed through unread.
    Off,
    /// It counts where there is one.
    Optional,
    /// There must be one.
    Required,
}

/// The policy of some methods and paths.
#[derive(Debug, Clone)]
pub(crate) struct RouteConfig {
    /// Its methods.
    pub(crate) methods: Vec<Method>,
    /// Its paths.
    pub(crate) paths: Vec<Pattern>,
    /// Whether keys count.
    pub(crate) key: KeyRule,
    /// Whose answers a retry may get.
    pub(crate) principal: Principal,
    /// The layer's settings.
    pub(crate) layer: semel_http::Config,
    /// How its requests are sent.
    pub(crate) sending: Sending,
    /// What recognises issued keys, where the gateway has a secret.
    pub(crate) issuer: Option<Arc<semel_keys::Issuer>>,
}

/// How requests are sent.
#[derive(Debug, Clone)]
pub(crate) struct Sending {
    /// How long the answer's head may take.
    pub(crate) first_byte: Duration,
    /// How long a whole answer to a keyed request may take.
    pub(crate) total: Duration,
    /// How long an answer to others may be silent.
    pub(crate) answer_idle: Duration,
    /// Whether the upstream does each key once by itself.
    pub(crate) deduplicates: bool,
    /// Who knows what became of a key, and how long asking may take.
    pub(crate) reconcile: Option<(Uri, Duration)>,
    /// Where a client can look up a key whose end is not known.
    pub(crate) status_url: Option<StatusUrl>,
}

/// The `Host` that the upstream sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostRule {
    /// Its own.
    Upstream,
    /// The client's.
    Preserve,
    /// This one.
    Is(HeaderValue),
}

/// The HTTP version to the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpstreamHttp {
    /// HTTP/1.1.
    One,
    /// HTTP/2.
    Two,
    /// What the upstream chooses in the TLS handshake.
    Auto,
}

/// The way to the upstream.
#[derive(Debug, Clone)]
pub(crate) struct ProxyConfig {
    /// Scheme, host, and a path that is put before the request's.
    pub(crate) upstream: Uri,
    /// Its own `Host`.
    pub(crate) own_host: Option<HeaderValue>,
    /// HTTP version.
    pub(crate) http: UpstreamHttp,
    /// TLS, for https.
    pub(crate) tls: Option<(Arc<ClientConfig>, rustls_pki_types::ServerName<'static>)>,
    /// The `Host` that it sees.
    pub(crate) host: HostRule,
    /// How long connecting may take.
    pub(crate) connect: Duration,
    /// How long an idle connection is kept.
    pub(crate) idle: Duration,
    /// Idle connections per thread.
    pub(crate) idle_max: usize,
    /// Whether a proxy in front says who asked.
    pub(crate) trust_forwarded: bool,
    /// Whether clients speak TLS.
    pub(crate) secure: bool,
    /// How requests that meet no route are sent.
    pub(crate) sending: Sending,
    /// Fields that say who asks: they reach the upstream whatever the client calls them.
    pub(crate) kept: Vec<HeaderName>,
    /// These, and those that may hold a key: no field of another spelling may be taken for one of them.
    pub(crate) meant: Vec<HeaderName>,
}

/// How clients are served.
#[derive(Debug, Clone)]
pub(crate) struct FrontConfig {
    /// TLS for clients.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// Connections at a time.
    pub(crate) connections_max: usize,
    /// Streams of one HTTP/2 connection.
    pub(crate) streams_max: u32,
    /// Fields of a head.
    pub(crate) headers_max: usize,
    /// Bytes of a head.
    pub(crate) header_bytes_max: usize,
    /// Bytes of the body of a request without a key.
    pub(crate) unkeyed_bytes_max: Option<u64>,
    /// Whose pages may read what, from other origins.
    pub(crate) cors_origins: Option<Origins>,
    /// How long a head may take.
    pub(crate) head_timeout: Duration,
    /// How long nothing may move in a body.
    pub(crate) body_idle: Duration,
    /// How long an idle connection is kept.
    pub(crate) client_idle: Duration,
}

/// One gateway.
#[derive(Debug, Clone)]
pub(crate) struct GatewayConfig {
    /// Its name.
    pub(crate) name: String,
    /// Where clients connect.
    pub(crate) listen: At<SocketAddr>,
    /// Threads, when the file says.
    pub(crate) threads: Option<usize>,
    /// Where requests go.
    pub(crate) upstream: Uri,
    /// Its store's name.
    pub(crate) store: String,
    /// Policies: the first that matches counts; the last is the gateway's own.
    pub(crate) routes: Vec<RouteConfig>,
    /// How clients are served.
    pub(crate) front: FrontConfig,
    /// The way to the upstream.
    pub(crate) proxy: ProxyConfig,
}

/// Threads of one gateway: 1 to this many.
pub(crate) const THREADS_MAX: u64 = 256;

/// Reads one `[[gateway]]`; relative files are taken from `folder`.
pub(crate) fn read(table: &Table<'_>, folder: &Path) -> Option<GatewayConfig> {
    let name = table.name();
    table.require("listen", "\"127.0.0.1:8080\"");
    let listen = table.address("listen");
    let threads = table
        .number("threads", 1..=THREADS_MAX)
        .and_then(|threads| usize::try_from(threads).ok());
    let upstream = upstream(table);
    let store = table.store();
    let own = policy::gateway(table);
    let routes = policy::routes(table, own.as_ref());
    let tls = table.table("tls", &TLS).map(|table| tls::server(&table, folder));
    let front = front(table, tls.clone().flatten());
    let proxy = proxy(table, upstream.clone(), own.as_ref(), &routes, folder);
    let mut all = routes;
    all.push(own?);
    if tls.is_some_and(|tls| tls.is_none()) {
        return None;
    }
    Some(GatewayConfig {
        name: name?,
        listen: listen?,
        threads,
        upstream: upstream?,
        store: store?,
        routes: all,
        front,
        proxy: proxy?,
    })
}

fn upstream(table: &Table<'_>) -> Option<Uri> {
    table.require("upstream", "\"http://127.0.0.1:9000\"");
    let fix = "leave them out: a gateway passes on the credentials of its clients; what the upstream asks of the \
               gateway itself can be a certificate (`upstream_tls`)";
    let At { value, span } = bare_url(table, "upstream", fix)?;
    if value.query().is_some() {
        table.mistake(
            span,
            "`upstream` has a query",
            "write scheme, host and at most a path",
        );
        return None;
    }
    Some(value)
}

/// An http URL without credentials: nobody would be shown them but who reads the log.
fn bare_url(table: &Table<'_>, name: &'static str, fix: &str) -> Option<At<Uri>> {
    let At { value, span } = table.http_url(name)?;
    let authority = value.authority();
    if authority.is_some_and(|authority| authority.as_str().contains('@')) {
        table.mistake(span, format!("`{name}` has credentials in it"), fix);
        return None;
    }
    Some(At { value, span })
}

/// A number of milliseconds, up to a day.
fn ms(table: &Table<'_>, name: &'static str, default: Duration) -> Duration {
    table
        .number(name, 1..=86_400_000)
        .map_or(default, Duration::from_millis)
}

fn count(table: &Table<'_>, name: &'static str, max: u64, default: usize) -> usize {
    let given = table.number(name, 1..=max);
    given
        .and_then(|count| usize::try_from(count).ok())
        .unwrap_or(default)
}

/// The origins of `cors_origins`, as browsers write them.
fn cors_origins(table: &Table<'_>) -> Option<Origins> {
    let texts = table.texts("cors_origins")?;
    if let [At { value, .. }] = &texts[..]
        && value == "*"
    {
        return Some(Origins::Any);
    }
    let mut origins = Vec::with_capacity(texts.len());
    for At { value, span } in texts {
        let origin = value.parse::<Uri>().ok().filter(|uri| {
            let scheme = matches!(uri.scheme_str(), Some("http" | "https"));
            let host = uri.authority().map_or("", |authority| authority.as_str());
            // No path, and nothing that a browser would write in another way.
            scheme
                && value
                    == format!(
                        "{}://{}",
                        uri.scheme_str().unwrap_or_default(),
                        host.to_ascii_lowercase()
                    )
        });
        match origin.and_then(|_| HeaderValue::try_from(&value).ok()) {
            Some(origin) => origins.push(origin),
            None => table.mistake(
                span,
                format!("`{value}` is no origin"),
                "write scheme, host and, unless it is the usual one, port, such as \"https://shop.example\"; or \"*\" alone",
            ),
        }
    }
    Some(Origins::These(origins))
}

fn front(table: &Table<'_>, tls: Option<Arc<ServerConfig>>) -> FrontConfig {
    let streams = count(table, "streams_max", 10_000, 128);
    FrontConfig {
        tls,
        connections_max: count(table, "connections_max", 1_000_000, 16_384),
        streams_max: u32::try_from(streams).unwrap_or(128),
        headers_max: count(table, "headers_max", 1_000, 96),
        header_bytes_max: count(table, "header_bytes_max", 1 << 20, 32_768),
        unkeyed_bytes_max: table.number("unkeyed_bytes_max", 0..=1 << 40),
        cors_origins: cors_origins(table),
        head_timeout: ms(table, "head_timeout_ms", Duration::from_secs(10)),
        body_idle: ms(table, "body_idle_ms", Duration::from_secs(30)),
        client_idle: ms(table, "client_idle_ms", Duration::from_secs(75)),
    }
}

fn proxy(
    table: &Table<'_>,
    upstream: Option<Uri>,
    own: Option<&RouteConfig>,
    routes: &[RouteConfig],
    folder: &Path,
) -> Option<ProxyConfig> {
    let words = [
        ("1", UpstreamHttp::One),
        ("2", UpstreamHttp::Two),
        ("auto", UpstreamHttp::Auto),
    ];
    let http = table.word("upstream_http", &words).unwrap_or(UpstreamHttp::One);
    let host = host(table);
    let connect = ms(table, "connect_timeout_ms", Duration::from_secs(3));
    let idle = ms(table, "upstream_idle_ms", Duration::from_secs(2));
    let idle_max = count(table, "upstream_idle_max", 100_000, 256);
    let trust_forwarded = table.boolean("trust_forwarded").unwrap_or(false);
    let tls = tls::client(table, upstream.as_ref(), http, folder);
    if http != UpstreamHttp::One && matches!(&host, Some(host) if *host != HostRule::Upstream) {
        let fix = "leave `host` out, or set upstream_http = \"1\"";
        table.mistake(
            table.span(),
            "`host` cannot be changed over HTTP/2: the upstream is named by its address there",
            fix,
        );
    }
    let own = own?;
    let upstream = upstream?;
    let mut kept: Vec<HeaderName> = Vec::new();
    for header in routes
        .iter()
        .chain([own])
        .filter_map(|route| route.principal.header())
    {
        if !kept.contains(header) {
            kept.push(header.clone());
        }
    }
    let keys = routes.iter().chain([own]).flat_map(|route| &route.layer.aliases);
    let meant = kept.iter().chain(keys).cloned().collect();
    Some(ProxyConfig {
        http,
        tls: tls?,
        host: host?,
        connect,
        idle,
        idle_max,
        trust_forwarded,
        secure: table.has("tls"),
        sending: own.sending.clone(),
        kept,
        meant,
        own_host: upstream
            .authority()
            .and_then(|authority| HeaderValue::from_str(authority.as_str()).ok()),
        upstream,
    })
}

fn host(table: &Table<'_>) -> Option<HostRule> {
    let Some(At { value, span }) = table.text("host") else {
        return (!table.has("host")).then_some(HostRule::Upstream);
    };
    match value.as_str() {
        "upstream" => Some(HostRule::Upstream),
        "preserve" => Some(HostRule::Preserve),
        name if name.parse::<http::uri::Authority>().is_ok() && !name.contains('@') => {
            HeaderValue::from_str(name).ok().map(HostRule::Is)
        }
        _ => {
            let fix = "write \"upstream\", \"preserve\" or a host name such as \"shop.example\"";
            table.mistake(span, "`host` is no host name", fix);
            None
        }
    }
}
