//! Runs the engine on its own threads or on the runtime of a caller.

use super::panic_guard::guarded;
use super::shared::core::{Core, WorkQueues};
use super::shared::lifecycle::Stage;
use super::thread::spawn_thread;
use super::{background, spare, watchdog};
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::util::trace;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use tokio::runtime::Handle;

impl Core {
    /// Starts watchdog and worker on this runtime if they belong on a caller's runtime and no task
    /// runs them: at first, and after the runtime on which they ran has ended. Returns false if
    /// this runtime has ended too.
    pub(crate) fn ensure_running(self: &Arc<Self>) -> bool {
        if !self.on_caller || self.is_running() {
            return true;
        }
        if let Ok(runtime) = Handle::try_current()
            && !self.life.is_ended()
            && let Some(driver) = Driver::take(self)
        {
            *self.runtime.lock() = Some(runtime.clone());
            runtime.spawn(driver.run());
            // A runtime that has ended drops a spawned task at once.
            return self.is_running();
        }
        true
    }

    /// Waits for `work`, and restarts watchdog and worker on this runtime if theirs ends meanwhile:
    /// otherwise no task might do what `work` waits for.
    ///
    /// The caller pins `work`: a future that is moved in would take its space twice.
    pub(crate) async fn attend<F: Future>(self: &Arc<Self>, mut work: Pin<&mut F>) -> F::Output {
        if !self.on_caller {
            return work.await;
        }
        let (mut vacated, mut listens) = (pin!(self.vacated.notified()), true);
        poll_fn(|cx| {
            // Work that is ready at once costs nothing here.
            if let Poll::Ready(output) = work.as_mut().poll(cx) {
                return Poll::Ready(output);
            }
            if listens {
                while vacated.as_mut().poll(cx).is_ready() {
                    vacated.set(self.vacated.notified());
                }
                // `ensure_running` sees a runtime that ended before this line; a later end wakes
                // this task.
                listens = self.ensure_running();
            }
            Poll::Pending
        })
        .await
    }
}

/// Keeps the engine running. Dropping the last reference ends it.
pub(crate) struct Engine {
    pub(crate) core: Arc<Core>,
}

impl Engine {
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
        spare::watch(&core);
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
        let mut place = core.work_queues();
        let queues = place.take()?;
        core.running.store(true, Ordering::Release);
        drop(place);
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
        let mut place = core.work_queues();
        *place = self.queues.take();
        drop(core.runtime.lock().take());
        core.running.store(false, Ordering::Release);
        drop(place);
        if core.life.has_panicked() {
            core.events.end();
            core.life.enter(Stage::Ended);
        }
        if core.on_caller && !core.life.is_ended() {
            if !spare::is_there() {
                // Without its thread, nothing could fire these tokens later.
                core.queue.holds().iter().for_each(|hold| hold.lose(core, Loss::Expired));
            }
            core.vacated.notify_waiters();
        }
    }
}
