//! SIGHUP: the configuration is read again, and its gateways put in force.
//!
//! # Guarantees
//! - The whole file is read and checked first, certificates included, and new ports are taken; only then anything
//!   changes. A file with a mistake changes nothing, and the log says why.
//! - Tokens of `[api]` are replaced at once, where it still listens on the same address.
//! - No request is dropped: see [`front`](super::front).

use std::path::Path;

use semel_core::error::chain;

use super::Context;
use super::gateways::Gateways;
use super::stores::Stores;
use crate::api::Api;
use crate::config::{self, Config};

/// What a refusal begins with.
const CODE: &str = "SEM0474";

/// Reads the file again; the configuration in force afterwards.
pub(crate) async fn reload(
    path: &Path,
    mut now: Config,
    gateways: &std::sync::Arc<Gateways>,
    api: Option<&Api>,
    stores: &Stores,
    context: &Context,
) -> Config {
    let reloads = &context.metrics.gateways.reloads;
    let count = |result| reloads.get_or_create(&[("result", result)]).inc();
    let mut next = match config::load(path) {
        Ok(next) => next,
        Err(report) => {
            count("refused");
            tracing::error!(
                "{CODE}: the configuration is refused and the earlier one stays in force:\n{report}"
            );
            return now;
        }
    };
    if let Err(error) = gateways.set(&next.gateways, stores).await {
        count("refused");
        tracing::error!(
            "{CODE}: the configuration is refused and the earlier one stays in force: {}",
            chain(&error)
        );
        return now;
    }
    count("taken");
    super::tell_doubts(&next);
    // Tokens are replaced while the API serves; not where its address changes too: fewer may be asked for there.
    if let (Some(api), Some(now), Some(next)) = (api, &mut now.api, &next.api)
        && now.listen == next.listen
    {
        api.admit(next.access.clone());
        now.access = next.access.clone();
    }
    let waits = [
        (
            "[server]",
            format!("{:?}", now.server) != format!("{:?}", next.server),
        ),
        (
            "[store]",
            format!("{:?}", now.stores) != format!("{:?}", next.stores),
        ),
        (
            "[[relay]]",
            format!("{:?}", now.relays) != format!("{:?}", next.relays),
        ),
        ("[api]", format!("{:?}", now.api) != format!("{:?}", next.api)),
        ("[saga]", format!("{:?}", now.saga) != format!("{:?}", next.saga)),
    ];
    let waits: Vec<&str> = waits
        .into_iter()
        .filter_map(|(section, changed)| changed.then_some(section))
        .collect();
    if !waits.is_empty() {
        tracing::warn!(
            sections = waits.join(", "),
            "these sections changed and wait for a restart; only gateways and tokens of [api] are taken over while semel runs"
        );
    }
    tracing::info!(gateways = next.gateways.len(), "configuration taken over");
    // What is in force stays what the next reading is compared with.
    (next.server, next.stores, next.relays) = (now.server, now.stores, now.relays);
    (next.api, next.saga) = (now.api, now.saga);
    next
}
