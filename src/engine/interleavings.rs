//! How threads interleave at the locks of the engine, explored by shuttle: `.ci/long shuttle`.
//!
//! Each thread calls the handles that users have. A thread of its own does the jobs of the worker. Time stands still: no timer fires,
//! no lease is renewed or lost by the clock; the watchdog renews when it is asked to verify. So a waiter that is not woken by what it
//! waits for blocks forever, which shuttle reports with the schedule that leads there.
//!
//! Shuttle switches threads at each lock and unlock of a [`Mutex`](crate::util::sync::Mutex), and at each wait of a future. It
//! does not switch at the atomics, nor within the channels and notifiers of tokio.
//!
//! Not explored: the thread of the hard stop and that of the log, which wait at channels and by the clock; what describes a hold; and
//! the connections of each runtime. The tests of faults and the soak run them.
//!
//! The batcher of Redis has such a test beside its code, in `src/store/redis/send/batch.rs`.

#[cfg(test)]
mod tests {
    use crate::clock::{Clock, Instant, Sleeper};
    use crate::engine::background::{self, jobs::Work};
    use crate::engine::hold::handoff;
    use crate::engine::machine::hold::State;
    use crate::engine::machine::timing::Timing;
    use crate::engine::run::Engine;
    use crate::engine::shared::core::{Core, WorkQueues};
    use crate::engine::shared::hold::{Hold, HolderAndFence};
    use crate::engine::shared::lifecycle::Stage;
    use crate::engine::shared::options::{Options, Settings};
    use crate::engine::shared::schedule::{Schedule, ScheduledCall};
    use crate::engine::watchdog;
    use crate::error::{ErrorKind, Loss};
    use crate::locks::lock::Lock;
    use crate::locks::rw_lock::{RwLock, Upgraded};
    use crate::locks::semaphore::Semaphore;
    use crate::store::{Fencing, HolderId, MemoryStore, Name, Target};
    use crate::util::sync::explore as explore_threads;
    use shuttle::future::block_on;
    use shuttle::sync::mpsc;
    use shuttle::thread;
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
    use std::task::{Context, Waker};
    use std::time::Duration;
    use uuid::Uuid;

    /// Explores schedules of a test.
    fn explore(test: impl Fn(&Arc<World>) + Send + Sync + 'static) {
        explore_with(None, test);
    }

    fn explore_with(linger: Option<Duration>, test: impl Fn(&Arc<World>) + Send + Sync + 'static) {
        explore_threads(move || World::run(linger, &test));
    }

    /// A manager on a memory store, and what is inside.
    struct World {
        engine: Arc<Engine>,
        inside: AtomicI32,
        last_fence: AtomicU64,
    }

    impl World {
        /// Runs a test where holds rest for so long, ends the worker, and checks that nothing is left.
        fn run(linger: Option<Duration>, test: impl FnOnce(&Arc<Self>)) {
            let store = MemoryStore::new();
            let settings = Settings {
                max_local_handoffs: 2,
                linger,
                fencing: Some(Fencing::new(3, Some(Duration::from_secs(3_600)))),
                ..Settings::PLAIN
            };
            let core =
                Engine::core(Uuid::nil(), Arc::new(store.clone()), Timing::DEFAULT, settings, true);
            let queues = core.work_queues().take().expect("no task has them yet");
            core.running.store(true, Ordering::Release);
            let engine = Arc::new(Engine { core: Arc::clone(&core) });
            let worker = {
                let core = Arc::clone(&core);
                thread::spawn(move || work(&core, queues))
            };
            let world =
                Arc::new(Self { engine, inside: AtomicI32::new(0), last_fence: AtomicU64::new(0) });
            test(&world);
            // Time stands still, so no rest ends by itself.
            handoff::end_rests(&core);
            // The last reference ends the engine.
            drop(world);
            worker.join().unwrap();
            assert!(core.queue.is_empty(), "a name has an occupant, or a waiter a waker");
            assert_eq!(store.len(), 0, "the store has a name");
        }

