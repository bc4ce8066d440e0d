//! The audits side by side, for people and for machines.

use comfy_table::presets::{ASCII_MARKDOWN, UTF8_BORDERS_ONLY};
use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table};
use serde_json::{Value, json};

use super::count::Audit;
use crate::demo::report::Report;

/// The widest a table gets; sentences wrap inside.
const WIDTH: u16 = 100;

/// The table. With `pretty`, in colours and lines; else as plain Markdown.
pub(crate) fn table(reports: &[Report], pretty: bool) -> String {
    let mut table = Table::new();
    table
        .load_preset(if pretty { UTF8_BORDERS_ONLY } else { ASCII_MARKDOWN })
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH);
    if !pretty {
        table.force_no_tty();
    }
    let mut header = vec![Cell::new("What the customers went through"), Cell::new("")];
    header.extend(
        reports
            .iter()
            .map(|report| number(report.shop.title()).add_attribute(Attribute::Bold)),
    );
    table.set_header(header);
    for (title, meaning, value) in ordeal_rows() {
        let mut row = words(title, meaning);
        row.extend(reports.iter().map(|report| number(&value(report).to_string())));
        table.add_row(row);
    }
    let Some(first) = reports.first() else {
        return String::new();
    };
    for (n, finding) in first.audit.findings.iter().enumerate() {
        let mut row = words(finding.question.title, finding.question.meaning);
        row.extend(reports.iter().map(|report| verdict(&report.audit, n)));
        table.add_row(row);
    }
    let mut row = vec![
        Cell::new("Orders that came out right").add_attribute(Attribute::Bold),
        Cell::new("Paid and shipped once, or nothing of them stands; one event, one answer."),
    ];
    row.extend(reports.iter().map(|report| {
        let audit = &report.audit;
        let colour = if audit.clean() { Color::Green } else { Color::Red };
        number(&format!("{} of {}", audit.right, audit.orders))
            .fg(colour)
            .add_attribute(Attribute::Bold)
    }));
    table.add_row(row);
    table.to_string()
}

type OrdealRow = (&'static str, &'static str, fn(&Report) -> u64);

fn ordeal_rows() -> [OrdealRow; 5] {
    [
        ("Orders placed", "Each under a key of its own.", |report| {
            report.audit.orders as u64
        }),
        (
            "Duplicates sent",
            "The same order again under its key: at the same moment, or later.",
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
            "SIGSTOP: frozen for a moment, and unaware of it.",
            |report| report.ordeal.pauses,
        ),
    ]
}

fn words(title: &str, meaning: &str) -> Vec<Cell> {
    vec![Cell::new(title), Cell::new(meaning).add_attribute(Attribute::Dim)]
}

fn number(text: &str) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

fn verdict(audit: &Audit, n: usize) -> Cell {
    let count = audit.findings.get(n).map_or(0, |finding| finding.count);
    let colour = if count == 0 { Color::Green } else { Color::Red };
    number(&count.to_string()).fg(colour)
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
