//! Word of a relay that cannot even begin, left where its events wait.

use semel_core::error::chain;
use semel_core::relay::note_text;
use semel_core::store::Acquire;
use semel_core::{Nonce, OutboxStore, StoreError};

use crate::config::RelayConfig;

/// Says in the store why a relay does not begin, such as a sink that cannot be made, for whoever asks there: of each of its
/// shards that nobody has. Takes them for the moment that this needs and gives them back.
///
/// # Errors
/// The store's own; what was not said then is in the log of the caller alone.
pub async fn leave_word(
    store: &dyn OutboxStore,
    config: &RelayConfig,
    why: &StoreError,
) -> Result<(), StoreError> {
    let Some(desk) = store.desk() else {
        return Ok(());
    };
    store.register_stream(&config.stream, config.shards).await?;
    let wish = Acquire {
        stream: config.stream.clone(),
        max: config.shards,
        owner: config.owner.clone(),
        nonce: Nonce::random(),
        lease_ms: config.lease_ms(),
        // None that the others know: it takes part in no sharing.
        relay: Nonce::random(),
    };
    let note = note_text(&format!("stopped: {}", chain(why)));
    let leases: Vec<_> = store
        .acquire(&wish)
        .await?
        .into_iter()
        .map(|owned| owned.lease)
        .collect();
    let mut said = Ok(());
    for lease in &leases {
        said = said.and(desk.note(lease, Some(&note)).await.map(drop));
    }
    said.and(store.release(&leases).await)
}
