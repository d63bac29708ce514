//! An actor: one caller, which makes its calls one after the other and notes what they return.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{CancellationToken, Leadership, Lease, Lock, Once, Result, RwLock, Upgraded};
use tokio::time::{sleep, timeout};

use crate::guards::{Guard, Probe, Shared};
use crate::history::{
    Body, Call, Deed, End, Ending, Failure, Held, JobCall, JobOutcome, Lost, Mode, Object, Outcome,
    Stamp, Way,
};
use crate::history::{Pause, Sighting};
use crate::plan::{Gap, Manner, PERMITS, SLOTS, Step};
use crate::world::{Incarnation, World};

pub struct Caller {
    pub world: Arc<World>,
    pub number: usize,
    pub process: usize,
}

/// What a call asks for.
struct Ask {
    object: Object,
    names: Vec<String>,
    any: bool,
    mode: Mode,
    way: Way,
    handle: u64,
    nested: bool,
    min_hold: Option<Duration>,
    lock_delay: Duration,
}

impl Ask {
    fn new(object: Object, name: String, mode: Mode, way: Way, handle: u64) -> Self {
        Self {
            object,
            names: vec![name],
            any: false,
            mode,
            way,
            handle,
            nested: false,
            min_hold: None,
            lock_delay: Duration::ZERO,
        }
    }

    fn again(&self, mode: Mode) -> Self {
        let names = self.names.clone();
        Self { names, mode, way: Way::Wait, nested: true, ..*self }
    }
}

/// What is done to the future of a call.
#[derive(Clone, Copy, Default)]
struct Limits {
    abandon: Option<Duration>,
    pause: Option<Gap>,
}

impl From<Manner> for Limits {
    fn from(manner: Manner) -> Self {
        Self { abandon: manner.abandon, pause: manner.pause }
    }
}

/// The leases of one call.
struct Live {
    probes: Vec<Probe>,
    shared: Arc<Shared>,
}

impl Caller {
    pub async fn run(&self, steps: &[Step]) {
        for step in steps {
            self.step(step).await;
        }
    }

    fn name(&self, kind: &str, number: u64) -> String {
        format!("{}{kind}{number}", self.world.prefix)
    }

