//! Threads that serve gateways, each with a runtime of its own: what a request touches stays on one core.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

/// The threads. They live until the process ends, because connections to stores may have been opened on them.
#[derive(Default)]
pub(crate) struct Threads {
    all: Mutex<Vec<Thread>>,
    end: CancellationToken,
}

struct Thread {
    runtime: Handle,
    thread: JoinHandle<()>,
}

impl Threads {
    /// Threads of a gateway that does not say how many: one per core.
    pub(crate) fn default_count() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    /// The runtimes of the first `count` threads; starts those that are missing.
    ///
    /// # Errors
    /// The system gives no more threads.
    pub(crate) fn first(&self, count: usize) -> io::Result<Vec<Handle>> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        while all.len() < count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            let end = self.end.clone();
            let thread = std::thread::Builder::new()
                .name(format!("gateway-{}", all.len()))
                .spawn(move || runtime.block_on(end.cancelled()))?;
            all.push(Thread {
                runtime: handle,
                thread,
            });
        }
        Ok(all
            .iter()
            .take(count)
            .map(|thread| thread.runtime.clone())
            .collect())
    }

    /// Ends them, with whatever still runs there.
    pub(crate) fn end(&self) {
        self.end.cancel();
        let all = std::mem::take(&mut *self.all.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in all {
            // A thread that panicked has said so.
            let _ = thread.thread.join();
        }
    }
}

/// Lets this process have as many connections as the system allows it: the usual limit is 1024.
pub(crate) fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::debug!(error = %error, "the limit of open files stays as it is");
    }
}
