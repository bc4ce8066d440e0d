//! The operations: what was read is allowed or not, then asked of the store.

use std::sync::Arc;
use std::time::Duration;

use semel_core::claim::{Claim, ClaimReply, LeaseReply, Record, Settlement, State, Verdict};
use semel_core::error::chain;
use semel_core::host::random_16;
use semel_core::store::Replies;
use semel_core::{
    Clock as _, ErrorKind, Key, KeyStore, KeyStoreExt as _, Retry, StoreError, StoredOutcome, SystemClock,
};
use semel_keys::Issuer;
use tokio::sync::OwnedSemaphorePermit;

use super::Api;
use super::access::Grant;
use super::orphan::Orphan;
use super::problem::{Kind, Problem};
use super::reply::{Moment, Reply, claimed, issued, leased, listed, looked};
use super::request::{
    AbandonBody, ClaimBody, ClaimManyBody, Claiming, CloseScopeBody, Closing, CompleteBody, CompleteManyBody,
    ExtendBody, IssueBody, Issuing, ListBody, Person, ReadBody, ReleaseBody, SettleBody, WaitBody, read,
};
use super::routes::Name;

/// One request whose caller is known.
pub(super) struct Asked<'a> {
    pub(super) api: &'a Api,
    pub(super) grant: &'a Grant,
    pub(super) store: Arc<dyn KeyStore>,
    /// Its place among the requests in work; given up while it waits.
    pub(super) place: OwnedSemaphorePermit,
}

