//! What all leases of a manager share, and where its work runs.

use super::queue::Queue;
use super::reaper::{Job, made};
use super::schedule::Schedule;
use super::timing::Timing;
use super::watchdog;
use crate::clock::{Clock, Instant};
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{Acquire, Acquired, Fencing, Release, Released, Store, StoreFuture, Token};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
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
    /// How many of these there are.
    pub(crate) sweeps: AtomicU32,
    /// Until when `close` lets releases be tried.
    pub(crate) closing_until: OnceLock<Instant>,
    clock: Clock,
    manager: Uuid,
    tokens: AtomicU64,
    random: AtomicU64,
    jobs: mpsc::UnboundedSender<Job>,
    inbox: Mutex<Option<mpsc::UnboundedReceiver<Job>>>,
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
    pub(crate) fn new(store: Arc<dyn Store>, timing: Timing, mut settings: Settings) -> Arc<Self> {
        if let (Some(fencing), false) = (&mut settings.fencing, store.capabilities().fence_blocks) {
            // Each holder has a fencing token of its own, or there is no hand-off.
            fencing.block = 1;
            settings.handoff_bound = 0;
        }
        if let Some(fencing) = &mut settings.fencing {
            fencing.block = fencing.block.min(store.capabilities().longest_fence_block);
        }
        let (jobs, inbox) = mpsc::unbounded_channel();
        let manager = Uuid::new_v4();
        Arc::new(Self {
            clock: store.clock(),
            store,
            timing,
            settings,
            schedule: Schedule::default(),
            queue: Arc::default(),
            closed: CancellationToken::new(),
            stop: CancellationToken::new(),
            stopped: CancellationToken::new(),
            reconnected: Notify::new(),
            sweeps: AtomicU32::new(0),
            closing_until: OnceLock::new(),
            manager,
            tokens: AtomicU64::new(1),
            random: AtomicU64::new(settings.seed().unwrap_or(manager.as_u64_pair().1)),
            jobs,
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
    pub(crate) fn draw_token(&self) -> Token {
        Token::new(self.manager, self.tokens.fetch_add(1, Ordering::Relaxed))
    }

    /// A number in [0, 1) to keep processes apart; splitmix64 over a counter.
    pub(crate) fn jitter(&self) -> f64 {
        let mut z = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Asks the store for a name.
    pub(crate) fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        made(|| self.store.acquire(request))
    }

    /// Has the store release a name.
    pub(crate) fn release(&self, request: Release) -> StoreFuture<Released> {
        made(|| self.store.release(request))
    }

    /// Gives work to the reaper: from any thread, inside a runtime or out.
    pub(crate) fn reap(&self, job: Job) {
        // The receiver outlives every sender but the engine's end, after which nothing can be sent.
        let _ = self.jobs.send(job);
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
        if self.is_closed() { Err(Error::closed()) } else { Ok(()) }
    }
}

/// Keeps the engine at work; the last one to go ends it.
pub(crate) struct Engine {
    pub(crate) core: Arc<Core>,
    on_caller: bool,
}

impl Engine {
    /// An engine whose work runs on the runtime of whoever locks.
    pub(crate) fn on_caller(core: Arc<Core>) -> Arc<Self> {
        let engine = Arc::new(Self { core, on_caller: true });
        engine.ensure_running();
        engine
    }

    /// An engine on a thread of its own.
    pub(crate) fn on_new_thread(core: Arc<Core>) -> Result<Arc<Self>> {
        let work = Arc::clone(&core);
        spawn_thread(async move || run(work).await)?;
        Ok(Arc::new(Self { core, on_caller: false }))
    }

    /// An engine on a thread of its own, where `make` also makes the store.
    pub(crate) async fn on_own_thread<F>(make: F) -> Result<Arc<Self>>
    where
        F: AsyncFnOnce() -> Result<Arc<Core>> + Send + 'static,
    {
        let (made, ready) = tokio::sync::oneshot::channel();
        spawn_thread(async move || match make().await {
            Ok(core) => {
                let engine = Arc::new(Self { core: Arc::clone(&core), on_caller: false });
                // If nobody waits any more, the engine goes here, and `run` ends at once.
                drop(made.send(Ok(engine)));
                run(core).await;
            }
            Err(error) => drop(made.send(Err(error))),
        })?;
        ready.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "the engine's thread ended before it was ready"))
        })
    }

    /// Starts the work on this runtime if it should be here and is not under way: at first, and
    /// when the runtime on which it ran has gone.
    pub(crate) fn ensure_running(&self) {
        if !self.on_caller || self.core.running.load(Ordering::Acquire) {
            return;
        }
        if let Ok(runtime) = Handle::try_current()
            && !self.core.stopped.is_cancelled()
            && let Some(seat) = Seat::take(&self.core)
        {
            runtime.spawn(seat.run());
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.core.stop.cancel();
    }
}

fn spawn_thread(work: impl AsyncFnOnce() + Send + 'static) -> Result<()> {
    let no_thread = |error: std::io::Error| {
        Error::new(ErrorKind::Unavailable, "the engine's thread could not be started")
            .with_fate(Fate::NotExecuted)
            .with_source(error)
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
    std::thread::Builder::new()
        .name("leasehold".into())
        .spawn(move || runtime.block_on(work()))
        .map_err(no_thread)?;
    Ok(())
}

/// The watchdog's place, which only one task has: the inbox. If the runtime goes away, even before the
/// task's first turn, the place is free again.
struct Seat {
    core: Arc<Core>,
    inbox: Option<mpsc::UnboundedReceiver<Job>>,
}

impl Seat {
    fn take(core: &Arc<Core>) -> Option<Self> {
        let mut place = lock(&core.inbox);
        let inbox = place.take()?;
        core.running.store(true, Ordering::Release);
        drop(place);
        Some(Self { core: Arc::clone(core), inbox: Some(inbox) })
    }

    async fn run(mut self) {
        if let Some(inbox) = &mut self.inbox {
            watchdog::run(&self.core, inbox).await;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut place = lock(&self.core.inbox);
        *place = self.inbox.take();
        self.core.running.store(false, Ordering::Release);
    }
}

/// Runs the work of an engine that has just been made.
async fn run(core: Arc<Core>) {
    if let Some(seat) = Seat::take(&core) {
        seat.run().await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn jitter_is_spread_evenly_from_zero_to_below_one() {
        const DRAWS: usize = 4_000;
        let timing = Timing::DEFAULT;
        let settings = Settings {
            max_hold: None,
            poll_bound: Duration::from_secs(1),
            handoff_bound: 0,
            fencing: None,
            #[cfg(feature = "testing")]
            seed: None,
        };
        let core = Core::new(Arc::new(MemoryStore::new()), timing, settings);
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