    async fn step(&self, step: &Step) {
        let at = self.world.incarnation(self.process);
        match step {
            Step::Rest(time) => sleep(*time).await,
            Step::Lock { name, fair, min_hold, lock_delay, depth, outer_first, manner } => {
                let kind = if *fair { "fair" } else { "lock" };
                let name = self.name(kind, *name);
                let handle = self.world.log.handle();
                let mut lock =
                    if *fair { at.leases.fair_lock(&name) } else { at.leases.lock(&name) };
                if let Some(min) = min_hold {
                    lock = lock.min_hold(*min);
                }
                if !lock_delay.is_zero() {
                    lock = lock.lock_delay(*lock_delay);
                }
                let object = if *fair { Object::Fair } else { Object::Lock };
                let mut ask = Ask::new(object, name, Mode::Alone, manner.way, handle);
                ask.min_hold = *min_hold;
                ask.lock_delay = *lock_delay;
                let again = ask.again(Mode::Alone);
                let Some(first) =
                    self.acquire(&at, ask, (*manner).into(), locked(&mut lock, manner.way)).await
                else {
                    return;
                };
                let mut held = vec![first];
                for _ in 0..*depth {
                    self.hold(&held, manner.hold / 4).await;
                    let ask = again.again(Mode::Alone);
                    held.extend(
                        self.acquire(&at, ask, Limits::default(), locked(&mut lock, Way::Wait))
                            .await,
                    );
                }
                self.hold(&held, manner.hold).await;
                if *outer_first {
                    held.reverse();
                }
                while let Some(lease) = held.pop() {
                    self.end(lease, manner.ending).await;
                    self.hold(&held, manner.hold / 4).await;
                }
            }
            Step::Holder { names, manner } => {
                let mut holder = at.leases.holder();
                let handle = self.world.log.handle();
                let mut held = Vec::new();
                for number in 0..*names {
                    let name = self.name("lock", number);
                    let ask =
                        Ask::new(Object::Holder, name.clone(), Mode::Alone, manner.way, handle);
                    let call = async {
                        match manner.way {
                            Way::Try => holder.try_lock(&name).await,
                            Way::Timed(time) => holder.lock_timeout(&name, time).await,
                            _ => holder.lock(&name).await.map(Some),
                        }
                    };
                    let call = async { Ok(call.await?.map(Guard::Lease)) };
                    let Some(lease) = self.acquire(&at, ask, (*manner).into(), call).await else {
                        break;
                    };
                    held.push(lease);
                    self.hold(&held, manner.hold / 4).await;
                }
                while let Some(lease) = held.pop() {
                    self.end(lease, manner.ending).await;
                }
            }
            Step::Rw { name, write, again, change, manner } => {
                self.rw(&at, *name, *write, *again, *change, *manner).await
            }
            Step::Permits { name, count, manner } => {
                let name = self.name("sem", *name);
                let semaphore = at.leases.semaphore(&name, PERMITS);
                let mode = Mode::Permits { count: *count, size: PERMITS };
                let ask =
                    Ask::new(Object::Semaphore, name, mode, manner.way, self.world.log.handle());
                let call = async {
                    let permit = match manner.way {
                        Way::Try => semaphore.try_acquire_many(*count).await?,
                        Way::Timed(time) => semaphore.acquire_many_timeout(*count, time).await?,
                        _ => Some(semaphore.acquire_many(*count).await?),
                    };
                    Ok(permit.map(Guard::Permit))
                };
                self.whole(&at, ask, *manner, call).await;
            }
            Step::Slots { index, manner } => {
                let name = self.name("slot", 0);
                let slots = at.leases.slots(&name, SLOTS);
                let mut ask = Ask::new(
                    Object::Slots,
                    String::new(),
                    Mode::Alone,
                    manner.way,
                    self.world.log.handle(),
                );
                ask.any = index.is_none();
                ask.names = (0..SLOTS)
                    .filter(|i| index.is_none_or(|index| index == *i))
                    .map(|i| format!("{name}#{i}"))
                    .collect();
                if index.is_some() && !matches!(manner.way, Way::Try) {
                    ask.way = Way::Wait;
                }
                let call = async {
                    let slot = match (*index, manner.way) {
                        (Some(index), Way::Try) => slots.try_take_index(index).await?,
                        (Some(index), _) => Some(slots.take_index(index).await?),
                        (None, Way::Try) => slots.try_take().await?,
                        (None, Way::Timed(time)) => slots.take_timeout(time).await?,
                        (None, _) => Some(slots.take().await?),
                    };
                    Ok(slot.map(Guard::Slot))
                };
                self.whole(&at, ask, *manner, call).await;
            }
            Step::Multi { names, min_hold, again, manner } => {
                let names: Vec<String> =
                    names.iter().map(|number| self.name("lock", *number)).collect();
                let mut set = at.leases.multi_lock(&names).expect("a set");
                if let Some(min) = min_hold {
                    set = set.min_hold(*min);
                }
                let mut ask = Ask::new(
                    Object::Multi,
                    String::new(),
                    Mode::Alone,
                    manner.way,
                    self.world.log.handle(),
                );
                ask.names = names;
                ask.min_hold = *min_hold;
                let nested = ask.again(Mode::Alone);
                let call = async {
                    let lease = match manner.way {
                        Way::Try => set.try_lock().await?,
                        Way::Timed(time) => set.lock_timeout(time).await?,
                        _ => Some(set.lock().await?),
                    };
                    Ok(lease.map(Guard::Multi))
                };
                let Some(first) = self.acquire(&at, ask, (*manner).into(), call).await else {
                    return;
                };
                let mut held = vec![first];
                if *again {
                    self.hold(&held, manner.hold / 4).await;
                    let call = async { Ok(Some(Guard::Multi(set.lock().await?))) };
                    held.extend(self.acquire(&at, nested, Limits::default(), call).await);
                }
                self.hold(&held, manner.hold).await;
                while let Some(lease) = held.pop() {
                    self.end(lease, manner.ending).await;
                }
            }
            Step::Job { key, keep, wait, work, fails, abandon } => {
                let key = self.name("job", *key);
                self.job(
                    &at,
                    &key,
                    Task {
                        keep: *keep,
                        wait: *wait,
                        work: *work,
                        fails: *fails,
                        abandon: *abandon,
                    },
                )
                .await;
            }
            Step::Campaign { manner } => {
                let name = self.name("lead", 0);
                let mut candidate =
                    at.leases.election(&name).candidate(format!("actor {}", self.number));
                let ask = Ask::new(
                    Object::Election,
                    name,
                    Mode::Alone,
                    Way::Wait,
                    self.world.log.handle(),
                );
                let call = async { Ok(Some(Guard::Leader(candidate.campaign().await?))) };
                self.whole(&at, ask, *manner, call).await;
            }
            Step::Lead { terms, hold } => self.lead(&at, *terms, *hold).await,
            Step::Mixed { object, manner } => {
                let name = self.name("mix", 0);
                let handle = self.world.log.handle();
                let way = manner.way;
                match object {
                    0 | 1 => {
                        let mut lock = at.leases.lock(&name);
                        let ask = Ask::new(Object::Lock, name, Mode::Alone, way, handle);
                        self.whole(&at, ask, *manner, locked(&mut lock, way)).await;
                    }
                    _ => {
                        let write = *object == 2;
                        let mut lock = at.leases.rw_lock(&name);
                        let ask = Ask::new(
                            Object::Rw,
                            name,
                            if write { Mode::Write } else { Mode::Read },
                            way,
                            handle,
                        );
                        self.whole(&at, ask, *manner, shared(&mut lock, write, way)).await;
                    }
                }
            }
            Step::Observe(span) => self.observe(&at, *span).await,
            Step::Steal { name, after, manner } => {
                let name = self.name("lock", *name);
                let mut lock = at.leases.lock(&name);
                let way = after.map_or(Way::Steal, Way::StealAfter);
                let ask =
                    Ask::new(Object::Lock, name.clone(), Mode::Alone, way, self.world.log.handle());
                let act = self.world.log.begin(Deed::Steal { name }, at.number);
                let call = async {
                    let lease = match after {
                        Some(patience) => lock.steal_after(*patience, "it is wanted").await?,
                        None => lock.steal("it hangs").await?,
                    };
                    Ok(lease.map(Guard::Lease))
                };
                let lease = self.acquire(&at, ask, (*manner).into(), call).await;
                self.world.log.finish(act, None);
                if let Some(lease) = lease {
                    let held = vec![lease];
                    self.hold(&held, manner.hold).await;
                    for lease in held {
                        self.end(lease, manner.ending).await;
                    }
                }
            }
            Step::Force { name } => {
                let name = match name {
                    0..2 => self.name("lock", *name),
                    2..4 => self.name("rw", name - 2),
                    4..6 => self.name("sem", name - 4),
                    6 => self.name("lead", 0),
                    7 => self.name("fair", 0),
                    _ => format!("{}#0", self.name("slot", 0)),
                };
                let act = self
                    .world
                    .log
                    .begin(Deed::Force { name: name.clone(), found: None }, at.number);
                let result = at.leases.force_unlock(&name, "it is stuck").await;
                let found = result.as_ref().ok().copied();
                self.world
                    .log
                    .write(|history| history.acts[act].deed = Deed::Force { name, found });
                self.world.log.finish(act, result.err().map(|error| Failure::from(&error)));
            }
            Step::Delete { name } => {
                let name = self.name("lock", *name);
                let act = self.world.log.begin(Deed::Delete { name: name.clone() }, at.number);
                self.world.delete(&name);
                self.world.log.finish(act, None);
            }
            Step::Close => self.world.close(self.process).await,
        }
    }

