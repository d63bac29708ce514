//! The simulated network: it decides the fate of each request, reply and wake-up between clients and server.

mod beside;

use super::judge::{Judge, Moment, Sometimes};
use super::log::Calls;
use super::plan::{HoldId, Plan, ms};
use super::scripts::Scripts;
use super::server::{Deed, Server};
use async_trait::async_trait;
use beside::Let;
use kit::Dice;
use leasehold::clock::Clock;
use leasehold::store::{
    About, Absence, Acquire, Acquired, Annotate, Arrival, Capabilities, Ends, ForceRelease, Hint,
    HolderId, Inbox, InboxSender, Inspect, Inspection, Layout, Mode, Name, Release, Released,
    RenewBatch, RenewCall, Renewal, Renewed, Signal, Store, StoreFuture, Target, Topic, Uptime,
    Wait, Wakeups, Want,
};
use leasehold::{Error, ErrorKind, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::pending;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

/// No closing that is alive takes so long.
const STUCK: Duration = Duration::from_secs(60);

tokio::task_local! {
    /// Which flow of control is asking, for what the store is asked in its own name.
    pub static TASK: u64;
}

pub struct World {
    pub plan: Plan,
    clock: Clock,
    start: tokio::time::Instant,
    log: Option<Calls>,
    inner: Mutex<Inner>,
    /// Some way is open again.
    healed: Notify,
}

pub struct Inner {
    pub server: Server,
    /// What runs the requests instead, beside the server.
    scripts: Option<Scripts>,
    pub judge: Judge,
    links: Vec<Link>,
    dice: Dice,
    pub storm: bool,
    server_up: bool,
    subscriptions: Vec<Subscriber>,
    last_subscription: u64,
    /// Those of managers that linger, with the number of their process.
    inboxes: BTreeMap<Uuid, (usize, InboxSender)>,
    /// Names that a process held when it died.
    left_by_dead: BTreeSet<Name>,
    /// What tells when a process is closed.
    pub closings: BTreeMap<usize, Receiver<()>>,
}

/// What is between a client and the server.
struct Link {
    there: bool,
    back: bool,
    /// While it is closed, it loses nothing.
    frozen: bool,
    /// The process is dead.
    dead: bool,
    reconnects: Signal,
}

struct Subscriber {
    id: u64,
    client: usize,
    name: Name,
    signal: Signal,
}

#[derive(Clone, Copy)]
enum Way {
    There,
    Back,
}

/// What becomes of one request; times in milliseconds.
#[derive(Default)]
struct Fate {
    there: u64,
    back: u64,
    request_lost: bool,
    reply_lost: bool,
    twice: Option<u64>,
    refused: Option<ErrorKind>,
    hang: bool,
    /// The client learns of a loss at once, not by its time limit.
    reset: bool,
}

/// What a request is, for what may become of it.
enum Sort {
    /// An outermost acquire.
    Grant,
    Change,
    Passed,
}

const REFUSALS: [ErrorKind; 6] = [
    ErrorKind::Unavailable,
    ErrorKind::Denied,
    ErrorKind::Rejected,
    ErrorKind::WrongType,
    ErrorKind::Invalid,
    ErrorKind::Unsupported,
];

impl World {
    pub fn new(plan: Plan, dice: Dice, log: Option<Calls>, keep_log: bool) -> Arc<Self> {
        let scripts = plan.scripts.map(Scripts::new);
        let mut server = Server::new(plan.rate);
        server.real = scripts.is_some();
        let inner = Inner {
            server,
            scripts,
            judge: Judge::new(keep_log),
            links: Vec::new(),
            dice,
            storm: false,
            server_up: true,
            subscriptions: Vec::new(),
            last_subscription: 0,
            inboxes: BTreeMap::new(),
            left_by_dead: BTreeSet::new(),
            closings: BTreeMap::new(),
        };
        Arc::new(Self {
            plan,
            clock: Clock::tokio(),
            start: tokio::time::Instant::now(),
            log,
            inner: Mutex::new(inner),
            healed: Notify::new(),
        })
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic in the simulation")
    }

    pub fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    pub fn moment(&self) -> Moment {
        Moment { now: self.now(), at: self.clock.now() }
    }

    /// One more process.
    pub fn client(self: &Arc<Self>) -> Client {
        let mut inner = self.lock();
        let reconnects = Signal::new();
        let link = Link { there: true, back: true, frozen: false, dead: false, reconnects };
        let reconnects = link.reconnects.clone();
        inner.links.push(link);
        Client { world: Arc::clone(self), id: inner.links.len() - 1, reconnects }
    }

    /// Whether the engine called the log where it must not.
    pub fn look_at_log(&self, now: u64) {
        if let Some(wrong) = self.log.as_ref().and_then(Calls::wrong) {
            self.lock().judge.fail(now, format_args!("{wrong}"));
        }
    }

    pub fn note(&self, event: fmt::Arguments<'_>) {
        let now = self.now();
        self.lock().judge.note(now, event);
    }

    /// Nothing goes wrong from now on, or everything may.
    pub fn weather(&self, storm: bool) {
        let now = self.now();
        let mut inner = self.lock();
        inner.storm = storm;
        inner.server_up = true;
        for link in &mut inner.links {
            (link.there, link.back) = (true, true);
        }
        inner.judge.calm_since = (!storm).then_some(now);
        inner.judge.note(now, format_args!("{}", if storm { "storm" } else { "calm" }));
        drop(inner);
        self.healed.notify_waiters();
    }

    /// Nothing comes in or out, and all of it comes at the thaw.
    pub fn freeze(&self, client: usize) {
        self.lock().links[client].frozen = true;
        self.set_link(client, false, false);
    }

    pub fn set_link(&self, client: usize, there: bool, back: bool) {
        let now = self.now();
        let mut inner = self.lock();
        inner.judge.note(now, format_args!("link of c{client}: {there} {back}"));
        let link = &mut inner.links[client];
        (link.there, link.back) = (there, back);
        if there && back && std::mem::take(&mut link.frozen) {
            inner.judge.saw(Sometimes::Thaw);
        }
        drop(inner);
        self.healed.notify_waiters();
    }

    pub fn set_server(&self, up: bool, wipe: bool) {
        let now = self.now();
        let mut inner = self.lock();
        inner.judge.note(now, format_args!("server up: {up}, wiped: {wipe}"));
        inner.server_up = up;
        if wipe {
            inner.wound_all(now);
            inner.server.wipe();
            inner.scripts.iter().for_each(Scripts::wipe);
        }
        if up {
            inner.subscriptions.clear();
        }
        drop(inner);
        self.healed.notify_waiters();
    }

    /// A process dies in this moment; what it has sent is on its way.
    pub fn kill(&self, client: usize) {
        let now = self.now();
        let mut inner = self.lock();
        inner.judge.note(now, format_args!("c{client} dies"));
        inner.links[client].dead = true;
        let entries = inner.server.entries(now);
        let left = entries.into_iter().filter(|(_, entry)| entry.hold.0 == client);
        inner.left_by_dead.extend(left.map(|(name, _)| name));
        inner.subscriptions.retain(|subscriber| subscriber.client != client);
        inner.judge.gone.insert(client);
        inner.judge.crashed.insert(client);
        drop(inner);
        self.healed.notify_waiters();
    }

    /// Its connection says that it was made anew, whether it was or not.
    pub fn reconnected(&self, client: usize) {
        let now = self.now();
        let mut inner = self.lock();
        inner.judge.note(now, format_args!("c{client} is connected anew"));
        inner.judge.saw(Sometimes::Reconnect);
        inner.links[client].reconnects.set();
    }

    /// An operator deletes a key.
    pub fn delete(&self, name: &Name) {
        let now = self.now();
        let mut inner = self.lock();
        inner.scripts.iter().for_each(|scripts| scripts.delete(name.as_str()));
        for hold in inner.server.delete(name, now) {
            inner.judge.note(now, format_args!("{name} is deleted"));
            inner.judge.wound(now, hold);
        }
    }

    pub fn step(&self, millis: i64) {
        let now = self.now();
        let mut inner = self.lock();
        inner.judge.note(now, format_args!("the server's clock steps by {millis} ms"));
        inner.wound_all(now);
        inner.forget_what_is_over(now);
        inner.server.step(millis);
    }

    pub fn replicate(&self) {
        let mut inner = self.lock();
        inner.server.replicate();
        inner.scripts.iter_mut().for_each(Scripts::replicate);
    }

    pub fn fail_over(&self) {
        let now = self.now();
        let mut inner = self.lock();
        inner.judge.note(now, format_args!("failover"));
        inner.wound_all(now);
        inner.server.fail_over();
        inner.scripts.iter().for_each(Scripts::fail_over);
        inner.wound_all(now);
        inner.subscriptions.clear();
    }

    /// Wakes somebody for nothing.
    pub fn wake_for_nothing(&self) {
        let inner = self.lock();
        inner.subscriptions.iter().for_each(|subscriber| subscriber.signal.set());
    }

    pub fn subscriptions(&self) -> usize {
        self.lock().subscriptions.len()
    }

    /// Whether a message comes through, after its way.
    async fn travels(&self, client: usize, way: Way, time: u64) -> bool {
        sleep(ms(time)).await;
        loop {
            let mut healed = std::pin::pin!(self.healed.notified());
            healed.as_mut().enable();
            {
                let mut inner = self.lock();
                let link = &inner.links[client];
                let (open, dead) = match way {
                    Way::There => (link.there, false),
                    Way::Back => (link.back, link.dead),
                };
                if dead {
                    return false;
                }
                if open && inner.server_up {
                    return true;
                }
                // The rest waits in the connection's buffers.
                let kept = link.frozen || inner.dice.percent(50);
                if !inner.server_up || !kept {
                    return false;
                }
            }
            healed.await;
        }
    }
}

impl Inner {
    pub fn wound_all(&mut self, now: u64) {
        for hold in self.server.holds() {
            self.judge.wound(now, hold);
        }
    }

    fn way(&mut self, plan: &Plan) -> u64 {
        self.dice.below(plan.way() + 1)
    }

    fn fate(&mut self, plan: &Plan) -> Fate {
        let mut fate = Fate { there: self.way(plan), back: self.way(plan), ..Fate::default() };
        if !self.storm {
            return fate;
        }
        let faults = &plan.faults;
        fate.request_lost = self.dice.percent(faults.request_lost);
        fate.reply_lost = self.dice.percent(faults.reply_lost);
        fate.reset = self.dice.percent(50);
        fate.hang = self.dice.percent(faults.hang);
        if self.dice.percent(faults.late) {
            fate.there = self.dice.below(plan.ttl / 2);
        }
        if self.dice.percent(faults.late) {
            fate.back = self.dice.below(plan.ttl / 3);
        }
        if self.dice.percent(faults.twice) {
            fate.twice = Some(self.dice.below(plan.ttl / 2));
        }
        if self.dice.percent(faults.refused) {
            fate.refused = Some(self.dice.pick(&REFUSALS));
        }
        fate
    }

    /// Asks the manager that has a name to give it up, if it lingers. Messages to inboxes are lost as others are.
    fn ask_to_yield(&mut self, world: &Arc<World>, name: &Name) -> bool {
        let Some(manager) = self.server.lingering(name, world.now()) else { return false };
        self.send_hint(world, name, manager)
    }

    fn send_hint(&mut self, world: &Arc<World>, name: &Name, manager: Uuid) -> bool {
        let Some((client, inbox)) = self.inboxes.get(&manager).cloned() else { return true };
        let faults = &world.plan.faults;
        let mut time = self.way(&world.plan);
        if self.storm && self.dice.percent(faults.hint_lost) {
            return true;
        }
        if self.storm && self.dice.percent(faults.hint_odd) {
            time = self.dice.below(world.plan.ttl);
        }
        self.judge.saw(Sometimes::AskedToYield);
        let (world, name) = (Arc::clone(world), name.clone());
        tokio::spawn(async move {
            if world.travels(client, Way::Back, time).await {
                inbox.send(Hint::Yield(name));
            }
        });
        true
    }

    /// Sends the wake-ups of a name that became free; to how many.
    fn wake(&mut self, world: &Arc<World>, name: &Name) -> u64 {
        let faults = &world.plan.faults;
        let mut listeners = 0;
        for i in 0..self.subscriptions.len() {
            if self.subscriptions[i].name != *name {
                continue;
            }
            listeners += 1;
            let client = self.subscriptions[i].client;
            let mut time = self.way(&world.plan);
            let mut times = 1;
            if self.storm && self.dice.percent(faults.hint_lost) {
                times = 0;
            }
            if self.storm && self.dice.percent(faults.hint_odd) {
                (time, times) = (self.dice.below(world.plan.ttl), times * 2);
            }
            for _ in 0..times {
                let (world, signal) = (Arc::clone(world), self.subscriptions[i].signal.clone());
                tokio::spawn(async move {
                    if world.travels(client, Way::Back, time).await {
                        signal.set();
                    }
                });
            }
        }
        listeners
    }
}

/// A process's connection: the store that leasehold is given.
#[derive(Clone)]
pub struct Client {
    pub world: Arc<World>,
    pub id: usize,
    reconnects: Signal,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}", self.id)
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Unavailable, "no answer")
}

