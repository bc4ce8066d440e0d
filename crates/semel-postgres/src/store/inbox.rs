//! The inbox on PostgreSQL: one statement per step, however many messages.

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::inbox::{AdvancePosition, AssignPosition, Mark, Position, headers};
use semel_core::store::{InboxStore, Parked, TakenParked};
use semel_core::{ErrorKind, Scope, StoreError, Timestamp};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::db::Postgres;
use crate::error::{classify, commit_failed};
use crate::gate::{query, query_as, query_scalar};
use crate::tx::{InboxTx, mark_many_ms};

/// Checks deferred constraints now and puts everything back as it was: rolling back to the inner savepoint restores
/// each constraint's mode, which `SET CONSTRAINTS ALL DEFERRED` would not (rule I2).
const RELEASE: &str =
    "SAVEPOINT semel_check; SET CONSTRAINTS ALL IMMEDIATE; ROLLBACK TO SAVEPOINT semel_check;
RELEASE SAVEPOINT semel_check; RELEASE SAVEPOINT semel";

const ASSIGN: &str =
    "INSERT INTO semel.position AS p (consumer, topic_id, part, topic, next_offset, epoch, owner)
SELECT u.consumer, u.topic_id, u.part, u.topic, u.initial, 1, u.owner
FROM unnest($1::text[], $2::uuid[], $3::int[], $4::text[], $5::bigint[], $6::bytea[])
  AS u(consumer, topic_id, part, topic, initial, owner)
ORDER BY u.consumer COLLATE \"C\", u.topic_id, u.part
ON CONFLICT (consumer, topic_id, part) DO UPDATE
  SET epoch = p.epoch + 1, owner = excluded.owner, updated_at = clock_timestamp()
RETURNING consumer, topic_id, part, next_offset, epoch";

const ADVANCE: &str = "UPDATE semel.position p SET next_offset = u.next, updated_at = clock_timestamp()
FROM unnest($1::text[], $2::uuid[], $3::int[], $4::bigint[], $5::bytea[], $6::bigint[], $7::bigint[])
  AS u(consumer, topic_id, part, epoch, owner, expected, next)
WHERE p.consumer = u.consumer AND p.topic_id = u.topic_id AND p.part = u.part
  AND p.epoch = u.epoch AND p.owner = u.owner AND p.next_offset = u.expected AND u.next >= u.expected";

#[async_trait]
impl InboxStore for Postgres {
    type Tx = InboxTx;

    async fn begin_inbox(&self) -> Result<InboxTx, StoreError> {
        let mut tx = self.begin().await?;
        let xid = query_scalar("SELECT pg_current_xact_id()::text")
            .fetch_one(&mut *tx)
            .await
            .map_err(|error| classify("begin", error))?;
        Ok(InboxTx { tx, xid })
    }

    async fn mark_many(
        &self,
        tx: &mut InboxTx,
        scope: &Scope,
        ids: &[Bytes],
        retention_ms: i64,
    ) -> Result<Vec<Mark>, StoreError> {
        mark_many_ms(tx, scope, ids, retention_ms).await
    }

    async fn savepoint(&self, tx: &mut InboxTx) -> Result<(), StoreError> {
        run(tx, "savepoint", "SAVEPOINT semel").await
    }

    async fn release(&self, tx: &mut InboxTx) -> Result<(), StoreError> {
        run(tx, "release", RELEASE).await
    }

    async fn rollback_to(&self, tx: &mut InboxTx) -> Result<(), StoreError> {
        run(
            tx,
            "rollback_to",
            "ROLLBACK TO SAVEPOINT semel; RELEASE SAVEPOINT semel",
        )
        .await
    }

    /// Locks what it finds, before its list of messages is read or added to (rule O15).
    async fn parked_keys(
        &self,
        tx: &mut InboxTx,
        scope: &Scope,
        keys: &[Bytes],
    ) -> Result<Vec<bool>, StoreError> {
        let asked: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let found: Vec<Vec<u8>> = query_scalar(
            "SELECT key FROM semel.parked_key WHERE scope = $1 AND key = ANY($2) ORDER BY key FOR UPDATE",
        )
        .bind(scope.as_bytes())
        .bind(asked)
        .fetch_all(tx.conn())
        .await
        .map_err(|error| classify("parked_keys", error))?;
        Ok(keys
            .iter()
            .map(|key| found.iter().any(|f| f[..] == key[..]))
            .collect())
    }

    async fn park_many(
        &self,
        tx: &mut InboxTx,
        scope: &Scope,
        messages: &[Parked],
    ) -> Result<(), StoreError> {
        let failed = |error| classify("park", error);
        for message in messages {
            if let Some(key) = &message.key {
                // DO UPDATE, not DO NOTHING: it locks the row that is there already.
                query(
                    "INSERT INTO semel.parked_key (scope, key) VALUES ($1, $2)
                     ON CONFLICT (scope, key) DO UPDATE SET key = excluded.key",
                )
                .bind(scope.as_bytes())
                .bind(&key[..])
                .execute(tx.conn())
                .await
                .map_err(failed)?;
            }
            query(
                "INSERT INTO semel.parked
                   (scope, id, key, topic, part, at_offset, headers, data, reason, sent_at)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (scope, id) DO NOTHING",
            )
            .bind(scope.as_bytes())
            .bind(&message.id[..])
            .bind(message.key.as_deref())
            .bind(&message.topic)
            .bind(message.partition)
            .bind(message.offset)
            .bind(headers::encode(&message.headers))
            .bind(message.data.as_deref())
            .bind(message.reason_cut())
            .bind(message.sent_at.0)
            .execute(tx.conn())
            .await
            .map_err(failed)?;
        }
        Ok(())
    }

