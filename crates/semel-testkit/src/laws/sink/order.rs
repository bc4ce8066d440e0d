//! The order of a key, and whole pages.

use std::time::Duration;

use semel_core::store::SinkOrder;

use super::bed::{LIMIT, SinkBed};
use super::drive::{all_ok, all_there, call, deliver, event, row, rows, send};

/// Law: many rows of few keys, and rows without a key: each arrives once, those of a key in order.
pub async fn rows_of_a_key_arrive_in_order_and_once(bed: &dyn SinkBed) {
    let topic = bed.topic().await;
    let mut sent = rows(&topic, 7, 0, 400);
    for n in 400..450 {
        let mut keyless = event(n, &topic, "");
        keyless.key = None;
        sent.push(row(n, keyless));
    }
    all_ok(&send(bed.sink(), &sent, LIMIT).await);
    let arrived = bed.arrived(&topic).await;
    assert_eq!(arrived.len(), sent.len(), "each arrived once");
    let keyed: Vec<_> = arrived
        .iter()
        .filter(|it| it.event.key.is_some())
        .cloned()
        .collect();
    all_there(&keyed, &sent[..400]);
    let mut ids: Vec<_> = arrived.iter().map(|it| it.event.id).collect();
    let mut expected: Vec<_> = sent.iter().map(|row| row.event.id).collect();
    ids.sort();
    expected.sort();
    assert_eq!(ids, expected);
}

/// Law: a call with as many rows as the sink says it takes has a result for each of them.
pub async fn a_full_page_is_answered_row_by_row(bed: &dyn SinkBed) {
    let topic = bed.topic().await;
    let in_flight_max = match bed.sink().order() {
        SinkOrder::OnePerKey { in_flight_max } | SinkOrder::Pipelined { in_flight_max } => in_flight_max,
        SinkOrder::Transactional { .. } => panic!("these are not the laws of a log"),
    };
    let count = i64::try_from(in_flight_max).unwrap();
    // A key for each: every order takes that in one call.
    let page = rows(&topic, count, 0, count);
    all_ok(&call(bed.sink(), &page, LIMIT).await);
    let arrived = bed.arrived(&topic).await;
    assert_eq!(arrived.len(), page.len());
    all_there(&arrived, &page);
}

/// Law: a call that is dropped half way harms nothing: what it had on its way may arrive, with its id; what comes after
/// is taken, and in order.
pub async fn a_dropped_call_leaves_the_sink_as_it_was(bed: &dyn SinkBed) {
    let topic = bed.topic().await;
    all_ok(&call(bed.sink(), &rows(&topic, 1, 0, 1), LIMIT).await);
    let sent = rows(&topic, 40, 1, 41);
    for wait in [0, 1, 3] {
        let dropped = bed.sink().publish_many(&sent, LIMIT);
        let _ = tokio::time::timeout(Duration::from_millis(wait), dropped).await;
    }
    assert!(deliver(bed, &sent).await.is_empty(), "no row is to blame");
    let mut arrived = bed.arrived(&topic).await;
    arrived.retain(|it| super::drive::number(it) > 0);
    all_there(&arrived, &sent);
}
