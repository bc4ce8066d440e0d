//! The inbox on SQLite.
//!
//! Every transaction here is a writer from its start, so between reading a row and writing it back nobody else writes:
//! positions go through the same pure functions as the in-memory model.

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::inbox::{AdvancePosition, AssignPosition, Mark, Position, PositionKey, headers, position};
use semel_core::store::{InboxStore, Parked, TakenParked};
use semel_core::{ErrorKind, Nonce, Scope, StoreError, Timestamp};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, Sqlite as Driver, Transaction};

use crate::db::Sqlite;
use crate::error::classify;
use crate::tx::{InboxTx, hex_array, mark_many_at};

type Tx = Transaction<'static, Driver>;

#[async_trait]
impl InboxStore for Sqlite {
    type Tx = InboxTx;

    /// SQLite names no transactions. A handler that ends this one itself makes the commit fail: there is none to end. One
    /// that begins another after it is not noticed.
    async fn begin_inbox(&self) -> Result<InboxTx, StoreError> {
        Ok(InboxTx(self.begin().await?))
    }

    async fn mark_many(
        &self,
        tx: &mut InboxTx,
        scope: &Scope,
        ids: &[Bytes],
        retention_ms: i64,
    ) -> Result<Vec<Mark>, StoreError> {
        mark_many_at(tx, scope, ids, retention_ms, self.now()).await
    }

    async fn savepoint(&self, tx: &mut InboxTx) -> Result<(), StoreError> {
        run(tx, "savepoint", "SAVEPOINT semel").await
    }

    async fn release(&self, tx: &mut InboxTx) -> Result<(), StoreError> {
        run(tx, "release", "RELEASE semel").await
    }

    async fn rollback_to(&self, tx: &mut InboxTx) -> Result<(), StoreError> {
        run(tx, "rollback_to", "ROLLBACK TO semel").await?;
        // ROLLBACK TO leaves the savepoint in place.
        run(tx, "rollback_to", "RELEASE semel").await
    }

    async fn parked_keys(
        &self,
        tx: &mut InboxTx,
        scope: &Scope,
        keys: &[Bytes],
    ) -> Result<Vec<bool>, StoreError> {
        let found: Vec<Vec<u8>> = sqlx::query_scalar(
            "SELECT key FROM semel_parked_key
             WHERE scope = ?1 AND key IN (SELECT unhex(value) FROM json_each(?2))",
        )
        .bind(scope.as_bytes())
        .bind(hex_array(keys))
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
                sqlx::query(
                    "INSERT INTO semel_parked_key (scope, key) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
                )
                .bind(scope.as_bytes())
                .bind(&key[..])
                .execute(tx.conn())
                .await
                .map_err(failed)?;
            }
            sqlx::query(
                "INSERT INTO semel_parked
                   (scope, id, key, topic, part, at_offset, headers, data, reason, sent_at, parked_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) ON CONFLICT (scope, id) DO NOTHING",
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
            .bind(self.now().0)
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
        let first: Option<(i64, Option<Vec<u8>>)> = sqlx::query_as(
            "SELECT n, key FROM semel_parked AS p WHERE scope = ?1 AND n > ?2 AND NOT EXISTS (
               SELECT 1 FROM semel_parked AS e WHERE e.scope = p.scope AND e.key = p.key AND e.n < p.n)
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
        let messages = unpark(tx, scope, first, key.as_deref(), limit).await?;
        Ok(Some(TakenParked { first, messages }))
    }

    async fn discard_parked(
        &self,
        tx: &mut InboxTx,
        scope: &Scope,
        id: &Bytes,
    ) -> Result<Option<Parked>, StoreError> {
        let number: Option<i64> =
            sqlx::query_scalar("SELECT n FROM semel_parked WHERE scope = ?1 AND id = ?2")
                .bind(scope.as_bytes())
                .bind(&id[..])
                .fetch_optional(tx.conn())
                .await
                .map_err(|error| classify("discard_parked", error))?;
        match number {
            Some(number) => Ok(unpark(tx, scope, number, None, 1).await?.pop()),
            None => Ok(None),
        }
    }

    async fn assign_positions(&self, wishes: &[AssignPosition]) -> Result<Vec<Position>, StoreError> {
        wishes.iter().try_for_each(|wish| wish.key.check())?;
        let mut tx = self.begin().await?;
        let mut positions = Vec::with_capacity(wishes.len());
        for wish in wishes {
            let position = position::assign(read(&mut tx, &wish.key).await?, wish);
            self.write(&mut tx, &wish.key, &wish.topic, position).await?;
            positions.push(position);
        }
        self.commit(tx).await?;
        Ok(positions)
    }