    async fn take_parked(
        &self,
        tx: &mut InboxTx,
        scope: &Scope,
        after: i64,
        limit: u32,
    ) -> Result<Option<TakenParked>, StoreError> {
        let first: Option<(i64, Option<Vec<u8>>)> = query_as(
            "SELECT n, key FROM semel.parked p WHERE scope = $1 AND n > $2 AND NOT EXISTS (
               SELECT 1 FROM semel.parked e WHERE e.scope = p.scope AND e.key = p.key AND e.n < p.n)
             ORDER BY n LIMIT 1",
        )
        .bind(scope.as_bytes())
        .bind(after)
        .fetch_optional(tx.conn())
        .await
        .map_err(|error| classify("take_parked", error))?;
        let Some((first, key)) = first else {
            return Ok(None);
        };
        lock_key(tx, scope, key.as_deref()).await?;
        let messages = unpark(tx, scope, first, key.as_deref(), limit).await?;
        Ok(Some(TakenParked { first, messages }))
    }

    async fn discard_parked(
        &self,
        tx: &mut InboxTx,
        scope: &Scope,
        id: &Bytes,
    ) -> Result<Option<Parked>, StoreError> {
        let found: Option<(i64, Option<Vec<u8>>)> =
            query_as("SELECT n, key FROM semel.parked WHERE scope = $1 AND id = $2")
                .bind(scope.as_bytes())
                .bind(&id[..])
                .fetch_optional(tx.conn())
                .await
                .map_err(|error| classify("discard_parked", error))?;
        let Some((number, key)) = found else {
            return Ok(None);
        };
        lock_key(tx, scope, key.as_deref()).await?;
        Ok(unpark(tx, scope, number, None, 1).await?.pop())
    }

    async fn assign_positions(&self, wishes: &[AssignPosition]) -> Result<Vec<Position>, StoreError> {
        wishes.iter().try_for_each(|wish| wish.key.check())?;
        let each = |pick: fn(&AssignPosition) -> i64| wishes.iter().map(pick).collect::<Vec<_>>();
        let failed = |error| classify("assign_positions", error);
        let mut tx = self.begin().await?;
        let rows: Vec<(String, Uuid, i32, i64, i64)> = query_as(ASSIGN)
            .bind(wishes.iter().map(|wish| &wish.key.group[..]).collect::<Vec<_>>())
            .bind(wishes.iter().map(|wish| wish.key.topic_id).collect::<Vec<_>>())
            .bind(wishes.iter().map(|wish| wish.key.partition).collect::<Vec<_>>())
            .bind(wishes.iter().map(|wish| &wish.topic[..]).collect::<Vec<_>>())
            .bind(each(|wish| wish.initial))
            .bind(wishes.iter().map(|wish| &wish.owner.0[..]).collect::<Vec<_>>())
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
        self.commit(tx).await?;
        wishes
            .iter()
            .map(|wish| {
                let key = &wish.key;
                let row = rows
                    .iter()
                    .find(|row| row.0 == key.group && row.1 == key.topic_id && row.2 == key.partition);
                let Some(&(.., next_offset, epoch)) = row else {
                    return Err(corrupt("an assigned position did not come back"));
                };
                Ok(Position {
                    next_offset,
                    epoch,
                    owner: wish.owner,
                })
            })
            .collect()
    }

    async fn advance_positions(&self, tx: &mut InboxTx, steps: &[AdvancePosition]) -> Result<(), StoreError> {
        let moved = query(ADVANCE)
            .bind(steps.iter().map(|step| &step.key.group[..]).collect::<Vec<_>>())
            .bind(steps.iter().map(|step| step.key.topic_id).collect::<Vec<_>>())
            .bind(steps.iter().map(|step| step.key.partition).collect::<Vec<_>>())
            .bind(steps.iter().map(|step| step.epoch).collect::<Vec<_>>())
            .bind(steps.iter().map(|step| &step.owner.0[..]).collect::<Vec<_>>())
            .bind(steps.iter().map(|step| step.expected).collect::<Vec<_>>())
            .bind(steps.iter().map(|step| step.next).collect::<Vec<_>>())
            .execute(tx.conn())
            .await
            .map_err(|error| classify("advance_positions", error))?;
        if moved.rows_affected() != steps.len() as u64 {
            let text = "a partition is not this owner's any more, or not where this batch began";
            return Err(StoreError::new(ErrorKind::LeaseLost, "advance_positions", text));
        }
        Ok(())
    }

    async fn commit_inbox(&self, mut tx: InboxTx) -> Result<(), StoreError> {
        let xid: Option<String> = query_scalar("SELECT pg_current_xact_id_if_assigned()::text")
            .fetch_one(tx.conn())
            .await
            .map_err(|error| classify("commit", error))?;
        if xid.as_ref() != Some(&tx.xid) {
            let text = "the handler ended the transaction itself; let Semel commit it";
            return Err(StoreError::new(ErrorKind::Invalid, "commit", text));
        }
        // The question above is the probe that a failed transaction refuses.
        tx.tx
            .commit()
            .await
            .map_err(|error| commit_failed("commit", error))
    }

    async fn rollback_inbox(&self, tx: InboxTx) -> Result<(), StoreError> {
        tx.tx
            .rollback()
            .await
            .map_err(|error| classify("rollback", error))
    }

    async fn purge_inbox(&self, limit: u32) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        // statement_timestamp(), not clock_timestamp(): the latter may change within a statement, which rules an index out.
        let done = query(
            "DELETE FROM semel.inbox WHERE ctid = ANY (ARRAY(
               SELECT ctid FROM semel.inbox WHERE keep_until <= statement_timestamp() LIMIT $1 FOR UPDATE SKIP LOCKED))",
        )
        .bind(i64::from(limit))
        .execute(&mut *tx)
        .await
        .map_err(|error| classify("purge", error))?;
        self.commit(tx).await?;
        Ok(done.rows_affected())
    }
}

