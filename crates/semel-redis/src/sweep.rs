//! Tidying.
//!
//! Two passes. The registries hold the runs that have not ended, so that a lost one is found quickly (rule K10). The
//! others are found by going through the whole keyspace, a piece with each sweep: outcomes past their retention are
//! dropped then, tombstones and withdrawals removed. What no sweep reaches Redis drops by itself at its end.

use std::sync::PoisonError;

use redis::{Cmd, Value};
use semel_core::StoreError;
use semel_core::claim::{REMOVE_GRACE_MS, SweepReport, Swept};

use crate::Redis;
use crate::error::{Doing, corrupt};
use crate::link::{Node, SWEEP};
use crate::names::{TAGS, token_of};

/// Records looked at by one sweep, for each change that it may make, and beyond that.
const LOOKS_PER_CHANGE: usize = 20;
const LOOKS: usize = 1_000;
/// Records looked at by one script.
const PIECE: usize = 100;

/// Where the next sweep goes on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    tag: u8,
    /// The registry's entry behind which to go on.
    entry: String,
    node: usize,
    cursor: u64,
}

/// A record to be looked at, and the registry's entry that names it.
struct Candidate {
    record: Vec<u8>,
    token: Vec<u8>,
    entry: String,
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
        let begun_inside = place.tag > 0 || !place.entry.is_empty();
        self.registries(place, budget).await?;
        if begun_inside && !budget.is_spent() {
            self.registries(place, budget).await?;
        }
        let begun_inside = place.node > 0 || place.cursor > 0;
        self.keyspace(place, budget).await?;
        if begun_inside && !budget.is_spent() {
            self.keyspace(place, budget).await?;
        }
        Ok(())
    }

    async fn registries(&self, place: &mut Place, budget: &mut Budget) -> Result<(), StoreError> {
        while place.tag < TAGS && !budget.is_spent() {
            let entries = self.entries("sweep", place.tag, &place.entry, PIECE).await?;
            let whole = entries.len() < PIECE;
            let candidates: Vec<Candidate> = entries
                .into_iter()
                .map(|(entry, record)| Candidate {
                    token: token_of(place.tag, &entry)
                        .map_or_else(Vec::new, |token| token.0.to_be_bytes().to_vec()),
                    record,
                    entry,
                })
                .collect();
            let looked_at = self.tidy(&candidates, budget).await?;
            if looked_at < candidates.len() {
                if let Some(last) = looked_at.checked_sub(1).and_then(|at| candidates.get(at)) {
                    place.entry.clone_from(&last.entry);
                }
                return Ok(());
            }
            if whole {
                place.tag += 1;
                place.entry.clear();
            } else if let Some(last) = candidates.last() {
                place.entry.clone_from(&last.entry);
            }
        }
        if place.tag >= TAGS {
            place.tag = 0;
        }
        Ok(())
    }

    /// Entries of a tag's registry behind this one: id and record's name.
    pub(crate) async fn entries(
        &self,
        operation: &'static str,
        tag: u8,
        behind: &str,
        count: usize,
    ) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let from = if behind.is_empty() {
            "-".to_owned()
        } else {
            format!("({behind}")
        };
        let mut command = redis::cmd("XRANGE");
        command.arg(self.names().registry(tag)).arg(from).arg("+");
        command.arg("COUNT").arg(count);
        let answer = self.link().ask(operation, &Node::Only, command).await?;
        entries_of(answer).ok_or_else(|| corrupt(operation, "the registry of runs cannot be read"))
    }

    async fn keyspace(&self, place: &mut Place, budget: &mut Budget) -> Result<(), StoreError> {
        let nodes = self.link().nodes("sweep").await?;
        while place.node < nodes.len() && !budget.is_spent() {
            let node = &nodes[place.node];
            let (cursor, found) = self.scan("sweep", node, place.cursor, None).await?;
            budget.looks = budget.looks.saturating_sub(1);
            let candidates: Vec<Candidate> = found
                .into_iter()
                .map(|record| Candidate {
                    record,
                    token: Vec::new(),
                    entry: String::new(),
                })
                .collect();
            if self.tidy(&candidates, budget).await? < candidates.len() {
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

    /// Looks at records in order until the budget is spent; how many.
    async fn tidy(&self, candidates: &[Candidate], budget: &mut Budget) -> Result<usize, StoreError> {
        let mut done = 0;
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
            done += looked_at;
            if looked_at < group.len() {
                break;
            }
        }
        Ok(done)
    }

    async fn tidy_some(&self, group: &[Candidate], budget: &mut Budget) -> Result<usize, StoreError> {
        let changes = budget.changes;
        let fill = |command: &mut Cmd| {
            for candidate in group {
                command.arg(&candidate.record);
                command.arg(self.names().registry_of(&candidate.record));
            }
            command.arg(changes).arg(REMOVE_GRACE_MS * 1_000);
            for candidate in group {
                command.arg(&candidate.token).arg(&candidate.entry);
            }
        };
        // Sweeping again does no harm: a reply that is lost is only counted less.
        let answers = self
            .link()
            .run("sweep", Doing::Reading, &SWEEP, 2 * group.len(), fill)
            .await?;
        for answer in &answers {
            let swept = match answer {
                Value::Int(1) => Swept::Unknown,
                Value::Int(2) => Swept::Tombstoned,
                Value::Int(3) => Swept::Removed,
                _ => continue,
            };
            budget.report.count(swept);
            budget.changes = budget.changes.saturating_sub(1);
        }
        budget.looks = budget.looks.saturating_sub(answers.len());
        Ok(answers.len())
    }
}

fn entries_of(answer: Value) -> Option<Vec<(String, Vec<u8>)>> {
    let Value::Array(entries) = answer else {
        return None;
    };
    let entry = |entry| {
        let Value::Array(parts) = entry else { return None };
        let [Value::BulkString(id), Value::Array(fields)] = <[Value; 2]>::try_from(parts).ok()? else {
            return None;
        };
        let Value::BulkString(record) = fields.into_iter().nth(1)? else {
            return None;
        };
        Some((String::from_utf8(id).ok()?, record))
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
