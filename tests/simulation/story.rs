//! One run: processes that lock and storms that hit them, then fair weather, in which all must end well.

use super::caller::Caller;
use super::judge::Sometimes;
use super::log::Log;
use super::plan::{LogFault, Plan, ms};
use super::runtime::{Gate, Task, USER, was_on_purpose};
use super::share::{POOL, READ_WRITE};
use super::world::{Client, World};
use kit::Dice;
use leasehold::LeaseManager;
use leasehold::store::Name;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

pub struct Outcome {
    pub failure: Option<String>,
    pub counts: Vec<u64>,
    pub log: Vec<String>,
}

pub struct Process {
    pub client: Client,
    pub manager: LeaseManager,
    pub callers: Vec<Task>,
}

pub struct Story {
    pub world: Arc<World>,
    dice: Dice,
    /// For floods, and for what flows leave alone.
    odd: Dice,
    /// For what users' runtimes do.
    pub users: Dice,
    /// For waiters that leave when they are served.
    last: Dice,
    /// For those who share names.
    shares: Dice,
    /// For those who lead, and run jobs.
    serves: Dice,
    pub processes: Vec<Process>,
    /// Flows and closings of processes and runtimes that are gone, and what heals later.
    pub rest: Vec<JoinHandle<()>>,
    tasks: u64,
    over: Arc<AtomicBool>,
}

/// Runs a seed from beginning to end.
pub fn run(seed: u64, keep_log: bool) -> Outcome {
    run_with(seed, keep_log, |_| ())
}

/// Runs a seed with a plan that is not all its own.
pub fn run_with(seed: u64, keep_log: bool, change: impl FnOnce(&mut Plan)) -> Outcome {
    let mut dice = Dice::new(seed);
    let mut plan = Plan::draw(seed, &mut dice);
    change(&mut plan);
    // Without it the lines of a run that has no log are written too, as long as a log was there once.
    tracing::callsite::rebuild_interest_cache();
    let log = plan.log.map(|fault| Log::start(fault, plan.log_panics_in_calls));
    let calls = log.as_ref().map(Log::calls);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
    let (odd, users, last) = (plan.odd.clone(), plan.users.clone(), plan.last.clone());
    let (shares, serves) = (plan.shares.clone(), plan.serves.clone());
    let world = runtime.block_on(USER.scope((), async move {
        let world = World::new(plan, dice.fork(), calls, keep_log);
        let story = Story {
            world: Arc::clone(&world),
            dice,
            odd,
            users,
            last,
            shares,
            serves,
            processes: Vec::new(),
            rest: Vec::new(),
            tasks: 0,
            over: Arc::default(),
        };
        story.play().await;
        world
    }));
    let end = runtime.block_on(async { world.now() });
    drop(runtime);
    world.look_at_log(end);
    let mut inner = world.lock();
    let judge = &mut inner.judge;
    log.iter().flat_map(Log::seen).for_each(|what| judge.saw(what));
    Outcome {
        failure: judge.failure.take(),
        counts: std::mem::take(&mut judge.counts),
        log: judge.log.take().unwrap_or_default(),
    }
}

impl Story {
    async fn play(mut self) {
        let world = Arc::clone(&self.world);
        let ttl = world.plan.ttl;
        let base = Handle::current().metrics().num_alive_tasks();
        let watch = tokio::spawn(watch(Arc::clone(&world)));
        for _ in 0..world.plan.clients {
            self.start();
        }
        for _ in 0..2 {
            world.weather(true);
            let end = world.now() + self.dice.between(2, 5) * ttl;
            while world.now() < end {
                let pause = self.dice.between(1, ttl / 3);
                sleep(ms(pause)).await;
                self.strike();
            }
            self.clear_up();
            let calm = self.dice.between(2, 5) * ttl;
            sleep(ms(calm)).await;
        }
        self.end().await;
        watch.abort();
        let _ = watch.await;
        self.leave_nothing(base).await;
    }

