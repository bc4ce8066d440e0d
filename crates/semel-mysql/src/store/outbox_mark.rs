//! What a mark says here: a number, and the numbers below it that were not visible.

use std::fmt::Write as _;

use semel_core::relay::Mark;
use semel_core::{ErrorKind, StoreError};

/// Numbers from the first to the second, both included.
pub(super) type Range = (i64, i64);

/// The rows that were visible at one moment: those up to `high`, but for the holes.
///
/// A number is drawn when a row is written, and its row is seen when its transaction commits. So a hole is a row of a
/// transaction that was open then, or a number that nobody has: rolled back, reserved and not used, or cleaned.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Seen {
    pub(super) high: i64,
    /// Growing, not touching each other, none above `high`.
    pub(super) holes: Vec<Range>,
}

impl Seen {
    pub(super) fn parse(mark: &Mark) -> Result<Self, StoreError> {
        Self::read(mark.as_str()).ok_or_else(|| {
            let text = format!("the mark {mark:?} was not made by MariaDB or MySQL");
            StoreError::new(ErrorKind::Invalid, "read mark", text)
        })
    }

    fn read(text: &str) -> Option<Self> {
        let (high, list) = text.split_once(':').unwrap_or((text, ""));
        let high: i64 = high.parse().ok()?;
        let mut holes: Vec<Range> = Vec::new();
        for part in list.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let hole: Range = (first.parse().ok()?, last.parse().ok()?);
            let behind = holes.last().is_none_or(|before| before.1 < hole.0);
            if !behind || hole.0 > hole.1 || hole.1 > high {
                return None;
            }
            holes.push(hole);
        }
        Some(Self { high, holes })
    }

    pub(super) fn mark(&self) -> Mark {
        let mut text = self.high.to_string();
        for (n, (first, last)) in self.holes.iter().enumerate() {
            text.push(if n == 0 { ':' } else { ',' });
            let _ = write!(text, "{first}");
            if first != last {
                let _ = write!(text, "-{last}");
            }
        }
        Mark::new(text)
    }

    /// What any of them says is visible.
    pub(super) fn union(all: &[Self]) -> Self {
        let high = all.iter().map(|seen| seen.high).max().unwrap_or(0);
        let none_of = |holes: Vec<Range>, seen: &Self| subtract(&holes, &seen.visible());
        Self {
            high,
            holes: all.iter().fold(joined(&[], (1, high)), none_of),
        }
    }

    /// What of it has a number up to this one.
    pub(super) fn up_to(&self, last: i64) -> Self {
        let high = self.high.min(last);
        Self {
            high,
            holes: subtract(&self.holes, &[(high.saturating_add(1), i64::MAX)]),
        }
    }

    /// What it says is visible, as ranges from 1.
    pub(super) fn visible(&self) -> Vec<Range> {
        subtract(&[(1, self.high)], &self.holes)
    }

    /// The numbers that it says nothing about or that it calls holes.
    pub(super) fn rest(&self) -> Vec<Range> {
        joined(&self.holes, (self.high.saturating_add(1), i64::MAX))
    }

    /// The numbers visible here and not in `prev`.
    pub(super) fn since(&self, prev: &Self) -> Vec<Range> {
        let new = joined(&prev.holes, (prev.high.saturating_add(1), self.high));
        subtract(&new, &self.holes)
    }

    /// What is visible when, of all numbers behind this mark, `found` are: growing, holes or above `high`.
    pub(super) fn and(&self, found: &[i64]) -> Self {
        let high = found.last().map_or(self.high, |last| self.high.max(*last));
        let candidates = joined(&self.holes, (self.high.saturating_add(1), high));
        let points: Vec<Range> = found.iter().map(|id| (*id, *id)).collect();
        Self {
            high,
            holes: subtract(&candidates, &points),
        }
    }
}

