//! The data that all leases of a manager share.

use super::answers::Answers;
use super::descriptions::Descriptions;
use super::hold::Hold;
use super::job::Job;
use super::lifecycle::{Lifecycle, Stage};
use super::options::{Options, Settings};
use super::overrun::Overruns;
use super::queue::Queue;
use super::schedule::{Schedule, ScheduledCall};
use crate::clock::{Clock, Instant};
use crate::engine::machine::count::Share;
use crate::engine::machine::mode;
use crate::engine::machine::timing::{LONGEST_TTL, Timing};
use crate::error::Result;
use crate::observe::{Counters, EventQueues};
use crate::store::{Capabilities, Fencing, HolderId, IDLE_SEMAPHORE, Keep, Mode, Owner, Store};
use crate::util::sync::{Mutex, MutexGuard};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use uuid::Uuid;

/// The data that all leases of a manager share.
pub(crate) struct Core {
    pub(crate) store: Arc<dyn Store>,
    /// The abilities of the store, which is asked once: the watchdog never calls it.
    pub(in crate::engine) can: Capabilities,
    pub(crate) timing: Timing,
    pub(crate) settings: Settings,
    pub(crate) schedule: Schedule,
    pub(crate) queue: Arc<Queue>,
    pub(crate) descriptions: Descriptions,
    pub(crate) life: Lifecycle,
    /// Wakes the worker's sweeps after a reconnect.
    pub(crate) reconnected: Notify,
    /// The number of sweeps in progress.
    pub(crate) sweeps: AtomicU32,
    /// Asks the watchdog to verify all leases: the server may have restarted without them before a
    /// reconnect.
    pub(in crate::engine) verify: Notify,
    /// True if the engine runs on the runtime of its callers.
    pub(crate) on_caller: bool,
    pub(super) callbacks: Callbacks,
    /// Notifies that no task runs watchdog and worker any more.
    pub(in crate::engine) vacated: Notify,
    /// Reports to the observers.
    pub(crate) events: Arc<EventQueues>,
    pub(crate) counters: Counters,
    pub(in crate::engine) answers: Answers,
    pub(crate) overruns: Overruns,
    clock: Clock,
    manager: Uuid,
    holders: AtomicU64,
    random: AtomicU64,
    jobs: mpsc::UnboundedSender<Job>,
    calls: mpsc::UnboundedSender<Vec<ScheduledCall>>,
    queues: Mutex<Option<WorkQueues>>,
    pub(in crate::engine) running: AtomicBool,
    /// When the watchdog began what it does now.
    pub(in crate::engine) tick: Mutex<Option<Instant>>,
    /// The runtime of a caller on which watchdog and worker run.
    pub(in crate::engine) runtime: Mutex<Option<Handle>>,
}

/// What the data calls in the rooms above it.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Callbacks {
    /// Starts watchdog and worker on the runtime of the caller. Returns false if that has ended.
    pub(in crate::engine) start: fn(&Arc<Core>) -> bool,
    /// Ends a lease of a hold, and leaves the rest to the engine.
    pub(in crate::engine) leave: fn(&Arc<Core>, &Arc<Hold>, Share),
}

/// The queues that the worker reads.
pub(in crate::engine) struct WorkQueues {
    pub(in crate::engine) calls: mpsc::UnboundedReceiver<Vec<ScheduledCall>>,
    pub(in crate::engine) jobs: mpsc::UnboundedReceiver<Job>,
    /// The holds whose descriptions are to be written.
    pub(in crate::engine) to_write: mpsc::Receiver<Weak<Hold>>,
}

