//! Random programs: what each actor does, and what goes wrong meanwhile, from a seed alone.

use std::time::Duration;

use crate::dice::Dice;
use crate::history::{Backend, Ending, Rules, Way};

/// The settings of the managers of a run, which are the same for all of them.
#[derive(Clone, Debug)]
pub struct Settings {
    pub ttl: Duration,
    pub grace: Option<Duration>,
    pub poll: Option<Duration>,
    pub handoffs: Option<u32>,
    pub linger: Option<Duration>,
    pub max_hold: Option<Duration>,
    pub stall_after: Option<Duration>,
    pub fencing: bool,
}

/// What a call does beside waiting.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    pub way: Way,
    /// The future is dropped after this time.
    pub abandon: Option<Duration>,
    /// The future is not polled for a while.
    pub pause: Option<Gap>,
    pub hold: Duration,
    pub ending: Ending,
}

/// When a future is left alone, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    pub after: Duration,
    pub length: Duration,
}

#[derive(Clone, Debug)]
pub enum Step {
    Rest(Duration),
    Lock {
        name: u64,
        fair: bool,
        min_hold: Option<Duration>,
        lock_delay: Duration,
        depth: u64,
        outer_first: bool,
        manner: Manner,
    },
    Holder {
        names: u64,
        manner: Manner,
    },
    Rw {
        name: u64,
        write: bool,
        again: Option<bool>,
        change: bool,
        manner: Manner,
    },
    Permits {
        name: u64,
        count: u32,
        manner: Manner,
    },
    Slots {
        index: Option<u32>,
        manner: Manner,
    },
    Multi {
        names: Vec<u64>,
        min_hold: Option<Duration>,
        again: bool,
        manner: Manner,
    },
    Job {
        key: u64,
        keep: Duration,
        wait: Duration,
        work: Duration,
        fails: bool,
        abandon: Option<Duration>,
    },
    Campaign {
        manner: Manner,
    },
    Lead {
        terms: u64,
        hold: Duration,
    },
    /// Asks for a name that others ask for as another kind of lock.
    Mixed {
        object: u64,
        manner: Manner,
    },
    Observe(Duration),
    Steal {
        name: u64,
        after: Option<Duration>,
        manner: Manner,
    },
    Force {
        name: u64,
    },
    Delete {
        name: u64,
    },
    Close,
}

#[derive(Clone, Debug)]
pub struct Actor {
    pub process: usize,
    pub steps: Vec<Step>,
}

/// What goes wrong with the store.
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    /// Every call fails at once.
    Outage(Duration),
    /// Requests arrive after this time.
    Hang(Duration),
    /// Requests run at once, and are answered after this time.
    HoldReplies(Duration),
    /// So many answers are lost.
    LoseReplies(usize),
    /// Requests are this much later, for a while.
    Slow { by: Duration, span: Duration },
    /// Answers are lost, and requests run after this time, when no call expects them.
    RunLate(Duration),
    /// The server, or one of its nodes, restarts.
    Restart,
}

#[derive(Clone, Debug)]
pub struct Mishap {
    pub after: Duration,
    pub process: usize,
    pub trouble: Trouble,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub backend: Backend,
    pub processes: usize,
    pub settings: Settings,
    pub actors: Vec<Actor>,
    pub mishaps: Vec<Mishap>,
}

/// The number of permits of each semaphore.
pub const PERMITS: u32 = 3;
/// The number of slots.
pub const SLOTS: u32 = 3;

/// How far a run goes.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub processes: u64,
    pub actors: u64,
    pub steps: u64,
}

impl Plan {
    pub fn new(seed: u64, backend: Backend, ttl: Option<Duration>, size: Size) -> Self {
        let mut dice = Dice::new(seed);
        let ttl = ttl.unwrap_or_else(|| {
            dice.pick(&[
                Duration::from_millis(600),
                Duration::from_secs(3),
                Duration::from_secs(30),
            ])
        });
        let keeps_time = backend != Backend::ZooKeeper;
        let can_linger = matches!(backend, Backend::Memory | Backend::Redis);
        let linger = (can_linger && dice.percent(35)).then(|| ttl / 12);
        // Where nothing is handed off, nothing can rest.
        let handoffs = dice
            .percent(35)
            .then(|| dice.pick(if linger.is_some() { &[1, 5] } else { &[0, 1, 5] }));
        let settings = Settings {
            ttl,
            grace: dice.percent(25).then(|| (ttl / 5).max(Duration::from_millis(10))),
            poll: dice.percent(25).then(|| (ttl / 20).max(Duration::from_millis(20))),
            handoffs,
            linger,
            max_hold: dice.percent(25).then(|| ttl / 2),
            stall_after: dice.percent(20).then(|| ttl / 3),
            fencing: !dice.percent(20),
        };
        let processes = 1 + dice.index(usize::try_from(size.processes).expect("small"));
        // What most of the actors of a run do, so that they meet.
        let themes: Vec<u64> = (0..1 + dice.below(3)).map(|_| dice.below(12)).collect();
        let forces = dice.percent(35);
        let closes = dice.percent(30);
        let mut actors = Vec::new();
        for _ in 0..2 + dice.below(size.actors) {
            let process = dice.index(processes);
            let mut steps = Vec::new();
            for _ in 0..1 + dice.below(size.steps) {
                let theme = if dice.percent(90) { dice.pick(&themes) } else { dice.below(12) };
                let mut drawn = draw(&mut dice, theme, ttl, keeps_time);
                if forces && dice.percent(8) {
                    drawn = force(&mut dice, ttl, backend);
                }
                if closes && dice.percent(4) {
                    drawn = Step::Close;
                }
                steps.push(drawn);
                if dice.percent(50) {
                    steps.push(Step::Rest(dice.time(ttl)));
                }
            }
            actors.push(Actor { process, steps });
        }
        let mut mishaps = Vec::new();
        if dice.percent(45) {
            for _ in 0..1 + dice.below(5) {
                let trouble = mishap(&mut dice, ttl);
                mishaps.push(Mishap {
                    after: dice.time(ttl * 3),
                    process: dice.index(processes),
                    trouble,
                });
            }
        }
        Self { seed, backend, processes, settings, actors, mishaps }
    }

