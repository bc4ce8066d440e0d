//! A breaker: after failures in a row nobody asks a destination any more, but for one who tries after a growing pause.
//!
//! Pure: time and dice are handed in. Who holds a [`Pass`] may ask, and says with [`Breaker::settle`] how it went.

use crate::retry::RetryPolicy;

/// When a breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BreakerPolicy {
    /// Failures in a row that open it. Default 20.
    pub failures_max: u32,
    /// How long it stays open before one may try; longer with each try that fails. Its budgets are not used. Default from
    /// 500 ms to 5 s.
    pub pause: RetryPolicy,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            failures_max: 20,
            pause: RetryPolicy {
                initial_ms: 500,
                cap_ms: 5_000,
                ..RetryPolicy::forever()
            },
        }
    }
}

/// The right to ask the destination once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// How often the breaker had opened or closed when this was given: what a pass of before says does not lengthen a pause.
    term: u64,
    /// Whether it is the one try of an open breaker.
    trial: bool,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// The destination answered: it is there, whatever it said.
    Answered,
    /// It did not answer, or only to say that it cannot.
    Failed,
    /// The request was given up or never made: it says nothing.
    Nothing,
}

/// The state of one destination.
#[derive(Debug, Clone, Default)]
pub struct Breaker {
    failures: u32,
    term: u64,
    open: Option<Open>,
    /// How often it has opened since it last closed.
    streak: u32,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    since: u64,
    until: u64,
    /// One is trying.
    trying: bool,
}

impl Breaker {
    /// Asks to ask; times are in milliseconds of a clock that only goes forward.
    ///
    /// # Errors
    /// It is open: how many milliseconds until somebody may try.
    pub fn pass(&mut self, now: u64) -> Result<Pass, u64> {
        let term = self.term;
        match &mut self.open {
            None => Ok(Pass { term, trial: false }),
            Some(open) if now < open.until => Err(open.until - now),
            // Whoever tries needs some time; there is nothing better to say than to ask again soon.
            Some(open) if open.trying => Err(TRYING_MS),
            Some(open) => {
                open.trying = true;
                Ok(Pass { term, trial: true })
            }
        }
    }

    /// Says what came of a pass. Every pass is settled once.
    pub fn settle(&mut self, now: u64, pass: Pass, seen: Seen, policy: &BreakerPolicy, dice: f64) {
        match seen {
            Seen::Answered => {
                if self.open.take().is_some() {
                    self.term += 1;
                }
                self.failures = 0;
                self.streak = 0;
            }
            // Sent before the breaker opened, or before it closed again: it is known already, or out of date.
            _ if pass.term != self.term => {}
            Seen::Nothing => {
                if let Some(open) = self.open.as_mut().filter(|_| pass.trial) {
                    open.trying = false;
                }
            }
            Seen::Failed => {
                self.failures = self.failures.saturating_add(1);
                if pass.trial || (self.open.is_none() && self.failures >= policy.failures_max.max(1)) {
                    self.streak = self.streak.saturating_add(1);
                    self.term += 1;
                    let wait = policy
                        .pause
                        .delay_ms(self.streak, 0, dice)
                        .unwrap_or(policy.pause.cap_ms);
                    self.open = Some(Open {
                        since: self.open.map_or(now, |open| open.since),
                        until: now.saturating_add(wait),
                        trying: false,
                    });
                }
            }
        }
    }

    /// Since when it is open, if it is.
    #[must_use]
    pub fn open_since(&self) -> Option<u64> {
        self.open.map(|open| open.since)
    }

    /// Failures in a row.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }
}

