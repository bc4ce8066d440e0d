//! Deleting published events one by one, without going over those of others each time.
//!
//! A walk goes over a bounded number of rows, in the order of their transactions, and begins where the last one found the
//! first row that has to stay: streams that keep theirs for long are passed once. In that order nothing can appear behind
//! the walk's back up to the oldest transaction that was open in a saved `prev`, so the place is never remembered beyond it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use semel_core::StoreError;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row as _};

use crate::db::Postgres;
use crate::error::autocommit_failed;
use crate::gate::query;

/// Rows of one walk. With many more the server would take its statement for dear, and compile it.
const WALK_ROWS: i64 = 10_000;
/// Walks of one call at most.
const WALKS_MAX: u32 = 20;
/// Begins at the beginning again after so many calls: whatever was done to the table by hand is found then.
const CALLS_MAX: u32 = 1_000;

/// A row's transaction and number.
type At = (u64, i64);

/// How far the cleaner of a stream has got in a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Place {
    /// Of the rows up to here none of this stream is left.
    from: At,
    /// Where the next walk begins: behind rows that have to stay, too.
    at: At,
    /// Whether there is one of those between the two.
    kept: bool,
    calls: u32,
}

/// What one walk found.
#[derive(Debug, Default)]
struct Walk {
    deleted: u64,
    walked: i64,
    /// Whether a row was to be deleted.
    due: bool,
    /// Whether a row has to stay because of its age; most of those behind it are younger still.
    young: bool,
    last: Option<At>,
    kept: Option<At>,
    /// The oldest transaction that was open in a saved `prev`; `None` without shards.
    low: Option<u64>,
    /// Where transactions have got to.
    high: u64,
}

impl Place {
    /// Takes note of a walk; whether there is something to be found behind it.
    fn step(&mut self, walk: &Walk) -> bool {
        let (Some(low), true) = (walk.low, walk.high >= self.at.0) else {
            // No shard, or other transactions than those remembered: a restore.
            *self = Self::default();
            return false;
        };
        if !self.kept {
            let before = walk.kept.map(|(xid, id)| (xid, id.saturating_sub(1)));
            let reached = before.or(walk.last).unwrap_or(self.from);
            self.from = self.from.max(reached.min((low, -1)));
            self.kept = walk.kept.is_some();
        }
        if walk.walked < WALK_ROWS || (walk.young && !walk.due) {
            self.at = self.from;
            self.kept = false;
            return false;
        }
        self.at = walk.last.unwrap_or(self.at);
        true
    }
}

/// The places of the cleaners of this process.
#[derive(Clone, Default)]
pub(crate) struct CleanPlaces(Arc<Mutex<HashMap<(String, String), Place>>>);

impl CleanPlaces {
    fn get(&self, table: &str, stream: &str) -> Place {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.get(&(table.to_owned(), stream.to_owned()));
        found
            .copied()
            .filter(|place| place.calls < CALLS_MAX)
            .unwrap_or_default()
    }

    fn set(&self, table: &str, stream: &str, place: Place) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert((table.to_owned(), stream.to_owned()), place);
    }
}

impl Postgres {
    /// Deletes from one table. Of partitions that are soon gone no place is remembered.
    pub(super) async fn clean_table(
        &self,
        table: &str,
        remember: bool,
        stream: &str,
        keep_ms: i64,
        limit: u32,
    ) -> Result<u64, StoreError> {
        let mut place = if remember {
            self.clean_places.get(table, stream)
        } else {
            Place::default()
        };
        place.calls += 1;
        let mut deleted = 0;
        for _ in 0..WALKS_MAX {
            let left = u64::from(limit).saturating_sub(deleted);
            let walk = self.walk(table, stream, keep_ms, left, place.at).await?;
            deleted += walk.deleted;
            if deleted >= u64::from(limit) || !place.step(&walk) {
                break;
            }
        }
        if remember {
            self.clean_places.set(table, stream, place);
        }
        Ok(deleted)
    }

