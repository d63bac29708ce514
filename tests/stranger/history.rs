//! What happened in a run: calls, leases and acts, with the times between which each began and ended.
//!
//! A stamp has a number and a time, which are taken together, so all stamps of a run have one order. What begins is stamped
//! before, and what ends is stamped after, so that an interval between stamps is never shorter than what it is about. Only
//! for what a holder believes it is the reverse: a lease was good from a stamp after its grant to a stamp before a look.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::{Error, ErrorKind, Loss};

/// A moment of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    pub order: u64,
    pub at: Duration,
}

/// The store of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Memory,
    Redis,
    Quorum,
    ZooKeeper,
}

/// The settings of a run, and what the guide derives from them.
#[derive(Clone, Debug)]
pub struct Rules {
    pub backend: Backend,
    pub ttl: Duration,
    /// One request to the store.
    pub attempt: Duration,
    pub poll: Duration,
    pub grace: Duration,
    pub linger: Option<Duration>,
    pub max_hold: Option<Duration>,
    pub stall_after: Option<Duration>,
    pub fencing: bool,
    /// How late the machine may be.
    pub slack: Duration,
}

impl Rules {
    /// For how long a holder may not know that its name was taken by force.
    pub fn learns(&self) -> Duration {
        self.ttl / 3 + self.attempt * 2 + self.slack
    }
}

/// How a lease keeps others out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Alone,
    Read,
    Write,
    Permits { count: u32, size: u32 },
}

/// How a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Wait,
    Try,
    Timed(Duration),
    Steal,
    StealAfter(Duration),
    /// From reading to writing or back.
    Change,
}

/// Which object of the family made a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    Lock,
    Fair,
    Holder,
    Rw,
    Semaphore,
    Slots,
    Multi,
    Election,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub kind: ErrorKind,
    pub loss: Option<Loss>,
    pub text: String,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self { kind: error.kind(), loss: error.loss(), text: error.to_string() }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Pending,
    Granted,
    Refused,
    Failed(Failure),
    /// The future was dropped.
    Abandoned,
    /// It was given up after far more time than any call may need.
    Stuck,
}

/// A call that asks for one name or several.
#[derive(Clone, Debug)]
pub struct Call {
    pub actor: usize,
    /// A manager, with a new number after each close.
    pub manager: usize,
    pub handle: u64,
    pub object: Object,
    pub names: Vec<String>,
    /// One of the names is enough.
    pub any: bool,
    pub mode: Mode,
    pub way: Way,
    /// A lease of the same handle is alive, which it enters again.
    pub nested: bool,
    pub min_hold: Option<Duration>,
    pub lock_delay: Duration,
    pub start: Stamp,
    /// Just before the poll that returned.
    pub polled: Stamp,
    /// From its last poll before a pause to its first one after it.
    pub unpolled: Option<Pause>,
    pub end: Option<Stamp>,
    pub outcome: Outcome,
}

/// A time in which a future was not polled.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    pub from: Stamp,
    pub to: Stamp,
}

/// How a lease was ended by its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Unlock,
    UnlockNow,
    Drop,
    Forget,
    /// `unlock`, whose future was dropped after the first poll.
    UnlockDropped,
    /// `downgrade` or `try_upgrade`, which gave another lease for it.
    Changed,
}

#[derive(Clone, Debug)]
pub struct End {
    pub how: Ending,
    pub begin: Stamp,
    pub done: Option<Stamp>,
    pub failure: Option<Failure>,
    /// What remained just before.
    pub remaining: Duration,
    /// Whether the token of the lease had fired when the call was over.
    pub token_fired: bool,
}

/// A lease of one name.
#[derive(Clone, Debug)]
pub struct Held {
    pub call: usize,
    pub name: String,
    pub handle: u64,
    pub manager: usize,
    pub mode: Mode,
    pub nested: bool,
    pub fence: Option<u64>,
    pub hold_count: u32,
    pub remaining: Duration,
    /// Just before the poll that returned it.
    pub polled: Stamp,
    pub start: Stamp,
    /// The last moment at which it was surely good: its token had not fired, and `check` returned `Ok` afterwards.
    pub good_until: Stamp,
    /// The last moment at which its token had surely not fired.
    pub unfired_until: Stamp,
    /// When its holder last reported progress, which was good then.
    pub reported: Option<Stamp>,
    pub holder: String,
    /// When it was first seen that it was lost, and why.
    pub lost: Option<Lost>,
    pub end: Option<End>,
}

