//! `semel audit`: compares what was promised with what happened.
//!
//! `outbox`: the rows of a stream that are kept, with what arrived at the other side, in the order of arrival: what is missing,
//! came twice, came out of its key's order or came with other data ([`compare`]).

mod args;
mod compare;
mod read;

use std::io::BufRead;

use semel_core::error::chain;
use semel_core::store::{OutboxStore, no_desk};

use crate::exit::Exit;
use crate::keys::{chosen, with_store_of};
use crate::out;
use args::{AuditCommand, OutboxAuditArgs};
use compare::{Arrival, Audit, Expected, compare};

pub(crate) use args::AuditArgs;

/// Rows read at once.
const PAGE: u32 = 1_000;

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
    // What arrived is read first: what is sent meanwhile is then only unknown to it, never missing by mistake, because only
    // rows that were settled before it was read are compared.
    with_store_of(&config, async |store| {
        let outbox = match store.outbox() {
            Ok(outbox) => outbox,
            Err(error) => {
                out::error(chain(&error));
                return Exit::Usage;
            }
        };
        let expected = match expected(&*outbox, args).await {
            Ok(expected) => expected,
            Err(error) => {
                out::error(chain(&error));
                return Exit::Failed;
            }
        };
        let arrived = match arrived(args) {
            Ok(arrived) => arrived,
            Err(message) => {
                out::error(message);
                return Exit::Usage;
            }
        };
        show(&compare(&expected, &arrived), args)
    })
}

async fn expected(
    outbox: &dyn OutboxStore,
    args: &OutboxAuditArgs,
) -> Result<Vec<Expected>, semel_core::StoreError> {
    let desk = outbox.desk().ok_or_else(|| no_desk(outbox.capabilities().name))?;
    let (mut expected, mut after) = (Vec::new(), args.after);
    loop {
        let rows = desk.kept(&args.stream, after, PAGE).await?;
        let last = rows.len() < PAGE as usize;
        after = rows.last().map_or(after, |row| row.row);
        let wanted = rows
            .into_iter()
            .filter(|row| args.topic.as_ref().is_none_or(|topic| row.topic == *topic));
        expected.extend(wanted.map(Expected::of));
        if last {
            return Ok(expected);
        }
    }
}

fn arrived(args: &OutboxAuditArgs) -> Result<Vec<Arrival>, String> {
    let lines = |name: &str, input: &mut dyn BufRead| {
        read::arrivals(input).map_err(|error| format!("{name}: {error}"))
    };
    if args.arrived.as_os_str() == "-" {
        return lines("stdin", &mut std::io::stdin().lock());
    }
    let file =
        std::fs::File::open(&args.arrived).map_err(|error| format!("{}: {error}", args.arrived.display()))?;
    lines(
        &args.arrived.display().to_string(),
        &mut std::io::BufReader::new(file),
    )
}

fn show(audit: &Audit, args: &OutboxAuditArgs) -> Exit {
    if args.json {
        out::data(audit.json(args.show));
    } else {
        out::data(audit.text(args.show));
    }
    if audit.clean() { Exit::Ok } else { Exit::Failed }
}
