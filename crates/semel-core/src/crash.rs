//! Crash points: named places at which a test makes the process abort, as `kill -9` would.
//!
//! A process built with the feature `crash-points` reads `SEMEL_CRASH_POINT=name` or `name:n` once and aborts the
//! n-th time it passes that point. Without the feature every point is empty code.

/// Every crash point there is. Crash tests walk this list; a point that is not on it does not compile
/// into a test, so add it here first.
pub const CRASH_POINTS: &[&str] = &[
    // Stores of keys, once per batch: after a commit that granted something; before and after the one of outcomes.
    "key.claimed",
    "key.before_complete",
    "key.completed",
    // The wrapper for functions, once per call: it owns the key; the function has ended; the outcome is durable.
    "run.claimed",
    "run.before_complete",
    "run.completed",
    // The HTTP layer, once per request: it owns the key; the handler has answered; the outcome is durable.
    "http.claimed",
    "http.before_complete",
    "http.completed",
    // The gateway, once per request that it sends: before it, and when the head of the answer is there.
    "gateway.before_send",
    "gateway.answered",
    "once.before_commit",
    "once.committed",
    "relay.batch_opened",
    "relay.sent",
    "relay.before_cursor",
    "relay.cursor_saved",
    "relay.batch_finished",
    // Where a log holds the cursor: before it is asked, when it has answered, when it has a transaction.
    "log.before_resume",
    "log.resumed",
    "log.answered",
    // Kafka in transactions: the predecessor is fenced; all records are delivered; before and after the commit.
    "log.fenced",
    "log.sent",
    "log.before_commit",
    "log.committed",
    // Events that were set aside and are sent again: before and after what came of them is saved.
    "redrive.before_settle",
    "redrive.settled",
    // An outbox in partitions: one is empty and not dropped yet.
    "outbox.partition_emptied",
    "inbox.marked",
    "inbox.before_commit",
    "inbox.committed",
    "processor.sent",
    "processor.before_commit",
    "processor.committed",
    "saga.accepted",
    "saga.started",
    "saga.answered",
    "saga.turned",
    "saga.compensation_answered",
    "saga.finished",
    "barrier.marked",
    "barrier.before_commit",
];

/// What an aborting process says before it ends, so that a test can tell this end from any other.
pub const LAST_WORDS: &str = "semel: aborts at crash point";

/// Passes a named point.
#[inline]
pub fn crash_point(name: &'static str) {
    #[cfg(feature = "crash-points")]
    armed::pass(name);
    #[cfg(not(feature = "crash-points"))]
    let _ = name;
}

#[cfg(feature = "crash-points")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    static ARMED: OnceLock<Option<(String, AtomicU32)>> = OnceLock::new();

    pub(super) fn pass(name: &'static str) {
        debug_assert!(
            super::CRASH_POINTS.contains(&name),
            "{name} is not in CRASH_POINTS"
        );
        let armed = ARMED.get_or_init(|| {
            let text = std::env::var("SEMEL_CRASH_POINT").ok()?;
            let (name, count) = match text.split_once(':') {
                Some((name, count)) => (name.to_owned(), count.parse().unwrap_or(1)),
                None => (text, 1),
            };
            Some((name, AtomicU32::new(count)))
        });
        if let Some((wanted, left)) = armed
            && wanted == name
            && left.fetch_sub(1, Ordering::SeqCst) == 1
        {
            last_words(name);
            std::process::abort();
        }
    }

    #[expect(clippy::print_stderr, reason = "a crash test reads it")]
    fn last_words(name: &str) {
        eprintln!("{} {name}", super::LAST_WORDS);
    }
}