/// The ranges, and one more behind them where it is none that is empty; ranges that touch become one.
fn joined(ranges: &[Range], last: Range) -> Vec<Range> {
    let mut all = ranges.to_vec();
    if last.0 <= last.1 {
        match all
            .last_mut()
            .filter(|before| before.1.saturating_add(1) == last.0)
        {
            Some(before) => before.1 = last.1,
            None => all.push(last),
        }
    }
    all
}

/// The first without the second. Both grow.
pub(super) fn subtract(from: &[Range], what: &[Range]) -> Vec<Range> {
    let mut left = Vec::with_capacity(from.len());
    let mut at = 0;
    for &(first, last) in from {
        let mut first = first;
        while at < what.len() && what[at].1 < first {
            at += 1;
        }
        let mut next = at;
        while next < what.len() && what[next].0 <= last {
            if what[next].0 > first {
                left.push((first, what[next].0 - 1));
            }
            first = what[next].1.saturating_add(1);
            next += 1;
        }
        // The last of them may reach into the next range.
        at = next.saturating_sub(1).max(at);
        if first <= last && !(first == i64::MAX && next > 0 && what[next - 1].1 == i64::MAX) {
            left.push((first, last));
        }
    }
    left
}

/// What of the ranges lies above `after`.
pub(super) fn above(ranges: &[Range], after: i64) -> Vec<Range> {
    ranges
        .iter()
        .filter(|range| range.1 > after)
        .map(|range| (range.0.max(after.saturating_add(1)), range.1))
        .collect()
}

/// Whether one of the ranges, which grow, holds the number.
pub(super) fn holds(ranges: &[Range], id: i64) -> bool {
    let at = ranges.partition_point(|range| range.1 < id);
    ranges.get(at).is_some_and(|range| range.0 <= id)
}

/// How many numbers they hold.
pub(super) fn count(ranges: &[Range]) -> u64 {
    ranges
        .iter()
        .map(|(first, last)| first.abs_diff(*last).saturating_add(1))
        .fold(0, u64::saturating_add)
}