impl Core {
    /// Creates the data of the engine of a manager with this id. With `on_caller`, the engine runs on the runtime of its
    /// callers.
    pub(in crate::engine) fn new(
        manager: Uuid,
        store: Arc<dyn Store>,
        timing: Timing,
        mut settings: Settings,
        on_caller: bool,
        callbacks: Callbacks,
    ) -> Arc<Self> {
        let mut can = store.capabilities();
        can.renewal_batch = can.renewal_batch.max(1);
        if let (Some(fencing), false) = (&mut settings.fencing, can.fence_blocks) {
            // Each holder needs its own fencing token: without reserved ones there is no hand-off.
            fencing.block = 1;
            settings.max_local_handoffs = 0;
        }
        if let Some(fencing) = &mut settings.fencing {
            fencing.block = fencing.block.min(can.longest_fence_block);
        }
        let (jobs, jobs_waiting) = mpsc::unbounded_channel();
        let (calls, calls_waiting) = mpsc::unbounded_channel();
        let (descriptions, to_write) = Descriptions::new();
        let queues = WorkQueues { calls: calls_waiting, jobs: jobs_waiting, to_write };
        Arc::new_cyclic(|core| Self {
            queue: Arc::new(Queue::new(store.clock(), &timing, Weak::clone(core))),
            clock: store.clock(),
            store,
            can,
            timing,
            settings,
            schedule: Schedule::default(),
            descriptions,
            life: Lifecycle::new(),
            reconnected: Notify::new(),
            verify: Notify::new(),
            on_caller,
            callbacks,
            vacated: Notify::new(),
            sweeps: AtomicU32::new(0),
            events: Arc::default(),
            counters: Counters::default(),
            answers: Answers::default(),
            overruns: Overruns::default(),
            manager,
            holders: AtomicU64::new(1),
            random: AtomicU64::new(settings.seed().unwrap_or(manager.as_u64_pair().1)),
            jobs,
            calls,
            queues: Mutex::new(Some(queues)),
            running: AtomicBool::new(false),
            tick: Mutex::default(),
            runtime: Mutex::default(),
        })
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns whether each release wakes all subscribers, so that a forced release is noticed at once.
    pub(in crate::engine) fn announces(&self) -> bool {
        self.can.announces && self.can.wakeups
    }

    /// Returns the id of this manager.
    pub(in crate::engine) fn manager(&self) -> Uuid {
        self.manager
    }

    /// Returns who acts, for the notes of steals: the service, if the manager describes itself, the host and the process id.
    pub(crate) fn author(&self) -> String {
        let Owner { service, host, pid, .. } = self.descriptions.owner();
        let service = if service.is_empty() { service } else { format!("{service} at ") };
        format!("{service}{host}:{pid}")
    }

    /// Returns a holder id that was never used before.
    pub(crate) fn draw_holder(&self) -> HolderId {
        HolderId::new(self.manager, self.holders.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a number in [0, 1) that keeps processes apart: splitmix64 over a counter.
    pub(crate) fn jitter(&self) -> f64 {
        let mut z = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns the fencing tokens that an outermost acquire reserves in a mode, and for how long the store remembers them, or
    /// an idle semaphore.
    pub(in crate::engine) fn fencing(&self, mode: Mode) -> Option<Fencing> {
        let all = self.settings.fencing?;
        let block = if mode::reserves_fences(mode) { all.block } else { 1 };
        let retention = if mode::has_size(mode) { self.idle_kept() } else { all.retention };
        Some(Fencing { block, retention })
    }

    /// Refuses a store that cannot keep a name closed after its release.
    pub(crate) fn check_keeps(&self) -> Result<()> {
        if self.can.keeps { Ok(()) } else { Err(Keep::unsupported()) }
    }

    /// Returns the time to live to ask for.
    pub(in crate::engine) fn ttl_of(&self, options: &Options) -> Duration {
        self.delayed_ttl(options.lock_delay())
    }

    /// Returns the time to live to ask for with a delay.
    pub(in crate::engine) fn delayed_ttl(&self, delay: Duration) -> Duration {
        self.timing.ttl.saturating_add(delay).min(LONGEST_TTL)
    }

    /// Returns how long the store keeps an idle semaphore; `None`: forever.
    pub(super) fn idle_kept(&self) -> Option<Duration> {
        let kept = |retention: Duration| retention.max(IDLE_SEMAPHORE);
        self.settings.fencing.map_or(Some(IDLE_SEMAPHORE), |fencing| fencing.retention.map(kept))
    }

    /// Returns how long a store remembers the arrival of a waiter, which asks again at each poll. In a line, where a younger
    /// waiter would pass it, a request may also take an attempt.
    pub(in crate::engine) fn arrival_kept(&self, mode: Mode) -> Duration {
        let kept = self.settings.max_poll_interval * 3;
        if mode::has_line(mode) { kept.max(self.timing.attempt * 2) } else { kept }
    }

    /// Submits a job to the worker. Works on any thread, inside and outside a runtime.
    pub(crate) fn submit(&self, job: Job) {
        // Fails only after the end of the engine, when nothing can be sent any more.
        let _ = self.jobs.send(job);
    }

    /// Submits calls to the worker, which sends them to the store.
    pub(in crate::engine) fn send(&self, calls: Vec<ScheduledCall>) {
        // As in `submit`.
        let _ = self.calls.send(calls);
    }

    /// Locks the work queues, which are `None` while a task owns them.
    pub(in crate::engine) fn work_queues(&self) -> MutexGuard<'_, Option<WorkQueues>> {
        self.queues.lock()
    }

    /// Lets no lock be acquired any more, and ends all calls that wait for one.
    pub(crate) fn set_closed(&self) {
        self.life.enter(Stage::Closed);
        self.queue.wake_all();
    }

    /// Closes the engine after a panic in a part of it: no lock can be acquired any more.
    pub(in crate::engine) fn set_panicked(&self) {
        self.life.set_panicked();
        self.set_closed();
    }

    /// Starts watchdog and worker on this runtime if they belong on a caller's runtime and no task runs them: at first, and
    /// after the runtime on which they ran has ended. Returns false if this runtime has ended too.
    pub(crate) fn ensure_running(self: &Arc<Self>) -> bool {
        !self.on_caller || self.is_running() || (self.callbacks.start)(self)
    }

    /// Waits for `work`, and restarts watchdog and worker on this runtime if theirs ends meanwhile:
    /// otherwise no task might do what `work` waits for.
    ///
    /// The caller pins `work`: a future that is moved in would take its space twice.
    pub(crate) async fn attend<F: Future>(self: &Arc<Self>, mut work: Pin<&mut F>) -> F::Output {
        if !self.on_caller {
            return work.await;
        }
        let mut vacated = pin!(self.vacated.notified());
        let mut listens = true;
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

    /// Returns whether a task runs watchdog and worker, on any runtime.
    pub(in crate::engine) fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.events.end();
    }
}

#[cfg(test)]
pub(in crate::engine) fn core_in_memory() -> Arc<Core> {
    use crate::engine::run::Engine;
    use crate::store::MemoryStore;

    let store = Arc::new(MemoryStore::new());
    Engine::core(Uuid::new_v4(), store, Timing::DEFAULT, Settings::PLAIN, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_spread_evenly_from_zero_to_below_one() {
        const DRAWS: usize = 4_000;
        let core = core_in_memory();
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
