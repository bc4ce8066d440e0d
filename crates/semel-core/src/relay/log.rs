//! A log that keeps the cursor itself: events and cursor are one transaction of the log, so that no event is in it twice.
//!
//! The log's own place is the truth; the outbox keeps a lower bound of it, written after the log's commit (rule O20). At
//! every take-over, and after every result that is not definite, the two are compared by [`compare`].

use std::fmt;

use super::cursor::Cursor;
use crate::claim::Nonce;
use crate::key::hex;

/// How far a log says that it has got with a shard. Written into the log in the transaction of the events that it covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPlace {
    /// Which binding of a shard to a log: drawn when the shard was first published there. Tells this log from another
    /// one, and from the same one made anew.
    pub log: Nonce,
    /// The batch.
    pub batch_no: i64,
    /// [`Cursor::batch`] of it: an outbox that was restored to an earlier time counts the same numbers again, and never
    /// draws the same nonces (rule O3).
    pub batch: Nonce,
    /// Rows of the batch up to this number are settled.
    pub last_id: i64,
    /// Whether all of it is.
    pub finished: bool,
}

/// What an outbox remembers of the log of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogCopy {
    /// A person has decided that the outbox is right: whatever the log says is overwritten at the next take-over.
    Rebind,
    /// A binding with this nonce has begun. Nothing was sent under it.
    Binding(Nonce),
    /// The log's place, as last known here. The log is never behind it.
    Bound(LogPlace),
}

impl LogCopy {
    /// Reads what `Display` wrote: `rebind`, `binding LOG` or `bound LOG BATCH_NO BATCH LAST_ID open|finished`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let nonce = |word: &str| {
            let digits = word.len() == 32 && word.bytes().all(|b| b.is_ascii_hexdigit());
            digits
                .then(|| u128::from_str_radix(word, 16).ok())?
                .map(|it| Nonce(it.to_be_bytes()))
        };
        match words.as_slice() {
            ["rebind"] => Some(Self::Rebind),
            ["binding", log] => Some(Self::Binding(nonce(log)?)),
            [
                "bound",
                log,
                batch_no,
                batch,
                last_id,
                end @ ("open" | "finished"),
            ] => Some(Self::Bound(LogPlace {
                log: nonce(log)?,
                batch_no: batch_no.parse().ok()?,
                batch: nonce(batch)?,
                last_id: last_id.parse().ok()?,
                finished: *end == "finished",
            })),
            _ => None,
        }
    }
}

impl fmt::Display for LogCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rebind => f.write_str("rebind"),
            Self::Binding(log) => write!(f, "binding {}", hex(&log.0)),
            Self::Bound(place) => write!(f, "bound {place}"),
        }
    }
}

impl fmt::Display for LogPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (log, batch) = (hex(&self.log.0), hex(&self.batch.0));
        let end = if self.finished { "finished" } else { "open" };
        write!(f, "{log} {} {batch} {} {end}", self.batch_no, self.last_id)
    }
}

/// Log and outbox do not belong together: going on would lose events or send them twice. Page: SEM0204.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Discord {
    /// The log has a cursor of this shard, and the outbox has never been bound to a log.
    UnknownHere,
    /// The outbox is bound to a log, and the log has no cursor.
    Missing,
    /// The log's cursor is that of another binding: another outbox of the same name, or a cursor topic made anew.
    OtherLog,
    /// The log is further than the outbox can be: the outbox was restored from a copy.
    OutboxBehind,
    /// The log is behind what it has confirmed before: the log lost data, or the outbox was published elsewhere
    /// meanwhile.
    LogBehind,
}

impl Discord {
    /// What is wrong, as a sentence.
    #[must_use]
    pub const fn explain(self) -> &'static str {
        match self {
            Self::UnknownHere => {
                "the log has a cursor of this shard that the outbox does not know: another outbox publishes under the same \
                 name, or this one was restored from before its first publication"
            }
            Self::Missing => {
                "the log has no cursor of this shard though the outbox was published to it: the cursor topic was deleted or \
                 this is another cluster"
            }
            Self::OtherLog => {
                "the log's cursor is not of this outbox: another outbox publishes under the same name, or the cursor topic \
                 was made anew"
            }
            Self::OutboxBehind => {
                "the log holds events that the outbox has not sent: the outbox was restored from a copy or failed over to \
                 a server that lacked its last commits"
            }
            Self::LogBehind => {
                "the log's cursor is behind what the log has confirmed before: the log lost data, or the stream was \
                 published in another mode meanwhile"
            }
        }
    }
}

/// Where to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Onward {
    /// Bind the shard to the log first.
    Bind,
    /// Behind this row of the open batch; with `finished` all of it is settled.
    From { last_id: i64, finished: bool },
}

