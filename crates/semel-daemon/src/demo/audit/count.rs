//! The questions, and how each is counted.

use std::collections::{BTreeMap, BTreeSet};

use super::books::Books;
use crate::demo::load::Heard;

/// Examples kept per question.
const EXAMPLES_MAX: usize = 5;

/// One thing that may have gone wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question {
    /// For machines.
    pub(crate) id: &'static str,
    /// A few words.
    pub(crate) title: &'static str,
    /// A sentence in plain words.
    pub(crate) meaning: &'static str,
    counts: fn(&Order) -> bool,
}

/// All of them, in the order in which they are shown.
pub(crate) const QUESTIONS: &[Question] = &[
    Question {
        id: "charged_more_than_once",
        title: "Charged more than once",
        meaning: "The card was charged again for a charged order.",
        counts: |order| order.done("charge") > 1,
    },
    Question {
        id: "paid_for_nothing",
        title: "Paid, nothing came",
        meaning: "Money was taken and kept, and nothing shipped.",
        counts: |order| order.stands("charge", "refund") > 0 && order.stands("ship", "recall") <= 0,
    },
    Question {
        id: "shipped_unpaid",
        title: "Shipped, not paid",
        meaning: "The parcel left, and no money was kept for it.",
        counts: |order| order.stands("ship", "recall") > 0 && order.stands("charge", "refund") <= 0,
    },
    Question {
        id: "shipped_more_than_once",
        title: "Shipped more than once",
        meaning: "Two parcels or more left for one order.",
        counts: |order| order.done("ship") > 1,
    },
    Question {
        id: "stock_held",
        title: "Stock held for nothing",
        meaning: "Goods set aside that no parcel will ever take.",
        counts: |order| order.stands("reserve", "release") > order.stands("ship", "recall"),
    },
    Question {
        id: "undone_too_often",
        title: "Undone too often",
        meaning: "More was refunded or released than had been done.",
        counts: |order| {
            order.stands("charge", "refund") < 0
                || order.stands("reserve", "release") < 0
                || order.stands("ship", "recall") < 0
        },
    },
    Question {
        id: "half_done",
        title: "Sagas left half done",
        meaning: "Some steps stand, others do not, nobody is on it.",
        counts: |order| order.ids.values().any(OrderId::half_done),
    },
    Question {
        id: "unfinished",
        title: "Orders never finished",
        meaning: "Neither confirmed nor cancelled, and it stays so.",
        counts: |order| order.ids.values().any(|id| id.known && !id.finished),
    },
    Question {
        id: "became_two",
        title: "One order became two",
        meaning: "Retries of one order were taken for new orders.",
        counts: |order| order.ids.values().filter(|id| id.known).count() > 1,
    },
    Question {
        id: "vanished",
        title: "Accepted, then lost",
        meaning: "The customer was told yes; the order is nowhere.",
        counts: |order| order.accepted && order.ids.values().all(|id| !id.known),
    },
    Question {
        id: "events_lost",
        title: "Events lost",
        meaning: "The order is there, its event never arrived.",
        counts: |order| order.ids.values().any(|id| id.known && id.done("notify") == 0),
    },
    Question {
        id: "events_repeated",
        title: "Events applied twice",
        meaning: "The customer got the same message again.",
        counts: |order| order.ids.values().any(|id| id.done("notify") > 1),
    },
    Question {
        id: "two_answers",
        title: "One key, two answers",
        meaning: "One request under one key, answered in two ways.",
        counts: |order| order.answers > 1,
    },
    Question {
        id: "unanswered",
        title: "Never answered",
        meaning: "Asked until the end, and no definite answer.",
        counts: |order| order.answers == 0,
    },
];

/// One answered question.
#[derive(Debug, Clone)]
pub(crate) struct Finding {
    pub(crate) question: Question,
    pub(crate) count: usize,
    /// References of the first few.
    pub(crate) examples: Vec<String>,
}

