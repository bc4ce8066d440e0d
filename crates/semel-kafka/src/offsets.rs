//! Where to go on when part of what was read is settled.

use std::collections::{HashMap, HashSet};

use semel_inbox::Message;

/// A partition by topic and number.
pub(crate) type Place = (String, i32);

/// Where each partition goes on when the first `upto` messages are settled: at the client's position when nothing of it
/// is left unsettled, else after its last settled message.
pub(crate) fn next_offsets(
    messages: &[Message],
    upto: usize,
    positions: &HashMap<Place, i64>,
) -> HashMap<Place, i64> {
    let place = |message: &Message| (message.topic.clone(), message.partition);
    let left: HashSet<Place> = messages[upto..].iter().map(place).collect();
    let mut next: HashMap<Place, i64> = HashMap::new();
    for message in &messages[..upto] {
        next.insert(place(message), message.offset + 1);
    }
    for (place, offset) in &mut next {
        if !left.contains(place)
            && let Some(position) = positions.get(place)
        {
            *offset = (*offset).max(*position);
        }
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_core::Timestamp;

    fn read(partition: i32, offset: i64) -> Message {
        Message {
            id: offset.to_string().into(),
            key: None,
            topic: "t".to_owned(),
            partition,
            offset,
            headers: Vec::new(),
            data: None,
            sent_at: Timestamp(0),
        }
    }

    fn at(partition: i32) -> Place {
        ("t".to_owned(), partition)
    }

    #[test]
    fn a_partition_read_to_its_end_goes_on_at_the_client_s_position() {
        // Offset 3 is a control record.
        let messages = [read(0, 1), read(1, 7), read(0, 2)];
        let positions = HashMap::from([(at(0), 4), (at(1), 8)]);
        let next = next_offsets(&messages, 3, &positions);
        assert_eq!(next, HashMap::from([(at(0), 4), (at(1), 8)]));
    }

    /// parallel-consumer#826: what is unsettled is not passed.
    #[test]
    fn what_is_left_is_not_passed() {
        let messages = [read(0, 1), read(1, 7), read(0, 2)];
        let positions = HashMap::from([(at(0), 4), (at(1), 8)]);
        let next = next_offsets(&messages, 2, &positions);
        assert_eq!(next, HashMap::from([(at(0), 2), (at(1), 8)]));
        assert_eq!(next_offsets(&messages, 0, &positions), HashMap::new());
    }
}
