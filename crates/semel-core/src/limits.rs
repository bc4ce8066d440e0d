//! Every limit of the core by name, and the one error that reports a limit.

/// Bytes of a key's id: 1 to this many.
pub const KEY_ID_BYTES_MAX: usize = 255;
/// Bytes of a scope: 1 to this many.
pub const SCOPE_BYTES_MAX: usize = 255;
/// Bytes of a stored outcome (a response, a refusal). What is larger is kept elsewhere and stored as `Forgotten`.
pub const OUTCOME_BYTES_MAX: usize = 1 << 20;
/// Milliseconds of a lease: 1 to this many (one day).
pub const LEASE_MS_MAX: i64 = 86_400_000;
/// Milliseconds of a retention or tombstone (400 days).
pub const RETENTION_MS_MAX: i64 = 400 * 86_400_000;
/// Items in one batch call to a store.
pub const BATCH_ITEMS_MAX: usize = 1_000;
/// Bytes of an event's data. Below Kafka's default `message.max.bytes` with room for headers.
pub const EVENT_DATA_BYTES_MAX: usize = 900_000;
/// Bytes of a topic or stream name; Kafka allows 249.
pub const TOPIC_BYTES_MAX: usize = 249;
/// Bytes of an ordering key.
pub const ORDERING_KEY_BYTES_MAX: usize = 1_024;
/// Headers of one event.
pub const EVENT_HEADERS_MAX: usize = 64;
/// Bytes of all header names and values of one event.
pub const EVENT_HEADER_BYTES_MAX: usize = 16_384;
/// Steps of one saga.
pub const SAGA_STEPS_MAX: usize = 100;
/// Bytes of a saga's id; it travels in a header.
pub const SAGA_ID_BYTES_MAX: usize = 255;
/// Bytes of a saga's kind and of a step's name.
pub const SAGA_NAME_BYTES_MAX: usize = 100;
/// Bytes of the URL or handler name a step goes to.
pub const SAGA_TARGET_BYTES_MAX: usize = 2_000;
/// Milliseconds of one attempt of a step (ten minutes).
pub const SAGA_ATTEMPT_MS_MAX: u64 = 600_000;
/// Bytes of an error, refusal or reason kept in a saga's state and log; the rest is cut.
pub const SAGA_TEXT_BYTES_MAX: usize = 1_024;
/// Requests (cancel, retry, abandon) that may wait for a saga's owner.
pub const SAGA_REQUESTS_MAX: usize = 100;
/// Bytes of a saga's input, and of one step's output.
pub const SAGA_PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// A named limit was exceeded. Nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {actual} {unit} is outside {min}..={max}; {help}")]
pub struct LimitExceeded {
    /// What was too large or too small, such as `key id`.
    pub what: &'static str,
    /// The unit: `bytes`, `ms`, `items`.
    pub unit: &'static str,
    /// Smallest allowed value.
    pub min: u64,
    /// Largest allowed value.
    pub max: u64,
    /// What was given.
    pub actual: i128,
    /// What to do about it.
    pub help: &'static str,
}

/// Checks `actual` against `min..=max`.
///
/// # Errors
/// [`LimitExceeded`], naming the limit and what to do.
pub const fn check(
    what: &'static str,
    unit: &'static str,
    actual: u64,
    min: u64,
    max: u64,
    help: &'static str,
) -> Result<(), LimitExceeded> {
    if actual < min || actual > max {
        return Err(LimitExceeded {
            what,
            unit,
            min,
            max,
            actual: actual as i128,
            help,
        });
    }
    Ok(())
}

/// Checks a number that may be negative, such as a time from a request, against `min..=max`.
///
/// # Errors
/// [`LimitExceeded`], naming the limit and what to do.
pub fn check_signed(
    what: &'static str,
    unit: &'static str,
    actual: i64,
    min: u64,
    max: u64,
    help: &'static str,
) -> Result<(), LimitExceeded> {
    u64::try_from(actual)
        .map_err(|_| LimitExceeded {
            what,
            unit,
            min,
            max,
            actual: actual.into(),
            help,
        })
        .and_then(|natural| check(what, unit, natural, min, max, help))
}

/// Checks the lease of a claim that its owner renews at a third: at least 3 ms, or a renewal would come at once, for ever;
/// at most [`LEASE_MS_MAX`].
///
/// # Errors
/// [`LimitExceeded`], naming the limit and what to do.
pub fn check_renewed_lease(lease_ms: i64) -> Result<(), LimitExceeded> {
    let help = "choose a value within the limit";
    check_signed("lease_ms", "ms", lease_ms, 3, LEASE_MS_MAX as u64, help)
}

/// Checks the size of a batch against [`BATCH_ITEMS_MAX`].
///
/// # Errors
/// [`LimitExceeded`].
pub const fn check_batch(items: usize) -> Result<(), LimitExceeded> {
    let help = "send smaller batches";
    check("batch", "items", items as u64, 0, BATCH_ITEMS_MAX as u64, help)
}