/// `column` in these ranges, as a condition. Numbers and nothing else.
pub(super) fn condition(column: &str, ranges: &[Range]) -> String {
    let mut sql = String::from("(");
    let mut singles = String::new();
    for (first, last) in ranges {
        if first == last {
            let _ = write!(singles, ",{first}");
        } else {
            let or = if sql.len() == 1 { "" } else { " OR " };
            let _ = write!(sql, "{or}{column} BETWEEN {first} AND {last}");
        }
    }
    if !singles.is_empty() {
        let or = if sql.len() == 1 { "" } else { " OR " };
        let _ = write!(sql, "{or}{column} IN ({})", &singles[1..]);
    }
    if sql.len() == 1 {
        sql.push_str("FALSE");
    }
    sql.push(')');
    sql
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn numbers(ranges: &[Range]) -> BTreeSet<i64> {
        ranges.iter().flat_map(|(first, last)| *first..=*last).collect()
    }

    fn ranges(numbers: &BTreeSet<i64>) -> Vec<Range> {
        let mut all = Vec::new();
        for n in numbers {
            all = joined(&all, (*n, *n));
        }
        all
    }

    fn seen() -> impl Strategy<Value = Seen> {
        (0_i64..60, prop::collection::btree_set(1_i64..60, 0..30)).prop_map(|(high, holes)| {
            let holes = holes.into_iter().filter(|hole| *hole <= high).collect();
            Seen {
                high,
                holes: ranges(&holes),
            }
        })
    }

    proptest! {
        #[test]
        fn a_mark_is_read_as_it_was_written(seen in seen()) {
            prop_assert_eq!(Seen::parse(&seen.mark()).unwrap(), seen);
        }

        /// Against plain sets: what a look adds, and what lies between two marks.
        #[test]
        fn sets_of_numbers_agree_with_sets_of_ranges(
            prev in seen(),
            found in prop::collection::btree_set(1_i64..80, 0..40),
        ) {
            let before = numbers(&prev.visible());
            let found: Vec<i64> = found.into_iter().filter(|id| !before.contains(id)).collect();
            let next = prev.and(&found);
            let after: BTreeSet<i64> = before.iter().chain(&found).copied().collect();
            prop_assert_eq!(numbers(&next.visible()), after.clone());
            prop_assert_eq!(next.high, prev.high.max(found.last().copied().unwrap_or(0)));
            prop_assert_eq!(numbers(&next.since(&prev)), found.iter().copied().collect::<BTreeSet<_>>());
            prop_assert_eq!(Seen::parse(&next.mark()).unwrap(), next.clone());
            let rest = next.rest();
            prop_assert_eq!(rest.last().unwrap().1, i64::MAX);
            prop_assert!(after.iter().all(|id| rest.iter().all(|range| !(range.0..=range.1).contains(id))));
        }

        /// The mark that all shards are run up to has what each of them has seen; a part of it is cut by number.
        #[test]
        fn marks_of_several_shards_are_joined_and_cut(all in prop::collection::vec(seen(), 0..5), last in 0_i64..70) {
            let union = Seen::union(&all);
            let sets: Vec<BTreeSet<i64>> = all.iter().map(|seen| numbers(&seen.visible())).collect();
            let wanted: BTreeSet<i64> = sets.iter().flatten().copied().collect();
            prop_assert_eq!(numbers(&union.visible()), wanted.clone());
            prop_assert_eq!(union.high, all.iter().map(|seen| seen.high).max().unwrap_or(0));
            prop_assert_eq!(Seen::parse(&union.mark()).unwrap(), union.clone());
            let cut = union.up_to(last);
            let up_to: BTreeSet<i64> = wanted.into_iter().filter(|n| *n <= last).collect();
            prop_assert_eq!(numbers(&cut.visible()), up_to);
            prop_assert_eq!(Seen::parse(&cut.mark()).unwrap(), cut);
        }

        #[test]
        fn subtracting_ranges_is_subtracting_their_numbers(
            from in prop::collection::btree_set(1_i64..60, 0..40),
            what in prop::collection::btree_set(1_i64..60, 0..40),
        ) {
            let left = subtract(&ranges(&from), &ranges(&what));
            prop_assert_eq!(numbers(&left), from.difference(&what).copied().collect::<BTreeSet<_>>());
            prop_assert_eq!(count(&left), from.difference(&what).count() as u64);
            prop_assert_eq!(
                numbers(&above(&left, 30)),
                numbers(&left).into_iter().filter(|n| *n > 30).collect::<BTreeSet<_>>()
            );
        }
    }

    #[test]
    fn ranges_reach_to_the_largest_number() {
        let all = [(1, i64::MAX)];
        assert_eq!(subtract(&all, &[(5, i64::MAX)]), [(1, 4)]);
        assert_eq!(subtract(&all, &all), []);
        assert_eq!(subtract(&all, &[(3, 3)]), [(1, 2), (4, i64::MAX)]);
    }

    #[test]
    fn marks_of_others_are_refused() {
        for text in ["", "x", "10:20:", "9:10", "9:3,3", "9:5-4", "9:1,a"] {
            assert!(Seen::parse(&Mark::new(text)).is_err(), "{text}");
        }
        let mark = Mark::new("900:17,20-25");
        let seen = Seen::parse(&mark).unwrap();
        assert_eq!(seen.holes, [(17, 17), (20, 25)]);
        assert_eq!(seen.mark(), mark);
    }

    #[test]
    fn conditions_name_every_range() {
        assert_eq!(condition("id", &[]), "(FALSE)");
        assert_eq!(condition("id", &[(3, 3)]), "(id IN (3))");
        assert_eq!(
            condition("o.id", &[(1, 2), (4, 4), (6, 9), (11, 11)]),
            "(o.id BETWEEN 1 AND 2 OR o.id BETWEEN 6 AND 9 OR o.id IN (4,11))"
        );
    }
}
