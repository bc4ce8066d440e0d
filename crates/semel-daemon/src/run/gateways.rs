//! The gateways: listening from the start, serving as soon as their store is open, and set anew while they run.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::KeyStore;
use semel_core::error::chain;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Handle as Runtime;

use super::Context;
use super::front::Front;
use super::health::Part;
use super::listen::{Bound, PortError};
use super::stores::{Handle, Stores};
use super::threads::{Threads, raise_descriptors};
use crate::gateway::{GatewayConfig, Live, Stats};

/// Connections that may wait in the queue of one socket.
const BACKLOG: u32 = 4_096;

/// All gateways of the daemon.
pub(crate) struct Gateways {
    context: Arc<Context>,
    threads: Threads,
    running: Mutex<BTreeMap<String, Running>>,
    /// Fronts that have ended and may still have something to record.
    ended: Mutex<Vec<Arc<Front>>>,
    /// Stores whose keys are swept.
    swept: Mutex<BTreeSet<String>>,
}

/// One that runs.
struct Running {
    front: Arc<Front>,
    /// As the configuration says it, and as the system chose it.
    listen: SocketAddr,
    address: SocketAddr,
    threads: usize,
    part: Part,
    /// Raised by each configuration, so that an earlier one that waits for its store gives way.
    generation: u64,
}

/// What a configuration asks for, before anything of it is in force.
struct Planned {
    config: GatewayConfig,
    threads: usize,
    sockets: Vec<(TcpListener, usize, Runtime)>,
    address: SocketAddr,
}

