//! What a user's runtime does to its tasks: it polls none of them for a while, ends, or unwinds. The manager
//! lives on.

use super::judge::Sometimes;
use super::plan::ms;
use super::story::Story;
use super::world::{TASK, World};
use leasehold::store::Name;
use std::future::{Future, poll_fn};
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use tokio::task::JoinHandle;
use tokio::time::sleep;

tokio::task_local! {
    /// The poll is of a task of the user's.
    pub static USER: ();
}

/// What a task panics with that is told to; no hook runs.
pub struct Unwound;

/// A flow of control, in a task of its own.
pub struct Task {
    pub handle: JoinHandle<()>,
    gate: Gate,
    /// Another one takes its place when it has unwound.
    lasting: bool,
}

impl Task {
    pub fn spawn(
        gate: Gate,
        lasting: bool,
        caller: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let task = TASK.scope(gate.who.1, gate.clone().run(caller));
        Self { handle: tokio::spawn(USER.scope((), task)), gate, lasting }
    }
}

/// What a runtime does to one of its tasks.
#[derive(Clone)]
pub struct Gate {
    world: Arc<World>,
    /// Process and task.
    who: (usize, u64),
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// How many reasons there are not to poll the task.
    stalls: u32,
    unwinds: bool,
    waker: Option<Waker>,
}

impl Gate {
    pub fn new(world: &Arc<World>, who: (usize, u64)) -> Self {
        Self { world: Arc::clone(world), who, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic in here")
    }

    fn stall(&self) {
        self.state().stalls += 1;
    }

    fn go_on(&self) {
        self.state().stalls -= 1;
        self.wake();
    }

    fn unwind(&self) {
        self.state().unwinds = true;
        self.wake();
    }

    fn wake(&self) {
        let waker = self.state().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    async fn run(self, task: impl Future<Output = ()>) {
        let mut task = pin!(task);
        let poll = poll_fn(|cx: &mut Context<'_>| {
            let mut state = self.state();
            state.waker = Some(cx.waker().clone());
            let stalled = state.stalls > 0;
            drop(state);
            if stalled {
                return Poll::Pending;
            }
            let poll = task.as_mut().poll(cx);
            if poll.is_pending() {
                self.may_unwind();
            }
            poll
        });
        poll.await;
    }

    /// Waits, and panics in here if it is told to, within the futures of leasehold that this is in.
    pub async fn pause(&self, time: u64) {
        let mut time = pin!(sleep(ms(time)));
        let pause = poll_fn(|cx| {
            self.may_unwind();
            time.as_mut().poll(cx)
        });
        pause.await;
    }

    fn may_unwind(&self) {
        let reported = std::mem::take(&mut self.state().unwinds);
        if reported {
            self.world.lock().judge.unwinds(self.world.now(), self.who);
            resume_unwind(Box::new(Unwound));
        }
    }
}

impl Story {
    /// What the user's runtime in a process does now.
    pub fn strike_runtime(&mut self, at: usize) {
        self.revive();
        let world = Arc::clone(&self.world);
        let faults = &world.plan.faults;
        let mut hits = |chance: u64| self.users.below(1000) < chance * 2;
        let (stall, end, unwind) = (hits(faults.stall), hits(faults.end), hits(faults.unwind));
        if stall {
            self.stall(at);
        }
        if unwind {
            self.unwind(at);
        }
        if end {
            self.end_runtime(at);
        }
    }

    /// No task of a process is polled for a while; or none that waits in one where somebody has what they wait for,
    /// and hands it off.
    fn stall(&mut self, at: usize) {
        let (now, ttl) = (self.world.now(), self.world.plan.ttl);
        let time = self.users.between(ttl / 4, 4 * ttl);
        let passing = self.users.percent(70).then(|| self.passes_on()).flatten();
        let (at, all) = (passing.unwrap_or(at), passing.is_none());
        let process = &self.processes[at];
        let mut gates: Vec<Gate> = process.callers.iter().map(|task| task.gate.clone()).collect();
        gates.retain(|gate| all || self.world.lock().judge.waits_now(gate.who.1));
        let tasks: Vec<u64> = gates.iter().map(|gate| gate.who.1).collect();
        // Whoever is polled waits for the others no longer than this.
        let until = if all { now + time } else { now + time.min(ttl) };
        let mut inner = self.world.lock();
        inner.judge.are_not_polled(now, process.client.id, &tasks, (until, now + time));
        if time > ttl {
            inner.judge.saw_stalled(&tasks);
        }
        drop(inner);
        gates.iter().for_each(Gate::stall);
        self.rest.push(tokio::spawn(async move {
            sleep(ms(time)).await;
            gates.iter().for_each(Gate::go_on);
        }));
    }

