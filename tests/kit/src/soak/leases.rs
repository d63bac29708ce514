//! The outcome of each request for a lease, put together from the events.
//!
//! A name says what it is used as: `rw-ash` is a read-write lock, `pool3-ash` a semaphore of three permits, `lead-ash` an
//! election, `job-ash` the key of a job, and `loot-ash` a lock that is stolen.

use crate::soak::history::{Event, What};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// What a name is used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Lock,
    ReadWrite,
    Semaphore { size: u32 },
    Election,
    Job,
    Loot,
}

/// The longest time for which a job closes its key.
pub const LONGEST_KEEP: Duration = Duration::from_secs(3);

impl Kind {
    pub fn of(name: &str) -> Self {
        let pool = name.strip_prefix("pool").and_then(|rest| rest.split_once('-'));
        match pool.and_then(|(size, _)| size.parse().ok()) {
            Some(size) => Self::Semaphore { size },
            None => match name.split_once('-') {
                Some(("rw", _)) => Self::ReadWrite,
                Some(("lead", _)) => Self::Election,
                Some(("job", _)) => Self::Job,
                Some(("loot", _)) => Self::Loot,
                _ => Self::Lock,
            },
        }
    }
}

/// In which mode a lease is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    Exclusive,
    Read,
    Write,
    Permits(u32),
}

impl Mode {
    fn read(word: &str, permits: u32) -> Self {
        match word {
            "read" => Self::Read,
            "write" => Self::Write,
            "permits" => Self::Permits(permits),
            _ => Self::Exclusive,
        }
    }

    /// Whether two leases of one name cannot be there together, whatever else is.
    pub fn excludes(self, other: Self) -> bool {
        !matches!((self, other), (Self::Read, Self::Read) | (Self::Permits(_), Self::Permits(_)))
    }
}

/// One wish for a lease, and the lease if it was granted. Times in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Lease {
    pub who: String,
    pub name: String,
    pub how: String,
    pub mode: Mode,
    pub limit: u64,
    pub asked: u64,
    /// Given up, or the call failed.
    pub gave_up: Option<(u64, String)>,
    pub granted: Option<u64>,
    pub fence: u64,
    /// Of its token in the store.
    pub number: Option<u64>,
    pub by_token: bool,
    /// The last `check()` that is known to have been Ok, as the time before it was called.
    pub last_ok: u64,
    pub released: Option<u64>,
    /// When it could not be released, and why.
    pub unreleased: Option<(u64, String)>,
    /// When the future that asks was left alone.
    pub unpolled: Option<u64>,
    /// When it was left to expire.
    pub forgot: Option<u64>,
    pub fired: Option<(u64, String)>,
    /// When it was at risk, and when it was safe again.
    pub at_risk: Vec<(u64, Option<u64>)>,
    pub nested: Vec<(u64, u64)>,
    /// Whether the body of a job failed.
    pub failed: bool,
    /// When a job was known to be done, and for how long its key was closed.
    pub ran: Option<(u64, u64)>,
    /// From when to when its holder believed in it, by the oracle.
    pub believed: Option<(u64, u64)>,
}

/// A name's settings.
#[derive(Clone, Debug)]
pub struct Setting {
    pub server: String,
    pub ttl: u64,
    pub kind: Kind,
}

impl Setting {
    /// T/10 in 10 ms to 2 s: so long before the deadline the holder is told.
    pub fn grace(&self) -> u64 {
        (self.ttl / 10).clamp(10_000_000, 2_000_000_000)
    }

    /// How long one attempt may take.
    pub fn attempt(&self) -> u64 {
        (self.ttl / 10).clamp(250_000_000, 10_000_000_000).min(self.ttl / 6)
    }

    /// How long a waiter sleeps at most without asking.
    pub fn max_poll_interval(&self) -> u64 {
        1_000_000_000.min(self.ttl / 3)
    }

    /// How long a free name may stay free beside a waiter that hears nothing: until it asks again, and where there is an
    /// order between readers and writers, until the place of one that went away is forgotten.
    pub fn longest_free(&self) -> u64 {
        let polls = if self.kind == Kind::ReadWrite { 4 } else { 1 };
        polls * self.max_poll_interval() + 2 * self.attempt()
    }
}

impl Lease {
    /// When the call returned, one way or the other.
    pub fn answered(&self) -> Option<u64> {
        self.granted.or(self.gave_up.as_ref().map(|(at, _)| *at))
    }

    /// When the holder was done with it, as far as is known.
    pub fn ended(&self) -> Option<u64> {
        let fired = self.fired.as_ref().map(|(at, _)| *at);
        self.released.into_iter().chain(fired).min()
    }

