//! A store that does as told: calls that never answer, that fail, that panic.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::relay::{Cursor, DeskRefusal, OwnedShard, Roster, ShardLease};
use semel_core::store::{
    Acquire, Backlog, Capabilities, CursorSave, DeskEntry, DeskQuery, DeskRequest, DeskRow, Due, Guarded,
    KeptRow, Measured, Opening, OutboxDesk, Page, PageSize, Presence, RedriveSave, Replay, Replayed, Rescan,
    Standing, StoredException, Taken,
};
use semel_core::{ErrorKind, Nonce, OutboxStore, StoreError};
use semel_sqlite::Sqlite;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Trouble {
    /// Never answers.
    Hang,
    Fail(ErrorKind),
    /// Once; then all is well.
    Panic,
}

/// A SQLite file with troubles, by the names of the calls.
pub(crate) struct Troubled {
    db: Arc<Sqlite>,
    troubles: Mutex<BTreeMap<&'static str, Trouble>>,
    calls: Mutex<BTreeMap<&'static str, usize>>,
    /// Runs when leases were renewed.
    pub(crate) renewed: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Troubled {
    pub(crate) fn new(db: Arc<Sqlite>, troubles: &[(&'static str, Trouble)]) -> Arc<Self> {
        Arc::new(Self {
            db,
            troubles: Mutex::new(troubles.iter().copied().collect()),
            calls: Mutex::default(),
            renewed: OnceLock::new(),
        })
    }

    /// How often this was called.
    pub(crate) fn calls(&self, call: &str) -> usize {
        self.calls.lock().unwrap().get(call).copied().unwrap_or(0)
    }

    async fn meet(&self, call: &'static str) -> Result<(), StoreError> {
        *self.calls.lock().unwrap().entry(call).or_default() += 1;
        let trouble = {
            let mut troubles = self.troubles.lock().unwrap();
            let trouble = troubles.get(call).copied();
            if let Some(Trouble::Panic) = trouble {
                troubles.remove(call);
            }
            trouble
        };
        match trouble {
            None => Ok(()),
            Some(Trouble::Hang) => std::future::pending().await,
            Some(Trouble::Fail(kind)) => Err(StoreError::new(kind, call, "as told")),
            Some(Trouble::Panic) => panic!("{call} panics, as told"),
        }
    }
}

#[async_trait]
impl OutboxStore for Troubled {
    fn capabilities(&self) -> Capabilities {
        OutboxStore::capabilities(&*self.db)
    }

    fn desk(&self) -> Option<&dyn OutboxDesk> {
        Some(self)
    }

    async fn register_stream(&self, stream: &str, shards: u16) -> Result<(), StoreError> {
        self.meet("register_stream").await?;
        self.db.register_stream(stream, shards).await
    }

    async fn acquire(&self, wish: &Acquire) -> Result<Vec<OwnedShard>, StoreError> {
        self.meet("acquire").await?;
        self.db.acquire(wish).await
    }

    async fn renew(&self, leases: &[ShardLease], lease_ms: i64) -> Result<Vec<bool>, StoreError> {
        self.meet("renew").await?;
        let mine = OutboxStore::renew(&*self.db, leases, lease_ms).await;
        if let Some(renewed) = self.renewed.get() {
            renewed();
        }
        mine
    }

    async fn release(&self, leases: &[ShardLease]) -> Result<(), StoreError> {
        self.meet("release").await?;
        OutboxStore::release(&*self.db, leases).await
    }

    async fn attend(&self, presence: &Presence) -> Result<(), StoreError> {
        self.meet("attend").await?;
        self.db.attend(presence).await
    }

    async fn leave(&self, stream: &str, relay: Nonce) -> Result<(), StoreError> {
        self.meet("leave").await?;
        self.db.leave(stream, relay).await
    }

    async fn roster(&self, stream: &str) -> Result<Roster, StoreError> {
        self.meet("roster").await?;
        self.db.roster(stream).await
    }

    async fn load(&self, lease: &ShardLease) -> Result<Guarded<Cursor>, StoreError> {
        OutboxStore::load(&*self.db, lease).await
    }

    async fn open_batch(
        &self,
        lease: &ShardLease,
        from: &Cursor,
        advance: bool,
        first: PageSize,
    ) -> Result<Guarded<Opening>, StoreError> {
        self.meet("open_batch").await?;
        self.db.open_batch(lease, from, advance, first).await
    }

    async fn worth_opening(&self, idle: &[(ShardLease, Cursor)]) -> Result<Vec<bool>, StoreError> {
        self.meet("worth_opening").await?;
        self.db.worth_opening(idle).await
    }

    async fn read_page(
        &self,
        lease: &ShardLease,
        cursor: &Cursor,
        after: i64,
        size: PageSize,
    ) -> Result<Guarded<Page>, StoreError> {
        self.db.read_page(lease, cursor, after, size).await
    }

    async fn save_cursor(
        &self,
        lease: &ShardLease,
        save: &CursorSave,
    ) -> Result<Guarded<Cursor>, StoreError> {
        self.db.save_cursor(lease, save).await
    }

    async fn exceptions(
        &self,
        stream: &str,
        after: i64,
        limit: u32,
    ) -> Result<Vec<StoredException>, StoreError> {
        self.db.exceptions(stream, after, limit).await
    }

    async fn clean(&self, stream: &str, keep_ms: i64, limit: u32) -> Result<u64, StoreError> {
        self.meet("clean").await?;
        OutboxStore::clean(&*self.db, stream, keep_ms, limit).await
    }

    async fn move_due(&self, stream: &str, limit: u32) -> Result<Due, StoreError> {
        self.meet("move_due").await?;
        OutboxStore::move_due(&*self.db, stream, limit).await
    }

    async fn measure(&self, stream: &str) -> Result<Option<Measured>, StoreError> {
        self.meet("measure").await?;
        self.db.measure(stream).await
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        self.db.backlog().await
    }
}

/// What a relay asks of the desk; the rest is a person's.
#[async_trait]
impl OutboxDesk for Troubled {
    async fn take(&self, lease: &ShardLease, size: PageSize) -> Result<Guarded<Taken>, StoreError> {
        OutboxDesk::take(&*self.db, lease, size).await
    }

    async fn settle(
        &self,
        lease: &ShardLease,
        save: &RedriveSave,
    ) -> Result<Guarded<Vec<Bytes>>, StoreError> {
        OutboxDesk::settle(&*self.db, lease, save).await
    }

    async fn note(&self, lease: &ShardLease, note: Option<&str>) -> Result<Guarded<()>, StoreError> {
        self.meet("note").await?;
        OutboxDesk::note(&*self.db, lease, note).await
    }

    async fn desk_rows(&self, _: &DeskQuery) -> Result<Vec<DeskRow>, StoreError> {
        unreachable!("no relay asks this")
    }

    async fn desk_row(&self, _: i64) -> Result<Option<DeskRow>, StoreError> {
        unreachable!("no relay asks this")
    }

    async fn change(&self, _: &DeskRequest) -> Result<Result<(), DeskRefusal>, StoreError> {
        unreachable!("no relay asks this")
    }

    async fn desk_log(&self, _: i64, _: u32) -> Result<Vec<DeskEntry>, StoreError> {
        unreachable!("no relay asks this")
    }

    async fn standing(&self) -> Result<Standing, StoreError> {
        unreachable!("no relay asks this")
    }

    async fn rescan(&self, _: Option<&str>, _: &str, _: &str, _: bool) -> Result<Rescan, StoreError> {
        unreachable!("no relay asks this")
    }

    async fn replay(&self, _: &Replay) -> Result<Replayed, StoreError> {
        unreachable!("no relay asks this")
    }

    async fn kept(&self, _: &str, _: i64, _: u32) -> Result<Vec<KeptRow>, StoreError> {
        unreachable!("no relay asks this")
    }

    async fn last_row(&self) -> Result<i64, StoreError> {
        unreachable!("no relay asks this")
    }

    async fn log_about(&self, _: &str, _: &str, _: &str, _: &str) -> Result<(), StoreError> {
        unreachable!("no relay asks this")
    }
}
