//! What a shard holds in memory.

use super::*;

/// MassTransit#5918: a backlog of any size begins at once and takes no more memory than a small one.
#[test]
fn the_window_bounds_what_is_held_in_memory() {
    let policy = RelayPolicy {
        window_rows: 8,
        page_rows: 4,
        ..quiet()
    };
    let keys: Vec<String> = (0..100).map(|n| format!("k{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut bench = Bench::new(ONE_PER_KEY, policy, &keys);
    for row in 1..=100 {
        assert!(bench.machine.in_memory() <= 8);
        assert!(bench.on_their_way().contains(&row));
        bench.ok(row);
    }
    assert_eq!(bench.machine.cursor().open, None);
}

/// However many shards a relay has: they share the window, down to what one needs to go on.
#[test]
fn shards_share_the_window() {
    let events = vec!["k"; 5_000];
    for (shards, rows) in [(1, 4_000), (2, 2_000), (4, 1_000), (100, 500)] {
        let policy = RelayPolicy {
            window_rows: 4_000,
            ..quiet()
        };
        let mut bench = Bench::new(ONE_PER_KEY, policy, &[]);
        bench.tell(Input::Share(shards));
        for events in events.chunks(500) {
            write(&bench.store, events);
        }
        bench.tell(Input::Hint);
        assert_eq!(bench.machine.in_memory(), rows, "of {shards} shards");
    }
}
