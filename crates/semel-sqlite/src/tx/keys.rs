//! A key inside your own transaction.

use semel_core::claim::{Keep, Lease, State, Token, once as machine, step};
use semel_core::{
    Clock as _, ErrorKind, Fingerprint, Key, StoreError, StoredOutcome, SystemClock, Timestamp,
};
use sqlx::{Sqlite as Driver, Transaction};

use crate::store::key_rows;

/// The answer to [`once`].
pub type Once = semel_core::claim::Once<Pending>;

/// How [`once`] remembers.
#[derive(Debug, Clone, Copy, Default)]
pub struct OnceOptions {
    /// How long the outcome is remembered.
    pub keep: Keep,
    /// The moment by which leases and retentions are judged. Default the host's clock; give it
    /// [`Sqlite::now`](crate::Sqlite::now) when the store has a clock of its own.
    pub now: Option<Timestamp>,
}

/// Marks a key as done in your transaction and says whether this is the first time. Only on [`Once::First`] run the
/// effect, in this transaction, and give its outcome to [`Pending::complete`].
///
/// # Guarantees
/// *Atomic*: mark, outcome and your rows commit together. A rollback or a crash before the commit leaves nothing, and
/// the next one is first. A duplicate waits at [`Sqlite::begin`](crate::Sqlite::begin) until this transaction has
/// ended, then gets the outcome. A key that is claimed or unknown in the key store is never passed.
///
/// # Errors
/// A limit of `options.keep`; or the store's, after which the transaction can only be rolled back.
///
/// ```
/// # async fn f(db: &semel_sqlite::Sqlite, key: semel_core::Key) -> Result<(), Box<dyn std::error::Error>> {
/// use semel_core::Fingerprint;
/// use semel_core::claim::succeeded;
/// use semel_sqlite::tx::{Once, OnceOptions, once};
///
/// let mut tx = db.begin().await?;
/// let answer = match once(&mut tx, &key, Fingerprint::of(b"40.00 to Ada"), OnceOptions::default()).await? {
///     Once::First(pending) => {
///         sqlx::query("UPDATE account SET cents = cents + 4000 WHERE name = 'Ada'").execute(&mut *tx).await?;
///         pending.complete(&mut tx, succeeded("paid")).await?;
///         db.commit(tx).await?;
///         "paid".into()
///     }
///     Once::Done { outcome, .. } => String::from_utf8_lossy(outcome.bytes()).into_owned(),
///     other => format!("not now: {other:?}"),
/// };
/// # Ok(()) }
/// ```
pub async fn once(
    tx: &mut Transaction<'_, Driver>,
    key: &Key,
    fingerprint: Fingerprint,
    options: OnceOptions,
) -> Result<Once, StoreError> {
    let OnceOptions { keep, now } = options;
    keep.check()?;
    let now = now.unwrap_or_else(|| SystemClock.now());
    let record = key_rows::load(tx, "once", &[key])
        .await?
        .remove(key)
        .transpose()?;
    let next = Token(key_rows::last_token(tx, "once", now).await?.0.saturating_add(1));
    let fresh = machine::fresh(next);
    let (after, once) = machine::decide(record.clone(), key, fingerprint, keep, now, fresh);
    if step::changes(record.as_ref(), after.as_ref(), now) {
        key_rows::save(tx, "once", &[(key.clone(), after)]).await?;
        key_rows::set_token(tx, "once", next).await?;
    }
    Ok(once.map_first(|lease| Pending {
        key: key.clone(),
        lease,
        options,
    }))
}

/// The first run of a key, inside its transaction. Dropped without [`complete`](Pending::complete), the key is done
/// once the transaction commits, and duplicates hear that its outcome was not kept.
#[derive(Debug)]
#[must_use = "run the effect, then complete it in the same transaction"]
pub struct Pending {
    key: Key,
    lease: Lease,
    options: OnceOptions,
}

impl Pending {
    /// The fencing token of this run.
    #[must_use]
    pub const fn token(&self) -> Token {
        self.lease.token
    }

    /// Stores the outcome that duplicates will get; kept from now on for as long as the options said.
    ///
    /// # Errors
    /// An outcome over its limit; `Invalid` when this is not the transaction of its `once`.
    pub async fn complete(
        self,
        tx: &mut Transaction<'_, Driver>,
        outcome: StoredOutcome,
    ) -> Result<(), StoreError> {
        let Self { key, lease, options } = self;
        semel_core::claim::check_outcome(&outcome)?;
        let now = options.now.unwrap_or_else(|| SystemClock.now());
        let record = key_rows::load(tx, "complete", &[&key])
            .await?
            .remove(&key)
            .transpose()?;
        let Some(mut record) = record.filter(|record| record.lease() == Some(lease)) else {
            let text =
                "the key is not marked here: complete it in the transaction in which `once` said First";
            return Err(StoreError::new(ErrorKind::Invalid, "complete", text));
        };
        let retain_until = now.plus_ms(options.keep.retention_ms);
        record.state = State::Done {
            lease,
            outcome,
            retain_until,
            tombstone_until: retain_until.plus_ms(options.keep.tombstone_ms),
        };
        key_rows::save(tx, "complete", &[(key, Some(record))]).await
    }
}
