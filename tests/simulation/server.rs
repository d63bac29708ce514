//! The simulated server: its keys, by its own clock.

use super::plan::HoldId;
use leasehold::store::{Absence, Acquire, Acquired, HolderId, Name, Release, Renewal};
use std::collections::BTreeMap;
use std::time::Duration;

/// So that a step back does not pass zero.
const ORIGIN: u64 = 1_000_000_000_000;

#[derive(Clone)]
pub struct Entry {
    pub token: HolderId,
    pub hold: HoldId,
    pub count: u32,
    pub fence: Option<u64>,
    /// In microseconds of the server's clock.
    expires: u64,
    /// In milliseconds of true time.
    pub granted: u64,
}

#[derive(Clone, Default)]
struct Data {
    holds: BTreeMap<Name, Entry>,
    fences: BTreeMap<Name, u64>,
}

pub struct Server {
    data: Data,
    /// What a replica would have.
    replica: Data,
    /// By how many millionths its clock is too fast.
    rate: i64,
    /// By how many microseconds it was stepped.
    step: i64,
}

/// What a request of an outermost acquire did.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    Created,
    Again,
    Nothing,
}

impl Server {
    pub fn new(rate: i64) -> Self {
        Self { data: Data::default(), replica: Data::default(), rate, step: 0 }
    }

    fn clock(&self, now: u64) -> u64 {
        let micros = (now * 1000) as i64;
        (ORIGIN as i64 + micros + micros * self.rate / 1_000_000 + self.step) as u64
    }

    /// Whole milliseconds, as a server counts.
    fn expiry(&self, now: u64, ttl: std::time::Duration) -> u64 {
        self.clock(now) / 1000 * 1000 + ttl.as_micros() as u64
    }

    /// The live entry of a name; a dead one is removed.
    pub fn entry(&mut self, name: &Name, now: u64) -> Option<&mut Entry> {
        let clock = self.clock(now);
        if self.data.holds.get(name).is_some_and(|entry| entry.expires <= clock) {
            self.data.holds.remove(name);
        }
        self.data.holds.get_mut(name)
    }

    /// How much of true time is left of an entry, in microseconds.
    pub fn left(&self, entry_expires: u64, now: u64) -> u64 {
        let left = entry_expires.saturating_sub(self.clock(now));
        (left as i128 * 1_000_000 / (1_000_000 + self.rate) as i128) as u64
    }

    pub fn left_of(&mut self, name: &Name, hold: HoldId, now: u64) -> Option<u64> {
        let expires = self.entry(name, now).filter(|entry| entry.hold == hold)?.expires;
        Some(self.left(expires, now))
    }

    fn own(&mut self, name: &Name, token: HolderId, now: u64) -> Result<&mut Entry, Absence> {
        match self.entry(name, now) {
            None => Err(Absence::Gone),
            Some(entry) if entry.token != token => Err(Absence::Taken),
            Some(entry) => Ok(entry),
        }
    }

    pub fn acquire(
        &mut self,
        now: u64,
        sent: leasehold::clock::Instant,
        request: &Acquire,
        hold: HoldId,
    ) -> (Acquired, Deed) {
        let expires = self.expiry(now, request.ttl);
        let clock = self.clock(now);
        match self.own(&request.target.name, request.holder, now) {
            Ok(entry) => {
                (entry.count, entry.expires) = (request.count, expires);
                (Acquired::granted(sent, entry.fence), Deed::Again)
            }
            Err(absence) if request.count > 1 => (Acquired::NotYours(absence), Deed::Nothing),
            Err(Absence::Taken) => {
                let entry = self.entry(&request.target.name, now);
                let remaining = entry.map(|entry| {
                    std::time::Duration::from_micros(entry.expires.saturating_sub(clock))
                });
                (Acquired::held(remaining), Deed::Nothing)
            }
            Err(_) => {
                let fence = request.fencing.map(|fencing| {
                    let last = self.data.fences.entry(request.target.name.clone()).or_default();
                    let first = (*last + 1).max(clock);
                    *last = first + u64::from(fencing.block) - 1;
                    first
                });
                let (token, count) = (request.holder, request.count);
                let entry = Entry { token, hold, count, fence, expires, granted: now };
                self.data.holds.insert(request.target.name.clone(), entry);
                (Acquired::granted(sent, fence), Deed::Created)
            }
        }
    }

    /// Also whether the name became free.
    pub fn release(&mut self, now: u64, request: &Release) -> (Option<Absence>, bool) {
        match self.own(&request.target.name, request.holder, now) {
            Err(absence) => (Some(absence), false),
            Ok(entry) if request.count > 0 => {
                entry.count = request.count;
                (None, false)
            }
            Ok(_) => {
                self.data.holds.remove(&request.target.name);
                (None, true)
            }
        }
    }

    pub fn renew(&mut self, now: u64, request: &Renewal, ttl: Duration) -> Option<Absence> {
        let expires = self.expiry(now, ttl);
        match self.own(&request.target.name, request.holder, now) {
            Err(absence) => Some(absence),
            Ok(entry) => {
                entry.expires = expires;
                None
            }
        }
    }

    /// Deletes what is under a name; whose it was.
    pub fn delete(&mut self, name: &Name, now: u64) -> Option<HoldId> {
        let hold = self.entry(name, now)?.hold;
        self.data.holds.remove(name);
        Some(hold)
    }

    /// All live entries.
    pub fn entries(&mut self, now: u64) -> Vec<(Name, Entry)> {
        let clock = self.clock(now);
        self.data.holds.retain(|_, entry| entry.expires > clock);
        self.data.holds.iter().map(|(name, entry)| (name.clone(), entry.clone())).collect()
    }

    pub fn holds(&self) -> Vec<HoldId> {
        self.data.holds.values().map(|entry| entry.hold).collect()
    }

    /// Starts again without what it kept.
    pub fn wipe(&mut self) {
        self.data = Data::default();
    }

    pub fn replicate(&mut self) {
        self.replica = self.data.clone();
    }

    /// The replica takes over.
    pub fn fail_over(&mut self) {
        self.data = self.replica.clone();
    }

    pub fn step(&mut self, millis: i64) {
        self.step += millis * 1000;
    }
}