    /// Returns what follows from the settings, by the guide.
    pub fn rules(&self, slack: Duration) -> Rules {
        let Settings { ttl, .. } = self.settings;
        // "With ZooKeeper, T is three quarters of your `ttl`."
        let t = if self.backend == Backend::ZooKeeper { ttl * 3 / 4 } else { ttl };
        // "It may take T/10, at least 250 ms and at most 10 s, but never more than T/6."
        let attempt =
            (t / 10).clamp(Duration::from_millis(250), Duration::from_secs(10)).min(t / 6);
        // "1 s, or T/3 if less"
        let poll = self.settings.poll.unwrap_or_else(|| Duration::from_secs(1).min(t / 3));
        // "T/10, from 10 ms to 2 s"
        let grace = (t / 10).clamp(Duration::from_millis(10), Duration::from_secs(2));
        Rules {
            backend: self.backend,
            ttl,
            attempt,
            poll,
            grace: self.settings.grace.unwrap_or(grace),
            linger: self.settings.linger,
            max_hold: self.settings.max_hold,
            stall_after: self.settings.stall_after,
            fencing: self.settings.fencing,
            slack,
        }
    }
}

fn manner(dice: &mut Dice, ttl: Duration) -> Manner {
    let way = match dice.below(10) {
        0..5 => Way::Wait,
        5..7 => Way::Try,
        7 => Way::Timed(Duration::ZERO),
        _ => Way::Timed(dice.time(ttl)),
    };
    let ending = match dice.below(20) {
        0..9 => Ending::Unlock,
        9..11 => Ending::UnlockNow,
        11..17 => Ending::Drop,
        17..19 => Ending::UnlockDropped,
        _ => Ending::Forget,
    };
    let pause =
        dice.percent(10).then(|| Gap { after: dice.time(ttl / 8), length: dice.time(ttl * 2) });
    Manner {
        way,
        abandon: dice.percent(12).then(|| dice.time(ttl / 2)),
        pause,
        hold: dice.time(ttl),
        ending,
    }
}

fn draw(dice: &mut Dice, theme: u64, ttl: Duration, keeps_time: bool) -> Step {
    let manner = manner(dice, ttl);
    let min_hold = (keeps_time && dice.percent(12)).then(|| dice.time(ttl));
    match theme {
        0..3 => Step::Lock {
            name: dice.below(2),
            fair: theme == 2,
            min_hold,
            lock_delay: if keeps_time && dice.percent(12) {
                dice.time(ttl / 2)
            } else {
                Duration::ZERO
            },
            depth: dice.below(5).saturating_sub(2),
            outer_first: dice.percent(30),
            manner,
        },
        3 => Step::Holder { names: 1 + dice.below(3), manner },
        4 | 5 => Step::Rw {
            name: dice.below(2),
            write: dice.percent(45),
            again: dice.percent(25).then(|| dice.percent(50)),
            change: dice.percent(30),
            manner,
        },
        6 => Step::Permits { name: dice.below(2), count: dice.pick(&[1, 1, 1, 2, 3]), manner },
        7 => Step::Slots { index: dice.percent(40).then(|| dice.pick(&[0, 1, 2])), manner },
        8 => {
            let names = dice.pick(&[&[0_u64, 1][..], &[1, 0], &[2, 0], &[1, 2], &[2, 1, 0]]);
            Step::Multi { names: names.to_vec(), min_hold, again: dice.percent(25), manner }
        }
        9 => Step::Job {
            key: dice.below(3),
            keep: dice.time(ttl * 2).max(Duration::from_millis(1)),
            wait: if dice.percent(60) { dice.time(ttl * 2) } else { Duration::ZERO },
            work: dice.time(ttl),
            fails: dice.percent(30),
            abandon: dice.percent(15).then(|| dice.time(ttl)),
        },
        10 => Step::Mixed { object: dice.below(4), manner },
        _ => {
            if dice.percent(20) {
                Step::Observe(dice.time(ttl * 3))
            } else if dice.percent(40) {
                Step::Lead { terms: 1 + dice.below(3), hold: dice.time(ttl / 2) }
            } else {
                Step::Campaign { manner }
            }
        }
    }
}

fn force(dice: &mut Dice, ttl: Duration, backend: Backend) -> Step {
    match dice.below(10) {
        0..5 => Step::Steal {
            name: dice.below(2),
            after: dice.percent(40).then(|| dice.time(ttl / 2)),
            manner: manner(dice, ttl),
        },
        5..8 => Step::Force { name: dice.below(9) },
        _ if backend == Backend::Memory => Step::Delete { name: dice.below(2) },
        _ => Step::Force { name: dice.below(9) },
    }
}

fn mishap(dice: &mut Dice, ttl: Duration) -> Trouble {
    match dice.below(8) {
        0 => Trouble::Outage(dice.time(ttl * 3 / 2)),
        1 => Trouble::Hang(dice.time(ttl)),
        2 => Trouble::HoldReplies(dice.time(ttl)),
        3 | 4 => Trouble::LoseReplies(1 + dice.index(4)),
        5 => Trouble::RunLate(dice.time(ttl)),
        6 => Trouble::Slow { by: dice.time(ttl / 12), span: dice.time(ttl) },
        _ => Trouble::Restart,
    }
}