impl Client {
    /// Only a log that is kept is worth writing.
    fn words(&self, words: fmt::Arguments<'_>) -> String {
        let kept = self.world.lock().judge.log.is_some();
        if kept { words.to_string() } else { String::new() }
    }

    fn hold(&self, token: HolderId) -> HoldId {
        (self.id, token.number())
    }

    /// Gives up the place of a waiter.
    fn release_arrival(&self, request: Release) -> StoreFuture<Released> {
        let Target { name, mode, .. } = request.target.clone();
        let limit = request.timeout;
        if !matches!(mode, Mode::Read | Mode::Write) {
            return Box::pin(std::future::ready(Err(Arrival::unsupported())));
        }
        let hold = self.hold(request.holder);
        let what = self.words(format_args!("leave {name} {hold:?} {mode:?}"));
        let run = move |inner: &mut Inner, world: &Arc<World>, now: u64| {
            inner.leave(world, now, &request, hold);
            Released::done(0)
        };
        self.call(what, None, Sort::Passed, limit, run, |_, _, _| ())
    }

    /// Renews by one call.
    fn renew_part(&self, batch: RenewBatch) -> StoreFuture<Renewed> {
        let limit = batch.timeout;
        let (sent, client) = (self.world.clock.now(), self.id);
        let holds: Vec<HoldId> = batch.items.iter().map(|each| self.hold(each.holder)).collect();
        {
            let mut inner = self.world.lock();
            for hold in &holds {
                inner.judge.renewal_sent(&self.world.plan, self.world.moment(), *hold);
            }
        }
        let what = self.words(format_args!("renew {holds:?}"));
        let run = move |inner: &mut Inner, world: &Arc<World>, now: u64| {
            let mut refused = |_: &Renewal| {
                let refused = world.plan.faults.refused / 2;
                let refused = inner.storm && inner.dice.percent(refused);
                refused.then(|| Error::new(inner.dice.pick(&REFUSALS), "refused by the simulation"))
            };
            let refused: Vec<_> = batch.items.iter().map(&mut refused).collect();
            let verdicts = inner.renew(now, client, &batch, &refused);
            Renewed::new(sent, verdicts)
        };
        self.call(what, None, Sort::Change, limit, run, move |inner, world, result| {
            for (i, hold) in holds.into_iter().enumerate() {
                let moment = world.moment();
                let verdict: Result<Option<Absence>> = match result {
                    Ok(renewed) => renewed.verdicts[i].clone(),
                    Err(error) => Err(error.clone()),
                };
                match verdict {
                    Ok(None) => inner.judge.confirmed(&world.plan, moment, hold, sent),
                    Ok(Some(absence)) => inner.judge.saw_absent(moment.now, hold, absence),
                    Err(error) => {
                        inner.judge.failed(hold, sent);
                        if error.kind() == ErrorKind::WrongType {
                            inner.judge.wound(moment.now, hold);
                        }
                    }
                }
            }
        })
    }