/// One shop's audit.
#[derive(Debug, Clone)]
pub(crate) struct Audit {
    pub(crate) findings: Vec<Finding>,
    /// Orders that the customers placed.
    pub(crate) orders: usize,
    /// Those about which no question found anything.
    pub(crate) right: usize,
    /// Orders that were charged and shipped.
    pub(crate) completed: usize,
    /// Orders of which nothing stands: refused, or undone.
    pub(crate) undone: usize,
    /// Rows in the books for which there was no order. Always wrong.
    pub(crate) unasked: usize,
}

impl Audit {
    /// Whether nothing was found.
    pub(crate) fn clean(&self) -> bool {
        self.right == self.orders && self.unasked == 0
    }
}

/// What was done under one order id.
#[derive(Debug, Default)]
struct OrderId {
    /// The orders service knows this id.
    known: bool,
    finished: bool,
    effects: BTreeMap<String, i64>,
}

impl OrderId {
    fn done(&self, kind: &str) -> i64 {
        self.effects.get(kind).copied().unwrap_or(0)
    }

    fn stands(&self, done: &str, undone: &str) -> i64 {
        self.done(done) - self.done(undone)
    }

    fn half_done(&self) -> bool {
        let stock = self.stands("reserve", "release");
        stock != self.stands("charge", "refund") || stock != self.stands("ship", "recall")
    }
}

/// What one customer asked for, heard, and got.
#[derive(Debug, Default)]
struct Order {
    ids: BTreeMap<String, OrderId>,
    answers: usize,
    accepted: bool,
}

impl Order {
    fn done(&self, kind: &str) -> i64 {
        self.ids.values().map(|id| id.done(kind)).sum()
    }

    fn stands(&self, done: &str, undone: &str) -> i64 {
        self.done(done) - self.done(undone)
    }
}

/// Answers every question for every order.
pub(crate) fn audit(heard: &[Heard], books: &Books) -> Audit {
    let mut orders: BTreeMap<&str, Order> = heard
        .iter()
        .map(|heard| {
            let order = Order {
                answers: heard.answers.len(),
                accepted: heard.answers.iter().any(|answer| answer.status.is_success()),
                ids: BTreeMap::new(),
            };
            (heard.reference.as_str(), order)
        })
        .collect();
    let mut unasked = 0;
    for row in &books.orders {
        match orders.get_mut(row.reference.as_str()) {
            Some(order) => {
                let id = order.ids.entry(row.id.clone()).or_default();
                id.known = true;
                id.finished = row.finished();
            }
            None => unasked += 1,
        }
    }
    for row in &books.effects {
        match orders.get_mut(row.reference.as_str()) {
            Some(order) => {
                let id = order.ids.entry(row.order_id.clone()).or_default();
                *id.effects.entry(row.kind.clone()).or_default() += 1;
            }
            None => unasked += 1,
        }
    }
    answer(&orders, unasked)
}

fn answer(orders: &BTreeMap<&str, Order>, unasked: usize) -> Audit {
    let mut wrong = BTreeSet::new();
    let findings = QUESTIONS
        .iter()
        .map(|&question| {
            let found: Vec<_> = orders
                .iter()
                .filter(|(_, order)| (question.counts)(order))
                .map(|(reference, _)| *reference)
                .collect();
            wrong.extend(found.iter().copied());
            Finding {
                question,
                count: found.len(),
                examples: found.iter().take(EXAMPLES_MAX).map(ToString::to_string).collect(),
            }
        })
        .collect();
    let net = |order: &Order| {
        let charge = order.stands("charge", "refund");
        (
            order.stands("reserve", "release"),
            charge,
            order.stands("ship", "recall"),
        )
    };
    Audit {
        findings,
        orders: orders.len(),
        right: orders.len() - wrong.len(),
        completed: orders.values().filter(|order| net(order) == (1, 1, 1)).count(),
        undone: orders.values().filter(|order| net(order) == (0, 0, 0)).count(),
        unasked,
    }
}
