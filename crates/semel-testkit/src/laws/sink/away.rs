//! Lines that break and receivers that die.

use std::time::Duration;

use semel_core::store::SinkErrorClass;
use tokio::time::Instant;

use super::bed::{LIMIT, SinkBed};
use super::drive::{all_ok, all_there, call, deliver, nobody_is_blamed, reachable, rows, send};

/// Time enough for a healthy receiver, and not long to wait for an absent one.
const SHORT: Duration = Duration::from_secs(2);

/// Law: when nothing gets through, nothing is acknowledged, and the call ends at its deadline with every row unblamed.
pub async fn nothing_is_acknowledged_before_it_arrived_and_a_call_ends_at_its_deadline(bed: &dyn SinkBed) {
    let topic = bed.topic().await;
    all_ok(&call(bed.sink(), &rows(&topic, 1, 0, 1), LIMIT).await);
    bed.line().hold();
    let sent = rows(&topic, 20, 1, 21);
    let begun = Instant::now();
    let answers = call(bed.sink(), &sent, SHORT).await;
    let took = begun.elapsed();
    assert!(
        answers.iter().all(Result::is_err),
        "acknowledged, and nothing got through"
    );
    nobody_is_blamed(&answers);
    // A little late is the machine's fault.
    assert!(
        took < SHORT + Duration::from_secs(5),
        "a call of {SHORT:?} took {took:?}"
    );
    bed.line().restore();
    assert!(deliver(bed, &sent).await.is_empty(), "no row is to blame");
    let mut arrived = bed.arrived(&topic).await;
    arrived.retain(|it| super::drive::number(it) > 0);
    all_there(&arrived, &sent);
}

/// Law: without a connection every row is unblamed, the probe says so, and all is well when it is back.
pub async fn a_receiver_that_cannot_be_reached_is_away(bed: &dyn SinkBed) {
    let topic = bed.topic().await;
    all_ok(&call(bed.sink(), &rows(&topic, 1, 0, 1), LIMIT).await);
    bed.line().sever();
    let sent = rows(&topic, 20, 1, 21);
    let answers = call(bed.sink(), &sent, SHORT).await;
    assert!(answers.iter().all(Result::is_err));
    nobody_is_blamed(&answers);
    let away = |answer: &Result<(), semel_core::store::SinkError>| matches!(answer, Err(error) if error.class == SinkErrorClass::Away);
    assert!(
        answers.iter().any(away),
        "nobody says that it is away: {answers:?}"
    );
    let probed = bed.sink().probe().await;
    assert!(away(&probed), "{probed:?}");
    bed.line().restore();
    reachable(bed).await;
    assert!(deliver(bed, &sent).await.is_empty(), "no row is to blame");
    let mut arrived = bed.arrived(&topic).await;
    arrived.retain(|it| super::drive::number(it) > 0);
    all_there(&arrived, &sent);
}

/// Law: a connection that breaks while rows are on their way loses none: what was not acknowledged goes again with the
/// same ids, and each key's order holds once repeats are dropped.
pub async fn a_connection_cut_while_rows_leave_loses_nothing(bed: &dyn SinkBed) {
    let topic = bed.topic().await;
    all_ok(&call(bed.sink(), &rows(&topic, 1, 0, 1), LIMIT).await);
    // In the middle of the first rows, somewhere in between, and near the end: each row has 200 bytes and more.
    for (from, bytes) in [(1, 300), (201, 20_000), (401, 38_000)] {
        bed.line().cut_sends(bytes);
        interrupted(bed, &topic, from, from + 200).await;
    }
}

/// Law: a connection that breaks while acknowledgements come loses no row, and acknowledges none that is not there.
pub async fn a_connection_cut_while_answers_come_loses_nothing(bed: &dyn SinkBed) {
    let topic = bed.topic().await;
    all_ok(&call(bed.sink(), &rows(&topic, 1, 0, 1), LIMIT).await);
    for (from, bytes) in [(1, 0), (201, 1), (401, 30)] {
        bed.line().cut_answers(bytes);
        interrupted(bed, &topic, from, from + 200).await;
    }
}

/// Rows on their way while the line is cut once.
async fn interrupted(bed: &dyn SinkBed, topic: &str, from: i64, to: i64) {
    let before = bed.line().cuts();
    let sent = rows(topic, 5, from, to);
    let answers = send(bed.sink(), &sent, Duration::from_secs(10)).await;
    nobody_is_blamed(&answers);
    assert_eq!(bed.line().cuts(), before + 1, "the line was cut");
    let (mut left, mut taken) = (Vec::new(), Vec::new());
    for (row, answer) in sent.iter().zip(&answers) {
        match answer {
            Ok(()) => taken.push(row.event.id),
            Err(_) => left.push(row.clone()),
        }
    }
    reachable(bed).await;
    let ids: Vec<_> = bed.arrived(topic).await.iter().map(|it| it.event.id).collect();
    for id in taken {
        assert!(ids.contains(&id), "{id} was acknowledged and is not there");
    }
    assert!(deliver(bed, &left).await.is_empty(), "no row is to blame");
    let mut arrived = bed.arrived(topic).await;
    arrived.retain(|it| (from..to).contains(&super::drive::number(it)));
    all_there(&arrived, &sent);
}

/// Law: the receiver is killed right after it has acknowledged rows, and started again: it has all of them.
pub async fn what_was_acknowledged_survives_the_death_of_the_receiver(bed: &dyn SinkBed) {
    let topic = bed.topic().await;
    let sent = rows(&topic, 10, 0, 300);
    all_ok(&send(bed.sink(), &sent, LIMIT).await);
    bed.kill().await;
    bed.start().await;
    all_there(&bed.arrived(&topic).await, &sent);
}

/// Law: rows that meet a dead receiver are unblamed, and arrive in order when it is back.
pub async fn a_receiver_that_died_costs_no_attempt_and_no_order(bed: &dyn SinkBed) {
    let topic = bed.topic().await;
    let sent = rows(&topic, 10, 0, 100);
    all_ok(&send(bed.sink(), &sent[..10], LIMIT).await);
    bed.kill().await;
    for _ in 0..2 {
        let answers = send(bed.sink(), &sent[10..], SHORT).await;
        assert!(answers.iter().all(Result::is_err), "acknowledged by nobody");
        nobody_is_blamed(&answers);
        assert!(bed.sink().probe().await.is_err(), "nobody is there");
    }
    bed.start().await;
    reachable(bed).await;
    assert!(deliver(bed, &sent[10..]).await.is_empty(), "no row is to blame");
    all_there(&bed.arrived(&topic).await, &sent);
}
