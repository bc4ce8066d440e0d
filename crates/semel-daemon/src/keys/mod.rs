//! `semel keys`: keys as an operator sees them, straight from the store; no daemon need run.
//!
//! # Guarantees
//! `list` and `show` change nothing. `settle` and `release` change what they showed and nothing else: the token goes with
//! them, and a key that somebody claimed or settled in between is left alone (exit code 4). `close` goes through a scope until
//! nothing of it can be read any more.
//!
//! # Not guaranteed
//! A durable record of who settled what: that is a line on stderr, for the operator's own log.

mod args;
mod change;
mod show;

use std::path::Path;

use semel_core::error::chain;
use semel_core::{Key, Scope};

use crate::config::store::{DEFAULT, StoreUrl};
use crate::config::{self, StoreConfig};
use crate::exit::Exit;
use crate::store::Store;
use crate::{out, runtime};

pub(crate) use args::KeysArgs;
use args::{KeysCommand, StoreArgs};

/// Does what the arguments ask.
pub(crate) fn run(args: &KeysArgs) -> Exit {
    match &args.command {
        KeysCommand::List(list) => with_store(&list.store, async |store| show::list(store, list).await),
        KeysCommand::Show(one) => with_key(&one.store, &one.key, async |store, key| {
            show::one(store, &key, one.json).await
        }),
        KeysCommand::Settle(settle) => with_key(&settle.store, &settle.key, async |store, key| {
            change::settle(store, &key, settle).await
        }),
        KeysCommand::Close(close) => match scope(close) {
            Ok(scope) => with_store(&close.store, async |store| {
                change::close(store, &scope, &close.person).await
            }),
            Err(message) => {
                out::error(message);
                Exit::Usage
            }
        },
        KeysCommand::Release(release) => with_key(&release.store, &release.key, async |store, key| {
            change::release(store, &key, release).await
        }),
    }
}

fn with_key(args: &StoreArgs, name: &args::KeyArgs, work: impl AsyncFnOnce(&Store, Key) -> Exit) -> Exit {
    match key(name) {
        Ok(key) => with_store(args, async |store| work(store, key).await),
        Err(message) => {
            out::error(message);
            Exit::Usage
        }
    }
}

/// The scope that is meant.
fn scope(args: &args::CloseArgs) -> Result<Scope, String> {
    if let (Some(gateway), Some(principal)) = (&args.gateway, &args.principal) {
        let host = args.host.as_ref().map(|host| host.to_ascii_lowercase());
        return Ok(crate::gateway::scope_of(
            gateway.as_bytes(),
            &show::bytes(principal)?,
            host.as_ref().map(String::as_bytes),
        ));
    }
    let scope = show::bytes(args.scope.as_deref().unwrap_or_default())?;
    Scope::new(scope).map_err(|limit| limit.to_string())
}

fn key(name: &args::KeyArgs) -> Result<Key, String> {
    let scope = Scope::new(show::bytes(&name.scope)?).map_err(|limit| limit.to_string())?;
    Key::new(scope, show::bytes(&name.id)?).map_err(|limit| limit.to_string())
}

fn with_store(args: &StoreArgs, work: impl AsyncFnOnce(&Store) -> Exit) -> Exit {
    let config = match chosen(args) {
        Ok(config) => config,
        Err(message) => {
            out::error(message);
            return Exit::Usage;
        }
    };
    runtime::small(async {
        let store = match open(&config).await {
            Ok(store) => store,
            Err(message) => {
                out::error(format_args!("{} ({}): {message}", config.name, config.url));
                return Exit::Failed;
            }
        };
        let exit = work(&store).await;
        store.close().await;
        exit
    })
}

/// The store that was meant: `--store`, or that of `[api]`, or `[store]`, or the only one there is.
fn chosen(args: &StoreArgs) -> Result<StoreConfig, String> {
    let path: &Path = &args.config.path;
    let config = config::load(path).map_err(|report| report.to_string())?;
    let names: Vec<&str> = config.stores.iter().map(|store| store.name.as_str()).collect();
    let wanted = match (&args.name, &config.api, names.as_slice()) {
        (Some(name), _, _) => name.clone(),
        (None, Some(api), _) => api.store.clone(),
        (None, None, [only]) => (*only).to_owned(),
        (None, None, _) => DEFAULT.to_owned(),
    };
    let found = config.stores.iter().find(|store| store.name == wanted);
    found.cloned().ok_or_else(|| match names.as_slice() {
        [] => format!(
            "{} names no store; add [store] with url = \"sqlite:semel.db\"",
            path.display()
        ),
        names => format!(
            "there is no store `{wanted}`; choose one with --store: {}",
            names.join(", ")
        ),
    })
}

async fn open(config: &StoreConfig) -> Result<Store, String> {
    // Opening would make it.
    if let StoreUrl::Sqlite(path) = &config.url
        && !path.exists()
    {
        return Err("there is no such file; has the daemon run yet?".to_owned());
    }
    let store = Store::open(config).await.map_err(|error| chain(&error))?;
    match store.check_schema(&config.name).await {
        Ok(()) => Ok(store),
        Err(error) => {
            store.close().await;
            Err(chain(&error))
        }
    }
}
