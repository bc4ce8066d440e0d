//! Whether claims are looked up before they are sent where writing is.

use std::time::Duration;

/// The share of the latest claims that needed no write.
///
/// Looking first answers a replay without the means that writing takes; for a fresh key it is a reading for nothing. Which
/// of the two is on its way nobody knows beforehand, so the latest ones tell. Either way gives the same answers.
///
/// ```
/// use semel_core::batch::Replays;
/// use std::time::Duration;
/// let mut replays = Replays::default();
/// assert!(replays.look_first(None), "nothing is known yet");
/// for _ in 0..100 {
///     replays = replays.and(false);
/// }
/// assert!(!replays.look_first(None), "fresh keys all the time");
/// assert!(replays.look_first(Some(Duration::from_millis(20))), "the writer hangs: who need not wait for it does not");
/// assert!(replays.and(true).and(true).and(true).look_first(None), "some replays are enough");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replays(u32);

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
        Self(ALL)
    }
}

impl Replays {
    /// Reads [`Replays::share`] back.
    #[must_use]
    pub const fn of(share: u32) -> Self {
        Self(share)
    }

    /// As a number to be kept.
    #[must_use]
    pub const fn share(self) -> u32 {
        self.0
    }

    /// The same, with one more: whether it was answered by what stood there already.
    #[must_use]
    pub const fn and(self, replay: bool) -> Self {
        let kept = self.0 - (self.0 >> WEIGHT);
        Self(if replay { kept + (ALL >> WEIGHT) } else { kept })
    }

    /// Whether the next claim is looked up first. `on_its_way`: for how long the batch before it has been.
    #[must_use]
    pub fn look_first(self, on_its_way: Option<Duration>) -> bool {
        self.0 >= ENOUGH || on_its_way.is_some_and(|time| time >= HANGS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_stays_a_share_and_follows_what_comes() {
        let mut share = Replays::default();
        for n in 0..1_000 {
            share = share.and(n % 2 == 0);
            assert!(share.share() <= ALL);
        }
        assert!(share.look_first(None), "half of them");
        for n in 0..1_000 {
            share = share.and(n % 32 == 0);
        }
        assert!(!share.look_first(None), "few of them");
        let of_all = (0..1_000).fold(share, |share, _| share.and(true));
        assert!(of_all.look_first(None) && of_all.share() <= ALL);
    }
}
