//! The runtime on which a subcommand does its work.

use crate::exit::{Exit, Failure};
use std::io;
use std::thread;
use tokio::runtime::{Builder, Runtime};

/// Two, so that the renewal does not wait for what a command does, such as a search for processes.
const WORKERS: usize = 2;
/// Those of the runtime, one for the names of hosts, and the one that ends leases in time.
const THREADS: usize = WORKERS + 2;

/// Runs what a subcommand does to its end, on a runtime of its own.
pub(crate) fn on_runtime(
    work: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    let runtime = runtime().map_err(|error| {
        Failure::new(format!(
            "no thread can be made: {error}; raise the limit of processes, which is that of this user (ulimit -u) or of the cgroup (pids.max)"
        ))
    })?;
    let result = runtime.block_on(work);
    // A read of the standard input may be under way forever.
    runtime.shutdown_background();
    result
}

fn runtime() -> io::Result<Runtime> {
    try_threads()?;
    Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()
}

/// Fails where the threads cannot be made, on which the runtime would panic.
fn try_threads() -> io::Result<()> {
    let mut threads = Vec::new();
    let mut result = Ok(());
    while threads.len() < THREADS && result.is_ok() {
        match thread::Builder::new().spawn(thread::park) {
            Ok(thread) => threads.push(thread),
            Err(error) => result = Err(error),
        }
    }
    for thread in threads {
        thread.thread().unpark();
        let _ = thread.join();
    }
    result
}
