//! Lines that break.

use std::time::Duration;

use semel_core::store::{SinkErrorClass, TransactionEnd};

use super::bed::LogBed;
use super::owner::{Owner, ROWS, exactly, place};
use crate::laws::sink::{LIMIT, drive};

/// Transactions until a cut that was asked for has come.
const TRIES: i64 = 50;
/// The deadline of a transaction over a line that is broken.
const SHORT: Duration = Duration::from_secs(2);

/// Law: a connection that is cut while rows leave, while the end is asked for or while answers come, loses nothing, doubles nothing,
/// and is no row's fault: what is read back afterwards says whether the transaction came in.
pub async fn a_connection_cut_in_the_middle_loses_and_doubles_nothing(bed: &dyn LogBed) {
    let topic = bed.topic().await;
    let owner = Owner::new(bed);
    owner.resume().await;
    let (mut all, mut n, mut before) = (Vec::new(), 0, None);
    for (sends, bytes) in [(true, 1), (true, 1_500), (false, 1), (false, 150)] {
        let cuts = bed.line().cuts();
        if sends {
            bed.line().cut_sends(bytes);
        } else {
            bed.line().cut_answers(bytes);
        }
        let last = n + TRIES;
        while bed.line().cuts() == cuts {
            assert!(n < last, "the line was never cut");
            n += 1;
            let rows = drive::rows(&topic, 3, n * ROWS, (n + 1) * ROWS);
            for (part, rows) in (0..).zip(rows.chunks(owner.rows_max())) {
                let next = place(n * ROWS + part);
                owner.deliver(rows, next, before, LIMIT).await;
                before = Some(next);
            }
            all.extend(rows);
        }
    }
    exactly(&bed.committed(&topic).await, &all);
    assert_eq!(Owner::new(bed).resume().await, before);
}

/// Law: of transactions that were handed over since the place was read none is in the log without those before it, whatever
/// became of them.
pub async fn nothing_comes_in_without_what_was_handed_over_before_it(bed: &dyn LogBed) {
    let topic = bed.topic().await;
    let owner = Owner::new(bed);
    owner.resume().await;
    let rows = drive::rows(&topic, 2, 1, 7);
    owner.committed(&rows[..2], place(1)).await;
    bed.line().sever();
    let lost = owner.commit(&rows[2..4], place(2), SHORT).await;
    assert!(matches!(lost, TransactionEnd::Unknown(_)), "{lost:?}");
    bed.line().restore();
    // Without asking for the place before.
    let behind = owner.commit(&rows[4..], place(3), LIMIT).await;
    let found = owner.resume().await;
    let known = matches!(behind, TransactionEnd::Committed);
    assert!(!known || found == Some(place(3)), "{found:?}");
    let there = (1..=3)
        .find(|n| found == Some(place(*n)))
        .expect("one of these places");
    exactly(&bed.committed(&topic).await, &rows[..2 * there as usize]);
}

/// Law: while the log cannot be reached nothing is known about a transaction, and that is said within its deadline; no place is told
/// that was not read. Afterwards everything goes on.
pub async fn a_log_that_cannot_be_reached_decides_nothing(bed: &dyn LogBed) {
    let topic = bed.topic().await;
    let owner = Owner::new(bed);
    owner.resume().await;
    let rows = drive::rows(&topic, 2, 1, 9);
    owner.committed(&rows[..2], place(1)).await;
    for (n, severed) in [(2, false), (3, true)] {
        let before = Some(place(n - 1));
        let part = &rows[2 * n as usize - 2..2 * n as usize];
        if severed {
            bed.line().sever();
        } else {
            bed.line().hold();
        }
        match owner.commit(part, place(n), SHORT).await {
            TransactionEnd::Unknown(error) => assert_eq!(error.class, SinkErrorClass::Away, "{error}"),
            other => panic!("nobody can know that: {other:?}"),
        }
        if severed {
            assert_eq!(owner.try_resume().await, Err(SinkErrorClass::Away));
        }
        bed.line().restore();
        if owner.resume().await == before {
            owner.deliver(part, place(n), before, LIMIT).await;
        }
        exactly(&bed.committed(&topic).await, &rows[..2 * n as usize]);
        assert_eq!(owner.resume().await, Some(place(n)));
    }
    owner.committed(&rows[6..], place(4)).await;
    exactly(&bed.committed(&topic).await, &rows);
}