    /// Acquires, holds and ends.
    async fn whole(
        &self,
        at: &Incarnation,
        ask: Ask,
        manner: Manner,
        call: impl Future<Output = Result<Option<Guard>>>,
    ) {
        if let Some(lease) = self.acquire(at, ask, manner.into(), call).await {
            let held = vec![lease];
            self.hold(&held, manner.hold).await;
            for lease in held {
                self.end(lease, manner.ending).await;
            }
        }
    }

    /// Makes a call, and notes what it returned and which leases came of it.
    async fn acquire(
        &self,
        at: &Incarnation,
        ask: Ask,
        limits: Limits,
        future: impl Future<Output = Result<Option<Guard>>>,
    ) -> Option<Live> {
        let log = &self.world.log;
        let start = log.stamp();
        let call = log.write(|history| {
            history.calls.push(Call {
                actor: self.number,
                manager: at.number,
                handle: ask.handle,
                object: ask.object,
                names: ask.names.clone(),
                any: ask.any,
                mode: ask.mode,
                way: ask.way,
                nested: ask.nested,
                min_hold: ask.min_hold,
                lock_delay: ask.lock_delay,
                start,
                polled: start,
                unpolled: None,
                end: None,
                outcome: Outcome::Pending,
            });
            history.calls.len() - 1
        });
        let abandon = limits.abandon;
        let limit = abandon.unwrap_or(self.world.patience);
        let mut polled = start;
        let mut unpolled = None;
        let result = {
            let mut future = pin!(future);
            let mut watched = pin!(poll_fn(|context| {
                polled = log.stamp();
                future.as_mut().poll(context)
            }));
            let early = match limits.pause {
                Some(gap) => match timeout(gap.after, &mut watched).await {
                    Ok(result) => Some(result),
                    Err(_) => {
                        let from = log.stamp();
                        sleep(gap.length).await;
                        unpolled = Some(Pause { from, to: log.stamp() });
                        None
                    }
                },
                None => None,
            };
            match early {
                Some(result) => Ok(result),
                None => timeout(limit, watched).await,
            }
        };
        let end = log.stamp();
        let (outcome, guard) = match result {
            Ok(Ok(Some(guard))) => (Outcome::Granted, Some(guard)),
            Ok(Ok(None)) => (Outcome::Refused, None),
            Ok(Err(error)) => (Outcome::Failed(Failure::from(&error)), None),
            Err(_) if abandon.is_some() => (Outcome::Abandoned, None),
            Err(_) => (Outcome::Stuck, None),
        };
        log.write(|history| {
            let call = &mut history.calls[call];
            call.outcome = outcome;
            call.polled = polled;
            call.unpolled = unpolled;
            call.end = Some(end);
        });
        Some(self.register(at, call, guard?))
    }

