//! Starts the threads of the engine.

use crate::error::{Error, ErrorKind, Fate, Result};
use crate::util::trace;
use std::time::Duration;

/// The most threads of such a runtime for calls that block: lookups of host names. A name server that hangs keeps one
/// for each lookup, until the system gives up.
const BLOCKING_THREADS: usize = 64;
/// Threads stay once they are made: connecting again must need no new thread, which a process at its limit could not have.
const KEPT: Duration = Duration::from_secs(u32::MAX as u64);

/// Runs `work` on its own thread, with a runtime.
pub(super) fn spawn_thread(name: &str, work: impl AsyncFnOnce() + Send + 'static) -> Result<()> {
    let no_thread = |error: std::io::Error| {
        Error::new(ErrorKind::Unavailable, "failed to start the engine's thread")
            .with_fate(Fate::NotExecuted)
            .with_source(error)
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(KEPT)
        .build()
        .map_err(no_thread)?;
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            trace::start();
            // A client that logs must not delay renewals.
            let _lines = trace::catch();
            runtime.block_on(work());
        })
        .map_err(no_thread)?;
    Ok(())
}
