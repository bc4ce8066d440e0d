//! Who waits for the end of a key's run hears of it by LISTEN and NOTIFY.
//!
//! NOTIFY makes writers take turns at their commit, so it is sent only where somebody waits: a waiter marks the key's row,
//! the statement that ends the run shows the mark, and a statement of its own, after that commit, tells. One connection
//! per handle listens; it is made when the first waiter comes and made again when it breaks.
//!
//! # Not guaranteed
//! Hints can be lost: whoever waits looks from time to time, too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use semel_core::key::{derive, hex};
use semel_core::store::Hint;
use semel_core::{Key, StoreError};
use sqlx::postgres::{PgConnectOptions, PgListener};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::db::Postgres;
use crate::error::classify;
use crate::gate::{Gate, query, query_scalar};

const CHANNEL: &str = "semel_key";
/// Between two tries to listen again.
const AGAIN: Duration = Duration::from_millis(500);
const SEEN: &str =
    "SELECT coalesce(waited, false) FROM semel.key WHERE scope = $1 AND id = $2 AND state = 'claimed'";
/// Waits for nobody: a row that is locked is being ended. The mark may be forgotten by a crash, so nothing is flushed.
const MARK: &str = "UPDATE semel.key SET waited = true
WHERE ctid = (SELECT ctid FROM semel.key WHERE scope = $1 AND id = $2 AND state = 'claimed' FOR UPDATE SKIP LOCKED)
  AND set_config('synchronous_commit', 'off', true) = 'off'";
const TELL: &str = "SELECT pg_notify($1, name) FROM unnest($2::text[]) AS ended (name)";

/// The waiters of a handle and its clones.
#[derive(Clone)]
pub(crate) struct Hints(Arc<Shared>);

struct Shared {
    /// `None` where nothing can be listened to: behind a pooler in transaction mode.
    connect: Option<PgConnectOptions>,
    waiting: Mutex<HashMap<String, watch::Sender<()>>>,
    listening: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(task) = self.listening.get_mut().take() {
            task.abort();
        }
    }
}

/// What travels: a hash, because a key is bytes and may be longer than a notification.
fn name(key: &Key) -> String {
    hex(&derive(&[key.scope().as_bytes(), key.id()])[..16])
}

impl Hints {
    pub(crate) fn new(connect: Option<PgConnectOptions>) -> Self {
        Self(Arc::new(Shared {
            connect,
            waiting: Mutex::default(),
            listening: tokio::sync::Mutex::default(),
        }))
    }

    /// Tells that the runs of these keys have ended, soon.
    pub(crate) fn ended<'k>(&self, db: &Postgres, keys: impl Iterator<Item = &'k Key>) {
        let names: Vec<String> = keys.map(name).collect();
        if names.is_empty() {
            return;
        }
        let own = db.own.clone();
        tokio::spawn(async move {
            let told = query(TELL).bind(CHANNEL).bind(names).execute(&own).await;
            if let Err(error) = told {
                tracing::debug!(%error, "a hint is lost");
            }
        });
    }

    pub(crate) async fn subscribe(&self, db: &Postgres, key: &Key) -> Option<Hint> {
        let mut told = self.0.register(name(key));
        // Listen, mark, and only then may the caller read the record (rule K11).
        self.listen().await?;
        match mark(db, key).await {
            Ok(Marked::Yes) => {}
            Ok(Marked::Ended) => return Some(Box::pin(std::future::ready(()))),
            // Were it ready at once, the waiter would ask again and again for as long as the lock is held.
            Ok(Marked::Locked) => return None,
            Err(error) => {
                tracing::debug!(%error, "the wish to be told is not marked");
                return None;
            }
        }
        let shared = Arc::clone(&self.0);
        let name = name(key);
        Some(Box::pin(async move {
            // An error is the end of the listener's handle: look.
            let _ = told.changed().await;
            drop(told);
            shared.forget(&name);
        }))
    }

    /// Makes sure that somebody listens; `None` when nobody can.
    async fn listen(&self) -> Option<()> {
        let options = self.0.connect.clone()?;
        let mut listening = self.0.listening.lock().await;
        if listening.as_ref().is_some_and(|task| !task.is_finished()) {
            return Some(());
        }
        let connected = async {
            let pool = Gate::options(1, Duration::from_secs(5))
                .connect_lazy_with(options.application_name("semel listen"));
            let mut listener = PgListener::connect_with(&pool).await?;
            listener.ignore_pool_close_event(true);
            listener.listen(CHANNEL).await?;
            Ok::<_, sqlx::Error>(listener)
        };
        match connected.await {
            Ok(listener) => {
                *listening = Some(tokio::spawn(hear(listener, Arc::downgrade(&self.0))));
                Some(())
            }
            Err(error) => {
                tracing::debug!(%error, "cannot listen for ended keys");
                None
            }
        }
    }
}

impl Shared {
    fn register(&self, name: String) -> watch::Receiver<()> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // Those whose waiters have gone.
        if waiting.len() >= 1_024 && waiting.len().is_power_of_two() {
            waiting.retain(|_, told| told.receiver_count() > 0);
        }
        waiting
            .entry(name)
            .or_insert_with(|| watch::channel(()).0)
            .subscribe()
    }

    fn forget(&self, name: &str) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.get(name).is_some_and(|told| told.receiver_count() == 0) {
            waiting.remove(name);
        }
    }

    fn tell(&self, name: Option<&str>) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |told: &watch::Sender<()>| told.send_replace(());
        match name {
            Some(name) => waiting.get(name).into_iter().for_each(of),
            None => waiting.values().for_each(of),
        }
    }
}

/// Whether a key's row says that somebody waits.
enum Marked {
    Yes,
    /// Nobody runs it.
    Ended,
    /// Somebody holds the row.
    Locked,
}

async fn mark(db: &Postgres, key: &Key) -> Result<Marked, StoreError> {
    let failed = |error| classify("subscribe", error);
    let seen = || {
        query_scalar::<bool>(SEEN)
            .bind(key.scope().as_bytes())
            .bind(key.id())
    };
    match seen().fetch_optional(&db.own).await.map_err(failed)? {
        None => return Ok(Marked::Ended),
        Some(true) => return Ok(Marked::Yes),
        Some(false) => {}
    }
    let marked = query(MARK)
        .bind(key.scope().as_bytes())
        .bind(key.id())
        .execute(&db.own)
        .await
        .map_err(failed)?;
    if marked.rows_affected() == 1 {
        return Ok(Marked::Yes);
    }
    let seen = seen().fetch_optional(&db.own).await.map_err(failed)?;
    Ok(seen.map_or(Marked::Ended, |_| Marked::Locked))
}

/// Passes on what is told, for as long as the handle lives. While the connection is away everybody is told.
async fn hear(mut listener: PgListener, shared: Weak<Shared>) {
    loop {
        let heard = listener.try_recv().await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        match heard {
            Ok(Some(ended)) => shared.tell(Some(ended.payload())),
            // It connects again by itself; what was told meanwhile is lost.
            Ok(None) => shared.tell(None),
            Err(error) => {
                tracing::debug!(%error, "listening again");
                shared.tell(None);
                drop(shared);
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}
