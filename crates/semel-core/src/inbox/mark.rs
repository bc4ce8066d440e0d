//! Marks: which ids of a batch are new.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use bytes::Bytes;

use crate::key::derive;
use crate::limits::{self, LimitExceeded};

/// Whether a message is to be handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mark {
    /// Never seen in this scope: handle it, in the same transaction.
    New,
    /// Seen before, or earlier in this batch: leave it, and acknowledge it.
    Duplicate,
}

/// What a store writes for a batch of ids: each id once, sorted, so that two batches with the same ids in another
/// order cannot deadlock.
///
/// ```
/// use bytes::Bytes;
/// use semel_core::inbox::{Mark, MarkPlan};
/// let ids: Vec<Bytes> = ["b", "a", "b"].iter().map(|id| Bytes::from_static(id.as_bytes())).collect();
/// let plan = MarkPlan::new(&ids)?;
/// assert_eq!(plan.distinct(), [Bytes::from("a"), Bytes::from("b")]);
/// // The store found "b" new and "a" there already:
/// assert_eq!(plan.answer([Bytes::from("b")]), [Mark::New, Mark::Duplicate, Mark::Duplicate]);
/// # Ok::<(), semel_core::limits::LimitExceeded>(())
/// ```
#[derive(Debug, Clone)]
pub struct MarkPlan<'a> {
    asked: &'a [Bytes],
    distinct: Vec<Bytes>,
}

impl<'a> MarkPlan<'a> {
    /// A plan for these ids, in the order of the messages.
    ///
    /// # Errors
    /// An id that is empty or longer than [`limits::KEY_ID_BYTES_MAX`]; more than [`limits::BATCH_ITEMS_MAX`] ids.
    pub fn new(asked: &'a [Bytes]) -> Result<Self, LimitExceeded> {
        limits::check(
            "inbox batch",
            "items",
            asked.len() as u64,
            0,
            limits::BATCH_ITEMS_MAX as u64,
            "mark fewer ids at a time",
        )?;
        asked.iter().try_for_each(|id| check_id(id))?;
        let distinct: BTreeSet<Bytes> = asked.iter().cloned().collect();
        Ok(Self {
            asked,
            distinct: distinct.into_iter().collect(),
        })
    }

    /// Each id once, sorted.
    #[must_use]
    pub fn distinct(&self) -> &[Bytes] {
        &self.distinct
    }

    /// One mark per message, in the order asked, from the ids that the store has just inserted. Of an id that stands
    /// twice in the batch only the first is new.
    #[must_use]
    pub fn answer(&self, inserted: impl IntoIterator<Item = Bytes>) -> Vec<Mark> {
        let mut fresh: HashSet<Bytes> = inserted.into_iter().collect();
        self.asked
            .iter()
            .map(|id| {
                if fresh.remove(id) {
                    Mark::New
                } else {
                    Mark::Duplicate
                }
            })
            .collect()
    }
}

/// Refuses an id that no store can keep.
///
/// # Errors
/// Empty, or longer than [`limits::KEY_ID_BYTES_MAX`].
pub fn check_id(id: &[u8]) -> Result<(), LimitExceeded> {
    limits::check(
        "message id",
        "bytes",
        id.len() as u64,
        1,
        limits::KEY_ID_BYTES_MAX as u64,
        "send a shorter id, or use its SHA-256",
    )
}

/// The name of a CloudEvent for an inbox: its id, which is unique only within its source, with that source. The id comes
/// first, so that ids that grow stay kind to an index. What is too long, or holds a zero byte, goes as its SHA-256.
#[must_use]
pub fn event_id(source: &[u8], id: &[u8]) -> Bytes {
    let length = id.len() + 1 + source.len();
    if length > limits::KEY_ID_BYTES_MAX || id.contains(&0) {
        return Bytes::copy_from_slice(&derive(&[source, id]));
    }
    let mut name = Vec::with_capacity(length);
    name.extend_from_slice(id);
    name.push(0);
    name.extend_from_slice(source);
    name.into()
}

/// A retention in whole milliseconds.
///
/// # Errors
/// Zero, or longer than [`limits::RETENTION_MS_MAX`].
pub fn retention_ms(retention: Duration) -> Result<i64, LimitExceeded> {
    let ms = u64::try_from(retention.as_millis()).unwrap_or(u64::MAX);
    limits::check(
        "inbox retention",
        "ms",
        ms,
        1,
        limits::RETENTION_MS_MAX as u64,
        "keep marks longer than the sender may redeliver, and at most 400 days",
    )?;
    Ok(i64::try_from(ms).unwrap_or(limits::RETENTION_MS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids(ids: &[&'static str]) -> Vec<Bytes> {
        ids.iter().map(|id| Bytes::from_static(id.as_bytes())).collect()
    }

    #[test]
    fn an_id_that_stands_twice_in_a_batch_is_new_once() {
        let asked = ids(&["x", "y", "x", "x"]);
        let plan = MarkPlan::new(&asked).unwrap();
        assert_eq!(plan.distinct(), ids(&["x", "y"]));
        assert_eq!(
            plan.answer(ids(&["x", "y"])),
            [Mark::New, Mark::New, Mark::Duplicate, Mark::Duplicate]
        );
    }

    #[test]
    fn ids_that_no_store_can_keep_are_refused_before_anything_is_written() {
        assert!(MarkPlan::new(&ids(&["ok", ""])).is_err());
        assert!(MarkPlan::new(&[Bytes::from(vec![0; 256])]).is_err());
        let many = vec![Bytes::from_static(b"x"); limits::BATCH_ITEMS_MAX + 1];
        let error = MarkPlan::new(&many).unwrap_err().to_string();
        assert!(error.contains("1001 items"), "{error}");
    }

    #[test]
    fn no_retention_is_no_dedup_and_is_refused() {
        assert!(retention_ms(Duration::ZERO).is_err());
        assert_eq!(retention_ms(Duration::from_secs(1)).unwrap(), 1_000);
        assert!(retention_ms(Duration::MAX).is_err());
    }

    #[test]
    fn events_of_other_sources_have_other_names() {
        let names = [
            event_id(b"/a", b"1"),
            event_id(b"/b", b"1"),
            event_id(b"", b"1"),
            event_id(b"b\0c", b"a"),
            event_id(b"c", b"a\0b"),
            event_id(&[7; 300], b"1"),
            event_id(&[7; 301], b"1"),
        ];
        for (at, name) in names.iter().enumerate() {
            check_id(name).unwrap();
            assert!(!names[..at].contains(name), "{at}");
        }
    }

    proptest! {
        /// Answers go to the right messages: 99 new among 100 are those 99.
        #[test]
        fn as_many_messages_are_new_as_ids_were_inserted(
            asked in prop::collection::vec(0_u8..20, 0..60),
            seen in prop::collection::hash_set(0_u8..20, 0..20),
        ) {
            let asked: Vec<Bytes> = asked.iter().map(|n| Bytes::copy_from_slice(&[*n])).collect();
            let plan = MarkPlan::new(&asked).unwrap();
            let inserted: Vec<Bytes> =
                plan.distinct().iter().filter(|id| !seen.contains(&id[0])).cloned().collect();
            let marks = plan.answer(inserted.clone());
            prop_assert_eq!(marks.iter().filter(|m| **m == Mark::New).count(), inserted.len());
            for (at, mark) in marks.iter().enumerate() {
                let first = !asked[..at].contains(&asked[at]);
                prop_assert_eq!(*mark == Mark::New, first && !seen.contains(&asked[at][0]));
            }
        }
    }
}
