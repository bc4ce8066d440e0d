//! What a person may change of an event that was set aside, and when.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::event::Event;
use crate::limits::LimitExceeded;
use crate::store::{DeskChange, DeskRow, NOTE_BYTES_MAX, SinkError, SinkErrorClass, Wish};

/// Why a change was not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeskRefusal {
    /// There is no such row, or no more: it was sent or dropped.
    Absent,
    /// Something is asked of it already, and cannot be taken back: its owner may be at it.
    Asked(Wish),
    /// Its key's list is being sent now, and may have got to it.
    BeingSent {
        /// The row that stands for the key.
        first: i64,
    },
    /// It is behind a parked row, and a key's events go in order.
    NotFirst {
        /// The row to ask instead.
        first: i64,
    },
    /// Somebody else has edited it since it was shown.
    Edited {
        /// How often it has been edited now.
        edits: u32,
    },
    /// The edit changes what cannot be edited, or could never be sent.
    Invalid(String),
}

impl fmt::Display for DeskRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => {
                f.write_str("there is no such event among those set aside; it was sent or dropped")
            }
            Self::Asked(wish) => {
                let wish = wish.as_str();
                write!(
                    f,
                    "`{wish}` is asked of it already and cannot be taken back; its owner carries it out"
                )
            }
            Self::BeingSent { first } => {
                write!(
                    f,
                    "its key is being sent again, from row {first} on; wait for what comes of it"
                )
            }
            Self::NotFirst { first } => {
                write!(
                    f,
                    "it is behind row {first} of its key, and a key's events go in order; ask row {first}"
                )
            }
            Self::Edited { edits } => write!(
                f,
                "it was edited since it was shown ({edits} times in all); look again"
            ),
            Self::Invalid(why) => f.write_str(why),
        }
    }
}

/// Whether a change may be made now. `first` is the first row of the list that `row` belongs to, itself included; `None`
/// where it belongs to none. `Ok(false)` says that it stands so already and nothing need be written.
///
/// # Errors
/// Why not.
pub fn decide(
    row: Option<&DeskRow>,
    first: Option<(i64, Option<Wish>)>,
    change: &DeskChange,
) -> Result<bool, DeskRefusal> {
    let row = row.ok_or(DeskRefusal::Absent)?;
    let number = row.stored.exception.row;
    match (row.asked, change) {
        (Some(asked), DeskChange::Ask(wish)) if asked == *wish => return Ok(false),
        (Some(asked), _) => return Err(DeskRefusal::Asked(asked)),
        (None, _) => {}
    }
    if let Some((first, asked)) = first.filter(|(first, _)| *first != number) {
        // What goes along when the first row goes may be on its way.
        if matches!(asked, Some(Wish::Retry | Wish::Release)) {
            return Err(DeskRefusal::BeingSent { first });
        }
        if matches!(change, DeskChange::Ask(Wish::Retry | Wish::Release)) {
            return Err(DeskRefusal::NotFirst { first });
        }
    }
    if let DeskChange::Edit { event, edits } = change {
        if *edits != row.edits {
            return Err(DeskRefusal::Edited { edits: row.edits });
        }
        may_be_edited(&row.stored.row.row.event, event)?;
    }
    Ok(true)
}

/// What an edit leaves alone: who the event is, and where its order counts.
fn may_be_edited(old: &Event, new: &Event) -> Result<(), DeskRefusal> {
    let same = old.id == new.id && old.stream == new.stream && old.key == new.key && old.source == new.source;
    if !same {
        let text = "id, stream, source and key of an event cannot be edited";
        return Err(DeskRefusal::Invalid(text.to_owned()));
    }
    new.check()
        .map_err(|limit: LimitExceeded| DeskRefusal::Invalid(limit.to_string()))
}

/// An event as JSON: for the log, and for `--json`. Bytes that are text are a string, others `{"base64": …}`.
#[must_use]
pub fn event_json(event: &Event) -> Value {
    let headers: Vec<Value> = event
        .headers
        .iter()
        .map(|(name, value)| json!([name, bytes_json(value)]))
        .collect();
    json!({
        "id": event.id,
        "stream": event.stream,
        "topic": event.topic,
        "type": event.kind,
        "source": event.source,
        "key": event.key.as_ref().map(bytes_json),
        "content_type": event.content_type,
        "headers": headers,
        "data": event.data.as_ref().map(bytes_json),
        "traceparent": event.traceparent,
    })
}

/// Text as a string, other bytes as `{"base64": …}`.
#[must_use]
pub fn bytes_json(bytes: &Bytes) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
    }
}