    /// Whether it was there for the whole call, and would have been woken. A set may wait for another one of its names, a
    /// candidate pauses after a failure, and a job or a thief asks when it asks.
    pub fn waits(&self) -> bool {
        !["try", "set", "lead", "once", "steal"].contains(&&*self.how)
    }

    /// Since when the holder has the name in this mode. Who changed the mode, or tried to, had the name all the time:
    /// at least as a reader.
    pub fn held_since(&self) -> Option<u64> {
        let changed = self.mode == Mode::Read && ["upgrade", "downgrade"].contains(&&*self.how);
        self.granted.map(|granted| if changed { self.asked } else { granted })
    }

    /// The process of this lease without its life: its slot.
    pub fn slot(&self) -> &str {
        slot(&self.who)
    }
}

/// `p2` of `p2.1`.
pub fn slot(who: &str) -> &str {
    who.split('.').next().unwrap_or(who)
}

/// All wishes in the order of their grants, the others at the end.
pub fn leases(history: &[Event]) -> Vec<Lease> {
    let mut leases: BTreeMap<(&str, u64), Lease> = BTreeMap::new();
    for Event { at, who, what } in history {
        let at = *at;
        if let What::Wanted { ask, name, how, limit_ms } = what {
            let lease = Lease {
                who: who.clone(),
                name: name.clone(),
                how: how.clone(),
                limit: limit_ms * 1_000_000,
                asked: at,
                ..Lease::default()
            };
            leases.insert((who, *ask), lease);
            continue;
        }
        let Some(ask) = ask_of(what) else { continue };
        let Some(lease) = leases.get_mut(&(who.as_str(), ask)) else { continue };
        match what {
            What::GaveUp { why, .. } => lease.gave_up = Some((at, why.clone())),
            What::Granted { fence, by, .. } => {
                lease.granted = Some(at);
                lease.fence = *fence;
                lease.by_token = by == "token";
            }
            What::Shares { mode, permits, .. } => lease.mode = Mode::read(mode, *permits),
            What::Token { number, .. } => lease.number = Some(*number),
            What::Unpolled { .. } => lease.unpolled = Some(at),
            What::Unreleased { why, .. } => lease.unreleased = Some((at, why.clone())),
            What::Forgot { .. } => lease.forgot = Some(at),
            What::Failed { .. } => lease.failed = true,
            What::Ran { keep_ms, .. } => lease.ran = Some((at, keep_ms * 1_000_000)),
            What::Nested { fence, .. } => lease.nested.push((at, *fence)),
            What::Checked { last_ok, .. } => lease.last_ok = lease.last_ok.max(*last_ok),
            What::AtRisk { .. } => lease.at_risk.push((at, None)),
            What::Safe { .. } => {
                if let Some((_, until)) = lease.at_risk.last_mut() {
                    *until = Some(at);
                }
            }
            What::Fired { last_ok, cause, .. } => {
                lease.last_ok = lease.last_ok.max(*last_ok);
                lease.fired = Some((at, cause.clone()));
            }
            What::Released { last_ok, .. } => {
                lease.last_ok = lease.last_ok.max(*last_ok);
                lease.released = Some(at);
            }
            _ => {}
        }
    }
    let mut leases: Vec<Lease> = leases.into_values().collect();
    leases.sort_by_key(|lease| (lease.granted.unwrap_or(u64::MAX), lease.asked));
    leases
}

fn ask_of(what: &What) -> Option<u64> {
    match what {
        What::GaveUp { ask, .. }
        | What::Granted { ask, .. }
        | What::Nested { ask, .. }
        | What::Token { ask, .. }
        | What::Shares { ask, .. }
        | What::Unpolled { ask }
        | What::Forgot { ask }
        | What::Failed { ask }
        | What::Ran { ask, .. }
        | What::Checked { ask, .. }
        | What::AtRisk { ask }
        | What::Safe { ask }
        | What::Fired { ask, .. }
        | What::Released { ask, .. }
        | What::Unreleased { ask, .. } => Some(*ask),
        _ => None,
    }
}

/// The names of a run.
pub fn settings(history: &[Event]) -> HashMap<String, Setting> {
    let setting = |event: &Event| match &event.what {
        What::Name { name, server, ttl_ms } => {
            let (server, kind) = (server.clone(), Kind::of(name));
            let setting = Setting { server, ttl: ttl_ms * 1_000_000, kind };
            Some((name.clone(), setting))
        }
        _ => None,
    };
    history.iter().filter_map(setting).collect()
}
