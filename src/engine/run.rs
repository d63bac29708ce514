//! Runs the engine on its own threads or on the runtime of a caller.

use super::hold::handoff;
use super::machine::timing::Timing;
use super::panic_guard::guarded;
use super::shared::core::{Callbacks, Core, Settings, WorkQueues};
use super::shared::lifecycle::Stage;
use super::thread::spawn_thread;
use super::{background, fallback, watchdog};
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::store::Store;
use crate::util::trace;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::runtime::Handle;
use uuid::Uuid;

/// What the data of an engine calls in the rooms above it.
const CALLBACKS: Callbacks = Callbacks { start, leave: handoff::leave_in_background };

/// Starts watchdog and worker on this runtime, unless another task runs them. Returns false if this runtime has ended.
fn start(core: &Arc<Core>) -> bool {
    if let Ok(runtime) = Handle::try_current()
        && !core.life.is_ended()
        && let Some(driver) = Driver::take(core)
    {
        *core.runtime.lock() = Some(runtime.clone());
        runtime.spawn(driver.run());
        // A runtime that has ended drops a spawned task at once.
        return core.is_running();
    }
    true
}

/// Keeps the engine running. Dropping the last reference ends it.
pub(crate) struct Engine {
    pub(crate) core: Arc<Core>,
}

impl Engine {
    /// Creates the data of the engine of a manager with this id. With `on_caller`, the engine runs on the runtime of its
    /// callers.
    pub(crate) fn core(
        manager: Uuid,
        store: Arc<dyn Store>,
        timing: Timing,
        settings: Settings,
        on_caller: bool,
    ) -> Arc<Core> {
        Core::new(manager, store, timing, settings, on_caller, CALLBACKS)
    }

    /// Returns an engine that runs on the runtime of its callers or on its own threads.
    pub(crate) fn new(core: Arc<Core>) -> Result<Arc<Self>> {
        if core.on_caller {
            return Ok(Self::on_caller(core));
        }
        let work = Arc::clone(&core);
        spawn_thread("leasehold-io", async move || Self::work_apart(work).await)?;
        Self::watch_apart(core)
    }

    /// Returns an engine that runs on the runtime of its callers.
    pub(crate) fn on_caller(core: Arc<Core>) -> Arc<Self> {
        trace::start();
        core.ensure_running();
        fallback::watch(&core);
        Arc::new(Self { core })
    }

    /// Returns an engine on its own threads, where `make` also creates the store.
    pub(crate) async fn on_own_threads<F>(make: F) -> Result<Arc<Self>>
    where
        F: AsyncFnOnce() -> Result<Arc<Core>> + Send + 'static,
    {
        let (made, ready) = tokio::sync::oneshot::channel();
        spawn_thread("leasehold-io", async move || match make().await {
            Ok(core) => {
                // If the caller is gone, dropping the engine here stops the work immediately.
                drop(made.send(Self::watch_apart(Arc::clone(&core))));
                Self::work_apart(core).await;
            }
            Err(error) => drop(made.send(Err(error))),
        })?;
        ready.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "the engine's thread ended before it was ready"))
        })
    }

    /// Starts the watchdog on its own thread.
    fn watch_apart(core: Arc<Core>) -> Result<Arc<Self>> {
        trace::start();
        // If the thread cannot be started, dropping this ends the work.
        let engine = Arc::new(Self { core: Arc::clone(&core) });
        spawn_thread("leasehold", async move || {
            tokio::select! {
                biased;
                () = core.life.until(Stage::Ended) => {}
                () = guarded(&core, watchdog::run(&core)) => {}
            }
        })?;
        Ok(engine)
    }

    async fn work_apart(core: Arc<Core>) {
        if let Some(mut driver) = Driver::take(&core)
            && let Some(queues) = &mut driver.queues
        {
            guarded(&core, background::run(&core, queues)).await;
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.core.life.enter(Stage::Ending);
    }
}

/// The task that runs the worker: the one that owns the work queues. If its runtime ends, even before the
/// task's first poll, dropping it puts them back.
struct Driver {
    core: Arc<Core>,
    queues: Option<WorkQueues>,
}

impl Driver {
    fn take(core: &Arc<Core>) -> Option<Self> {
        let mut owned = core.work_queues();
        let queues = owned.take()?;
        core.running.store(true, Ordering::Release);
        drop(owned);
        Some(Self { core: Arc::clone(core), queues: Some(queues) })
    }

    /// Runs watchdog and worker in one task.
    async fn run(mut self) {
        let core = Arc::clone(&self.core);
        if let Some(queues) = &mut self.queues {
            let work = async {
                tokio::select! {
                    // Due holds come first.
                    biased;
                    () = watchdog::run(&core) => {}
                    () = background::run(&core, queues) => {}
                }
            };
            guarded(&core, work).await;
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let core = &self.core;
        let mut owned = core.work_queues();
        *owned = self.queues.take();
        drop(core.runtime.lock().take());
        core.running.store(false, Ordering::Release);
        drop(owned);
        if core.life.has_panicked() {
            core.events.end();
            core.life.enter(Stage::Ended);
        }
        if core.on_caller && !core.life.is_ended() {
            if !fallback::is_there() {
                // Without its thread, nothing could fire these tokens later.
                core.queue.holds().iter().for_each(|hold| hold.lose(core, Loss::Expired));
            }
            core.vacated.notify_waiters();
        }
    }
}
