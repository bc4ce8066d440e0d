//! `semel demo`: a small shop, struck again and again while customers order, and then audited. The same shop written
//! by hand goes through the same.
//!
//! Begin at [`show`] (the whole) and [`stage`] (one shop from its start to its audit). [`load`] draws what is sent and
//! what is struck from the seed, [`process`] keeps the children and lets none outlive the demo, [`shop`] has what both
//! shops share, [`by_hand`] and [`semel`] are the two shops, [`audit`] counts.
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
mod folder;
mod load;
mod moment;
mod process;
mod progress;
mod report;
mod semel;
mod shop;
mod show;
mod stage;
mod trouble;

use std::future::Future;

use args::Role;
pub(crate) use args::{ChildArgs, DemoArgs};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use trouble::{Doing as _, Trouble};

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
        shown = Box::pin(show::show(args)) => return shown,
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    out::note("\nstopped before the audit; every process of the demo is gone");
    Ok(Exit::Failed)
}
