//! Deleting published events one by one, without going over those of others each time.
//!
//! A walk goes over a bounded number of rows, in the order of their ids, and begins where the last one found the first row that
//! has to stay: streams that keep theirs for long are passed once. Ids are in the order of commits, so nothing can appear behind
//! the walk's back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use semel_core::StoreError;
use sqlx::AssertSqlSafe;

use crate::db::Sqlite;
use crate::error::classify;

/// Rows of one walk. The data of small events lies in the table's own pages, so they are read, too.
const WALK_ROWS: i64 = 1_000;
/// Walks of one call at most.
const WALKS_MAX: u32 = 200;
/// Begins at the beginning again after so many calls: whatever was done to the table by hand is found then.
const CALLS_MAX: u32 = 1_000;

/// Whether row `o` is old, of the stream, and passed by its shard's cursor. Rows of streams that nobody registered have no
/// shard, and stay.
const DUE: &str = "o.stream = ?1 AND o.created_at < ?2 AND EXISTS (SELECT 1 FROM semel_outbox_shard s
    WHERE s.stream = ?1 AND o.slot BETWEEN s.slot_first AND s.slot_last AND o.id <= s.prev)";

/// How far the cleaner of a stream has got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Of the rows up to here none of this stream is left.
    from: i64,
    /// Where the next walk begins: behind rows that have to stay, too.
    at: i64,
    /// Whether there is one of those between the two.
    kept: bool,
    calls: u32,
}

/// What one walk found.
#[derive(Debug, Clone, Copy, Default)]
struct Walk {
    walked: i64,
    last: Option<i64>,
    /// The first row that is to be deleted.
    due: Option<i64>,
    /// The first of the stream's that has to stay.
    kept: Option<i64>,
    /// Whether a row has to stay because of its age; those behind it are younger still.
    young: bool,
    /// The largest id that was ever given.
    high: i64,
}

impl Place {
    /// Takes note of a walk whose due rows are deleted; whether there is something to be found behind it.
    fn step(&mut self, walk: &Walk) -> bool {
        if walk.high < self.at {
            // Other ids than those remembered: the table was replaced.
            *self = Self::default();
            return false;
        }
        if !self.kept {
            let before = walk.kept.map(|id| id.saturating_sub(1));
            self.from = before.or(walk.last).unwrap_or(self.from).max(self.from);
            self.kept = walk.kept.is_some();
        }
        if walk.walked < WALK_ROWS || (walk.young && walk.due.is_none()) {
            self.at = self.from;
            self.kept = false;
            return false;
        }
        self.at = walk.last.unwrap_or(self.at);
        true
    }
}

/// The places of the cleaners of this process, by stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct CleanPlaces(Arc<Mutex<HashMap<String, Place>>>);

impl CleanPlaces {
    fn get(&self, stream: &str) -> Place {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.get(stream).copied();
        found.filter(|place| place.calls < CALLS_MAX).unwrap_or_default()
    }

    fn set(&self, stream: &str, place: Place) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(stream.to_owned(), place);
    }
}

/// One look at the rows behind a place. It takes no lock.
fn walk_sql() -> String {
    format!(
        "SELECT count(*), max(id), min(CASE WHEN due THEN id END), min(CASE WHEN mine AND NOT due THEN id END),
           coalesce(max(mine AND NOT due AND created_at BETWEEN ?2 AND ?5), 0),
           coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'semel_outbox'), 0)
         FROM (SELECT o.id, o.created_at, o.stream = ?1 AS mine, {DUE} AS due
           FROM semel_outbox o WHERE o.id > ?3 ORDER BY o.id LIMIT ?4)"
    )
}

impl Sqlite {
    pub(super) async fn clean_stream(
        &self,
        stream: &str,
        keep_ms: i64,
        limit: u32,
    ) -> Result<u64, StoreError> {
        let failed = |error| classify("clean", error);
        let now = self.now();
        let before = now.plus_ms(-keep_ms).0;
        let mut place = self.clean_places.get(stream);
        place.calls += 1;
        let mut deleted = 0;
        for _ in 0..WALKS_MAX {
            let (walked, last, due, kept, young, high) = sqlx::query_as(AssertSqlSafe(walk_sql()))
                .bind(stream)
                .bind(before)
                .bind(place.at)
                .bind(WALK_ROWS)
                .bind(now.0)
                .fetch_one(&self.reader)
                .await
                .map_err(failed)?;
            let walk = Walk {
                walked,
                last,
                due,
                kept,
                young,
                high,
            };
            if let (Some(due), Some(last)) = (due, last) {
                let left = u64::from(limit).saturating_sub(deleted);
                deleted += self.delete_due(stream, before, (due, last), left).await?;
            }
            // Where the limit was reached, rows that are due may be left in what was walked.
            if deleted >= u64::from(limit) || !place.step(&walk) {
                break;
            }
        }
        self.clean_places.set(stream, place);
        Ok(deleted)
    }

