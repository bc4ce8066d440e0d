//! The comparison of what is kept with what arrived. It grows with the rows that are kept, not with what arrived.

use std::collections::HashMap;
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
    pub(super) key: CameKey,
    /// Of the data, where it is known.
    pub(super) sha256: Option<[u8; 32]>,
}

/// What is known of an arrival's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CameKey {
    Untold,
    /// As it is, or as [`keys::text`] writes it.
    Told(Bytes),
    /// It came without one.
    #[cfg_attr(
        not(any(feature = "kafka", feature = "nats", feature = "redis", test)),
        expect(dead_code, reason = "made by builds that read what arrived themselves")
    )]
    None,
}

impl CameKey {
    fn is_other_than(&self, key: Option<&Bytes>) -> bool {
        match (self, key) {
            (Self::Told(came), Some(key)) => came != key && came != keys::text(key).as_bytes(),
            (Self::None, Some(_)) => true,
            (Self::Untold, _) | (_, None) => false,
        }
    }
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

/// What came of one id.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    /// Rows of it that are to arrive.
    sent: usize,
    came: usize,
    altered: bool,
}

/// A comparison that is being made.
pub(super) struct Comparison {
    expected: Vec<Expected>,
    /// Of each id the first row's place.
    first: HashMap<Uuid, usize>,
    /// By the first row's place.
    tallies: Vec<Tally>,
    /// The last row of a key that arrived.
    last: HashMap<Bytes, i64>,
    audit: Audit,
}

impl Comparison {
    /// With `expected` in the order of rows.
    pub(super) fn new(expected: Vec<Expected>) -> Self {
        let mut first = HashMap::with_capacity(expected.len());
        let mut tallies = vec![Tally::default(); expected.len()];
        let mut audit = Audit::default();
        for (at, it) in expected.iter().enumerate() {
            let sent = usize::from(matches!(it.state, KeptState::Sent | KeptState::Edited));
            tallies[*first.entry(it.id).or_insert(at)].sent += sent;
            audit.sent += sent;
            match it.state {
                KeptState::Waiting => audit.waiting += 1,
                KeptState::SetAside => audit.set_aside += 1,
                KeptState::Sent | KeptState::Edited | KeptState::Dropped => {}
            }
        }
        Self {
            expected,
            first,
            tallies,
            last: HashMap::new(),
            audit,
        }
    }

    /// The next arrival, in the order of arrival (within a key that is enough).
    pub(super) fn arrive(&mut self, arrival: &Arrival) {
        self.audit.arrived += 1;
        let Some(at) = self.first.get(&arrival.id).copied() else {
            self.audit.unknown += 1;
            return;
        };
        let (it, tally) = (&self.expected[at], &mut self.tallies[at]);
        tally.came += 1;
        let other_data =
            it.state != KeptState::Edited && arrival.sha256.is_some_and(|hash| hash != it.sha256);
        if (other_data || arrival.key.is_other_than(it.key.as_ref())) && !tally.altered {
            tally.altered = true;
            self.audit.altered.push((it.row, it.id));
        }
        let Some(key) = it.key.as_ref().filter(|_| tally.came == 1) else {
            return;
        };
        match self.last.get_mut(key) {
            Some(before) if *before > it.row => self.audit.reordered.push(Reordered {
                row: it.row,
                id: it.id,
                key: key.clone(),
                behind: *before,
            }),
            Some(before) => *before = it.row,
            None => {
                self.last.insert(key.clone(), it.row);
            }
        }
    }

    /// What was read at a receiver, in the order of arrival. Without an id it is not known to belong to the outbox.
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    pub(super) fn found(&mut self, arrived: semel_core::store::Arrived) {
        match arrived.id {
            Some(id) => self.arrive(&Arrival {
                id,
                key: arrived.key.map_or(CameKey::None, CameKey::Told),
                sha256: arrived.sha256,
            }),
            None => {
                self.audit.arrived += 1;
                self.audit.unknown += 1;
            }
        }
    }

    /// What was found.
    pub(super) fn done(mut self) -> Audit {
        for (at, it) in self.expected.iter().enumerate() {
            if self.first.get(&it.id) != Some(&at) {
                continue;
            }
            let Tally { sent, came, .. } = self.tallies[at];
            if came < sent {
                self.audit.missing.push((it.row, it.id));
            } else if came > sent.max(1) {
                // Something that waits, or that was set aside after an answer was lost, may have come once.
                self.audit.doubled.push(Doubled {
                    row: it.row,
                    id: it.id,
                    times: came,
                    expected: sent,
                });
            }
            if it.state == KeptState::Dropped && came > 0 {
                self.audit.dropped_and_came.push((it.row, it.id));
            }
        }
        self.audit
    }
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
