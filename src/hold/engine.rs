//! What all leases of a manager share, and where its work runs.

use super::queue::Queue;
use super::reaper::Job;
use super::schedule::Schedule;
use super::timing::Timing;
use super::watchdog::{self, Call};
use super::worker::{self, Inbox};
use super::{alarm::guarded, spare};
use crate::clock::{Clock, Instant};
use crate::error::{Error, ErrorKind, Fate, Loss, Result};
use crate::store::{Capabilities, Fencing, HolderId, Store};
use crate::trace;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// What the builder decides, besides T.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) max_hold: Option<Duration>,
    pub(crate) poll_bound: Duration,
    /// How often in a row a hold is passed on in memory.
    pub(crate) handoff_bound: u32,
    pub(crate) fencing: Option<Fencing>,
    /// Of the jitter, for a simulation that is to be repeated.
    #[cfg(feature = "testing")]
    pub(crate) seed: Option<u64>,
}

impl Settings {
    fn seed(&self) -> Option<u64> {
        #[cfg(feature = "testing")]
        return self.seed;
        #[cfg(not(feature = "testing"))]
        None
    }
}

pub(crate) struct Core {
    pub(crate) store: Arc<dyn Store>,
    /// What the store can do; asked once.
    pub(super) can: Capabilities,
    pub(crate) timing: Timing,
    pub(crate) settings: Settings,
    pub(crate) schedule: Schedule,
    pub(crate) queue: Arc<Queue>,
    /// Fires when no lock may be taken any more.
    pub(crate) closed: CancellationToken,
    /// Fires when nobody needs the engine any more.
    pub(crate) stop: CancellationToken,
    /// Fires when the engine's work is done and its connections are closed.
    pub(crate) stopped: CancellationToken,
    /// Wakes the reaper's sweeps when a connection was made anew.
    pub(crate) reconnected: Notify,
    /// How many of these sweeps there are.
    pub(crate) sweeps: AtomicU32,
    /// Asks the watchdog to look at all leases: a connection was lost and made again, so the server may have
    /// restarted without them.
    pub(super) verify: Notify,
    /// Until when `close` lets releases be tried.
    pub(crate) closing_until: OnceLock<Instant>,
    /// How many renewals a call takes, and whether parts of the store can fail on their own. Asked once: the
    /// watchdog never asks the store.
    pub(super) batch_size: usize,
    pub(super) sharded: bool,
    pub(crate) announces: bool,
    /// The work is done on the runtime of whoever locks.
    pub(crate) on_caller: bool,
    /// Tells that the place of watchdog and worker has become vacant, and that it was taken.
    vacated: Notify,
    pub(super) taken: Notify,
    panicked: AtomicBool,
    clock: Clock,
    manager: Uuid,
    tokens: AtomicU64,
    random: AtomicU64,
    jobs: mpsc::UnboundedSender<Job>,
    calls: mpsc::UnboundedSender<Vec<Call>>,
    inbox: Mutex<Option<Inbox>>,
    running: AtomicBool,
    callers: AtomicUsize,
    no_call: Notify,
}

/// Counts a call that may still send something, or leave work to the reaper; see [`Core::call`].
pub(crate) struct Caller<'a>(&'a Core);

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        if self.0.callers.fetch_sub(1, Ordering::AcqRel) == 1 && self.0.is_closed() {
            self.0.no_call.notify_waiters();
        }
    }
}

