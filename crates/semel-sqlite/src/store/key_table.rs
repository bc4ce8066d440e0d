//! The statements of a batch on a connection of our own: one row at a time.

use rusqlite::{CachedStatement, Connection, OptionalExtension as _, Params, Row, params};
use semel_core::claim::{Record, Token};
use semel_core::{Key, StoreError, Timestamp};

use super::key_record;
use super::key_rows::{raised, token_is_lost};
use crate::error::direct_failed;

const LOAD: &str = "SELECT rowid, state, record, outcome FROM semel_key WHERE scope = ?1 AND id = ?2";

const INSERT: &str =
    "INSERT INTO semel_key (scope, id, state, due_at, record, outcome) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

const UPDATE: &str =
    "UPDATE semel_key SET state = ?2, due_at = ?3, record = ?4, outcome = ?5 WHERE rowid = ?1";

const DELETE: &str = "DELETE FROM semel_key WHERE rowid = ?1";

const LAST_TOKEN: &str = "SELECT token FROM semel_token WHERE one = 1";
const SET_TOKEN: &str = "UPDATE semel_token SET token = ?1 WHERE one = 1";

/// A row as it is stored.
pub(super) struct Stored {
    /// Its number in the file.
    pub(super) row: i64,
    /// The record, or why it cannot be read.
    pub(super) record: Result<Record, StoreError>,
}

/// `semel_key` and `semel_token` in one transaction.
pub(super) struct KeyTable<'c> {
    db: &'c Connection,
    operation: &'static str,
    load: CachedStatement<'c>,
    insert: Option<CachedStatement<'c>>,
    update: Option<CachedStatement<'c>>,
}

impl<'c> KeyTable<'c> {
    pub(super) fn new(db: &'c Connection, operation: &'static str) -> Result<Self, StoreError> {
        let load = db
            .prepare_cached(LOAD)
            .map_err(|error| direct_failed(operation, error))?;
        Ok(Self {
            db,
            operation,
            load,
            insert: None,
            update: None,
        })
    }

    /// What is stored about a key.
    pub(super) fn load(&mut self, key: &Key) -> Result<Option<Stored>, StoreError> {
        let read = |row: &Row<'_>| {
            let state = row.get_ref(1)?.as_str()?;
            let outcome = row.get_ref(3)?.as_blob_or_null()?;
            Ok(Stored {
                row: row.get(0)?,
                record: key_record::unpack(state, row.get_ref(2)?.as_blob()?, outcome),
            })
        };
        let key = params![key.scope().as_bytes(), key.id()];
        let found = self.load.query_row(key, read).optional();
        found.map_err(|error| direct_failed(self.operation, error))
    }

    pub(super) fn insert(&mut self, key: &Key, record: &Record) -> Result<(), StoreError> {
        let values = params![
            key.scope().as_bytes(),
            key.id(),
            key_record::state(record),
            record.due().map(|due| due.0),
            key_record::pack(record),
            key_record::outcome(record),
        ];
        write(self.db, &mut self.insert, INSERT, values).map_err(|error| direct_failed(self.operation, error))
    }

    pub(super) fn update(&mut self, row: i64, record: &Record) -> Result<(), StoreError> {
        let values = params![
            row,
            key_record::state(record),
            record.due().map(|due| due.0),
            key_record::pack(record),
            key_record::outcome(record),
        ];
        write(self.db, &mut self.update, UPDATE, values).map_err(|error| direct_failed(self.operation, error))
    }

    pub(super) fn delete(&mut self, row: i64) -> Result<(), StoreError> {
        let deleted = self
            .db
            .prepare_cached(DELETE)
            .and_then(|mut statement| statement.execute([row]));
        deleted
            .map(drop)
            .map_err(|error| direct_failed(self.operation, error))
    }

    /// The token drawn last, as [`raised`]. Inside a writing transaction nobody else draws one.
    pub(super) fn last_token(&self, now: Timestamp) -> Result<Token, StoreError> {
        let last = self
            .db
            .prepare_cached(LAST_TOKEN)
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)).optional());
        let last: Option<i64> = last.map_err(|error| direct_failed(self.operation, error))?;
        let last = last.ok_or_else(|| token_is_lost(self.operation))?;
        Ok(raised(last, now))
    }

    pub(super) fn set_token(&self, token: Token) -> Result<(), StoreError> {
        let set = self
            .db
            .prepare_cached(SET_TOKEN)
            .and_then(|mut statement| statement.execute([token.0]));
        set.map(drop)
            .map_err(|error| direct_failed(self.operation, error))
    }
}

fn write<'c>(
    db: &'c Connection,
    statement: &mut Option<CachedStatement<'c>>,
    sql: &str,
    values: impl Params,
) -> rusqlite::Result<()> {
    let statement = match statement {
        Some(statement) => statement,
        None => statement.insert(db.prepare_cached(sql)?),
    };
    statement.execute(values).map(drop)
}