#[derive(Clone, Copy, Debug)]
pub struct Lost {
    pub seen: Stamp,
    pub loss: Option<Loss>,
}

/// What was done to a name, a manager or the store.
#[derive(Clone, Debug, PartialEq)]
pub enum Deed {
    Steal {
        name: String,
    },
    Force {
        name: String,
        found: Option<bool>,
    },
    Delete {
        name: String,
    },
    Close {
        manager: usize,
        failed: Vec<String>,
    },
    /// The store was away or slow for these managers; `None` for all.
    Trouble {
        manager: Option<usize>,
    },
    /// The machine stood still.
    Stall,
}

#[derive(Clone, Debug)]
pub struct Act {
    pub deed: Deed,
    pub manager: usize,
    pub start: Stamp,
    pub end: Option<Stamp>,
    pub failure: Option<Failure>,
}

/// What a call of a job returned.
#[derive(Clone, Debug, PartialEq)]
pub enum JobOutcome {
    Pending,
    Ran,
    Unconfirmed,
    BodyFailed,
    Running,
    AlreadyDone { ago: Duration },
    Failed(Failure),
    Abandoned,
    Stuck,
}

/// A call of a job.
#[derive(Clone, Debug)]
pub struct JobCall {
    pub key: String,
    pub manager: usize,
    pub keep: Duration,
    pub wait: Duration,
    pub start: Stamp,
    pub body: Option<Body>,
    pub end: Option<Stamp>,
    pub outcome: JobOutcome,
}

/// A body of a job, as far as it came.
#[derive(Clone, Copy, Debug)]
pub struct Body {
    pub start: Stamp,
    pub good_until: Stamp,
    pub returned_ok: Option<Stamp>,
}

/// What an observer of an election saw.
#[derive(Clone, Debug)]
pub struct Sighting {
    pub view: u64,
    pub name: String,
    pub at: Stamp,
    pub term: Option<u64>,
    pub holder: Option<String>,
    pub value: Option<String>,
}

/// What was there when all was over and a TTL had passed.
#[derive(Clone, Debug)]
pub struct Leftover {
    pub what: String,
}

#[derive(Clone, Debug)]
pub struct History {
    pub rules: Rules,
    pub calls: Vec<Call>,
    pub leases: Vec<Held>,
    pub acts: Vec<Act>,
    pub jobs: Vec<JobCall>,
    pub sightings: Vec<Sighting>,
    pub leftovers: Vec<Leftover>,
}

