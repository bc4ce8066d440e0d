//! The audits side by side, for people and for machines.

use comfy_table::presets::{ASCII_MARKDOWN, UTF8_BORDERS_ONLY};
use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table};
use serde_json::{Value, json};

use super::count::Audit;
use crate::demo::report::{Report, Shop};

/// The widest that a table gets; sentences wrap inside.
const WIDTH: u16 = 108;

/// How a table is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Lines and colours, for a terminal.
    Colour,
    /// Lines only, for a terminal of someone who wants no colours.
    Lines,
    /// Markdown, for a pipe.
    Plain,
}

/// One row: what, in plain words, and the value for each shop.
type Row = (&'static str, &'static str, fn(&Report) -> u64);

/// What was done to the shops.
const ORDEAL: &[Row] = &[
    ("Orders placed", "Each under a key of its own.", |report| {
        report.audit.orders as u64
    }),
    (
        "Duplicates sent",
        "The same order again, at once or a little later.",
        |report| report.ordeal.duplicates,
    ),
    (
        "Connections cut",
        "The customer was gone before the answer.",
        |report| report.ordeal.cut,
    ),
    ("Processes killed", "kill -9, and started again.", |report| {
        report.ordeal.kills
    }),
    (
        "Processes paused",
        "SIGSTOP: frozen for a while, and unaware of it.",
        |report| report.ordeal.pauses,
    ),
];

/// How the good orders ended: neither column is right or wrong.
const ENDS: &[Row] = &[
    ("Paid and shipped", "The customer has the goods.", |report| {
        report.audit.completed as u64
    }),
    (
        "Refused or undone",
        "The shop said no, or took everything back.",
        |report| report.audit.undone as u64,
    ),
];

/// The table.
pub(crate) fn table(reports: &[Report], look: Look) -> String {
    let mut table = Table::new();
    table
        .load_preset(match look {
            Look::Colour | Look::Lines => UTF8_BORDERS_ONLY,
            Look::Plain => ASCII_MARKDOWN,
        })
        .set_content_arrangement(ContentArrangement::Dynamic);
    match look {
        Look::Colour => table.enforce_styling(),
        Look::Lines | Look::Plain => table.force_no_tty(),
    };
    table.set_width(WIDTH);
    let mut header = vec![Cell::new("After the storm"), Cell::new("")];
    header.extend(
        reports
            .iter()
            .map(|report| number(report.shop.title()).add_attribute(Attribute::Bold)),
    );
    table.set_header(header);

    rows(&mut table, reports, ORDEAL);
    gap(&mut table, reports);
    let questions = reports.first().map(|report| report.audit.findings.as_slice());
    for (n, finding) in questions.unwrap_or_default().iter().enumerate() {
        let mut row = words(finding.question.title, finding.question.meaning);
        row.extend(reports.iter().map(|report| verdict(&report.audit, n)));
        table.add_row(row);
    }
    gap(&mut table, reports);
    rows(&mut table, reports, ENDS);
    let mut row = words(
        "Orders that came out right",
        "One of the two, once, and told once.",
    );
    row.extend(reports.iter().map(|report| {
        let text = format!("{} of {}", report.audit.right, report.audit.orders);
        number(&text)
            .fg(colour(report.audit.clean()))
            .add_attribute(Attribute::Bold)
    }));
    table.add_row(row);
    table.to_string()
}

/// What the table says, in a sentence for each shop.
pub(crate) fn verdicts(reports: &[Report]) -> String {
    let sentence = |report: &Report| {
        let Audit {
            orders,
            right,
            unasked,
            ..
        } = report.audit;
        let shop = match report.shop {
            Shop::ByHand => "By hand",
            Shop::Semel => "With Semel",
        };
        let extra = match unasked {
            0 => String::new(),
            n => format!(" {n} rows in the books belong to no order."),
        };
        match orders - right {
            0 => format!("{shop}: all {orders} orders came out right.{extra}"),
            wrong => format!("{shop}: {wrong} of {orders} orders went wrong.{extra}"),
        }
    };
    reports.iter().map(sentence).collect::<Vec<_>>().join("\n")
}

fn rows(table: &mut Table, reports: &[Report], rows: &[Row]) {
    for (title, meaning, value) in rows {
        let mut row = words(title, meaning);
        row.extend(reports.iter().map(|report| number(&value(report).to_string())));
        table.add_row(row);
    }
}

fn gap(table: &mut Table, reports: &[Report]) {
    table.add_row(vec![""; 2 + reports.len()]);
}

fn words(title: &str, meaning: &str) -> Vec<Cell> {
    vec![Cell::new(title), Cell::new(meaning).add_attribute(Attribute::Dim)]
}

fn number(text: &str) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

const fn colour(good: bool) -> Color {
    if good { Color::Green } else { Color::Red }
}

fn verdict(audit: &Audit, n: usize) -> Cell {
    let count = audit.findings.get(n).map_or(0, |finding| finding.count);
    number(&count.to_string()).fg(colour(count == 0))
}

/// The same numbers for machines.
pub(crate) fn json(seed: u64, orders: u32, seconds: u32, reports: &[Report]) -> Value {
    let shops: serde_json::Map<_, _> = reports
        .iter()
        .map(|report| (report.shop.id().to_owned(), shop(report)))
        .collect();
    json!({ "seed": seed, "orders": orders, "seconds": seconds, "shops": shops })
}

fn shop(report: &Report) -> Value {
    let audit = &report.audit;
    let findings: Vec<_> = audit
        .findings
        .iter()
        .map(|finding| {
            json!({
                "id": finding.question.id,
                "title": finding.question.title,
                "meaning": finding.question.meaning,
                "count": finding.count,
                "examples": finding.examples,
            })
        })
        .collect();
    json!({
        "clean": audit.clean(),
        "orders": audit.orders,
        "right": audit.right,
        "completed": audit.completed,
        "undone": audit.undone,
        "unasked": audit.unasked,
        "findings": findings,
        "ordeal": report.ordeal,
        "took_ms": report.took_ms,
    })
}
