//! What the laws run in.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use semel_core::host::{random_16, uuid_v7};
use semel_core::model::{MemoryOutbox, MemoryTransaction};
use semel_core::relay::{Cursor, OwnedShard, ShardLease};
use semel_core::store::{Acquire, CursorSave, EVENT_REPEATED, Guarded, Opening, OutboxRow, PageSize};
use semel_core::{Event, Nonce, OutboxStore, StoreError, SystemClock};

use uuid::Uuid;

use crate::clock::ManualClock;

/// What the laws read at once.
pub const PAGE: PageSize = PageSize {
    rows: 100,
    bytes: 1 << 20,
};
/// The lease of the laws' owners, in milliseconds.
pub(super) const LEASE_MS: i64 = 30_000;

/// A business transaction.
#[async_trait]
pub trait Writer: Send {
    /// Takes the lock by which writers of one key take turns, as a row of the business would.
    async fn lock(&mut self, key: &str);
    /// Writes an event.
    async fn enqueue(&mut self, event: &Event) -> Result<i64, StoreError>;
    /// Writes several events in order, or none.
    async fn enqueue_many(&mut self, events: &[Event]) -> Result<Vec<i64>, StoreError>;
    /// Writes the events whose ids are new.
    async fn enqueue_new(&mut self, events: &[Event]) -> Result<Vec<Option<i64>>, StoreError>;
    /// Writes an event that is to enter the outbox so many milliseconds from now. Only for stores that keep such.
    async fn enqueue_in(&mut self, _event: &Event, _ms: i64) -> Result<(), StoreError> {
        panic!("this store keeps no delayed events")
    }
    /// Writes several such events in one call.
    async fn enqueue_many_in(&mut self, _events: &[(Event, i64)]) -> Result<(), StoreError> {
        panic!("this store keeps no delayed events")
    }
    /// Takes a delayed event back; whether it still waited.
    async fn cancel(&mut self, _id: Uuid) -> Result<bool, StoreError> {
        panic!("this store keeps no delayed events")
    }
    /// Commits.
    async fn commit(self: Box<Self>);
    /// Rolls back.
    async fn rollback(self: Box<Self>);
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// An outbox under test, its business transactions, and time in it.
pub struct World {
    /// The store.
    pub store: Arc<dyn OutboxStore>,
    /// Whether two business transactions can be open at once.
    pub writers_overlap: bool,
    begin: Box<dyn Fn() -> Boxed<Box<dyn Writer>> + Send + Sync>,
    pass: Box<dyn Fn(i64) -> Boxed<()> + Send + Sync>,
}

impl World {
    /// A store; how a business transaction begins in it; and what makes so many milliseconds pass for its leases.
    pub fn new<B, P>(
        store: Arc<dyn OutboxStore>,
        writers_overlap: bool,
        begin: impl Fn() -> B + Send + Sync + 'static,
        pass: impl Fn(i64) -> P + Send + Sync + 'static,
    ) -> Self
    where
        B: Future<Output = Box<dyn Writer>> + Send + 'static,
        P: Future<Output = ()> + Send + 'static,
    {
        Self {
            store,
            writers_overlap,
            begin: Box::new(move || Box::pin(begin())),
            pass: Box::new(move |ms| Box::pin(pass(ms))),
        }
    }

    /// Begins a business transaction.
    pub async fn begin(&self) -> Box<dyn Writer> {
        (self.begin)().await
    }

    /// Lets time pass.
    pub async fn pass_ms(&self, ms: i64) {
        (self.pass)(ms).await;
    }

    /// Writes events, one transaction each; their row numbers.
    pub async fn write(&self, events: &[Event]) -> Vec<i64> {
        let mut rows = Vec::new();
        for event in events {
            let mut tx = self.begin().await;
            rows.push(tx.enqueue(event).await.unwrap());
            tx.commit().await;
        }
        rows
    }

    /// A wish for every shard of the stream `default`.
    #[must_use]
    pub fn wish(&self) -> Acquire {
        Acquire {
            stream: "default".to_owned(),
            max: 100,
            owner: "law".to_owned(),
            nonce: Nonce(random_16()),
            relay: Nonce(random_16()),
            lease_ms: LEASE_MS,
        }
    }

    /// Registers the stream `default` with one shard and owns it.
    pub async fn reader(&self) -> Reader {
        self.store.register_stream("default", 1).await.unwrap();
        self.take_over().await.expect("the shard is free")
    }

    /// Owns the shard, if it is free.
    pub async fn take_over(&self) -> Option<Reader> {
        let owned = self.store.acquire(&self.wish()).await.unwrap().pop()?;
        Some(Reader::new(Arc::clone(&self.store), owned))
    }
}

/// An owner that settles everything it reads.
pub struct Reader {
    /// The store.
    pub store: Arc<dyn OutboxStore>,
    /// What it got.
    pub owned: OwnedShard,
    /// The cursor as it knows it.
    pub cursor: Cursor,
}

impl Reader {
    /// The owner of this shard.
    #[must_use]
    pub fn new(store: Arc<dyn OutboxStore>, owned: OwnedShard) -> Self {
        let cursor = owned.cursor.clone();
        Self { store, owned, cursor }
    }

    /// Its right.
    #[must_use]
    pub const fn lease(&self) -> &ShardLease {
        &self.owned.lease
    }