    /// One more process, and its flows.
    fn start(&mut self) {
        let client = self.world.client();
        let world = Arc::clone(&self.world);
        let plan = &world.plan;
        let mut builder = LeaseManager::builder()
            .ttl(ms(plan.ttl))
            .max_poll_interval(ms(plan.poll))
            .max_local_handoffs(plan.handoff)
            .seed(self.dice.roll());
        if let Some(max) = plan.max_hold {
            builder = builder.max_hold(ms(max));
        }
        // Without hand-offs nothing rests.
        if let Some(linger) = plan.linger.filter(|_| plan.handoff > 0) {
            builder = builder.linger(ms(linger));
        }
        let manager = builder.build(client.clone()).expect("good settings");
        let mut callers = Vec::new();
        for _ in 0..plan.tasks {
            let dice = (self.dice.fork(), self.odd.fork());
            let caller = self.caller(&client, &manager, dice);
            callers.push(Task::spawn(caller.gate.clone(), true, caller.run()));
        }
        for _ in 0..plan.sharers {
            let caller = self.sharer(&client, &manager);
            callers.push(Task::spawn(caller.gate.clone(), false, caller.share()));
        }
        for _ in 0..plan.services {
            let caller = self.server(&client, &manager);
            callers.push(Task::spawn(caller.gate.clone(), false, caller.serve()));
        }
        if plan.services > 0 {
            let caller = self.server(&client, &manager);
            callers.push(Task::spawn(caller.gate.clone(), false, caller.observe()));
        }
        self.processes.push(Process { client, manager, callers });
    }

    pub fn caller(
        &mut self,
        client: &Client,
        manager: &LeaseManager,
        (dice, odd): (Dice, Dice),
    ) -> Caller {
        let last = self.last.fork();
        self.caller_of(client, manager, [dice, odd, last])
    }

    fn sharer(&mut self, client: &Client, manager: &LeaseManager) -> Caller {
        let dice = [self.shares.fork(), self.shares.fork(), self.shares.fork()];
        self.caller_of(client, manager, dice)
    }

    /// One that leads, and runs jobs.
    fn server(&mut self, client: &Client, manager: &LeaseManager) -> Caller {
        let dice = [self.serves.fork(), self.serves.fork(), self.serves.fork()];
        self.caller_of(client, manager, dice)
    }

    fn caller_of(&mut self, client: &Client, manager: &LeaseManager, dice: [Dice; 3]) -> Caller {
        self.tasks += 1;
        let [dice, odd, last] = dice;
        Caller {
            client: client.clone(),
            manager: manager.clone(),
            task: self.tasks,
            dice,
            odd,
            last,
            gate: Gate::new(&self.world, (client.id, self.tasks)),
            over: Arc::clone(&self.over),
        }
    }

    /// Many flows of one process want one name at once.
    fn flood(&mut self, at: usize) {
        self.world.lock().judge.saw(Sometimes::Flood);
        let (client, manager) =
            (self.processes[at].client.clone(), self.processes[at].manager.clone());
        for _ in 0..self.odd.between(3, 12) {
            let dice = (self.odd.fork(), self.odd.fork());
            let caller = self.caller(&client, &manager, dice);
            self.processes[at].callers.push(Task::spawn(caller.gate.clone(), false, caller.once()));
        }
    }

    fn name(&mut self) -> Name {
        let number = self.dice.below(self.world.plan.names);
        Name::new(&format!("n{number}")).expect("a good name")
    }

