//! `semel demo`: a small shop, struck again and again while customers order, and then audited. The same shop written
//! by hand goes through the same.
//!
//! Begin at [`stage`] (one run from start to audit). [`load`] draws what is sent and what is struck from the seed,
//! [`process`] keeps the children and lets none outlive the demo, [`shop`] has what both shops share, [`by_hand`] and
//! [`semel`] are the two shops, [`audit`] counts.
//!
//! # Guarantees
//! - Every number shown is counted from the services' own files, or from the answers that the client got.
//! - However the demo ends, no process stays behind.
//!
//! # Not guaranteed
//! The same numbers for the same seed: the seed fixes what is sent and struck and when, not how the system schedules
//! the processes. What holds for every run is that Semel's audit is clean.

mod args;
mod audit;
mod by_hand;
mod load;
mod moment;
mod process;
mod progress;
mod report;
mod semel;
mod shop;
mod stage;
mod trouble;

use std::fs::File;
use std::future::Future;
use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use args::Role;
pub(crate) use args::{ChildArgs, DemoArgs};
use semel_core::host::random_16;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use self::report::{Report, Shop};
use self::stage::{Folder, Script};
use self::trouble::{Doing as _, Trouble};
use crate::exit::Exit;
use crate::out;

/// Runs the demo. Owns its runtime.
pub(crate) fn run(args: DemoArgs) -> Exit {
    let shown = runtime().and_then(|runtime| runtime.block_on(show_until_stopped(&args)));
    match shown {
        Ok(exit) => exit,
        Err(trouble) => {
            out::error(trouble);
            Exit::Failed
        }
    }
}

/// Runs one child process of the demo. Owns its runtime.
pub(crate) fn child(args: ChildArgs) -> Exit {
    match args.role {
        Role::Watchdog { remove } => process::watch(remove),
        Role::Sweep { remove } => process::sweep(&remove),
        Role::ByHand(service) => serve(by_hand::run(&service)),
        Role::Semel(service) => serve(semel::run(&service)),
    }
}

/// Runs one service; its log goes to stderr, which the demo has put into a file.
fn serve(service: impl Future<Output = Result<(), Trouble>>) -> Exit {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    match runtime().and_then(|runtime| runtime.block_on(service)) {
        Ok(()) => Exit::Ok,
        Err(trouble) => {
            out::error(trouble);
            Exit::Failed
        }
    }
}

fn runtime() -> Result<Runtime, Trouble> {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .doing("start the runtime")
}

/// Shows the demo, or stops at Ctrl-C, SIGTERM, or when the terminal closes.
async fn show_until_stopped(args: &DemoArgs) -> Result<Exit, Trouble> {
    let listen = |kind| signal(kind).doing("listen for signals");
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    // Dropping `show` kills every process.
    tokio::select! {
        shown = Box::pin(show(args)) => return shown,
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    out::note("\nstopped before the audit; every process of the demo is gone");
    Ok(Exit::Failed)
}

async fn show(args: &DemoArgs) -> Result<Exit, Trouble> {
    let seed = args.seed.unwrap_or_else(new_seed);
    let script = Script {
        orders: load::orders(seed, args.orders, args.seconds),
        strikes: load::strikes(seed, args.seconds),
        load: Duration::from_secs(u64::from(args.seconds)),
    };
    // Removed when it is dropped, which is after the last process is gone.
    let temporary = match &args.dir {
        Some(dir) => {
            make_empty(dir)?;
            None
        }
        None => Some(
            tempfile::Builder::new()
                .prefix("semel-demo-")
                .tempdir()
                .doing("make a temporary folder")?,
        ),
    };
    let root = match (&args.dir, &temporary) {
        (Some(dir), _) => std::path::absolute(dir).doing(format!("find {}", dir.display()))?,
        (None, Some(temporary)) => temporary.path().to_owned(),
        (None, None) => return Err(Trouble::new("choose a folder", "there is none")),
    };
    log_to(&root.join("demo.log"))?;
    out::note(format_args!("seed {seed}"));

    let shops = match (args.semel_only, args.naive_only) {
        (true, _) => vec![Shop::Semel],
        (_, true) => vec![Shop::ByHand],
        _ => vec![Shop::ByHand, Shop::Semel],
    };
    let mut reports = Vec::new();
    for shop in shops {
        let folder = Folder {
            path: root.join(shop.id()),
            temporary: temporary.as_ref().map(|dir| dir.path().to_owned()),
        };
        reports.push(stage::perform(shop, &folder, &script).await?);
    }
    if args.json {
        out::data(audit::json(seed, args.orders, args.seconds, &reports));
    } else {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let look = match (std::io::stdout().is_terminal(), plain) {
            (true, false) => audit::Look::Colour,
            (true, true) => audit::Look::Lines,
            (false, _) => audit::Look::Plain,
        };
        out::data(audit::table(&reports, look));
        out::data(audit::verdicts(&reports));
    }
    Ok(close(args, seed, &reports))
}

/// Says how it went, and how to see it again.
fn close(args: &DemoArgs, seed: u64, reports: &[Report]) -> Exit {
    let semel = reports.iter().find(|report| report.shop == Shop::Semel);
    let failed = semel.is_some_and(|report| !report.audit.clean());
    let again = format!(
        "semel demo --seed {seed} --orders {} --seconds {}",
        args.orders, args.seconds
    );
    if failed {
        out::error(format_args!(
            "Semel's audit is not clean, which is a bug of Semel. Please report it with the files of\n  {again} --semel-only --dir semel-demo"
        ));
        return Exit::Failed;
    }
    out::note(format_args!("The same load and the same blows again: {again}"));
    Exit::Ok
}

/// Small enough to be typed.
fn new_seed() -> u64 {
    let [a, b, c, ..] = random_16();
    u64::from(u32::from_be_bytes([0, a, b, c]))
}

fn make_empty(dir: &Path) -> Result<(), Trouble> {
    std::fs::create_dir_all(dir).doing(format!("make {}", dir.display()))?;
    let mut entries = std::fs::read_dir(dir).doing(format!("look into {}", dir.display()))?;
    if entries.next().is_some() {
        return Err(Trouble::new(
            format!("keep files in {}", dir.display()),
            "it is not empty; name a new folder",
        ));
    }
    Ok(())
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
