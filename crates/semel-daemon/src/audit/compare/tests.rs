//! What the comparison finds is what was done to the arrivals.

use proptest::prelude::*;

use super::*;

fn row(row: i64, key: u8) -> Expected {
    Expected {
        row,
        id: Uuid::from_u128(1_000 + row.unsigned_abs() as u128),
        key: Some(Bytes::from(vec![b'a' + key])),
        sha256: KeptRow::hash(Some(&row.to_be_bytes())),
        state: KeptState::Sent,
    }
}

fn arrival(it: &Expected) -> Arrival {
    Arrival {
        id: it.id,
        key: it
            .key
            .as_ref()
            .map_or(CameKey::None, |key| CameKey::Told(keys::text(key).into())),
        sha256: Some(it.sha256),
    }
}

fn compare(expected: &[Expected], arrived: &[Arrival]) -> Audit {
    let mut comparison = Comparison::new(expected.to_vec());
    for arrival in arrived {
        comparison.arrive(arrival);
    }
    comparison.done()
}

/// Rows of a few keys.
fn rows() -> impl Strategy<Value = Vec<Expected>> {
    prop::collection::vec(0..4_u8, 1..40).prop_map(|keys| {
        let numbered = keys.into_iter().enumerate();
        numbered.map(|(at, key)| row(at as i64 * 3 + 1, key)).collect()
    })
}

/// Mixes keys without touching the order of one: stable by a random number per key and step.
fn interleave(mut rows: Vec<Expected>, seed: &[u8]) -> Vec<Expected> {
    let mut mixed = Vec::new();
    let mut seed = seed.iter().cycle();
    while !rows.is_empty() {
        let at = usize::from(*seed.next().unwrap()) % rows.len();
        let key = rows[at].key.clone();
        let first = rows.iter().position(|row| row.key == key).unwrap();
        mixed.push(rows.remove(first));
    }
    mixed
}

proptest! {
    #[test]
    fn what_came_once_and_in_order_is_clean(rows in rows(), seed in prop::collection::vec(any::<u8>(), 1..20)) {
        let arrived: Vec<Arrival> = interleave(rows.clone(), &seed).iter().map(arrival).collect();
        let audit = compare(&rows, &arrived);
        prop_assert!(audit.clean(), "{audit:?}");
        prop_assert_eq!((audit.sent, audit.arrived, audit.unknown), (rows.len(), rows.len(), 0));
    }

    #[test]
    fn what_was_lost_doubled_or_altered_is_found_and_nothing_else(
        rows in rows(),
        fate in prop::collection::vec(0..6_u8, 40),
    ) {
        let (mut lost, mut twice, mut other) = (Vec::new(), Vec::new(), Vec::new());
        let mut arrived = Vec::new();
        for (it, fate) in rows.iter().zip(&fate) {
            let came = arrival(it);
            match fate {
                0 => lost.push((it.row, it.id)),
                1 => {
                    twice.push(it.id);
                    arrived.push(came.clone());
                    arrived.push(came);
                }
                2 => {
                    other.push((it.row, it.id));
                    arrived.push(Arrival { sha256: Some([0; 32]), ..came });
                }
                _ => arrived.push(came),
            }
        }
        let audit = compare(&rows, &arrived);
        prop_assert_eq!(&audit.missing, &lost);
        prop_assert_eq!(audit.doubled.iter().map(|it| it.id).collect::<Vec<_>>(), twice);
        prop_assert_eq!(&audit.altered, &other);
        prop_assert!(audit.reordered.is_empty(), "a repetition is no disorder: {audit:?}");
        prop_assert_eq!(audit.clean(), lost.is_empty() && audit.doubled.is_empty() && other.is_empty());
    }

    #[test]
    fn an_event_that_is_overtaken_in_its_key_is_found(rows in rows(), at in any::<prop::sample::Index>()) {
        let mut arrived = rows.clone();
        let moved = arrived.remove(at.index(rows.len()));
        let overtaken = arrived.iter().any(|it| it.key == moved.key && it.row > moved.row);
        arrived.push(moved.clone());
        let arrived: Vec<Arrival> = arrived.iter().map(arrival).collect();
        let audit = compare(&rows, &arrived);
        let found: Vec<Uuid> = audit.reordered.iter().map(|it| it.id).collect();
        prop_assert_eq!(found, if overtaken { vec![moved.id] } else { Vec::new() });
        prop_assert!(audit.missing.is_empty() && audit.doubled.is_empty());
    }
}

#[test]
fn what_waits_is_set_aside_or_was_replayed_is_judged_by_its_state() {
    let state = |n, state| Expected { state, ..row(n, 0) };
    let rows = [
        state(1, KeptState::Sent),
        state(2, KeptState::Waiting),
        state(3, KeptState::SetAside),
        state(4, KeptState::Dropped),
        state(5, KeptState::Edited),
        // A replay of the first with its id.
        Expected {
            row: 9,
            ..state(1, KeptState::Sent)
        },
    ];
    let edited = Arrival {
        sha256: Some([9; 32]),
        ..arrival(&rows[4])
    };
    let came = [
        arrival(&rows[0]),
        arrival(&rows[1]),
        edited.clone(),
        arrival(&rows[0]),
    ];
    let audit = compare(&rows, &came);
    assert!(audit.clean(), "{audit:?}");
    assert_eq!((audit.waiting, audit.set_aside, audit.sent), (1, 1, 3));
    let stranger = Arrival {
        id: Uuid::from_u128(5),
        key: CameKey::Untold,
        sha256: None,
    };
    let came = [
        arrival(&rows[0]),
        arrival(&rows[3]),
        edited.clone(),
        edited,
        stranger,
    ];
    let audit = compare(&rows, &came);
    assert_eq!(audit.missing, [(1, rows[0].id)], "its replay did not come");
    assert_eq!(audit.dropped_and_came, [(4, rows[3].id)]);
    assert_eq!((audit.doubled.len(), audit.unknown), (1, 1));
    assert!(audit.text(20).contains("row 4"), "{}", audit.text(20));
    assert_eq!(audit.json(0)["missing"], json!({ "count": 1, "first": [] }));
}

/// A key that came otherwise than it is, or not at all where that is known, is told; where nothing is said it is not.
#[test]
fn another_key_is_told_where_the_key_is_known() {
    let mut binary = row(4, 0);
    binary.key = Some(Bytes::from_static(b"\xff\0"));
    let mut keyless = row(7, 0);
    keyless.key = None;
    for (it, key, altered) in [
        (&row(1, 0), CameKey::Told("a".into()), false),
        (&row(1, 0), CameKey::Told("b".into()), true),
        (&row(1, 0), CameKey::Untold, false),
        (&row(1, 0), CameKey::None, true),
        (&binary, CameKey::Told(Bytes::from_static(b"\xff\0")), false),
        (&binary, CameKey::Told(keys::text(b"\xff\0").into()), false),
        (&keyless, CameKey::None, false),
    ] {
        let came = Arrival {
            key: key.clone(),
            ..arrival(it)
        };
        let audit = compare(std::slice::from_ref(it), &[came]);
        assert_eq!(!audit.altered.is_empty(), altered, "{it:?} {key:?}");
    }
}
