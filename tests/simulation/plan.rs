//! The choices that a seed makes before the run begins.

use kit::Dice;
use leasehold::store::Layout;
use std::time::Duration;

/// One possession of a name: whose, and the number of its token.
pub type HoldId = (usize, u64);

/// With this, the seeds of the museum are without what came later.
const ODD: u64 = 72000;

/// And with this, without what came after that.
const LATER: u64 = 73000;

/// And with this, without what came last.
const LAST: u64 = 74000;

/// And with this, without those who share names.
const SHARES: u64 = 75000;

/// And with this, without services.
const SERVES: u64 = 76000;

/// And with this, without holds that rest.
const LINGERS: u64 = 77000;

/// All times in milliseconds.
pub struct Plan {
    pub ttl: u64,
    pub poll: u64,
    pub handoff: u32,
    /// For how long holds rest; not at all in most stories.
    pub linger: Option<u64>,
    pub max_hold: Option<u64>,
    pub batch: usize,
    pub clients: usize,
    pub tasks: u64,
    pub names: u64,
    /// The server's clock, in millionths too fast.
    pub rate: i64,
    pub faults: Faults,
    pub log: Option<LogFault>,
    /// Of all lines in users' own futures, one in so many panics.
    pub log_panics_in_calls: Option<u64>,
    /// Chance for what came later: the other decisions of a seed stay as they are.
    pub odd: Dice,
    /// Chance for what users' runtimes do, which came later still.
    pub users: Dice,
    /// Chance for waiters that leave when they are served, which came last.
    pub last: Dice,
    /// How many tasks of each process read, write and take permits; none in most stories, which are as they were before
    /// there was any of it.
    pub sharers: u64,
    /// The number of permits.
    pub size: u32,
    /// Chance for those.
    pub shares: Dice,
    /// How many tasks of each process stand in an election and run jobs; none in most stories.
    pub services: u64,
    /// Chance for those.
    pub serves: Dice,
    /// Requests run the scripts of this layout. Only in stories of their own.
    pub scripts: Option<ScriptPlan>,
}

/// Which scripts run.
#[derive(Clone, Copy)]
pub struct ScriptPlan {
    pub layout: Layout,
    pub broken: Option<Break>,
}

/// A part of a script, and what it has instead.
#[derive(Clone, Copy, Debug)]
pub struct Break {
    pub text: &'static str,
    pub wrong: &'static str,
}

/// What writing a line of the log does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFault {
    Panic,
    /// Until the run is over.
    Block,
    Slow,
}

/// What goes wrong in the storms, each in percent of the requests or of the chances it has.
#[derive(Default)]
pub struct Faults {
    pub request_lost: u64,
    pub reply_lost: u64,
    pub late: u64,
    pub twice: u64,
    pub refused: u64,
    pub hang: u64,
    pub hint_lost: u64,
    pub hint_odd: u64,
    pub partition: u64,
    pub freeze: u64,
    pub restart: u64,
    pub wipe: u64,
    pub delete: u64,
    pub force: u64,
    pub step: u64,
    pub failover: u64,
    pub crash: u64,
    pub close: u64,
    pub reconnect: u64,
    /// Also in fair weather, and of the calls.
    pub unpolled: u64,
    pub spin: u64,
    pub flood: u64,
    pub outage: u64,
    /// Of a user's runtime.
    pub stall: u64,
    pub end: u64,
    pub unwind: u64,
    /// Also in fair weather, and of the sessions.
    pub desert: u64,
}

