//! A world of several managers on one store, in virtual time, with faults and a judge.

mod dice;
mod gate;
mod judge;
mod process;
#[cfg(test)]
mod right_handlers;
mod seeds;
mod still;
mod storm;
mod story;
#[cfg(test)]
mod tests;
mod watch;
#[cfg(test)]
mod wrong_handlers;

pub use judge::Breach;
pub use seeds::{Failure, Seeds};
pub use storm::Strike;

use crate::engine::Hold;
use crate::error::{Loss, Result};
use crate::manager::{Builder, LeaseManager};
use crate::store::{
    Acquire, Acquired, Fencing, HolderId, Inspect, MemoryStore, Name, Reason, Release, Steal,
    Store, Target,
};
use crate::testing;
use crate::util::sync::Mutex;
use dice::Dice;
use judge::{Judge, Token};
use process::{Held, Process};
use seeds::Played;
use std::collections::BTreeSet;
use std::fmt;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use still::Still;
use storm::{DrawnStrike, Storm};
use story::{Seconds, Who};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

/// What happens at one instant has no order; the judge looks again after this time.
const INSTANT: Duration = Duration::from_millis(1);

/// A world for one test run: several managers on one memory store, in virtual time, with faults on request and a judge.
///
/// Each manager stands for a process. [`seeds`](World::seeds) makes one world for each seed, and lets the seed strike with
/// faults; [`by_hand`](World::by_hand) makes one in which only the test strikes. In both, the code under test reports to the
/// judge: [`enter`](World::enter) when its work begins, and [`write`](World::write) when a resource has accepted a write. A
/// broken rule ends the run, and the [`Failure`] has the whole story.
///
/// ```
/// use leasehold::testing::World;
/// use leasehold::{LeaseManager, Result};
/// use std::time::Duration;
///
/// async fn ship(leases: LeaseManager, world: World) -> Result<()> {
///     let lease = leases.lock("orders").lock().await?;
///     let work = async {
///         let _work = world.enter("orders", lease.fence());
///         tokio::time::sleep(Duration::from_secs(40)).await;
///     };
///     lease.run(work).await // without `run`, the work goes on after a loss, and the judge finds that
/// }
///
/// let run = World::seeds(0..20).managers(3).run(|world| async move {
///     world.in_each_process(|leases| ship(leases, world.clone())).await;
///     Ok(())
/// });
/// run.unwrap();
/// ```
///
/// # Time
///
/// A world runs on a runtime of its own, with one thread and tokio's paused clock: while all tasks wait, the clock moves on to
/// the next timer, so hours pass in milliseconds. The same seed makes the same story each time, as long as the code under test
/// does nothing that its seed does not decide. So it must not use
///
/// - threads, `spawn_blocking`, other runtimes, sockets or files: virtual time does not wait for them. A socket of tokio
///   panics here;
/// - the wall clock, `std::time::Instant` or random numbers;
/// - the order of a `HashMap`, `select!` without `biased;` where two branches can be ready at once, and a `tokio::sync::watch`
///   with several receivers: tokio draws which branch runs, and which receiver is woken first.
///
/// When a seed fails, it runs a second time, and the [`Failure`] says if that was another story. Make all that the code under
/// test changes inside of the closure, so that each run begins with nothing.
///
/// # What a fault strikes
///
/// A fault of a process strikes all requests of its manager, and all its tasks: those of
/// [`in_each_process`](World::in_each_process) and of [`spawn`](World::spawn). Tasks that these spawn by `tokio::spawn` are not
/// known to the world: they go on while the process is frozen. The watchdog of a frozen manager goes on too, so a token may have
/// fired before the process runs again; [`check`](crate::Lease::check) and [`run`](crate::Lease::run) go by the clock, and
/// make no difference.
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    seed: u64,
    start: Instant,
    store: MemoryStore,
    processes: Vec<Process>,
    judge: Mutex<Judge>,
    /// Notifies of the verdict.
    judged: Notify,
    /// The number of steals.
    steals: AtomicU64,
    still: Mutex<Still>,
}

impl World {
    /// Makes a world for each of these seeds, which decides the faults.
    ///
    /// If the environment has `LEASEHOLD_SEED`, only that seed runs, and its story is printed.
    ///
    /// # Panics
    ///
    /// Panics if `LEASEHOLD_SEED` is not a number.
    pub fn seeds(seeds: impl IntoIterator<Item = u64>) -> Seeds {
        Seeds::new(seeds.into_iter().collect())
    }

