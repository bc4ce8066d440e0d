//! What the operator's desk does the same way on every store: lines of the log, how much one taking takes, copies of a
//! replay.

use bytes::Bytes;
use uuid::Uuid;

use super::{
    DeskChange, DeskEntry, DeskRequest, DeskRow, PageRow, PageSize, REPLAY_HEADER, REPLAY_OF_HEADER,
    REPLAY_ROWS_MAX, Replay, Replayed, ReplayedRow, Taken, Wish,
};
use crate::event::Event;
use crate::host::{Clock, Timestamp, uuid_v7};
use crate::limits::LimitExceeded;
use crate::relay::event_json;

/// How the header of a replayed event begins where headers are stored as JSON: copies are not copied once more.
pub const REPLAY_MARK: &str = "[\"semel-replay\",";

impl DeskEntry {
    /// A line that is about no row. Its number and its time are the store's.
    ///
    /// ```
    /// let entry = semel_core::store::DeskEntry::about("orders", "rescan", "ann", "a restore");
    /// assert_eq!((entry.stream.as_str(), entry.row), ("orders", 0));
    /// ```
    #[must_use]
    pub fn about(stream: &str, action: &str, by: &str, why: &str) -> Self {
        Self {
            entry: 0,
            at: Timestamp(0),
            by: by.to_owned(),
            why: why.to_owned(),
            action: action.to_owned(),
            stream: stream.to_owned(),
            row: 0,
            event_id: Uuid::nil(),
            before: None,
        }
    }

    /// The line of a change, with the event as it was unless the change leaves it as it is.
    #[must_use]
    pub fn of(request: &DeskRequest, old: &Event) -> Self {
        let keep = request.change != DeskChange::Ask(Wish::Retry);
        Self {
            row: request.row,
            event_id: old.id,
            before: keep.then(|| event_json(old).to_string()),
            ..Self::about(&old.stream, request.change.as_str(), &request.by, &request.why)
        }
    }
}

/// Fills a [`Taken`] up to a size.
#[derive(Debug)]
pub struct Taking {
    taken: Taken,
    size: PageSize,
    bytes: u64,
}

impl Taking {
    /// Of this size: one row at least, and no more than it says.
    #[must_use]
    pub fn new(size: PageSize) -> Self {
        Self {
            taken: Taken::default(),
            size,
            bytes: 0,
        }
    }

    /// Adds the next row, counted as taken if it has a mark; `false` when there is no room for it.
    pub fn add(&mut self, mut row: DeskRow) -> bool {
        let Self { taken, size, bytes } = self;
        *bytes += row.stored.row.row.event.data.as_ref().map_or(0, Bytes::len) as u64;
        if taken.rows.len() >= size.rows as usize || (*bytes > size.bytes && !taken.rows.is_empty()) {
            taken.more = true;
            return false;
        }
        row.taken += u32::from(row.asked.is_some());
        taken.rows.push(row);
        true
    }

    /// What was taken, and the numbers of the rows whose count is to be written.
    #[must_use]
    pub fn done(self) -> (Taken, Vec<i64>) {
        let marked = self.taken.rows.iter().filter(|row| row.asked.is_some());
        let marked = marked.map(|row| row.stored.exception.row).collect();
        (self.taken, marked)
    }
}

impl Replay {
    /// Rows that one call copies. One more is looked for, to know whether there are more.
    #[must_use]
    pub fn rows_max(&self) -> usize {
        self.limit.min(REPLAY_ROWS_MAX) as usize
    }