/// How soon to ask again while another one tries.
const TRYING_MS: u64 = 250;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn policy() -> BreakerPolicy {
        BreakerPolicy {
            failures_max: 3,
            pause: RetryPolicy {
                initial_ms: 100,
                cap_ms: 300,
                jitter: 0.0,
                ..RetryPolicy::forever()
            },
        }
    }

    fn fail(breaker: &mut Breaker, now: u64) {
        let pass = breaker.pass(now).unwrap();
        breaker.settle(now, pass, Seen::Failed, &policy(), 0.0);
    }

    #[test]
    fn failures_in_a_row_open_it_and_one_answer_closes_it() {
        let mut breaker = Breaker::default();
        fail(&mut breaker, 0);
        fail(&mut breaker, 0);
        let pass = breaker.pass(0).unwrap();
        breaker.settle(0, pass, Seen::Answered, &policy(), 0.0);
        for _ in 0..3 {
            fail(&mut breaker, 1);
        }
        assert_eq!((breaker.pass(1), breaker.open_since()), (Err(100), Some(1)));
        let trial = breaker.pass(101).unwrap();
        assert_eq!(breaker.pass(101), Err(TRYING_MS), "one tries");
        breaker.settle(102, trial, Seen::Answered, &policy(), 0.0);
        assert_eq!((breaker.open_since(), breaker.failures()), (None, 0));
        assert!(breaker.pass(102).is_ok() && breaker.pass(102).is_ok());
    }

    #[test]
    fn each_try_that_fails_makes_the_pause_longer_up_to_its_cap() {
        let mut breaker = Breaker::default();
        for _ in 0..3 {
            fail(&mut breaker, 0);
        }
        let mut now = 100;
        for wait in [200, 300, 300] {
            fail(&mut breaker, now);
            assert_eq!(breaker.pass(now), Err(wait));
            now += wait;
        }
        assert_eq!(breaker.open_since(), Some(0));
    }

    #[test]
    fn what_was_sent_before_it_opened_does_not_lengthen_the_pause_and_can_close_it() {
        let mut breaker = Breaker::default();
        let early: Vec<_> = (0..5).map(|_| breaker.pass(0).unwrap()).collect();
        for pass in &early[..4] {
            breaker.settle(0, *pass, Seen::Failed, &policy(), 0.0);
        }
        assert_eq!(breaker.pass(50), Err(50));
        breaker.settle(60, early[4], Seen::Answered, &policy(), 0.0);
        assert!(breaker.pass(60).is_ok());
    }

    #[test]
    fn what_was_sent_before_it_closed_again_does_not_open_it() {
        let mut breaker = Breaker::default();
        let early: Vec<_> = (0..6).map(|_| breaker.pass(0).unwrap()).collect();
        for pass in &early[..3] {
            breaker.settle(0, *pass, Seen::Failed, &policy(), 0.0);
        }
        let trial = breaker.pass(100).unwrap();
        breaker.settle(101, trial, Seen::Answered, &policy(), 0.0);
        for pass in &early[3..] {
            breaker.settle(102, *pass, Seen::Failed, &policy(), 0.0);
        }
        assert_eq!((breaker.open_since(), breaker.failures()), (None, 0));
    }

    #[test]
    fn a_try_that_was_given_up_lets_the_next_one_try() {
        let mut breaker = Breaker::default();
        for _ in 0..3 {
            fail(&mut breaker, 0);
        }
        let trial = breaker.pass(100).unwrap();
        breaker.settle(110, trial, Seen::Nothing, &policy(), 0.0);
        assert!(breaker.pass(110).is_ok());
    }

    proptest! {
        /// Whatever happens, an open breaker lets one try at a time, and somebody can always try in the end.
        #[test]
        fn one_at_a_time_and_never_stuck(steps in prop::collection::vec((0_u64..400, 0_u8..4), 1..200)) {
            let mut breaker = Breaker::default();
            let mut held: Vec<Pass> = Vec::new();
            let mut now = 0;
            for (wait, what) in steps {
                now += wait;
                if what == 3 {
                    if let Ok(pass) = breaker.pass(now) {
                        held.push(pass);
                    }
                } else if let Some(pass) = held.pop() {
                    let seen = [Seen::Answered, Seen::Failed, Seen::Nothing][usize::from(what)];
                    breaker.settle(now, pass, seen, &policy(), 0.5);
                }
                let trials = held.iter().filter(|pass| pass.trial && pass.term == breaker.term).count();
                prop_assert!(trials <= 1);
            }
            for pass in held {
                breaker.settle(now, pass, Seen::Nothing, &policy(), 0.5);
            }
            prop_assert!(breaker.pass(now + 300).is_ok());
        }
    }
}
