//! The saga of an order: reserve, charge, ship; undone in reverse when one is refused or cannot be had.

use semel_core::host::uuid_v7;
use semel_core::saga::{CheckedDefinition, Definition, Step as SagaStep, patient};
use semel_core::{Event, RetryPolicy, SystemClock};
use serde_json::{Value, json};

use crate::demo::shop::{Map, Step};
use crate::demo::trouble::{Doing as _, Trouble};

/// Milliseconds that one attempt may take, the same as in the hand-written shop.
const ATTEMPT_TIMEOUT_MS: u64 = 1_000;

/// Submits sagas.
pub(super) struct Shipments {
    definition: Value,
}

impl Shipments {
    /// The saga over this shop's services.
    pub(super) fn of(map: &Map) -> Result<Self, Trouble> {
        let checked = definition(map)?;
        let definition = serde_json::from_str(checked.json()).doing("read the saga's definition")?;
        Ok(Self { definition })
    }

    /// An event whose delivery is the saga's submission. Delivered again, it is the same saga.
    pub(super) fn submission(&self, step: &Step) -> Event {
        let body = json!({
            "id": step.order_id,
            "definition": self.definition,
            "input": step,
        });
        Event::new(uuid_v7(&SystemClock), "sagas", "saga.submitted")
            .with_stream("sagas")
            .with_key(step.order_id.clone())
            .with_data("application/json", body.to_string())
    }
}

fn definition(map: &Map) -> Result<CheckedDefinition, Trouble> {
    let orders = |what: &str| format!("http://127.0.0.1:{}/{what}", map.orders[0]);
    let stock = |what: &str| format!("http://127.0.0.1:{}/{what}", map.stock);
    let payments = |what: &str| format!("http://127.0.0.1:{}/{what}", map.payments);
    let shipping = |what: &str| format!("http://127.0.0.1:{}/{what}", map.shipping);
    // What must end well is tried until it does, quickly, since time is short here.
    let eager = RetryPolicy {
        cap_ms: 500,
        ..patient()
    };
    // When the tries are used up the outcome is unknown, and the saga turns: what may have happened is undone, and the
    // barrier refuses the action should it still arrive. Few, so that the demo shows that as well.
    let four_tries = RetryPolicy {
        initial_ms: 100,
        attempts_max: 4,
        ..eager
    };
    let step = |name: &str, action: String| {
        SagaStep::new(name, action)
            .barrier()
            .with_attempt_timeout_ms(ATTEMPT_TIMEOUT_MS)
            .with_compensation_retry(eager)
    };
    Definition::new("order")
        .step(
            step("open", orders("open"))
                .compensated_by(orders("cancel"))
                .with_retry(eager),
        )
        .step(
            step("reserve", stock("reserve"))
                .compensated_by(stock("release"))
                .with_retry(four_tries),
        )
        .step(
            step("charge", payments("charge"))
                .compensated_by(payments("refund"))
                .with_retry(four_tries),
        )
        // From here on the order stands, unless shipping says no.
        .step(step("ship", shipping("ship")).pivot().with_retry(eager))
        .step(step("confirm", orders("confirm")).retriable().with_retry(eager))
        .check()
        .doing("define the saga")
}
