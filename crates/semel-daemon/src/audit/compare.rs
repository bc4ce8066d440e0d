//! The comparison, as a pure function of what is kept and what arrived.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use bytes::Bytes;
use semel_core::store::{KeptRow, KeptState};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::keys;

/// A row of the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) row: i64,
    pub(super) id: Uuid,
    pub(super) key: Option<Bytes>,
    pub(super) sha256: [u8; 32],
    pub(super) state: KeptState,
}

impl Expected {
    pub(super) fn of(row: KeptRow) -> Self {
        Self {
            row: row.row,
            id: row.event_id,
            key: row.key,
            sha256: row.sha256,
            state: row.state,
        }
    }
}

/// What arrived, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) id: Uuid,
    pub(super) key: Option<String>,
    pub(super) sha256: Option<[u8; 32]>,
}

/// An event that came more often than it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Doubled {
    pub(super) row: i64,
    pub(super) id: Uuid,
    /// How often it came, and how often it should have: a replay with the same id sends once more.
    pub(super) times: usize,
    pub(super) expected: usize,
}

/// An event whose first arrival came after one of its key that was written later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reordered {
    pub(super) row: i64,
    pub(super) id: Uuid,
    pub(super) key: Bytes,
    /// The later row that came before it.
    pub(super) behind: i64,
}

/// What the comparison found; all lists in the order of rows, `reordered` in the order of arrival.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Audit {
    /// Events that should have arrived.
    pub(super) sent: usize,
    /// Events that arrived.
    pub(super) arrived: usize,
    pub(super) missing: Vec<(i64, Uuid)>,
    pub(super) doubled: Vec<Doubled>,
    pub(super) reordered: Vec<Reordered>,
    /// Came with other data or under another key than the outbox has.
    pub(super) altered: Vec<(i64, Uuid)>,
    /// Not sent for good yet, or set aside: not missing.
    pub(super) waiting: usize,
    pub(super) set_aside: usize,
    /// Dropped by a person, and yet they came.
    pub(super) dropped_and_came: Vec<(i64, Uuid)>,
    /// Arrived, and not in the outbox: cleaned since, or not from here.
    pub(super) unknown: usize,
}

impl Audit {
    /// Whether all is as it should be. What is doubled with the same id is for receivers to drop, but it is told.
    pub(super) fn clean(&self) -> bool {
        self.missing.is_empty()
            && self.doubled.is_empty()
            && self.reordered.is_empty()
            && self.altered.is_empty()
            && self.dropped_and_came.is_empty()
    }
}

/// Compares. `expected` in the order of rows, `arrived` in the order of arrival (within a key that is enough).
pub(super) fn compare(expected: &[Expected], arrived: &[Arrival]) -> Audit {
    let mut audit = Audit {
        arrived: arrived.len(),
        ..Audit::default()
    };
    let mut times: HashMap<Uuid, usize> = HashMap::new();
    for arrival in arrived {
        *times.entry(arrival.id).or_default() += 1;
    }
    // By id: the first row, and how many rows are to arrive.
    let mut first: HashMap<Uuid, (&Expected, usize)> = HashMap::new();
    for it in expected {
        let sent = usize::from(matches!(it.state, KeptState::Sent | KeptState::Edited));
        first
            .entry(it.id)
            .and_modify(|(_, count)| *count += sent)
            .or_insert((it, sent));
        audit.sent += sent;
        match it.state {
            KeptState::Waiting => audit.waiting += 1,
            KeptState::SetAside => audit.set_aside += 1,
            KeptState::Sent | KeptState::Edited | KeptState::Dropped => {}
        }
    }
    let mut told = HashSet::new();
    for it in expected {
        let Some((_, count)) = first.get(&it.id) else {
            continue;
        };
        if !told.insert(it.id) {
            continue;
        }
        let came = times.get(&it.id).copied().unwrap_or(0);
        if came < *count {
            audit.missing.push((it.row, it.id));
        } else if came > (*count).max(1) {
            // Something that waits, or that was set aside after an answer was lost, may have come once.
            audit.doubled.push(Doubled {
                row: it.row,
                id: it.id,
                times: came,
                expected: *count,
            });
        }
        if it.state == KeptState::Dropped && came > 0 {
            audit.dropped_and_came.push((it.row, it.id));
        }
    }
    let mut seen = HashSet::new();
    let mut altered = HashSet::new();
    let mut last: HashMap<&Bytes, i64> = HashMap::new();
    for arrival in arrived {
        let Some((it, _)) = first.get(&arrival.id) else {
            audit.unknown += 1;
            continue;
        };
        let other_data =
            it.state != KeptState::Edited && arrival.sha256.is_some_and(|hash| hash != it.sha256);
        let other_key = match (&arrival.key, &it.key) {
            (Some(came), Some(key)) => *came != keys::text(key) && came.as_bytes() != &key[..],
            (Some(_), None) | (None, _) => false,
        };
        if (other_data || other_key) && altered.insert(arrival.id) {
            audit.altered.push((it.row, it.id));
        }
        if !seen.insert(arrival.id) {
            continue;
        }
        let Some(key) = &it.key else { continue };
        match last.get_mut(key) {
            Some(before) if *before > it.row => audit.reordered.push(Reordered {
                row: it.row,
                id: it.id,
                key: key.clone(),
                behind: *before,
            }),
            Some(before) => *before = it.row,
            None => {
                last.insert(key, it.row);
            }
        }
    }
    audit
}

