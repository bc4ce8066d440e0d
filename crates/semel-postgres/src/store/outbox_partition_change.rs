//! Putting the outbox into partitions, and making it whole again.
//!
//! # Guarantees
//! - One transaction: a crash anywhere leaves the outbox as it was or as it is to be. Rows keep their numbers, transactions and
//!   ids, so every cursor goes on where it was; numbers of new rows go on, too.
//! - It waits for whoever has rows of the outbox open for [`PARTITION_LOCK_WAIT`] at most, and not at all for one who has had
//!   them open for longer: everybody else would queue behind. Then it says who, and nothing is changed.

use std::time::Duration;

use semel_core::store::{DeskEntry, Hold};
use semel_core::{ErrorKind, StoreError};

use super::outbox_desk::write;
use super::outbox_partitions::{in_the_way, lacks_rights};
use crate::db::Postgres;
use crate::error::classify;
use crate::gate::query_scalar;

/// The code of an error that names who holds the outbox. Page: SEM0282.
pub const PARTITIONS_HELD: &str = "SEM0282";
/// The code of an error that says why an outbox cannot be changed. Page: SEM0280.
pub const PARTITIONS_REFUSED: &str = "SEM0280";
/// How long a change waits for those who have rows of the outbox open: `lock_timeout` of the functions in SQL.
pub const PARTITION_LOCK_WAIT: Duration = Duration::from_secs(5);
/// Why it is not waited for, or was waited for in vain.
const WHAT: &str = "the change of the outbox";

/// An outbox in partitions, as it is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partitioning {
    /// The time that a partition is for: 1 minute to 32 days. Default: an hour.
    pub width: Duration,
    /// How many are made for the time ahead: 1 to 100. Default: 3.
    pub ahead: u32,
    /// Refused where more rows than this are kept: all writers wait while they are copied. Default: 1,000,000.
    pub rows_max: u64,
}

impl Partitioning {
    /// The default of [`Partitioning::rows_max`].
    pub const ROWS_MAX: u64 = 1_000_000;
}

impl Default for Partitioning {
    fn default() -> Self {
        Self {
            width: Duration::from_secs(3_600),
            ahead: 3,
            rows_max: Self::ROWS_MAX,
        }
    }
}

impl From<Duration> for Partitioning {
    fn from(width: Duration) -> Self {
        Self {
            width,
            ..Self::default()
        }
    }
}

/// What is to become of an outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionChange {
    /// One in partitions; where it is one, those that are made from now on.
    On(Partitioning),
    /// One table.
    Off {
        /// As [`Partitioning::rows_max`].
        rows_max: u64,
    },
}

impl PartitionChange {
    const fn rows_max(&self) -> u64 {
        match self {
            Self::On(Partitioning { rows_max, .. }) | Self::Off { rows_max } => *rows_max,
        }
    }
}

impl Postgres {
    /// Makes the outbox one in partitions of so much time each, by `semel.partition_outbox`; returns how many rows were
    /// copied. Writers and relays wait meanwhile. Where it is one, the width of those made from now on is changed, and how
    /// many there are ahead.
    ///
    /// # Errors
    /// `SEM0280` when it cannot be done; [`PARTITIONS_HELD`] (`NotApplied`) when a transaction stands in the way, with who it is.
    /// Nothing is changed then.
    pub async fn partition_outbox(&self, how: impl Into<Partitioning>) -> Result<u64, StoreError> {
        self.change_partitions(PartitionChange::On(how.into()), None)
            .await
    }

    /// Makes an outbox in partitions one table again, by `semel.unpartition_outbox`, with all rows that are kept; returns how many
    /// were copied, 0 where it is whole. Writers and relays wait meanwhile.
    ///
    /// # Errors
    /// As [`Postgres::partition_outbox`].
    pub async fn unpartition_outbox(&self, rows_max: u64) -> Result<u64, StoreError> {
        self.change_partitions(PartitionChange::Off { rows_max }, None)
            .await
    }

    /// Does the one or the other, and keeps in the desk's log who wanted it and why.
    ///
    /// # Errors
    /// As [`Postgres::partition_outbox`].
    pub async fn change_partitions(
        &self,
        change: PartitionChange,
        said: Option<(&str, &str)>,
    ) -> Result<u64, StoreError> {
        let old = i64::try_from(PARTITION_LOCK_WAIT.as_millis()).unwrap_or(i64::MAX);
        let held = self.partition_holders(old).await?;
        if !held.is_empty() {
            return Err(held_by(&held));
        }
        let mut tx = self.begin().await?;
        let rows_max = i64::try_from(change.rows_max()).unwrap_or(i64::MAX - 1);
        let done: Result<i64, sqlx::Error> = match change {
            PartitionChange::On(on) => {
                let ms = i64::try_from(on.width.as_millis()).unwrap_or(i64::MAX);
                query_scalar("SELECT semel.partition_outbox($1 * interval '1 ms', $2, $3)")
                    .bind(ms as f64)
                    .bind(rows_max)
                    .bind(i32::try_from(on.ahead).unwrap_or(i32::MAX))
                    .fetch_one(&mut *tx)
                    .await
            }
            PartitionChange::Off { .. } => {
                query_scalar("SELECT semel.unpartition_outbox($1)")
                    .bind(rows_max)
                    .fetch_one(&mut *tx)
                    .await
            }
        };
        let rows = match done {
            Ok(rows) => rows,
            Err(error) if in_the_way(&error) => {
                // Of those who were waited for, whoever is still there.
                let _ = tx.rollback().await;
                let held = self.partition_holders(0).await?;
                return Err(held_by(&held).with_source(error));
            }
            Err(error) => return Err(lacks_rights("partition_outbox", error)),
        };
        if let Some((by, why)) = said {
            let action = match change {
                PartitionChange::On(_) => "partition",
                PartitionChange::Off { .. } => "unpartition",
            };
            write(&mut tx, &DeskEntry::about("", action, by, why)).await?;
        }
        self.commit(tx).await?;
        Ok(rows.unsigned_abs())
    }

