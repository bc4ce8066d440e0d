//! `semel conformance`: does a service keep what `Idempotency-Key` promises? Asked from outside, over HTTP.
//!
//! [`Options`] say what is known of the service, [`wire`] sends (also what no ordinary client would), [`bench`] counts runs,
//! [`checks`] ask, [`report`] tells. What each check means: `docs/conformance.md`.
//!
//! *Invariant:* a run is recognised by what the service says (its answers, its counter), never by how long something takes.

mod bench;
mod checks;
mod options;
mod report;
mod wire;

use clap::{Args, Subcommand};

use crate::exit::Exit;
use crate::{out, runtime};

use bench::Bench;
use options::{HttpArgs, Options};

/// `semel conformance`.
#[derive(Debug, Args)]
pub(crate) struct ConformanceArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Ask a service over HTTP whether requests with an Idempotency-Key happen once
    ///
    /// The answers of the target must hold something that is new for each run, such as an order's number. Requests are
    /// really made: use a test system. Exit codes: 0 no required check failed (what was not checked is listed and proves
    /// nothing), 1 one failed, or with --all was not checked, 2 it could not be tested.
    Http(Box<HttpArgs>),
}

/// Runs the suite.
pub(crate) fn run(args: &ConformanceArgs) -> Exit {
    let What::Http(args) = &args.what;
    let options = match Options::read(args) {
        Ok(options) => options,
        Err(mistake) => {
            out::error(mistake);
            return Exit::Usage;
        }
    };
    let (json, url, all) = (args.json, args.url.clone(), args.all);
    runtime::small(async move {
        let bench = match Bench::open(options).await {
            Ok(bench) => bench,
            Err(why) => {
                out::error(&why);
                if json {
                    out::data(serde_json::json!({ "url": url, "ok": false, "error": why, "checks": [] }));
                }
                return Exit::Usage;
            }
        };
        let findings = checks::all(&bench).await;
        out::data(if json {
            report::json(&url, &findings, all).to_string()
        } else {
            report::text(&findings)
        });
        out::note(report::summary(&findings));
        if report::conforms(&findings, all) {
            Exit::Ok
        } else {
            Exit::Failed
        }
    })
}