    /// Sends a request, for the name that is `asked` for, if one is. `run` is what the server does, `heard` what the client
    /// learns, if it still waits.
    fn call<T: Send + 'static>(
        &self,
        what: String,
        asked: Option<&Name>,
        sort: Sort,
        limit: Duration,
        run: impl Fn(&mut Inner, &Arc<World>, u64) -> T + Send + 'static,
        heard: impl FnOnce(&mut Inner, &World, &Result<T>) + Send + 'static,
    ) -> StoreFuture<T> {
        let (world, client) = (Arc::clone(&self.world), self.id);
        let (answer, reply) = oneshot::channel();
        let fate = {
            let mut inner = world.lock();
            inner.judge.note(world.now(), format_args!("c{client} {what}"));
            let mut fate = inner.fate(&world.plan);
            if inner.links[client].dead {
                fate.request_lost = true;
            }
            match sort {
                // A resend, before any answer.
                Sort::Grant => fate.twice = fate.twice.map(|_| 0),
                Sort::Change => {}
                // The engine passes these on without a time limit of its own.
                Sort::Passed => fate.hang = false,
            }
            fate
        };
        let hang = fate.hang;
        if let (true, Some(name)) = (hang, asked) {
            world.lock().judge.hangs(world.now(), client, name);
        }
        tokio::spawn(carry(Arc::clone(&world), client, fate, limit, answer, run));
        Box::pin(async move {
            let result = match timeout(limit, reply).await {
                Ok(Ok(reply)) => reply,
                Ok(Err(_)) | Err(_) => Err(lost()),
            };
            if hang {
                pending::<()>().await;
            }
            let mut inner = world.lock();
            match &result {
                Ok(_) => inner.judge.note(world.now(), format_args!("c{client} hears of {what}")),
                Err(error) => {
                    inner.judge.note(world.now(), format_args!("c{client} {what}: {error}"))
                }
            }
            heard(&mut inner, &world, &result);
            drop(inner);
            result
        })
    }
}

