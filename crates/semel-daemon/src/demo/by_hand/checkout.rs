//! The saga: three calls, and when one fails, undo the ones before it.
//!
//! Why people write it so: it is `try` and `except`, it reads like the diagram in the article, and every branch can
//! be tested by making a service refuse. The process is assumed to live until the end of the function.

use super::http::{CallError, Client};
use crate::demo::shop::{Effect, Map, Step};

/// Reserves, charges and ships, or undoes what was done.
pub(super) async fn checkout(client: &Client, map: &Map, step: &Step) -> Result<(), CallError> {
    call(client, map, Effect::Reserve, step).await?;
    if let Err(error) = call(client, map, Effect::Charge, step).await {
        // The charge failed, so there is only the stock to give back.
        call(client, map, Effect::Release, step).await?;
        return Err(error);
    }
    if let Err(error) = call(client, map, Effect::Ship, step).await {
        call(client, map, Effect::Refund, step).await?;
        call(client, map, Effect::Release, step).await?;
        return Err(error);
    }
    Ok(())
}

async fn call(client: &Client, map: &Map, effect: Effect, step: &Step) -> Result<(), CallError> {
    let port = match effect {
        Effect::Reserve | Effect::Release => map.stock,
        Effect::Charge | Effect::Refund => map.payments,
        Effect::Ship | Effect::Notify => map.shipping,
    };
    let key = format!("{}-{}", step.order_id, effect.name());
    client.post(port, effect.name(), &key, step).await
}
