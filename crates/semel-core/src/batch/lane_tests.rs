//! What a lane promises, over generated histories.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{prop_assert, prop_assert_eq, proptest};

use super::{Full, Lane, LaneLimits, Next, Weight};

const MS: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy)]
enum Event {
    Offer(usize, bool),
    Drive,
    Answer,
    Pass(u32),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        6 => (0..60_usize, any::<bool>()).prop_map(|(bytes, ends)| Event::Offer(bytes, ends)),
        4 => Just(Event::Drive),
        3 => Just(Event::Answer),
        2 => (0..2_000_u32).prop_map(Event::Pass),
    ];
    vec(event, 1..120)
}

fn limits() -> impl Strategy<Value = LaneLimits> {
    (1..5_usize, 1..100_usize, 1..12_usize, 1..300_usize, 0..1_000_u64).prop_map(
        |(items_max, bytes_max, queue_items_max, queue_bytes_max, linger_us)| LaneLimits {
            items_max,
            bytes_max,
            queue_items_max,
            queue_bytes_max,
            linger: Duration::from_micros(linger_us),
        },
    )
}

proptest! {
    #[test]
    fn what_was_let_in_leaves_once_in_order_within_the_limits(limits in limits(), events in events()) {
        let mut lane = Lane::new(limits);
        let (mut now, mut number) = (Duration::ZERO, 0_u32);
        // (number, bytes, since when it could have gone)
        let mut inside: Vec<(u32, usize, Duration)> = Vec::new();
        let mut sent = false;
        let mut driven = false;
        for event in events {
            match event {
                Event::Pass(us) => now += Duration::from_micros(us.into()),
                Event::Offer(bytes, ends) => {
                    let times = if ends { 2 } else { 1 };
                    let held: usize = inside.iter().map(|item| item.1).sum();
                    match lane.offer(number, Weight { bytes, ends }, now) {
                        Ok(wake) => {
                            prop_assert_eq!(wake, !driven, "exactly one driver");
                            driven = true;
                            prop_assert!(inside.len() < limits.queue_items_max * times);
                            inside.push((number, bytes, now));
                            number += 1;
                        }
                        Err(Full::Items(_)) => prop_assert!(inside.len() >= limits.queue_items_max * times),
                        Err(Full::Bytes(_)) => prop_assert!(held + bytes > limits.queue_bytes_max * times),
                    }
                }
                Event::Drive => match lane.next(now) {
                    Next::Send(batch) => {
                        prop_assert!(!sent, "one batch on its way at a time");
                        sent = true;
                        prop_assert!((1..=limits.items_max).contains(&batch.len()));
                        let gone: Vec<_> = inside.drain(..batch.len()).collect();
                        let bytes: usize = gone.iter().map(|item| item.1).sum();
                        prop_assert!(batch.len() == 1 || bytes <= limits.bytes_max);
                        let numbers: Vec<u32> = gone.iter().map(|item| item.0).collect();
                        prop_assert_eq!(batch, numbers, "first come, first sent");
                    }
                    Next::Linger(until) => {
                        prop_assert!(!sent && until > now);
                        prop_assert!(inside.iter().all(|item| until <= item.2.max(now) + limits.linger));
                        prop_assert!(inside.len() < limits.items_max, "a full batch goes at once");
                    }
                    Next::Idle => prop_assert!(sent || inside.is_empty()),
                },
                Event::Answer if sent => {
                    sent = false;
                    lane.answered(now);
                    driven = !inside.is_empty();
                }
                Event::Answer => {}
            }
            prop_assert_eq!(lane.waiting(), inside.len());
        }
    }
}

fn lane(linger: Duration) -> Lane<&'static str> {
    Lane::new(LaneLimits {
        items_max: 2,
        bytes_max: 100,
        queue_items_max: 2,
        queue_bytes_max: 50,
        linger,
    })
}

const SMALL: Weight = Weight {
    bytes: 1,
    ends: false,
};

