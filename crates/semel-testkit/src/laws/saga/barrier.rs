//! The barrier of a participant.

use async_trait::async_trait;
use semel_core::StoredOutcome;
use semel_core::saga::{BarrierCall, BarrierCode, Op};

use super::world::id;

/// What a participant's work does with its own tables before its answer is stored.
#[derive(Debug, Clone)]
pub enum Work {
    /// Adds one effect (or takes one back), answers with these bytes.
    Succeed(&'static str),
    /// Adds an effect, then refuses with these bytes: the effect must not stay.
    Refuse(&'static str),
    /// Adds an effect; then its process dies before the commit.
    Die,
}

/// What a participant answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SiteAnswer {
    /// The work ran, with this outcome.
    Ran(StoredOutcome),
    /// It died.
    Died,
    /// It was done before, with this outcome.
    Replayed(StoredOutcome),
    /// Turned away.
    Refused(BarrierCode),
    /// Nothing to undo.
    NothingToUndo,
    /// Another call of the step is running; nothing was done.
    Busy,
}

/// A participant with the backend's barrier and a table of effects of its own: one number per saga and step, raised by
/// an action and lowered by a compensation.
#[async_trait]
pub trait Site: Send + Sync {
    /// Takes a call in a transaction of its own: asks the barrier, does the work if it may, stores, commits.
    async fn call(&self, call: &BarrierCall, work: Work) -> SiteAnswer;

