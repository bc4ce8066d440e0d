//! What a check found, as a table for people, as lines for pipes, as JSON for programs.

use comfy_table::{Cell, Color, ContentArrangement, Table, presets};
use serde::Serialize;

use crate::out::{colours, terminal};

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// As it should be.
    Ok,
    /// It works, and somebody should know.
    Warn,
    /// It will not work.
    Bad,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    /// What it is about, such as `store default`.
    pub(crate) part: String,
    /// What was looked at, such as `schema`.
    pub(crate) check: &'static str,
    /// How it ended.
    pub(crate) verdict: Verdict,
    /// What was found.
    pub(crate) found: String,
    /// What to do, where something should be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fix: Option<String>,
}

impl Finding {
    /// As it should be.
    pub(crate) fn ok(part: impl Into<String>, check: &'static str, found: impl Into<String>) -> Self {
        Self {
            part: part.into(),
            check,
            verdict: Verdict::Ok,
            found: found.into(),
            fix: None,
        }
    }

    /// It works, and somebody should know.
    pub(crate) fn warn(
        part: impl Into<String>,
        check: &'static str,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Warn,
            fix: Some(fix.into()),
            ..Self::ok(part, check, found)
        }
    }

    /// It will not work; what was found says what to do by itself.
    pub(crate) fn failed(part: impl Into<String>, check: &'static str, found: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Bad,
            ..Self::ok(part, check, found)
        }
    }

    /// It will not work.
    pub(crate) fn bad(
        part: impl Into<String>,
        check: &'static str,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Bad,
            ..Self::warn(part, check, found, fix)
        }
    }
}

/// All findings: a table in a terminal, tab-separated lines in a pipe.
pub(crate) fn show(findings: &[Finding]) -> String {
    if terminal() {
        table(findings)
    } else {
        lines(findings)
    }
}

fn text(finding: &Finding) -> String {
    match &finding.fix {
        Some(fix) => format!("{}; {fix}", finding.found),
        None => finding.found.clone(),
    }
}

const fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::Warn => "warn",
        Verdict::Bad => "bad",
    }
}

fn lines(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let text = text(finding).replace(['\t', '\n'], " ");
        [word(finding.verdict), &finding.part, finding.check, &text].join("\t")
    };
    findings.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn table(findings: &[Finding]) -> String {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none_or(|width| width < WIDTH_MIN) {
        table.set_width(WIDTH_MIN);
    }
    for finding in findings {
        let cell = Cell::new(word(finding.verdict));
        let cell = match finding.verdict {
            _ if !colours() => cell,
            Verdict::Ok => cell.fg(Color::Green),
            Verdict::Warn => cell.fg(Color::Yellow),
            Verdict::Bad => cell.fg(Color::Red),
        };
        table.add_row(vec![
            cell,
            Cell::new(&finding.part),
            Cell::new(finding.check),
            Cell::new(text(finding)),
        ]);
    }
    table.trim_fmt()
}

/// Columns of a table at least; a narrower terminal wraps.
const WIDTH_MIN: u16 = 60;