        fn threads(self: &Arc<Self>, works: impl IntoIterator<Item = fn(&Arc<Self>)>) {
            let start = |work: fn(&Arc<Self>)| {
                let world = Arc::clone(self);
                thread::spawn(move || work(&world))
            };
            let threads: Vec<_> = works.into_iter().map(start).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }

        fn lock(self: &Arc<Self>) -> Lock {
            Lock::new(Arc::clone(&self.engine), "n")
        }

        /// Is where at most `most` holders are at one time, each with `weight`.
        fn enter(&self, weight: i32, most: i32) {
            let inside = self.inside.fetch_add(weight, Ordering::SeqCst) + weight;
            assert!(inside <= most, "{inside} are inside, where {most} may be");
            thread::yield_now();
            self.inside.fetch_sub(weight, Ordering::SeqCst);
        }

        fn alone(&self, fence: Option<u64>) {
            let fence = fence.expect("fencing is on");
            let last = self.last_fence.swap(fence, Ordering::SeqCst);
            assert!(fence > last, "{fence} after {last}");
            self.enter(1, 1);
        }
    }

    /// Does the work of the worker until the engine is no longer needed and none is left.
    fn work(core: &Arc<Core>, mut queues: WorkQueues) {
        block_on(async {
            loop {
                tokio::select! {
                    biased;
                    Some(calls) = queues.calls.recv() => {
                        for call in calls {
                            background::renew(core, call).await;
                        }
                    }
                    Some(job) = queues.jobs.recv() => Work::new(core, job).run().await,
                    () = core.life.until(Stage::Ending) => break,
                }
            }
        });
    }

    /// Polls a future a few times, and drops it. Returns its output if it was ready.
    fn poll_some<F: Future>(times: usize, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        for _ in 0..times {
            let poll = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if let std::task::Poll::Ready(output) = poll {
                return Some(output);
            }
            thread::yield_now();
        }
        None
    }

    fn lock_and_unlock(world: &Arc<World>) {
        let mut lock = world.lock();
        for _ in 0..2 {
            let lease = block_on(lock.lock()).unwrap();
            world.alone(lease.fence());
            block_on(lease.unlock()).unwrap();
        }
    }

    fn lock_and_drop(world: &Arc<World>) {
        let lease = block_on(world.lock().lock()).unwrap();
        world.alone(lease.fence());
        drop(lease);
    }

    fn give_up(world: &Arc<World>) {
        for times in 1..4 {
            if let Some(lease) = poll_some(times, world.lock().lock()) {
                let lease = lease.unwrap();
                world.alone(lease.fence());
                if times % 2 == 0 {
                    block_on(lease.unlock()).unwrap();
                }
            }
        }
    }

    fn try_once(world: &Arc<World>) {
        if let Some(lease) = block_on(world.lock().try_lock()).unwrap() {
            world.alone(lease.fence());
            block_on(lease.unlock()).unwrap();
        }
    }

    #[test]
    fn lock_is_handed_off_and_released() {
        explore(|world| world.threads([lock_and_unlock as fn(&_), lock_and_unlock, lock_and_drop]));
    }

    #[test]
    fn waiters_that_give_up_leave_nothing() {
        explore(|world| world.threads([lock_and_unlock as fn(&_), give_up, give_up, try_once]));
    }

    /// Another manager asks while all this goes on.
    fn asked(world: &Arc<World>) {
        let core = &world.engine.core;
        let name = Name::new("n").unwrap();
        for _ in 0..3 {
            handoff::yield_rest(core, &name);
            thread::yield_now();
        }
    }

    #[test]
    fn hold_that_rests_is_taken_over_or_released() {
        let linger = Some(Duration::from_millis(20));
        explore_with(linger, |world| {
            world.threads([lock_and_unlock as fn(&_), lock_and_drop, give_up, asked]);
        });
        explore_with(linger, |world| {
            world.threads([lock_and_unlock as fn(&_), try_once, try_once, lock_and_drop]);
        });
    }