    /// Looked at once more: an adoption may just have put the cursor back.
    async fn delete_due(
        &self,
        stream: &str,
        before: i64,
        (first, last): (i64, i64),
        limit: u64,
    ) -> Result<u64, StoreError> {
        let sql = format!(
            "DELETE FROM semel_outbox WHERE id IN (SELECT o.id FROM semel_outbox o
               WHERE o.id BETWEEN ?3 AND ?4 AND {DUE} ORDER BY o.id LIMIT ?5)"
        );
        let _turn = self.turn("clean").await?;
        let done = sqlx::query(AssertSqlSafe(sql))
            .bind(stream)
            .bind(before)
            .bind(first)
            .bind(last)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .execute(&self.writer)
            .await
            .map_err(|error| classify("clean", error))?;
        Ok(done.rows_affected())
    }
}

#[cfg(test)]
mod tests {
    use semel_core::relay::OwnedShard;
    use semel_core::store::{Acquire, CursorSave, Guarded, Opening, OutboxStore as _, PageSize};
    use semel_core::{Event, Nonce, SystemClock, host::uuid_v7};

    use super::*;
    use crate::{Config, tx};

    fn walk(last: i64, kept: Option<i64>) -> Walk {
        Walk {
            walked: WALK_ROWS,
            last: Some(last),
            kept,
            high: 10_000,
            ..Walk::default()
        }
    }

    #[test]
    fn rows_of_others_are_passed_once_and_what_has_to_stay_is_looked_at_again() {
        let mut place = Place::default();
        assert!(place.step(&walk(1_000, None)), "there may be more");
        assert_eq!((place.from, place.at), (1_000, 1_000));
        assert!(place.step(&walk(2_000, Some(1_500))));
        assert_eq!((place.from, place.at), (1_499, 2_000));
        assert!(place.step(&walk(3_000, None)), "behind it nothing is forgotten");
        assert_eq!((place.from, place.at), (1_499, 3_000));
        let end = Walk {
            walked: 3,
            ..walk(3_003, None)
        };
        assert!(!place.step(&end));
        assert_eq!((place.from, place.at), (1_499, 1_499), "round again");
    }

    #[test]
    fn young_rows_end_a_walk_unless_something_was_due_among_them() {
        let mut place = Place::default();
        let young = Walk {
            young: true,
            ..walk(1_000, Some(10))
        };
        assert!(!place.step(&young));
        assert_eq!(place.at, 9);
        let due = Some(8);
        assert!(place.step(&Walk { due, ..young }));
        assert_eq!(place.at, 1_000);
    }

    #[test]
    fn where_ids_have_gone_back_it_begins_at_the_beginning() {
        let mut place = Place::default();
        place.step(&walk(5_000, None));
        let replaced = Walk {
            high: 20,
            ..walk(20, None)
        };
        assert!(!place.step(&replaced));
        assert_eq!(place, Place::default());
    }

    async fn bed() -> (Sqlite, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let db = Sqlite::open(Config::new(dir.path().join("test.db")))
            .await
            .unwrap();
        db.migrate().await.unwrap();
        (db, dir)
    }

    async fn write(db: &Sqlite, stream: &str, count: usize) {
        let event = |_| Event::new(uuid_v7(&SystemClock), "t", "e").with_stream(stream);
        let events: Vec<_> = (0..count).map(event).collect();
        let mut tx = db.begin().await.unwrap();
        tx::enqueue_many(&mut tx, &events).await.unwrap();
        db.commit(tx).await.unwrap();
    }

    async fn own(db: &Sqlite, stream: &str) -> OwnedShard {
        db.register_stream(stream, 1).await.unwrap();
        let nonce = Nonce::random();
        let wish = Acquire {
            stream: stream.to_owned(),
            max: 1,
            owner: "test".to_owned(),
            nonce,
            relay: nonce,
            lease_ms: 60_000,
        };
        db.acquire(&wish).await.unwrap().pop().unwrap()
    }