/// Brings a request to the server and the reply back, whether anybody waits for it or not.
async fn carry<T: Send + 'static>(
    world: Arc<World>,
    client: usize,
    fate: Fate,
    limit: Duration,
    answer: oneshot::Sender<Result<T>>,
    run: impl Fn(&mut Inner, &Arc<World>, u64) -> T + Send + 'static,
) {
    let arrives = !fate.request_lost && world.travels(client, Way::There, fate.there).await;
    let mut reply = None;
    if let (true, Some(kind)) = (arrives, fate.refused) {
        reply = Some(Err(Error::new(kind, "refused by the simulation")));
    } else if arrives {
        let mut inner = world.lock();
        if answer.is_closed() {
            inner.judge.saw(Sometimes::LateExecution);
        }
        reply = Some(Ok(run(&mut inner, &world, world.now())));
        if fate.twice == Some(0) {
            inner.judge.saw(Sometimes::Duplicate);
            run(&mut inner, &world, world.now());
        }
    }
    if !fate.reply_lost
        && let Some(reply) = reply
        && world.travels(client, Way::Back, fate.back).await
    {
        let _ = answer.send(reply);
    } else if !fate.reset {
        sleep(limit).await;
    }
    if let (true, None, Some(again @ 1..)) = (arrives, fate.refused, fate.twice) {
        sleep(ms(again)).await;
        let mut inner = world.lock();
        if inner.server_up {
            inner.judge.saw(Sometimes::Duplicate);
            run(&mut inner, &world, world.now());
        }
    }
}

