//! Tidying.
//!
//! Two passes. The registries hold the runs that have not ended, so that a lost one is found quickly (rule K10). The
//! others are found by going through the whole keyspace, a piece with each sweep: outcomes past their retention are
//! dropped then, tombstones and withdrawals removed. An entry that is removed from a registry costs a sweep nothing. What no sweep reaches Redis drops by itself at its end.

use std::ops::Bound;
use std::sync::PoisonError;

use redis::{Cmd, Value};
use semel_core::StoreError;
use semel_core::claim::{REMOVE_GRACE_MS, SweepReport, Swept, Token};

use crate::Redis;
use crate::error::{Doing, corrupt};
use crate::link::{Node, SWEEP, short};
use crate::names::{entry_of, token_of, unpack};

/// Records looked at by one sweep, for each change that it may make, and beyond that.
const LOOKS_PER_CHANGE: usize = 20;
const LOOKS: usize = 1_000;
/// Records looked at by one script.
const PIECE: usize = 100;
/// Entries of a registry read at once; one names up to 64 records.
const ENTRIES: usize = 32;

/// Where the next sweep goes on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    tag: u8,
    /// The registry's entry behind which to go on.
    entry: String,
    node: usize,
    cursor: u64,
}

/// An entry of a registry: its first token, and the records of the runs that one call may have been granted under it.
pub(crate) struct Entry {
    pub(crate) first: Token,
    pub(crate) records: Vec<Vec<u8>>,
}

impl Entry {
    /// The token of the record in this place.
    pub(crate) fn token(&self, place: usize) -> Token {
        Token(
            self.first
                .0
                .saturating_add(i64::try_from(place).unwrap_or(i64::MAX)),
        )
    }
}

/// A record to be looked at, and the token under which a registry names it.
struct Candidate {
    record: Vec<u8>,
    token: Option<Token>,
}

/// What is left of a sweep.
struct Budget {
    changes: usize,
    looks: usize,
    report: SweepReport,
}

impl Budget {
    const fn is_spent(&self) -> bool {
        self.changes == 0 || self.looks == 0
    }
}

impl Redis {
    pub(crate) async fn sweep_some(&self, limit: u32) -> Result<SweepReport, StoreError> {
        let changes = limit as usize;
        let mut budget = Budget {
            changes,
            looks: changes.saturating_mul(LOOKS_PER_CHANGE).saturating_add(LOOKS),
            report: SweepReport::default(),
        };
        let mut place = self
            .place()
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let swept = self.sweep_from(&mut place, &mut budget).await;
        *self.place().lock().unwrap_or_else(PoisonError::into_inner) = place;
        swept.map(|()| budget.report)
    }

    /// Both passes, each from where the last one ended and, if that was not the beginning, from there once more.
    async fn sweep_from(&self, place: &mut Place, budget: &mut Budget) -> Result<(), StoreError> {
        // Half of it is kept for the keyspace, however many runs go on.
        let kept = budget.looks / 2;
        budget.looks -= kept;
        let begun_inside = place.tag > 0 || !place.entry.is_empty();
        self.registries(place, budget).await?;
        if begun_inside && !budget.is_spent() {
            self.registries(place, budget).await?;
        }
        budget.looks = budget.looks.saturating_add(kept);
        let begun_inside = place.node > 0 || place.cursor > 0;
        self.keyspace(place, budget).await?;
        if begun_inside && !budget.is_spent() {
            self.keyspace(place, budget).await?;
        }
        Ok(())
    }

