//! What was found: a table for people, lines for pipes, JSON for programs.

use comfy_table::{Cell, Color, ContentArrangement, Table, presets};
use serde_json::{Value, json};

use crate::out::{colours, terminal};

/// How much a check weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// Without it operations happen twice, or somebody gets an answer that is not theirs.
    Required,
    /// The draft or good sense asks for it.
    Recommended,
    /// Good to know.
    Informative,
}

impl Level {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Recommended => "recommended",
            Self::Informative => "informative",
        }
    }
}

/// One thing that is asked.
#[derive(Debug)]
pub(super) struct Check {
    /// Its name, for good: reports are compared over versions.
    pub(super) id: &'static str,
    pub(super) level: Level,
    /// What should be.
    pub(super) title: &'static str,
    /// What to do when it is not.
    pub(super) fix: &'static str,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Passed,
    Failed,
    NotChecked,
}

impl Verdict {
    const fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::NotChecked => "not checked",
        }
    }
}

/// A check with how it ended.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) check: &'static Check,
    pub(super) level: Level,
    pub(super) verdict: Verdict,
    /// What was seen.
    pub(super) found: String,
}

impl Check {
    fn finding(&'static self, verdict: Verdict, found: impl Into<String>) -> Finding {
        Finding {
            check: self,
            level: self.level,
            verdict,
            found: found.into(),
        }
    }

    pub(super) fn passed(&'static self, found: impl Into<String>) -> Finding {
        self.finding(Verdict::Passed, found)
    }

    pub(super) fn failed(&'static self, found: impl Into<String>) -> Finding {
        self.finding(Verdict::Failed, found)
    }

    pub(super) fn not_checked(&'static self, why: impl Into<String>) -> Finding {
        self.finding(Verdict::NotChecked, why)
    }

    /// Passed or failed.
    pub(super) fn judged(&'static self, good: bool, found: impl Into<String>) -> Finding {
        if good {
            self.passed(found)
        } else {
            self.failed(found)
        }
    }
}

impl Finding {
    /// The same at another level.
    pub(super) const fn at(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    fn text(&self) -> String {
        match self.verdict {
            Verdict::Failed => format!("{}. {}", self.found, self.check.fix),
            Verdict::Passed | Verdict::NotChecked => self.found.clone(),
        }
    }
}

/// Whether nothing that is required failed, and with `all` nothing of it was left unchecked.
pub(super) fn conforms(findings: &[Finding], all: bool) -> bool {
    required(findings, Verdict::Failed) == 0 && !(all && required(findings, Verdict::NotChecked) > 0)
}

/// Required checks that ended so.
fn required(findings: &[Finding], verdict: Verdict) -> usize {
    let counted = |finding: &&Finding| finding.verdict == verdict && finding.level == Level::Required;
    findings.iter().filter(counted).count()
}

/// One line about all.
pub(super) fn summary(findings: &[Finding]) -> String {
    let count = |verdict| {
        findings
            .iter()
            .filter(|finding| finding.verdict == verdict)
            .count()
    };
    format!(
        "{} passed, {} failed ({} required), {} not checked ({} required)",
        count(Verdict::Passed),
        count(Verdict::Failed),
        required(findings, Verdict::Failed),
        count(Verdict::NotChecked),
        required(findings, Verdict::NotChecked)
    )
}

/// The report for programs.
pub(super) fn json(url: &str, findings: &[Finding], all: bool) -> Value {
    let checks: Vec<Value> = findings
        .iter()
        .map(|finding| {
            let mut check = json!({
                "id": finding.check.id,
                "level": finding.level.word(),
                "verdict": finding.verdict.word(),
                "title": finding.check.title,
                "found": finding.found,
            });
            if finding.verdict == Verdict::Failed {
                check["fix"] = finding.check.fix.into();
            }
            check
        })
        .collect();
    json!({ "url": url, "ok": conforms(findings, all), "checks": checks })
}

/// The report for people: a table in a terminal, tab-separated lines in a pipe.
pub(super) fn text(findings: &[Finding]) -> String {
    if terminal() {
        table(findings)
    } else {
        lines(findings)
    }
}

fn lines(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let text = finding.text().replace(['\t', '\n'], " ");
        [
            finding.verdict.word(),
            finding.level.word(),
            finding.check.id,
            finding.check.title,
            &text,
        ]
        .join("\t")
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
        let cell = Cell::new(finding.verdict.word());
        let cell = match finding.verdict {
            _ if !colours() => cell,
            Verdict::Passed => cell.fg(Color::Green),
            Verdict::Failed if finding.level == Level::Required => cell.fg(Color::Red),
            Verdict::Failed => cell.fg(Color::Yellow),
            Verdict::NotChecked => cell.fg(Color::DarkGrey),
        };
        table.add_row(vec![
            cell,
            Cell::new(finding.level.word()),
            Cell::new(finding.check.id),
            Cell::new(format!("{}: {}", finding.check.title, finding.text())),
        ]);
    }
    table.trim_fmt()
}

/// Columns of a table at least; a narrower terminal wraps.
const WIDTH_MIN: u16 = 72;