/// Why a configuration cannot be put in force while the daemon runs.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// A port.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A thread.
    #[error("no more threads can be had: {0}")]
    Threads(std::io::Error),
    /// Something else, in words.
    #[error("{0}")]
    Other(String),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gateways {
    /// None yet.
    pub(crate) fn new(context: &Arc<Context>) -> Arc<Self> {
        Arc::new(Self {
            context: Arc::clone(context),
            threads: Threads::default(),
            running: Mutex::default(),
            ended: Mutex::default(),
            swept: Mutex::default(),
        })
    }

    /// Takes the ports of what is new, and puts it all in force; what is no longer there ends. Nothing changes when
    /// any of it cannot be had.
    ///
    /// # Errors
    /// See [`Refused`].
    pub(crate) async fn set(
        self: &Arc<Self>,
        configs: &[GatewayConfig],
        stores: &Stores,
    ) -> Result<(), Refused> {
        let mut planned = Vec::with_capacity(configs.len());
        for config in configs {
            planned.push(self.plan(config, stores).await?);
        }
        if !planned.is_empty() {
            raise_descriptors();
        }
        let names: BTreeSet<&str> = configs.iter().map(|config| config.name.as_str()).collect();
        let gone: Vec<(String, Running)> = {
            let mut running = lock(&self.running);
            let gone: Vec<String> = running
                .keys()
                .filter(|name| !names.contains(name.as_str()))
                .cloned()
                .collect();
            gone.into_iter()
                .filter_map(|name| Some((name.clone(), running.remove(&name)?)))
                .collect()
        };
        for (name, running) in gone {
            tracing::info!(gateway = name, "gateway ends");
            running.part.gone();
            self.ends(running.front);
        }
        for plan in planned {
            self.put(plan, stores);
        }
        Ok(())
    }

    async fn plan(&self, config: &GatewayConfig, stores: &Stores) -> Result<Planned, Refused> {
        if !stores.has(&config.store) {
            return Err(Refused::Other(format!(
                "gateway {}: the store {} is new; stores are opened at start, so restart semel for it",
                config.name, config.store
            )));
        }
        let wanted = config.threads.unwrap_or_else(Threads::default_count);
        let (kept, taken) = {
            let running = lock(&self.running);
            let kept = running
                .get(&config.name)
                .filter(|running| running.listen == config.listen.value)
                .map(|running| (running.address, running.threads));
            let other = running.iter().find(|(name, running)| {
                **name != config.name
                    && running.address == config.listen.value
                    && config.listen.value.port() != 0
            });
            (kept, other.map(|(name, _)| name.clone()))
        };
        if let Some(other) = taken {
            return Err(Refused::Other(format!(
                "gateway {}: gateway {other} still listens on {}; change the two in two steps, or restart semel",
                config.name, config.listen.value
            )));
        }
        let field = format!("listen of [[gateway]] {}", config.name);
        let (address, have) = match kept {
            Some(kept) => kept,
            None => {
                // Without the right to share it, so that it is refused while anybody has the port, us included.
                let probe = Bound::bind(config.listen.value, field.clone()).await?;
                (probe.address(), 0)
            }
        };
        let threads = wanted.max(have);
        let runtimes = self.threads.first(threads).map_err(Refused::Threads)?;
        let mut sockets = Vec::new();
        for (n, runtime) in runtimes.into_iter().enumerate().skip(have) {
            // A socket belongs to the runtime that it is made in.
            let listener = {
                let _on = runtime.enter();
                socket(address).map_err(|error| PortError::new(address, &field, &error))?
            };
            sockets.push((listener, n, runtime));
        }
        Ok(Planned {
            config: config.clone(),
            threads,
            sockets,
            address,
        })
    }

    fn put(self: &Arc<Self>, plan: Planned, stores: &Stores) {
        let Planned {
            config,
            threads,
            sockets,
            address,
        } = plan;
        let context = &self.context;
        let mut running = lock(&self.running);
        let kept = running
            .get(&config.name)
            .is_some_and(|running| running.listen == config.listen.value);
        if !kept && let Some(old) = running.remove(&config.name) {
            tracing::info!(gateway = config.name, address = %old.address, "gateway leaves this address");
            self.ends(old.front);
        }
        let entry = running.entry(config.name.clone()).or_insert_with(|| {
            tracing::info!(gateway = config.name, %address, threads, "gateway listens");
            let stats = Stats::new(&config.name, &context.metrics.gateways);
            Running {
                front: Front::new(&config.front, stats, context.stop.child_token()),
                listen: config.listen.value,
                address,
                threads: 0,
                part: context.health.part("gateway", &config.name),
                generation: 0,
            }
        });
        entry.generation += 1;
        entry.threads = threads;
        entry.front.set(&config.front);
        let begun = entry.generation == 1;
        let (front, part, generation) = (Arc::clone(&entry.front), entry.part.clone(), entry.generation);
        drop(running);
        for (listener, thread, runtime) in sockets {
            let serving = Arc::clone(&front).serve(listener, thread, context.tasks.clone());
            context.tasks.spawn_on(serving, &runtime);
        }
        if begun {
            let front = Arc::clone(&front);
            context.tasks.spawn(async move {
                front.stop().cancelled().await;
                front.drain().await;
            });
        }
        let store = stores.handle(&config.store);
        self.sweep(&config.store, stores);
        match store.keys_now() {
            // At once where it can be: the next request meets it.
            Some(store) => match self.build(&config, &store, &front, threads) {
                Ok(()) => part.ready(),
                Err(why) => part.stopped(why),
            },
            None => {
                part.waiting("its store is not open yet");
                let (gateways, stop) = (Arc::clone(self), front.stop().clone());
                context.tasks.spawn(async move {
                    let store = tokio::select! {
                        store = store.keys() => store,
                        () = stop.cancelled() => return,
                    };
                    let newest = lock(&gateways.running)
                        .get(&config.name)
                        .is_some_and(|running| running.generation == generation);
                    if newest {
                        match gateways.build(&config, &store, &front, threads) {
                            Ok(()) => part.ready(),
                            Err(why) => part.stopped(why),
                        }
                    }
                });
            }
        }
    }

    /// Ends a front, and keeps it while anything of it runs.
    fn ends(&self, front: Arc<Front>) {
        front.stop().cancel();
        let mut ended = lock(&self.ended);
        ended.retain(|front| Arc::strong_count(front) > 1 || front.busy());
        ended.push(front);
    }

    /// Ends when every request of every gateway, past ones too, has been carried out and recorded. Called when no
    /// connection is left that could begin another.
    pub(crate) async fn drain(&self) {
        let running: Vec<Arc<Front>> = lock(&self.running)
            .values()
            .map(|running| Arc::clone(&running.front))
            .collect();
        let ended = lock(&self.ended).clone();
        for front in running.into_iter().chain(ended) {
            front.drain().await;
        }
    }

    /// Sweeps a store's keys, unless that is done already.
    pub(crate) fn sweep(&self, name: &str, stores: &Stores) {
        if lock(&self.swept).insert(name.to_owned()) {
            start_sweeper(name, stores.handle(name), &self.context);
        }
    }

    fn build(
        &self,
        config: &GatewayConfig,
        keys: &Arc<dyn KeyStore>,
        front: &Arc<Front>,
        threads: usize,
    ) -> Result<(), String> {
        let stop = front.stop().child_token();
        let live = Live::new(config, keys, front.stats(), threads, stop)?;
        front.put(Arc::new(live));
        Ok(())
    }

    /// Ends the threads, when everything has drained and the stores are closed.
    pub(crate) fn end(&self) {
        self.threads.end();
    }
}

/// A socket that shares its port with those of the other threads: the system spreads connections over them.
fn socket(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// How often keys past their time are swept, and how many at once.
const SWEEP: Duration = Duration::from_secs(10);
const SWEEP_MAX: u32 = 500;

/// Forgets keys past their time in a store. Records read the same, swept or not, so a failure only delays.
fn start_sweeper(name: &str, store: Handle, context: &Arc<Context>) {
    let (name, metrics, stop) = (
        name.to_owned(),
        Arc::clone(&context.metrics),
        context.stop.clone(),
    );
    let sweeping = async move {
        let keys = store.keys().await;
        loop {
            match keys.sweep(SWEEP_MAX).await {
                Ok(report) => {
                    metrics.keys_swept(&name, &report);
                    if report.unknown + report.tombstoned + report.removed >= u64::from(SWEEP_MAX) {
                        tokio::task::yield_now().await;
                        continue;
                    }
                }
                Err(error) => tracing::debug!(store = name, error = chain(&error), "keys were not swept"),
            }
            tokio::time::sleep(SWEEP).await;
        }
    };
    context.tasks.spawn(async move {
        tokio::select! {
            () = sweeping => {}
            () = stop.cancelled() => {}
        }
    });
}
