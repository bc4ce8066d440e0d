//! The desk of the outbox in memory: the specification.

use async_trait::async_trait;
use bytes::Bytes;

use super::MemoryOutbox;
use super::outbox::{Inner, commit_of};
use crate::error::StoreError;
use crate::host::Timestamp;
use crate::relay::{DeskRefusal, LogCopy, Mark, ShardId, ShardLease, after_restore, decide};
use crate::store::{
    DeskChange, DeskEntry, DeskQuery, DeskRequest, DeskRow, Exception, ExceptionKind, Guarded, KeptRow,
    KeptState, OutboxDesk, OutboxRow, PageRow, PageSize, REPLAY_HEADER, REPLAY_REASON, RedriveSave, Replay,
    Replayed, Rescan, ShardStanding, Standing, StoredException, Taken, Taking, Wish,
};

impl Inner {
    /// The first row of a key's list.
    fn first(&self, shard: &ShardId, key: &Bytes) -> Option<i64> {
        let mut rows = self.exceptions.iter();
        rows.find(|(_, row)| row.stored.shard == *shard && row.list() == Some(key))
            .map(|(id, _)| *id)
    }

    fn asked(&self, row: i64) -> Option<Wish> {
        self.exceptions.get(&row).and_then(|row| row.asked)
    }

    fn settled(&self, commit: u64, row: &OutboxRow) -> bool {
        self.shards.iter().any(|(id, shard)| {
            id.stream == row.event.stream
                && shard.slots.range().contains(&row.event.slot())
                && commit <= commit_of(&shard.cursor.prev)
        })
    }

    fn write(&mut self, at: Timestamp, entry: DeskEntry) {
        let entry = DeskEntry {
            at,
            entry: self.log.len() as i64 + 1,
            ..entry
        };
        self.log.push(entry);
    }
}

#[async_trait]
impl OutboxDesk for MemoryOutbox {
    async fn desk_rows(&self, query: &DeskQuery) -> Result<Vec<DeskRow>, StoreError> {
        let inner = self.lock();
        let fits = |row: &&DeskRow| {
            let event = &row.stored.row.row.event;
            query.stream.as_ref().is_none_or(|stream| event.stream == *stream)
                && query
                    .key
                    .as_ref()
                    .is_none_or(|key| event.key.as_ref() == Some(key))
                && query.kind.is_none_or(|kind| row.stored.exception.kind == kind)
        };
        let rows = inner.exceptions.range(query.after.saturating_add(1)..);
        Ok(rows
            .map(|(_, row)| row)
            .filter(fits)
            .take(query.limit as usize)
            .cloned()
            .collect())
    }

    async fn desk_row(&self, row: i64) -> Result<Option<DeskRow>, StoreError> {
        Ok(self.lock().exceptions.get(&row).cloned())
    }

