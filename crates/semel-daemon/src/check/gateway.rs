//! What each route of a gateway promises, read from its settings.

use std::time::Duration;

use semel_core::OwnerLost;
use semel_http::{Mode, Outage};

use super::findings::Finding;
use crate::gateway::{GatewayConfig, KeyRule, RouteConfig};

/// Each route by its methods and paths, with the strength in force; the gateway's own policy comes last.
pub(super) fn guarantees(gateway: &GatewayConfig) -> impl Iterator<Item = (String, String)> {
    gateway.routes.iter().map(|route| (name(route), strength(route)))
}

fn name(route: &RouteConfig) -> String {
    let methods: Vec<&str> = route.methods.iter().map(http::Method::as_str).collect();
    let paths: Vec<String> = route.paths.iter().map(ToString::to_string).collect();
    format!("{} {}", methods.join("|"), paths.join(" "))
}

fn strength(route: &RouteConfig) -> String {
    if route.key == KeyRule::Off {
        return "none: keys are passed through unread".to_owned();
    }
    if route.layer.mode == Mode::Shadow {
        return "none: keys are only counted (`shadow`)".to_owned();
    }
    let kept = match (route.sending.deduplicates, route.layer.owner_lost) {
        (_, OwnerLost::Rerun) => {
            "keyed, if the upstream deduplicates as declared: an end that is not known is sent again by the next retry"
        }
        (true, OwnerLost::Hold) => {
            "keyed, if the upstream deduplicates as declared: a lost answer is asked for again with the same key, an end \
             that stays unknown is held"
        }
        (false, OwnerLost::Hold) => {
            "guarded: each key is sent once; an end that is not known is held, never repeated in silence"
        }
    };
    match route.layer.outage {
        Outage::Closed => kept.to_owned(),
        Outage::Open => {
            format!("{kept}; none while the store is away: each request is sent (`outage = \"open\"`)")
        }
    }
}

/// A warning where stopping waits for less than a request may take: what is cut off then is unknown.
pub(super) fn stop(part: &str, gateway: &GatewayConfig, stop_max: Duration) -> Option<Finding> {
    let keyed = gateway.routes.iter().filter(|route| route.key != KeyRule::Off);
    let longest = keyed.map(|route| route.sending.total).max()?;
    (stop_max < longest).then(|| {
        let found = format!(
            "stop_ms_max = {} of [server] is below total_timeout_ms = {}: a stop may cut off requests, whose end is then \
             not known",
            stop_max.as_millis(),
            longest.as_millis()
        );
        Finding::warn(part, "stop", found, "raise stop_ms_max, or lower total_timeout_ms to what the upstream needs")
    })
}
