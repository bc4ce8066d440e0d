//! Pages of records, for people and consoles.
//!
//! Runs that have not ended are in the registries; all others are found by going through the keyspace. A record that is
//! moved by Redis between two pages may be shown twice; none that is there all the time is left out.

use std::ops::Bound;

use semel_core::claim::{Record, StateName};
use semel_core::store::{KeyPage, KeyQuery, KeyStore as _};
use semel_core::{ErrorKind, Key, StoreError, Timestamp, limits};

use crate::Redis;
use crate::names::{entry_of, token_of};

/// Steps of one page at most: then it ends, with what was found so far.
const STEPS_MAX: usize = 64;
/// Entries of a registry read in one step.
const ENTRIES: usize = 32;

/// Where a page begins.
#[derive(Debug, Clone, PartialEq, Eq)]
enum From {
    /// In a registry: its tag, how many records of an entry were shown, and that entry; with none of them shown, to go on
    /// behind it.
    Run(u8, u8, String),
    /// In the keyspace: node, cursor, and the name behind which to go on in its step.
    Space(u16, u64, Vec<u8>),
}

impl From {
    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Run(tag, shown, entry) => [&[b'r', *tag, *shown][..], entry.as_bytes()].concat(),
            Self::Space(node, cursor, name) => {
                [b"s", &node.to_be_bytes()[..], &cursor.to_be_bytes(), name].concat()
            }
        }
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (b'r', rest) => {
                let ([tag, shown], entry) = rest.split_first_chunk()?;
                let entry = std::str::from_utf8(entry).ok()?.to_owned();
                let readable = entry.is_empty() || token_of(&entry).is_some();
                readable.then_some(Self::Run(*tag, *shown, entry))
            }
            (b's', rest) => {
                let (node, rest) = rest.split_first_chunk()?;
                let (cursor, name) = rest.split_first_chunk()?;
                Some(Self::Space(
                    u16::from_be_bytes(*node),
                    u64::from_be_bytes(*cursor),
                    name.to_vec(),
                ))
            }
            _ => None,
        }
    }
}

impl Redis {
    pub(crate) async fn page(&self, query: &KeyQuery) -> Result<KeyPage, StoreError> {
        limits::check_batch(query.limit as usize)?;
        let running = matches!(query.state, Some(StateName::Claimed | StateName::Unknown));
        let from = match &query.from {
            None if running => From::Run(0, 0, String::new()),
            None => From::Space(0, 0, Vec::new()),
            Some(bytes) => From::from_bytes(bytes).ok_or_else(|| {
                let text = "this page token is not one of this store's: begin again without it";
                StoreError::new(ErrorKind::Invalid, "list", text)
            })?,
        };
        let mut page = KeyPage::default();
        let mut next = Some(from);
        for _ in 0..STEPS_MAX {
            let left = (query.limit as usize).saturating_sub(page.records.len());
            let Some(from) = next.take_if(|_| left > 0) else {
                break;
            };
            next = match from {
                From::Run(tag, shown, entry) => {
                    self.listed_runs(query, (tag, shown, entry), left, &mut page)
                        .await?
                }
                From::Space(node, cursor, name) => {
                    self.space(query, (node, cursor, name), left, &mut page).await?
                }
            };
        }
        page.next = next.map(|from| from.to_bytes().into());
        Ok(page)
    }