    /// The number of effects of a saga's step, and how often it was changed.
    async fn effects(&self, saga: &str, step: &str) -> (i64, i64);
}

fn call(op: Op, epoch: i64, action_succeeded: bool) -> BarrierCall {
    BarrierCall {
        saga: id("order-1"),
        step: "charge".into(),
        op,
        epoch,
        action_succeeded,
        not_after: None,
    }
}

fn action() -> BarrierCall {
    call(Op::Action, 1, false)
}

/// The compensation of an action of which nothing is known.
fn undo() -> BarrierCall {
    call(Op::Compensation, 1, false)
}

fn succeeded(bytes: &'static str) -> StoredOutcome {
    StoredOutcome::Succeeded(bytes.into())
}

async fn effects(site: &dyn Site) -> (i64, i64) {
    site.effects("order-1", "charge").await
}

/// Duplicates first: whatever else is true, it was answered.
pub async fn an_action_happens_once_and_its_duplicates_get_the_first_answer(site: &dyn Site) {
    assert_eq!(
        site.call(&action(), Work::Succeed("paid")).await,
        SiteAnswer::Ran(succeeded("paid"))
    );
    for _ in 0..2 {
        let again = site.call(&action(), Work::Refuse("broke")).await;
        assert_eq!(again, SiteAnswer::Replayed(succeeded("paid")));
    }
    assert_eq!(effects(site).await, (1, 1));
}

/// Only the refusal itself is kept.
pub async fn a_refusal_is_kept_and_takes_back_what_the_work_wrote(site: &dyn Site) {
    let refused = StoredOutcome::Refused("broke".into());
    assert_eq!(
        site.call(&action(), Work::Refuse("broke")).await,
        SiteAnswer::Ran(refused.clone())
    );
    assert_eq!(effects(site).await, (0, 0));
    assert_eq!(
        site.call(&action(), Work::Succeed("paid")).await,
        SiteAnswer::Replayed(refused)
    );
    assert_eq!(effects(site).await, (0, 0));
}

/// Whether the action is known to have happened or not.
pub async fn a_compensation_undoes_once(site: &dyn Site) {
    site.call(&action(), Work::Succeed("paid")).await;
    let known = call(Op::Compensation, 1, true);
    assert_eq!(
        site.call(&known, Work::Succeed("refunded")).await,
        SiteAnswer::Ran(succeeded("refunded"))
    );
    for again in [known, undo()] {
        assert_eq!(
            site.call(&again, Work::Succeed("")).await,
            SiteAnswer::Replayed(succeeded("refunded"))
        );
    }
    assert_eq!(effects(site).await, (0, 2));
    // The action's duplicate is still the action's duplicate.
    assert_eq!(
        site.call(&action(), Work::Succeed("")).await,
        SiteAnswer::Replayed(succeeded("paid"))
    );
    assert_eq!(effects(site).await, (0, 2));
}

/// The late action is refused by a code of its own, never answered with success.
pub async fn a_compensation_before_its_action_turns_the_action_away(site: &dyn Site) {
    assert_eq!(
        site.call(&undo(), Work::Succeed("")).await,
        SiteAnswer::NothingToUndo
    );
    for _ in 0..2 {
        let late = site.call(&action(), Work::Succeed("paid")).await;
        assert_eq!(late, SiteAnswer::Refused(BarrierCode::StepCancelled));
    }
    assert_eq!(
        site.call(&undo(), Work::Succeed("")).await,
        SiteAnswer::Replayed(succeeded(""))
    );
    assert_eq!(effects(site).await, (0, 0));
}

/// It is known that nothing happened.
pub async fn a_compensation_of_a_refused_action_undoes_nothing(site: &dyn Site) {
    site.call(&action(), Work::Refuse("broke")).await;
    assert_eq!(
        site.call(&undo(), Work::Succeed("")).await,
        SiteAnswer::NothingToUndo
    );
    assert_eq!(effects(site).await, (0, 0));
}

/// Rule S2. And it writes nothing, so that a row put back later still counts.
pub async fn a_known_action_without_a_row_is_lost_never_nothing_to_undo(site: &dyn Site) {
    let known = call(Op::Compensation, 1, true);
    for _ in 0..2 {
        let lost = site.call(&known, Work::Succeed("")).await;
        assert_eq!(lost, SiteAnswer::Refused(BarrierCode::BarrierLost));
    }
    assert_eq!(
        site.call(&action(), Work::Succeed("paid")).await,
        SiteAnswer::Ran(succeeded("paid"))
    );
    assert_eq!(
        site.call(&known, Work::Succeed("")).await,
        SiteAnswer::Ran(succeeded(""))
    );
    assert_eq!(effects(site).await, (0, 2));
}

/// Whoever calls with a lower epoch no longer owns the saga.
pub async fn a_lower_epoch_is_turned_away_and_a_higher_one_remembered(site: &dyn Site) {
    let stale = SiteAnswer::Refused(BarrierCode::StaleEpoch);
    assert_eq!(
        site.call(&call(Op::Action, 5, false), Work::Succeed("paid"))
            .await,
        SiteAnswer::Ran(succeeded("paid"))
    );
    assert_eq!(
        site.call(&call(Op::Action, 4, false), Work::Succeed("")).await,
        stale
    );
    assert_eq!(
        site.call(&call(Op::Compensation, 4, true), Work::Succeed(""))
            .await,
        stale
    );
    // A duplicate under a higher epoch raises it.
    let higher = site.call(&call(Op::Action, 7, false), Work::Succeed("")).await;
    assert_eq!(higher, SiteAnswer::Replayed(succeeded("paid")));
    assert_eq!(
        site.call(&call(Op::Compensation, 6, true), Work::Succeed(""))
            .await,
        stale
    );
    assert_eq!(effects(site).await, (1, 1));
    let undone = site
        .call(&call(Op::Compensation, 7, true), Work::Succeed(""))
        .await;
    assert_eq!(undone, SiteAnswer::Ran(succeeded("")));
}

/// Mark and effect are one commit.
pub async fn a_crash_before_the_commit_leaves_nothing(site: &dyn Site) {
    assert_eq!(site.call(&action(), Work::Die).await, SiteAnswer::Died);
    assert_eq!(effects(site).await, (0, 0));
    assert_eq!(
        site.call(&action(), Work::Succeed("paid")).await,
        SiteAnswer::Ran(succeeded("paid"))
    );
    assert_eq!(site.call(&undo(), Work::Die).await, SiteAnswer::Died);
    assert_eq!(effects(site).await, (1, 1));
    assert_eq!(
        site.call(&undo(), Work::Succeed("")).await,
        SiteAnswer::Ran(succeeded(""))
    );
}

/// ("ab", "c") is not ("a", "bc").
pub async fn steps_and_sagas_do_not_meet(site: &dyn Site) {
    for (saga, step) in [("ab", "c"), ("a", "bc"), ("AB", "c")] {
        let call = BarrierCall {
            saga: id(saga),
            step: step.into(),
            ..action()
        };
        assert_eq!(
            site.call(&call, Work::Succeed("paid")).await,
            SiteAnswer::Ran(succeeded("paid"))
        );
        assert_eq!(site.effects(saga, step).await, (1, 1));
    }
}

/// Repeats a call while another one is in its way, as a coordinator does.
async fn insist(site: &dyn Site, call: &BarrierCall, work: Work) -> SiteAnswer {
    loop {
        match site.call(call, work.clone()).await {
            SiteAnswer::Busy => tokio::task::yield_now().await,
            answer => return answer,
        }
    }
}

/// All of them get an answer, one ran.
pub async fn ten_duplicates_at_once_happen_once(site: &dyn Site) {
    let call = action();
    let calls = (0..10).map(|_| insist(site, &call, Work::Succeed("paid")));
    let answers = futures_util::future::join_all(calls).await;
    let ran = answers
        .iter()
        .filter(|answer| matches!(answer, SiteAnswer::Ran(_)))
        .count();
    assert_eq!(ran, 1, "{answers:?}");
    assert_eq!(effects(site).await, (1, 1));
}

/// Either the action was first and is undone, or the compensation was and turned it away.
pub async fn action_and_compensation_at_once_leave_nothing_done(site: &dyn Site) {
    for round in 0..10 {
        let saga = format!("order-{round}");
        let act = BarrierCall {
            saga: id(&saga),
            ..action()
        };
        let back = BarrierCall {
            saga: id(&saga),
            ..undo()
        };
        let (act, back) = futures_util::future::join(
            insist(site, &act, Work::Succeed("paid")),
            insist(site, &back, Work::Succeed("refunded")),
        )
        .await;
        let (left, changes) = site.effects(&saga, "charge").await;
        match (act, back) {
            (SiteAnswer::Ran(_), SiteAnswer::Ran(_)) => assert_eq!((left, changes), (0, 2)),
            (SiteAnswer::Refused(BarrierCode::StepCancelled), SiteAnswer::NothingToUndo) => {
                assert_eq!((left, changes), (0, 0));
            }
            other => panic!("{other:?}"),
        }
    }
}
