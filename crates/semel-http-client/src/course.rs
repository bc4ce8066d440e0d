//! What follows an attempt: another one, or the call's outcome. No clock, no I/O, no dice of its own.

use semel_core::RetryPolicy;

use crate::verdict::{Verdict, Why};

/// When an attempt ended, and what may follow it.
#[derive(Debug, Clone, Copy)]
pub struct At {
    /// Milliseconds since the call began.
    pub elapsed_ms: u64,
    /// Milliseconds since the key was first sent, by whomever.
    pub age_ms: u64,
    /// Uniform in 0..1.
    pub dice: f64,
    /// Whether the receiver deduplicates by the key, as far as is known.
    pub deduplicates: bool,
}

/// The rules of one call.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Back-off and budgets.
    pub retry: RetryPolicy,
    /// The key's age at which a repeat is not keyed any more.
    pub keyed_ms: u64,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Another attempt after so many milliseconds.
    Wait(u64),
    /// The operation ran to its end.
    Succeeded,
    /// It is certain that nothing happened.
    Refused,
    /// Neither is known.
    Unknown(Why),
}

/// One call on its way: how many attempts there were, and whether one of them may have been carried out.
#[derive(Debug, Clone, Copy, Default)]
pub struct Course {
    attempts: u32,
    doubt: Option<Why>,
    /// The receiver said by Semel's word that it holds the key.
    holds: bool,
}

impl Course {
    /// A call whose key was sent by an earlier one: its end is in doubt from the start.
    #[must_use]
    pub const fn repeat() -> Self {
        Self {
            attempts: 0,
            doubt: Some(Why::EarlierCall),
            holds: false,
        }
    }

    /// Attempts so far.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Whether it is certain that no attempt so far is at work or was carried out.
    #[must_use]
    pub const fn is_certain(&self) -> bool {
        self.doubt.is_none()
    }

    /// Whether the first attempt may be made; for the repeat of an earlier call it may not be keyed.
    ///
    /// # Errors
    /// Why the call ends before it begins.
    pub const fn may_begin(&self, rules: &Rules, at: At) -> Result<(), Why> {
        match self.doubt {
            Some(_) if at.age_ms >= rules.keyed_ms => Err(Why::WindowOver),
            Some(why) if !at.deduplicates => Err(why),
            _ => Ok(()),
        }
    }

    /// What follows an attempt that meant this.
    #[must_use]
    pub fn after(&mut self, verdict: Verdict, rules: &Rules, at: At) -> Next {
        self.attempts = self.attempts.saturating_add(1);
        match verdict {
            Verdict::Succeeded => Next::Succeeded,
            Verdict::Unknown => Next::Unknown(Why::ReceiverSaysSo),
            Verdict::Refused { settled: true } => Next::Refused,
            // It says nothing of the attempts before it.
            Verdict::Refused { settled: false } => self.doubt.map_or(Next::Refused, Next::Unknown),
            Verdict::Later(after) => self.again(after, rules, at),
            Verdict::Running(after) => {
                self.holds = true;
                self.doubt = Some(Why::StillRunning);
                self.again(after, rules, at)
            }
            Verdict::Perhaps {
                why,
                again: true,
                after,
            } => {
                self.doubt = Some(why);
                self.again(after, rules, at)
            }
            Verdict::Perhaps {
                why, again: false, ..
            } => Next::Unknown(why),
        }
    }

    fn again(self, after: Option<u64>, rules: &Rules, at: At) -> Next {
        let keyed = at.deduplicates || self.holds;
        if let (Some(why), false) = (self.doubt, keyed) {
            return Next::Unknown(why);
        }
        let Some(wait) = self.wait(after, &rules.retry, at) else {
            return self.doubt.map_or(Next::Refused, Next::Unknown);
        };
        if self.doubt.is_some() && at.age_ms.saturating_add(wait) >= rules.keyed_ms {
            return Next::Unknown(Why::WindowOver);
        }
        Next::Wait(wait)
    }