    /// Notes the leases of a call that was granted, and looks at all that have the same name.
    fn register(&self, at: &Incarnation, call: usize, guard: Guard) -> Live {
        let log = &self.world.log;
        let token = guard.token();
        let mut all = Vec::new();
        for lease in guard.leases() {
            let held = log.write(|history| {
                let ask = &history.calls[call];
                let start = ask.end.expect("it has ended");
                let held = Held {
                    call,
                    name: lease.name().to_owned(),
                    handle: ask.handle,
                    manager: at.number,
                    mode: ask.mode,
                    nested: ask.nested,
                    fence: lease.fence(),
                    hold_count: lease.hold_count(),
                    remaining: lease.remaining(),
                    polled: ask.polled,
                    start,
                    good_until: start,
                    unfired_until: start,
                    reported: None,
                    holder: lease.holder_id().to_string(),
                    lost: None,
                    end: None,
                };
                history.leases.push(held);
                history.leases.len() - 1
            });
            all.push((held, lease.name().to_owned()));
        }
        let shared = Shared::new(guard);
        let mut probes = Vec::new();
        for (held, name) in all {
            let probe = Probe { held, name, token: token.clone(), shared: Arc::clone(&shared) };
            self.world.registry.look(log, &probe.name);
            probe.look(log);
            self.world.registry.add(&probe);
            probes.push(probe);
        }
        Live { probes, shared }
    }

    /// Waits, and looks at the leases again and again.
    async fn hold(&self, held: &[Live], time: Duration) {
        for _ in 0..4 {
            sleep(time / 4).await;
            for lease in held {
                for probe in &lease.probes {
                    probe.look(&self.world.log);
                    // Some actors report what they do, and some hang.
                    if self.number.is_multiple_of(2) {
                        probe.report(&self.world.log);
                    }
                }
            }
        }
    }

