//! `semel audit`: compares what was promised with what happened.
//!
//! `outbox`: the rows of a stream that are kept, with what arrived at the other side, in the order of arrival: what is missing,
//! came twice, came out of its key's order or came with other data ([`compare`]).
//!
//! # Limits
//! Some 400 bytes of memory, and the key, for each row that is compared; nothing for what arrived. At most
//! [`ROWS_MAX`] rows; `--after` and `--topic` choose a part.

mod args;
mod compare;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(any(feature = "nats", feature = "redis"))]
mod logs;
mod read;
mod source;

use std::io::BufRead;

use semel_core::error::chain;
use semel_core::store::{OutboxStore, no_desk};

use crate::exit::Exit;
use crate::keys::{chosen, with_store_of};
use crate::out;
use args::{AuditCommand, OutboxAuditArgs};
use compare::{Audit, Comparison, Expected};
use source::Source;

pub(crate) use args::AuditArgs;

/// Rows read at once.
const PAGE: u32 = 1_000;
/// Rows compared at most.
const ROWS_MAX: usize = 10_000_000;

/// Does what the arguments ask.
pub(crate) fn run(args: &AuditArgs) -> Exit {
    let AuditCommand::Outbox(args) = &args.command;
    let config = chosen(&args.store, |config| {
        config.relays.first().map(|relay| relay.store.clone())
    });
    let config = match config {
        Ok(config) => config,
        Err(message) => {
            out::error(message);
            return Exit::Usage;
        }
    };
    let source = match source::chosen(args) {
        Ok(source) => source,
        Err(message) => {
            out::error(message);
            return Exit::Usage;
        }
    };
    // The rows are read first: what was sent by then has arrived, and what is sent meanwhile waits, for all they say.
    with_store_of(&config, async |store| {
        let outbox = match store.outbox() {
            Ok(outbox) => outbox,
            Err(error) => {
                out::error(chain(&error));
                return Exit::Usage;
            }
        };
        let comparison = match expected(&*outbox, args).await {
            Ok(expected) => Comparison::new(expected),
            Err(message) => {
                out::error(message);
                return Exit::Failed;
            }
        };
        let compared = match source {
            Source::Lines => arrived(args, comparison).map_err(|message| (Exit::Usage, message)),
            #[cfg(feature = "kafka")]
            Source::Kafka(brokers) => kafka::arrived(args, brokers, comparison).await.map_err(failed),
            #[cfg(feature = "nats")]
            Source::Nats(config) => logs::nats(args, &config, comparison).await.map_err(failed),
            #[cfg(feature = "redis")]
            Source::Redis(config) => logs::redis(args, &config, comparison).await.map_err(failed),
        };
        match compared {
            Ok(comparison) => show(&comparison.done(), args),
            Err((exit, message)) => {
                out::error(message);
                exit
            }
        }
    })
}

#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
const fn failed(message: String) -> (Exit, String) {
    (Exit::Failed, message)
}

async fn expected(outbox: &dyn OutboxStore, args: &OutboxAuditArgs) -> Result<Vec<Expected>, String> {
    let desk = outbox.desk().ok_or_else(|| no_desk(outbox.capabilities().name));
    let desk = desk.map_err(|error| chain(&error))?;
    let (mut expected, mut after) = (Vec::new(), args.after);
    loop {
        let rows = desk.kept(&args.stream, after, PAGE).await;
        let rows = rows.map_err(|error| chain(&error))?;
        let last = rows.len() < PAGE as usize;
        after = rows.last().map_or(after, |row| row.row);
        let wanted = rows
            .into_iter()
            .filter(|row| args.topic.as_ref().is_none_or(|topic| row.topic == *topic));
        expected.extend(wanted.map(Expected::of));
        if last {
            return Ok(expected);
        }
        if expected.len() > ROWS_MAX {
            return Err(format!(
                "more than {ROWS_MAX} rows are kept; compare a part of them: --after ROW, --topic TOPIC"
            ));
        }
    }
}

fn arrived(args: &OutboxAuditArgs, mut comparison: Comparison) -> Result<Comparison, String> {
    let mut lines = |name: &str, input: &mut dyn BufRead| {
        let read = read::arrivals(input, |arrival| comparison.arrive(arrival));
        read.map_err(|error| format!("{name}: {error}"))
    };
    match &args.arrived {
        Some(path) if path.as_os_str() != "-" => {
            let name = path.display().to_string();
            let file = std::fs::File::open(path).map_err(|error| format!("{name}: {error}"))?;
            lines(&name, &mut std::io::BufReader::new(file))?;
        }
        _ => lines("stdin", &mut std::io::stdin().lock())?,
    }
    Ok(comparison)
}

fn show(audit: &Audit, args: &OutboxAuditArgs) -> Exit {
    if args.json {
        out::data(audit.json(args.show));
    } else {
        out::data(audit.text(args.show));
    }
    if audit.clean() { Exit::Ok } else { Exit::Failed }
}
