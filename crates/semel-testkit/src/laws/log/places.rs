//! The place in the log, and whose it is.

use std::collections::VecDeque;
use std::time::Duration;

use semel_core::Nonce;
use semel_core::relay::LogPlace;
use semel_core::store::TransactionEnd;

use super::bed::LogBed;
use super::owner::{Owner, ROWS, ended, exactly, place};
use crate::laws::sink::{LIMIT, drive};

/// Law: a shard that was never published has no place. Then it is that of the last transaction, to the byte, for whoever asks; one
/// without rows moves it, too.
pub async fn the_place_of_the_last_transaction_is_read_back(bed: &dyn LogBed) {
    let topic = bed.topic().await;
    let mut owner = Owner::new(bed);
    assert_eq!(owner.resume().await, None);
    let rows = drive::rows(&topic, 2, 1, 4);
    let far = LogPlace {
        log: Nonce([0xff; 16]),
        batch_no: i64::MAX,
        batch: Nonce([0; 16]),
        last_id: i64::MAX,
        finished: true,
    };
    for (rows, place) in [(&rows[..1], place(1)), (&[], place(2)), (&rows[1..], far)] {
        owner.committed(rows, place).await;
        assert_eq!(owner.resume().await, Some(place), "for the one that wrote it");
        owner = Owner::new(bed);
        assert_eq!(owner.resume().await, Some(place), "for the next one");
    }
    exactly(&bed.committed(&topic).await, &rows);
}

/// Law: transactions that are handed over while others are open are there in that order, each row once.
pub async fn transactions_are_there_in_the_order_of_their_handing_over_and_once(bed: &dyn LogBed) {
    let topic = bed.topic().await;
    let owner = Owner::new(bed);
    owner.resume().await;
    let rows = drive::rows(&topic, 3, 1, 1 + 7 * ROWS);
    let mut open = VecDeque::new();
    let mut ends = Vec::new();
    let mut last = None;
    for (n, part) in (1..).zip(rows.chunks(owner.rows_max())) {
        if open.len() == owner.ahead()
            && let Some((count, future)) = open.pop_front()
        {
            ends.push(ended(count, future, LIMIT).await);
        }
        last = Some(place(n));
        open.push_back((part.len(), owner.hand_over(part, place(n), LIMIT)));
    }
    for (count, future) in open {
        ends.push(ended(count, future, LIMIT).await);
    }
    assert!(
        ends.iter().all(|end| matches!(end, TransactionEnd::Committed)),
        "{ends:?}"
    );
    exactly(&bed.committed(&topic).await, &rows);
    assert_eq!(owner.resume().await, last);
}

/// Law: who has not asked for the place, or has given the shard back, commits nothing.
pub async fn nothing_is_committed_before_the_place_was_read(bed: &dyn LogBed) {
    let topic = bed.topic().await;
    let owner = Owner::new(bed);
    let rows = drive::rows(&topic, 1, 1, 3);
    for n in 1..=2 {
        let end = owner.commit(&rows, place(n), LIMIT).await;
        assert!(matches!(end, TransactionEnd::Unknown(_)), "{end:?}");
        assert_eq!(owner.resume().await, None);
        owner.close();
    }
    exactly(&bed.committed(&topic).await, &[]);
    owner.resume().await;
    owner.committed(&rows, place(3)).await;
    exactly(&bed.committed(&topic).await, &rows);
}

/// Law: who takes over reads how far the one before has got, and nothing that the one before hands over afterwards comes in: it
/// is told that it does not know, and not that it is done.
pub async fn who_takes_over_fences_the_one_before(bed: &dyn LogBed) {
    let topic = bed.topic().await;
    let (first, second) = (Owner::new(bed), Owner::new(bed));
    first.resume().await;
    let rows = drive::rows(&topic, 2, 1, 7);
    first.committed(&rows[..2], place(1)).await;
    assert_eq!(second.resume().await, Some(place(1)));
    let end = first.commit(&rows[2..4], place(2), LIMIT).await;
    assert!(matches!(end, TransactionEnd::Unknown(_)), "a zombie: {end:?}");
    second.committed(&rows[2..4], place(2)).await;
    exactly(&bed.committed(&topic).await, &rows[..4]);
    // And back: the one that was fenced takes over in its turn.
    assert_eq!(first.resume().await, Some(place(2)));
    let end = second.commit(&rows[4..], place(3), LIMIT).await;
    assert!(matches!(end, TransactionEnd::Unknown(_)), "a zombie: {end:?}");
    first.committed(&rows[4..], place(3)).await;
    exactly(&bed.committed(&topic).await, &rows);
}

/// Law: a transaction of which nobody waits for the end comes in or does not; when the place has been read by another, that is
/// decided for good.
pub async fn what_the_one_before_left_open_does_not_come_in_later(bed: &dyn LogBed) {
    let topic = bed.topic().await;
    let first = Owner::new(bed);
    first.resume().await;
    let rows = drive::rows(&topic, 2, 1, 9);
    first.committed(&rows[..3], place(1)).await;
    bed.line().hold();
    let left = first.hand_over(&rows[3..6], place(2), LIMIT);
    assert!(
        tokio::time::timeout(Duration::from_millis(50), left)
            .await
            .is_err(),
        "nothing gets through"
    );
    bed.line().restore();
    let second = Owner::new(bed);
    let found = second.resume().await;
    let mut there = rows[..3].to_vec();
    if found == Some(place(2)) {
        there.extend_from_slice(&rows[3..6]);
    } else {
        assert_eq!(found, Some(place(1)));
    }
    exactly(&bed.committed(&topic).await, &there);
    second.committed(&rows[6..], place(3)).await;
    there.extend_from_slice(&rows[6..]);
    assert_eq!(Owner::new(bed).resume().await, Some(place(3)));
    exactly(&bed.committed(&topic).await, &there);
}

/// Law: shards are each other's business in nothing.
pub async fn a_shard_that_is_taken_over_disturbs_no_other(bed: &dyn LogBed) {
    let topic = bed.topic().await;
    let (here, there) = (Owner::of(bed, 0), Owner::of(bed, 1));
    assert_eq!(here.resume().await, None);
    let rows = drive::rows(&topic, 4, 1, 7);
    here.committed(&rows[..2], place(1)).await;
    assert_eq!(
        there.resume().await,
        None,
        "the place of another shard is not its own"
    );
    there.committed(&rows[2..4], place(5)).await;
    assert_eq!(Owner::of(bed, 1).resume().await, Some(place(5)));
    here.committed(&rows[4..], place(2)).await;
    assert_eq!(here.resume().await, Some(place(2)));
    let found = bed.committed(&topic).await;
    assert_eq!(found.len(), rows.len());
}