    async fn end(&self, live: Live, how: Ending) {
        let log = &self.world.log;
        for probe in &live.probes {
            probe.look(log);
            self.world.registry.remove(probe);
        }
        let Some(guard) = live.shared.guard().take() else { return };
        let begin = log.stamp();
        self.begin_end(&live, &guard, how, begin);
        let mut failure = None;
        match how {
            Ending::Unlock => failure = guard.unlock().await.err(),
            Ending::UnlockNow => failure = guard.unlock_now().await.err(),
            Ending::UnlockDropped => {
                if let Ok(result) = timeout(Duration::ZERO, guard.unlock()).await {
                    failure = result.err();
                }
            }
            Ending::Forget => {
                guard.forget();
            }
            Ending::Drop | Ending::Changed => drop(guard),
        }
        self.finish_end(&live, failure.as_ref());
    }

    fn begin_end(&self, live: &Live, guard: &Guard, how: Ending, begin: Stamp) {
        // What has no `forget` is dropped.
        let how = match (how, guard) {
            (Ending::Forget, Guard::Multi(_) | Guard::Leader(_)) => Ending::Drop,
            _ => how,
        };
        for probe in &live.probes {
            let remaining = guard
                .leases()
                .into_iter()
                .find(|lease| lease.name() == probe.name)
                .map(Lease::remaining);
            let remaining = remaining.unwrap_or_default();
            self.world.log.write(|history| {
                history.leases[probe.held].end = Some(End {
                    how,
                    begin,
                    done: None,
                    failure: None,
                    remaining,
                    token_fired: false,
                });
            });
        }
    }

    fn finish_end(&self, live: &Live, failure: Option<&leasehold::Error>) {
        let token_fired = live.probes[0].token.is_cancelled();
        let done = self.world.log.stamp();
        for probe in &live.probes {
            self.world.log.write(|history| {
                if let Some(end) = &mut history.leases[probe.held].end {
                    end.done = Some(done);
                    end.failure = failure.map(Failure::from);
                    end.token_fired = token_fired;
                }
            });
        }
    }

    async fn rw(
        &self,
        at: &Incarnation,
        name: u64,
        write: bool,
        again: Option<bool>,
        change: bool,
        manner: Manner,
    ) {
        let name = self.name("rw", name);
        let handle = self.world.log.handle();
        let mut lock = at.leases.rw_lock(&name);
        let mode = if write { Mode::Write } else { Mode::Read };
        let ask = Ask::new(Object::Rw, name, mode, manner.way, handle);
        let nested =
            again.map(|writes| ask.again(if writes && write { Mode::Write } else { Mode::Read }));
        let changed =
            Ask { way: Way::Change, ..ask.again(if write { Mode::Read } else { Mode::Write }) };
        let call = shared(&mut lock, write, manner.way);
        let Some(first) = self.acquire(at, ask, manner.into(), call).await else { return };
        let mut held = vec![first];
        if let Some(ask) = nested {
            self.hold(&held, manner.hold / 4).await;
            let writes = ask.mode == Mode::Write;
            held.extend(
                self.acquire(at, ask, Limits::default(), shared(&mut lock, writes, Way::Wait))
                    .await,
            );
        }
        self.hold(&held, manner.hold).await;
        while let Some(lease) = held.pop() {
            if change && held.is_empty() {
                if let Some(lease) = self.change(at, lease, changed, manner.into()).await {
                    let held = vec![lease];
                    self.hold(&held, manner.hold / 2).await;
                    for lease in held {
                        self.end(lease, manner.ending).await;
                    }
                }
                return;
            }
            self.end(lease, manner.ending).await;
        }
    }

    /// Makes the reader the writer, or the writer a reader.
    async fn change(
        &self,
        at: &Incarnation,
        live: Live,
        mut ask: Ask,
        limits: Limits,
    ) -> Option<Live> {
        let log = &self.world.log;
        for probe in &live.probes {
            probe.look(log);
            self.world.registry.remove(probe);
        }
        let guard = live.shared.guard().take()?;
        let begin = log.stamp();
        self.begin_end(&live, &guard, Ending::Changed, begin);
        ask.nested = false;
        let lease = match guard {
            Guard::Write(lease) => {
                let call = async { Ok(Some(Guard::Read(lease.downgrade().await?))) };
                self.acquire(at, ask, limits, call).await
            }
            Guard::Read(lease) => {
                let mut refused = None;
                let call = async {
                    match lease.try_upgrade().await? {
                        Upgraded::Write(lease) => Ok(Some(Guard::Write(lease))),
                        Upgraded::Read(lease) => {
                            refused = Some(lease);
                            Ok(None)
                        }
                    }
                };
                let lease = self.acquire(at, ask, limits, call).await;
                if let Some(same) = refused {
                    // The lease is as before: it goes on under the same number.
                    for probe in &live.probes {
                        log.write(|history| history.leases[probe.held].end = None);
                    }
                    *live.shared.guard() = Some(Guard::Read(same));
                    for probe in &live.probes {
                        probe.look(log);
                        self.world.registry.add(probe);
                    }
                    return Some(live);
                }
                lease
            }
            other => {
                drop(other);
                None
            }
        };
        self.finish_end(&live, None);
        lease
    }

