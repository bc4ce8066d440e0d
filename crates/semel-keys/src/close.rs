//! Closing the scope of a principal that is gone (rule K13).

use bytes::Bytes;
use semel_core::claim::{Keep, LeaseReply, Settlement, StateName, Verdict};
use semel_core::store::KeyQuery;
use semel_core::{ErrorKind, KeyStore, Retry, Scope, StoreError};

/// Times that a whole scope is gone through at most, while it still changes.
pub const PASSES_MAX: u32 = 16;

/// Records of one step of [`close_scope`]: they are read with what came of them.
const STEP_RECORDS: u32 = 100;

/// What a step of a closing came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Closed {
    /// Keys of which only a tombstone is left now, and was not before.
    pub closed: u64,
    /// Keys that somebody claimed or ended in between: another pass finds them.
    pub changed: u64,
    /// Where the next step begins; `None` at the end of a pass.
    pub next: Option<Bytes>,
}

/// Why a closing stopped, and what it had done: the store's error alone would be read as "nothing was done".
#[derive(Debug, Clone, thiserror::Error)]
#[error("{source}; {}", self.done())]
pub struct CloseError {
    closed: u64,
    perhaps: u64,
    #[source]
    source: StoreError,
}

impl CloseError {
    const fn before(source: StoreError) -> Self {
        Self {
            closed: 0,
            perhaps: 0,
            source,
        }
    }

    /// Keys that were closed before it stopped; they stay closed.
    #[must_use]
    pub const fn closed(&self) -> u64 {
        self.closed
    }

    /// Keys that may have been closed as well: the answer was lost, or somebody changed them in between.
    #[must_use]
    pub const fn perhaps(&self) -> u64 {
        self.perhaps
    }

    /// What the store said.
    #[must_use]
    pub const fn store(&self) -> &StoreError {
        &self.source
    }

    /// What a caller may do next: `Later` only where nothing was done. Closing again is always safe.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self.source.retry() {
            Retry::Later if self.closed + self.perhaps > 0 => Retry::OutcomeUnknown,
            retry => retry,
        }
    }

    fn done(&self) -> String {
        match (self.closed, self.perhaps) {
            (0, 0) if self.source.retry() == Retry::OutcomeUnknown => {
                "no key is known to be closed".to_owned()
            }
            (0, 0) => "no key was closed".to_owned(),
            (closed, 0) => format!("{closed} keys were closed before that, and stay closed"),
            (closed, perhaps) => {
                format!("{closed} keys were closed before that, and stay closed; {perhaps} more may be")
            }
        }
    }
}

impl From<CloseError> for StoreError {
    /// An error of the store's kind that says what was done; `ReplyLost` where the store's says that nothing was.
    fn from(error: CloseError) -> Self {
        let kind = match error.retry() {
            Retry::OutcomeUnknown => ErrorKind::ReplyLost,
            Retry::Never | Retry::Later => error.source.kind(),
        };
        Self::new(kind, "close", error.to_string()).with_source(error)
    }
}

/// One step of closing a scope: at most `limit` of its records. Go on while there is [`Closed::next`], and begin again
/// until a whole pass has closed nothing and found nothing changed; [`close_scope`] does that.
///
/// # Errors
/// The store's, with what was done before. What was closed stays closed: the step may be repeated.
pub async fn close_some(
    store: &dyn KeyStore,
    scope: &Scope,
    keep: Keep,
    from: Option<Bytes>,
    limit: u32,
) -> Result<Closed, CloseError> {
    keep.check().map_err(|limit| CloseError::before(limit.into()))?;
    let page = store
        .list(&KeyQuery {
            scope: Some(scope.clone()),
            state: None,
            from,
            limit,
        })
        .await
        .map_err(CloseError::before)?;
    let settlements: Vec<Settlement> = page
        .records
        .into_iter()
        .filter(|(_, record)| record.state.name() != Some(StateName::Tombstone))
        .filter_map(|(key, record)| {
            let token = record.lease()?.token;
            Some(Settlement {
                key,
                token,
                verdict: Verdict::Closed,
                keep,
            })
        })
        .collect();
    let mut step = Closed {
        next: page.next,
        ..Closed::default()
    };
    if settlements.is_empty() {
        return Ok(step);
    }
    let mut failed = None;
    for reply in store.settle_many(&settlements).await {
        match reply {
            Ok(LeaseReply::Ok(_)) => step.closed += 1,
            Ok(LeaseReply::LeaseLost | LeaseReply::Conflict) => step.changed += 1,
            // It may be closed: the next pass sees.
            Err(error) if error.retry() == Retry::OutcomeUnknown => step.changed += 1,
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        None => Ok(step),
        Some(source) => Err(CloseError {
            closed: step.closed,
            perhaps: step.changed,
            source,
        }),
    }
}

/// Closes a scope: of every key in it only a tombstone stays, for `keep` from now (retention and tombstone together).
/// Whoever uses one of these keys again is told that it was done (or that it was used for another request), and never
/// gets what came of it. The number of keys that were closed.
///
/// For the day on which a principal is deleted whose name may be given out again. **Take the principal's access away
/// first**: what is claimed while this runs is found by another pass, what is claimed later is not. Where names are never
/// given out again nothing need be closed.
///
/// # Crash
/// What was closed stays closed; run it again.
///
/// # Errors
/// The store's, with the number of keys that were closed before; `NotApplied` when after [`PASSES_MAX`] passes the scope still
/// changes.
///
/// ```
/// # async fn f(store: semel_sqlite::Sqlite) -> Result<(), semel_core::StoreError> {
/// use semel_core::{Keep, Scope};
/// let scope = Scope::of_parts(&[b"orders", b"user-4"]);
/// let closed = semel_keys::close_scope(&store, &scope, Keep::default()).await?;
/// println!("{closed} keys");
/// # Ok(()) }
/// ```
pub async fn close_scope(store: &dyn KeyStore, scope: &Scope, keep: Keep) -> Result<u64, CloseError> {
    let mut closed = 0;
    for _ in 0..PASSES_MAX {
        let (mut from, mut still) = (None, false);
        loop {
            let step = close_some(store, scope, keep, from, STEP_RECORDS).await;
            let step = step.map_err(|error| CloseError {
                closed: closed + error.closed,
                ..error
            })?;
            closed += step.closed;
            still |= step.closed + step.changed > 0;
            match step.next {
                Some(next) => from = Some(next),
                None => break,
            }
        }
        if !still {
            return Ok(closed);
        }
    }
    let text = format!(
        "keys of the scope {scope} are still being claimed after {PASSES_MAX} passes: take the principal's access away, and close \
         the scope again"
    );
    Err(CloseError {
        closed,
        perhaps: 0,
        source: StoreError::new(ErrorKind::NotApplied, "close", text),
    })
}