#[test]
fn an_idle_lane_waits_for_company_only_where_it_was_told_to() {
    let mut lane = lane(MS);
    assert_eq!(lane.offer("a", SMALL, Duration::ZERO), Ok(true));
    assert_eq!(lane.next(Duration::ZERO), Next::Linger(MS));
    assert_eq!(lane.next(MS), Next::Send(vec!["a"]));
    lane.offer("b", SMALL, MS).unwrap();
    lane.answered(MS);
    assert_eq!(
        lane.next(MS),
        Next::Send(vec!["b"]),
        "it has waited for the batch before"
    );
}

#[test]
fn a_full_batch_does_not_linger() {
    let mut lane = lane(MS);
    lane.offer("a", SMALL, Duration::ZERO).unwrap();
    lane.offer("b", SMALL, Duration::ZERO).unwrap();
    assert_eq!(lane.next(Duration::ZERO), Next::Send(vec!["a", "b"]));
}

#[test]
fn what_ends_a_run_is_let_in_when_new_work_is_not() {
    let mut lane = lane(Duration::ZERO);
    let end = Weight { ends: true, ..SMALL };
    lane.offer("a", SMALL, Duration::ZERO).unwrap();
    lane.offer("b", SMALL, Duration::ZERO).unwrap();
    let full = lane.offer("c", SMALL, Duration::ZERO).unwrap_err();
    assert!(full.to_string().contains("queue_items_max = 2"), "{full}");
    lane.offer("end of a", end, Duration::ZERO).unwrap();
    lane.offer("end of b", end, Duration::ZERO).unwrap();
    assert_eq!(lane.offer("one more", end, Duration::ZERO), Err(Full::Items(2)));
}

#[test]
fn an_item_over_the_budget_goes_alone() {
    let mut lane = lane(Duration::ZERO);
    let large = Weight {
        bytes: 1_000,
        ends: true,
    };
    lane.offer("large", large, Duration::ZERO).unwrap();
    assert_eq!(lane.offer("b", SMALL, Duration::ZERO), Err(Full::Bytes(50)));
    assert_eq!(lane.next(Duration::ZERO), Next::Send(vec!["large"]));
    lane.offer("b", SMALL, Duration::ZERO).unwrap();
}

#[test]
fn a_lane_whose_driver_is_gone_begins_anew() {
    let mut lane = lane(Duration::ZERO);
    assert_eq!(lane.offer("a", SMALL, Duration::ZERO), Ok(true));
    assert_eq!(lane.next(Duration::ZERO), Next::Send(vec!["a"]));
    assert_eq!(lane.offer("b", SMALL, Duration::ZERO), Ok(false));
    assert_eq!(lane.reset(), ["b"]);
    assert_eq!(lane.waiting(), 0);
    assert_eq!(lane.offer("c", SMALL, Duration::ZERO), Ok(true));
    assert_eq!(lane.next(Duration::ZERO), Next::Send(vec!["c"]));
}

#[test]
fn a_lane_knows_for_how_long_its_batch_has_been_on_its_way() {
    let mut lane = lane(Duration::ZERO);
    lane.offer("a", SMALL, MS).unwrap();
    assert_eq!(lane.on_its_way(MS), None);
    lane.next(MS);
    assert_eq!(lane.on_its_way(3 * MS), Some(2 * MS));
    lane.answered(3 * MS);
    assert_eq!(lane.on_its_way(4 * MS), None);
}

/// Its driver still has to clear up; nobody waits for the store.
#[test]
fn a_batch_whose_callers_have_their_answers_does_not_hang() {
    let mut lane = lane(Duration::ZERO);
    lane.told(MS);
    assert_eq!(lane.on_its_way(MS), None, "nothing was sent");
    lane.offer("a", SMALL, MS).unwrap();
    lane.next(MS);
    lane.told(9 * MS);
    assert_eq!(lane.on_its_way(9 * MS), Some(Duration::ZERO));
    assert_eq!(lane.offer("b", SMALL, 9 * MS), Ok(false), "it is still driven");
    assert_eq!(lane.next(9 * MS), Next::Idle, "one batch at a time");
    lane.answered(9 * MS);
    assert_eq!(lane.next(9 * MS), Next::Send(vec!["b"]));
}