    /// As long as the receiver asks, and a little of chance on top, so that all who were told the same do not come at
    /// once; else the back-off.
    fn wait(self, after: Option<u64>, retry: &RetryPolicy, at: At) -> Option<u64> {
        match after.filter(|ms| *ms > 0) {
            None => retry.delay_ms(self.attempts, at.elapsed_ms, at.dice),
            Some(_) if self.attempts >= retry.attempts_max => None,
            Some(ms) => {
                let chance = retry.initial_ms as f64 * retry.jitter.clamp(0.0, 1.0) * at.dice.clamp(0.0, 1.0);
                let wait = ms.saturating_add(chance as u64);
                (at.elapsed_ms.saturating_add(wait) <= retry.total_ms_max).then_some(wait)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    const RULES: Rules = Rules {
        retry: RetryPolicy {
            initial_ms: 100,
            factor: 2.0,
            cap_ms: 1_000,
            jitter: 0.0,
            attempts_max: 4,
            total_ms_max: 10_000,
        },
        keyed_ms: 60_000,
    };
    const LATER: Verdict = Verdict::Later(None);
    const BROKEN: Verdict = Verdict::Perhaps {
        why: Why::Broken,
        again: true,
        after: None,
    };
    const NO: Verdict = Verdict::Refused { settled: false };

    fn at(elapsed_ms: u64, deduplicates: bool) -> At {
        At {
            elapsed_ms,
            age_ms: elapsed_ms,
            dice: 0.0,
            deduplicates,
        }
    }

    /// What follows the last of these attempts, each of which ended at once.
    fn last(verdicts: &[Verdict], deduplicates: bool) -> Next {
        let mut course = Course::default();
        verdicts
            .iter()
            .map(|verdict| course.after(*verdict, &RULES, at(0, deduplicates)))
            .last()
            .unwrap()
    }

    #[test]
    fn the_table_of_one_attempt() {
        let bad = Why::Answered(StatusCode::INTERNAL_SERVER_ERROR);
        for (verdict, plain, keyed) in [
            (Verdict::Succeeded, Next::Succeeded, Next::Succeeded),
            (NO, Next::Refused, Next::Refused),
            (LATER, Next::Wait(100), Next::Wait(100)),
            (Verdict::Later(Some(3_000)), Next::Wait(3_000), Next::Wait(3_000)),
            (
                Verdict::Running(Some(1_000)),
                Next::Wait(1_000),
                Next::Wait(1_000),
            ),
            (
                Verdict::Unknown,
                Next::Unknown(Why::ReceiverSaysSo),
                Next::Unknown(Why::ReceiverSaysSo),
            ),
            (BROKEN, Next::Unknown(Why::Broken), Next::Wait(100)),
            (
                Verdict::Perhaps {
                    why: bad,
                    again: false,
                    after: None,
                },
                Next::Unknown(bad),
                Next::Unknown(bad),
            ),
        ] {
            assert_eq!(last(&[verdict], false), plain, "{verdict:?}");
            assert_eq!(last(&[verdict], true), keyed, "{verdict:?}, keyed");
        }
    }

    #[test]
    fn a_refusal_after_an_unknown_attempt_says_nothing_of_it() {
        assert_eq!(last(&[BROKEN, NO], true), Next::Unknown(Why::Broken));
        assert_eq!(last(&[LATER, NO], true), Next::Refused);
        let settled = Verdict::Refused { settled: true };
        assert_eq!(last(&[BROKEN, settled], true), Next::Refused);
        assert_eq!(last(&[BROKEN, Verdict::Succeeded], true), Next::Succeeded);
        assert_eq!(
            last(&[BROKEN, LATER, LATER, LATER], true),
            Next::Unknown(Why::Broken),
            "the budget is spent, and the doubt is not"
        );
    }

    #[test]
    fn a_spent_budget_of_refusals_is_a_refusal_and_of_running_is_unknown() {
        assert_eq!(last(&[LATER; 3], false), Next::Wait(400));
        assert_eq!(last(&[LATER; 4], false), Next::Refused);
        let running = Verdict::Running(Some(1_000));
        assert_eq!(last(&[running; 4], false), Next::Unknown(Why::StillRunning));
    }

    #[test]
    fn who_says_running_holds_the_key_so_that_what_breaks_after_it_is_repeated() {
        assert_eq!(last(&[Verdict::Running(None), BROKEN], false), Next::Wait(200));
    }

    #[test]
    fn retry_after_is_honoured_within_the_budget_and_never_cut_short() {
        let mut course = Course::default();
        let wait = Verdict::Later(Some(4_000));
        assert_eq!(course.after(wait, &RULES, at(6_000, false)), Next::Wait(4_000));
        let mut course = Course::default();
        assert_eq!(course.after(wait, &RULES, at(6_001, false)), Next::Refused);
        assert_eq!(
            last(&[Verdict::Later(Some(0))], false),
            Next::Wait(100),
            "no busy loop"
        );
    }

    #[test]
    fn chance_never_shortens_what_the_receiver_asked_for() {
        let rules = Rules {
            retry: RetryPolicy {
                jitter: 0.5,
                ..RULES.retry
            },
            ..RULES
        };
        let at = At {
            dice: 1.0,
            ..at(0, false)
        };
        let mut course = Course::default();
        assert_eq!(
            course.after(Verdict::Later(Some(1_000)), &rules, at),
            Next::Wait(1_050)
        );
    }

    #[test]
    fn a_repeat_after_the_receivers_window_is_not_keyed() {
        let old = |age_ms| At {
            age_ms,
            ..at(0, true)
        };
        let mut course = Course::default();
        assert_eq!(course.after(BROKEN, &RULES, old(59_899)), Next::Wait(100));
        let mut course = Course::default();
        assert_eq!(
            course.after(BROKEN, &RULES, old(59_900)),
            Next::Unknown(Why::WindowOver)
        );
        let mut course = Course::default();
        assert_eq!(
            course.after(LATER, &RULES, old(59_900)),
            Next::Wait(100),
            "nothing happened, so nothing can happen twice"
        );
    }

    #[test]
    fn the_repeat_of_an_earlier_call_begins_only_where_it_is_keyed() {
        let begin = |age_ms, deduplicates| {
            let at = At {
                age_ms,
                ..at(0, deduplicates)
            };
            Course::repeat().may_begin(&RULES, at)
        };
        assert_eq!(begin(59_999, true), Ok(()));
        assert_eq!(begin(60_000, true), Err(Why::WindowOver));
        assert_eq!(begin(0, false), Err(Why::EarlierCall));
        assert_eq!(Course::default().may_begin(&RULES, at(0, false)), Ok(()));
        let mut course = Course::repeat();
        assert_eq!(
            course.after(NO, &RULES, at(0, true)),
            Next::Unknown(Why::EarlierCall)
        );
    }
}