    async fn job(&self, at: &Incarnation, key: &str, task: Task) {
        let log = self.world.log.clone();
        let start = log.stamp();
        let number = log.write(|history| {
            history.jobs.push(JobCall {
                key: key.to_owned(),
                manager: at.number,
                keep: task.keep,
                wait: task.wait,
                start,
                body: None,
                end: None,
                outcome: JobOutcome::Pending,
            });
            history.jobs.len() - 1
        });
        let job = at.leases.once(key).keep(task.keep).wait(task.wait);
        let body_log = log.clone();
        let call = job.run(async move |lease: &Lease| {
            let log = body_log;
            let begin = log.stamp();
            log.write(|history| {
                history.jobs[number].body =
                    Some(Body { start: begin, good_until: begin, returned_ok: None });
            });
            let token = lease.cancellation_token();
            for _ in 0..4 {
                sleep(task.work / 4).await;
                let before = log.stamp();
                if !token.is_cancelled() && lease.check().is_ok() {
                    log.write(|history| {
                        if let Some(body) = &mut history.jobs[number].body {
                            body.good_until = before;
                        }
                    });
                }
            }
            if task.fails {
                return Err("it fails");
            }
            let ok = log.stamp();
            log.write(|history| {
                if let Some(body) = &mut history.jobs[number].body {
                    body.returned_ok = Some(ok);
                }
            });
            Ok(())
        });
        let result = timeout(task.abandon.unwrap_or(self.world.patience), call).await;
        let outcome = match result {
            Ok(Ok(Once::Ran(()))) => JobOutcome::Ran,
            Ok(Ok(Once::Unconfirmed((), _))) => JobOutcome::Unconfirmed,
            Ok(Ok(Once::Failed(_))) => JobOutcome::BodyFailed,
            Ok(Ok(Once::Running(_))) => JobOutcome::Running,
            Ok(Ok(Once::AlreadyDone(closed))) => JobOutcome::AlreadyDone { ago: closed.ago },
            Ok(Ok(other)) => panic!("unknown outcome: {other:?}"),
            Ok(Err(error)) => JobOutcome::Failed(Failure::from(&error)),
            Err(_) if task.abandon.is_some() => JobOutcome::Abandoned,
            Err(_) => JobOutcome::Stuck,
        };
        let end = log.stamp();
        log.write(|history| {
            history.jobs[number].end = Some(end);
            history.jobs[number].outcome = outcome;
        });
    }

    /// Looks at who leads, for a while.
    async fn observe(&self, at: &Incarnation, span: Duration) {
        let name = self.name("lead", 0);
        let view_number = self.world.log.handle();
        let mut view = at.leases.election(&name).observe();
        let looking = async {
            loop {
                let leader = view.changed().await;
                let at = self.world.log.stamp();
                let sighting = Sighting {
                    view: view_number,
                    name: name.clone(),
                    at,
                    term: leader.term,
                    holder: leader.holder.as_ref().map(ToString::to_string),
                    value: leader.value.clone(),
                };
                self.world.log.write(|history| history.sightings.push(sighting));
            }
        };
        let _: std::result::Result<(), _> = timeout(span, looking).await;
    }

