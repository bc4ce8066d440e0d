//! One child process and its life: started, struck, started again.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::watchdog::this_program;
use crate::demo::load::Blow;
use crate::demo::moment::Moment;
use crate::demo::trouble::{Doing as _, Trouble};

/// How long a process that ended by itself stays down.
const RESTART_AFTER: Duration = Duration::from_millis(200);
/// Blows that may wait for one process; more are dropped, as are those that meet a dead one.
const BLOWS_MAX: usize = 16;

/// How to start one process.
#[derive(Debug, Clone)]
pub(crate) struct Recipe {
    /// For logs, such as `orders-1`.
    pub(crate) name: String,
    /// Arguments of this same binary.
    pub(crate) args: Vec<OsString>,
    /// Standard output and error are appended here.
    pub(crate) log: PathBuf,
    /// The watchdog's process group.
    pub(crate) group: i32,
}

/// What happened to the processes of one shop, counted where it was done.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) kills: AtomicU64,
    pub(crate) pauses: AtomicU64,
    pub(crate) restarts: AtomicU64,
    /// Processes that ended although nobody killed them: a bug, or a port that was taken.
    pub(crate) fell_over: AtomicU64,
}

/// A process that is kept running.
#[derive(Debug)]
pub(crate) struct Keeper {
    name: String,
    blows: mpsc::Sender<Blow>,
    up: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Keeper {
    /// Starts the process and keeps it running until `stop`; then it is killed and reaped.
    pub(crate) fn start(
        recipe: Recipe,
        counts: Arc<Counts>,
        stop: CancellationToken,
    ) -> Result<Self, Trouble> {
        let (blows, orders) = mpsc::channel(BLOWS_MAX);
        let up = Arc::new(AtomicBool::new(true));
        let first = spawn(&recipe)?;
        let name = recipe.name.clone();
        let life = Life {
            recipe,
            counts,
            stop,
            up: Arc::clone(&up),
        };
        let task = tokio::spawn(life.live(first, orders));
        Ok(Self {
            name,
            blows,
            up,
            task,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Strikes it. A blow at a process that is already down does nothing and is not counted.
    pub(crate) fn strike(&self, blow: Blow) {
        if self.up() {
            // Full: it is being struck often enough.
            let _ = self.blows.try_send(blow);
        }
    }

    /// Whether it runs and is not stopped. A fresh start counts as running.
    pub(crate) fn up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    /// Waits until the process is dead and reaped. Only after `stop`.
    pub(crate) async fn ended(self) {
        // The task does not panic; were it to, the watchdog kills the process all the same.
        let _ = self.task.await;
    }
}

struct Life {
    recipe: Recipe,
    counts: Arc<Counts>,
    stop: CancellationToken,
    up: Arc<AtomicBool>,
}

/// A running child and the pipe whose end tells it that the demo is gone.
struct Running {
    child: Child,
    _pipe: Option<ChildStdin>,
}

fn spawn(recipe: &Recipe) -> Result<Running, Trouble> {
    let doing = || format!("start {}", recipe.name);
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&recipe.log)
        .doing(doing())?;
    let errors = log.try_clone().doing(doing())?;
    let mut command = Command::from(this_program()?);
    command
        .args(&recipe.args)
        .process_group(recipe.group)
        .stdin(Stdio::piped())
        .stdout(log)
        .stderr(errors)
        .kill_on_drop(true);
    let mut child = command.spawn().doing(doing())?;
    // `Child::wait` would close the pipe.
    let pipe = child.stdin.take();
    Ok(Running { child, _pipe: pipe })
}

enum Ended {
    ByItself(Option<ExitStatus>),
    Killed(Duration),
    Stop,
}

impl Life {
    async fn live(self, first: Running, mut blows: mpsc::Receiver<Blow>) {
        let mut running = first;
        loop {
            let down = match self.run(&mut running, &mut blows).await {
                Ended::Stop => {
                    // The watchdog kills it as well; this is for a watchdog that somebody has killed.
                    let _ = running.child.kill().await;
                    return;
                }
                Ended::Killed(down) => down,
                Ended::ByItself(status) => {
                    self.counts.fell_over.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(process = %self.recipe.name, ?status, "ended by itself");
                    RESTART_AFTER
                }
            };
            match self.again(down, &mut blows).await {
                Some(next) => running = next,
                None => return,
            }
        }
    }

    /// One life of the process, from its start to its end.
    async fn run(&self, running: &mut Running, blows: &mut mpsc::Receiver<Blow>) -> Ended {
        let mut paused_until: Option<Moment> = None;
        loop {
            self.up.store(paused_until.is_none(), Ordering::Release);
            let blow = tokio::select! {
                // First: at the end everything is killed, which is no news.
                biased;
                () = self.stop.cancelled() => return Ended::Stop,
                ended = running.child.wait() => return Ended::ByItself(ended.ok()),
                () = until(paused_until) => {
                    signal(&running.child, Signal::CONT);
                    paused_until = None;
                    continue;
                }
                blow = blows.recv() => blow,
            };
            match blow {
                None => return Ended::Stop,
                Some(Blow::Pause { length }) => {
                    signal(&running.child, Signal::STOP);
                    self.counts.pauses.fetch_add(1, Ordering::Relaxed);
                    paused_until = Some(Moment::now().plus(length));
                }
                Some(Blow::Kill { down }) => {
                    self.up.store(false, Ordering::Release);
                    // SIGKILL, and it works on a stopped process too.
                    let killed = running.child.kill().await;
                    if let Err(error) = killed {
                        tracing::warn!(process = %self.recipe.name, %error, "could not be killed");
                    }
                    self.counts.kills.fetch_add(1, Ordering::Relaxed);
                    return Ended::Killed(down);
                }
            }
        }
    }

    /// Starts it again after `down`; `None` when the demo stops first.
    async fn again(&self, down: Duration, blows: &mut mpsc::Receiver<Blow>) -> Option<Running> {
        self.up.store(false, Ordering::Release);
        let mut wait = down;
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return None,
                () = sleep(wait) => {}
            }
            while blows.try_recv().is_ok() {}
            match spawn(&self.recipe) {
                Ok(running) => {
                    self.counts.restarts.fetch_add(1, Ordering::Relaxed);
                    return Some(running);
                }
                Err(error) => {
                    tracing::warn!(process = %self.recipe.name, %error, "not started again yet");
                    wait = RESTART_AFTER;
                }
            }
        }
    }
}

async fn until(moment: Option<Moment>) {
    match moment {
        Some(moment) => moment.reached().await,
        None => std::future::pending().await,
    }
}

/// Signals a child that has not been reaped, so that its process id is still its own.
fn signal(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    if let Some(pid) = pid {
        // It fails only for a process that has just died, which `wait` reports next.
        let _ = kill_process(pid, signal);
    }
}
