//! What arrives is what was enqueued.

use bytes::Bytes;
use semel_core::Event;
use semel_core::store::REPLAY_HEADER;
use uuid::Uuid;

use super::bed::{HeaderForm, LIMIT, SinkBed};
use super::drive::{all_ok, call, event, row, send};

/// Law: every byte of an event arrives: id, topic, type, source, key, content type, trace context, headers in order with
/// repeated names, empty and binary values, the data; a tombstone is not empty data, and what is absent is not empty.
pub async fn every_byte_of_an_event_arrives(bed: &dyn SinkBed) {
    let topic = bed.topic().await;
    let all: Vec<u8> = (0..=255).collect();
    let mut whole = event(1, &topic, "");
    whole.key = Some(Bytes::from(all.clone()));
    whole.kind = "order.placed \u{fc}\u{2713} %41\"".to_owned();
    whole.source = "/shop/\u{fc}?a=b%20c".to_owned();
    whole.content_type = Some("application/json; charset=\"utf-8\"".to_owned());
    whole.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
    whole.data = Some(Bytes::from(all.clone()));
    whole.headers = vec![
        ("a".to_owned(), Bytes::from_static(b"1")),
        ("B_c-d.e".to_owned(), Bytes::from(all)),
        ("A".to_owned(), Bytes::from_static(b"\r\nx: y")),
        ("a".to_owned(), Bytes::new()),
        ("a".to_owned(), Bytes::from_static(b" %41 \xff\0 ")),
        ("B_c-d.e".to_owned(), Bytes::from_static("\u{fc}".as_bytes())),
        // Not values of a header: what a sink's own encoding could be taken for.
        ("b64".to_owned(), Bytes::from_static(b"b64:AA==")),
        ("list".to_owned(), Bytes::from_static(b"a, b; c=\"d\"")),
    ];
    let mut text = event(2, &topic, "plain key");
    text.content_type = Some("text/plain".to_owned());
    text.headers = vec![("note".to_owned(), Bytes::from_static(b"plain"))];
    let mut tombstone = event(3, &topic, "k");
    (tombstone.data, tombstone.content_type) = (None, None);
    let mut empty = event(4, &topic, "k");
    empty.data = Some(Bytes::new());
    let mut bare = Event::new(event(5, &topic, "k").id, &topic, "t");
    bare.data = Some(Bytes::from_static(b"no content type, no key"));
    let events = [whole, text, tombstone, empty, bare];

    let rows: Vec<_> = events
        .iter()
        .zip(1..)
        .map(|(event, n)| row(n, event.clone()))
        .collect();
    all_ok(&send(bed.sink(), &rows, LIMIT).await);
    let mut arrived = bed.arrived(&topic).await;
    assert_eq!(arrived.len(), events.len(), "each arrived once");
    for (sent, row) in events.iter().zip(&rows) {
        let at = arrived.iter().position(|it| it.event.id == sent.id);
        let found = arrived.remove(at.expect("every id arrived as it was"));
        assert_eq!(found.time, row.created_at.rfc3339());
        assert_eq!(
            found.sequence,
            row.sequence(),
            "an event without a key has no place"
        );
        let mut expected = sent.clone();
        let mut event = found.event;
        if bed.headers() == HeaderForm::ByName {
            expected.headers = by_name(expected.headers);
            event.headers = by_name(event.headers);
        }
        assert_eq!(event, expected);
    }
}

fn by_name(mut headers: Vec<(String, Bytes)>) -> Vec<(String, Bytes)> {
    for (name, _) in &mut headers {
        name.make_ascii_lowercase();
    }
    headers.sort_by(|a, b| a.0.cmp(&b.0));
    headers
}

/// Law: a call without rows has no results and does no harm.
pub async fn no_page_at_all_is_answered_with_nothing(bed: &dyn SinkBed) {
    assert!(call(bed.sink(), &[], LIMIT).await.is_empty());
    let topic = bed.topic().await;
    all_ok(&call(bed.sink(), &[row(1, event(1, &topic, "k"))], LIMIT).await);
}

/// Law: a replay that a person asked for arrives under the id that it repeats, and says which replay it is, although the
/// receiver has had the event lately; and so does the next one.
pub async fn a_replay_arrives_under_the_id_that_it_repeats(bed: &dyn SinkBed) {
    let topic = bed.topic().await;
    let first = event(1, &topic, "k");
    let replays = [Uuid::from_u128(1), Uuid::from_u128(2)].map(|id| id.to_string());
    all_ok(&call(bed.sink(), &[row(1, first.clone())], LIMIT).await);
    for replay in &replays {
        let again = first.clone().with_header(REPLAY_HEADER, replay.clone());
        all_ok(&call(bed.sink(), &[row(1, again)], LIMIT).await);
    }
    let arrived = bed.arrived(&topic).await;
    assert!(arrived.iter().all(|it| it.event.id == first.id), "{arrived:?}");
    let marks: Vec<Option<String>> = arrived
        .iter()
        .map(|it| {
            let mark = it.event.headers.iter().find(|(name, _)| name == REPLAY_HEADER);
            mark.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
        })
        .collect();
    let [one, other] = replays;
    assert_eq!(marks, [None, Some(one), Some(other)]);
}

/// Law: a row that is sent again is acknowledged again, and carries the id that it had: a consumer that drops ids it has
/// seen takes it once.
pub async fn a_row_that_is_sent_again_carries_its_id(bed: &dyn SinkBed) {
    let topic = bed.topic().await;
    let sent = row(1, event(1, &topic, "k"));
    for _ in 0..2 {
        all_ok(&call(bed.sink(), std::slice::from_ref(&sent), LIMIT).await);
    }
    let ids: Vec<Uuid> = bed.arrived(&topic).await.iter().map(|it| it.event.id).collect();
    assert!(ids.len() == 1 || ids.len() == 2, "{ids:?}");
    assert!(ids.iter().all(|id| *id == sent.event.id), "{ids:?}");
}
