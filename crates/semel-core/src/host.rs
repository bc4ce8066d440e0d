//! The one file that asks the host for time and randomness. Everything else is handed them.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A moment: microseconds since 1970-01-01T00:00:00Z.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// This moment and so many milliseconds; saturates.
    #[must_use]
    pub const fn plus_ms(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms.saturating_mul(1_000)))
    }

    /// Whole milliseconds from `earlier` to this; negative when this is before it.
    #[must_use]
    pub const fn ms_since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0) / 1_000
    }

    /// RFC 3339 in UTC with microseconds, such as `2026-11-30T12:00:00.000000Z`.
    #[must_use]
    pub fn rfc3339(self) -> String {
        let (secs, micros) = (self.0.div_euclid(1_000_000), self.0.rem_euclid(1_000_000));
        let (days, secs_of_day) = (secs.div_euclid(86_400), secs.rem_euclid(86_400));
        // Civil date from a day count, after Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
        let z = days + 719_468;
        let era = z.div_euclid(146_097);
        let doe = z.rem_euclid(146_097);
        let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
        let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
        let mp = (5 * doy + 2) / 153;
        let day = doy - (153 * mp + 2) / 5 + 1;
        let month = if mp < 10 { mp + 3 } else { mp - 9 };
        let year = yoe + era * 400 + i64::from(month <= 2);
        // By hand: it stands in a header of every keyed answer, and `format!` takes several times as long.
        let mut text = *b"000000-00-00T00:00:00.000000Z";
        let mut put = |place: std::ops::Range<usize>, number: i64| {
            let mut left = u32::try_from(number).unwrap_or(0);
            for byte in text[place].iter_mut().rev() {
                *byte = b'0' + (left % 10) as u8;
                left /= 10;
            }
        };
        put(0..6, year);
        put(7..9, month);
        put(10..12, day);
        put(13..15, secs_of_day / 3_600);
        put(16..18, secs_of_day / 60 % 60);
        put(19..21, secs_of_day % 60);
        put(22..28, micros);
        let text = if year > 9_999 { &text[..] } else { &text[2..] };
        std::str::from_utf8(text).unwrap_or_default().to_owned()
    }
}

/// Time inside a process. Leases and deadlines that several processes share use the store's time instead.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock.
    fn now(&self) -> Timestamp;
    /// A clock that only goes forward, from an arbitrary start. On Linux it does not count suspend.
    fn monotonic(&self) -> Duration;
}

/// The host's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the wall clock"
    )]
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    fn monotonic(&self) -> Duration {
        use std::sync::OnceLock;
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }
}

/// Bytes that one call to the operating system brings: a call per nonce would be dear.
const RANDOM_BUFFER: usize = 512;

thread_local! {
    /// Random bytes not handed out yet, and where they begin.
    static RANDOM: std::cell::RefCell<([u8; RANDOM_BUFFER], usize)> =
        const { std::cell::RefCell::new(([0; RANDOM_BUFFER], RANDOM_BUFFER)) };
}

/// 16 bytes of the host's randomness, each handed out once. A machine that is cloned while it runs could hand out the same
/// up to 32 times.
///
/// # Panics
/// Never in practice: only when the operating system has no source of randomness at all.
#[must_use]
pub fn random_16() -> [u8; 16] {
    RANDOM.with_borrow_mut(|(buffer, used)| {
        if *used >= RANDOM_BUFFER {
            #[expect(
                clippy::expect_used,
                reason = "no nonce can be made without randomness; going on would be unsafe"
            )]
            getrandom::fill(buffer).expect("the operating system has a source of randomness");
            *used = 0;
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&buffer[*used..*used + 16]);
        buffer[*used..*used + 16].fill(0);
        *used += 16;
        bytes
    })
}

/// A number uniform in 0..1, for jitter.
#[must_use]
pub fn dice() -> f64 {
    let bytes = random_16();
    let word = u64::from_le_bytes([
        bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7],
    ]);
    (word >> 11) as f64 / (1_u64 << 53) as f64
}

/// A time-ordered unique id (UUIDv7, RFC 9562). Ids that grow are cheap to index.
#[must_use]
pub fn uuid_v7(clock: &dyn Clock) -> uuid::Uuid {
    let random = random_16();
    let mut tail = [0; 10];
    tail.copy_from_slice(&random[..10]);
    let millis = u64::try_from(clock.now().0 / 1_000).unwrap_or(0);
    uuid::Builder::from_unix_timestamp_millis(millis, &tail).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_are_handed_out_once() {
        let all: std::collections::HashSet<_> = (0..1_000).map(|_| random_16()).collect();
        assert_eq!(all.len(), 1_000);
    }

    #[test]
    fn rfc3339_of_known_moments() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400_000_001, "2000-02-29T00:00:00.000001Z"),
            (1_796_083_199_999_999, "2026-11-30T23:59:59.999999Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(Timestamp(micros).rfc3339(), text);
        }
    }
}
