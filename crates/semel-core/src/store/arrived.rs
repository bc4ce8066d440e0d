//! What a receiver holds, for an audit.

use bytes::Bytes;
use uuid::Uuid;

use super::KeptRow;
use crate::cloudevents;

/// The code of an error that says: what a receiver holds could not be read.
pub const ARRIVED_UNREADABLE: &str = "SEM0270";

/// An event as a receiver has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    /// The event's id; `None` where there is none.
    pub id: Option<Uuid>,
    /// Its ordering key, if it came with one.
    pub key: Option<Bytes>,
    /// SHA-256 of the data; not told in structured mode, where JSON may have lost the space around it.
    pub sha256: Option<[u8; 32]>,
}

impl Arrived {
    /// Reads it from the parts of a message. Where nothing beside the data names the id, a structured document does.
    #[must_use]
    pub fn read(
        id: Option<&str>,
        content_type: Option<&str>,
        key: Option<Bytes>,
        data: Option<&[u8]>,
    ) -> Self {
        let structured = content_type.is_some_and(cloudevents::is_structured);
        let id = match id {
            Some(id) => Uuid::parse_str(id).ok(),
            None if structured => {
                let document = cloudevents::read(data.unwrap_or_default()).ok();
                document.and_then(|document| Uuid::parse_str(&document.id).ok())
            }
            None => None,
        };
        Self {
            id,
            key,
            sha256: (!structured).then(|| KeptRow::hash(data)),
        }
    }
}

/// How much of a receiver's log was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ArrivedRead {
    /// Messages.
    pub messages: u64,
    /// Messages that were there and had gone when it was read, where the receiver tells: cut off at the beginning, or deleted.
    pub gone: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_beside_the_data_counts_before_that_in_a_document_whose_data_is_not_hashed() {
        let id = "00000000-0000-0000-0000-000000000007";
        let document =
            format!("{{\"specversion\":\"1.0\",\"id\":\"{id}\",\"source\":\"/s\",\"type\":\"t\"}}");
        let structured = Some("application/cloudevents+json; charset=utf-8");
        let read = |id, content_type| Arrived::read(id, content_type, None, Some(document.as_bytes()));
        let inside = read(None, structured);
        assert_eq!((inside.id, inside.sha256), (Some(Uuid::from_u128(7)), None));
        let beside = read(Some("00000000-0000-0000-0000-000000000008"), structured);
        assert_eq!(beside.id, Some(Uuid::from_u128(8)));
        let binary = read(None, Some("application/json"));
        assert_eq!((binary.id, binary.sha256.is_some()), (None, true));
        assert_eq!(read(Some("no uuid"), None).id, None);
        let tombstone = Arrived::read(Some(id), None, None, None);
        assert_eq!(tombstone.sha256, Some(KeptRow::hash(None)));
    }
}