    /// Leads so many terms by `lead`, as far as it comes in time.
    async fn lead(&self, at: &Incarnation, terms: u64, hold: Duration) {
        let name = self.name("lead", 0);
        let stop = CancellationToken::new();
        let mut candidate = at
            .leases
            .election(&name)
            .candidate(format!("actor {}", self.number))
            .until(stop.clone());
        let world = Arc::clone(&self.world);
        let actor = self.number;
        let manager = at.number;
        let handle = world.log.handle();
        let mut done = 0;
        let leading = candidate.lead(async move |me: &Leadership| {
            done += 1;
            term(&world, me, Term { actor, manager, handle, hold }).await;
            if done < terms { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let mut leading = pin!(leading);
        if timeout(self.world.patience / 4, &mut leading).await.is_err() {
            stop.cancel();
            if timeout(self.world.patience, leading).await.is_err() {
                self.world.log.write(|history| {
                    history.leftovers.push(crate::history::Leftover {
                        what: "`lead` goes on after `until` has fired".to_owned(),
                    });
                });
            }
        }
    }
}

/// What a job is to do.
#[derive(Clone, Copy)]
struct Task {
    keep: Duration,
    wait: Duration,
    work: Duration,
    fails: bool,
    abandon: Option<Duration>,
}

struct Term {
    actor: usize,
    manager: usize,
    handle: u64,
    hold: Duration,
}

/// Notes a term as a call that was granted at once, and its lease, which ends with the body.
async fn term(world: &World, me: &Leadership, by: Term) {
    let log = &world.log;
    world.registry.look(log, me.name());
    let start = log.stamp();
    let held = log.write(|history| {
        history.calls.push(Call {
            actor: by.actor,
            manager: by.manager,
            handle: by.handle,
            object: Object::Election,
            names: vec![me.name().to_owned()],
            any: false,
            mode: Mode::Alone,
            way: Way::Wait,
            nested: false,
            min_hold: None,
            lock_delay: Duration::ZERO,
            start,
            polled: start,
            unpolled: None,
            end: Some(start),
            outcome: Outcome::Granted,
        });
        history.leases.push(Held {
            call: history.calls.len() - 1,
            name: me.name().to_owned(),
            handle: by.handle,
            manager: by.manager,
            mode: Mode::Alone,
            nested: false,
            fence: me.term(),
            hold_count: 1,
            remaining: me.remaining(),
            polled: start,
            start,
            good_until: start,
            unfired_until: start,
            reported: None,
            holder: me.holder_id().to_string(),
            lost: None,
            end: None,
        });
        history.leases.len() - 1
    });
    // Ends the lease in the history when the body is dropped or returns.
    let _end = TermEnd { world, held };
    let token = me.cancellation_token();
    for _ in 0..4 {
        let before = log.stamp();
        let has_fired = token.is_cancelled();
        let checked = me.check();
        log.write(|history| {
            let held = &mut history.leases[held];
            if !has_fired {
                held.unfired_until = before;
                match checked {
                    Ok(()) => held.good_until = before,
                    Err(error) => held.lost = Some(Lost { seen: before, loss: error.loss() }),
                }
            }
        });
        sleep(by.hold / 4).await;
    }
}

struct TermEnd<'a> {
    world: &'a World,
    held: usize,
}

impl Drop for TermEnd<'_> {
    fn drop(&mut self) {
        let begin = self.world.log.stamp();
        self.world.log.write(|history| {
            let end = End {
                how: Ending::Drop,
                begin,
                done: Some(begin),
                failure: None,
                remaining: Duration::ZERO,
                token_fired: true,
            };
            history.leases[self.held].end = Some(end);
        });
    }
}

async fn locked(lock: &mut Lock, way: Way) -> Result<Option<Guard>> {
    let lease = match way {
        Way::Try => lock.try_lock().await?,
        Way::Timed(time) => lock.lock_timeout(time).await?,
        _ => Some(lock.lock().await?),
    };
    Ok(lease.map(Guard::Lease))
}

async fn shared(lock: &mut RwLock, write: bool, way: Way) -> Result<Option<Guard>> {
    Ok(match (write, way) {
        (true, Way::Try) => lock.try_write().await?.map(Guard::Write),
        (true, Way::Timed(time)) => lock.write_timeout(time).await?.map(Guard::Write),
        (true, _) => Some(Guard::Write(lock.write().await?)),
        (false, Way::Try) => lock.try_read().await?.map(Guard::Read),
        (false, Way::Timed(time)) => lock.read_timeout(time).await?.map(Guard::Read),
        (false, _) => Some(Guard::Read(lock.read().await?)),
    })
}