    async fn listed_runs(
        &self,
        query: &KeyQuery,
        (tag, shown, begin): (u8, u8, String),
        left: usize,
        page: &mut KeyPage,
    ) -> Result<Option<From>, StoreError> {
        // An entry of which some were shown is read again, if it is still there.
        let bound = match (&begin[..], shown) {
            ("", _) => Bound::Unbounded,
            (begin, 0) => Bound::Excluded(begin),
            (begin, _) => Bound::Included(begin),
        };
        let entries = self.entries("list", tag, bound, ENTRIES).await?;
        let whole = entries.len() < ENTRIES;
        let wanted = |key: &Key| query.scope.as_ref().is_none_or(|scope| key.scope() == scope);
        let mut found = 0;
        let mut last = begin.clone();
        for entry in &entries {
            let id = entry_of(entry.first);
            let skip = if id == begin { usize::from(shown) } else { 0 };
            let names = entry.records.iter().enumerate().skip(skip);
            let keys = names.filter_map(|(place, record)| Some((place, self.names().key(record)?)));
            let (places, keys): (Vec<usize>, Vec<Key>) = keys.filter(|(_, key)| wanted(key)).unzip();
            for ((key, reply), place) in keys.iter().zip(self.read_many(&keys).await).zip(places) {
                let record = readable(key, reply)?;
                // An entry of an older run of the key is left over.
                if let Some(record) = record
                    && record
                        .lease()
                        .is_some_and(|lease| lease.token == entry.token(place))
                    && let Some(line) = query.shows(key, &record, Timestamp(0))
                {
                    page.records.push(line);
                    found += 1;
                    if found == left {
                        // An entry names at most 64.
                        let shown = u8::try_from(place + 1).unwrap_or(u8::MAX);
                        return Ok(Some(From::Run(tag, shown, id)));
                    }
                }
            }
            last = id;
        }
        Ok(if !whole {
            Some(From::Run(tag, 0, last))
        } else if tag + 1 < self.names().registries() {
            Some(From::Run(tag + 1, 0, String::new()))
        } else {
            None
        })
    }

    async fn space(
        &self,
        query: &KeyQuery,
        (node, cursor, behind): (u16, u64, Vec<u8>),
        left: usize,
        page: &mut KeyPage,
    ) -> Result<Option<From>, StoreError> {
        let nodes = self.link().nodes("list").await?;
        let Some(at) = nodes.get(usize::from(node)) else {
            return Ok(None);
        };
        let (next, mut names) = self.scan("list", at, cursor, query.scope.as_ref()).await?;
        // A step answers the same names again; sorted, what was shown of it is left out.
        names.sort_unstable();
        names.dedup();
        names.retain(|name| *name > behind);
        let keys: Vec<Key> = names.iter().filter_map(|name| self.names().key(name)).collect();
        let mut shown = 0;
        for chunk in keys.chunks(limits::BATCH_ITEMS_MAX) {
            for (key, reply) in chunk.iter().zip(self.read_many(chunk).await) {
                let record = readable(key, reply)?;
                let Some((key, record)) = record.and_then(|record| query.shows(key, &record, Timestamp(0)))
                else {
                    continue;
                };
                let last = self.names().record(&key);
                page.records.push((key, record));
                shown += 1;
                if shown == left {
                    return Ok(Some(From::Space(node, cursor, last)));
                }
            }
        }
        Ok(match next {
            0 if usize::from(node) + 1 < nodes.len() => Some(From::Space(node + 1, 0, Vec::new())),
            0 => None,
            cursor => Some(From::Space(node, cursor, Vec::new())),
        })
    }
}

/// A record that cannot be read is logged and left out: it must not hide all others.
fn readable(key: &Key, reply: Result<Option<Record>, StoreError>) -> Result<Option<Record>, StoreError> {
    match reply {
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Invalid) => {
            tracing::warn!(%key, %error, "left out of a list");
            Ok(None)
        }
        reply => reply,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_token_is_read_back_and_a_foreign_one_refused() {
        for from in [
            From::Run(0, 0, String::new()),
            From::Run(63, 7, "1767225600000-3".to_owned()),
            From::Space(2, u64::MAX, b"semel{00}\x01ab".to_vec()),
        ] {
            assert_eq!(From::from_bytes(&from.to_bytes()), Some(from));
        }
        for foreign in [&b""[..], b"x", b"r", b"r\0\0oops", b"s\0", b"\x01ab"] {
            assert_eq!(From::from_bytes(foreign), None);
        }
    }
}