fn few<T>(all: &[T], show: usize, one: impl Fn(&T) -> Value) -> Value {
    json!({ "count": all.len(), "first": all.iter().take(show).map(one).collect::<Vec<_>>() })
}

impl Audit {
    pub(super) fn json(&self, show: usize) -> Value {
        let pair = |(row, id): &(i64, Uuid)| json!({ "row": row, "id": id });
        json!({
            "clean": self.clean(),
            "sent": self.sent,
            "arrived": self.arrived,
            "missing": few(&self.missing, show, pair),
            "doubled": few(&self.doubled, show, |it| {
                json!({ "row": it.row, "id": it.id, "times": it.times, "expected": it.expected })
            }),
            "reordered": few(&self.reordered, show, |it| {
                json!({ "row": it.row, "id": it.id, "key": keys::text(&it.key), "came_after_row": it.behind })
            }),
            "altered": few(&self.altered, show, pair),
            "dropped_and_came": few(&self.dropped_and_came, show, pair),
            "waiting": self.waiting,
            "set_aside": self.set_aside,
            "unknown": self.unknown,
        })
    }

    pub(super) fn text(&self, show: usize) -> String {
        let mut text = String::new();
        let mut say = |name: &str, count: usize, lines: Vec<String>| {
            let _ = writeln!(text, "{name:<18}{count}");
            for line in lines.iter().take(show) {
                let _ = writeln!(text, "    {line}");
            }
            if count > show && !lines.is_empty() {
                let _ = writeln!(text, "    … and {} more; --show N", count - show);
            }
        };
        let pairs = |all: &[(i64, Uuid)]| -> Vec<String> {
            all.iter()
                .take(show)
                .map(|(row, id)| format!("row {row}  {id}"))
                .collect()
        };
        say("sent", self.sent, Vec::new());
        say("arrived", self.arrived, Vec::new());
        say("missing", self.missing.len(), pairs(&self.missing));
        let doubled = self.doubled.iter().take(show);
        let doubled = doubled.map(|it| {
            format!(
                "row {}  {}  came {} times, expected {}",
                it.row, it.id, it.times, it.expected
            )
        });
        say("doubled", self.doubled.len(), doubled.collect());
        let reordered = self.reordered.iter().take(show).map(|it| {
            format!(
                "row {}  {}  of key {} came after row {}",
                it.row,
                it.id,
                keys::text(&it.key),
                it.behind
            )
        });
        say("reordered", self.reordered.len(), reordered.collect());
        say("altered", self.altered.len(), pairs(&self.altered));
        say(
            "dropped and came",
            self.dropped_and_came.len(),
            pairs(&self.dropped_and_came),
        );
        say("waiting", self.waiting, Vec::new());
        say("set aside", self.set_aside, Vec::new());
        say("not in the outbox", self.unknown, Vec::new());
        text.push_str(if self.clean() {
            "all that was sent arrived, once and in order"
        } else {
            "not as it should be"
        });
        text
    }
}

#[cfg(test)]
mod tests;
