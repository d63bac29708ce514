//! Runs the engine: on threads of its own, or on the runtime of a caller.

use super::alarm::guarded;
use super::core::{Core, Inbox};
use super::spare;
use super::thread::spawn_thread;
use super::{watchdog, worker};
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::trace;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use tokio::runtime::Handle;

impl Core {
    /// Starts the work on this runtime if it should be here and is not under way: at first, and
    /// when the runtime on which it ran has gone. False if this runtime has ended too.
    pub(crate) fn ensure_running(self: &Arc<Self>) -> bool {
        if !self.on_caller || self.is_running() {
            return true;
        }
        if let Ok(runtime) = Handle::try_current()
            && !self.stopped.is_cancelled()
            && let Some(driver) = Driver::take(self)
        {
            runtime.spawn(driver.run());
            // What is spawned on a runtime that has ended comes back at once.
            return self.is_running();
        }
        true
    }

    /// Waits for `work`, and takes the engine's place on this runtime if it becomes vacant meanwhile: else nobody
    /// might do what is waited for.
    ///
    /// It is pinned by the caller: a future that is moved in would take its room twice.
    pub(crate) async fn attend<F: Future>(self: &Arc<Self>, mut work: Pin<&mut F>) -> F::Output {
        if !self.on_caller {
            return work.await;
        }
        let (mut vacated, mut listens) = (pin!(self.vacated.notified()), true);
        poll_fn(|cx| {
            // What is ready at once costs nothing here.
            if let Poll::Ready(output) = work.as_mut().poll(cx) {
                return Poll::Ready(output);
            }
            if listens {
                while vacated.as_mut().poll(cx).is_ready() {
                    vacated.set(self.vacated.notified());
                }
                // What became vacant before the line above is seen here, what becomes so later wakes us.
                listens = self.ensure_running();
            }
            Poll::Pending
        })
        .await
    }
}

/// Keeps the engine at work; the last one to go ends it.
pub(crate) struct Engine {
    pub(crate) core: Arc<Core>,
}

impl Engine {
    /// An engine whose work runs on the runtime of whoever locks, or on threads of its own.
    pub(crate) fn new(core: Arc<Core>) -> Result<Arc<Self>> {
        if core.on_caller {
            return Ok(Self::on_caller(core));
        }
        let work = Arc::clone(&core);
        spawn_thread("leasehold-io", async move || Self::work_apart(work).await)?;
        Self::watch_apart(core)
    }

    /// An engine whose work runs on the runtime of whoever locks.
    pub(crate) fn on_caller(core: Arc<Core>) -> Arc<Self> {
        trace::start();
        spare::start();
        core.ensure_running();
        Arc::new(Self { core })
    }

    /// An engine on threads of its own, where `make` also makes the store.
    pub(crate) async fn on_own_threads<F>(make: F) -> Result<Arc<Self>>
    where
        F: AsyncFnOnce() -> Result<Arc<Core>> + Send + 'static,
    {
        let (made, ready) = tokio::sync::oneshot::channel();
        spawn_thread("leasehold-io", async move || match make().await {
            Ok(core) => {
                // If nobody waits any more, the engine goes here, and the work ends at once.
                drop(made.send(Self::watch_apart(Arc::clone(&core))));
                Self::work_apart(core).await;
            }
            Err(error) => drop(made.send(Err(error))),
        })?;
        ready.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "the engine's thread ended before it was ready"))
        })
    }

    /// Starts the watchdog on a thread that does nothing else.
    fn watch_apart(core: Arc<Core>) -> Result<Arc<Self>> {
        trace::start();
        // Dropped if there is no thread, which ends the work.
        let engine = Arc::new(Self { core: Arc::clone(&core) });
        spawn_thread("leasehold", async move || {
            tokio::select! {
                biased;
                () = core.stopped.cancelled() => {}
                () = guarded(&core, watchdog::run(&core)) => {}
            }
        })?;
        Ok(engine)
    }

    async fn work_apart(core: Arc<Core>) {
        if let Some(mut driver) = Driver::take(&core)
            && let Some(inbox) = &mut driver.inbox
        {
            guarded(&core, worker::run(&core, inbox)).await;
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.core.stop.cancel();
    }
}

/// The worker's place, which only one task has: the inbox. If the runtime goes away, even before the
/// task's first turn, the place is vacant again.
struct Driver {
    core: Arc<Core>,
    inbox: Option<Inbox>,
}

impl Driver {
    fn take(core: &Arc<Core>) -> Option<Self> {
        let mut place = core.inbox();
        let inbox = place.take()?;
        core.running.store(true, Ordering::Release);
        drop(place);
        core.taken.notify_waiters();
        Some(Self { core: Arc::clone(core), inbox: Some(inbox) })
    }

    /// Watchdog and worker in one task.
    async fn run(mut self) {
        let core = Arc::clone(&self.core);
        if let Some(inbox) = &mut self.inbox {
            let work = async {
                tokio::select! {
                    // What is due first.
                    biased;
                    () = watchdog::run(&core) => {}
                    () = worker::run(&core, inbox) => {}
                }
            };
            guarded(&core, work).await;
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let core = &self.core;
        let mut place = core.inbox();
        *place = self.inbox.take();
        core.running.store(false, Ordering::Release);
        drop(place);
        if core.panicked.load(Ordering::Acquire) {
            core.stopped.cancel();
        }
        if core.on_caller && !core.stopped.is_cancelled() {
            if !spare::watch(core) {
                // Nobody would tell them later.
                core.queue.holds().iter().for_each(|hold| hold.lose(core, Loss::Expired));
            }
            core.vacated.notify_waiters();
        }
    }
}
