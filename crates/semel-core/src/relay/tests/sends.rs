//! How many rows go at once, and what is told at once.

use super::*;

/// Were all of it one call, nothing would be on its way when that ends.
#[test]
fn what_may_be_on_its_way_to_a_pipelined_sink_is_four_calls_and_no_key_is_in_two() {
    let order = SinkOrder::Pipelined { in_flight_max: 1_200 };
    let key = |row: i64| row % 1_100;
    let keys: Vec<String> = (1..=1_500).map(|row| format!("k{}", key(row))).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut bench = Bench::new(order, quiet(), &keys);
    let sizes = |bench: &Bench| bench.sent.iter().map(|(_, rows)| rows.len()).collect::<Vec<_>>();
    assert_eq!(sizes(&bench), [300, 300, 300, 100], "a page has 1,000 rows");
    bench.answer(901, vec![Ok(()); 100]);
    let last = bench.sent[3].1.clone();
    // The keys of rows up to 900 are on their way.
    assert_eq!(last, (1_001..=1_100).collect::<Vec<_>>());
    bench.answer(1, vec![Ok(()); 300]);
    assert_eq!(bench.sent[3].1, (1_101..=1_400).collect::<Vec<_>>());
}

#[test]
fn what_is_told_together_is_decided_once() {
    let mut bench = Bench::new(ONE_PER_KEY, quiet(), &["a", "b", "c", "a", "b", "d"]);
    assert_eq!(bench.on_their_way(), [1, 2, 3, 6]);
    let calls: Vec<u64> = bench.sent.iter().map(|(call, _)| *call).collect();
    let answer = |call: u64| {
        let results = vec![Ok(())];
        (Input::Published { call, results }, 0.0)
    };
    let commands = bench.machine.steps(0, [answer(calls[0]), answer(calls[1])]);
    let sent: Vec<i64> = commands
        .iter()
        .filter_map(|command| match command {
            Command::Publish { rows, .. } => Some(rows[0].row),
            _ => None,
        })
        .collect();
    assert_eq!(sent, [4, 5]);
    assert_eq!(bench.machine.in_flight(), 4);
}

/// Rows on their way are passed over without a look; what comes back is looked at again.
#[test]
fn rows_that_come_back_go_again_before_those_behind_them() {
    let order = SinkOrder::Pipelined { in_flight_max: 500 };
    let keys: Vec<String> = (1..=900).map(|row| format!("k{row}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut bench = Bench::new(order, quiet(), &keys);
    bench.answer(251, vec![Ok(()); 250]);
    assert_eq!(
        bench.on_their_way(),
        (1..=250).chain(501..=750).collect::<Vec<_>>()
    );
    let held_back = Err(SinkError::new(SinkErrorClass::HeldBack, "why"));
    let mut results = vec![held_back; 250];
    results[0] = Ok(());
    bench.answer(1, results);
    let last = bench.sent.last().map(|(_, rows)| rows.clone());
    assert_eq!(last, Some((2..=250).chain([751]).collect()));
}

/// A key that is on its way twice is free when both are there.
#[test]
fn a_key_is_free_when_all_its_rows_are_back() {
    let order = SinkOrder::Pipelined { in_flight_max: 500 };
    let mut keys: Vec<String> = (1..=600).map(|row| format!("k{row}")).collect();
    keys[1] = keys[0].clone();
    keys[500] = keys[0].clone();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut bench = Bench::new(order, quiet(), &keys);
    bench.answer(251, vec![Ok(()); 250]);
    assert!(!bench.on_their_way().contains(&501), "its key is on its way");
    bench.answer(1, vec![Ok(()); 250]);
    assert!(bench.on_their_way().contains(&501));
}