    /// Makes one world, in which only the test strikes.
    ///
    /// ```
    /// use leasehold::testing::World;
    /// use leasehold::Loss;
    ///
    /// let run = World::by_hand().managers(2).run(|world| async move {
    ///     let lease = world.manager(0).lock("orders").lock().await?;
    ///     world.cut(0);
    ///     assert_eq!(lease.lost().await, Loss::Expired);
    ///     let next = world.manager(1).lock("orders").lock().await?;
    ///     assert!(next.fence() > lease.fence());
    ///     Ok(())
    /// });
    /// run.unwrap();
    /// ```
    pub fn by_hand() -> Seeds {
        Seeds::by_hand()
    }

    /// Creates the world of a seed, on the current runtime.
    fn new(seed: u64, managers: usize, settings: &Builder) -> Self {
        let mut dice = Dice::new(seed);
        let store = MemoryStore::at_origin();
        let processes: Vec<_> = (0..managers)
            .map(|_| Process::new(&store, settings.clone().seed(dice.roll())))
            .collect();
        let grace = processes.first().map_or(Duration::ZERO, Process::grace);
        let world = Self(Arc::new(Inner {
            seed,
            start: Instant::now(),
            processes,
            store,
            judge: Mutex::new(Judge::new(grace)),
            judged: Notify::new(),
            steals: AtomicU64::new(0),
            still: Mutex::default(),
        }));
        for manager in 0..managers {
            tokio::spawn(process::record(world.clone(), manager));
        }
        world
    }

