//! Which rows of a call may be on their way together, for brokers that take messages one by one.
//!
//! Where a broker can refuse one message and take the next one of the same connection (a negative acknowledgement, a full
//! queue, a limit), only one row of a key may be on its way: whatever stands behind it would pass it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::store::{OutboxRow, SinkError, SinkErrorClass};

/// The rows of one call of [`Sink::publish_many`](crate::Sink::publish_many), at most one of each key on its way. Pure: the
/// sink asks what it may send next and tells what became of it.
///
/// ```
/// # use std::sync::Arc;
/// # use semel_core::relay::Waves;
/// # use semel_core::store::OutboxRow;
/// # use semel_core::{Event, Timestamp};
/// # let row = |n: i64, key: &'static str| Arc::new(OutboxRow {
/// #     row: n,
/// #     created_at: Timestamp(0),
/// #     batch_no: 0,
/// #     event: Event::new(uuid::Uuid::from_u128(7), "t", "e").with_key(key),
/// # });
/// let rows = [row(1, "a"), row(2, "a"), row(3, "b")];
/// let mut waves = Waves::new(&rows);
/// assert_eq!(waves.next(10), [0, 2]);
/// waves.settle(0, Ok(()));
/// assert_eq!(waves.next(10), [1]);
/// ```
#[derive(Debug)]
pub struct Waves {
    results: Vec<Option<Result<(), SinkError>>>,
    /// What may be sent now, in order.
    ready: VecDeque<usize>,
    /// Behind a row that is ready or on its way.
    behind: HashMap<usize, usize>,
    /// What was on its way and is to be sent again.
    again: HashSet<usize>,
}

impl Waves {
    /// Nothing of this call is on its way yet.
    #[must_use]
    pub fn new(rows: &[Arc<OutboxRow>]) -> Self {
        let mut last: HashMap<&Bytes, usize> = HashMap::new();
        let (mut ready, mut behind) = (VecDeque::new(), HashMap::new());
        for (index, row) in rows.iter().enumerate() {
            match row.event.key.as_ref().and_then(|key| last.insert(key, index)) {
                Some(before) => drop(behind.insert(before, index)),
                None => ready.push_back(index),
            }
        }
        Self {
            results: vec![None; rows.len()],
            ready,
            behind,
            again: HashSet::new(),
        }
    }

    /// What may be sent now, at most so many: each of these is then on its way until it is settled.
    pub fn next(&mut self, max: usize) -> Vec<usize> {
        self.ready.drain(..max.min(self.ready.len())).collect()
    }

    /// What became of a row. What stands behind a row that failed is held back.
    pub fn settle(&mut self, index: usize, result: Result<(), SinkError>) {
        let next = self.behind.remove(&index);
        match (&result, next) {
            (Ok(()), Some(next)) => self.ready.push_back(next),
            (Err(_), Some(next)) => self.hold_back(next, "an earlier row of its key failed"),
            (_, None) => {}
        }
        self.put(index, result);
    }

    /// A row that was on its way is to be sent again: it never arrived, or may arrive twice.
    pub fn again(&mut self, index: usize) {
        self.again.insert(index);
        self.ready.push_back(index);
    }

    fn hold_back(&mut self, first: usize, why: &str) {
        let mut held = Some(first);
        while let Some(index) = held {
            held = self.behind.remove(&index);
            self.put(index, Err(SinkError::new(SinkErrorClass::HeldBack, why)));
        }
    }

    fn put(&mut self, index: usize, result: Result<(), SinkError>) {
        if let Some(place @ None) = self.results.get_mut(index) {
            *place = Some(result);
        }
    }

    /// One result per row, in order. What was not sent was held back for this reason; a row that is still on its way, or was
    /// and should have been sent again, counts as [`Away`](SinkErrorClass::Away): it may have arrived.
    #[must_use]
    pub fn finish(mut self, why: &str) -> Vec<Result<(), SinkError>> {
        while let Some(index) = self.ready.pop_front() {
            if self.again.contains(&index) {
                let why = "it was sent, and its acknowledgement is not known";
                self.settle(index, Err(SinkError::new(SinkErrorClass::Away, why)));
            } else {
                self.hold_back(index, why);
            }
        }
        let left: Vec<usize> = self.behind.values().copied().collect();
        for index in left {
            self.put(index, Err(SinkError::new(SinkErrorClass::HeldBack, why)));
        }
        let away = || Err(SinkError::new(SinkErrorClass::Away, "it was not acknowledged"));
        self.results
            .into_iter()
            .map(|result| result.unwrap_or_else(away))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, Timestamp};
    use uuid::Uuid;

    fn rows(keys: &[&'static str]) -> Vec<Arc<OutboxRow>> {
        let row = |(n, key): (usize, &&'static str)| {
            let mut event = Event::new(Uuid::from_u128(7), "t", "e");
            event.key = (!key.is_empty()).then(|| Bytes::from_static(key.as_bytes()));
            Arc::new(OutboxRow {
                row: n as i64,
                created_at: Timestamp(0),
                batch_no: 0,
                event,
            })
        };
        keys.iter().enumerate().map(row).collect()
    }

    fn error(class: SinkErrorClass) -> Result<(), SinkError> {
        Err(SinkError::new(class, "why"))
    }

    fn classes(results: Vec<Result<(), SinkError>>) -> Vec<Option<SinkErrorClass>> {
        results
            .into_iter()
            .map(|result| result.err().map(|e| e.class))
            .collect()
    }

    #[test]
    fn one_row_of_a_key_at_a_time_and_rows_without_a_key_all_at_once() {
        let mut waves = Waves::new(&rows(&["a", "a", "", "b", "", "a"]));
        assert_eq!(waves.next(2), [0, 2]);
        assert_eq!(waves.next(9), [3, 4]);
        assert!(waves.next(9).is_empty());
        waves.settle(0, Ok(()));
        assert_eq!(waves.next(9), [1]);
        waves.settle(1, Ok(()));
        assert_eq!(waves.next(9), [5]);
        for index in 2..6 {
            waves.settle(index, Ok(()));
        }
        assert_eq!(classes(waves.finish("end")), [None; 6]);
    }

    #[test]
    fn what_stands_behind_a_failed_row_is_held_back_and_what_is_on_its_way_may_have_arrived() {
        use SinkErrorClass::{Away, HeldBack, Message};
        let mut waves = Waves::new(&rows(&["a", "a", "a", "b", "b", "c"]));
        assert_eq!(waves.next(2), [0, 3]);
        waves.settle(0, error(Message));
        assert_eq!(
            classes(waves.finish("end")),
            [
                Some(Message),
                Some(HeldBack),
                Some(HeldBack),
                Some(Away),
                Some(HeldBack),
                Some(HeldBack)
            ]
        );
    }

    #[test]
    fn a_row_that_is_sent_again_keeps_its_place_before_the_next_one_of_its_key() {
        let mut waves = Waves::new(&rows(&["a", "a"]));
        assert_eq!(waves.next(9), [0]);
        waves.again(0);
        assert_eq!(waves.next(9), [0]);
        waves.settle(0, Ok(()));
        assert_eq!(waves.next(9), [1]);
    }

    #[test]
    fn what_was_sent_once_and_could_not_be_sent_again_may_have_arrived() {
        use SinkErrorClass::{Away, HeldBack};
        let mut waves = Waves::new(&rows(&["a", "a", "b"]));
        assert_eq!(waves.next(1), [0]);
        waves.again(0);
        assert_eq!(
            classes(waves.finish("end")),
            [Some(Away), Some(HeldBack), Some(HeldBack)]
        );
    }
}