/// Compares the outbox's cursor with what the log says.
pub(super) fn compare(cursor: &Cursor, place: Option<&LogPlace>) -> Result<Onward, Discord> {
    let copy = match (cursor.log, place) {
        (None, None) | (Some(LogCopy::Rebind | LogCopy::Binding(_)), _) => return Ok(Onward::Bind),
        (None, Some(_)) => return Err(Discord::UnknownHere),
        (Some(LogCopy::Bound(_)), None) => return Err(Discord::Missing),
        (Some(LogCopy::Bound(copy)), Some(_)) => copy,
    };
    let Some(place) = place else {
        return Err(Discord::Missing);
    };
    if place.log != copy.log {
        return Err(Discord::OtherLog);
    }
    if place.batch_no > cursor.batch_no || (place.batch_no == cursor.batch_no && place.batch != cursor.batch)
    {
        return Err(Discord::OutboxBehind);
    }
    let progress = |it: &LogPlace| (it.batch_no, it.last_id, it.finished);
    if progress(place) < progress(&copy) {
        return Err(Discord::LogBehind);
    }
    let open = cursor.open.is_some();
    if place.batch_no < cursor.batch_no {
        // The next batch is opened only when the log has the end of the last one.
        let next = place.batch_no == cursor.batch_no - 1 && place.finished && open;
        return if next {
            Ok(Onward::From {
                last_id: cursor.last_id,
                finished: false,
            })
        } else {
            Err(Discord::LogBehind)
        };
    }
    match (place.finished, open) {
        (false, false) => Err(Discord::LogBehind),
        (false, true) if place.last_id < cursor.last_id => Err(Discord::LogBehind),
        (finished, open) => Ok(Onward::From {
            last_id: place.last_id,
            finished: finished && open,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::Mark;

    const A: Nonce = Nonce([1; 16]);
    const B: Nonce = Nonce([2; 16]);

    fn place(batch_no: i64, batch: Nonce, last_id: i64, finished: bool) -> LogPlace {
        LogPlace {
            log: A,
            batch_no,
            batch,
            last_id,
            finished,
        }
    }

    fn cursor(batch_no: i64, open: bool, last_id: i64, log: Option<LogCopy>) -> Cursor {
        Cursor {
            prev: Mark::new("1"),
            open: open.then(|| Mark::new("9")),
            last_id,
            batch_no,
            batch: A,
            version: 7,
            suspect: None,
            log,
        }
    }

    #[test]
    fn what_is_remembered_survives_the_way_into_a_column_and_back() {
        for copy in [
            LogCopy::Rebind,
            LogCopy::Binding(B),
            LogCopy::Bound(place(7, B, i64::MAX, true)),
            LogCopy::Bound(place(0, Nonce([0; 16]), -1, false)),
        ] {
            assert_eq!(LogCopy::parse(&copy.to_string()), Some(copy));
        }
        for text in ["", "bound", "binding 01", "rebind ", "bound 1 2 3 4 open"] {
            assert_eq!(LogCopy::parse(text), None, "{text:?}");
        }
    }

    /// Rule O20, every row of it.
    #[test]
    fn the_log_is_the_truth_and_what_cannot_be_is_refused() {
        let bound = |batch_no, last_id, finished| Some(LogCopy::Bound(place(batch_no, A, last_id, finished)));
        let go = |last_id, finished| Ok(Onward::From { last_id, finished });
        for (what, cursor, place, expected) in [
            ("first start", cursor(0, false, 0, None), None, Ok(Onward::Bind)),
            (
                "a binding that was cut",
                cursor(0, false, 0, Some(LogCopy::Binding(B))),
                None,
                Ok(Onward::Bind),
            ),
            (
                "a binding that was cut behind the log's commit",
                cursor(0, false, 0, Some(LogCopy::Binding(A))),
                Some(place(0, A, 0, true)),
                Ok(Onward::Bind),
            ),
            (
                "a person's word",
                cursor(3, true, 5, Some(LogCopy::Rebind)),
                Some(place(9, B, 1, true)),
                Ok(Onward::Bind),
            ),
            (
                "the log is ahead in the batch",
                cursor(3, true, 5, bound(3, 5, false)),
                Some(place(3, A, 8, false)),
                go(8, false),
            ),
            (
                "the log has finished the batch",
                cursor(3, true, 5, bound(3, 5, false)),
                Some(place(3, A, 9, true)),
                go(9, true),
            ),
            (
                "both have finished",
                cursor(3, false, 0, bound(3, 9, true)),
                Some(place(3, A, 9, true)),
                go(9, false),
            ),
            (
                "opened and not begun",
                cursor(4, true, 20, bound(3, 5, false)),
                Some(place(3, A, 9, true)),
                go(20, false),
            ),
            (
                "never bound, and the log knows it",
                cursor(3, true, 5, None),
                Some(place(3, A, 5, false)),
                Err(Discord::UnknownHere),
            ),
            (
                "the topic was deleted",
                cursor(3, true, 5, bound(3, 5, false)),
                None,
                Err(Discord::Missing),
            ),
            (
                "another outbox",
                cursor(
                    3,
                    true,
                    5,
                    Some(LogCopy::Bound(LogPlace {
                        log: B,
                        ..place(3, A, 5, false)
                    })),
                ),
                Some(place(3, A, 5, false)),
                Err(Discord::OtherLog),
            ),
            (
                "restored, fewer batches",
                cursor(2, true, 5, bound(2, 5, false)),
                Some(place(3, A, 5, false)),
                Err(Discord::OutboxBehind),
            ),
            (
                "restored, as many batches",
                cursor(3, true, 5, bound(2, 5, true)),
                Some(place(3, B, 5, false)),
                Err(Discord::OutboxBehind),
            ),
            (
                "the log lost its end",
                cursor(3, true, 5, bound(3, 5, false)),
                Some(place(3, A, 4, false)),
                Err(Discord::LogBehind),
            ),
            (
                "the log lost a batch",
                cursor(4, true, 25, bound(4, 25, false)),
                Some(place(3, A, 9, true)),
                Err(Discord::LogBehind),
            ),
            (
                "the log lost the end of the last batch",
                cursor(4, true, 20, bound(3, 5, false)),
                Some(place(3, A, 8, false)),
                Err(Discord::LogBehind),
            ),
            (
                "finished here alone",
                cursor(3, false, 0, bound(3, 5, false)),
                Some(place(3, A, 8, false)),
                Err(Discord::LogBehind),
            ),
            (
                "published in another mode",
                cursor(300, false, 0, bound(3, 9, true)),
                Some(place(3, A, 9, true)),
                Err(Discord::LogBehind),
            ),
        ] {
            assert_eq!(compare(&cursor, place.as_ref()), expected, "{what}");
        }
    }
}
