//! The gateway: Idempotency-Key in front of an upstream that knows nothing of it.

use crate::config::read::{At, Table};
use crate::config::spec::{Section, field, required};

/// `[[gateway]]`.
pub(crate) const GATEWAY: Section = Section {
    header: "[[gateway]]",
    about: "Puts Idempotency-Key in front of an upstream that knows nothing of it.",
    fields: &[
        required("name", "name", "how logs, metrics and `/readyz` call it"),
        required("listen", "address", "where clients connect"),
        required("upstream", "http URL", "where requests go"),
        field(
            "store",
            "name of a store",
            "the one in `[store]`",
            "where its keys live",
        ),
    ],
};

/// One gateway.
#[derive(Debug, Clone)]
pub(crate) struct GatewayConfig {
    /// Its name.
    pub(crate) name: String,
    /// Where clients connect.
    pub(crate) listen: At<std::net::SocketAddr>,
    /// Where requests go.
    pub(crate) upstream: http::Uri,
    /// Its store's name.
    pub(crate) store: String,
}

/// Reads one `[[gateway]]`.
pub(crate) fn read(table: &Table<'_>) -> Option<GatewayConfig> {
    let name = table.name();
    table.require("listen", "\"127.0.0.1:8080\"");
    let listen = table.address("listen");
    table.require("upstream", "\"http://127.0.0.1:9000\"");
    let upstream = table.http_url("upstream");
    let store = table.store();
    Some(GatewayConfig {
        name: name?,
        listen: listen?,
        upstream: upstream?.value,
        store: store?,
    })
}

/// What the daemon serves for one gateway.
pub(crate) struct Service {
    /// Answers requests.
    pub(crate) router: axum::Router,
    /// Ends when every request that was begun has been carried out and recorded.
    pub(crate) drain: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Builds one gateway. `keys` answers `Unavailable` while its store is away.
///
/// # Errors
/// What is wrong with the configuration, in words.
pub(crate) fn service(
    _config: &GatewayConfig,
    _keys: std::sync::Arc<dyn semel_core::KeyStore>,
) -> Result<Service, String> {
    Err("gateways are not there yet".to_owned())
}
