//! Rows and destinations that are at fault themselves.

use semel_core::store::SinkErrorClass;
use tokio::time::Instant;

use super::bed::{LIMIT, SinkBed};
use super::drive::{all_there, deliver, event, number, row, rows, send};

/// Law: a refused row holds back the later ones of its key until its caller has heard of it, in whatever order results
/// come.
pub async fn nothing_of_a_key_arrives_before_its_refused_row_is_settled(bed: &dyn SinkBed) {
    let topic = bed.topic().await;
    let Some(bad) = bed.refused(event(2, &topic, "k")) else {
        return;
    };
    let sent = vec![
        row(1, event(1, &topic, "k")),
        row(2, bad),
        row(3, event(3, &topic, "k")),
        row(4, event(4, &topic, "k")),
        row(5, event(5, &topic, "other")),
    ];
    let mut left = sent.clone();
    let mut refused = Vec::new();
    let until = Instant::now() + LIMIT;
    while !left.is_empty() {
        let answers = send(bed.sink(), &left, LIMIT).await;
        let arrived: Vec<i64> = bed.arrived(&topic).await.iter().map(number).collect();
        if left.iter().any(|row| row.row == 2) {
            assert!(
                !arrived.contains(&3) && !arrived.contains(&4),
                "overtaken: {arrived:?}"
            );
        }
        let mut answers = answers.into_iter();
        left.retain(|row| match answers.next() {
            Some(Ok(())) => {
                assert!(
                    arrived.contains(&row.row),
                    "row {} was acknowledged and is not there",
                    row.row
                );
                false
            }
            Some(Err(error)) if error.class == SinkErrorClass::Message => {
                refused.push(row.row);
                false
            }
            _ => true,
        });
        assert!(Instant::now() < until, "not delivered: {left:?}");
    }
    assert_eq!(refused, [2], "the row at fault is blamed, and only that one");
    let good: Vec<_> = sent.iter().filter(|row| row.row != 2).cloned().collect();
    all_there(&bed.arrived(&topic).await, &good);
}

/// Law: among many rows of other keys one is refused: it alone is blamed, the others are acknowledged.
pub async fn one_refused_row_is_blamed_alone(bed: &dyn SinkBed) {
    let topic = bed.topic().await;
    let Some(bad) = bed.refused(event(20, &topic, "bad")) else {
        return;
    };
    let mut sent = rows(&topic, 40, 0, 40);
    sent[20] = row(20, bad);
    assert_eq!(deliver(bed, &sent).await, [20]);
    sent.remove(20);
    all_there(&bed.arrived(&topic).await, &sent);
}

/// Law: a row beyond a limit is refused by `check`, which names the limit, or is blamed alone.
pub async fn an_oversized_row_hurts_no_neighbour(bed: &dyn SinkBed) {
    let topic = bed.topic().await;
    let Some(large) = bed.oversized(event(3, &topic, "large")) else {
        return;
    };
    let mut sent = rows(&topic, 6, 0, 6);
    match large.check().and_then(|()| bed.sink().check(&large)) {
        Err(limit) => {
            assert!(!limit.to_string().is_empty());
            sent.remove(3);
            assert!(deliver(bed, &sent).await.is_empty());
        }
        Ok(()) => {
            sent[3] = row(3, large);
            assert_eq!(deliver(bed, &sent).await, [3]);
            sent.remove(3);
        }
    }
    all_there(&bed.arrived(&topic).await, &sent);
}

/// Law: a destination that is not there is told as such, no row is blamed, and other keys are not held up for ever; once
/// it is there the same rows go through, in order.
///
/// What becomes of later rows of the key at other destinations is not looked at: a log orders a key within a topic only.
pub async fn a_missing_destination_is_named_and_costs_no_attempt(bed: &dyn SinkBed) {
    let Some(missing) = bed.missing_topic().await else {
        return;
    };
    let topic = bed.topic().await;
    let sent = vec![
        row(1, event(1, &missing, "k")),
        row(2, event(2, &missing, "k")),
        row(3, event(3, &topic, "other")),
    ];
    let mut left = sent.clone();
    let until = Instant::now() + LIMIT;
    loop {
        let answers = send(bed.sink(), &left, LIMIT).await;
        let error = answers[0].clone().expect_err("there is no such destination");
        assert!(answers[1].is_err(), "row 2 is behind row 1");
        if answers.get(2).is_some_and(Result::is_ok) {
            left.pop();
        }
        match error.class {
            SinkErrorClass::Destination => {
                assert!(!error.message.is_empty(), "it says which");
                break;
            }
            // A receiver may first hope that the destination is only very new.
            SinkErrorClass::HeldBack => assert!(Instant::now() < until, "never named: {error}"),
            SinkErrorClass::Away | SinkErrorClass::Message => panic!("{:?}: {error}", error.class),
        }
    }
    bed.make_topic(&missing).await;
    assert!(deliver(bed, &left).await.is_empty(), "no row is to blame");
    all_there(&bed.arrived(&missing).await, &sent[..2]);
    all_there(&bed.arrived(&topic).await, &sent[2..]);
}
