//! So many in a second, and no more.

/// Of a second's events so many parts go at once.
const PARTS: u32 = 10;

/// Bounds how fast something is done: a tenth of a second's worth at once, and no more before that tenth is over. Pure: the
/// time is passed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    per_second: u32,
    /// What was done is paid for from then on, in microseconds.
    paid_us: u64,
}

impl Pace {
    /// A pace of so many in a second; 0 is no bound.
    #[must_use]
    pub const fn new(per_second: u32) -> Self {
        Self {
            per_second,
            paid_us: 0,
        }
    }

    /// How many may be done at once at most.
    #[must_use]
    pub const fn at_once(&self) -> u32 {
        match self.per_second {
            0 => u32::MAX,
            few if few < PARTS => 1,
            many => many / PARTS,
        }
    }

    /// How many may be done now.
    #[must_use]
    pub const fn free(&self, now_ms: u64) -> u32 {
        if self.paid_us <= now_ms.saturating_mul(1_000) {
            self.at_once()
        } else {
            0
        }
    }

    /// When some may be done again, in milliseconds.
    #[must_use]
    pub const fn due_ms(&self) -> u64 {
        self.paid_us.div_ceil(1_000)
    }

    /// So many were done.
    pub fn done(&mut self, now_ms: u64, count: u32) {
        if self.per_second > 0 {
            let cost = u64::from(count) * 1_000_000 / u64::from(self.per_second);
            self.paid_us = self
                .paid_us
                .max(now_ms.saturating_mul(1_000))
                .saturating_add(cost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many are done in so long by somebody who always wants more and comes when it is told to.
    fn done(per_second: u32, ms: u64) -> u64 {
        let (mut pace, mut now, mut all) = (Pace::new(per_second), 7, 0);
        let end = now + ms;
        while now < end {
            let free = pace.free(now);
            assert!(free > 0, "it was told to come now");
            all += u64::from(free);
            pace.done(now, free);
            assert_eq!(pace.free(now), 0);
            now = pace.due_ms();
        }
        all
    }

    #[test]
    fn a_second_has_so_many_and_a_tenth_of_one_a_tenth() {
        for per_second in [1, 3, 7, 10, 999, 1_000, 1_000_000] {
            let most = u64::from(per_second) * 10;
            let slack = u64::from(Pace::new(per_second).at_once());
            let found = done(per_second, 10_000);
            assert!(found <= most + slack, "{per_second}: {found}");
            assert!(found + slack >= most, "{per_second}: {found}");
        }
        assert_eq!(Pace::new(1_000).at_once(), 100);
    }

    #[test]
    fn what_was_not_used_is_not_saved_up_and_without_a_bound_there_is_none() {
        let mut pace = Pace::new(100);
        pace.done(0, 10);
        assert_eq!((pace.free(99), pace.due_ms()), (0, 100));
        assert_eq!(pace.free(1_000_000), 10);
        pace.done(1_000_000, 4);
        assert_eq!(pace.due_ms(), 1_000_040);
        let mut free = Pace::new(0);
        free.done(5, u32::MAX);
        assert_eq!((free.free(5), free.due_ms()), (u32::MAX, 0));
    }
}