#[async_trait]
impl Store for Client {
    fn clock(&self) -> Clock {
        self.world.clock.clone()
    }

    fn capabilities(&self) -> Capabilities {
        let can = Capabilities::default().with_renewal_batch(self.world.plan.batch);
        let can = can.with_keeps(true).with_lingers(true);
        let layout = self.world.plan.scripts.map(|scripts| scripts.layout);
        if layout == Some(Layout::Plain) {
            return can.with_counts(false).with_lingers(false);
        }
        let permits = Mode::Permits { size: 1, take: 1 };
        can.with_mode(Mode::Read).with_mode(Mode::Write).with_mode(permits)
    }

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        let hold = self.hold(request.holder);
        let sent = self.world.clock.now();
        let task = TASK.try_with(|task| *task).ok();
        let (limit, name) = (request.timeout, request.target.name.clone());
        let asked = name.clone();
        let (mode, converts) = (request.target.mode, request.converts);
        let downgrades = converts && mode == Mode::Read;
        {
            let (mut inner, now) = (self.world.lock(), self.world.now());
            if downgrades {
                inner.judge.downgrade_sent(hold);
            } else if !converts {
                inner.judge.acquire_sent(now, hold, task);
            }
            if request.ttl != ms(self.world.plan.ttl) {
                inner.judge.fail(now, format_args!("a TTL of {:?} is asked for", request.ttl));
            }
        }
        let what = match mode {
            Mode::Exclusive => self.words(format_args!("acquire {name} {hold:?}")),
            mode => self.words(format_args!("acquire {name} {hold:?} {mode:?} {converts}")),
        };
        let run = move |inner: &mut Inner, world: &Arc<World>, now: u64| {
            let (verdict, deed) = inner.acquire(now, sent, &request, hold);
            match deed {
                Deed::Changed => {
                    let name = &request.target.name;
                    inner.judge.note(now, format_args!("{hold:?} has {name} for {mode:?}"));
                    inner.judge.created(now, name, hold, mode);
                    if mode == Mode::Read {
                        inner.wake(world, name);
                    }
                }
                Deed::Created => {
                    inner
                        .judge
                        .note(now, format_args!("{} is granted to {hold:?}", request.target.name));
                    inner.judge.created(now, &request.target.name, hold, mode);
                    if inner.left_by_dead.remove(&request.target.name) {
                        inner.judge.saw(Sometimes::CrashTakeOver);
                    }
                }
                Deed::Again => inner.judge.saw(Sometimes::ReGrant),
                Deed::Nothing => inner.judge.saw(Sometimes::ContendedWait),
            }
            verdict
        };
        self.call(what, Some(&asked), Sort::Grant, limit, run, move |inner, world, result| {
            if downgrades {
                inner.judge.downgrade_answered(hold);
            }
            match result {
                Ok(Acquired::Granted { sent, .. }) => {
                    inner.judge.hears(world.now(), hold.0, &name);
                    inner.judge.confirmed(&world.plan, world.moment(), hold, *sent);
                }
                Ok(Acquired::NotYours(_)) => inner.judge.saw_lost(world.now(), hold),
                Ok(_) => inner.judge.hears(world.now(), hold.0, &name),
                Err(error) => {
                    let kind = error.kind();
                    // If the call was dropped, only the engine gets the answer.
                    let reported = TASK.try_with(|task| *task);
                    if let (true, Ok(task)) = (kind != ErrorKind::Unavailable, reported) {
                        inner.judge.refused.insert(task, kind);
                    }
                    if kind == ErrorKind::WrongType {
                        inner.judge.wound(world.now(), hold);
                    }
                }
            }
        })
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        if request.ends == Ends::Arrival {
            return self.release_arrival(request);
        }
        let hold = self.hold(request.holder);
        let (limit, count) = (request.timeout, request.count);
        let believer = {
            let (mut inner, now) = (self.world.lock(), self.world.now());
            inner.judge.release_sent(now, hold, count);
            inner.judge.believer(hold)
        };
        let what = self.words(format_args!("release {} {hold:?} x{count}", request.target.name));
        let run = move |inner: &mut Inner, world: &Arc<World>, now: u64| {
            let Let { absence, freed, wakes } = inner.release(now, &request, hold);
            if freed {
                inner.judge.released(now, &request.target.name, hold);
                if !inner.judge.was_held(hold) {
                    inner.judge.saw(Sometimes::Sweep);
                    inner.judge.saw(Sometimes::ReleasedGrant);
                }
            }
            match absence {
                Some(absence) => Released::NotYours(absence),
                None if wakes => Released::done(inner.wake(world, &request.target.name)),
                None => Released::done(0),
            }
        };
        self.call(what, None, Sort::Change, limit, run, move |inner, world, result| match result {
            // Of another holder in its chain, or another mode, the next renewal decides.
            Ok(Released::NotYours(absence))
                if count > 0 && believer.is_some() && believer == inner.judge.believer(hold) =>
            {
                inner.judge.saw_absent(world.now(), hold, *absence);
            }
            Err(error) if error.kind() == ErrorKind::WrongType => {
                inner.judge.wound(world.now(), hold);
            }
            _ => {}
        })
    }

    fn renew(&self, batch: RenewBatch) -> Vec<RenewCall> {
        RenewCall::divide(batch, self.world.plan.batch, |_| 0, |part| self.renew_part(part))
    }

    async fn inspect(&self, request: Inspect) -> Result<Inspection> {
        match request.about {
            About::Holders => {}
            About::Note(_) => return Ok(Inspection::default()),
            _ => return Err(request.unsupported()),
        }
        let limit = request.timeout;
        let run = move |inner: &mut Inner, _: &Arc<World>, now: u64| inner.inspect(now, &request);
        self.call(String::new(), None, Sort::Passed, limit, run, |_, _, _| ()).await
    }

    async fn annotate(&self, request: Annotate) -> Result<bool> {
        let limit = request.timeout;
        let hold = self.hold(request.holder);
        let what = self.words(format_args!("annotate {} {hold:?}", request.target.name));
        let run =
            move |inner: &mut Inner, _: &Arc<World>, now: u64| inner.annotate(now, &request, hold);
        self.call(what, None, Sort::Change, limit, run, |_, _, _| ()).await
    }

    async fn want(&self, request: Want) -> Result<bool> {
        assert!(request.only_resting, "nothing is stolen here");
        let limit = request.timeout;
        let what = self.words(format_args!("ask for {}", request.target.name));
        let run =
            move |inner: &mut Inner, world: &Arc<World>, now: u64| inner.want(world, now, &request);
        self.call(what, None, Sort::Passed, limit, run, |_, _, _| ()).await
    }

    fn inbox(&self, manager: Uuid) -> Option<Inbox> {
        // Version 8: it lingers.
        if manager.get_version_num() != 8 {
            return None;
        }
        let (sender, inbox) = Inbox::new(());
        self.world.lock().inboxes.insert(manager, (self.id, sender));
        Some(inbox)
    }

    async fn force_release(&self, request: ForceRelease) -> Result<bool> {
        let (name, limit) = (request.target.name.clone(), request.timeout);
        let what = self.words(format_args!("force {name}"));
        let run = move |inner: &mut Inner, world: &Arc<World>, now: u64| {
            let held = inner.force(now, &request);
            for hold in &held {
                inner.judge.wound(now, *hold);
            }
            inner.wake(world, &name);
            !held.is_empty()
        };
        self.call(what, None, Sort::Passed, limit, run, |_, _, _| ()).await
    }

    async fn subscribe(&self, request: Wait) -> Result<Option<Wakeups>> {
        if request.topic != Topic::Release {
            return Ok(None);
        }
        let (name, limit) = (request.target.name, request.timeout);
        let (client, signal) = (self.id, Signal::new());
        let what = self.words(format_args!("subscribe {name}"));
        let subscription = {
            let mut inner = self.world.lock();
            inner.last_subscription += 1;
            Subscription { world: Arc::clone(&self.world), id: inner.last_subscription }
        };
        let (id, reported) = (subscription.id, signal.clone());
        let alive = Arc::new(());
        let wanted = Arc::downgrade(&alive);
        let run = move |inner: &mut Inner, _: &Arc<World>, _: u64| {
            let known = inner.subscriptions.iter().any(|each| each.id == id);
            if wanted.strong_count() > 0 && !known {
                let (name, signal) = (name.clone(), reported.clone());
                inner.subscriptions.push(Subscriber { id, client, name, signal });
            }
        };
        self.call(what, None, Sort::Passed, limit, run, |_, _, _| ()).await?;
        Ok(Some(Wakeups::new(signal, (subscription, alive))))
    }

    fn reconnects(&self) -> Option<Signal> {
        Some(self.reconnects.clone())
    }

    async fn uptime(&self, _: Duration) -> Result<Uptime> {
        Err(Error::new(ErrorKind::Unsupported, "it is no node of a quorum"))
    }

    async fn close(&self, _: Duration) {
        self.world.note(format_args!("c{} ends its connections", self.id));
        let closes = self.world.lock().closings.remove(&self.id);
        if let Some(closes) = closes {
            // As long as this thread waits, no virtual time passes.
            tokio::task::spawn_blocking(move || closes.recv_timeout(STUCK));
        }
    }
}

struct Subscription {
    world: Arc<World>,
    id: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.world.lock().subscriptions.retain(|each| each.id != self.id);
    }
}
