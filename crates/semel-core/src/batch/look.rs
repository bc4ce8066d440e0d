//! Whether claims are looked up before they are sent where writing is.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The share of the latest claims that needed no write.
///
/// Looking first answers a replay without the means that writing takes; for a fresh key it is a reading for nothing. Which
/// of the two is on its way nobody knows beforehand, so the latest ones tell. Either way gives the same answers. Many tasks note
/// what they learn in one; of two that do at once one may be forgotten: it is an estimate.
///
/// ```
/// use semel_core::batch::Replays;
/// use std::time::Duration;
/// let replays = Replays::default();
/// assert!(replays.look_first(None), "nothing is known yet");
/// for _ in 0..100 {
///     replays.note(false);
/// }
/// assert!(!replays.look_first(None), "fresh keys all the time");
/// assert!(replays.look_first(Some(Duration::from_millis(20))), "the writer hangs: who need not wait for it does not");
/// for _ in 0..3 {
///     replays.note(true);
/// }
/// assert!(replays.look_first(None), "some replays are enough");
/// ```
#[derive(Debug)]
pub struct Replays(AtomicU32);

/// All of them.
const ALL: u32 = 1 << 16;
/// The weight of the latest one, as a power of two: 1/16.
const WEIGHT: u32 = 4;
/// From this share on claims are looked up first.
const ENOUGH: u32 = ALL / 8;
/// A batch that is on its way for so long holds up what need not wait for it.
const HANGS: Duration = Duration::from_millis(20);

impl Default for Replays {
    fn default() -> Self {
        Self(AtomicU32::new(ALL))
    }
}

impl Replays {
    /// With none so far: for writing that tells by itself what was there, and costs little where it was in vain.
    #[must_use]
    pub const fn none() -> Self {
        Self(AtomicU32::new(0))
    }

    /// One more: whether it was answered by what stood there already.
    pub fn note(&self, replay: bool) {
        let share = self.0.load(Ordering::Relaxed);
        let kept = share - (share >> WEIGHT);
        let share = if replay { kept + (ALL >> WEIGHT) } else { kept };
        self.0.store(share, Ordering::Relaxed);
    }

    /// Whether the next claim is looked up first. `on_its_way`: for how long the batch before it has been.
    #[must_use]
    pub fn look_first(&self, on_its_way: Option<Duration>) -> bool {
        self.0.load(Ordering::Relaxed) >= ENOUGH || on_its_way.is_some_and(|time| time >= HANGS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_stays_a_share_and_follows_what_comes() {
        let replays = Replays::default();
        let share = || replays.0.load(Ordering::Relaxed);
        for n in 0..1_000 {
            replays.note(n % 2 == 0);
            assert!(share() <= ALL);
        }
        assert!(replays.look_first(None), "half of them");
        for n in 0..1_000 {
            replays.note(n % 32 == 0);
        }
        assert!(!replays.look_first(None), "few of them");
        (0..1_000).for_each(|_| replays.note(true));
        assert!(replays.look_first(None) && share() <= ALL);
    }

    #[test]
    fn where_none_was_so_far_some_are_needed() {
        let replays = Replays::none();
        assert!(!replays.look_first(None));
        replays.note(true);
        assert!(!replays.look_first(None), "one is not enough");
        (0..3).for_each(|_| replays.note(true));
        assert!(replays.look_first(None));
    }
}
