//! What the client sends and what is killed, all drawn from the seed before anything starts.
//! Both shops get the same plan.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::rng::Rng;

/// The card that payments declines.
pub(crate) const DECLINED_CARD: &str = "card-declined";
/// The item that stock never has.
pub(crate) const SOLD_OUT_ITEM: &str = "unicorn";
/// The address where nobody delivers: refused after the charge, so that money has to go back.
pub(crate) const NO_SUCH_ADDRESS: &str = "nowhere";

const ITEMS: &[&str] = &["teapot", "kettle", "lamp", "chair", "clock"];

/// The body of `POST /orders`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NewOrder {
    /// The customer's own number for this order. It travels to every service, so that the audit can tell what was
    /// meant from what was done. No service uses it to decide anything.
    pub(crate) reference: String,
    pub(crate) item: String,
    pub(crate) quantity: i64,
    pub(crate) amount_cents: i64,
    pub(crate) card: String,
    pub(crate) address: String,
}

/// One order and the times it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OrderPlan {
    pub(crate) order: NewOrder,
    /// The `Idempotency-Key`, the same on every send.
    pub(crate) key: String,
    /// From the start of the load.
    pub(crate) at: Duration,
    /// At least one.
    pub(crate) sends: Vec<SendPlan>,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SendPlan {
    /// From the order's own start. Zero for several sends is "at the same moment".
    pub(crate) after: Duration,
    /// Which of the two copies of the orders service.
    pub(crate) copy: usize,
    /// The connection is cut this long after the request went out.
    pub(crate) cut_after: Option<Duration>,
}

/// What is struck. The hand-written shop has no processes of its own for the relay and the coordinator: there the
/// copy of orders that does this work is struck instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    /// A copy of the orders service.
    Orders(usize),
    Payments,
    Stock,
    Shipping,
    /// A copy of whatever relays the events and runs the sagas.
    Engine(usize),
}

/// Every target once.
pub(crate) const TARGETS: [Target; 7] = [
    Target::Orders(0),
    Target::Orders(1),
    Target::Payments,
    Target::Stock,
    Target::Shipping,
    Target::Engine(0),
    Target::Engine(1),
];

/// What is done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blow {
    /// `kill -9`, and a new start after a while.
    Kill { down: Duration },
    /// SIGSTOP, and SIGCONT after a while: the process believes that no time has passed.
    Pause { length: Duration },
}

/// One blow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Strike {
    pub(crate) at: Duration,
    pub(crate) target: Target,
    pub(crate) blow: Blow,
}

/// The orders, by their time.
pub(crate) fn orders(seed: u64, count: u32, seconds: u32) -> Vec<OrderPlan> {
    let mut rng = Rng::new(seed, "load");
    // The last tenth stays free, so that late duplicates still meet the killing.
    let span_ms = u64::from(seconds) * 900;
    let mut plans: Vec<_> = (1..=count).map(|n| order(&mut rng, n, span_ms)).collect();
    plans.sort_by_key(|plan| plan.at);
    plans
}

fn order(rng: &mut Rng, n: u32, span_ms: u64) -> OrderPlan {
    let quantity = 1 + i64::try_from(rng.below(3)).unwrap_or(0);
    let mut order = NewOrder {
        reference: format!("order-{n:05}"),
        item: rng.pick(ITEMS).to_owned(),
        quantity,
        amount_cents: quantity * (500 + i64::try_from(rng.below(9_500)).unwrap_or(0)),
        card: format!("card-{:04}", rng.below(10_000)),
        address: format!("{} Main Street", 1 + rng.below(200)),
    };
    match rng.below(100) {
        0..6 => order.item = SOLD_OUT_ITEM.to_owned(),
        6..12 => order.card = DECLINED_CARD.to_owned(),
        12..18 => order.address = NO_SUCH_ADDRESS.to_owned(),
        _ => {}
    }
    OrderPlan {
        key: format!("checkout-{n:05}"),
        order,
        at: rng.millis(0, span_ms),
        sends: sends(rng),
    }
}

fn sends(rng: &mut Rng) -> Vec<SendPlan> {
    let count = match rng.below(100) {
        0..45 => 1,
        45..75 => 2,
        75..90 => 3,
        _ => 4,
    };
    // A double click sends at once; an impatient customer or a retrying proxy a little later.
    let at_once = rng.percent(50);
    let mut after = Duration::ZERO;
    (0..count)
        .map(|n| {
            if n > 0 {
                after += if at_once {
                    rng.millis(0, 3)
                } else {
                    rng.millis(20, 1_200)
                };
            }
            SendPlan {
                after,
                copy: usize::from(rng.percent(50)),
                cut_after: rng.percent(15).then(|| rng.millis(1, 80)),
            }
        })
        .collect()
}

/// The blows, by their time: one about every 400 ms.
pub(crate) fn strikes(seed: u64, seconds: u32) -> Vec<Strike> {
    let mut rng = Rng::new(seed, "chaos");
    let end = Duration::from_secs(u64::from(seconds));
    let mut at = Duration::from_millis(400);
    let mut strikes = Vec::new();
    while at < end {
        let target = rng.pick(&TARGETS);
        let blow = if rng.percent(60) {
            Blow::Kill {
                down: rng.millis(50, 700),
            }
        } else {
            Blow::Pause {
                length: rng.millis(200, 2_500),
            }
        };
        strikes.push(Strike { at, target, blow });
        at += rng.millis(150, 650);
    }
    strikes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_plan_and_another_seed_another() {
        assert_eq!(orders(7, 50, 5), orders(7, 50, 5));
        assert_eq!(strikes(7, 5), strikes(7, 5));
        assert_ne!(orders(7, 50, 5), orders(8, 50, 5));
        assert_ne!(strikes(7, 5), strikes(8, 5));
    }

    #[test]
    fn the_plan_has_duplicates_cuts_refusals_and_blows_of_both_kinds() {
        let plans = orders(1, 300, 15);
        let some = |what: &str, count: usize| assert!(count > 5, "{what}: {count}");
        some("duplicates", plans.iter().filter(|p| p.sends.len() > 1).count());
        let sends = || plans.iter().flat_map(|p| &p.sends);
        some("cuts", sends().filter(|s| s.cut_after.is_some()).count());
        some(
            "sold out",
            plans.iter().filter(|p| p.order.item == SOLD_OUT_ITEM).count(),
        );
        some(
            "declined",
            plans.iter().filter(|p| p.order.card == DECLINED_CARD).count(),
        );
        some(
            "nowhere",
            plans
                .iter()
                .filter(|p| p.order.address == NO_SUCH_ADDRESS)
                .count(),
        );
        let strikes = strikes(1, 15);
        some(
            "kills",
            strikes
                .iter()
                .filter(|s| matches!(s.blow, Blow::Kill { .. }))
                .count(),
        );
        some(
            "pauses",
            strikes
                .iter()
                .filter(|s| matches!(s.blow, Blow::Pause { .. }))
                .count(),
        );
        assert!(plans.iter().all(|p| p.at < Duration::from_secs(14)));
    }
}