impl Core {
    /// With `on_caller`, the work is to be done on the runtime of whoever locks.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        timing: Timing,
        mut settings: Settings,
        on_caller: bool,
    ) -> Arc<Self> {
        let can = store.capabilities();
        if let (Some(fencing), false) = (&mut settings.fencing, can.fence_blocks) {
            // Each holder has a fencing token of its own, or there is no hand-off.
            fencing.block = 1;
            settings.handoff_bound = 0;
        }
        if let Some(fencing) = &mut settings.fencing {
            fencing.block = fencing.block.min(can.longest_fence_block);
        }
        let (jobs, jobs_waiting) = mpsc::unbounded_channel();
        let (calls, calls_waiting) = mpsc::unbounded_channel();
        let inbox = Inbox { calls: calls_waiting, jobs: jobs_waiting };
        let manager = Uuid::new_v4();
        Arc::new(Self {
            queue: Arc::new(Queue::new(store.clock(), &timing)),
            clock: store.clock(),
            store,
            can,
            timing,
            settings,
            schedule: Schedule::default(),
            closed: CancellationToken::new(),
            stop: CancellationToken::new(),
            stopped: CancellationToken::new(),
            reconnected: Notify::new(),
            verify: Notify::new(),
            batch_size: can.renewal_batch.max(1),
            sharded: can.sharded,
            announces: can.announces && can.wakeups,
            on_caller,
            vacated: Notify::new(),
            taken: Notify::new(),
            panicked: AtomicBool::new(false),
            sweeps: AtomicU32::new(0),
            closing_until: OnceLock::new(),
            manager,
            tokens: AtomicU64::new(1),
            random: AtomicU64::new(settings.seed().unwrap_or(manager.as_u64_pair().1)),
            jobs,
            calls,
            inbox: Mutex::new(Some(inbox)),
            running: AtomicBool::new(false),
            callers: AtomicUsize::new(0),
            no_call: Notify::new(),
        })
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// A token that was never used before.
    pub(crate) fn draw_token(&self) -> HolderId {
        HolderId::new(self.manager, self.tokens.fetch_add(1, Ordering::Relaxed))
    }

    /// A number in [0, 1) to keep processes apart; splitmix64 over a counter.
    pub(crate) fn jitter(&self) -> f64 {
        let mut z = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Gives work to the reaper: from any thread, inside a runtime or out.
    pub(crate) fn reap(&self, job: Job) {
        // The receiver outlives every sender but the engine's end, after which nothing can be sent.
        let _ = self.jobs.send(job);
    }

    /// Gives calls to the worker, which has them sent.
    pub(super) fn send(&self, calls: Vec<Call>) {
        // As above.
        let _ = self.calls.send(calls);
    }

    /// Begins a call; to be dropped after all that the call holds.
    pub(crate) fn call(&self) -> Caller<'_> {
        self.callers.fetch_add(1, Ordering::AcqRel);
        Caller(self)
    }

    /// Waits until no call is under way; for after the closing.
    pub(crate) async fn until_no_call(&self) {
        loop {
            let mut none = std::pin::pin!(self.no_call.notified());
            none.as_mut().enable();
            if self.callers.load(Ordering::Acquire) == 0 {
                return;
            }
            none.await;
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed() { Err(self.closed_error()) } else { Ok(()) }
    }

    /// Why no lock may be taken any more.
    pub(crate) fn closed_error(&self) -> Error {
        if self.panicked.load(Ordering::Acquire) {
            let error = Error::new(
                ErrorKind::Unavailable,
                "the watchdog has panicked; make a new manager to lock again",
            );
            return error.with_fate(Fate::NotExecuted);
        }
        Error::closed()
    }

    /// A part of the engine has panicked: no lock may be taken any more.
    pub(super) fn panicked(&self) {
        self.panicked.store(true, Ordering::Release);
        self.closed.cancel();
    }

    /// Whether somebody is at work, on whatever runtime.
    pub(super) fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Starts the work on this runtime if it should be here and is not under way: at first, and
    /// when the runtime on which it ran has gone. False if this runtime has ended too.
    pub(crate) fn ensure_running(self: &Arc<Self>) -> bool {
        if !self.on_caller || self.is_running() {
            return true;
        }
        if let Ok(runtime) = Handle::try_current()
            && !self.stopped.is_cancelled()
            && let Some(seat) = Seat::take(self)
        {
            runtime.spawn(seat.run());
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

/// A hold and the queue keep each other, through the hold's turn.
impl Drop for Core {
    fn drop(&mut self) {
        self.queue.clear();
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
        if let Some(mut seat) = Seat::take(&core)
            && let Some(inbox) = &mut seat.inbox
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

/// Runs `work` on a thread of its own, with a runtime.
pub(super) fn spawn_thread(name: &str, work: impl AsyncFnOnce() + Send + 'static) -> Result<()> {
    let no_thread = |error: std::io::Error| {
        Error::new(ErrorKind::Unavailable, "the engine's thread could not be started")
            .with_fate(Fate::NotExecuted)
            .with_source(error)
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            trace::start();
            // A client that logs must not cost renewals.
            let _lines = trace::catch();
            runtime.block_on(work());
        })
        .map_err(no_thread)?;
    Ok(())
}

/// The worker's place, which only one task has: the inbox. If the runtime goes away, even before the
/// task's first turn, the place is vacant again.
struct Seat {
    core: Arc<Core>,
    inbox: Option<Inbox>,
}

impl Seat {
    fn take(core: &Arc<Core>) -> Option<Self> {
        let mut place = lock(&core.inbox);
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

impl Drop for Seat {
    fn drop(&mut self) {
        let core = &self.core;
        let mut place = lock(&core.inbox);
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::{Grant, Hold};
    use crate::store::{MemoryStore, Name};

    fn core() -> Arc<Core> {
        let timing = Timing::DEFAULT;
        let settings = Settings {
            max_hold: None,
            poll_bound: Duration::from_secs(1),
            handoff_bound: 0,
            fencing: None,
            #[cfg(feature = "testing")]
            seed: None,
        };
        Core::new(Arc::new(MemoryStore::new()), timing, settings, true)
    }

    #[test]
    fn a_hold_goes_with_its_engine() {
        let core = core();
        let name = Name::new("n").unwrap();
        let turn = core.queue.try_enter(&name, core.now()).unwrap();
        let (now, token) = (core.now(), core.draw_token());
        let grant = Grant {
            name,
            token,
            fence: None,
            reached: false,
            sent: now,
            now,
            unsure_until: None,
            turn,
        };
        let hold = Arc::downgrade(&Hold::begin(&core, grant));
        assert!(hold.upgrade().is_some());
        drop(core);
        assert!(hold.upgrade().is_none());
    }

    #[test]
    fn jitter_is_spread_evenly_from_zero_to_below_one() {
        const DRAWS: usize = 4_000;
        let core = core();
        let mut tenths = [0; 10];
        for _ in 0..DRAWS {
            let jitter = core.jitter();
            assert!((0.0..1.0).contains(&jitter), "{jitter}");
            tenths[(jitter * 10.0) as usize] += 1;
        }
        // Six standard deviations on both sides.
        let even = DRAWS / 10 - 115..DRAWS / 10 + 115;
        assert!(tenths.iter().all(|count| even.contains(count)), "{tenths:?}");
    }
}
