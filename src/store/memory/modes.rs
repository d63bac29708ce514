//! Names that several holders share: read-write locks and semaphores.

use super::waiter::{Waiter, arrived};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::store::contract::mode::Kind;
use crate::store::{
    Absence, Acquire, Acquired, Fencing, HolderId, HolderInfo, IDLE_SEMAPHORE, Inspection, Mode,
    Released, Resize,
};
use std::cmp::Ordering;
use std::time::Duration;

/// A read-write lock or a semaphore.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) kind: Kind,
    holds: Vec<Hold>,
    /// The oldest waiter among the readers, and among the writers.
    line: [Option<Waiter>; 2],
    /// The number of permits. It outlives the holds until `kept`.
    size: u32,
    kept: Instant,
    /// The sizes that it had before.
    old_sizes: Vec<u32>,
}

#[derive(Debug)]
struct Hold {
    holder: HolderId,
    mode: Mode,
    count: u32,
    fence: Option<u64>,
    expires: Instant,
}

impl Hold {
    /// Returns whether a renewal or a release in this mode finds it. One of a reader may come late, when it is the writer.
    fn is(&self, mode: Mode) -> bool {
        (mode, self.mode) != (Mode::Write, Mode::Read)
    }
}

/// The outcome of an acquire.
pub(super) struct Outcome {
    pub(super) verdict: Acquired,
    /// Whether waiters may be granted the name now.
    pub(super) wakes: bool,
}

impl From<Acquired> for Outcome {
    fn from(verdict: Acquired) -> Self {
        Self { verdict, wakes: false }
    }
}

