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

/// One step of closing a scope: at most `limit` of its records. Go on while there is [`Closed::next`], and begin again
/// until a whole pass has closed nothing and found nothing changed; [`close_scope`] does that.
///
/// # Errors
/// The store's. What was closed stays closed: the step may be repeated. `ReplyLost` where some keys were closed and the
/// store failed the others: any other error that says "later" means that nothing was done.
pub async fn close_some(
    store: &dyn KeyStore,
    scope: &Scope,
    keep: Keep,
    from: Option<Bytes>,
    limit: u32,
) -> Result<Closed, StoreError> {
    keep.check()?;
    let page = store
        .list(&KeyQuery {
            scope: Some(scope.clone()),
            state: None,
            from,
            limit,
        })
        .await?;
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
        // Nobody may read it as "nothing was done".
        Some(error) if step.closed + step.changed > 0 && error.retry() == Retry::Later => {
            let text = format!(
                "{} keys of the step were closed, and the store failed others",
                step.closed
            );
            Err(StoreError::new(ErrorKind::ReplyLost, "close", text).with_source(error))
        }
        Some(error) => Err(error),
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
/// The store's; and `NotApplied` when after [`PASSES_MAX`] passes the scope still changes.
///
/// ```
/// # async fn f(store: semel_sqlite::Sqlite) -> Result<(), semel_core::StoreError> {
/// use semel_core::{Keep, Scope};
/// let scope = Scope::of_parts(&[b"orders", b"user-4"]);
/// let closed = semel_keys::close_scope(&store, &scope, Keep::default()).await?;
/// println!("{closed} keys");
/// # Ok(()) }
/// ```
pub async fn close_scope(store: &dyn KeyStore, scope: &Scope, keep: Keep) -> Result<u64, StoreError> {
    let mut closed = 0;
    for _ in 0..PASSES_MAX {
        let (mut from, mut still) = (None, false);
        loop {
            let step = close_some(store, scope, keep, from, STEP_RECORDS).await?;
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
        "{closed} keys of the scope {scope} were closed, and others are still being claimed after {PASSES_MAX} passes: take \
         the principal's access away, and close the scope again"
    );
    Err(StoreError::new(ErrorKind::NotApplied, "close", text))
}
