//! `semel check`: the file first, every mistake in it; then each server it names.
//!
//! # Guarantees
//! Changes nothing: no table is made, no missing SQLite file appears, no event is sent. A receiver sees at most one
//! connection that says nothing.

mod findings;
mod gateway;
mod roles;
mod stores;

use serde_json::json;

use crate::cli::CheckArgs;
use crate::config::mistake::Report;
use crate::config::{self, Config};
use crate::exit::Exit;
use crate::{out, runtime};

use findings::{Finding, Verdict};

/// Reads the configuration, then tries each server.
pub(crate) fn run(args: &CheckArgs) -> Exit {
    if args.fields {
        out::data(config::docs::page().trim_end());
        return Exit::Ok;
    }
    let config = match config::load(&args.config.path) {
        Ok(config) => config,
        Err(report) => {
            if args.json {
                out::data(mistakes(&report));
            } else {
                out::data(&report);
            }
            return Exit::Usage;
        }
    };
    runtime::small(async {
        let mut findings = vec![Finding::ok(
            "file",
            "read",
            format!("{} names {}", args.config.path.display(), summary(&config)),
        )];
        findings.extend(config.doubts.iter().map(|doubt| {
            let found = format!("line {}: {}", doubt.line, doubt.message);
            Finding::warn("file", "settings", found, doubt.fix.as_str())
        }));
        if !args.offline {
            stores::check(&config.stores, &mut findings).await;
            roles::check(&config, &mut findings).await;
        }
        let bad = findings.iter().any(|finding| finding.verdict == Verdict::Bad);
        if args.json {
            out::data(json!({ "ok": !bad, "mistakes": [], "findings": findings }));
        } else {
            out::data(findings::show(&findings));
        }
        if bad { Exit::Failed } else { Exit::Ok }
    })
}

fn summary(config: &Config) -> String {
    let count = |n: usize, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
    format!(
        "{}, {}, {}, key API {}, sagas {}",
        count(config.stores.len(), "store"),
        count(config.relays.len(), "relay"),
        count(config.gateways.len(), "gateway"),
        if config.api.is_some() { "on" } else { "off" },
        if config.saga.is_some() { "on" } else { "off" }
    )
}

fn mistakes(report: &Report) -> serde_json::Value {
    let list: Vec<_> = report
        .mistakes()
        .map(|(place, mistake)| {
            json!({
                "file": report.file,
                "line": place.as_ref().map(|place| place.line),
                "column": place.as_ref().map(|place| place.column),
                "message": mistake.message,
                "fix": mistake.fix,
            })
        })
        .collect();
    json!({ "ok": false, "mistakes": list, "findings": [] })
}
