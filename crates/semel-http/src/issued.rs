//! Keys that the server gave out.

use std::sync::Arc;

use http::Response;
use semel_core::{Key, KeyStoreExt as _, Timestamp};

use crate::body::Body;
use crate::config::Config;
use crate::problem::ProblemKind;
use crate::shared::Shared;

/// Refuses a key that should have been given out to its caller and was not; the store is not asked. Why, for the caller.
pub(crate) fn check(config: &Config, key: &Key) -> Result<(), String> {
    let Some(issued) = &config.issued else {
        return Ok(());
    };
    if issued.ids.has_form(key.id()) {
        return issued.ids.good_until(key.id(), key.scope()).map(|_| ());
    }
    if !issued.required {
        return Ok(());
    }
    let why =
        "keys are given out by the server here: open the form again, and send the key that comes with it";
    Err(why.to_owned())
}

/// Since when the time is over in which the key may be used for the first time; `None` where it is not, or where it has
/// none. A request that came just before may still be on its way to the store, for `store_ms_max`: until then the claim
/// decides, so that of two requests around the end one runs and the other hears of it.
pub(crate) fn over_since(config: &Config, key: &Key, now: Timestamp) -> Option<Timestamp> {
    let ids = &config.issued.as_ref()?.ids;
    if !ids.has_form(key.id()) {
        return None;
    }
    let until = ids.good_until(key.id(), key.scope()).ok()?;
    let grace = i64::try_from(config.store_ms_max).unwrap_or(i64::MAX);
    (until.plus_ms(grace) <= now).then_some(until)
}

/// The refusal of a key whose time is over; `None` when it was used in time, for then its record answers. Such a look has
/// a place among the requests that run.
pub(crate) async fn unless_used(shared: &Arc<Shared>, key: &Key, until: Timestamp) -> Option<Response<Body>> {
    let Some(_place) = shared.place() else {
        return Some(shared.too_busy(key));
    };
    match tokio::time::timeout(shared.store_timeout(), shared.store.read(key)).await {
        Ok(Ok(Some(_))) => None,
        Ok(Ok(None)) => {
            let detail = format!(
                "the key was good until {} and no record of it is here; this request was not run. An earlier one may \
                 have been, if that is longer ago than records are kept: look before you open the form again",
                until.rfc3339()
            );
            Some(shared.refused(ProblemKind::IssuedKeyExpired, detail))
        }
        Ok(Err(_)) | Err(_) => Some(shared.no_store(key)),
    }
}