impl Shared {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            holds: Vec::new(),
            line: [None; 2],
            size: 0,
            kept: Instant::ZERO,
            old_sizes: Vec::new(),
        }
    }

    /// Ends what has expired. Returns whether anything is left.
    pub(super) fn is_live(&mut self, now: Instant) -> bool {
        self.holds.retain(|hold| hold.expires > now);
        !self.holds.is_empty() || self.kept > now || self.waits(now).next().is_some()
    }

    /// Ends the hold of one holder. Returns whether it had one.
    #[cfg(feature = "testing")]
    pub(super) fn forget(&mut self, holder: HolderId) -> bool {
        let before = self.holds.len();
        self.holds.retain(|hold| hold.holder != holder);
        self.holds.len() < before
    }

    /// Returns the number of holds that have not expired.
    pub(super) fn len(&self, now: Instant) -> usize {
        self.holds.iter().filter(|hold| hold.expires > now).count()
    }

    fn waits(&self, now: Instant) -> impl Iterator<Item = &Waiter> {
        self.line.iter().flatten().filter(move |waiter| waiter.until > now)
    }

    /// `fence` reserves a block of fencing tokens, and returns its first.
    pub(super) fn acquire(
        &mut self,
        request: &Acquire,
        now: Instant,
        fence: impl FnMut(Fencing) -> u64,
    ) -> Result<Outcome> {
        let Acquire { target, holder, .. } = request;
        if let Mode::Permits { size, take } = target.mode {
            self.check_size(request, size, take, now)?;
        }
        match self.holds.iter().position(|hold| hold.holder == *holder) {
            Some(at) if request.converts => Ok(self.convert(at, request, now, fence)),
            Some(at) => Ok(self.again(at, request, now, fence).into()),
            None if request.converts => Ok(Acquired::NotYours(self.absence(target.mode)).into()),
            None => Ok(self.enter(request, now, fence).into()),
        }
    }

    /// Sets the number of permits of a new semaphore, or refuses another one than it has or had.
    fn check_size(&mut self, request: &Acquire, size: u32, take: u32, now: Instant) -> Result<()> {
        if take == 0 || take > size {
            return Err(Error::not_so_many(take, size));
        }
        if !self.is_in_use(now) {
            (self.size, self.old_sizes) = (size, Vec::new());
        }
        let known = self.size == size || self.old_sizes.contains(&size);
        if !known || take > self.size {
            return Err(Error::other_size(self.size.into(), size));
        }
        let kept = request.fencing.map_or(Some(IDLE_SEMAPHORE), |fencing| fencing.retention);
        self.keep(kept, now);
        Ok(())
    }

    fn is_in_use(&self, now: Instant) -> bool {
        !self.holds.is_empty() || self.kept > now
    }

    fn keep(&mut self, retention: Option<Duration>, now: Instant) {
        self.kept = retention.map_or(Instant::MAX, |retention| now + retention);
    }

    /// Sets the number of permits. Returns the one before.
    pub(super) fn resize(&mut self, request: &Resize, now: Instant) -> Option<u32> {
        let before = self.is_in_use(now).then_some(self.size);
        match before {
            Some(before) if before != request.size => self.old_sizes.push(before),
            Some(_) => {}
            None => self.old_sizes.clear(),
        }
        self.old_sizes.retain(|old| *old != request.size);
        self.size = request.size;
        self.keep(request.retention, now);
        before
    }

    /// Grants again what the holder has. A late copy of an earlier request never changes its mode.
    fn again(
        &mut self,
        at: usize,
        request: &Acquire,
        now: Instant,
        fence: impl FnMut(Fencing) -> u64,
    ) -> Acquired {
        let hold = &mut self.holds[at];
        if (request.target.mode, hold.mode) == (Mode::Write, Mode::Read) {
            return Acquired::held(Some(hold.expires.saturating_duration_since(now)));
        }
        hold.expires = now + request.ttl;
        let proposed = request.fencing.filter(Fencing::is_proposal).map(fence);
        Acquired::granted(now, proposed.or(hold.fence))
    }

    /// Changes a reader into the writer, if it is the only one and no writer waits, or the writer into a reader.
    fn convert(
        &mut self,
        at: usize,
        request: &Acquire,
        now: Instant,
        fence: impl FnMut(Fencing) -> u64,
    ) -> Outcome {
        let mode = request.target.mode;
        let others = self.holds.iter().enumerate().filter(|(other, _)| *other != at);
        let left = others.map(|(_, hold)| hold.expires.saturating_duration_since(now)).max();
        let writer = self.line[1].filter(|waiter| waiter.until > now);
        let upgrades = (self.holds[at].mode, mode) == (Mode::Read, Mode::Write);
        if upgrades && (left.is_some() || writer.is_some()) {
            return Acquired::held(left).into();
        }
        let downgrades = (self.holds[at].mode, mode) == (Mode::Write, Mode::Read);
        let hold = &mut self.holds[at];
        let proposes = request.fencing.as_ref().is_some_and(Fencing::is_proposal);
        if upgrades || downgrades {
            (hold.mode, hold.count) = (mode, 1);
        }
        if upgrades || downgrades || proposes {
            hold.fence = request.fencing.map(fence);
        }
        hold.expires = now + request.ttl;
        Outcome { verdict: Acquired::granted(now, hold.fence), wakes: downgrades }
    }

    /// Grants the name to a new holder, if the others and the order of waiters admit it.
    fn enter(
        &mut self,
        request: &Acquire,
        now: Instant,
        fence: impl FnMut(Fencing) -> u64,
    ) -> Acquired {
        let mode = request.target.mode;
        let left = self.excluded_for(mode, now);
        let left = left.or_else(|| self.queued_for(request, now));
        if let Some(left) = left {
            self.queue(request, now);
            return Acquired::held(Some(left));
        }
        if let Some(own) = side(mode).map(|side| &mut self.line[side]) {
            own.take_if(|waiter| waiter.is_of(request.holder));
        }
        let fence = match mode {
            Mode::Permits { .. } => None,
            Mode::Exclusive | Mode::Read | Mode::Write => request.fencing.map(fence),
        };
        let expires = now + request.ttl;
        self.holds.push(Hold { holder: request.holder, mode, count: 1, fence, expires });
        Acquired::granted(now, fence)
    }

    /// Returns how long the holders that exclude this mode have left; `None` if none does.
    fn excluded_for(&self, mode: Mode, now: Instant) -> Option<Duration> {
        let left = |hold: &Hold| hold.expires.saturating_duration_since(now);
        match mode {
            Mode::Permits { take, .. } => {
                let out: u32 = self.holds.iter().map(|hold| hold.mode.permits()).sum();
                let free = self.size.saturating_sub(out) >= take;
                self.holds.iter().map(left).min().filter(|_| !free)
            }
            Mode::Read => self.holds.iter().filter(|hold| hold.mode != Mode::Read).map(left).max(),
            Mode::Exclusive | Mode::Write => self.holds.iter().map(left).max(),
        }
    }

    /// Returns how long the arrival of an older waiter of the other side is kept; `None` if there is none. Both sides compare
    /// the arrivals that are kept here, so one of them always goes.
    fn queued_for(&self, request: &Acquire, now: Instant) -> Option<Duration> {
        let side = side(request.target.mode)?;
        let other = self.line[1 - side].filter(|waiter| waiter.until > now)?;
        let arrived = self.arrival(side, request, now);
        let older = other.arrived < arrived || other.arrived == arrived && side == READERS;
        older.then(|| other.until.saturating_duration_since(now))
    }

    /// Returns when the waiter arrived: as its manager said first, if its arrival is that of its side.
    fn arrival(&self, side: usize, request: &Acquire, now: Instant) -> i128 {
        let arrived = arrived(request.arrival, now);
        let own = self.line[side].filter(|waiter| {
            waiter.until > now
                && waiter.is_of(request.holder)
                && waiter.holder.number() == request.holder.number()
        });
        match own.filter(|_| request.arrival.is_some()) {
            Some(waiter) => waiter.arrived.min(arrived),
            None => arrived,
        }
    }

    /// Records or keeps the arrival of a side. That of another manager is left alone, unless it is younger.
    fn queue(&mut self, request: &Acquire, now: Instant) {
        let (Some(side), Some(arrival)) = (side(request.target.mode), request.arrival) else {
            return;
        };
        if arrival.kept.is_zero() {
            return;
        }
        let holder = request.holder;
        let arrived = self.arrival(side, request, now);
        let first = self.line[side].filter(|waiter| waiter.until > now);
        let mut until = now + arrival.kept;
        match first {
            Some(first) if first.is_of(holder) => {
                match first.holder.number().cmp(&holder.number()) {
                    Ordering::Greater => return,
                    Ordering::Equal => until = until.max(first.until),
                    Ordering::Less => {}
                }
            }
            Some(first) if first.arrived <= arrived => return,
            _ => {}
        }
        self.line[side] = Some(Waiter { holder, arrived, until });
    }

    /// Ends the arrival of a waiter, unless it is that of a later one of its manager. Returns whether others may be granted the
    /// name now: a later waiter came after some of them.
    pub(super) fn leave(&mut self, holder: HolderId, mode: Mode) -> bool {
        let Some(side) = side(mode) else { return false };
        let Some(arrival) = self.line[side].filter(|waiter| waiter.is_of(holder)) else {
            return false;
        };
        if arrival.holder.number() <= holder.number() {
            self.line[side] = None;
        }
        match side {
            READERS => self.holds.is_empty(),
            _ => self.holds.iter().all(|hold| hold.mode == Mode::Read),
        }
    }

    /// Returns what a holder finds that does not have the name in this mode; `None` if it has.
    pub(super) fn absence_of(&self, holder: HolderId, mode: Mode) -> Option<Absence> {
        let has = self.holds.iter().any(|hold| hold.holder == holder && hold.is(mode));
        (!has).then(|| self.absence(mode))
    }

    /// Returns what a holder finds that is not there.
    fn absence(&self, mode: Mode) -> Absence {
        let shares = |hold: &Hold| match mode {
            Mode::Read => hold.mode == Mode::Read,
            Mode::Permits { .. } => true,
            Mode::Exclusive | Mode::Write => false,
        };
        if self.holds.iter().all(shares) { Absence::Gone } else { Absence::Taken }
    }

    /// Sets the count of a hold, or ends it.
    pub(super) fn release(&mut self, holder: HolderId, mode: Mode, count: u32) -> Ended {
        let at = self.holds.iter().position(|hold| hold.holder == holder);
        let Some(at) = at else { return Ended { wakes: false, absence: Some(self.absence(mode)) } };
        let absence = (!self.holds[at].is(mode)).then_some(Absence::Taken);
        if count > 0 {
            if absence.is_none() {
                self.holds[at].count = count;
            }
            return Ended { wakes: false, absence };
        }
        self.holds.swap_remove(at);
        Ended { wakes: self.holds.is_empty() || self.kind == Kind::Semaphore, absence }
    }

    pub(super) fn renew(
        &mut self,
        holder: HolderId,
        mode: Mode,
        expires: Instant,
    ) -> Option<Absence> {
        match self.holds.iter_mut().find(|hold| hold.holder == holder && hold.is(mode)) {
            None => Some(self.absence(mode)),
            Some(hold) => {
                hold.expires = expires;
                None
            }
        }
    }

    pub(super) fn inspect(&self, now: Instant) -> Inspection {
        let info = |hold: &Hold| {
            let left = hold.expires.saturating_duration_since(now);
            let count = hold.mode.permits().max(hold.count);
            HolderInfo::new(hold.holder.to_string(), count.into(), Some(left)).with_mode(hold.mode)
        };
        let size = (self.kind == Kind::Semaphore).then_some(self.size);
        Inspection::new(self.holds.iter().map(info)).with_size(size)
    }
}

/// The index of the readers in the order of waiters.
const READERS: usize = 0;

/// Returns the index of a side in the order of waiters.
fn side(mode: Mode) -> Option<usize> {
    match mode {
        Mode::Read => Some(READERS),
        Mode::Write => Some(1),
        Mode::Exclusive | Mode::Permits { .. } => None,
    }
}

/// The outcome of a release.
pub(super) struct Ended {
    wakes: bool,
    absence: Option<Absence>,
}

impl Ended {
    /// Returns the verdict, with the number of waiters that were woken.
    pub(super) fn verdict(self, wake: impl FnOnce() -> u64) -> Released {
        let listeners = if self.wakes { wake() } else { 0 };
        self.absence.map_or(Released::done(listeners), Released::NotYours)
    }
}
