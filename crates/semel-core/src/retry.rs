//! Retry as pure arithmetic: how long to wait before attempt n. Nothing here sleeps or rolls dice.

use serde::{Deserialize, Serialize};

/// What a caller may do after an error. Closed on purpose: match it without a `_` arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Retry {
    /// The same call will fail again; something must be changed first.
    Never,
    /// It is certain that nothing was done; the same call may work later.
    Later,
    /// It may have been done. Only repeat what is idempotent; otherwise look first.
    OutcomeUnknown,
}

/// Exponential back-off with a cap, jitter, and two budgets: attempts and total time.
///
/// ```
/// use semel_core::RetryPolicy;
/// let policy = RetryPolicy { initial_ms: 100, factor: 2.0, cap_ms: 1_000, jitter: 0.0, attempts_max: 5, total_ms_max: 60_000 };
/// assert_eq!(policy.delay_ms(1, 0, 0.5), Some(100));
/// assert_eq!(policy.delay_ms(3, 0, 0.5), Some(400));
/// assert_eq!(policy.delay_ms(4, 0, 0.5), Some(800));
/// assert_eq!(policy.delay_ms(5, 0, 0.5), None, "the fifth attempt was the last");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// Milliseconds before the second attempt. Default 100.
    pub initial_ms: u64,
    /// Each wait is this many times the last. Default 2.
    pub factor: f64,
    /// Longest wait in milliseconds. Default 30 000.
    pub cap_ms: u64,
    /// Share of a wait that is random, 0 to 1. Default 0.2.
    pub jitter: f64,
    /// Attempts at most, the first included. Default 10.
    pub attempts_max: u32,
    /// Milliseconds from the first attempt after which no other starts. Default 10 minutes.
    pub total_ms_max: u64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            initial_ms: 100,
            factor: 2.0,
            cap_ms: 30_000,
            jitter: 0.2,
            attempts_max: 10,
            total_ms_max: 600_000,
        }
    }
}

impl RetryPolicy {
    /// For a database transaction that another one was in the way of: soon and often, for both are short.
    pub const TRANSACTION: Self = Self {
        initial_ms: 10,
        factor: 2.0,
        cap_ms: 500,
        jitter: 1.0,
        attempts_max: 10,
        total_ms_max: 60_000,
    };

    /// A policy that never gives up; for what must end, such as a relay whose broker is away.
    #[must_use]
    pub fn forever() -> Self {
        Self {
            attempts_max: u32::MAX,
            total_ms_max: u64::MAX,
            ..Self::default()
        }
    }

    /// Milliseconds to wait after attempt number `attempt` (the first is 1) failed, `elapsed_ms` after the first
    /// began; `None` when a budget is spent. `dice` is uniform in 0..1. Never overflows, whatever the attempt.
    #[must_use]
    pub fn delay_ms(&self, attempt: u32, elapsed_ms: u64, dice: f64) -> Option<u64> {
        if attempt >= self.attempts_max {
            return None;
        }
        let exponent = f64::from(attempt.saturating_sub(1).min(1_000));
        let full = (self.initial_ms as f64 * self.factor.max(1.0).powf(exponent)).min(self.cap_ms as f64);
        let jitter = self.jitter.clamp(0.0, 1.0);
        let wait = (full * (1.0 - jitter * dice.clamp(0.0, 1.0))) as u64;
        (elapsed_ms.saturating_add(wait) <= self.total_ms_max).then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempt_1025_neither_overflows_nor_exceeds_the_cap() {
        let policy = RetryPolicy {
            jitter: 0.0,
            ..RetryPolicy::forever()
        };
        assert_eq!(policy.delay_ms(1_025, 0, 0.0), Some(policy.cap_ms));
        assert_eq!(policy.delay_ms(u32::MAX - 1, 0, 1.0), Some(policy.cap_ms));
    }

    #[test]
    fn total_time_is_a_budget_of_its_own() {
        let policy = RetryPolicy {
            jitter: 0.0,
            total_ms_max: 1_000,
            ..RetryPolicy::default()
        };
        assert_eq!(policy.delay_ms(1, 899, 0.0), Some(100));
        assert_eq!(policy.delay_ms(1, 901, 0.0), None);
    }

    #[test]
    fn jitter_only_shortens() {
        let policy = RetryPolicy {
            jitter: 0.5,
            ..RetryPolicy::default()
        };
        assert_eq!(policy.delay_ms(1, 0, 0.0), Some(100));
        assert_eq!(policy.delay_ms(1, 0, 1.0), Some(50));
    }
}