/// A note, a name or a reason as it is kept: printable, at most [`NOTE_BYTES_MAX`] bytes (rule: what records a failure
/// does not fail because of it).
#[must_use]
pub fn note_text(text: &str) -> String {
    debug_assert_eq!(NOTE_BYTES_MAX, crate::store::SINK_ERROR_BYTES_MAX);
    SinkError::new(SinkErrorClass::Away, text).message
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::host::Timestamp;
    use crate::relay::ShardId;
    use crate::store::{Exception, ExceptionKind, OutboxRow, PageRow, StoredException};

    fn row(number: i64, kind: ExceptionKind, asked: Option<Wish>) -> DeskRow {
        let event = Event::new(Uuid::from_u128(1), "t", "e").with_key("k");
        DeskRow {
            stored: StoredException {
                shard: ShardId {
                    stream: "default".to_owned(),
                    index: 0,
                },
                exception: Exception {
                    row: number,
                    event_id: event.id,
                    kind,
                    attempts: 1,
                    reason: String::new(),
                },
                since: Timestamp(0),
                row: PageRow {
                    row: OutboxRow {
                        row: number,
                        created_at: Timestamp(0),
                        batch_no: 0,
                        event,
                    },
                    barred: None,
                },
            },
            asked,
            edits: 0,
            taken: 0,
        }
    }

    fn edit(row: &DeskRow, change: impl FnOnce(&mut Event)) -> DeskChange {
        let mut event = row.stored.row.row.event.clone();
        change(&mut event);
        DeskChange::Edit {
            event: Box::new(event),
            edits: 0,
        }
    }

    const ASK: DeskChange = DeskChange::Ask(Wish::Retry);

    #[test]
    fn a_keys_list_goes_in_order() {
        let behind = row(7, ExceptionKind::Behind, None);
        assert_eq!(
            decide(Some(&behind), Some((5, None)), &ASK),
            Err(DeskRefusal::NotFirst { first: 5 })
        );
        let release = DeskChange::Ask(Wish::Release);
        assert!(decide(Some(&behind), Some((5, None)), &release).is_err());
        assert_eq!(
            decide(Some(&behind), Some((5, None)), &DeskChange::Ask(Wish::Drop)),
            Ok(true)
        );
        assert_eq!(decide(Some(&behind), Some((7, None)), &ASK), Ok(true));
        assert_eq!(
            decide(Some(&row(7, ExceptionKind::Skipped, None)), None, &ASK),
            Ok(true)
        );
    }

    #[test]
    fn what_may_be_on_its_way_is_left_alone() {
        let behind = row(7, ExceptionKind::Behind, None);
        for change in [
            DeskChange::Ask(Wish::Drop),
            edit(&behind, |event| event.data = None),
        ] {
            for asked in [Wish::Retry, Wish::Release] {
                assert_eq!(
                    decide(Some(&behind), Some((5, Some(asked))), &change),
                    Err(DeskRefusal::BeingSent { first: 5 })
                );
            }
            assert_eq!(
                decide(Some(&behind), Some((5, Some(Wish::Drop))), &change),
                Ok(true)
            );
            let asked = row(7, ExceptionKind::Skipped, Some(Wish::Retry));
            assert_eq!(
                decide(Some(&asked), None, &change),
                Err(DeskRefusal::Asked(Wish::Retry))
            );
        }
        let asked = row(7, ExceptionKind::Skipped, Some(Wish::Retry));
        assert_eq!(
            decide(Some(&asked), None, &ASK),
            Ok(false),
            "asked twice is asked once"
        );
        assert_eq!(decide(None, None, &ASK), Err(DeskRefusal::Absent));
    }

    #[test]
    fn an_edit_keeps_who_the_event_is_and_where_its_order_counts() {
        let it = row(7, ExceptionKind::Parked, None);
        let ok = edit(&it, |event| event.topic = "other".to_owned());
        assert_eq!(decide(Some(&it), Some((7, None)), &ok), Ok(true));
        for bad in [
            edit(&it, |event| event.key = None),
            edit(&it, |event| event.id = Uuid::nil()),
            edit(&it, |event| event.stream = "x".to_owned()),
            edit(&it, |event| event.topic = "a b".to_owned()),
        ] {
            let refused = decide(Some(&it), Some((7, None)), &bad);
            assert!(matches!(refused, Err(DeskRefusal::Invalid(_))), "{refused:?}");
        }
        let stale = DeskRow { edits: 1, ..it };
        assert_eq!(
            decide(Some(&stale), None, &ok),
            Err(DeskRefusal::Edited { edits: 1 })
        );
    }

    #[test]
    fn a_note_is_printable_and_bounded() {
        assert_eq!(note_text("a\tb\u{9f}c\nd"), "a b c d");
        let long = note_text(&"é".repeat(NOTE_BYTES_MAX));
        assert!(long.len() <= NOTE_BYTES_MAX && long.chars().all(|c| c == 'é'));
    }
}