    /// Returns the seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Returns the time since the world began.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.0.start.elapsed()
    }

    /// Returns the number of managers.
    #[must_use]
    pub fn managers(&self) -> usize {
        self.0.processes.len()
    }

    /// Returns one of the managers, counted from 0.
    ///
    /// # Panics
    ///
    /// Panics if there is no such manager, as all methods that name one.
    #[must_use]
    pub fn manager(&self, manager: usize) -> LeaseManager {
        self.process(manager).leases.clone()
    }

    /// Spawns a task of a manager's process: it stands still while the process is [frozen](World::freeze). A panic in it ends
    /// the run; one in a task of `tokio::spawn` is in its `JoinHandle` alone.
    ///
    /// ```
    /// use leasehold::testing::World;
    /// use std::time::Duration;
    ///
    /// let run = World::by_hand().managers(1).run(|world| async move {
    ///     let task = world.spawn(0, tokio::time::sleep(Duration::from_secs(1)));
    ///     world.freeze(0, Duration::from_secs(60));
    ///     task.await.expect("no panic");
    ///     assert_eq!(world.now().as_secs(), 60);
    ///     Ok(())
    /// });
    /// run.unwrap();
    /// ```
    pub fn spawn<F>(&self, manager: usize, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let gate = Arc::clone(&self.process(manager).gate);
        let world = self.clone();
        tokio::spawn(async move {
            match seeds::caught(Still::watch(&world, gate.run(task))).await {
                Ok(output) => output,
                Err(panic) => {
                    let text = format!("manager {manager}: {}", panic.text());
                    world.fail(Breach::Panic, text);
                    resume_unwind(panic.0)
                }
            }
        })
    }

    /// Runs the code under test in the process of each manager, with that manager, and waits until all have ended.
    ///
    /// An error that it returns is a line of the story, and no failure: a handler ends with one when its lease is lost. Unwrap
    /// what must not fail: a panic ends the run.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the tasks go on.
    ///
    /// ```
    /// use leasehold::testing::World;
    ///
    /// let run = World::seeds(0..20).managers(3).run(|world| async move {
    ///     let work = |leases: leasehold::LeaseManager| {
    ///         let world = world.clone();
    ///         async move {
    ///             let lease = leases.lock("orders").lock().await?;
    ///             let _work = world.enter("orders", lease.fence());
    ///             Ok(())
    ///         }
    ///     };
    ///     world.in_each_process(work).await;
    ///     Ok(())
    /// });
    /// run.unwrap();
    /// ```
    pub async fn in_each_process<F>(&self, handler: impl Fn(LeaseManager) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let begin = |manager| {
            let work = handler(self.manager(manager));
            let world = self.clone();
            self.spawn(manager, async move {
                let end = match work.await {
                    Ok(()) => "has ended".to_owned(),
                    Err(error) => format!("has ended with an error: {error}"),
                };
                world.add_line(Who::Manager(manager), end);
            })
        };
        let tasks: Vec<_> = (0..self.managers()).map(begin).collect();
        for task in tasks {
            // A panic has ended the world already.
            drop(task.await);
        }
    }

    /// Adds a line to the story.
    pub fn note(&self, text: impl fmt::Display) {
        self.add_line(Who::Test, text.to_string());
    }

    // Faults of a process.

    /// Cuts the network between a manager and the store: no request arrives before [`heal`](World::heal). Those whose callers
    /// still wait then arrive late; those that were given up never arrive.
    ///
    /// The leases of the manager are lost when their time is over, as [`Loss::Expired`](crate::Loss::Expired). Only requests are
    /// cut: wake-ups reach a waiter all the same, and their request waits for the heal.
    pub fn cut(&self, manager: usize) {
        self.fault(format!("cuts manager {manager} off"));
        self.process(manager).cut();
    }

    /// Makes each request of a manager arrive later by this time, until [`heal`](World::heal).
    pub fn delay(&self, manager: usize, by: Duration) {
        self.fault(format!("delays the requests of manager {manager} by {}", Seconds(by)));
        self.process(manager).delay(by);
    }

    /// Ends what [`cut`](World::cut) and [`delay`](World::delay) have begun.
    pub fn heal(&self, manager: usize) {
        if self.process(manager).heal() {
            self.fault(format!("heals the network of manager {manager}"));
        }
    }

    /// Freezes the process of a manager for a time, as a suspended machine is: none of its tasks is polled, and no request of
    /// its manager arrives. The time goes on for all others.
    pub fn freeze(&self, manager: usize, time: Duration) {
        self.fault(format!("freezes manager {manager} for {}", Seconds(time)));
        self.process(manager).freeze();
        self.judge(|judge, _| judge.freezes(manager));
        let world = self.clone();
        tokio::spawn(async move {
            sleep(time).await;
            let process = world.process(manager);
            // The judge first: from here on the tasks are polled.
            if process.thaw() {
                world.judge(|judge, now| judge.thaws(now, manager));
                world.fault(format!("lets manager {manager} go on"));
            }
        });
    }

    // Faults of the store.

    /// Deletes what the store has under a name, as an operator's `DEL` does. No waiter is woken. Returns whether it was held.
    ///
    /// The holder learns of it at its next renewal, as [`Loss::Gone`](crate::Loss::Gone), or as
    /// [`Loss::Taken`](crate::Loss::Taken) if another holder has the name by then.
    pub fn expire(&self, name: &str) -> bool {
        self.fault(format!("deletes {name:?} in the store"));
        let was_held = self.0.store.delete(name);
        if was_held {
            self.judge(|judge, now| judge.forgets(now, Some(name)));
        }
        was_held
    }

    /// Takes an exclusive lock from its holder, as [`Lock::steal`](crate::Lock::steal) does, and releases it at once, so that
    /// the next waiter has it. Returns whether a manager held it.
    ///
    /// The holder learns of it as [`Loss::Stolen`](crate::Loss::Stolen).
    pub fn steal(&self, name: &str) -> bool {
        let Ok(valid) = Name::new(name) else { return false };
        let target = Target::exclusive(valid);
        let timeout = Duration::from_secs(1);
        let inspect = Inspect::new(target.clone(), timeout);
        let holders = done(self.0.store.inspect(inspect)).map(|inspection| inspection.holders);
        let holder = holders.into_iter().flatten().find(|holder| holder.closed.is_none());
        let Some(holder) = holder else { return false };
        let number = self.0.steals.fetch_add(1, Ordering::Relaxed);
        let thief = HolderId::new(Uuid::from_u128(1), number);
        let reason = Reason { by: "the test".into(), why: "a fault of the world".into() };
        let steal = Steal::new(holder.holder, reason);
        let request = Acquire::new(target.clone(), thief, Duration::from_secs(1), timeout)
            .with_fencing(Some(Fencing::new(1, None)))
            .with_steal(Some(steal));
        let stolen = matches!(done(self.0.store.acquire(request)), Some(Acquired::Granted { .. }));
        if stolen {
            self.fault(format!("steals {name:?}"));
            self.judge(|judge, now| judge.forgets(now, Some(name)));
            done(self.0.store.release(Release::new(target, thief, 0, timeout)));
        }
        stolen
    }

    /// Makes the store forget everything, as `FLUSHALL` or a restart without persistence does. No waiter is woken.
    pub fn flush(&self) {
        self.fault("flushes the store".to_owned());
        self.judge(|judge, now| judge.forgets(now, None));
        self.0.store.restart();
    }

    /// Makes the store forget the grants of the last `within`, as a failover to a replica that lags behind does. No waiter is
    /// woken. Returns the number of holds that it forgets.
    pub fn forget_last_grants(&self, within: Duration) -> usize {
        let young = |process: &Process| process.granted_within(within);
        let mut holds: Vec<_> = self.0.processes.iter().flat_map(young).collect();
        holds.retain(|hold| self.0.store.forget(&hold.name, hold.holder));
        let names: BTreeSet<&Name> = holds.iter().map(|hold| &hold.name).collect();
        for name in names {
            self.fault(format!("fails over, and the store forgets {:?}", name.as_str()));
            self.judge(|judge, now| judge.forgets(now, Some(name.as_str())));
        }
        holds.len()
    }

    /// Ends all leases of a name with this cause at once, in all managers, as [`testing::lose`](crate::testing::lose) does. Returns
    /// whether there were any.
    pub fn lose(&self, name: &str, loss: Loss) -> bool {
        self.fault(format!("ends the leases of {name:?}: {loss}"));
        let lose = |process: &Process| testing::lose(&process.leases, name, loss).unwrap_or(false);
        self.0.processes.iter().filter(|process| lose(process)).count() > 0
    }

    // The judge.

    /// Reports that work on a resource begins, under the lease with this [fencing token](crate::Lease::fence). It lasts until
    /// the guard is dropped.
    ///
    /// `name` is that of the lock. Report where the work is done, as in the fake of a database. The judge looks the lease up by
    /// its token, and ends the run as [`AfterLoss`](Breach::AfterLoss) if the work goes on when the lease has been lost for
    /// longer than the [grace](crate::Builder::grace), as [`WithoutLease`](Breach::WithoutLease) if it goes on when the lease is
    /// released, and as [`Overlap`](Breach::Overlap) if leasehold breaks a promise. A lease whose
    /// [mode](crate::ReadLease::try_upgrade) has changed has a new token: report again with that one.
    ///
    /// Work is over when the guard is dropped: bind it as `_work`, since `let _ = ..` drops it at once. Several calls that share
    /// a lease, as readers of one process do, are one holder: a reader that works on after its own release is not found while
    /// another of its process reads.
    ///
    /// Permits of a semaphore have no token, so this is not for them.
    ///
    /// ```
    /// use leasehold::testing::{Breach, World};
    ///
    /// let run = World::by_hand().managers(1).run(|world| async move {
    ///     let fence = world.manager(0).lock("orders").lock().await?.fence(); // and here the lease is dropped
    ///     let _work = world.enter("orders", fence);
    ///     tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    ///     Ok(())
    /// });
    /// assert_eq!(run.unwrap_err().breach(), Breach::WithoutLease);
    /// ```
    pub fn enter(&self, name: &str, fence: impl Into<Option<u64>>) -> Work {
        let Some(fence) = fence.into() else {
            let text = format!(
                "work on {name:?} begins without a fencing token: turn fencing on, or do not report it if it has a permit, \
                 which has no token"
            );
            self.fail(Breach::WithoutLease, text);
            return Work { world: self.clone(), id: 0, watch: None };
        };
        let token = Token { name: name.to_owned(), fence };
        let held = self.held(&token);
        let lease = held.as_ref().map(|held| held.lease(self.now()));
        let entered = self.judge(|judge, now| judge.enter(now, token.clone(), lease));
        let id = entered.id;
        let world = self.clone();
        let watch = match held {
            Some(held) => tokio::spawn(watch::lease(world, id, token, held)),
            None => tokio::spawn(watch::find_lease(world, id, token)),
        };
        for doubt in entered.doubts {
            let kept = watch::kept(self, &doubt);
            tokio::spawn(watch::settle(self.clone(), doubt, kept));
        }
        // Work that has no lease is judged also if it ends at once.
        Work { world: self.clone(), id, watch: lease.map(|_| watch.abort_handle()) }
    }

    /// Reports that a resource has accepted a write with this [fencing token](crate::Lease::fence).
    ///
    /// The judge ends the run as [`Order`](Breach::Order) if a write with a larger token came before. No handler can prevent each
    /// late write, because its process may be frozen between the last check and the write: the resource must refuse it.
    /// Readers of a read-write lock are compared with writers only.
    ///
    /// ```
    /// use leasehold::testing::{Breach, World};
    ///
    /// let run = World::by_hand().run(|world| async move {
    ///     world.write("orders", 2);
    ///     world.write("orders", 1); // the resource should have refused that
    ///     Ok(())
    /// });
    /// assert_eq!(run.unwrap_err().breach(), Breach::Order);
    /// ```
    pub fn write(&self, name: &str, fence: u64) {
        let token = Token { name: name.to_owned(), fence };
        let lease = self.held(&token).map(|held| held.lease(self.now()));
        self.judge(|judge, now| judge.write(now, token, lease));
    }

    /// Lets the judge look at something, and notifies of a verdict.
    fn judge<T>(&self, look: impl FnOnce(&mut Judge, Duration) -> T) -> T {
        let now = self.now();
        let mut judge = self.0.judge.lock();
        let seen = look(&mut judge, now);
        let is_over = judge.verdict().is_some();
        drop(judge);
        if is_over {
            self.0.judged.notify_one();
        }
        seen
    }

    fn add_line(&self, who: Who, what: String) {
        self.judge(|judge, now| judge.add_line(now, who, what));
    }

    fn fault(&self, what: String) {
        self.add_line(Who::Fault, what);
    }

    fn process(&self, manager: usize) -> &Process {
        let count = self.managers();
        let Some(process) = self.0.processes.get(manager) else {
            panic!("there is no manager {manager}: this world has {count}, counted from 0");
        };
        process
    }

    fn holds(&self) -> Vec<Arc<Hold>> {
        self.0.processes.iter().flat_map(Process::holds).collect()
    }

    /// Returns the hold that a token is of, while it is in use.
    fn held(&self, token: &Token) -> Option<Held> {
        let mut all = self.0.processes.iter().enumerate();
        all.find_map(|(manager, process)| process.held(manager, token))
    }

    fn fail(&self, breach: Breach, text: String) {
        self.judge(|judge, now| judge.fail(now, breach, text));
    }

    /// Returns the TTL of the managers.
    fn ttl(&self) -> Duration {
        self.0.processes.first().map_or(Duration::ZERO, Process::ttl)
    }

    fn begin_storm(&self, storm: Storm) {
        tokio::spawn(self.clone().storm(storm));
    }

    /// Strikes with what the seed decides, for ten TTLs; then all is healed.
    async fn storm(self, mut storm: Storm) {
        let end = self.now() + 10 * self.ttl();
        loop {
            let left = end.saturating_sub(self.now());
            let pause = storm.pause();
            if pause >= left {
                sleep(left).await;
                break;
            }
            sleep(pause).await;
            let names: BTreeSet<_> =
                self.holds().iter().map(|hold| hold.name.as_str().to_owned()).collect();
            let names: Vec<String> = names.into_iter().collect();
            if let Some(act) = storm.next(self.managers(), &names) {
                self.apply(act.within(left - pause));
            }
        }
        for manager in 0..self.managers() {
            self.heal(manager);
        }
        sleep(INSTANT).await; // the last freezes end at this one
        self.fault("ends: from here on nothing goes wrong".to_owned());
    }

    fn apply(&self, act: DrawnStrike) {
        match act {
            DrawnStrike::Freeze { manager, time } => self.freeze(manager, time),
            DrawnStrike::Cut { manager, time } => {
                self.cut(manager);
                self.heal_after(manager, time);
            }
            DrawnStrike::Delay { manager, by, time } => {
                self.delay(manager, by);
                self.heal_after(manager, time);
            }
            DrawnStrike::Expire { name } => drop(self.expire(&name)),
            DrawnStrike::Steal { name } => drop(self.steal(&name)),
            DrawnStrike::Flush => self.flush(),
            DrawnStrike::ForgetLastGrants { within } => drop(self.forget_last_grants(within)),
        }
    }

    fn heal_after(&self, manager: usize, time: Duration) {
        let world = self.clone();
        tokio::spawn(async move {
            sleep(time).await;
            world.heal(manager);
        });
    }

    /// Waits for a verdict.
    async fn judged(&self) {
        self.0.judged.notified().await;
    }

    fn played(&self) -> Played {
        let judge = self.0.judge.lock();
        Played {
            verdict: judge.verdict().cloned(),
            story: judge.story().clone(),
            seen: judge.seen(),
        }
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("seed", &self.seed())
            .field("now", &self.now())
            .field("managers", &self.managers())
            .finish_non_exhaustive()
    }
}

/// Work that goes on, until this is dropped: see [`World::enter`].
#[derive(Debug)]
#[must_use = "the work lasts until this is dropped: bind it, `let _work = ..`"]
pub struct Work {
    world: World,
    id: u64,
    watch: Option<AbortHandle>,
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
        self.world.judge(|judge, now| judge.leave(now, self.id));
    }
}

/// Returns the answer of a memory store, which is there at once.
fn done<T>(call: impl Future<Output = Result<T>>) -> Option<T> {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer.ok(),
        Poll::Pending => None,
    }
}