    /// What goes wrong now.
    fn strike(&mut self) {
        let world = Arc::clone(&self.world);
        let (faults, ttl) = (&world.plan.faults, world.plan.ttl);
        let at = self.dice.below(self.processes.len() as u64) as usize;
        let client = self.processes[at].client.id;
        // The chances are for a whole storm of about five T, with six strikes in each T.
        let mut hits = |chance: u64| self.dice.below(1000) < chance * 2;
        let (partition, freeze) = (hits(faults.partition), hits(faults.freeze));
        let (restart, wipe) = (hits(faults.restart), hits(faults.wipe));
        let (delete, force) = (hits(faults.delete), hits(faults.force));
        let (step, failover) = (hits(faults.step), hits(faults.failover));
        let (crash, close) = (hits(faults.crash), hits(faults.close));
        let (reconnect, hint) = (hits(faults.reconnect), hits(faults.hint_odd));
        let mut hits = |chance: u64| self.odd.below(1000) < chance * 2;
        let (flood, outage) = (hits(faults.flood), hits(faults.outage));
        if flood {
            self.flood(at);
        }
        self.strike_runtime(at);
        if outage {
            world.set_link(client, false, false);
            let time = self.odd.between(ttl, 4 * ttl);
            self.later(time, move |world| {
                world.set_link(client, true, true);
                world.reconnected(client);
            });
        }
        if partition || freeze {
            let (there, back) = self.dice.pick(&[(false, false), (true, false), (false, true)]);
            if freeze {
                world.freeze(client);
            } else {
                world.set_link(client, there, back);
            }
            let time = self.dice.below(ttl * 3 / 2);
            self.later(time, move |world| {
                world.set_link(client, true, true);
                world.reconnected(client);
            });
        }
        if restart || wipe {
            world.set_server(false, wipe);
            let clients: Vec<usize> = self.processes.iter().map(|each| each.client.id).collect();
            let time = self.dice.below(ttl);
            self.later(time, move |world| {
                world.set_server(true, false);
                clients.into_iter().for_each(|client| world.reconnected(client));
            });
        }
        if delete {
            let name = self.name();
            world.delete(&name);
            if world.plan.sharers > 0 {
                let name = self.shares.pick(&[READ_WRITE, POOL]);
                world.delete(&Name::new(name).expect("a good name"));
            }
        }
        if force {
            let (manager, name) = (self.processes[at].manager.clone(), self.name());
            world.lock().judge.revoking.insert(client);
            self.rest.push(tokio::spawn(async move {
                let _ = manager.force_unlock(name.as_str(), "test").await;
            }));
        }
        if step {
            let size = self.dice.below(ttl) as i64;
            let back = self.dice.percent(50);
            world.step(if back { -size } else { size });
        }
        if self.dice.percent(30) {
            world.replicate();
        }
        if failover {
            world.fail_over();
        }
        if reconnect {
            world.reconnected(client);
        }
        if hint {
            world.wake_for_nothing();
        }
        if crash {
            let process = self.processes.swap_remove(at);
            world.kill(client);
            process.callers.iter().for_each(|task| task.handle.abort());
            self.rest.extend(process.callers.into_iter().map(|task| task.handle));
            self.start();
        } else if close {
            let process = self.processes.swap_remove(at);
            let closing = close_it(Arc::clone(&world), process.client, process.manager);
            self.rest.push(tokio::spawn(closing));
            self.rest.extend(process.callers.into_iter().map(|task| task.handle));
            self.start();
        }
    }

    fn later(&mut self, time: u64, what: impl FnOnce(&World) + Send + 'static) {
        let world = Arc::clone(&self.world);
        self.rest.push(tokio::spawn(async move {
            sleep(ms(time)).await;
            if world.lock().storm {
                what(&world);
            }
        }));
    }

    fn clear_up(&mut self) {
        self.world.weather(false);
        for process in &self.processes {
            self.world.reconnected(process.client.id);
        }
    }

    /// All that was begun ends, and all that was locked can be locked.
    async fn end(&mut self) {
        let world = Arc::clone(&self.world);
        let ttl = world.plan.ttl;
        self.over.store(true, Ordering::Relaxed);
        let mut callers = std::mem::take(&mut self.rest);
        let here = self.processes.iter_mut().flat_map(|process| process.callers.drain(..));
        callers.extend(here.map(|task| task.handle));
        let end = tokio::time::Instant::now() + ms(200 * ttl);
        for caller in callers {
            match tokio::time::timeout_at(end, caller).await {
                Ok(Err(error)) if error.is_panic() => {
                    if let Err(panic) = was_on_purpose(error) {
                        self.fail(format_args!("a panic: {panic}"));
                    }
                }
                Ok(_) => {}
                Err(_) => {
                    self.fail(format_args!("somebody waits for ever"));
                    return;
                }
            }
        }
        // What the last dropped futures had sent arrives, and is given back.
        sleep(ms(2 * world.plan.attempt() + world.plan.slack())).await;
        // Keys may be kept for one T, for another if the server's clock was set back.
        let limit = ttl * 3 / 2 + ttl * u64::from(world.plan.faults.step > 0);
        let limit = limit + world.plan.poll + world.plan.slack();
        for process in &self.processes {
            if world.plan.sharers > 0 {
                // Places of those who went away are forgotten.
                sleep(ms(3 * world.plan.poll)).await;
                self.end_shared(process, limit).await;
            }
            for number in 0..world.plan.names {
                let name = format!("n{number}");
                let mut lock = process.manager.lock(&name);
                match timeout(ms(limit), lock.lock()).await {
                    Ok(Ok(lease)) => drop(lease.unlock().await),
                    other => self.fail(format_args!("{name} cannot be locked: {other:?}")),
                }
                if !matches!(process.manager.lock(&name).try_lock().await, Ok(Some(_))) {
                    self.fail(format_args!("a place in the line of {name} is left"));
                }
            }
        }
    }

