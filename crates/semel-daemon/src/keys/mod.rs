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
use crate::config::{self, Config, StoreConfig};
use crate::exit::Exit;
use crate::store::Store;
use crate::{out, runtime};

pub(crate) use args::KeysArgs;
use args::KeysCommand;
pub(crate) use args::{PersonArgs, StoreArgs};
pub(crate) use change::asked;
pub(crate) use show::{bytes, text};

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
            &bytes(principal)?,
            host.as_ref().map(String::as_bytes),
        ));
    }
    let scope = bytes(args.scope.as_deref().unwrap_or_default())?;
    Scope::new(scope).map_err(|limit| limit.to_string())
}

fn key(name: &args::KeyArgs) -> Result<Key, String> {
    let scope = Scope::new(bytes(&name.scope)?).map_err(|limit| limit.to_string())?;
    Key::new(scope, bytes(&name.id)?).map_err(|limit| limit.to_string())
}

fn with_store(args: &StoreArgs, work: impl AsyncFnOnce(&Store) -> Exit) -> Exit {
    match chosen(args, |config| config.api.as_ref().map(|api| api.store.clone())) {
        Ok(config) => with_store_of(&config, work),
        Err(message) => {
            out::error(message);
            Exit::Usage
        }
    }
}

/// Opens a store that is there and has the right schema, works on it, and closes it.
pub(crate) fn with_store_of(config: &StoreConfig, work: impl AsyncFnOnce(&Store) -> Exit) -> Exit {
    runtime::small(async {
        let store = match open(config).await {
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

/// The store that was meant: `--store`, or the one that is usual here, or `[store]`, or the only one there is.
pub(crate) fn chosen(
    args: &StoreArgs,
    usual: impl FnOnce(&Config) -> Option<String>,
) -> Result<StoreConfig, String> {
    let path: &Path = &args.config.path;
    let config = config::load(path).map_err(|report| report.to_string())?;
    let names: Vec<&str> = config.stores.iter().map(|store| store.name.as_str()).collect();
    let wanted = match (&args.name, usual(&config), names.as_slice()) {
        (Some(name), _, _) => name.clone(),
        (None, Some(usual), _) => usual,
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

/// Opens a store, if it is there and has the right schema.
pub(crate) async fn open(config: &StoreConfig) -> Result<Store, String> {
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
