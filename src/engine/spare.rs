//! A watchdog for engines whose runtime has ended.
//!
//! An engine without its own threads runs on a runtime of the user. When that ends, a call that
//! waits or holds on another runtime restarts the engine there. A holder that has only its token
//! does not: it makes no call. So until the engine runs again, one thread of the process fires the
//! tokens at `C`. It renews nothing: the store may live on the runtime that has ended.

use super::core::Core;
use super::panic_guard::guarded;
use super::thread::spawn_thread;
use super::watchdog;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use tokio::sync::mpsc;

static VACANT: OnceLock<Option<mpsc::UnboundedSender<Arc<Core>>>> = OnceLock::new();

/// Starts the thread, once in a process.
pub(super) fn start() {
    VACANT.get_or_init(|| {
        let (sender, vacant) = mpsc::unbounded_channel();
        spawn_thread("leasehold-spare", async move || run(vacant).await).ok().map(|()| sender)
    });
}

/// Fires the tokens of an engine until it runs again. Returns false if the thread could not be
/// started.
pub(super) fn watch(core: &Arc<Core>) -> bool {
    let sender = VACANT.get().and_then(Option::as_ref);
    sender.is_some_and(|sender| sender.send(Arc::clone(core)).is_ok())
}

async fn run(mut vacant: mpsc::UnboundedReceiver<Arc<Core>>) {
    while let Some(core) = vacant.recv().await {
        tokio::spawn(async move { until_taken(&core).await });
    }
}

async fn until_taken(core: &Arc<Core>) {
    let mut taken = pin!(core.taken.notified());
    taken.as_mut().enable();
    if core.is_running() {
        return;
    }
    tokio::select! {
        biased;
        () = core.stop.cancelled() => {}
        () = taken => {}
        () = guarded(core, watchdog::run(core)) => {}
    }
}