    /// One statement, so what it deletes is what it has just seen to be settled; a cleaner beside it is passed by.
    async fn walk(
        &self,
        table: &str,
        stream: &str,
        keep_ms: i64,
        limit: u64,
        at: At,
    ) -> Result<Walk, StoreError> {
        let failed = |error| autocommit_failed("clean", error);
        let sql = include_str!("../sql/outbox_clean.sql").replace("{table}", table);
        let row = query(AssertSqlSafe(sql))
            .bind(keep_ms as f64)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .bind(stream)
            .bind(at.0.to_string())
            .bind(at.1)
            .bind(WALK_ROWS)
            .fetch_one(&self.gate)
            .await
            .map_err(failed)?;
        read(&row).map_err(failed)
    }
}

fn read(row: &PgRow) -> Result<Walk, sqlx::Error> {
    let xid = |column| -> Result<Option<u64>, sqlx::Error> {
        let text: Option<String> = row.try_get(column)?;
        text.map(|text| text.parse().map_err(|error| sqlx::Error::Decode(Box::new(error))))
            .transpose()
    };
    let deleted: i64 = row.try_get("deleted")?;
    Ok(Walk {
        deleted: deleted.unsigned_abs(),
        walked: row.try_get("walked")?,
        due: row.try_get("due")?,
        young: row.try_get("young")?,
        last: xid("last_xid")?.zip(row.try_get("last_id")?),
        kept: xid("kept_xid")?.zip(row.try_get("kept_id")?),
        low: xid("low")?,
        high: xid("high")?.unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(last: At, kept: Option<At>, low: u64) -> Walk {
        Walk {
            walked: WALK_ROWS,
            last: Some(last),
            kept,
            low: Some(low),
            high: 1_000,
            ..Walk::default()
        }
    }

    #[test]
    fn rows_of_others_are_passed_once_and_what_has_to_stay_is_looked_at_again() {
        let mut place = Place::default();
        assert!(place.step(&walk((50, 7), None, 900)), "there may be more");
        assert_eq!((place.from, place.at), ((50, 7), (50, 7)));
        assert!(place.step(&walk((90, 1), Some((60, 3)), 900)));
        assert_eq!((place.from, place.at), ((60, 2), (90, 1)));
        assert!(
            place.step(&walk((95, 1), None, 900)),
            "behind it nothing is forgotten"
        );
        assert_eq!((place.from, place.at), ((60, 2), (95, 1)));
        let end = Walk {
            walked: 3,
            ..walk((97, 1), None, 900)
        };
        assert!(!place.step(&end));
        assert_eq!((place.from, place.at), ((60, 2), (60, 2)), "round again");
    }

    #[test]
    fn a_place_is_never_beyond_what_may_still_be_committed() {
        let mut place = Place::default();
        place.step(&walk((50, 7), None, 40));
        assert_eq!((place.from, place.at), ((40, -1), (50, 7)));
        place.step(&Walk {
            walked: 0,
            last: None,
            ..walk((0, 0), None, 40)
        });
        assert_eq!(place.at, (40, -1));
    }

    #[test]
    fn young_rows_end_a_walk_unless_something_was_due_among_them() {
        let mut place = Place::default();
        let young = Walk {
            young: true,
            ..walk((50, 7), Some((10, 1)), 900)
        };
        assert!(!place.step(&young));
        assert_eq!(place.at, (10, 0));
        assert!(place.step(&Walk { due: true, ..young }));
        assert_eq!(place.at, (50, 7));
    }

    #[test]
    fn after_a_restore_it_begins_at_the_beginning() {
        let mut place = Place::default();
        place.step(&walk((50, 7), None, 900));
        let restored = Walk {
            high: 20,
            ..walk((5, 1), None, 900)
        };
        assert!(!place.step(&restored));
        assert_eq!(place, Place::default());
    }
}
