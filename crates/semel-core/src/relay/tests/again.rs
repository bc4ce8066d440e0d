//! Rows that are sent again, beside one that does not go through.

use super::*;

/// Both rows of a key were left out; a person asks for both.
fn two_left_out(keys: &[&str; 2]) -> Bench {
    let mut policy = quiet();
    policy.retry.attempts_max = 1;
    policy.poison = Poison::Skip;
    let mut bench = Bench::new(ONE_PER_KEY, policy, keys);
    bench.tell(Input::LeaseUntil(1 << 40));
    bench.fail(1, SinkErrorClass::Message);
    bench.fail(2, SinkErrorClass::Message);
    assert_eq!(bench.exceptions().len(), 2);
    ask_both(&mut bench);
    bench
}

fn ask_both(bench: &mut Bench) {
    for row in [1, 2] {
        let request = DeskRequest {
            row,
            change: DeskChange::Ask(Wish::Retry),
            by: "ann".to_owned(),
            why: "a test".to_owned(),
        };
        now_or_never(bench.store.change(&request)).unwrap().unwrap();
    }
    bench.wait(bench.policy.redrive_look_ms);
}

fn rows(bench: &Bench) -> Vec<i64> {
    bench.exceptions().into_iter().map(|(row, _)| row).collect()
}

#[test]
fn a_row_that_is_refused_again_keeps_no_other_of_its_key() {
    for refused in [1, 2] {
        let mut bench = two_left_out(&["a", "a"]);
        for row in [1, 2] {
            assert_eq!(bench.on_their_way(), [row]);
            if row == refused {
                bench.fail(row, SinkErrorClass::Message);
            } else {
                bench.ok(row);
            }
        }
        assert_eq!(rows(&bench), [refused]);
    }
}

#[test]
fn a_receiver_that_is_away_keeps_nothing_else_from_being_settled() {
    for class in [SinkErrorClass::Away, SinkErrorClass::Destination] {
        let mut bench = two_left_out(&["a", "b"]);
        assert_eq!(bench.on_their_way(), [1, 2]);
        bench.ok(2);
        bench.fail(1, class);
        assert_eq!(rows(&bench), [1], "what arrived is settled");
        let mut tries = 0;
        for _ in 0..200 {
            let wait = bench.machine.wake_at().expect("it goes on") - bench.now();
            bench.wait(wait.max(1));
            if bench.on_their_way() == [1] {
                tries += 1;
                bench.fail(1, class);
            }
        }
        assert!((3..60).contains(&tries), "{tries} tries, less and less often");
        let wait = bench.policy.destination.cap_ms.max(bench.policy.away.cap_ms);
        bench.wait(wait);
        assert_eq!(bench.on_their_way(), [1]);
        bench.ok(1);
        assert_eq!(rows(&bench), [] as [i64; 0], "and it goes once it can");
    }
}

/// Its newer rows would keep the batch from its end, and with it all other keys.
#[test]
fn a_list_whose_receiver_is_away_keeps_no_batch() {
    let mut policy = quiet();
    policy.retry.attempts_max = 1;
    policy.poison = Poison::ParkKey;
    let mut bench = Bench::new(ONE_PER_KEY, policy, &["a", "a"]);
    bench.tell(Input::LeaseUntil(1 << 40));
    bench.fail(1, SinkErrorClass::Message);
    assert_eq!(rows(&bench), [1, 2]);
    ask(&mut bench, 1, Wish::Retry);
    assert_eq!(bench.on_their_way(), [1]);
    write(&bench.store, &["a", "b"]);
    bench.tell(Input::Hint);
    bench.fail(1, SinkErrorClass::Destination);
    let wait = bench.policy.destination.cap_ms;
    for _ in 0..10 {
        bench.wait(wait);
        for row in bench.on_their_way() {
            match row {
                4 => bench.ok(4),
                1 => bench.fail(1, SinkErrorClass::Destination),
                other => panic!("row {other} overtakes its list"),
            }
        }
    }
    assert_eq!(rows(&bench), [1, 2, 3]);
    assert_eq!(bench.machine.in_memory(), 0, "the batch has come to its end");
    bench.wait(wait);
    for row in 1..=3 {
        assert_eq!(bench.on_their_way(), [row]);
        bench.ok(row);
    }
    assert_eq!(rows(&bench), [] as [i64; 0]);
}
