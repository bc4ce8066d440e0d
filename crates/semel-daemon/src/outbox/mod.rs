//! `semel outbox`: the outbox as an operator sees it, straight from the store; no daemon need run.
//!
//! # Guarantees
//! `list`, `why`, `parked list`, `show` and `log`, and whatever has `--dry-run`, change nothing. A change is kept with who
//! and why, in the transaction that makes it. What was set aside is sent, and forgotten, by its shard's owner alone: `retry`
//! and `drop` are marks that the owner carries out (rule O15).

mod again;
mod args;
mod change;
mod partition;
mod show;
mod time;
mod why;

use semel_core::error::chain;
use semel_core::store::{OutboxStore, no_desk};

use crate::exit::Exit;
use crate::keys::{StoreArgs, chosen, with_store_of};
use crate::store::Store;
use crate::{config, out};

pub(crate) use args::OutboxArgs;
use args::{OutboxCommand, ParkedCommand};
#[cfg(feature = "postgres")]
pub(crate) use show::in_partitions;

/// Does what the arguments ask.
pub(crate) fn run(args: &OutboxArgs) -> Exit {
    match &args.command {
        OutboxCommand::List(look) => on_desk(&look.store, async |store| show::shards(store, look.json).await),
        OutboxCommand::Why(look) => why::run(look),
        OutboxCommand::Parked(ParkedCommand::List(list)) => {
            on_desk(&list.look.store, async |store| show::parked(store, list).await)
        }
        OutboxCommand::Parked(ParkedCommand::Show(one)) => on_desk(&one.look.store, async |store| {
            show::one(store, one.row, one.look.json).await
        }),
        OutboxCommand::Parked(ParkedCommand::Log(log)) => {
            on_desk(&log.look.store, async |store| show::log(store, log).await)
        }
        OutboxCommand::Parked(ParkedCommand::Edit(edit)) => {
            on_desk(&edit.store, async |store| change::edit(store, edit).await)
        }
        OutboxCommand::Parked(ParkedCommand::Retry(retry)) => {
            on_desk(&retry.store, async |store| change::retry(store, retry).await)
        }
        OutboxCommand::Parked(ParkedCommand::Drop(drop)) => {
            on_desk(&drop.store, async |store| change::drop(store, drop).await)
        }
        OutboxCommand::Replay(replay) => on_desk(&replay.look.store, async |store| {
            again::replay(store, replay).await
        }),
        OutboxCommand::Rescan(rescan) => on_desk(&rescan.look.store, async |store| {
            again::rescan(store, rescan).await
        }),
        OutboxCommand::Partition(change) => partition::run(change),
    }
}

/// The store whose outbox is meant: `--store`, or that of the relays, or `[store]`, or the only one there is.
fn meant(args: &StoreArgs) -> Result<config::StoreConfig, String> {
    chosen(args, |config| {
        config.relays.first().map(|relay| relay.store.clone())
    })
}

/// Works on an outbox that has a desk.
fn on_desk(args: &StoreArgs, work: impl AsyncFnOnce(&dyn OutboxStore) -> Exit) -> Exit {
    let config = match meant(args) {
        Ok(config) => config,
        Err(message) => {
            out::error(message);
            return Exit::Usage;
        }
    };
    with_store_of(&config, async |store: &Store| {
        let outbox = match store.outbox() {
            Ok(outbox) => outbox,
            Err(error) => {
                out::error(chain(&error));
                return Exit::Usage;
            }
        };
        if outbox.desk().is_none() {
            out::error(chain(&no_desk(outbox.capabilities().name)));
            return Exit::Failed;
        }
        work(&*outbox).await
    })
}

/// Reports an error of the store.
fn failed(error: &semel_core::StoreError) -> Exit {
    out::error(chain(error));
    Exit::Failed
}
