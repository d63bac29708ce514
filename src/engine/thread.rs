//! Starts the threads of the engine.

use crate::error::{Error, ErrorKind, Fate, Result};
use crate::trace;

/// Runs `work` on its own thread, with a runtime.
pub(super) fn spawn_thread(name: &str, work: impl AsyncFnOnce() + Send + 'static) -> Result<()> {
    let no_thread = |error: std::io::Error| {
        Error::new(ErrorKind::Unavailable, "failed to start the engine's thread")
            .with_fate(Fate::NotExecuted)
            .with_source(error)
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
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
