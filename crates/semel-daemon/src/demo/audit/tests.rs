//! Each question finds its own case, and nothing else does.

use bytes::Bytes;
use http::StatusCode;

use super::books::{Books, EffectRow, OrderRow};
use super::count::{Audit, audit};
use crate::demo::load::{Answer, Heard};

const REFERENCE: &str = "order-00001";

/// What one customer heard: statuses of the different answers.
fn heard(answers: &[u16]) -> Vec<Heard> {
    let answer = |status: &u16| Answer {
        status: StatusCode::from_u16(*status).unwrap(),
        body: Bytes::new(),
    };
    vec![Heard {
        reference: REFERENCE.to_owned(),
        answers: answers.iter().map(answer).collect(),
    }]
}

/// The books: orders as `id:status`, effects as `id:kind`.
fn books(orders: &[&str], effects: &[&str]) -> Books {
    let order = |text: &&str| {
        let (id, status) = text.split_once(':').unwrap();
        OrderRow {
            id: id.to_owned(),
            reference: REFERENCE.to_owned(),
            status: status.to_owned(),
        }
    };
    let effect = |text: &&str| {
        let (order_id, kind) = text.split_once(':').unwrap();
        EffectRow {
            kind: kind.to_owned(),
            order_id: order_id.to_owned(),
            reference: REFERENCE.to_owned(),
        }
    };
    Books {
        orders: orders.iter().map(order).collect(),
        effects: effects.iter().map(effect).collect(),
    }
}

fn found(audit: &Audit) -> Vec<&'static str> {
    let found = audit.findings.iter().filter(|finding| finding.count > 0);
    found.map(|finding| finding.question.id).collect()
}

fn findings(answers: &[u16], orders: &[&str], effects: &[&str]) -> Vec<&'static str> {
    let audit = audit(&heard(answers), &books(orders, effects));
    let found = found(&audit);
    assert_eq!(audit.clean(), found.is_empty());
    found
}

const WHOLE: [&str; 4] = ["a:notify", "a:reserve", "a:charge", "a:ship"];

#[test]
fn an_order_that_is_whole_is_right_and_counts_as_completed() {
    let audit = audit(&heard(&[201]), &books(&["a:confirmed"], &WHOLE));
    assert_eq!((audit.right, audit.completed, audit.undone), (1, 1, 0));
    assert!(audit.clean());
}

#[test]
fn an_order_that_is_undone_is_right_too() {
    let effects = ["a:notify", "a:reserve", "a:charge", "a:refund", "a:release"];
    let audit = audit(&heard(&[201]), &books(&["a:cancelled"], &effects));
    assert_eq!((audit.right, audit.completed, audit.undone), (1, 0, 1));
}

#[test]
fn a_refused_order_of_which_nothing_was_ever_written_is_right() {
    assert_eq!(findings(&[409], &[], &[]), [""; 0]);
}

#[test]
fn every_question_finds_its_case() {
    let with = |more: &[&'static str]| [&WHOLE[..], more].concat();
    let without = |less: &str| -> Vec<&'static str> { WHOLE.into_iter().filter(|it| *it != less).collect() };
    let confirmed = ["a:confirmed"];

    assert_eq!(
        findings(&[201], &confirmed, &with(&["a:charge"])),
        ["charged_more_than_once", "half_done"]
    );
    // Charged again and refunded: the money is right, and it still happened twice.
    assert_eq!(
        findings(&[201], &confirmed, &with(&["a:charge", "a:refund"])),
        ["charged_more_than_once"]
    );
    assert_eq!(
        findings(&[201], &confirmed, &without("a:ship")),
        ["paid_for_nothing", "stock_held", "half_done"]
    );
    assert_eq!(
        findings(&[201], &confirmed, &without("a:charge")),
        ["shipped_unpaid", "half_done"]
    );
    assert_eq!(
        findings(&[201], &confirmed, &with(&["a:ship"])),
        ["shipped_more_than_once", "half_done"]
    );
    assert_eq!(
        findings(&[201], &["a:cancelled"], &["a:notify", "a:reserve"]),
        ["stock_held", "half_done"]
    );
    assert_eq!(
        findings(&[201], &["a:cancelled"], &["a:notify", "a:release"]),
        ["undone_too_often", "half_done"]
    );
    assert_eq!(findings(&[201], &["a:placed"], &WHOLE), ["unfinished"]);
    assert_eq!(
        findings(&[201], &["a:confirmed", "b:cancelled"], &with(&["b:notify"])),
        ["became_two"]
    );
    assert_eq!(findings(&[201], &[], &[]), ["vanished"]);
    assert_eq!(
        findings(&[201], &confirmed, &without("a:notify")),
        ["events_lost"]
    );
    assert_eq!(
        findings(&[201], &confirmed, &with(&["a:notify"])),
        ["events_repeated"]
    );
    assert_eq!(findings(&[201, 409], &confirmed, &WHOLE), ["two_answers"]);
    assert_eq!(findings(&[], &confirmed, &WHOLE), ["unanswered"]);
}

#[test]
fn rows_that_nobody_asked_for_are_never_clean() {
    let mut books = books(&["a:confirmed"], &WHOLE);
    books.effects[0].reference = "order-99999".to_owned();
    books.effects[0].kind = "charge".to_owned();
    let audit = audit(&heard(&[201]), &books);
    assert_eq!(audit.unasked, 1);
    assert!(!audit.clean());
}