    async fn registries(&self, place: &mut Place, budget: &mut Budget) -> Result<(), StoreError> {
        while place.tag < self.names().registries() && !budget.is_spent() {
            let begin = match &place.entry[..] {
                "" => Bound::Unbounded,
                entry => Bound::Excluded(entry),
            };
            let entries = self.entries("sweep", place.tag, begin, ENTRIES).await?;
            let mut whole = entries.len() < ENTRIES;
            let candidates: Vec<Candidate> = entries
                .iter()
                .flat_map(|entry| {
                    entry.records.iter().enumerate().map(|(place, record)| Candidate {
                        record: record.clone(),
                        token: Some(entry.token(place)),
                    })
                })
                .collect();
            let mut over = self.tidy(&candidates, budget).await?.into_iter();
            let mut ended = Vec::new();
            for entry in entries {
                let runs: Vec<bool> = over.by_ref().take(entry.records.len()).collect();
                if runs.len() < entry.records.len() {
                    // The budget was spent: what comes next, this sweep or another, begins with this entry.
                    whole = false;
                    break;
                }
                if runs.iter().all(|over| *over) {
                    ended.push(entry.first);
                    // Nobody looks at these again: a sweep keeps up with whoever ends the runs of other processes.
                    budget.looks = budget.looks.saturating_add(entry.records.len());
                }
                place.entry = entry_of(entry.first);
            }
            self.forget(place.tag, &ended).await?;
            if whole {
                place.tag += 1;
                place.entry.clear();
            }
        }
        if place.tag >= self.names().registries() {
            place.tag = 0;
        }
        Ok(())
    }

    /// Removes entries whose runs have all ended: a run that has ended never goes on.
    async fn forget(&self, tag: u8, ended: &[Token]) -> Result<(), StoreError> {
        if ended.is_empty() {
            return Ok(());
        }
        let mut command = redis::cmd("XDEL");
        command.arg(self.names().registry(tag));
        for token in ended {
            command.arg(entry_of(*token));
        }
        self.link().ask("sweep", &Node::Only, command).await.map(|_| ())
    }

    /// Entries of a tag's registry from here on.
    pub(crate) async fn entries(
        &self,
        operation: &'static str,
        tag: u8,
        begin: Bound<&str>,
        count: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        let from = match begin {
            Bound::Unbounded => "-".to_owned(),
            Bound::Excluded(entry) => format!("({entry}"),
            Bound::Included(entry) => entry.to_owned(),
        };
        let mut command = redis::cmd("XRANGE");
        command.arg(self.names().registry(tag)).arg(from).arg("+");
        command.arg("COUNT").arg(count);
        let answer = self.link().ask(operation, &Node::Only, command).await?;
        entries_of(tag, answer).ok_or_else(|| corrupt(operation, "the registry of runs cannot be read"))
    }

    async fn keyspace(&self, place: &mut Place, budget: &mut Budget) -> Result<(), StoreError> {
        let nodes = self.link().nodes("sweep").await?;
        while place.node < nodes.len() && !budget.is_spent() {
            let node = &nodes[place.node];
            let (cursor, found) = self.scan("sweep", node, place.cursor, None).await?;
            budget.looks = budget.looks.saturating_sub(1);
            let candidates: Vec<Candidate> = found
                .into_iter()
                .map(|record| Candidate { record, token: None })
                .collect();
            if self.tidy(&candidates, budget).await?.len() < candidates.len() {
                return Ok(());
            }
            place.cursor = cursor;
            if cursor == 0 {
                place.node += 1;
            }
        }
        if place.node >= nodes.len() {
            place.node = 0;
        }
        Ok(())
    }

    /// A step through the keyspace of a node: the next cursor, and names of records.
    pub(crate) async fn scan(
        &self,
        operation: &'static str,
        node: &Node,
        cursor: u64,
        scope: Option<&semel_core::Scope>,
    ) -> Result<(u64, Vec<Vec<u8>>), StoreError> {
        let mut command = redis::cmd("SCAN");
        command.arg(cursor).arg("MATCH").arg(self.names().pattern(scope));
        command.arg("COUNT").arg(PIECE * 5);
        let answer = self.link().ask(operation, node, command).await?;
        let unreadable = || corrupt(operation, "Redis' answer to SCAN cannot be read");
        let (cursor, names) = scanned(answer).ok_or_else(unreadable)?;
        let names = names.into_iter().filter(|name| self.names().key(name).is_some());
        Ok((cursor, names.collect()))
    }