/// Locks a key's row before its list of messages is read or changed (rule O15).
async fn lock_key(tx: &mut InboxTx, scope: &Scope, key: Option<&[u8]>) -> Result<(), StoreError> {
    let Some(key) = key else {
        return Ok(());
    };
    query("SELECT 1 FROM semel.parked_key WHERE scope = $1 AND key = $2 FOR UPDATE")
        .bind(scope.as_bytes())
        .bind(key)
        .execute(tx.conn())
        .await
        .map_err(|error| classify("take_parked", error))?;
    Ok(())
}

/// Takes the message of this number, and up to so many of this key, out of the list, and the key with its last message.
async fn unpark(
    tx: &mut InboxTx,
    scope: &Scope,
    number: i64,
    key: Option<&[u8]>,
    limit: u32,
) -> Result<Vec<Parked>, StoreError> {
    let failed = |error| classify("take_parked", error);
    // Messages without a key are lanes of their own: one at a time.
    let rows = query(
        "DELETE FROM semel.parked WHERE n IN (
           SELECT n FROM semel.parked WHERE scope = $1 AND (n = $2 OR key = $3) ORDER BY n LIMIT $4)
         RETURNING n, id, key, topic, part, at_offset, headers, data, reason, sent_at",
    )
    .bind(scope.as_bytes())
    .bind(number)
    .bind(key)
    .bind(i64::from(limit))
    .fetch_all(tx.conn())
    .await
    .map_err(failed)?;
    let mut taken = rows
        .iter()
        .map(|row| Ok((row.try_get::<i64, _>("n").map_err(failed)?, parked(row)?)))
        .collect::<Result<Vec<_>, StoreError>>()?;
    // RETURNING promises no order.
    taken.sort_by_key(|(n, _)| *n);
    if let Some(key) = taken.first().and_then(|(_, message)| message.key.clone()) {
        query(
            "DELETE FROM semel.parked_key WHERE scope = $1 AND key = $2
             AND NOT EXISTS (SELECT 1 FROM semel.parked WHERE scope = $1 AND key = $2)",
        )
        .bind(scope.as_bytes())
        .bind(&key[..])
        .execute(tx.conn())
        .await
        .map_err(failed)?;
    }
    Ok(taken.into_iter().map(|(_, message)| message).collect())
}

async fn run(tx: &mut InboxTx, operation: &'static str, sql: &'static str) -> Result<(), StoreError> {
    sqlx::raw_sql(sql)
        .execute(tx.conn())
        .await
        .map_err(|error| classify(operation, error))?;
    Ok(())
}

fn parked(row: &PgRow) -> Result<Parked, StoreError> {
    let failed = |error| classify("take_parked", error);
    let bytes = |name| {
        let value: Option<Vec<u8>> = row.try_get(name).map_err(failed)?;
        Ok::<_, StoreError>(value.map(Bytes::from))
    };
    let text: Vec<u8> = row.try_get("headers").map_err(failed)?;
    Ok(Parked {
        id: bytes("id")?.unwrap_or_default(),
        key: bytes("key")?,
        topic: row.try_get("topic").map_err(failed)?,
        partition: row.try_get("part").map_err(failed)?,
        offset: row.try_get("at_offset").map_err(failed)?,
        headers: headers::decode(&text)
            .ok_or_else(|| corrupt("a parked message's headers are unreadable"))?,
        data: bytes("data")?,
        reason: row.try_get("reason").map_err(failed)?,
        sent_at: Timestamp(row.try_get("sent_at").map_err(failed)?),
    })
}

fn corrupt(what: &'static str) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, "inbox", what)
}