impl Plan {
    pub fn draw(seed: u64, dice: &mut Dice) -> Self {
        let ttl = dice.pick(&[200, 500, 1000, 3000, 30_000]);
        // Each run has some of the faults: with all of them at once, each hides the others.
        let mut some = |high: u64| if dice.percent(45) { dice.between(1, high) } else { 0 };
        let faults = Faults {
            request_lost: some(15),
            reply_lost: some(15),
            late: some(15),
            twice: some(20),
            refused: some(8),
            hang: some(3),
            hint_lost: some(60),
            hint_odd: some(40),
            partition: some(60),
            freeze: some(30),
            restart: some(20),
            wipe: some(20),
            delete: some(20),
            force: some(20),
            step: some(20),
            failover: some(20),
            crash: some(25),
            close: some(10),
            reconnect: some(30),
            ..Faults::default()
        };
        // A clock set back and a memory lost at once take the order of the fences away.
        let step = if faults.wipe + faults.failover > 0 { 0 } else { faults.step };
        let mut odd = Dice::new(seed ^ ODD);
        let any = odd.percent(60);
        let mut some = |high: u64| if any && odd.percent(50) { odd.between(1, high) } else { 0 };
        let faults = Faults {
            step,
            unpolled: some(20),
            spin: some(5),
            flood: some(20),
            outage: some(20),
            ..faults
        };
        let mut users = Dice::new(seed ^ LATER);
        let any = users.percent(25);
        let mut some =
            |high: u64| if any && users.percent(50) { users.between(1, high) } else { 0 };
        let (stall, end, unwind) = (some(60), some(30), some(30));
        let faults = Faults { stall, end, unwind, ..faults };
        let mut last = Dice::new(seed ^ LAST);
        let desert = if last.percent(30) { last.between(1, 30) } else { 0 };
        let faults = Faults { desert, ..faults };
        let log = users.pick(&[LogFault::Panic, LogFault::Block, LogFault::Slow]);
        let log = users.percent(6).then_some(log);
        let log_panics_in_calls = users.between(20, 500);
        let in_calls = log == Some(LogFault::Panic) && users.percent(50);
        let log_panics_in_calls = in_calls.then_some(log_panics_in_calls);
        let mut shares = Dice::new(seed ^ SHARES);
        let sharers = if shares.percent(40) { shares.between(1, 4) } else { 0 };
        let size = shares.between(1, 4) as u32;
        let mut lingers = Dice::new(seed ^ LINGERS);
        let mut serves = Dice::new(seed ^ SERVES);
        let services = if serves.percent(15) { serves.between(1, 3) } else { 0 };
        Self {
            ttl,
            poll: dice.pick(&[ttl / 10, ttl / 3, ttl]),
            handoff: dice.pick(&[0, 1, 3, 127]),
            linger: lingers.percent(30).then(|| lingers.between(1, ttl / 10)),
            max_hold: dice.percent(20).then(|| dice.between(ttl / 4, 2 * ttl)),
            batch: dice.pick(&[1, 2, 100]),
            clients: dice.between(2, 3) as usize,
            tasks: dice.between(1, 3),
            names: dice.between(1, 2),
            rate: dice.pick(&[-10_000, 0, 10_000]),
            faults,
            log,
            log_panics_in_calls,
            odd,
            users,
            last,
            sharers,
            size,
            shares,
            services,
            serves,
            scripts: None,
        }
    }

    /// Has requests run scripts of which one is wrong.
    pub fn run_broken_scripts(&mut self, layout: Layout, broken: Break) {
        self.run_scripts(layout);
        self.scripts.iter_mut().for_each(|scripts| scripts.broken = Some(broken));
    }

    /// Has requests run the scripts. Plain locks have neither modes nor holds that rest.
    pub fn run_scripts(&mut self, layout: Layout) {
        self.scripts = Some(ScriptPlan { layout, broken: None });
        if layout == Layout::Plain {
            (self.sharers, self.linger) = (0, None);
        }
    }

    pub fn grace(&self) -> u64 {
        (self.ttl / 10).clamp(10, 2000)
    }

    pub fn attempt(&self) -> u64 {
        (self.ttl / 10).clamp(250, 10_000).min(self.ttl / 6)
    }

    /// The longest way in fair weather.
    pub fn way(&self) -> u64 {
        self.ttl / 100
    }

    /// How long what a storm began may go on after it: a request that hangs, one that is late, and
    /// what follows from them.
    pub fn settled(&self) -> u64 {
        self.ttl * 3 / 2 + 3 * self.attempt()
    }

    /// For timers of whole milliseconds and a few round trips.
    pub fn slack(&self) -> u64 {
        self.ttl / 10 + 20
    }

    /// `C - s`: how long a confirmation may be believed, by the documentation's formula.
    pub fn believed(&self) -> Duration {
        self.deadline() - ms(self.grace())
    }

    /// `D - s`.
    pub fn deadline(&self) -> Duration {
        ms(self.ttl) - ms(self.ttl) / 100 - ms(2)
    }
}

pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