    /// Looks at records in order until the budget is spent; of each that it looked at, whether the run is over under whose
    /// token it was named.
    async fn tidy(&self, candidates: &[Candidate], budget: &mut Budget) -> Result<Vec<bool>, StoreError> {
        let mut over = Vec::new();
        let groups: Vec<&[Candidate]> = if self.link().is_cluster() {
            candidates
                .chunk_by(|one, two| self.names().tag(&one.record) == self.names().tag(&two.record))
                .flat_map(|group| group.chunks(PIECE))
                .collect()
        } else {
            candidates.chunks(PIECE).collect()
        };
        for group in groups {
            if budget.is_spent() {
                break;
            }
            let looked_at = self.tidy_some(group, budget).await?;
            let all = looked_at.len() == group.len();
            over.extend(looked_at);
            if !all {
                break;
            }
        }
        Ok(over)
    }

    async fn tidy_some(&self, group: &[Candidate], budget: &mut Budget) -> Result<Vec<bool>, StoreError> {
        let changes = budget.changes;
        let fill = |command: &mut Cmd| {
            for candidate in group {
                command.arg(&candidate.record);
            }
            command.arg(changes).arg(REMOVE_GRACE_MS * 1_000);
            for candidate in group {
                match candidate.token {
                    Some(token) => command.arg(&token.0.to_be_bytes()[..]),
                    None => command.arg(""),
                };
            }
        };
        // Sweeping again does no harm: a reply that is lost is only counted less.
        let answer = self
            .link()
            .run("sweep", Doing::Reading, &SWEEP, group.len(), fill);
        let (Value::Array(answers), _) = answer.await? else {
            return Err(short("sweep", Doing::Reading));
        };
        let mut over = Vec::new();
        for answer in answers {
            let Value::Int(number @ 0..=7) = answer else {
                return Err(short("sweep", Doing::Reading));
            };
            let swept = match number % 4 {
                1 => Some(Swept::Unknown),
                2 => Some(Swept::Tombstoned),
                3 => Some(Swept::Removed),
                _ => None,
            };
            if let Some(swept) = swept {
                budget.report.count(swept);
                budget.changes = budget.changes.saturating_sub(1);
            }
            over.push(number >= 4);
        }
        budget.looks = budget.looks.saturating_sub(over.len());
        Ok(over)
    }
}

fn entries_of(tag: u8, answer: Value) -> Option<Vec<Entry>> {
    let Value::Array(entries) = answer else {
        return None;
    };
    let entry = |entry| {
        let Value::Array(parts) = entry else { return None };
        let [Value::BulkString(id), Value::Array(fields)] = <[Value; 2]>::try_from(parts).ok()? else {
            return None;
        };
        let fields: [Value; 2] = fields.try_into().ok()?;
        let [Value::BulkString(field), Value::BulkString(names)] = fields else {
            return None;
        };
        let first = token_of(std::str::from_utf8(&id).ok()?)?;
        Some(match &field[..] {
            b"k" => Entry {
                first: Token(first.0 + i64::from(tag)),
                records: vec![names],
            },
            b"b" => Entry {
                first,
                records: unpack(&names)?,
            },
            _ => return None,
        })
    };
    entries.into_iter().map(entry).collect()
}

fn scanned(answer: Value) -> Option<(u64, Vec<Vec<u8>>)> {
    let Value::Array(parts) = answer else { return None };
    let [Value::BulkString(cursor), Value::Array(names)] = <[Value; 2]>::try_from(parts).ok()? else {
        return None;
    };
    let cursor = std::str::from_utf8(&cursor).ok()?.parse().ok()?;
    let name = |name| match name {
        Value::BulkString(name) => Some(name),
        _ => None,
    };
    Some((cursor, names.into_iter().map(name).collect::<Option<_>>()?))
}
