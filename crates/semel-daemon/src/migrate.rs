//! `semel migrate`: installs or upgrades Semel's tables.
//!
//! # Guarantees
//! Safe to run again and from several processes at once: each script runs once, in one transaction with its number.
//! A crash leaves the old version or the new one. A schema newer than this build knows is refused and left alone.

use std::path::Path;
use std::time::Duration;

use semel_core::error::chain;

use crate::cli::MigrateArgs;
use crate::config::store::StoreUrl;
use crate::config::{self, StoreConfig};
use crate::exit::Exit;
use crate::store::{self, Store};
use crate::{out, runtime};

/// Migrates the stores that the arguments name.
pub(crate) fn run(args: &MigrateArgs) -> Exit {
    let stores = match stores(args) {
        Ok(stores) => stores,
        Err(message) => {
            out::error(message);
            return Exit::Usage;
        }
    };
    if args.print {
        print(&stores);
        return Exit::Ok;
    }
    runtime::small(async {
        let mut exit = Exit::Ok;
        for config in &stores {
            match migrate(config).await {
                Ok(line) => out::data(line),
                Err(error) => {
                    out::error(format_args!(
                        "{} ({}): {}",
                        config.name,
                        config.url,
                        chain(&error)
                    ));
                    exit = Exit::Failed;
                }
            }
        }
        exit
    })
}

fn stores(args: &MigrateArgs) -> Result<Vec<StoreConfig>, String> {
    if let Some(url) = &args.url {
        let url = StoreUrl::parse(url, Path::new(""))
            .map_err(|trouble| format!("--url: {}; {}", trouble.message, trouble.fix))?;
        return Ok(vec![StoreConfig {
            known_streams_only: None,
            name: config::store::DEFAULT.to_owned(),
            migrate: true,
            url,
            connections_max: 2,
            acquire_timeout: Duration::from_secs(10),
            redis: config::store::RedisSettings::default(),
            quota: None,
        }]);
    }
    let path = args.config.as_deref().unwrap_or(Path::new("semel.toml"));
    let config = config::load(path).map_err(|report| report.to_string())?;
    if config.stores.is_empty() {
        return Err(format!(
            "{} names no store; add [store] with url = \"sqlite:semel.db\", or use --url",
            path.display()
        ));
    }
    Ok(config.stores)
}

/// Prints the script of each kind of store once.
fn print(stores: &[StoreConfig]) {
    let mut seen = Vec::new();
    for config in stores {
        let kind = std::mem::discriminant(&config.url);
        if !seen.contains(&kind) {
            seen.push(kind);
            out::data(store::script(&config.url).trim_end());
        }
    }
}

async fn migrate(config: &StoreConfig) -> Result<String, semel_core::StoreError> {
    if config.url.is_redis() {
        return Ok(format!("{} ({}): nothing to install", config.name, config.url));
    }
    let store = Store::open(config).await?;
    let ran = store.migrate().await;
    let known = store.schema_known();
    store.close().await;
    let did = match ran? {
        0 => "was there already".to_owned(),
        1 => "installed by 1 script".to_owned(),
        n => format!("installed by {n} scripts"),
    };
    Ok(format!(
        "{} ({}): schema version {known} {did}",
        config.name, config.url
    ))
}