impl Asked<'_> {
    /// Does what a body asks for.
    ///
    /// # Errors
    /// It cannot be read, or is not allowed.
    pub(super) async fn run(self, name: Name, body: &[u8]) -> Result<Reply, Problem> {
        match name {
            Name::Issue => {
                let issuing = read::<IssueBody>(body)?.issuing()?;
                self.may_scope(Some(issuing.scope.as_bytes()))?;
                self.issue(&issuing)
            }
            Name::Claim => {
                let claiming = read::<ClaimBody>(body)?.claim("")?;
                self.may(&claiming.claim.key)?;
                match &claiming.principal {
                    Some(principal) => self.was_issued(&claiming.claim.key, &principal.0).await?,
                    None => unbound(&claiming.claim.key)?,
                }
                self.claim(claiming).await
            }
            Name::ClaimMany => {
                let claims = read::<ClaimManyBody>(body)?.claims()?;
                for claiming in &claims {
                    self.may(&claiming.claim.key)?;
                    unbound(&claiming.claim.key)?;
                }
                Ok(self.claim_many(claims).await)
            }
            Name::Extend => {
                let wish = read::<ExtendBody>(body)?.extension()?;
                self.may(&wish.key)?;
                let reply = self.write("extend", self.store.extend(&wish)).await;
                Ok(leased(reply, Moment::Until))
            }
            Name::Complete => {
                let done = read::<CompleteBody>(body)?.completion("")?;
                self.may(&done.key)?;
                let reply = self.write("complete", self.store.complete(&done)).await;
                self.api.waking.wake(&done.key);
                Ok(leased(reply, Moment::RetainUntil))
            }
            Name::CompleteMany => {
                let all = read::<CompleteManyBody>(body)?.completions()?;
                for done in &all {
                    self.may(&done.key)?;
                }
                let replies = self
                    .write_many("complete", all.len(), self.store.complete_many(&all))
                    .await;
                all.iter().for_each(|done| self.api.waking.wake(&done.key));
                let replies = replies.into_iter();
                Ok(Reply::many(
                    replies.map(|reply| leased(reply, Moment::RetainUntil)),
                ))
            }
            Name::Release => {
                let back = read::<ReleaseBody>(body)?.release()?;
                self.may(&back.key)?;
                let reply = self.write("release", self.store.release(&back)).await;
                self.api.waking.wake(&back.key);
                Ok(leased(reply, Moment::At))
            }
            Name::Abandon => {
                let given_up = read::<AbandonBody>(body)?.abandonment()?;
                self.may(&given_up.key)?;
                let reply = self.write("abandon", self.store.abandon(&given_up)).await;
                self.api.waking.wake(&given_up.key);
                Ok(leased(reply, Moment::At))
            }
            Name::Read => {
                let key = read::<ReadBody>(body)?.key()?;
                self.may(&key)?;
                let found = self.look("read", self.store.read(&key)).await;
                Ok(looked(&key, found))
            }
            Name::Wait => {
                let (key, wait_ms) = read::<WaitBody>(body)?.wait()?;
                self.may(&key)?;
                self.wait(key, wait_ms).await
            }
            Name::List => {
                let query = read::<ListBody>(body)?.query()?;
                let scope = query.scope.as_ref().map(|scope| scope.as_bytes());
                self.may_scope(scope)?;
                match self.look("list", self.store.list(&query)).await {
                    // Of all that is asked, only a page token can be wrong here.
                    Err(error) if error.kind() == ErrorKind::Invalid => {
                        Err(Problem::new(Kind::Unreadable, error.to_string()))
                    }
                    page => Ok(listed(page)),
                }
            }
            Name::Settle => {
                let (settlement, person) = read::<SettleBody>(body)?.settlement()?;
                self.may(&settlement.key)?;
                let reply = self.settle(settlement.clone(), person).await;
                let moment = match settlement.verdict {
                    Verdict::Happened(_) => Moment::RetainUntil,
                    Verdict::DidNotHappen | Verdict::Closed => Moment::At,
                };
                Ok(leased(reply, moment))
            }
            Name::CloseScope => {
                let closing = read::<CloseScopeBody>(body)?.closing()?;
                self.may_scope(Some(closing.scope.as_bytes()))?;
                self.close(closing).await
            }
        }
    }

    /// Some keys of a scope whose principal is gone, in a task of its own like [`Self::settle`].
    async fn close(self, closing: Closing) -> Result<Reply, Problem> {
        let Self {
            api,
            grant,
            store,
            place,
        } = self;
        let (request_max, token) = (api.limits.request_max, grant.name.clone());
        let task = api.tasks.spawn(async move {
            let _place = place;
            let Closing {
                scope,
                keep,
                from,
                limit,
                person,
            } = closing;
            let closing = async {
                match semel_keys::close_some(&*store, &scope, keep, from, limit).await {
                    Err(error) if error.closed() + error.perhaps() == 0 => Err(error.store().clone()),
                    step => Ok(step),
                }
            };
            let step = within(request_max, "close", ErrorKind::ReplyLost, closing).await;
            let result = match &step {
                Ok(Ok(step)) => format!("{} keys closed, {} changed meanwhile", step.closed, step.changed),
                Ok(Err(error)) => {
                    tell("close", error.store());
                    format!("stopped: {error}")
                }
                Err(error) => format!("stopped: {error}"),
            };
            tracing::info!(
                scope = %scope,
                by = person.by,
                why = person.why,
                api_token = token,
                result,
                "somebody closes a scope over the API"
            );
            step
        });
        let step = task.await.unwrap_or_else(|_| {
            let text = "the closing broke off, which is a mistake in semel";
            Err(StoreError::new(ErrorKind::ReplyLost, "close", text))
        });
        match step {
            // Of all that is asked, only a page token can be wrong here.
            Err(error) if error.kind() == ErrorKind::Invalid => {
                Err(Problem::new(Kind::Unreadable, error.to_string()))
            }
            Err(error) => Err(Problem::store(&error)),
            Ok(Err(error)) => Err(Problem::half_closed(&error)),
            Ok(Ok(step)) => Ok(super::reply::closed(step)),
        }
    }

    /// An id for a form that may be sent twice. Nothing is stored: it carries its end and a signature.
    fn issue(&self, issuing: &Issuing) -> Result<Reply, Problem> {
        let Some(issuer) = &self.api.issuer else {
            let detail = "ids are issued where [api] has an `issue_secret`";
            return Err(Problem::new(Kind::NoSuchOperation, detail));
        };
        let until = SystemClock.now().plus_ms(issuing.good_ms);
        let id = match &issuing.principal {
            Some(principal) => issuer.issue(&issuing.scope, &principal.0, until, random_16()),
            None => issuer.issue_in(&issuing.scope, until, random_16()),
        };
        Ok(issued(&id, until))
    }

    /// Refuses an id that was not issued for its scope and this principal. One whose time is over is good only where it
    /// was used in time: then the claim is answered by its record.
    async fn was_issued(&self, key: &Key, principal: &[u8]) -> Result<(), Problem> {
        let refused = |why: String| Err(Problem::new(Kind::NotIssued, why));
        let Some(issuer) = &self.api.issuer else {
            return refused("ids are issued where [api] has an `issue_secret`; nothing was done".to_owned());
        };
        match issuer.check_at(key.id(), key.scope(), principal) {
            Err(error) => refused(format!("{error}; nothing was done")),
            Ok((_, until)) if SystemClock.now() < until => Ok(()),
            Ok((_, until)) => match self.look("read", self.store.read(key)).await {
                Ok(Some(_)) => Ok(()),
                Ok(None) => refused(format!(
                    "the id was good until {}, and no record of it is here; this call did nothing, an earlier one may have \
                     if that is longer ago than records are kept: look before you ask for a new one",
                    until.rfc3339()
                )),
                Err(error) => Err(Problem::store(&error)),
            },
        }
    }

    fn may(&self, key: &Key) -> Result<(), Problem> {
        self.may_scope(Some(key.scope().as_bytes()))
    }

    fn may_scope(&self, scope: Option<&[u8]>) -> Result<(), Problem> {
        if self.grant.covers(scope) {
            return Ok(());
        }
        let name = &self.grant.name;
        let detail = match scope {
            Some(_) => format!("the token `{name}` is not for this scope: see `scopes` of its [[api.token]]"),
            None => format!("the token `{name}` is not for every scope: name one of its own in `scope`"),
        };
        Err(Problem::new(Kind::Forbidden, detail))
    }

    /// A call that changes something: what does not come in time may have been done.
    async fn write<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.within(operation, ErrorKind::ReplyLost, call).await
    }

    /// A call that changes nothing.
    async fn look<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.within(operation, ErrorKind::Unavailable, call).await
    }

    async fn within<T>(
        &self,
        operation: &'static str,
        late: ErrorKind,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        within(self.api.limits.request_max, operation, late, call).await
    }

    /// A person's decision, in a task of its own: a caller that leaves takes neither it nor its line in the log along.
    async fn settle(self, settlement: Settlement, person: Person) -> Result<LeaseReply, StoreError> {
        let Self {
            api,
            grant,
            store,
            place,
        } = self;
        let (limit, waking, token) = (
            api.limits.request_max,
            Arc::clone(&api.waking),
            grant.name.clone(),
        );
        let task = api.tasks.spawn(async move {
            let _place = place;
            let call = store.settle(&settlement);
            let reply = within(limit, "settle", ErrorKind::ReplyLost, call).await;
            log(&settlement, &person, &token, &reply);
            waking.wake(&settlement.key);
            reply
        });
        task.await.unwrap_or_else(|_| {
            let text = "the settlement broke off, which is a mistake in semel";
            Err(StoreError::new(ErrorKind::ReplyLost, "settle", text))
        })
    }

    async fn write_many<T>(
        &self,
        operation: &'static str,
        items: usize,
        call: impl Future<Output = Replies<T>>,
    ) -> Replies<T> {
        match self.write(operation, async { Ok(call.await) }).await {
            Ok(replies) => {
                // One line however many items a failure has.
                if let Some(error) = replies.iter().find_map(|reply| reply.as_ref().err()) {
                    tell(operation, error);
                }
                replies
            }
            Err(error) => (0..items).map(|_| Err(error.clone())).collect(),
        }
    }

    async fn claim_many(&self, claims: Vec<Claiming>) -> Reply {
        let mut claims_only = Vec::with_capacity(claims.len());
        let mut orphans = Vec::with_capacity(claims.len());
        for claiming in claims {
            orphans.push(Orphan::of(self.api, &self.store, &claiming));
            claims_only.push(claiming.claim);
        }
        let call = self.store.claim_many(&claims_only);
        let replies = self.write_many("claim", claims_only.len(), call).await;
        orphans.into_iter().flatten().for_each(Orphan::answered);
        let max = self.api.limits.reply_bytes_max;
        let mut room = max;
        let answers = replies.into_iter().zip(&claims_only).map(|(reply, claim)| {
            if let Ok(ClaimReply::Done { outcome, .. }) = &reply {
                match room.checked_sub(outcome.bytes().len()) {
                    Some(left) => room = left,
                    None => {
                        let detail = format!(
                            "it is done, and with its output this answer would have more than reply_bytes_max = {max} bytes of \
                             outputs: claim or read it alone"
                        );
                        return Problem::new(Kind::OutputLeftOut, detail).into();
                    }
                }
            }
            claimed(reply, claim.nonce)
        });
        Reply::many(answers)
    }

    async fn claim(self, claiming: Claiming) -> Result<Reply, Problem> {
        let orphan = Orphan::of(self.api, &self.store, &claiming);
        let reply = self.claim_and_wait(&claiming.claim, claiming.wait_ms).await;
        if let Some(orphan) = orphan {
            orphan.answered();
        }
        Ok(claimed(reply?, claiming.claim.nonce))
    }

    /// Claims, and again whenever the run of somebody else may have ended.
    async fn claim_and_wait(
        self,
        claim: &Claim,
        wait_ms: u64,
    ) -> Result<Result<ClaimReply, StoreError>, Problem> {
        let deadline = self.deadline(wait_ms);
        let first = self.write("claim", self.store.claim(claim)).await;
        if wait_ms == 0 || !matches!(first, Ok(ClaimReply::Busy { .. })) {
            return Ok(first);
        }
        let _waiting = self.waiting()?;
        let mut seat = self.api.waking.place(&claim.key);
        let Self {
            api, store, place, ..
        } = self;
        drop(place);
        let request_max = api.limits.request_max;
        loop {
            let longest = request_max.min(deadline.saturating_sub(SystemClock.monotonic()));
            let interest = seat.interest(store.as_ref(), longest, &api.stop).await;
            let reply = within(request_max, "claim", ErrorKind::ReplyLost, store.claim(claim)).await;
            let Ok(ClaimReply::Busy { lease_left_ms }) = reply else {
                return Ok(reply);
            };
            let lease_left = Duration::from_millis(u64::try_from(lease_left_ms).unwrap_or(0));
            if !seat.changed(interest, lease_left, deadline, &api.stop).await {
                return Ok(reply);
            }
        }
    }

    /// The record as soon as nobody runs the key, at the latest after the wait.
    async fn wait(self, key: Key, wait_ms: u64) -> Result<Reply, Problem> {
        let deadline = self.deadline(wait_ms);
        let _waiting = self.waiting()?;
        let mut seat = self.api.waking.place(&key);
        let Self {
            api, store, place, ..
        } = self;
        drop(place);
        let request_max = api.limits.request_max;
        loop {
            let longest = request_max.min(deadline.saturating_sub(SystemClock.monotonic()));
            let interest = seat.interest(store.as_ref(), longest, &api.stop).await;
            let found: Result<Option<Record>, StoreError> =
                within(request_max, "read", ErrorKind::Unavailable, store.read(&key)).await;
            let runs = matches!(&found, Ok(Some(record)) if matches!(record.state, State::Claimed { .. }));
            if !runs || !seat.changed(interest, Duration::MAX, deadline, &api.stop).await {
                return Ok(looked(&key, found));
            }
        }
    }

    fn deadline(&self, wait_ms: u64) -> Duration {
        SystemClock.monotonic() + Duration::from_millis(wait_ms).min(self.api.limits.wait_max)
    }

    /// A place among those who wait.
    fn waiting(&self) -> Result<Waiting, Problem> {
        let place = Arc::clone(&self.api.waiting).try_acquire_owned();
        let place = place.map_err(|_| {
            let max = self.api.limits.waiters_max;
            let detail = format!(
                "waiters_max = {max} of [api] requests wait already; nothing was done: ask again later, or raise it"
            );
            Problem::new(Kind::Overloaded, detail)
        })?;
        self.api.metrics.waiting.inc();
        Ok(Waiting {
            gauge: self.api.metrics.waiting.clone(),
            _place: place,
        })
    }
}