    async fn change(&self, request: &DeskRequest) -> Result<Result<(), DeskRefusal>, StoreError> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let found = inner.exceptions.get(&request.row).cloned();
        let list = found
            .as_ref()
            .and_then(|row| Some((&row.stored.shard, row.list()?)));
        let first = list.and_then(|(shard, key)| inner.first(shard, key));
        let first = first.map(|first| (first, inner.asked(first)));
        match decide(found.as_ref(), first, &request.change) {
            Ok(true) => {}
            Ok(false) => return Ok(Ok(())),
            Err(refusal) => return Ok(Err(refusal)),
        }
        let Some(row) = inner.exceptions.get_mut(&request.row) else {
            return Ok(Err(DeskRefusal::Absent));
        };
        let old = row.stored.row.row.event.clone();
        match &request.change {
            DeskChange::Ask(wish) => {
                row.asked = Some(*wish);
                row.taken = 0;
            }
            DeskChange::Edit { event, .. } => {
                row.stored.row.row.event = (**event).clone();
                row.stored.row.barred = None;
                row.edits += 1;
            }
        }
        inner.write(now, DeskEntry::of(request, &old));
        Ok(Ok(()))
    }

    async fn desk_log(&self, after: i64, limit: u32) -> Result<Vec<DeskEntry>, StoreError> {
        let inner = self.lock();
        let entries = inner.log.iter().filter(|entry| entry.entry > after);
        Ok(entries.take(limit as usize).cloned().collect())
    }

    async fn standing(&self) -> Result<Standing, StoreError> {
        let now = self.clock.now();
        let inner = self.lock();
        let shards = inner
            .shards
            .iter()
            .map(|(id, shard)| {
                let rows = || inner.exceptions.values().filter(|row| row.stored.shard == *id);
                let mut keys: Vec<&Bytes> = rows().filter_map(DeskRow::list).collect();
                keys.sort();
                keys.dedup();
                ShardStanding {
                    shard: id.clone(),
                    owner: shard.owner.clone(),
                    until: shard.nonce.map(|_| shard.until),
                    held: shard.nonce.is_some() && shard.until > now,
                    note: shard.note.as_ref().map(|(note, _)| note.clone()),
                    noted_at: shard.note.as_ref().map(|(_, at)| *at),
                    parked_keys: keys.len() as u64,
                    asked: rows().filter(|row| row.asked.is_some()).count() as u64,
                    oldest_exception: rows().map(|row| row.stored.since).min(),
                }
            })
            .collect();
        Ok(Standing {
            now,
            shards,
            holds: Vec::new(),
            hidden: Vec::new(),
        })
    }

    async fn take(&self, lease: &ShardLease, size: PageSize) -> Result<Guarded<Taken>, StoreError> {
        let mut inner = self.lock();
        if inner.owned(lease).is_none() {
            return Ok(Guarded::Lost);
        }
        let mine = |row: &&DeskRow| row.stored.shard == lease.shard;
        let going: Vec<Bytes> = inner
            .exceptions
            .values()
            .filter(mine)
            .filter(|row| matches!(row.asked, Some(Wish::Retry | Wish::Release)))
            .filter_map(|row| row.list().cloned())
            .collect();
        let fits = |row: &&DeskRow| row.asked.is_some() || row.list().is_some_and(|key| going.contains(key));
        let mut taking = Taking::new(size);
        for row in inner.exceptions.values().filter(mine).filter(fits) {
            if !taking.add(row.clone()) {
                break;
            }
        }
        let (taken, marked) = taking.done();
        for row in marked {
            if let Some(row) = inner.exceptions.get_mut(&row) {
                row.taken += 1;
            }
        }
        Ok(Guarded::Done(taken))
    }

    async fn settle(
        &self,
        lease: &ShardLease,
        save: &RedriveSave,
    ) -> Result<Guarded<Vec<Bytes>>, StoreError> {
        let mut inner = self.lock();
        if inner.owned(lease).is_none() {
            return Ok(Guarded::Lost);
        }
        for row in &save.removed {
            inner.exceptions.remove(row);
        }
        for refused in &save.failed {
            if let Some(row) = inner.exceptions.get_mut(&refused.row)
                && row.stored.exception.attempts == refused.attempts
            {
                row.asked = None;
                row.taken = 0;
                row.stored.exception.attempts = row.stored.exception.attempts.saturating_add(1);
                row.stored.exception.reason.clone_from(&refused.reason);
                if row.stored.exception.kind == ExceptionKind::Behind {
                    row.stored.exception.kind = ExceptionKind::Parked;
                }
            }
        }
        let mut left = Vec::new();
        for (key, wish) in &save.next {
            let first = inner.first(&lease.shard, key);
            if let Some(row) = first.and_then(|first| inner.exceptions.get_mut(&first)) {
                row.stored.exception.kind = ExceptionKind::Parked;
                row.asked = row.asked.or(*wish);
                left.push(key.clone());
            }
        }
        Ok(Guarded::Done(left))
    }

    async fn note(&self, lease: &ShardLease, note: Option<&str>) -> Result<Guarded<()>, StoreError> {
        let now = self.clock.now();
        let mut inner = self.lock();
        Ok(inner.owned(lease).map_or(Guarded::Lost, |shard| {
            shard.note = note.map(|note| (note.to_owned(), now));
            Guarded::Done(())
        }))
    }

    async fn rescan(
        &self,
        stream: Option<&str>,
        by: &str,
        why: &str,
        dry_run: bool,
    ) -> Result<Rescan, StoreError> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let mut rescan = Rescan::default();
        let meant = |name: &str| stream.is_none_or(|stream| stream == name);
        rescan.rows = inner
            .rows
            .values()
            .filter(|(_, row)| meant(&row.event.stream))
            .count() as u64;
        for (id, shard) in inner.shards.iter_mut().filter(|(id, _)| meant(&id.stream)) {
            rescan.shards += 1;
            if shard.nonce.is_some() && shard.until > now {
                rescan.owned.push((id.clone(), shard.owner.clone()));
            }
            if !dry_run {
                shard.epoch += 1;
                shard.nonce = None;
                shard.until = Timestamp(i64::MIN);
                let cursor = &mut shard.cursor;
                (cursor.prev, cursor.open, cursor.last_id) = (Mark::new("0"), None, 0);
                cursor.batch_no = after_restore(cursor.batch_no, now);
                cursor.version += 1;
                cursor.suspect = None;
                cursor.log = cursor.log.map(|_| LogCopy::Rebind);
            }
        }
        if !dry_run {
            // A mark may be of an outbox that was replaced: the next one is set when this one has rested.
            for (_, change) in inner.changes.iter_mut().filter(|(name, _)| meant(name)) {
                change.hold_until = change.hold_until.min(now);
            }
            inner.write(now, DeskEntry::about(stream.unwrap_or("*"), "rescan", by, why));
        }
        Ok(rescan)
    }

    async fn replay(&self, replay: &Replay) -> Result<Replayed, StoreError> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let fits = |commit: u64, row: &OutboxRow| {
            let event = &row.event;
            row.row <= replay.upto
                && event.stream == replay.stream
                && replay.from.is_none_or(|from| row.created_at >= from)
                && replay.to.is_none_or(|to| row.created_at < to)
                && replay
                    .key
                    .as_ref()
                    .is_none_or(|key| event.key.as_ref() == Some(key))
                && replay.topic.as_ref().is_none_or(|topic| event.topic == *topic)
                && !event.headers.iter().any(|(name, _)| name == REPLAY_HEADER)
                && !inner.exceptions.contains_key(&row.row)
                && !inner
                    .log
                    .iter()
                    .any(|it| it.row == row.row && it.before.is_some())
                && inner.settled(commit, row)
        };
        let rows = inner.rows.range(replay.after.saturating_add(1)..);
        let found = rows
            .filter(|(_, (commit, row))| fits(*commit, row))
            .map(|(_, (_, row))| PageRow {
                row: row.clone(),
                barred: None,
            })
            .take(replay.rows_max() + 1)
            .collect();
        let (replayed, copies) = replay.copies(found, &*self.clock)?;
        inner.commits += u64::from(!replay.dry_run);
        for (number, copy) in copies {
            if replay.fresh_ids {
                inner.last_id += 1;
                let (id, commit) = (inner.last_id, inner.commits);
                let row = OutboxRow {
                    row: id,
                    created_at: now,
                    batch_no: 0,
                    event: copy,
                };
                inner.rows.insert(id, (commit, row));
                continue;
            }
            let Some(created_at) = inner.rows.get(&number).map(|(_, row)| row.created_at) else {
                continue;
            };
            let of = |(id, shard): &(&ShardId, &super::outbox::Shard)| {
                id.stream == copy.stream && shard.slots.range().contains(&copy.slot())
            };
            let Some(shard) = inner.shards.iter().find(of).map(|(id, _)| id.clone()) else {
                continue;
            };
            let again = DeskRow {
                stored: StoredException {
                    shard,
                    exception: Exception {
                        row: number,
                        event_id: copy.id,
                        kind: ExceptionKind::Skipped,
                        attempts: 0,
                        reason: REPLAY_REASON.to_owned(),
                    },
                    since: now,
                    row: PageRow {
                        row: OutboxRow {
                            row: number,
                            created_at,
                            batch_no: 0,
                            event: copy,
                        },
                        barred: None,
                    },
                },
                asked: Some(Wish::Retry),
                edits: 0,
                taken: 0,
            };
            inner.exceptions.insert(number, again);
        }
        Ok(replayed)
    }

    async fn kept(&self, stream: &str, after: i64, limit: u32) -> Result<Vec<KeptRow>, StoreError> {
        let inner = self.lock();
        let rows = inner.rows.range(after.saturating_add(1)..).map(|(_, row)| row);
        let rows = rows
            .filter(|(_, row)| row.event.stream == stream)
            .take(limit as usize);
        Ok(rows
            .map(|(commit, row)| {
                let done = |action: &str| {
                    let mut log = inner.log.iter();
                    log.any(|it| it.row == row.row && it.action == action)
                };
                let state = if inner.exceptions.contains_key(&row.row) {
                    KeptState::SetAside
                } else if done("drop") || done("release") {
                    KeptState::Dropped
                } else if done("edit") {
                    KeptState::Edited
                } else if inner.settled(*commit, row) {
                    KeptState::Sent
                } else {
                    KeptState::Waiting
                };
                KeptRow {
                    row: row.row,
                    event_id: row.event.id,
                    key: row.event.key.clone(),
                    topic: row.event.topic.clone(),
                    sha256: KeptRow::hash(row.event.data.as_deref()),
                    state,
                }
            })
            .collect())
    }

    async fn last_row(&self) -> Result<i64, StoreError> {
        Ok(self.lock().last_id)
    }

    async fn log_about(&self, stream: &str, action: &str, by: &str, why: &str) -> Result<(), StoreError> {
        let now = self.clock.now();
        self.lock().write(now, DeskEntry::about(stream, action, by, why));
        Ok(())
    }
}
