//! Keys that the server gave out.

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
/// none.
pub(crate) fn over_since(config: &Config, key: &Key, now: Timestamp) -> Option<Timestamp> {
    let ids = &config.issued.as_ref()?.ids;
    if !ids.has_form(key.id()) {
        return None;
    }
    let until = ids.good_until(key.id(), key.scope()).ok()?;
    (until <= now).then_some(until)
}

/// The refusal of a key whose time is over; `None` when it was used in time, for then its record answers.
pub(crate) async fn unless_used(shared: &Shared, key: &Key, until: Timestamp) -> Option<Response<Body>> {
    match tokio::time::timeout(shared.store_timeout(), shared.store.read(key)).await {
        Ok(Ok(Some(_))) => None,
        Ok(Ok(None)) => {
            let detail = format!(
                "the key was good until {} and was not used, so nothing was run; open the form again for a new one",
                until.rfc3339()
            );
            Some(shared.refused(ProblemKind::IssuedKeyExpired, detail))
        }
        Ok(Err(_)) | Err(_) => Some(shared.no_store(key)),
    }
}