    /// Opens the next batch; whether there is one.
    pub async fn open(&mut self) -> bool {
        let reply = self
            .store
            .open_batch(self.lease(), &self.cursor, false, PAGE)
            .await
            .unwrap();
        match reply {
            Guarded::Done(Opening::Opened(cursor, first)) => {
                assert!(cursor.batch_no > self.cursor.batch_no);
                if let Some(first) = first {
                    let page = self
                        .store
                        .read_page(self.lease(), &cursor, cursor.last_id, PAGE)
                        .await;
                    let Guarded::Done(page) = page.unwrap() else {
                        panic!("a batch just opened is not its owner's")
                    };
                    // How many rows come at once is the store's choice.
                    assert!(page.rows.starts_with(&first.rows), "{first:?} of {page:?}");
                    assert!(first.more || page == first, "{first:?} of {page:?}");
                }
                self.cursor = cursor;
                true
            }
            Guarded::Done(Opening::Empty) => false,
            other => panic!("{other:?}"),
        }
    }

    /// All rows of the open batch above `last_id`.
    pub async fn rest(&self) -> Vec<OutboxRow> {
        let mut rows: Vec<OutboxRow> = Vec::new();
        let mut after = self.cursor.last_id;
        loop {
            let reply = self
                .store
                .read_page(self.lease(), &self.cursor, after, PAGE)
                .await
                .unwrap();
            let Guarded::Done(page) = reply else {
                panic!("{reply:?}")
            };
            for row in page.rows {
                assert!(row.barred.is_none(), "{row:?}");
                assert!(row.row.row > after, "pages are ordered by number");
                after = row.row.row;
                // As relays do.
                let batch_no = self.cursor.batch_no;
                rows.push(OutboxRow { batch_no, ..row.row });
            }
            if !page.more {
                return rows;
            }
        }
    }

    /// Opens the next batch and reads it; nothing when there is none.
    pub async fn batch(&mut self) -> Vec<OutboxRow> {
        if self.open().await {
            self.rest().await
        } else {
            Vec::new()
        }
    }

    /// What a save of `last_id` would be.
    #[must_use]
    pub fn saving(&self, last_id: i64, finished: bool) -> CursorSave {
        CursorSave {
            from: self.cursor.clone(),
            last_id,
            finished,
            suspect: None,
            exceptions: Vec::new(),
            log: None,
        }
    }

    /// Saves that rows up to this one are settled.
    pub async fn save(&mut self, last_id: i64, finished: bool) {
        let save = self.saving(last_id, finished);
        self.write(&save).await;
    }

    /// Saves.
    pub async fn write(&mut self, save: &CursorSave) {
        let reply = self.store.save_cursor(self.lease(), save).await.unwrap();
        let Guarded::Done(cursor) = reply else {
            panic!("{reply:?}")
        };
        assert_eq!(cursor, save.apply());
        self.cursor = cursor;
    }
}

/// An event with a fresh id.
#[must_use]
pub fn event(key: &str, data: &str) -> Event {
    Event::new(uuid_v7(&SystemClock), "orders", "order.placed")
        .with_key(key.to_owned())
        .with_data("text/plain", data.to_owned())
}

/// What the rows say.
#[must_use]
pub(super) fn texts(rows: &[OutboxRow]) -> Vec<String> {
    let text = |row: &OutboxRow| String::from_utf8(row.event.data.clone().unwrap().to_vec()).unwrap();
    rows.iter().map(text).collect()
}

/// The in-memory model.
#[must_use]
pub fn memory() -> World {
    let clock = Arc::new(ManualClock::default());
    let outbox = Arc::new(MemoryOutbox::new(clock.clone()));
    let store: Arc<dyn OutboxStore> = outbox.clone();
    let locks = Locks::default();
    let begin = move || {
        let tx: Box<dyn Writer> = Box::new(Memory {
            tx: outbox.begin(),
            locks: Arc::clone(&locks),
            held: Vec::new(),
        });
        std::future::ready(tx)
    };
    World::new(store, true, begin, move |ms| {
        clock.advance_ms(ms);
        std::future::ready(())
    })
}

type Locks = Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>;

struct Memory {
    tx: MemoryTransaction,
    locks: Locks,
    held: Vec<tokio::sync::OwnedMutexGuard<()>>,
}

#[async_trait]
impl Writer for Memory {
    async fn lock(&mut self, key: &str) {
        let lock = Arc::clone(self.locks.lock().unwrap().entry(key.to_owned()).or_default());
        self.held.push(lock.lock_owned().await);
    }

    async fn enqueue(&mut self, event: &Event) -> Result<i64, StoreError> {
        self.tx.enqueue(event.clone())
    }

    async fn enqueue_many(&mut self, events: &[Event]) -> Result<Vec<i64>, StoreError> {
        events.iter().try_for_each(Event::check)?;
        events
            .iter()
            .map(|event| self.tx.enqueue(event.clone()))
            .collect()
    }

    async fn enqueue_new(&mut self, events: &[Event]) -> Result<Vec<Option<i64>>, StoreError> {
        events.iter().try_for_each(Event::check)?;
        let written = |event: &Event| match self.tx.enqueue(event.clone()) {
            Ok(row) => Ok(Some(row)),
            Err(error) if error.code() == EVENT_REPEATED => Ok(None),
            Err(error) => Err(error),
        };
        events.iter().map(written).collect()
    }

    async fn enqueue_in(&mut self, event: &Event, ms: i64) -> Result<(), StoreError> {
        self.tx.enqueue_in(event.clone(), ms)
    }

    async fn enqueue_many_in(&mut self, events: &[(Event, i64)]) -> Result<(), StoreError> {
        events.iter().try_for_each(|(event, _)| event.check())?;
        events
            .iter()
            .try_for_each(|(event, ms)| self.tx.enqueue_in(event.clone(), *ms))
    }

    async fn cancel(&mut self, id: Uuid) -> Result<bool, StoreError> {
        Ok(self.tx.cancel(id))
    }

    async fn commit(self: Box<Self>) {
        self.tx.commit();
    }

    async fn rollback(self: Box<Self>) {}
}
