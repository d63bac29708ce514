//! Runs the engine on its own threads or on the runtime of a caller, and loses all leases if a part of it panics.
//!
//! # The fallback watchdog
//!
//! A second watchdog fires tokens for engines that run on a runtime of the user.
//!
//! Such a runtime may end, or user code may block it. When it has ended, a call that waits or holds on another runtime
//! restarts the engine there. A holder that has only its token makes no call, and nothing restarts a runtime that is
//! blocked. So one thread of the process watches all these engines, and fires tokens at `C`. It renews nothing: the store
//! may live on that runtime.
//!
//! It looks at the schedule a little after the first entry is due, and at least every T/4, or more often with a long grace: no
//! hold that begins after a look has its `C` before the next one, also not one that is handed off with T/2 left. So no call
//! pays for it. Only when the watchdog is late, or does not end what it has begun, it looks at each hold.
//! `max_hold` and `stall_after` can fire later, by the time between two looks.

use super::hold::handoff;
use super::machine::timing::Timing;
use super::shared::core::{Callbacks, Core, WorkQueues};
use super::shared::hold::Hold;
use super::shared::lifecycle::Stage;
use super::shared::options::Settings;
use super::shared::schedule::Group;
use super::{background, watchdog};
use crate::clock::{self, Instant, Sleeper};
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::store::Store;
use crate::util::reached::Rare;
use crate::util::trace;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use uuid::Uuid;

/// The most threads of an engine's runtime for calls that block: lookups of host names. A name server that hangs keeps one
/// for each lookup, until the system gives up.
const BLOCKING_THREADS: usize = 64;
/// Threads stay once they are made: connecting again must need no new thread, which a process at its limit could not have.
const KEPT: Duration = Duration::from_secs(u32::MAX as u64);

/// The least time after which the fallback watchdog takes the other one for late.
const SHORTEST_LAG: Duration = Duration::from_millis(1);

/// Where the thread of the fallback watchdog gets its engines; `None` if it could not be made.
static ENGINES: OnceLock<Option<mpsc::UnboundedSender<Arc<Core>>>> = OnceLock::new();

/// What the data of an engine calls in the rooms above it.
const CALLBACKS: Callbacks = Callbacks { start, leave: handoff::leave_in_background };

/// Starts watchdog and worker on this runtime, unless another task runs them. Returns false if this runtime has ended.
fn start(core: &Arc<Core>) -> bool {
    if let Ok(runtime) = Handle::try_current()
        && !core.life.is_ended()
        && let Some(task) = EngineTask::take(core)
    {
        // It has holds already.
        Rare::TakenOver.reached_if(|| core.schedule.first().is_some());
        *core.runtime.lock() = Some(runtime.clone());
        runtime.spawn(task.run());
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
        watch_as_fallback(&core);
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
        if let Some(mut task) = EngineTask::take(&core)
            && let Some(queues) = &mut task.queues
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
struct EngineTask {
    core: Arc<Core>,
    queues: Option<WorkQueues>,
}

impl EngineTask {
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

impl Drop for EngineTask {
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
            Rare::RuntimeEnded.reached();
            if !fallback_is_there() {
                // Without its thread, nothing could fire these tokens later.
                core.queue.holds().iter().for_each(|hold| hold.lose(core, Loss::Expired));
            }
            core.vacated.notify_waiters();
        }
    }
}

/// Runs `work` on its own thread, with a runtime.
fn spawn_thread(name: &str, work: impl AsyncFnOnce() + Send + 'static) -> Result<()> {
    let no_thread = |error| Error::no_thread("failed to start the engine's thread", error);
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

/// Runs a part of the engine. If it panics, nothing is renewed any more, so all leases are lost.
///
/// `std::thread::panicking` does not answer this: the thread may be unwinding through a runtime of
/// the user, which drops this future on its way.
async fn guarded(core: &Arc<Core>, work: impl Future<Output = ()>) {
    let mut guard = PanicGuard { core, polling: false };
    let mut work = pin!(work);
    poll_fn(|cx| {
        guard.polling = true;
        let poll = work.as_mut().poll(cx);
        guard.polling = false;
        poll
    })
    .await;
}

struct PanicGuard<'a> {
    core: &'a Arc<Core>,
    /// Set in Drop only if the poll has panicked.
    polling: bool,
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if self.polling {
            let core = self.core;
            core.set_panicked();
            for hold in core.queue.holds() {
                hold.lose(core, Loss::Expired);
            }
            core.life.enter(Stage::Ending);
        }
    }
}