    /// How many rows a change would copy, counted up to one above `rows_max`, and who stands in its way now.
    ///
    /// # Errors
    /// The server gives no answer.
    pub async fn partition_outlook(&self, rows_max: u64) -> Result<(u64, Vec<Hold>), StoreError> {
        let limit = i64::try_from(rows_max).unwrap_or(i64::MAX).saturating_add(1);
        let rows: i64 = query_scalar("SELECT count(*) FROM (SELECT FROM semel.outbox LIMIT $1) o")
            .bind(limit)
            .fetch_one(&self.gate)
            .await
            .map_err(|error| classify("partitions", error))?;
        Ok((rows.unsigned_abs(), self.partition_holders(0).await?))
    }

    /// Who has rows of the outbox open, and has begun so long ago.
    async fn partition_holders(&self, old_ms: i64) -> Result<Vec<Hold>, StoreError> {
        let found = self.holders_for("outbox", WHAT, old_ms).await?;
        if !found.is_empty() {
            return Ok(found);
        }
        // Somebody may have named a partition and not the outbox.
        let names: Vec<String> = query_scalar("SELECT name FROM semel.outbox_partitions()")
            .fetch_all(&self.gate)
            .await
            .map_err(|error| classify("partitions", error))?;
        for name in names {
            let found = self.holders_for(&name, WHAT, old_ms).await?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }
}

/// The error that names them.
fn held_by(held: &[Hold]) -> StoreError {
    let names: Vec<String> = held
        .iter()
        .map(|hold| {
            let age = hold.age_ms.map_or_else(String::new, |ms| format!(" for {ms} ms"));
            format!("{}{age} ({})", hold.who, hold.detail)
        })
        .collect();
    let who = if names.is_empty() {
        "somebody who has ended meanwhile".to_owned()
    } else {
        names.join("; ")
    };
    let advice = held.first().map_or("try again", |hold| hold.advice.as_str());
    let text =
        format!("the outbox is held by {who}; nothing was changed. Try again in a quieter moment; {advice}");
    StoreError::new(ErrorKind::NotApplied, "partition_outbox", text).with_code(PARTITIONS_HELD)
}

#[cfg(test)]
mod tests {
    use semel_core::store::OutboxStore as _;
    use semel_core::{Event, SystemClock, host::uuid_v7};
    use uuid::Uuid;

    use super::super::outbox_partitions::Verdict;
    use super::*;
    use crate::{Config, tx};

    /// Between the look at a partition and its lock the outbox was made whole and put into partitions again: one of the same name
    /// holds events that were somewhere else.
    #[tokio::test]
    async fn one_that_came_in_the_place_of_what_was_judged_is_not_emptied() {
        let url = semel_testkit::servers::postgres().fresh_database();
        let db = Postgres::connect(Config::new(url)).await.unwrap();
        db.migrate().await.unwrap();
        db.register_stream("default", 1).await.unwrap();
        db.partition_outbox(Duration::from_secs(32 * 86_400))
            .await
            .unwrap();
        let mut early = *uuid_v7(&SystemClock).as_bytes();
        // Two minutes ago.
        let ms =
            u64::from_be_bytes([0, 0, early[0], early[1], early[2], early[3], early[4], early[5]]) - 120_000;
        early[..6].copy_from_slice(&ms.to_be_bytes()[2..]);
        let mut tx = db.begin().await.unwrap();
        tx::enqueue(&mut tx, &Event::new(Uuid::from_bytes(early), "t", "e"))
            .await
            .unwrap();
        db.commit(tx).await.unwrap();
        let seen = db.seen("outbox_before").await.unwrap().unwrap();
        assert!(matches!(seen.verdict, Verdict::Empty));
        db.unpartition_outbox(10).await.unwrap();
        db.partition_outbox(Duration::from_secs(60)).await.unwrap();
        let place: String = query_scalar("SELECT tableoid::regclass::text FROM semel.outbox")
            .fetch_one(&db.gate)
            .await
            .unwrap();
        assert_eq!(place, "semel.outbox_before");
        assert!(!db.empty("outbox_before", &seen).await.unwrap());
    }
}