    /// All that is there counts as sent.
    async fn sent(db: &Sqlite, owned: &mut OwnedShard) {
        let size = PageSize {
            rows: 10,
            bytes: 1 << 20,
        };
        let opening = db.open_batch(&owned.lease, &owned.cursor, false, size).await;
        let Guarded::Done(Opening::Opened(from, _)) = opening.unwrap() else {
            panic!("nothing was written")
        };
        let save = CursorSave {
            from,
            last_id: i64::MAX,
            finished: true,
            suspect: None,
            exceptions: Vec::new(),
            log: None,
        };
        let Guarded::Done(cursor) = db.save_cursor(&owned.lease, &save).await.unwrap() else {
            panic!("not the owner")
        };
        owned.cursor = cursor;
    }

    async fn rows(db: &Sqlite, stream: &str) -> i64 {
        let sql = "SELECT count(*) FROM semel_outbox WHERE stream = ?";
        let found = sqlx::query_scalar(sql).bind(stream).fetch_one(&db.reader).await;
        found.unwrap()
    }

    /// Many rows of a stream that keeps its own for long lie before, between and behind.
    #[tokio::test]
    async fn rows_among_those_that_another_stream_keeps_are_deleted_and_those_are_not_read_again() {
        let (db, _dir) = bed().await;
        let (mut long, mut short) = (own(&db, "long").await, own(&db, "short").await);
        for _ in 0..2 {
            write(&db, "long", 2_500).await;
            write(&db, "short", 2).await;
        }
        write(&db, "long", 2_500).await;
        sent(&db, &mut long).await;
        assert_eq!(db.clean("short", -1, 10).await.unwrap(), 0, "not sent yet");
        sent(&db, &mut short).await;
        assert_eq!(db.clean("short", 60_000, 10).await.unwrap(), 0, "all are young");
        assert_eq!(
            db.clean_places.get("short").at,
            2_500,
            "what lies before is passed"
        );
        assert_eq!(db.clean("short", -1, 3).await.unwrap(), 3);
        assert_eq!(db.clean("short", -1, 3).await.unwrap(), 1);
        assert_eq!(db.clean("short", -1, 3).await.unwrap(), 0);
        assert_eq!((rows(&db, "short").await, rows(&db, "long").await), (0, 7_500));
        let end = 7_504;
        assert_eq!(db.clean_places.get("short").at, end, "nothing is read any more");
        write(&db, "short", 1).await;
        sent(&db, &mut short).await;
        assert_eq!(db.clean("short", -1, 3).await.unwrap(), 1);
        // The others' own cleaner begins at its own place.
        assert_eq!(db.clean("long", -1, 5_000).await.unwrap(), 5_000);
        assert_eq!(db.clean("long", -1, 5_000).await.unwrap(), 2_500);
    }

    /// A shard that stands still keeps its rows; what other shards have sent goes, however far behind.
    #[tokio::test]
    async fn rows_behind_a_shard_that_stands_still_are_deleted() {
        let (db, _dir) = bed().await;
        let mut owned = own(&db, "short").await;
        write(&db, "short", 3_000).await;
        sent(&db, &mut owned).await;
        let half = "UPDATE semel_outbox_shard SET slot_last = 2047";
        sqlx::query(half).execute(&db.writer).await.unwrap();
        // The last ones are of the shard that has sent them.
        sqlx::query("UPDATE semel_outbox SET slot = CASE WHEN id > 2900 THEN 1 ELSE 4000 END")
            .execute(&db.writer)
            .await
            .unwrap();
        assert_eq!(db.clean("short", -1, 1_000).await.unwrap(), 100);
        assert_eq!(db.clean_places.get("short").from, 0, "the others stay");
        assert_eq!(rows(&db, "short").await, 2_900);
    }

    /// One descent to the place, and no sorting.
    #[tokio::test]
    async fn a_walk_goes_by_the_tables_own_order_from_its_place() {
        let (db, _dir) = bed().await;
        let sql = format!("EXPLAIN QUERY PLAN {}", walk_sql());
        let plan: Vec<(i64, i64, i64, String)> = sqlx::query_as(AssertSqlSafe(sql))
            .bind("s")
            .bind(0)
            .bind(0)
            .bind(WALK_ROWS)
            .bind(0)
            .fetch_all(&db.reader)
            .await
            .unwrap();
        let steps: Vec<&str> = plan.iter().map(|(_, _, _, step)| step.as_str()).collect();
        assert!(
            steps.contains(&"SEARCH o USING INTEGER PRIMARY KEY (rowid>?)"),
            "{steps:?}"
        );
        assert!(
            !steps
                .iter()
                .any(|step| step.contains("TEMP B-TREE") || step.starts_with("SCAN o")),
            "{steps:?}"
        );
    }
}
