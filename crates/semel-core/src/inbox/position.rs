//! Positions: up to where a partition has been read, and who may say so.
//!
//! A position is `(next offset, epoch, owner)`. Each assignment of a partition draws a new epoch and a random owner
//! nonce; each advance compares both and the offset it started from (rules O11, I3). The broker's own generation is no
//! such number: a static member that rejoins keeps it.

use uuid::Uuid;

use crate::claim::Nonce;
use crate::limits::{self, LimitExceeded};

/// Whose position: a consumer group and a partition of one incarnation of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PositionKey {
    /// The consumer group: 1 to [`limits::SCOPE_BYTES_MAX`] bytes.
    pub group: String,
    /// The topic's id: a topic that was deleted and made again under its old name has another one.
    pub topic_id: Uuid,
    /// The partition.
    pub partition: i32,
}

impl PositionKey {
    /// Refuses what no store can keep.
    ///
    /// # Errors
    /// A group name that is empty or too long.
    pub fn check(&self) -> Result<(), LimitExceeded> {
        limits::check(
            "consumer group",
            "bytes",
            self.group.len() as u64,
            1,
            limits::SCOPE_BYTES_MAX as u64,
            "use a shorter group name",
        )
    }
}

/// Up to where a partition has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The offset to read next: the consumer's own position, which counts control records (rule I1).
    pub next_offset: i64,
    /// The assignment's number; only grows.
    pub epoch: i64,
    /// The assignment's random bits: epochs alone can be equal after an asynchronous fail-over (rule O11).
    pub owner: Nonce,
}

/// A wish to own a partition's position from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignPosition {
    /// Which.
    pub key: PositionKey,
    /// The topic's name, for people.
    pub topic: String,
    /// Fresh random bits of this assignment.
    pub owner: Nonce,
    /// Where to begin when nothing is stored.
    pub initial: i64,
}

/// A wish to move a position, in the transaction that holds the effects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdvancePosition {
    /// Which.
    pub key: PositionKey,
    /// The assignment's epoch.
    pub epoch: i64,
    /// The assignment's owner.
    pub owner: Nonce,
    /// The stored position this batch began at.
    pub expected: i64,
    /// The new one; not smaller.
    pub next: i64,
}

/// The position after an assignment: the offset stays, every earlier owner is stale.
#[must_use]
pub const fn assign(stored: Option<Position>, wish: &AssignPosition) -> Position {
    let (next_offset, epoch) = match stored {
        Some(position) => (position.next_offset, position.epoch),
        None => (wish.initial, 0),
    };
    Position {
        next_offset,
        epoch: epoch + 1,
        owner: wish.owner,
    }
}

/// The position after an advance; `None` when the partition is not this owner's any more, or not where the batch
/// began: then the whole transaction is rolled back.
#[must_use]
pub fn advance(stored: Option<Position>, wish: &AdvancePosition) -> Option<Position> {
    let stored = stored?;
    let mine = stored.epoch == wish.epoch
        && stored.owner == wish.owner
        && stored.next_offset == wish.expected
        && wish.next >= wish.expected;
    mine.then_some(Position {
        next_offset: wish.next,
        ..stored
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> PositionKey {
        PositionKey {
            group: "g".to_owned(),
            topic_id: Uuid::from_u128(1),
            partition: 0,
        }
    }

    fn wish(owner: u8) -> AssignPosition {
        AssignPosition {
            key: key(),
            topic: "t".to_owned(),
            owner: Nonce([owner; 16]),
            initial: 5,
        }
    }

    fn step(from: Position, expected: i64, next: i64) -> AdvancePosition {
        AdvancePosition {
            key: key(),
            epoch: from.epoch,
            owner: from.owner,
            expected,
            next,
        }
    }

    #[test]
    fn the_first_assignment_begins_where_it_was_told_and_later_ones_where_the_last_stopped() {
        let first = assign(None, &wish(1));
        assert_eq!((first.next_offset, first.epoch), (5, 1));
        let moved = advance(Some(first), &step(first, 5, 9)).unwrap();
        let second = assign(Some(moved), &wish(2));
        assert_eq!((second.next_offset, second.epoch), (9, 2));
    }

    #[test]
    fn a_stale_owner_moves_nothing() {
        let slow = assign(None, &wish(1));
        let fast = assign(Some(slow), &wish(2));
        assert_eq!(advance(Some(fast), &step(slow, 5, 9)), None);
        // Rule O11: equal epochs after an asynchronous fail-over, other nonce.
        let twin = Position {
            owner: Nonce([9; 16]),
            ..fast
        };
        assert_eq!(advance(Some(twin), &step(fast, 5, 9)), None);
    }

    #[test]
    fn an_advance_from_another_place_or_backwards_moves_nothing() {
        let mine = assign(None, &wish(1));
        assert_eq!(advance(Some(mine), &step(mine, 4, 9)), None);
        assert_eq!(advance(Some(mine), &step(mine, 5, 4)), None);
        assert_eq!(advance(None, &step(mine, 5, 6)), None);
        assert!(
            advance(Some(mine), &step(mine, 5, 5)).is_some(),
            "an idle partition may stay"
        );
    }

    proptest! {
        /// However owners interleave: the position never goes back, and what is applied are whole steps end to end.
        #[test]
        fn applied_advances_are_end_to_end(ops in prop::collection::vec((0_u8..3, any::<bool>(), 0_i64..4), 1..60)) {
            let mut stored: Option<Position> = None;
            let mut held: [Option<Position>; 3] = [None; 3];
            let mut end = None;
            for (owner, take, by) in ops {
                let slot = usize::from(owner);
                if take {
                    let position = assign(stored, &wish(owner));
                    prop_assert!(stored.is_none_or(|s| s.epoch < position.epoch));
                    stored = Some(position);
                    held[slot] = stored;
                    end.get_or_insert(position.next_offset);
                } else if let Some(mine) = held[slot] {
                    let wish = step(mine, mine.next_offset, mine.next_offset + by);
                    if let Some(next) = advance(stored, &wish) {
                        prop_assert_eq!(end, Some(wish.expected));
                        end = Some(next.next_offset);
                        stored = Some(next);
                        held[slot] = stored;
                    }
                }
            }
        }
    }
}
