//! Which rows of a call go together, so that no row can pass an earlier one of its key that fails.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use semel_core::store::OutboxRow;

use super::entry;

/// Rows that go together; all in one call after the other, the next only when the last has gone well.
///
/// Redis runs a transaction whole: what fails in it fails for its whole stream. So rows of one key may stand in one
/// transaction only where they go to one stream. Where no key has two rows there is no order to keep, and no transaction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Part {
    /// Indices of rows, in order.
    pub(super) rows: Vec<usize>,
    /// They are one transaction.
    pub(super) whole: bool,
    bytes: usize,
}

/// Rows and bytes of one transaction at most: Redis does nothing else while it runs.
pub(super) const ROWS_MAX: usize = 256;
const BYTES_MAX: usize = 1 << 20;

/// Splits rows into parts. `streams` are the rows' streams; in a cluster each part has one.
pub(super) fn parts(rows: &[Arc<OutboxRow>], streams: &[String], cluster: bool) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = 0..rows.len();
    while !rest.is_empty() {
        let wave = wave(rows, streams, rest.clone());
        rest.start = wave.end;
        if cluster {
            let mut by_stream: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
            for index in wave {
                by_stream.entry(&streams[index]).or_default().push(index);
            }
            for indices in by_stream.into_values() {
                cut(rows, indices, &mut parts);
            }
        } else {
            cut(rows, wave, &mut parts);
        }
    }
    for part in &mut parts {
        // A cluster's driver may send commands that are no transaction to several nodes, and again one by one.
        part.whole = cluster || has_a_key_twice(rows, &part.rows);
    }
    parts
}

fn has_a_key_twice(rows: &[Arc<OutboxRow>], indices: &[usize]) -> bool {
    let mut seen = HashSet::with_capacity(indices.len());
    let mut keys = indices
        .iter()
        .filter_map(|index| rows[*index].event.key.as_deref());
    keys.any(|key| !seen.insert(key))
}

/// The longest run of rows in which each key goes to one stream.
fn wave(rows: &[Arc<OutboxRow>], streams: &[String], rest: Range<usize>) -> Range<usize> {
    let mut of: HashMap<&[u8], &str> = HashMap::new();
    for index in rest.clone() {
        if let Some(key) = rows[index].event.key.as_deref()
            && *of.entry(key).or_insert(&streams[index]) != streams[index]
        {
            return rest.start..index;
        }
    }
    rest
}

fn cut(rows: &[Arc<OutboxRow>], indices: impl IntoIterator<Item = usize>, parts: &mut Vec<Part>) {
    let mut part = Part::default();
    for index in indices {
        let bytes = entry::bytes(&rows[index].event);
        if !part.rows.is_empty() && (part.rows.len() == ROWS_MAX || part.bytes + bytes > BYTES_MAX) {
            parts.push(std::mem::take(&mut part));
        }
        part.rows.push(index);
        part.bytes += bytes;
    }
    if !part.rows.is_empty() {
        parts.push(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_core::{Event, Timestamp};
    use uuid::Uuid;

    /// Rows of `key topic`, and their streams.
    fn made(rows: &[&str]) -> (Vec<Arc<OutboxRow>>, Vec<String>) {
        let row = |text: &&str| {
            let (key, topic) = text.split_once(' ').unwrap();
            let mut event = Event::new(Uuid::from_u128(1), topic, "t");
            event.key = (!key.is_empty()).then(|| key.to_owned().into());
            Arc::new(OutboxRow {
                row: 1,
                created_at: Timestamp(0),
                batch_no: 0,
                event,
            })
        };
        let rows: Vec<_> = rows.iter().map(row).collect();
        let streams = rows.iter().map(|row| row.event.topic.clone()).collect();
        (rows, streams)
    }

    fn split(rows: &[&str], cluster: bool) -> Vec<Vec<usize>> {
        let (rows, streams) = made(rows);
        parts(&rows, &streams, cluster)
            .into_iter()
            .map(|part| part.rows)
            .collect()
    }

    #[test]
    fn a_key_that_changes_its_stream_begins_a_new_part() {
        assert_eq!(
            split(&["a x", "b y", "a x", " x", " y"], false),
            [[0, 1, 2, 3, 4]]
        );
        assert_eq!(
            split(&["a x", "b y", "a y", "b y"], false),
            [vec![0, 1], vec![2, 3]]
        );
    }

    #[test]
    fn in_a_cluster_each_stream_is_a_part() {
        assert_eq!(split(&["a x", "b y", "a x"], true), [vec![0, 2], vec![1]]);
        assert_eq!(split(&["a y", "b y", "a x"], true), [vec![0, 1], vec![2]]);
    }

    #[test]
    fn only_a_part_with_a_key_twice_is_a_transaction() {
        let whole = |rows: &[&str], cluster| {
            let (rows, streams) = made(rows);
            let parts = parts(&rows, &streams, cluster);
            parts.iter().map(|part| part.whole).collect::<Vec<_>>()
        };
        assert_eq!(whole(&["a x", "b y", " x", " x"], false), [false]);
        assert_eq!(whole(&["a x", "b x", "a x"], false), [true]);
        assert_eq!(whole(&["a x", "b x", "a y", "b y"], false), [false, false]);
        assert_eq!(whole(&["a x"], true), [true]);
        let mut many = vec!["a x"; ROWS_MAX];
        many.push("b x");
        assert_eq!(whole(&many, false), [true, false]);
    }

    #[test]
    fn parts_are_bounded() {
        let rows = vec!["a x"; ROWS_MAX + 1];
        let parts = split(&rows, false);
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [ROWS_MAX, 1]);
        assert!(split(&[], false).is_empty());
    }
}