    /// The answer, and the copies with the numbers of the rows that they repeat: none in a dry run. `found` is what
    /// fits, in order, with one row more than [`Replay::rows_max`] where there are more.
    ///
    /// # Errors
    /// A copy that is too large because of the headers it gets.
    pub fn copies(
        &self,
        found: Vec<PageRow>,
        clock: &dyn Clock,
    ) -> Result<(Replayed, Vec<(i64, Event)>), LimitExceeded> {
        let max = self.rows_max();
        let mut replayed = Replayed {
            rows: Vec::new(),
            more: found.len() > max,
        };
        let mut copies = Vec::new();
        // What cannot be read was never sent.
        for row in found.into_iter().take(max).filter(|row| row.barred.is_none()) {
            let row = row.row;
            let event_id = row.event.id;
            let mut copy = row.event;
            if self.fresh_ids {
                copy.id = uuid_v7(clock);
                let of = event_id.to_string();
                copy.headers.push((REPLAY_OF_HEADER.to_owned(), of.into()));
            }
            let id = self.id.to_string();
            copy.headers.push((REPLAY_HEADER.to_owned(), id.into()));
            copy.check()?;
            replayed.rows.push(ReplayedRow {
                row: row.row,
                event_id,
                copy_id: if self.dry_run { Uuid::nil() } else { copy.id },
                topic: copy.topic.clone(),
                key: copy.key.clone(),
                created_at: row.created_at,
            });
            if !self.dry_run {
                copies.push((row.row, copy));
            }
        }
        Ok((replayed, copies))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::SystemClock;
    use crate::relay::ShardId;
    use crate::store::{Exception, ExceptionKind, OutboxRow, StoredException};

    fn page_row(row: i64, data: &'static str) -> PageRow {
        PageRow {
            row: OutboxRow {
                row,
                created_at: Timestamp(7),
                batch_no: 0,
                event: Event::new(Uuid::from_u128(row.unsigned_abs().into()), "t", "e").with_data("", data),
            },
            barred: None,
        }
    }

    fn desk_row(row: i64, data: &'static str, asked: Option<Wish>) -> DeskRow {
        let page_row = page_row(row, data);
        DeskRow {
            stored: StoredException {
                shard: ShardId {
                    stream: "default".to_owned(),
                    index: 0,
                },
                exception: Exception {
                    row,
                    event_id: page_row.row.event.id,
                    kind: ExceptionKind::Skipped,
                    attempts: 1,
                    reason: String::new(),
                },
                since: Timestamp(0),
                row: page_row,
            },
            asked,
            edits: 0,
            taken: 0,
        }
    }

    #[test]
    fn a_taking_has_one_row_at_least_and_no_more_than_its_size() {
        let size = |rows, bytes| PageSize { rows, bytes };
        for (size, rows, more) in [
            (size(9, 1_000), 3, false),
            (size(2, 1_000), 2, true),
            (size(9, 10), 2, true),
            (size(9, 1), 1, true),
        ] {
            let mut taking = Taking::new(size);
            for row in 1..=3 {
                if !taking.add(desk_row(row, "12345", (row != 2).then_some(Wish::Retry))) {
                    break;
                }
            }
            let (taken, marked) = taking.done();
            assert_eq!((taken.rows.len(), taken.more), (rows, more), "{size:?}");
            let wanted: Vec<i64> = [1, 3].into_iter().filter(|row| *row <= rows as i64).collect();
            assert_eq!(marked, wanted);
            assert!(
                taken
                    .rows
                    .iter()
                    .all(|row| row.taken == u32::from(row.asked.is_some()))
            );
        }
    }

    #[test]
    fn copies_say_what_they_repeat_and_a_dry_run_has_none() {
        let mut replay = Replay {
            stream: "default".to_owned(),
            from: None,
            to: None,
            key: None,
            topic: None,
            after: 0,
            upto: 9,
            limit: 2,
            id: Uuid::from_u128(99),
            fresh_ids: true,
            dry_run: false,
        };
        let mut found = vec![page_row(1, ""), page_row(2, ""), page_row(3, "")];
        found[1].barred = Some("no".to_owned());
        let (replayed, copies) = replay.copies(found.clone(), &SystemClock).unwrap();
        assert!(replayed.more && replayed.rows.len() == 1 && copies.len() == 1);
        let (row, copy) = &copies[0];
        assert_eq!((*row, replayed.rows[0].copy_id), (1, copy.id));
        assert_ne!(copy.id, found[0].row.event.id);
        let named = |name: &str, id: Uuid| (name.to_owned(), Bytes::from(id.to_string()));
        assert_eq!(
            copy.headers,
            [
                named(REPLAY_OF_HEADER, found[0].row.event.id),
                named(REPLAY_HEADER, replay.id)
            ]
        );
        assert!(REPLAY_MARK.contains(&format!("{REPLAY_HEADER:?}")));
        replay.dry_run = true;
        let (replayed, copies) = replay.copies(found, &SystemClock).unwrap();
        assert!(copies.is_empty() && replayed.rows[0].copy_id.is_nil());
    }
}
