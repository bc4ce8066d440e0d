//! A store that answers some calls and fails others.

use super::*;
use crate::store::Guarded;

/// A server that has become a standby, or that only reads: the cursor can be read, and nothing else works. (Rule O5.)
#[test]
fn a_store_that_only_reads_is_asked_less_and_less_often() {
    let mut bench = Bench::new(ONE_PER_KEY, quiet(), &[]);
    bench.wait(bench.machine.wake_at().unwrap() - bench.now());
    let (machine, mut now) = (&mut bench.machine, 1 << 20);
    machine.step(now, Input::LeaseUntil(1 << 40), 0.0);
    let mut waits = Vec::new();
    for _ in 0..6 {
        let cursor = machine.cursor().clone();
        machine.step(now, Input::StoreFailed(StoreCall::Read), 0.0);
        let at = machine.wake_at().expect("it tries again");
        waits.push(at - now);
        now = at;
        let commands = machine.step(now, Input::Tick, 0.0);
        assert!(commands.contains(&Command::Load), "{commands:?}");
        machine.step(now, Input::Loaded(Guarded::Done(cursor)), 0.0);
    }
    assert!(waits.is_sorted() && waits[5] > 8 * waits[0], "{waits:?}");
}
