//! Rows that the log refuses.

use std::sync::Arc;

use semel_core::store::{OutboxRow, SinkErrorClass, TransactionEnd};
use tokio::time::Instant;

use super::bed::LogBed;
use super::owner::{Owner, ended, exactly, place};
use crate::laws::sink::{LIMIT, drive};

/// Law: of a transaction with a refused row nothing is in the log, nor of those behind it, also where they are handed over when it
/// has ended, until whoever does it says that it has heard: that row is blamed alone, the place stays, and then the
/// next transaction may begin.
pub async fn a_refused_row_leaves_nothing_of_its_transaction(bed: &dyn LogBed) {
    let topic = bed.topic().await;
    if let Some(bad) = bed.refused(drive::event(3, &topic, "k")) {
        refused(bed, &topic, drive::row(3, bad)).await;
    }
}

/// Law: a row that is too large is refused before it is sent, or as any other row that is refused.
pub async fn an_oversized_row_hurts_no_neighbour(bed: &dyn LogBed) {
    let topic = bed.topic().await;
    let Some(large) = bed.oversized(drive::event(3, &topic, "k")) else {
        return;
    };
    if Owner::new(bed).takes(&large) {
        refused(bed, &topic, drive::row(3, large)).await;
    }
}

async fn refused(bed: &dyn LogBed, topic: &str, bad: Arc<OutboxRow>) {
    let owner = Owner::new(bed);
    owner.resume().await;
    let good = |n| drive::row(n, drive::event(n, topic, "k"));
    let before = [good(1)];
    owner.committed(&before, place(1)).await;
    let (rows, behind) = ([good(2), bad, good(4)], [good(5)]);
    let until = Instant::now() + LIMIT;
    let unknown = loop {
        let first = owner.hand_over(&rows, place(2), LIMIT);
        let second = (owner.ahead() > 1).then(|| owner.hand_over(&behind, place(3), LIMIT));
        let first = ended(rows.len(), first, LIMIT).await;
        let mut unknown = false;
        if let Some(second) = second {
            match ended(behind.len(), second, LIMIT).await {
                TransactionEnd::Committed => panic!("what is behind it came in without it"),
                TransactionEnd::Aborted(errors) => {
                    assert_eq!(errors[0].class, SinkErrorClass::HeldBack, "{:?}", errors[0]);
                }
                TransactionEnd::Unknown(_) => unknown = true,
            }
        }
        match first {
            TransactionEnd::Committed => panic!("with a row that is refused"),
            TransactionEnd::Aborted(errors) => {
                let classes: Vec<_> = errors.iter().map(|error| error.class).collect();
                let held_back = SinkErrorClass::HeldBack;
                assert_eq!(classes, [held_back, SinkErrorClass::Message, held_back]);
                break unknown;
            }
            // It may have to find out which row it was.
            TransactionEnd::Unknown(error) => {
                assert_ne!(error.class, SinkErrorClass::Message, "{error}");
                assert_eq!(owner.resume().await, Some(place(1)), "nothing of it came in");
            }
        }
        assert!(Instant::now() < until, "it is never known which row is refused");
    };
    let late = owner.commit(&behind, place(3), LIMIT).await;
    assert!(
        !matches!(late, TransactionEnd::Committed),
        "it was on its way when the one before was refused"
    );
    exactly(&bed.committed(topic).await, &before);
    if unknown || matches!(late, TransactionEnd::Unknown(_)) {
        assert_eq!(owner.resume().await, Some(place(1)));
    } else {
        owner.go_on();
    }
    let [second, _, fourth] = rows;
    let [fifth] = behind;
    let after = [second, fourth, fifth];
    owner.committed(&after, place(2)).await;
    exactly(
        &bed.committed(topic).await,
        &[before.to_vec(), after.to_vec()].concat(),
    );
    assert_eq!(owner.resume().await, Some(place(2)));
}