    /// Waits for the lock, and says so when it does.
    fn wait_and_lock(world: &Arc<World>, waits: &mpsc::Sender<()>) {
        let mut lock = world.lock();
        let mut call = pin!(lock.lock());
        let poll = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending(), "the name is held");
        waits.send(()).unwrap();
        let lease = block_on(call).unwrap();
        world.alone(lease.fence());
        block_on(lease.unlock()).unwrap();
    }

    /// The question comes once, before the hold is handed off, while it is, or after that. There is a hold all the time, so it
    /// must be heard.
    #[test]
    fn question_is_heard_while_a_hold_is_handed_off() {
        explore_with(Some(Duration::from_millis(20)), |world| {
            let lease = block_on(world.lock().lock()).unwrap();
            let (waits, waiting) = mpsc::channel();
            let next = {
                let world = Arc::clone(world);
                thread::spawn(move || wait_and_lock(&world, &waits))
            };
            waiting.recv().unwrap();
            let unlock = thread::spawn(move || block_on(lease.unlock()).unwrap());
            let (core, name) = (&world.engine.core, Name::new("n").unwrap());
            handoff::yield_rest(core, &name);
            unlock.join().unwrap();
            next.join().unwrap();
            let rests = |hold: &Arc<Hold>| hold.lock().state.rests();
            assert!(!core.queue.holds_of(&name).iter().any(rests), "the question was not heard");
        });
    }

    fn read(world: &Arc<World>) {
        let mut lock = RwLock::new(Arc::clone(&world.engine), "n");
        let page = block_on(lock.read()).unwrap();
        world.enter(1, 10);
        if let Upgraded::Write(edit) = block_on(page.try_upgrade()).unwrap() {
            world.enter(10, 10);
            block_on(edit.unlock()).unwrap();
        }
    }

    fn write(world: &Arc<World>) {
        let mut lock = RwLock::new(Arc::clone(&world.engine), "n");
        let edit = block_on(lock.write()).unwrap();
        world.enter(10, 10);
        let page = block_on(edit.downgrade()).unwrap();
        world.enter(1, 10);
        drop(page);
    }

    #[test]
    fn readers_and_writers_exclude_each_other() {
        explore(|world| world.threads([read as fn(&_), read, write]));
    }

    fn permit(world: &Arc<World>) {
        let semaphore = Semaphore::new(Arc::clone(&world.engine), "n", 2);
        let permit = block_on(semaphore.acquire()).unwrap();
        world.enter(1, 2);
        block_on(permit.unlock()).unwrap();
    }

    fn give_up_permit(world: &Arc<World>) {
        let semaphore = Semaphore::new(Arc::clone(&world.engine), "n", 2);
        for times in 1..3 {
            if let Some(permit) = poll_some(times, semaphore.acquire()) {
                drop(permit.unwrap());
            }
        }
    }

    #[test]
    fn permits_are_no_more_than_there_are() {
        explore(|world| world.threads([permit as fn(&_), permit, permit, give_up_permit]));
    }

    fn lock_until_closed(world: &Arc<World>) {
        let mut lock = world.lock();
        // Not for longer: the thread that closes may come last.
        for _ in 0..5 {
            match block_on(lock.lock()) {
                Ok(lease) => match lease.check() {
                    Ok(()) => drop(lease),
                    Err(error) => assert_eq!(error.loss(), Some(Loss::Closed)),
                },
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::Closed | ErrorKind::Lost), "{error}");
                    break;
                }
            }
        }
    }

    #[test]
    fn close_ends_all_calls() {
        explore(|world| {
            world.threads([lock_until_closed as fn(&_), lock_until_closed, |world| {
                let core = &world.engine.core;
                core.set_closed();
                let holds = core.queue.holds();
                holds.iter().for_each(|hold| hold.lose(core, Loss::Closed));
            }]);
        });
    }

    /// Asks the watchdog to verify all holds, as after a reconnect.
    fn verify(world: &Arc<World>) {
        for _ in 0..3 {
            world.engine.core.verify.notify_one();
            thread::yield_now();
        }
    }

    /// The watchdog takes holds out of the schedule while they are handed off, released and renewed. One that is held is there again
    /// afterwards: nothing else would renew it, or fire its token.
    #[test]
    fn hold_that_is_verified_comes_back_into_the_schedule() {
        explore_with(Some(Duration::from_millis(20)), |world| {
            let core = &world.engine.core;
            let (end, ended) = tokio::sync::oneshot::channel();
            let watchdog = {
                let core = Arc::clone(core);
                thread::spawn(move || {
                    block_on(async {
                        tokio::select! {
                            biased;
                            () = watchdog::run(&core) => {}
                            _ = ended => {}
                        }
                    });
                })
            };
            let lease = block_on(Lock::new(Arc::clone(&world.engine), "held").lock()).unwrap();
            world.threads([verify as fn(&_), lock_and_unlock, lock_and_drop]);
            end.send(()).unwrap();
            watchdog.join().unwrap();
            let hold = core.queue.holds_of(&Name::new("held").unwrap()).remove(0);
            // The worker answers what the watchdog has sent. If the hold never comes, this is a schedule without an end.
            while !core.schedule.all().iter().any(|(_, each)| Arc::ptr_eq(each, &hold)) {
                thread::yield_now();
            }
            lease.check().unwrap();
            block_on(lease.unlock()).unwrap();
        });
    }

    /// A schedule, and the hour from `start` on. Time stands still, so the watchdog wakes only when it is woken.
    struct Hour {
        schedule: Schedule,
        clock: Clock,
        start: Instant,
    }

    impl Hour {
        fn at(&self, minute: u64) -> Instant {
            self.start + Duration::from_secs(60 * minute)
        }

        fn hold(&self) -> Arc<Hold> {
            let state = State::granted(self.start, self.start, None, None);
            let id = HolderAndFence { holder: HolderId::new(Uuid::nil(), 1), fence: None };
            let target = Target::exclusive(Name::new("n").unwrap());
            Hold::new(target, Options::default(), id, self.start, state, None)
        }

        /// Takes out what is due in this hour each time that the schedule wakes, until that of the minute is there.
        fn watch_until(&self, minute: u64) {
            let mut sleeper = Sleeper::new(&self.clock);
            loop {
                block_on(self.schedule.wait(&mut sleeper));
                let due = self.schedule.due(self.at(60)).holds;
                if due.iter().any(|(at, _)| *at == self.at(minute)) {
                    break;
                }
            }
        }

        /// Has holds begin and end.
        fn come_and_go(&self) {
            for minute in [50, 30, 40, 20] {
                let hold = self.hold();
                self.schedule.set(&hold, None, Some(self.at(minute)));
                if minute < 40 {
                    self.schedule.set(&hold, Some(self.at(minute)), None);
                }
            }
        }

        /// Has a call sent and answered.
        fn call(&self) {
            for minute in [45, 15] {
                let call = ScheduledCall::new(&self.schedule, Vec::new(), self.at(minute));
                self.schedule.remove(call.key);
            }
        }

        /// Has one hold after the other due earlier.
        fn move_ahead(&self) {
            let first = self.hold();
            let next = self.hold();
            self.schedule.set(&first, None, Some(self.at(35)));
            self.schedule.set(&first, Some(self.at(35)), Some(self.at(25)));
            self.schedule.replace(first.number, Some(self.at(25)), &next, Some(self.at(10)));
        }
    }

    #[test]
    fn watchdog_is_woken_for_what_is_due_first() {
        explore_threads(|| {
            let clock = Clock::tokio();
            let hour = Arc::new(Hour { schedule: Schedule::default(), start: clock.now(), clock });
            let start = |work: fn(&Hour)| {
                let hour = Arc::clone(&hour);
                thread::spawn(move || work(&hour))
            };
            let watchdog = start(|hour| hour.watch_until(10));
            let works = [Hour::come_and_go as fn(&_), Hour::call, Hour::move_ahead];
            works.map(start).into_iter().for_each(|thread| thread.join().unwrap());
            watchdog.join().unwrap();
            // What it was armed for has gone meanwhile.
            let watchdog = start(|hour| hour.watch_until(5));
            hour.schedule.set(&hour.hold(), None, Some(hour.at(5)));
            watchdog.join().unwrap();
        });
    }
}