/// A call to the store, for so long at most. What the driver said is for the log: whoever asked hears what it means.
async fn within<T>(
    limit: Duration,
    operation: &'static str,
    late: ErrorKind,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let reply = tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
        let text = format!("no answer within request_ms_max = {} of [api]", limit.as_millis());
        Err(StoreError::new(late, operation, text))
    });
    if let Err(error) = &reply {
        tell(operation, error);
    }
    reply
}

fn tell(operation: &'static str, error: &StoreError) {
    tracing::warn!(
        operation,
        error = chain(error),
        "the store failed a request to the API"
    );
}

/// A person's decision, for whoever asks later why.
fn log(settlement: &Settlement, person: &Person, token: &str, reply: &Result<LeaseReply, StoreError>) {
    let verdict = match &settlement.verdict {
        Verdict::Happened(StoredOutcome::Refused(_)) => "refused",
        Verdict::Happened(_) => "succeeded",
        Verdict::DidNotHappen => "did not happen",
        Verdict::Closed => "closed",
    };
    let result = match reply {
        Ok(LeaseReply::Ok(_)) => "settled",
        Ok(LeaseReply::Conflict) => "not settled: it has ended otherwise",
        Ok(LeaseReply::LeaseLost) => "not settled: it is not unknown under this token",
        Err(error) if error.retry() == Retry::OutcomeUnknown => "the store's reply was lost",
        Err(_) => "not settled: the store failed",
    };
    tracing::info!(
        key = %settlement.key,
        token = settlement.token.0,
        verdict,
        by = person.by,
        why = person.why,
        api_token = token,
        result,
        "somebody settles a key over the API"
    );
}

/// Refuses an issued id that comes without its principal: it would be everybody's.
fn unbound(key: &Key) -> Result<(), Problem> {
    if !Issuer::has_form(key.id()) {
        return Ok(());
    }
    let detail = "this is an issued id, and only whom it was issued to may claim it: send it in a `claim` of its own with \
                  their `principal`; nothing was done";
    Err(Problem::new(Kind::NotIssued, detail))
}

/// One request that waits.
struct Waiting {
    gauge: prometheus_client::metrics::gauge::Gauge,
    _place: OwnedSemaphorePermit,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}