    /// A process in which somebody has what others wait for.
    fn passes_on(&self) -> Option<usize> {
        let inner = self.world.lock();
        let judge = &inner.judge;
        let wanted = |client: usize, name: &Name| {
            judge.waits.iter().any(|wait| (wait.client, &wait.name) == (client, name))
        };
        let passes = |client: usize| {
            let mut has = judge.beliefs.iter().filter(|belief| belief.client == client);
            has.any(|belief| wanted(client, &belief.name))
        };
        self.processes.iter().position(|process| passes(process.client.id))
    }

    /// One task of a process panics, or all of them do.
    fn unwind(&mut self, at: usize) {
        let all = self.users.percent(30);
        let callers = &self.processes[at].callers;
        let one = self.users.below(callers.len().max(1) as u64) as usize;
        let reported = callers.iter().enumerate().filter(|(which, _)| all || *which == one);
        reported.for_each(|(_, task)| task.gate.unwind());
    }

    /// All tasks of a process are dropped at once; others begin.
    fn end_runtime(&mut self, at: usize) {
        let now = self.world.now();
        let process = &mut self.processes[at];
        self.world.lock().judge.runtime_ends(now, process.client.id);
        let (gone, mut begin) = (std::mem::take(&mut process.callers), 0);
        for task in gone {
            begin += u64::from(task.lasting);
            task.handle.abort();
            self.rest.push(task.handle);
        }
        (0..begin).for_each(|_| self.begin(at));
    }

    /// Others take the places of those that have unwound.
    fn revive(&mut self) {
        for at in 0..self.processes.len() {
            let callers = std::mem::take(&mut self.processes[at].callers);
            let (gone, there) = callers.into_iter().partition(|task| task.handle.is_finished());
            self.processes[at].callers = there;
            for task in gone {
                self.rest.push(task.handle);
                if task.lasting {
                    self.begin(at);
                }
            }
        }
    }

    fn begin(&mut self, at: usize) {
        let dice = (self.users.fork(), self.users.fork());
        let process = &self.processes[at];
        let (client, manager) = (process.client.clone(), process.manager.clone());
        let caller = self.caller(&client, &manager, dice);
        let task = Task::spawn(caller.gate.clone(), true, caller.run());
        self.processes[at].callers.push(task);
    }
}

/// Whether a task ended as it was told to.
pub fn was_on_purpose(panic: tokio::task::JoinError) -> Result<(), String> {
    let text = panic.to_string();
    if panic.into_panic().is::<Unwound>() { Ok(()) } else { Err(text) }
}

impl super::judge::Judge {
    fn wants_or_has(&self, client: usize) -> bool {
        self.waits.iter().any(|wait| wait.client == client)
            || self.beliefs.iter().any(|belief| belief.client == client)
    }

    fn unwinds(&mut self, now: u64, (client, task): (usize, u64)) {
        self.note(now, format_args!("c{client} t{task} unwinds"));
        if self.beliefs.iter().any(|belief| belief.task == task) {
            self.saw(Sometimes::TaskUnwound);
        }
    }

    fn runtime_ends(&mut self, now: u64, client: usize) {
        self.note(now, format_args!("the runtime in c{client} ends"));
        if self.wants_or_has(client) {
            self.saw(Sometimes::RuntimeEnded);
        }
    }

    fn are_not_polled(
        &mut self,
        now: u64,
        client: usize,
        tasks: &[u64],
        (until, polled): (u64, u64),
    ) {
        self.note(now, format_args!("nobody polls {tasks:?} in c{client}"));
        // Whoever is polled first afterwards may take away the turns of the others; who is not hears nothing.
        for wait in self.waits.iter_mut().filter(|wait| tasks.contains(&wait.task)) {
            (wait.in_line, wait.patient) = (false, false);
        }
        self.all_alone(client, until, polled);
    }

    fn waits_now(&self, task: u64) -> bool {
        self.waits.iter().any(|wait| wait.task == task)
    }

    fn saw_stalled(&mut self, tasks: &[u64]) {
        let waits = tasks.iter().any(|task| self.waits_now(*task));
        if waits || self.beliefs.iter().any(|belief| tasks.contains(&belief.task)) {
            self.saw(Sometimes::RuntimeStalled);
        }
    }
}
