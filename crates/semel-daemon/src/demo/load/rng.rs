//! Random numbers that are the same for a seed in every version: a seed in a bug report must keep its meaning.

use std::time::Duration;

use semel_core::key::derive;

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The numbers of one purpose under a seed: a change in how the load is drawn leaves the chaos as it was.
    pub(crate) fn new(seed: u64, purpose: &str) -> Self {
        let digest = derive(&[&seed.to_be_bytes(), purpose.as_bytes()]);
        let mut word = [0; 8];
        word.copy_from_slice(&digest[..8]);
        Self(u64::from_be_bytes(word))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..end`; 0 when `end` is 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        // The bias of a plain remainder is under 2^-40 for the small numbers drawn here.
        self.next().checked_rem(end).unwrap_or(0)
    }

    /// True so many times in a hundred.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Uniform in `from..to` milliseconds.
    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to.saturating_sub(from)))
    }

    /// One of these; they are never empty.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_keeps_its_numbers_over_versions() {
        let mut rng = Rng::new(7, "load");
        let first: Vec<u64> = (0..3).map(|_| rng.below(1_000)).collect();
        assert_eq!(first, [746, 616, 980]);
        assert_ne!(Rng::new(7, "load").next(), Rng::new(7, "chaos").next());
        assert_ne!(Rng::new(7, "load").next(), Rng::new(8, "load").next());
    }
}