/// Watches an engine to its end. The first call in a process starts the thread.
fn watch_as_fallback(core: &Arc<Core>) {
    let engines = ENGINES.get_or_init(|| {
        let (sender, engines) = mpsc::unbounded_channel();
        spawn_thread("leasehold-spare", async move || run_fallback(engines).await)
            .ok()
            .map(|()| sender)
    });
    if let Some(engines) = engines {
        // Fails only if the thread has panicked.
        let _ = engines.send(Arc::clone(core));
    }
}

/// Returns whether the thread of the fallback watchdog runs.
fn fallback_is_there() -> bool {
    ENGINES.get().and_then(Option::as_ref).is_some_and(|engines| !engines.is_closed())
}

async fn run_fallback(mut engines: mpsc::UnboundedReceiver<Arc<Core>>) {
    while let Some(core) = engines.recv().await {
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = core.life.until(Stage::Ending) => {}
                () = guarded(&core, watch_over(&core)) => {}
            }
            drop_elsewhere(core);
        });
    }
}

/// Drops the core on a thread of its own if that is the last reference: its store is dropped with it, which may take long, and the tokens
/// of other managers wait for this thread.
fn drop_elsewhere(core: Arc<Core>) {
    if let Some(core) = Arc::into_inner(core) {
        // Without a thread it is dropped here.
        let _ = thread::Builder::new().name("leasehold-drop".into()).spawn(move || drop(core));
    }
}

async fn watch_over(core: &Arc<Core>) {
    let mut sleeper = Sleeper::new(core.clock());
    loop {
        let next = look(core);
        sleeper.until(next).await;
    }
}

/// Fires the tokens that are due, if the watchdog is late. Returns the time of the next look.
fn look(core: &Arc<Core>) -> Instant {
    let now = core.now();
    let ttl = core.timing.ttl;
    let latest = now + (ttl / 4).min((ttl / 2).saturating_sub(core.timing.grace));
    // While it works, what was due is in no schedule: a waker that blocks can hold it up.
    let began = *core.tick.lock();
    let Some(first) = began.into_iter().chain(core.schedule.first()).min() else { return latest };
    if has_paused_clock(core) {
        return latest;
    }
    let late = first + (core.timing.grace / 4).max(SHORTEST_LAG);
    if now < late {
        return late.min(latest);
    }
    let mut group = Group::new(core, None, 0);
    let holds = core.queue.holds();
    let ends = holds.iter().filter_map(|hold| ends_at(core, hold, now, &mut group));
    let next = ends.fold(latest, Instant::min);
    group.end();
    next
}

/// Applies the clock. Returns when the hold is lost if nothing happens before, or `None` if it is over.
fn ends_at(
    core: &Arc<Core>,
    hold: &Arc<Hold>,
    now: Instant,
    group: &mut Group<'_>,
) -> Option<Instant> {
    hold.update_locked(core, now, hold.lock(), Some(group), |state, now| {
        let believed = state.believed();
        state.expire(&core.timing, now);
        Rare::FiredByFallback.reached_if(|| believed && !state.believed());
        state.believed().then(|| state.ends_at(&core.timing))
    })
}

/// Returns whether the clock of the engine is one of tokio that is paused on the runtime on which the engine runs.
fn has_paused_clock(core: &Core) -> bool {
    core.clock().is_tokio()
        && core.runtime.lock().as_ref().is_some_and(|runtime| {
            let _entered = runtime.enter();
            clock::is_paused()
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::locks::lock::Lock;
    use crate::store::MemoryStore;
    use uuid::Uuid;

    #[tokio::test]
    async fn panic_of_the_engine_loses_all_leases_and_is_reported() {
        let store = Arc::new(MemoryStore::new());
        let core = Engine::core(Uuid::new_v4(), store, Timing::DEFAULT, Settings::PLAIN, true);
        let engine = Engine::on_caller(Arc::clone(&core));
        let lease = Lock::new(Arc::clone(&engine), "n").lock().await.unwrap();
        let token = lease.cancellation_token();
        let part = async move { guarded(&core, async { panic!("a part of the engine") }).await };
        tokio::spawn(part).await.expect_err("it has panicked");
        assert!(token.is_cancelled());
        assert_eq!(lease.check().unwrap_err().loss(), Some(Loss::Expired));
        let error = Lock::new(engine, "next").lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert!(!error.is_retryable(), "no retry helps");
        assert!(error.to_string().contains("panicked"), "{error}");
    }
}
