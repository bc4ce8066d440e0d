//! Replays go at their pace, and nothing waits for them.

use uuid::Uuid;

use super::*;
use crate::store::Replay;

impl Bench {
    /// Acknowledges all that is on its way.
    fn all_ok(&mut self) {
        for (call, rows) in std::mem::take(&mut self.sent) {
            let results = vec![Ok(()); rows.len()];
            self.tell(Input::Published { call, results });
        }
    }
}

#[test]
fn a_replay_goes_at_its_pace_and_live_events_pass_it() {
    for order in [ONE_PER_KEY, PIPELINED] {
        let mut policy = quiet();
        policy.replay_per_second = 20;
        let mut bench = Bench::new(order, policy, &["a", "b", "c", "a", "b"]);
        while !bench.sent.is_empty() {
            bench.all_ok();
        }
        let replay = Replay {
            stream: "default".to_owned(),
            from: None,
            to: None,
            key: None,
            topic: None,
            after: 0,
            upto: 5,
            limit: 100,
            id: Uuid::from_u128(9),
            fresh_ids: false,
            dry_run: false,
        };
        let replayed = now_or_never(bench.store.replay(&replay)).unwrap();
        assert_eq!(replayed.rows.len(), 5);
        bench.wait(bench.policy.redrive_look_ms);
        assert_eq!(bench.on_their_way(), [1, 2], "a tenth of a second's");
        write(&bench.store, &["d"]);
        bench.tell(Input::Hint);
        assert_eq!(
            bench.on_their_way(),
            [1, 2, 6],
            "what is live waits for none of it"
        );
        bench.all_ok();
        for due in [vec![3, 4], vec![5]] {
            assert_eq!(bench.on_their_way(), [] as [i64; 0]);
            bench.wait(99);
            assert_eq!(bench.on_their_way(), [] as [i64; 0]);
            assert!(bench.machine.wake_at().unwrap() <= bench.now() + 1);
            bench.wait(1);
            assert_eq!(bench.on_their_way(), due);
            bench.all_ok();
        }
        assert_eq!(bench.exceptions(), [], "none is left");
    }
}

/// What a person asks for of a parked key is no replay: it is sent as fast as it goes.
#[test]
fn a_retry_has_no_pace() {
    let mut policy = quiet();
    policy.retry.attempts_max = 1;
    policy.poison = Poison::ParkKey;
    policy.replay_per_second = 1;
    let mut bench = Bench::new(PIPELINED, policy, &["a", "a", "a"]);
    bench.fail(1, SinkErrorClass::Message);
    ask(&mut bench, 1, Wish::Retry);
    for row in [1, 2, 3] {
        assert_eq!(bench.on_their_way(), [row]);
        bench.all_ok();
    }
    assert_eq!(bench.exceptions(), []);
}