    /// The names that several share can be had alone.
    async fn end_shared(&self, process: &Process, limit: u64) {
        let mut lock = process.manager.rw_lock(READ_WRITE);
        match timeout(ms(limit), lock.write()).await {
            Ok(Ok(lease)) => drop(lease.unlock().await),
            other => self.fail(format_args!("{READ_WRITE} cannot be written: {other:?}")),
        }
        if !matches!(lock.try_write().await, Ok(Some(_))) {
            self.fail(format_args!("a place in the line of {READ_WRITE} is left"));
        }
        let size = self.world.plan.size;
        let pool = process.manager.semaphore(POOL, size);
        match timeout(ms(limit), pool.acquire_many(size)).await {
            Ok(Ok(permit)) => drop(permit.unlock().await),
            other => self.fail(format_args!("not all of {POOL} can be taken: {other:?}")),
        }
        if !matches!(pool.try_acquire_many(size).await, Ok(Some(_))) {
            self.fail(format_args!("a place in the line of {POOL} is left"));
        }
    }

    fn fail(&self, why: std::fmt::Arguments<'_>) {
        let now = self.world.now();
        self.world.lock().judge.fail(now, why);
    }

    /// When the managers have gone, nothing is left: no key, no subscription, no task.
    async fn leave_nothing(mut self, base: usize) {
        let world = Arc::clone(&self.world);
        let ttl = world.plan.ttl;
        for process in std::mem::take(&mut self.processes) {
            if self.dice.percent(50) {
                close_it(Arc::clone(&world), process.client, process.manager).await;
            }
        }
        sleep(ms(4 * ttl)).await;
        let now = world.now();
        let left = world.lock().server.entries(now).len();
        let subscriptions = world.subscriptions();
        let tasks = Handle::current().metrics().num_alive_tasks() - base;
        if (left, subscriptions, tasks) != (0, 0, 0) {
            self.fail(format_args!(
                "left in the end: {left} keys, {subscriptions} subscriptions, {tasks} tasks"
            ));
        }
    }
}

async fn watch(world: Arc<World>) {
    loop {
        sleep(ms((world.plan.ttl / 50).max(1))).await;
        let moment = world.moment();
        world.look_at_log(moment.now);
        let mut inner = world.lock();
        let inner = &mut *inner;
        inner.judge.watch(&world.plan, moment, &mut inner.server);
    }
}

/// Closes a process's manager; what it held is given back if it says so.
async fn close_it(world: Arc<World>, client: Client, manager: LeaseManager) {
    let start = world.now();
    let held = {
        let mut inner = world.lock();
        inner.judge.note(start, format_args!("c{} closes", client.id));
        inner.judge.saw(Sometimes::Close);
        inner.judge.closing.insert(client.id);
        inner.judge.held_by(client.id)
    };
    // A closing waits for the log, which is written in real time: virtual time stands still meanwhile. A log that
    // blocks is waited for in vain, so that time must pass.
    let blocks = world.plan.log == Some(LogFault::Block);
    let (_closed, closes) = mpsc::channel();
    if !blocks {
        world.lock().closings.insert(client.id, closes);
    }
    let result = manager.close().await;
    let (now, plan) = (world.now(), &world.plan);
    let mut inner = world.lock();
    inner.judge.gone.insert(client.id);
    inner.judge.note(now, format_args!("c{} is closed: {result:?}", client.id));
    let attempts = if blocks { 4 } else { 3 };
    if now > start + plan.grace() + attempts * plan.attempt() + plan.slack() {
        inner.judge.fail(now, format_args!("closing took {} ms", now - start));
    }
    let calm = inner.judge.is_calm_for(start, plan.settled());
    if calm && result.is_err() {
        inner.judge.fail(now, format_args!("closing failed in fair weather: {result:?}"));
    }
    for (name, entry) in inner.server.entries(now) {
        // A failover can bring back a name whose release was not replicated.
        let wounded = inner.judge.is_wounded(entry.hold);
        let held = held.contains(&entry.hold) && !inner.judge.is_forgotten(entry.hold) && !wounded;
        if result.is_ok() && held && entry.granted < start {
            inner.judge.fail(now, format_args!("{name} is still {:?}'s after close", entry.hold));
        }
    }
}