impl History {
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            calls: Vec::new(),
            leases: Vec::new(),
            acts: Vec::new(),
            jobs: Vec::new(),
            sightings: Vec::new(),
            leftovers: Vec::new(),
        }
    }

    /// The story of a name: its events in their order, a line each.
    pub fn story(&self, name: &str) -> String {
        let mut lines = BTreeMap::new();
        let mut add = |stamp: Stamp, text: String| {
            lines.insert(stamp, text);
        };
        for (number, call) in
            self.calls.iter().enumerate().filter(|(_, call)| call.names.iter().any(|n| n == name))
        {
            let nested = if call.nested { ", nested" } else { "" };
            let options = match call.min_hold {
                Some(min) => format!(", min_hold {min:?}"),
                None => String::new(),
            };
            let delay = if call.lock_delay.is_zero() {
                String::new()
            } else {
                format!(", lock_delay {:?}", call.lock_delay)
            };
            add(
                call.start,
                format!(
                    "actor {} of manager {}: call {number} {:?} {:?} {:?}{nested}{options}{delay}, handle {}",
                    call.actor, call.manager, call.object, call.mode, call.way, call.handle
                ),
            );
            if let Some(pause) = call.unpolled {
                add(pause.from, format!("call {number} is not polled from here"));
                add(pause.to, format!("call {number} is polled again"));
            }
            if let Some(end) = call.end {
                add(end, format!("call {number}: {:?}", call.outcome));
            }
        }
        for (number, held) in self.leases.iter().enumerate().filter(|(_, held)| held.name == name) {
            add(
                held.start,
                format!(
                    "lease {number} of call {}: manager {}, {:?}, fence {:?}, {:?} remain",
                    held.call, held.manager, held.mode, held.fence, held.remaining
                ),
            );
            add(held.good_until, format!("lease {number}: good until here"));
            if let Some(lost) = held.lost {
                add(lost.seen, format!("lease {number}: seen to be lost, {:?}", lost.loss));
            }
            if let Some(end) = &held.end {
                add(end.begin, format!("lease {number}: {:?}", end.how));
                if let Some(done) = end.done {
                    add(done, format!("lease {number}: {:?} is over, {:?}", end.how, end.failure));
                }
            }
        }
        for act in &self.acts {
            let is_of_another_name = match &act.deed {
                Deed::Steal { name: n }
                | Deed::Force { name: n, .. }
                | Deed::Delete { name: n } => n != name,
                _ => false,
            };
            if !is_of_another_name {
                add(act.start, format!("{:?} begins, manager {}", act.deed, act.manager));
                if let Some(end) = act.end {
                    add(end, format!("{:?} is over, {:?}", act.deed, act.failure));
                }
            }
        }
        for seen in self.sightings.iter().filter(|seen| seen.name == name) {
            add(
                seen.at,
                format!(
                    "view {}: term {:?}, {:?}, {:?}",
                    seen.view, seen.term, seen.holder, seen.value
                ),
            );
        }
        for job in self.jobs.iter().filter(|job| job.key == name) {
            add(
                job.start,
                format!("manager {}: once, keep {:?}, wait {:?}", job.manager, job.keep, job.wait),
            );
            if let Some(body) = job.body {
                add(body.start, format!("manager {}: body begins", job.manager));
                if let Some(ok) = body.returned_ok {
                    add(ok, format!("manager {}: body returns Ok", job.manager));
                }
            }
            if let Some(end) = job.end {
                add(end, format!("manager {}: once is {:?}", job.manager, job.outcome));
            }
        }
        let mut story = String::new();
        for (stamp, text) in lines {
            let _ =
                writeln!(story, "  {:>6} {:>12.6} s  {text}", stamp.order, stamp.at.as_secs_f64());
        }
        story
    }
}

/// Writes the history of a run.
#[derive(Clone)]
pub struct Log(Arc<Shared>);

struct Shared {
    clock: Clock,
    state: Mutex<State>,
}

struct State {
    history: History,
    next: u64,
    handles: u64,
}

/// What time it is in a run.
#[derive(Clone, Copy)]
pub enum Clock {
    /// That of tokio, which may be paused.
    Tokio(tokio::time::Instant),
    /// That of the host, since boot.
    Host(Duration),
}

impl Clock {
    fn now(self) -> Duration {
        match self {
            Self::Tokio(origin) => origin.elapsed(),
            Self::Host(origin) => kit::fault::boottime().saturating_sub(origin),
        }
    }
}

impl Log {
    pub fn new(rules: Rules, clock: Clock) -> Self {
        let state = State { history: History::new(rules), next: 0, handles: 0 };
        Self(Arc::new(Shared { clock, state: Mutex::new(state) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a number and a time, together.
    pub fn stamp(&self) -> Stamp {
        let mut state = self.state();
        state.next += 1;
        Stamp { order: state.next, at: self.0.clock.now() }
    }

    pub fn handle(&self) -> u64 {
        let mut state = self.state();
        state.handles += 1;
        state.handles
    }

    pub fn write<T>(&self, change: impl FnOnce(&mut History) -> T) -> T {
        change(&mut self.state().history)
    }

    pub fn history(&self) -> History {
        self.state().history.clone()
    }

    /// Notes the beginning of an act.
    pub fn begin(&self, deed: Deed, manager: usize) -> usize {
        let start = self.stamp();
        self.write(|history| {
            history.acts.push(Act { deed, manager, start, end: None, failure: None });
            history.acts.len() - 1
        })
    }

    /// Notes the end of an act.
    pub fn finish(&self, act: usize, failure: Option<Failure>) {
        let end = self.stamp();
        self.write(|history| {
            let act = &mut history.acts[act];
            act.end = Some(end);
            act.failure = failure;
        });
    }
}
