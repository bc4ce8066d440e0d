//! A key that was used for another request, or for the same one under another recipe.

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use semel_core::error::chain;
use semel_core::{Fingerprint, Key, KeyStoreExt};

use super::asked;
use crate::body::Body;
use crate::observe::Event;
use crate::problem::ProblemKind;
use crate::shared::Shared;

/// What a look at the record says.
pub(super) enum Judged {
    /// Under the recipe of the record it is the same request: claim again with this (rule K13).
    Same(Fingerprint),
    /// It is another one; these parts differ.
    Differs(String),
    /// There is no record any more: claim again.
    Gone,
    /// The store does not say.
    Away,
}

/// Compares the request with the record, in the recipe of the record.
pub(super) async fn judge(
    shared: &Shared,
    key: &Key,
    fingerprint: Fingerprint,
    head: &Parts,
    body: &Bytes,
) -> Judged {
    let read = tokio::time::timeout(shared.store_timeout(), shared.store.read(key)).await;
    let stored = match read {
        Ok(Ok(Some(record))) => record.fingerprint,
        Ok(Ok(None)) => None,
        Ok(Err(error)) => {
            tracing::warn!(%key, error = chain(&error), "cannot look at the record of a key");
            return Judged::Away;
        }
        Err(_) => return Judged::Away,
    };
    let Some(stored) = stored else {
        return Judged::Gone;
    };
    let target = shared.target.as_ref().map(|target| target(head));
    let asked = asked(shared, head, body, target.as_deref());
    let Some(profile) = shared.config.profile.of_number(stored.version()) else {
        // Written by a build or a profile that this one does not know: it is not replayed.
        let what = "the recipe of its fingerprint, which this service does not know";
        return Judged::Differs(what.to_owned());
    };
    let now = crate::fingerprint::of(asked, &profile).await;
    if now == stored && now != fingerprint {
        return Judged::Same(now);
    }
    Judged::Differs(crate::fingerprint::explain(asked, &profile, &stored).await)
}

/// "The key was used for another request", with the parts that differ by name.
pub(super) fn answer(shared: &Shared, key: &Key, what: &str) -> Response<Body> {
    shared.saw(Event::Mismatch, Some(key));
    let detail = format!(
        "this request differs from the first one with this key in {what}; send the same request again, or a new key for \
         a new one"
    );
    shared.problem(ProblemKind::Mismatch, detail)
}
