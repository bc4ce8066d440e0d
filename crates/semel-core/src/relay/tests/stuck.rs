//! One destination that takes nothing, among others that do.

use super::*;

const AWAY: SinkErrorClass = SinkErrorClass::Away;

fn failed(class: SinkErrorClass) -> Result<(), SinkError> {
    Err(SinkError::new(class, "why"))
}

/// The call that the sink has to answer, and its rows.
fn only_call(bench: &Bench) -> Vec<i64> {
    assert_eq!(bench.sent.len(), 1, "{:?}", bench.sent);
    bench.sent[0].1.clone()
}

#[test]
fn when_a_pipelined_sink_may_try_again_another_key_tries_each_time() {
    let mut bench = Bench::new(PIPELINED, quiet(), &["a", "a", "b", "c"]);
    assert_eq!(only_call(&bench), [1, 2, 3, 4]);
    let held = || failed(SinkErrorClass::HeldBack);
    bench.answer(1, vec![failed(AWAY), held(), held(), held()]);
    let mut tried: Vec<i64> = Vec::new();
    for _ in 0..4 {
        let pause = bench.machine.pause().unwrap();
        bench.wait(pause.until - bench.now());
        let row = only_call(&bench);
        tried.extend(&row);
        bench.fail(row[0], AWAY);
    }
    assert_eq!(tried, [3, 4, 1, 3], "row 2 is behind row 1");
}

/// A queue that is full, a partition without a leader, a topic that is missing.
#[test]
fn one_stuck_destination_holds_up_its_own_keys_only() {
    for class in [AWAY, SinkErrorClass::Destination] {
        let keys: Vec<String> = (0..200).map(|n| format!("k{n}")).collect();
        let mut keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        (keys[0], keys[5]) = ("stuck", "stuck");
        let mut bench = Bench::new(PIPELINED, quiet(), &keys);
        let (mut tries, mut others, mut turns) = (0, 0, 0);
        while others < 198 {
            turns += 1;
            assert!(
                turns < 1_000,
                "{class:?}: {others} of the others after {turns} turns"
            );
            while let Some((_, rows)) = bench.sent.first().cloned() {
                assert!(
                    rows.contains(&1) || !rows.contains(&6),
                    "behind one that has not arrived"
                );
                let answer = |row: &i64| match row {
                    1 => failed(class),
                    6 => failed(SinkErrorClass::HeldBack),
                    _ => Ok(()),
                };
                tries += rows.iter().filter(|row| **row == 1).count();
                others += rows.iter().filter(|row| ![1, 6].contains(*row)).count();
                bench.answer(rows[0], rows.iter().map(answer).collect());
            }
            let wake = bench.machine.wake_at().unwrap();
            bench.wait(wake.saturating_sub(bench.now()));
            assert!(
                tries < 20,
                "{class:?}: {others} of the others after {tries} tries"
            );
        }
        assert!(tries < 10, "{class:?}: {tries} tries");
    }
}