    async fn advance_positions(&self, tx: &mut InboxTx, steps: &[AdvancePosition]) -> Result<(), StoreError> {
        for step in steps {
            let Some(position) = position::advance(read(tx, &step.key).await?, step) else {
                return Err(position_lost(step));
            };
            self.write(tx, &step.key, "", position).await?;
        }
        Ok(())
    }

    async fn commit_inbox(&self, tx: InboxTx) -> Result<(), StoreError> {
        self.commit(tx.0).await
    }

    async fn rollback_inbox(&self, tx: InboxTx) -> Result<(), StoreError> {
        tx.0.rollback().await.map_err(|error| classify("rollback", error))
    }

    async fn purge_inbox(&self, limit: u32) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let done = sqlx::query(
            "DELETE FROM semel_inbox WHERE (scope, id) IN
               (SELECT scope, id FROM semel_inbox WHERE keep_until <= ?1 ORDER BY keep_until LIMIT ?2)",
        )
        .bind(self.now().0)
        .bind(limit)
        .execute(&mut *tx)
        .await
        .map_err(|error| classify("purge", error))?;
        self.commit(tx).await?;
        Ok(done.rows_affected())
    }
}

impl Sqlite {
    async fn write(
        &self,
        tx: &mut Tx,
        key: &PositionKey,
        topic: &str,
        position: Position,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO semel_position (consumer, topic_id, part, topic, next_offset, epoch, owner, updated_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
             ON CONFLICT (consumer, topic_id, part) DO UPDATE SET
               next_offset = excluded.next_offset, epoch = excluded.epoch, owner = excluded.owner,
               updated_at = excluded.updated_at",
        )
        .bind(&key.group)
        .bind(&key.topic_id.as_bytes()[..])
        .bind(key.partition)
        .bind(topic)
        .bind(position.next_offset)
        .bind(position.epoch)
        .bind(&position.owner.0[..])
        .bind(self.now().0)
        .execute(&mut **tx)
        .await
        .map_err(|error| classify("position", error))?;
        Ok(())
    }
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
    let rows = sqlx::query(
        "DELETE FROM semel_parked WHERE n IN (
           SELECT n FROM semel_parked WHERE scope = ?1 AND (n = ?2 OR key = ?3) ORDER BY n LIMIT ?4)
         RETURNING n, id, key, topic, part, at_offset, headers, data, reason, sent_at",
    )
    .bind(scope.as_bytes())
    .bind(number)
    .bind(key)
    .bind(limit)
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
        sqlx::query(
            "DELETE FROM semel_parked_key WHERE scope = ?1 AND key = ?2
             AND NOT EXISTS (SELECT 1 FROM semel_parked WHERE scope = ?1 AND key = ?2)",
        )
        .bind(scope.as_bytes())
        .bind(&key[..])
        .execute(tx.conn())
        .await
        .map_err(failed)?;
    }
    Ok(taken.into_iter().map(|(_, message)| message).collect())
}

async fn run(tx: &mut Tx, operation: &'static str, sql: &'static str) -> Result<(), StoreError> {
    sqlx::query(sql)
        .execute(&mut **tx)
        .await
        .map_err(|error| classify(operation, error))?;
    Ok(())
}

async fn read(tx: &mut Tx, key: &PositionKey) -> Result<Option<Position>, StoreError> {
    let failed = |error| classify("position", error);
    let row: Option<(i64, i64, Vec<u8>)> = sqlx::query_as(
        "SELECT next_offset, epoch, owner FROM semel_position
         WHERE consumer = ?1 AND topic_id = ?2 AND part = ?3",
    )
    .bind(&key.group)
    .bind(&key.topic_id.as_bytes()[..])
    .bind(key.partition)
    .fetch_optional(&mut **tx)
    .await
    .map_err(failed)?;
    row.map(|(next_offset, epoch, owner)| {
        let owner = owner
            .try_into()
            .map_err(|_| corrupt("a position's owner is not 16 bytes"))?;
        Ok(Position {
            next_offset,
            epoch,
            owner: Nonce(owner),
        })
    })
    .transpose()
}

fn parked(row: &SqliteRow) -> Result<Parked, StoreError> {
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

fn position_lost(step: &AdvancePosition) -> StoreError {
    let text = format!(
        "partition {} of group {} is not at {} under this owner any more",
        step.key.partition, step.key.group, step.expected
    );
    StoreError::new(ErrorKind::LeaseLost, "position", text)
}
