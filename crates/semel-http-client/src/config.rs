//! Settings, each with its default and its limit.

use http::header::HeaderName;
use semel_core::limits::{self, LimitExceeded};
use semel_core::{RetryPolicy, wire};

/// How a key is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyForm {
    /// A Structured Field String in double quotes, as the draft asks. The default.
    #[default]
    Quoted,
    /// As it is, for receivers that take a quote for a part of the key.
    Bare,
}

/// Whether a request whose end is unknown may be sent again. It may where the receiver deduplicates by the key, and only
/// for as long as it remembers keys (rule K14).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Never: every ambiguous end is unknown at once.
    Never,
    /// Where the same method and path answered with `Semel-Guarantee` before, in this process. The default.
    IfShown {
        /// Milliseconds for which the receiver keeps answers. Default a day, as the layer of `semel-http`.
        window_ms: u64,
    },
    /// The caller knows that the receiver deduplicates by the key.
    Keyed {
        /// Milliseconds for which the receiver keeps keys, as it says in its documentation.
        window_ms: u64,
    },
}

impl Repeat {
    pub(crate) const fn window_ms(self) -> u64 {
        match self {
            Self::Never => 0,
            Self::IfShown { window_ms } | Self::Keyed { window_ms } => window_ms,
        }
    }
}

/// Settings of a client. The default is meant to be right for calls to a Semel service.
#[derive(Debug, Clone)]
pub struct Config {
    /// The header that carries the key. Default `Idempotency-Key`.
    pub header: HeaderName,
    /// How a key is written that this layer puts in. One that the request has already is left as it is. Default quoted.
    pub form: KeyForm,
    /// Back-off where the answer names no time, attempts and total time of a call. Default 100 ms growing to 10 s with a
    /// fifth of it random, at most 10 attempts within 2 minutes. `Retry-After` is honoured within `total_ms_max`; one
    /// that points behind it ends the call at once.
    pub retry: RetryPolicy,
    /// Milliseconds that one attempt may take to bring the head of its answer. Default 30 000.
    pub attempt_ms_max: u64,
    /// Whether a request whose end is unknown may be sent again. Default [`Repeat::IfShown`], a day.
    pub repeat: Repeat,
    /// Milliseconds before the end of the receiver's window from which a repeat is not keyed any more. It covers an
    /// attempt under way and the difference of clocks, so it is at least `attempt_ms_max`. Default 5 minutes.
    pub margin_ms: u64,
    /// Whether 503 with `Retry-After` and 501 without `Semel-Outcome` are believed to mean that nothing happened.
    /// Default true.
    pub trust_unavailable: bool,
    /// Bytes of a request's body at most; it is held in memory for repeats. Default 1 MiB.
    pub body_bytes_max: usize,
    /// Routes that are remembered to have shown `Semel-Guarantee`; beyond it the oldest is forgotten. Default 1 024.
    pub routes_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            header: HeaderName::from_static(wire::IDEMPOTENCY_KEY),
            form: KeyForm::Quoted,
            retry: RetryPolicy {
                cap_ms: 10_000,
                total_ms_max: 120_000,
                ..RetryPolicy::default()
            },
            attempt_ms_max: 30_000,
            repeat: Repeat::IfShown {
                window_ms: 86_400_000,
            },
            margin_ms: 300_000,
            trust_unavailable: true,
            body_bytes_max: 1 << 20,
            routes_max: 1_024,
        }
    }
}

impl Config {
    /// Refuses settings outside their limits.
    ///
    /// # Errors
    /// The first one, by name.
    pub fn check(&self) -> Result<(), LimitExceeded> {
        let help = "choose a value within the limit";
        limits::check("attempt_ms_max", "ms", self.attempt_ms_max, 1, 86_400_000, help)?;
        limits::check("routes_max", "routes", self.routes_max as u64, 1, 1 << 20, help)?;
        let attempts = u64::from(self.retry.attempts_max);
        limits::check("retry.attempts_max", "attempts", attempts, 1, u64::MAX, help)?;
        if self.repeat == Repeat::Never {
            return Ok(());
        }
        limits::check(
            "margin_ms",
            "ms",
            self.margin_ms,
            self.attempt_ms_max,
            self.repeat.window_ms(),
            "it must cover an attempt (attempt_ms_max) and lie within the receiver's window (window_ms)",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_margin_covers_an_attempt_and_lies_within_the_window() {
        assert_eq!(Config::default().check(), Ok(()));
        for (margin_ms, window_ms) in [(29_999, 86_400_000), (40_000, 39_999)] {
            let config = Config {
                margin_ms,
                repeat: Repeat::Keyed { window_ms },
                ..Config::default()
            };
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains("margin_ms"), "{error}");
            let never = Config {
                repeat: Repeat::Never,
                ..config
            };
            assert_eq!(never.check(), Ok(()));
        }
    }
}
