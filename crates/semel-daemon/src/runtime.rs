//! The async runtimes: few threads, because most of the time there is nothing to do.

use std::future::Future;

use crate::exit::Exit;
use crate::out;

/// Runs a command that needs one thread.
pub(crate) fn small(work: impl Future<Output = Exit>) -> Exit {
    start(tokio::runtime::Builder::new_current_thread(), work)
}

/// Runs the daemon: two threads, which is more than its own work needs; the stores and brokers do the rest.
pub(crate) fn daemon(work: impl Future<Output = Exit>) -> Exit {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).thread_name("semel");
    start(builder, work)
}

fn start(mut builder: tokio::runtime::Builder, work: impl Future<Output = Exit>) -> Exit {
    match builder.enable_all().build() {
        Ok(runtime) => {
            let exit = runtime.block_on(work);
            // Tasks that outlived their drain are cut off here; whatever they left is what a crash would leave.
            runtime.shutdown_timeout(std::time::Duration::from_millis(100));
            exit
        }
        Err(error) => {
            out::error(format_args!("the async runtime cannot start: {error}"));
            Exit::Failed
        }
    }
}
