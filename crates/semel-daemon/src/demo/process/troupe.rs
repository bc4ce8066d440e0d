//! All processes of one shop.

use std::collections::HashMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Counts, Keeper, Recipe, Watchdog};
use crate::demo::load::Target;
use crate::demo::moment::Moment;
use crate::demo::trouble::{Doing as _, Trouble};

/// How long the first start of all processes may take.
const READY_MAX: Duration = Duration::from_secs(30);
const READY_PAUSE: Duration = Duration::from_millis(50);

/// One process of a shop, before it runs.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// A strike at one of these hits this process.
    pub(crate) targets: Vec<Target>,
    /// Arguments of this same binary.
    pub(crate) args: Vec<OsString>,
    /// Where it listens.
    pub(crate) port: u16,
}

/// The running processes. Dropping it kills them all.
#[derive(Debug)]
pub(crate) struct Troupe {
    keepers: Vec<Keeper>,
    hits: HashMap<Target, usize>,
    // First the keepers are told not to start anything again, then the watchdog kills: fields drop in this order.
    stop: DropGuard,
    watchdog: Watchdog,
}

impl Troupe {
    /// Starts every part, with its log in `dir`. The folder `temporary` is removed if the demo dies.
    pub(crate) async fn start(
        dir: &Path,
        temporary: Option<&Path>,
        parts: &[Part],
        counts: &Arc<Counts>,
    ) -> Result<Self, Trouble> {
        let logs = dir.join("logs");
        std::fs::create_dir_all(&logs).doing(format!("make {}", logs.display()))?;
        let stop = CancellationToken::new();
        let mut troupe = Self {
            keepers: Vec::new(),
            hits: HashMap::new(),
            stop: stop.clone().drop_guard(),
            watchdog: Watchdog::start(temporary)?,
        };
        for (n, part) in parts.iter().enumerate() {
            let recipe = Recipe {
                name: part.name.to_owned(),
                args: part.args.clone(),
                log: logs.join(format!("{}.log", part.name)),
                group: troupe.watchdog.group(),
            };
            troupe
                .keepers
                .push(Keeper::start(recipe, Arc::clone(counts), stop.clone())?);
            troupe.hits.extend(part.targets.iter().map(|&target| (target, n)));
        }
        for part in parts {
            ready(part, &logs).await?;
        }
        Ok(troupe)
    }

    /// The process that a strike at `target` hits.
    pub(crate) fn hit(&self, target: Target) -> Option<&Keeper> {
        self.hits.get(&target).and_then(|&n| self.keepers.get(n))
    }

    /// Kills all of them, and waits until they are gone.
    pub(crate) async fn stop(self) {
        drop(self.stop);
        drop(self.watchdog);
        for keeper in self.keepers {
            keeper.ended().await;
        }
    }
}

async fn ready(part: &Part, logs: &Path) -> Result<(), Trouble> {
    let address = SocketAddr::from(([127, 0, 0, 1], part.port));
    let begun = Moment::now();
    loop {
        match TcpStream::connect(address).await {
            Ok(_) => return Ok(()),
            Err(_) if begun.elapsed() < READY_MAX => sleep(READY_PAUSE).await,
            Err(error) => {
                let log =
                    std::fs::read_to_string(logs.join(format!("{}.log", part.name))).unwrap_or_default();
                let last = log.lines().next_back().unwrap_or("its log is empty").to_owned();
                return Err(Trouble::new(
                    format!("start {} within {} s", part.name, READY_MAX.as_secs()),
                    format!("{error}; its last words: {last}"),
                ));
            }
        }
    }
}
