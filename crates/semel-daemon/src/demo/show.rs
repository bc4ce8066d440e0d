//! The whole show: both shops one after the other, then the audits side by side.

use std::fs::File;
use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use semel_core::host::random_16;

use super::args::DemoArgs;
use super::audit::{Look, json, table, verdicts};
use super::folder::Root;
use super::load::{orders, strikes};
use super::report::{Report, Shop};
use super::stage::{Script, perform};
use super::trouble::{Doing as _, Trouble};
use crate::exit::Exit;
use crate::out;

/// Runs it. When this future is dropped, every process is killed.
pub(crate) async fn show(args: &DemoArgs) -> Result<Exit, Trouble> {
    let seed = args.seed.unwrap_or_else(new_seed);
    let mut root = Root::open(args.dir.as_deref())?;
    log_to(&root.path().join("demo.log"))?;
    let script = Script {
        orders: orders(seed, args.orders, args.seconds),
        strikes: strikes(seed, args.seconds),
        load: Duration::from_secs(u64::from(args.seconds)),
    };
    let shops: &[Shop] = match (args.semel_only, args.naive_only) {
        (true, _) => &[Shop::Semel],
        (_, true) => &[Shop::ByHand],
        _ => &[Shop::ByHand, Shop::Semel],
    };
    announce(args, seed, shops);

    // One after the other: at once they would take the processor from each other.
    let mut reports = Vec::new();
    for &shop in shops {
        reports.push(perform(shop, &root.of(shop), &script).await?);
    }
    if args.json {
        out::data(json(seed, args.orders, args.seconds, &reports));
    } else {
        out::data(table(&reports, look()));
        out::data(verdicts(&reports));
    }
    Ok(close(args, seed, &reports, &mut root))
}

fn announce(args: &DemoArgs, seed: u64, shops: &[Shop]) {
    let whose = match shops {
        [Shop::ByHand] => "A small shop, written by hand,",
        [Shop::Semel] => "A small shop, built with Semel,",
        _ => "A small shop, first written by hand and then built with Semel,",
    };
    out::note(format_args!(
        "{whose} takes {} orders in {} s. Many are sent twice or cut off,\n\
         and its processes are killed and paused all the while. Then the books are audited. Seed {seed}.",
        args.orders, args.seconds
    ));
}

fn look() -> Look {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    match (std::io::stdout().is_terminal(), plain) {
        (true, false) => Look::Colour,
        (true, true) => Look::Lines,
        (false, _) => Look::Plain,
    }
}

/// Says where the files are and how to see it again. Only Semel's audit decides how the demo ends.
fn close(args: &DemoArgs, seed: u64, reports: &[Report], root: &mut Root) -> Exit {
    let again = format!(
        "semel demo --seed {seed} --orders {} --seconds {}",
        args.orders, args.seconds
    );
    let semel = reports.iter().find(|report| report.shop == Shop::Semel);
    let exit = match semel {
        Some(report) if !report.audit.clean() => {
            // They are what a bug report needs.
            root.keep();
            out::error(format_args!(
                "Semel's audit is not clean, which is a bug of Semel:{}",
                wrong(report)
            ));
            Exit::Failed
        }
        _ => Exit::Ok,
    };
    if root.is_kept() {
        out::note(format_args!(
            "The services' databases and logs: {}",
            root.path().display()
        ));
    }
    out::note(format_args!("The same load and the same blows again: {again}"));
    exit
}

/// What was found, with the first few orders.
fn wrong(report: &Report) -> String {
    let found = report.audit.findings.iter().filter(|finding| finding.count > 0);
    found.fold(String::new(), |text, finding| {
        let orders = finding.examples.join(", ");
        format!("{text}\n  {}: {orders}", finding.question.title)
    })
}

/// Small enough to be typed.
fn new_seed() -> u64 {
    let [a, b, c, ..] = random_16();
    u64::from(u32::from_be_bytes([0, a, b, c]))
}

/// The demo's own log: who was struck when, and who ended by itself.
fn log_to(file: &Path) -> Result<(), Trouble> {
    let log = File::create(file).doing(format!("make {}", file.display()))?;
    tracing_subscriber::fmt()
        .with_writer(Mutex::new(log))
        .with_ansi(false)
        .init();
    Ok(())
}
