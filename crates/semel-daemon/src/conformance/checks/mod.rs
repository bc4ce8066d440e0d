//! What is asked, one module per subject.

mod extras;
mod keys;
mod other;
mod replay;
mod together;

use super::bench::Bench;
use super::report::{Check, Finding};

/// A check that could not be carried to its end has failed: the target did not answer as it should have.
fn ended(check: &'static Check, result: Result<Finding, String>) -> Finding {
    result.unwrap_or_else(|why| check.failed(why))
}

/// All checks, one after the other: they count runs.
pub(super) async fn all(bench: &Bench) -> Vec<Finding> {
    let mut findings = replay::all(bench).await;
    findings.extend(together::all(bench).await);
    findings.extend(other::all(bench).await);
    findings.extend(keys::all(bench).await);
    findings.extend(extras::all(bench).await);
    findings
}

/// `runs` in words.
fn runs(runs: u64) -> String {
    format!("{runs} run{}", if runs == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_check_is_on_the_page() {
        let page = include_str!("../../../../../docs/conformance.md");
        let checks = [
            replay::CHECKS,
            together::CHECKS,
            other::CHECKS,
            keys::CHECKS,
            extras::CHECKS,
        ];
        let mut names = BTreeSet::new();
        for check in checks.into_iter().flatten() {
            assert!(names.insert(check.id), "{} is there twice", check.id);
            let row = format!("| `{}` | {} |", check.id, check.level.word());
            assert!(page.contains(&row), "docs/conformance.md has no row {row}");
            assert!(!check.fix.is_empty() && check.fix.ends_with('.'), "{}", check.id);
        }
    }
}
