//! The saga's participants: every effect commits together with the barrier's row, so that a call may come twice, late,
//! or after its own compensation, and the effect is there once or not at all.

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use semel_core::saga::{BarrierCall, BarrierCode};
use semel_core::{Scope, StoreError, StoredOutcome, wire};
use semel_inbox::{Delivery, HandlerError, ReceiveError, Received, receive};
use semel_sqlite::Sqlite;
use semel_sqlite::tx::{Barrier, barrier};
use serde::Deserialize;
use sqlx::SqliteConnection;

use crate::demo::shop::{Effect, Step, record, refusal, think};
use crate::demo::trouble::{Doing as _, Trouble};

/// What a step of the saga does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Adds a row for an effect.
    Effect(Effect),
    /// Sets the order's status.
    Status {
        /// In the URL.
        name: &'static str,
        status: &'static str,
    },
}

impl Work {
    pub(super) const OPEN: Self = Self::Status {
        name: "open",
        status: "open",
    };
    pub(super) const CANCEL: Self = Self::Status {
        name: "cancel",
        status: "cancelled",
    };
    pub(super) const CONFIRM: Self = Self::Status {
        name: "confirm",
        status: "confirmed",
    };

    const fn name(self) -> &'static str {
        match self {
            Self::Effect(effect) => effect.name(),
            Self::Status { name, .. } => name,
        }
    }
}

pub(super) fn payments(db: Sqlite) -> Router {
    router(db, &[Work::Effect(Effect::Charge), Work::Effect(Effect::Refund)])
}

pub(super) fn stock(db: Sqlite) -> Router {
    router(
        db,
        &[Work::Effect(Effect::Reserve), Work::Effect(Effect::Release)],
    )
}

/// Shipping also receives the order events, and writes to the customer about each.
pub(super) fn shipping(db: Sqlite) -> Result<Router, Trouble> {
    let inbox = Inbox {
        db: db.clone(),
        scope: Scope::new("shipping").doing("name the inbox")?,
    };
    let events = Router::new().route("/events", post(notify)).with_state(inbox);
    Ok(router(db, &[Work::Effect(Effect::Ship)]).merge(events))
}

/// One route per step.
pub(super) fn router(db: Sqlite, works: &[Work]) -> Router {
    let router = works.iter().fold(Router::new(), |router, &work| {
        let handler = move |State(db): State<Sqlite>, headers: HeaderMap, body: Bytes| async move {
            handle(&db, work, &headers, &body).await
        };
        router.route(&format!("/{}", work.name()), post(handler))
    });
    router.with_state(db)
}

/// The part of a coordinator's request that matters here.
#[derive(Deserialize)]
struct Asked {
    input: Step,
}

async fn handle(db: &Sqlite, work: Work, headers: &HeaderMap, body: &Bytes) -> Response {
    let call = match BarrierCall::from_headers(headers) {
        Ok(call) => call,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    let step = match serde_json::from_slice(body) {
        Ok(Asked { input }) => input,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    think().await;
    match take_part(db, work, &call, &step).await {
        Ok(Said::Outcome(outcome)) => answer(&outcome),
        Ok(Said::TurnedAway(code)) => turned_away(code),
        Ok(Said::Busy) => StatusCode::TOO_EARLY.into_response(),
        // It may be that the commit went through and only its answer was lost: the coordinator asks again.
        Err(error) => {
            tracing::warn!(
                error = semel_core::error::chain(&error),
                step = call.step,
                "no answer"
            );
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
    }
}

enum Said {
    Outcome(StoredOutcome),
    TurnedAway(BarrierCode),
    Busy,
}

/// Barrier, effect and answer: one commit.
async fn take_part(db: &Sqlite, work: Work, call: &BarrierCall, step: &Step) -> Result<Said, StoreError> {
    let mut tx = db.begin().await?;
    let said = match barrier(&mut tx, call).await? {
        Barrier::Run(pending) => {
            let outcome = run(&mut tx, work, step).await?;
            pending.store(&mut tx, outcome.clone()).await?;
            Said::Outcome(outcome)
        }
        Barrier::Replay(outcome) => Said::Outcome(outcome),
        Barrier::NothingToUndo => Said::Outcome(StoredOutcome::Succeeded(Bytes::new())),
        Barrier::Refused(code) => Said::TurnedAway(code),
        Barrier::Busy => Said::Busy,
    };
    db.commit(tx).await?;
    Ok(said)
}

async fn run(db: &mut SqliteConnection, work: Work, step: &Step) -> Result<StoredOutcome, StoreError> {
    let failed = |error| semel_sqlite::classify("do the step", error);
    match work {
        Work::Effect(effect) => match refusal(effect, &step.order) {
            Some(why) => return Ok(StoredOutcome::Refused(why.into())),
            None => record(db, effect, step).await.map_err(failed)?,
        },
        Work::Status { status, .. } => {
            sqlx::query("UPDATE orders SET status = ?2 WHERE id = ?1")
                .bind(&step.order_id)
                .bind(status)
                .execute(db)
                .await
                .map_err(failed)?;
        }
    }
    Ok(StoredOutcome::Succeeded(work.name().into()))
}

fn answer(outcome: &StoredOutcome) -> Response {
    let (status, word) = match outcome {
        StoredOutcome::Succeeded(_) | StoredOutcome::Forgotten => (StatusCode::OK, "succeeded"),
        StoredOutcome::Refused(_) => (StatusCode::CONFLICT, "refused"),
    };
    let body = Bytes::copy_from_slice(outcome.bytes());
    (status, [(wire::OUTCOME, word)], body).into_response()
}

fn turned_away(code: BarrierCode) -> Response {
    let status = StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = [(wire::OUTCOME, code.outcome()), (wire::CODE, code.as_str())];
    (status, headers).into_response()
}

#[derive(Clone)]
struct Inbox {
    db: Sqlite,
    scope: Scope,
}

/// Writes to the customer about an event: the mark and the message are one commit.
async fn notify(
    State(inbox): State<Inbox>,
    delivery: Delivery,
) -> Result<Received<StatusCode>, ReceiveError> {
    think().await;
    receive(&inbox.db, &inbox.scope, &delivery, async |tx, delivery| {
        let step: Step = serde_json::from_slice(&delivery.data)
            .map_err(|error| HandlerError::Refused(error.to_string()))?;
        record(tx.conn(), Effect::Notify, &step)
            .await
            .map_err(|error| semel_sqlite::classify("notify", error))?;
        Ok(StatusCode::OK)
    })
    .await
}
