//! The end of a run: the record first, then the answer.

use std::sync::Arc;
use std::time::Duration;

use http::response::Parts;
use http::{HeaderMap, Response};
use semel_core::error::chain;
use semel_core::host::dice;
use semel_core::{
    Clock, Completion, ErrorKind, KeyStoreExt, LeaseReply, Retry, StoredOutcome, SystemClock, Timestamp,
    crash_point, limits,
};

use super::produce::{Broken, Produced, judge_behind};
use super::pump::Pump;
use super::renew::Stopped;
use super::{Owned, outcome, release, replay};
use crate::behind::Waits;
use crate::body::Body;
use crate::observe::Event;
use crate::policy::{Ending, KeepFor, OutcomeWord};
use crate::problem::{Problem, ProblemKind};
use crate::shared::Shared;
use crate::within::within;

/// What storing an outcome came to.
enum Stored {
    /// It is durable, and kept so long.
    Until(Timestamp),
    /// The store gave no answer: the effect exists, so the answer goes out and storing goes on behind it.
    Later,
    /// The key is no longer ours.
    Lost,
}

/// Stores what came of the run, then answers.
pub(super) async fn finish<E>(
    shared: &Arc<Shared>,
    owned: &Owned,
    produced: Result<Produced<E>, Stopped>,
) -> Result<Response<Body>, E> {
    match produced {
        Ok(Produced::Whole(parts, body, trailers, ending)) => {
            let keep_for = parts.extensions.get::<KeepFor>().map(|asked| asked.0);
            let outcome = outcome::whole(ending, &parts, trailers.as_deref(), &body);
            let until = match complete(shared, owned, outcome, keep_for).await {
                Stored::Lost => return Ok(Box::pin(what_the_record_says(shared, owned)).await),
                Stored::Until(until) => Some(until),
                Stored::Later => None,
            };
            let mut response = Response::from_parts(*parts, Body::with_trailers(body, trailers));
            shared.stamp(&mut response, outcome::word(ending), until);
            Ok(response)
        }
        Ok(Produced::Unstored(response, ending)) => {
            Ok(Box::pin(unstored(shared, owned, *response, ending)).await)
        }
        Ok(Produced::Failed(error)) => {
            if !Box::pin(release::abandon(shared, owned)).await {
                return Ok(Box::pin(what_the_record_says(shared, owned)).await);
            }
            Err(error)
        }
        Ok(Produced::Broken(why)) => {
            tracing::error!(key = %owned.key, %why, "a run ended without a whole answer; the key is unknown");
            if !Box::pin(release::abandon(shared, owned)).await {
                return Ok(Box::pin(what_the_record_says(shared, owned)).await);
            }
            let answer = match &why {
                Broken::Body(error) => problem_in(&**error).map(|problem| shared.answer(problem)),
                Broken::Panic(_) | Broken::NobodyReads => None,
            };
            let detail = "the service failed before it gave a whole answer; the request may have been done and is \
                          not run again in silence";
            Ok(answer.unwrap_or_else(|| shared.problem(ProblemKind::HandlerFailed, detail)))
        }
        // A stream has an end of its own: `stream`.
        Ok(Produced::Stream(_)) | Err(Stopped) => Ok(Box::pin(what_the_record_says(shared, owned)).await),
    }
}

/// Ends a streamed answer: the record first, then the end of the stream.
pub(super) async fn stream(
    shared: &Arc<Shared>,
    owned: &Owned,
    ended: Result<Result<Option<Box<HeaderMap>>, Broken>, Stopped>,
    pump: &mut Pump,
    (parts, ending): (&Parts, Ending),
) {
    let lost = "the key was settled by somebody else while this answer was sent";
    match ended {
        Ok(Ok(mut trailers)) => match judge_behind(shared, parts, trailers.as_deref(), ending) {
            // Its head promised success; the end takes that back.
            Ending::Unknown => {
                if !release::abandon(shared, owned).await {
                    return pump.break_off(lost).await;
                }
                correct(&mut trailers, OutcomeWord::Unknown);
                pump.end(trailers).await;
            }
            Ending::Release | Ending::Defer => {
                if !release::give_back(shared, owned).await {
                    return pump.break_off(lost).await;
                }
                correct(&mut trailers, OutcomeWord::Refused);
                pump.end(trailers).await;
            }
            ending @ (Ending::Store | Ending::Refuse | Ending::Forget) => {
                let outcome = outcome::without_body(ending, parts);
                match complete(shared, owned, outcome, None).await {
                    Stored::Until(_) | Stored::Later => pump.end(trailers).await,
                    Stored::Lost => pump.break_off(lost).await,
                }
            }
        },
        Ok(Err(why)) => {
            tracing::error!(key = %owned.key, %why, "a run ended without a whole answer; the key is unknown");
            let mine = release::abandon(shared, owned).await;
            let why = if mine { why.to_string() } else { lost.to_owned() };
            pump.break_off(&why).await;
        }
        Err(Stopped) => pump.break_off(lost).await,
    }
}

fn correct(trailers: &mut Option<Box<HeaderMap>>, word: OutcomeWord) {
    if let Some(trailers) = trailers {
        trailers.insert(crate::headers::SEMEL_OUTCOME, word.header());
    }
}

