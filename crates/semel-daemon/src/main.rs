//! The binary `semel`: relay, gateway, saga coordinator, check, migrate and demo.
//!
//! Begin at [`cli`] (what can be asked), [`config`] (what `semel.toml` may say) and [`run`] (what runs, and how it
//! starts, fails, recovers and stops).
//!
//! *Invariant:* nothing here decides a protocol. The machines are in `semel-core`, the engines in the pattern crates;
//! this crate wires them to a file, a socket and a signal.

mod api;
mod audit;
mod check;
mod cli;
mod config;
mod conformance;
mod demo;
mod exit;
mod gateway;
mod keys;
mod migrate;
mod out;
mod outbox;
mod run;
mod runtime;
mod sinks;
mod store;

use std::process::ExitCode;

/// A gateway makes and frees dozens of small pieces per request, and the threads that do so meet in glibc's allocator
/// (docs/decisions/0027).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    out::end(cli::main()).into()
}
