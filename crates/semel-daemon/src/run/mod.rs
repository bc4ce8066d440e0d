//! `semel run`: starts what the configuration names, keeps it going, stops it when told to.
//!
//! # Guarantees
//! - A role that fails is started again with back-off; one that needs a person (a wrong schema, another database than
//!   before) stays stopped, and the others go on. `/readyz` names each with its reason.
//! - SIGTERM and SIGINT stop accepting, let what runs end for at most `stop_ms_max`, then exit with 0; a second signal
//!   exits at once. Either way the state is what the stores hold: being cut off here is a crash like any other.
//!
//! - SIGHUP reads the file again and puts its gateways in force without dropping a request (`reload.rs`).
//!
//! # Not guaranteed
//! That two daemons with the same configuration share work evenly: leases decide who does what.

mod api;
pub(crate) mod browser;
mod front;
mod gateways;
mod health;
mod listen;
mod log;
pub(crate) mod metrics;
mod problem;
mod relays;
mod reload;
mod sagas;
mod server;
mod signals;
mod stores;
mod supervise;
mod threads;

use std::collections::BTreeSet;
use std::sync::Arc;

use semel_client::Destinations;
use semel_core::SystemClock;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cli::RunArgs;
use crate::config::{self, Config};
use crate::exit::Exit;
use crate::{out, runtime};

use api::KeyApi;
use gateways::Gateways;
use health::Health;
use listen::Bound;
use metrics::Metrics;
use stores::Stores;

/// How long closing the stores may take. Nothing depends on it: what is durable is durable.
const CLOSE: std::time::Duration = std::time::Duration::from_secs(1);

/// What every role is handed.
pub(crate) struct Context {
    /// Told to stop; roles drain then.
    pub(crate) stop: CancellationToken,
    /// Every task of the daemon, waited for at the end.
    pub(crate) tasks: TaskTracker,
    /// What `/readyz` says.
    pub(crate) health: Health,
    /// What `/metrics` says.
    pub(crate) metrics: Arc<Metrics>,
    /// What the webhooks of all relays ask of each host.
    pub(crate) destinations: Destinations,
}

/// Runs until told to stop.
pub(crate) fn run(args: &RunArgs) -> Exit {
    let config = match config::load(&args.config.path) {
        Ok(config) => config,
        Err(report) => {
            out::error(report);
            return Exit::Usage;
        }
    };
    if let Err(message) = log::init(args) {
        out::error(message);
        return Exit::Usage;
    }
    tell_doubts(&config);
    runtime::daemon(serve(config, args.config.path.clone()))
}

/// Logs what a file says in vain, or perhaps not as it was meant.
fn tell_doubts(config: &Config) {
    for doubt in &config.doubts {
        tracing::warn!(line = doubt.line, "{}; {}", doubt.message, doubt.fix);
    }
}

async fn serve(mut config: Config, path: std::path::PathBuf) -> Exit {
    let context = Arc::new(Context {
        stop: CancellationToken::new(),
        tasks: TaskTracker::new(),
        health: Health::default(),
        metrics: Arc::new(Metrics::new()),
        destinations: Destinations::new(config.destinations, Arc::new(SystemClock)),
    });
    // Ports first: a second daemon by mistake should say so before it touches anything.
    let server = match Bound::bind(config.server.listen, "[server] listen").await {
        Ok(bound) => bound,
        Err(error) => return refuse(&error),
    };
    let signals = match signals::watch(context.stop.clone()) {
        Ok(signals) => signals,
        Err(error) => return refuse(&error),
    };

    let mut hang_up = match signals::hang_up() {
        Ok(hang_up) => hang_up,
        Err(error) => return refuse(&error),
    };

    let stores = Stores::new(&config.stores);
    let gateways = Gateways::new(&context);
    if let Err(error) = gateways.set(&config.gateways, &stores).await {
        return refuse(&error);
    }

    let api = match &config.api {
        None => None,
        Some(api) => match KeyApi::bind(api.clone(), stores.handle(&api.store)).await {
            Ok(api) => Some(api),
            Err(error) => return refuse(&error),
        },
    };

    let nothing = config.relays.is_empty() && config.gateways.is_empty();
    if nothing && config.api.is_none() && config.saga.is_none() {
        tracing::warn!(
            "the configuration names no relay, no gateway, no [api] and no [saga]: there is nothing to do"
        );
    }
    stores.open(&context);
    if let Some(api) = &config.api {
        gateways.sweep(&api.store, &stores);
    }
    let api = api.map(|api| api.start(&context));
    for name in config
        .relays
        .iter()
        .map(|relay| &relay.store)
        .collect::<BTreeSet<_>>()
    {
        relays::start_counting(name, &stores.handle(name), &context);
    }
    for relay in &config.relays {
        let of_store = config.stores.iter().find(|store| store.name == relay.store);
        let known_only = of_store.and_then(|store| store.known_streams_only);
        relays::start(relay, known_only, &stores.handle(&relay.store), &context);
    }
    tracing::info!(address = %server.address(), version = env!("CARGO_PKG_VERSION"), "semel listens");
    let sagas = config.saga.as_ref().map(|saga| {
        let store = stores.handle(&saga.store);
        sagas::start(saga, &config.server, store, &context)
    });
    server::start(server, &config.server, sagas, &context);

    loop {
        tokio::select! {
            () = context.stop.cancelled() => break,
            Some(()) = hang_up.recv() => {
                config = reload::reload(&path, config, &gateways, api.as_deref(), &stores, &context).await;
            }
        }
    }
    tracing::info!("stopping");
    context.tasks.close();
    let ending = async {
        context.tasks.wait().await;
        // A connection may have begun a request after its gateway was drained.
        gateways.drain().await;
    };
    if tokio::time::timeout(config.server.stop_max, ending)
        .await
        .is_err()
    {
        tracing::warn!(
            stop_ms_max = u64::try_from(config.server.stop_max.as_millis()).unwrap_or(u64::MAX),
            unfinished = context.tasks.len(),
            "cut off what did not end in time; it goes on after the next start"
        );
    }
    if tokio::time::timeout(CLOSE, stores.close()).await.is_err() {
        tracing::debug!("connections to the stores were not closed in time");
    }
    gateways.end();
    signals.abort();
    tracing::info!("stopped");
    Exit::Ok
}

fn refuse(error: &dyn std::error::Error) -> Exit {
    tracing::error!("{}", semel_core::error::chain(error));
    Exit::Failed
}