/// An answer that is not to be stored, with what it says of the key done first.
async fn unstored(
    shared: &Arc<Shared>,
    owned: &Owned,
    mut response: Response<Body>,
    ending: Ending,
) -> Response<Body> {
    let said = OutcomeWord::read(response.headers().get(crate::headers::SEMEL_OUTCOME));
    let (mine, word) = match ending {
        Ending::Unknown => (release::abandon(shared, owned).await, OutcomeWord::Unknown),
        // The inner Semel's own word stays.
        Ending::Defer => (
            release::give_back(shared, owned).await,
            said.unwrap_or(OutcomeWord::Running),
        ),
        Ending::Store | Ending::Refuse | Ending::Forget | Ending::Release => (
            release::give_back(shared, owned).await,
            said.filter(|word| *word == OutcomeWord::Mismatch)
                .unwrap_or(OutcomeWord::Refused),
        ),
    };
    if !mine {
        return what_the_record_says(shared, owned).await;
    }
    shared.stamp(&mut response, word, None);
    response
}

fn completion(
    shared: &Shared,
    owned: &Owned,
    outcome: StoredOutcome,
    keep_for: Option<Duration>,
) -> Completion {
    let max = limits::RETENTION_MS_MAX;
    let mut keep = shared.config.keep;
    if let Some(asked) = keep_for {
        keep.retention_ms = i64::try_from(asked.as_millis()).unwrap_or(max).clamp(1, max);
    }
    Completion {
        key: owned.key.clone(),
        lease: owned.lease,
        outcome,
        keep,
    }
}

/// Stores an outcome: once while the client waits, then behind the answer.
async fn complete(
    shared: &Arc<Shared>,
    owned: &Owned,
    outcome: StoredOutcome,
    keep_for: Option<Duration>,
) -> Stored {
    let mut done = completion(shared, owned, outcome, keep_for);
    crash_point("http.before_complete");
    let mut reply = complete_once(shared, &done).await;
    // A store with a smaller limit than ours still learns that it was done, or refused.
    if let Err(Some(ErrorKind::LimitExceeded)) = reply
        && let Some(smaller) = outcome::smaller(&done.outcome)
    {
        done.outcome = smaller;
        reply = complete_once(shared, &done).await;
    }
    match reply {
        Ok(LeaseReply::Ok(until)) => {
            crash_point("http.completed");
            Stored::Until(until)
        }
        Ok(LeaseReply::LeaseLost | LeaseReply::Conflict) => Stored::Lost,
        Err(_) => {
            shared.saw(Event::StoredLater, Some(&owned.key));
            complete_in_background(shared, done);
            Stored::Later
        }
    }
}

/// One call within its time; the error's kind, or `None` when there was no answer at all.
async fn complete_once(shared: &Shared, done: &Completion) -> Result<LeaseReply, Option<ErrorKind>> {
    match within(shared.store_timeout(), shared.store.complete(done)).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(error)) => {
            tracing::warn!(key = %done.key, error = chain(&error), "cannot store an outcome");
            Err(Some(error.kind()))
        }
        Err(_) => {
            tracing::warn!(key = %done.key, "the store gave no answer to an outcome in time");
            Err(None)
        }
    }
}

/// The effect exists and its answer was sent: storing is tried until the policy ends; then the key stays unknown.
/// Asking again is safe: the same outcome is recognised (rule K2), and time alone refuses nothing (rule K1).
fn complete_in_background(shared: &Arc<Shared>, mut done: Completion) {
    let bytes = done.outcome.bytes().len();
    if shared.behind.bytes().saturating_add(bytes) > shared.config.behind_bytes_max
        && let Some(smaller) = outcome::smaller(&done.outcome)
    {
        tracing::error!(
            key = %done.key,
            behind_bytes_max = shared.config.behind_bytes_max,
            "so much waits for the store of keys that this answer is not kept, only what came of it"
        );
        done.outcome = smaller;
    }
    let mut waits = Waits::new(shared, done.outcome.bytes().len());
    let shared = Arc::clone(shared);
    let tasks = shared.tasks.clone();
    drop(tasks.spawn(async move {
        let began = SystemClock.monotonic();
        for attempt in 1.. {
            let elapsed = SystemClock.monotonic().saturating_sub(began).as_millis();
            let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX);
            let Some(pause) = shared.config.completion_retry.delay_ms(attempt, elapsed, dice()) else {
                tracing::error!(key = %done.key, "an outcome could not be stored; the key reads as unknown");
                break;
            };
            tokio::time::sleep(Duration::from_millis(pause)).await;
            match complete_once(&shared, &done).await {
                Ok(LeaseReply::Ok(_)) => break,
                Ok(reply) => {
                    tracing::error!(key = %done.key, ?reply, "the key was settled by somebody else before its outcome could be stored");
                    break;
                }
                Err(Some(ErrorKind::LimitExceeded)) if let Some(smaller) = outcome::smaller(&done.outcome) => {
                    done.outcome = smaller;
                    waits.resize(done.outcome.bytes().len());
                }
                Err(Some(kind)) if kind.retry() == Retry::Never => {
                    tracing::error!(key = %done.key, "the store does not take an outcome; the key reads as unknown");
                    break;
                }
                Err(_) => {}
            }
        }
        shared.waiters.wake(&done.key);
    }));
}

/// For an owner who has lost its lease (rule K11).
async fn what_the_record_says(shared: &Shared, owned: &Owned) -> Response<Body> {
    tracing::error!(key = %owned.key, "a run ended after its claim was lost; the answer is the record's");
    match tokio::time::timeout(shared.store_timeout(), shared.store.read(&owned.key)).await {
        Ok(Ok(record)) => replay::record(shared, owned, record),
        Ok(Err(_)) | Err(_) => shared.lost(&owned.key),
    }
}

/// The problem that a body failed with, however it was wrapped on its way here.
fn problem_in<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Problem> {
    std::iter::successors(Some(error), |error| error.source()).find_map(|error| error.downcast_ref())
}
