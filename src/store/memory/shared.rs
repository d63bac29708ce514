//! Names that several holders share: read-write locks and semaphores.

use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::store::target::Kind;
use crate::store::{
    Absence, Acquire, Acquired, Fencing, HolderId, HolderInfo, Inspection, Mode, Place, Released,
};
use std::time::Duration;

/// How long an idle semaphore keeps its size if the request does not say how long fencing tokens are remembered.
const IDLE: Duration = Duration::from_secs(24 * 60 * 60);

/// A read-write lock or a semaphore.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) kind: Kind,
    holds: Vec<Hold>,
    /// The fencing token of the readers that are there.
    phase: Option<u64>,
    /// The oldest waiter among the readers, and among the writers.
    line: [Option<Waiter>; 2],
    /// The number of permits. It outlives the holds until `kept`.
    size: u32,
    kept: Instant,
}

#[derive(Debug)]
struct Hold {
    holder: HolderId,
    mode: Mode,
    count: u32,
    fence: Option<u64>,
    expires: Instant,
}

/// A waiter in the order between readers and writers.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    /// In nanoseconds of the clock, of which a waiter may have arrived before the start.
    arrived: i128,
    until: Instant,
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
        let line = [None; 2];
        Self { kind, holds: Vec::new(), phase: None, line, size: 0, kept: Instant::ZERO }
    }

    /// Ends what has expired. Returns whether anything is left.
    pub(super) fn is_live(&mut self, now: Instant) -> bool {
        self.holds.retain(|hold| hold.expires > now);
        !self.holds.is_empty() || self.kept > now || self.waits(now).next().is_some()
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
            self.resize(request, (size, take), now)?;
        }
        match self.holds.iter().position(|hold| hold.holder == *holder) {
            Some(at) if request.converts => Ok(self.convert(at, request, now, fence)),
            Some(at) => Ok(self.again(at, request, now).into()),
            None if request.count > 1 || request.converts => {
                Ok(Acquired::NotYours(self.absence(target.mode)).into())
            }
            None => Ok(self.enter(request, now, fence).into()),
        }
    }

    /// Sets the number of permits, or refuses another one.
    fn resize(&mut self, request: &Acquire, (size, take): (u32, u32), now: Instant) -> Result<()> {
        if take == 0 || take > size {
            return Err(Error::invalid(format!("{take} of {size} permits cannot be acquired")));
        }
        if (!self.holds.is_empty() || self.kept > now) && self.size != size {
            return Err(Error::other_size(self.size, size));
        }
        self.size = size;
        let kept = request.fencing.map_or(Some(IDLE), |fencing| fencing.retention);
        self.kept = kept.map_or(Instant::MAX, |kept| now + kept);
        Ok(())
    }

    /// Grants again what the holder has. A late copy of an earlier request never changes its mode.
    fn again(&mut self, at: usize, request: &Acquire, now: Instant) -> Acquired {
        let hold = &mut self.holds[at];
        if (request.target.mode, hold.mode) == (Mode::Write, Mode::Read) {
            return Acquired::held(Some(hold.expires.saturating_duration_since(now)));
        }
        (hold.count, hold.expires) = (request.count, now + request.ttl);
        Acquired::granted(now, hold.fence)
    }

    /// Changes a reader into the writer, if it is the only one and no writer waits, or the writer into a reader.
    fn convert(
        &mut self,
        at: usize,
        request: &Acquire,
        now: Instant,
        mut fence: impl FnMut(Fencing) -> u64,
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
        if upgrades {
            hold.fence = request.fencing.map(&mut fence);
        } else if downgrades {
            // Readers that join share the last number of the writer's block: it is above all that it handed off.
            self.phase = hold.fence.zip(request.fencing).map(|(_, fencing)| fence(fencing));
            hold.fence = self.phase;
        }
        (hold.mode, hold.count, hold.expires) = (mode, request.count, now + request.ttl);
        Outcome { verdict: Acquired::granted(now, hold.fence), wakes: downgrades }
    }

    /// Grants the name to a new holder, if the others and the order of waiters admit it.
    fn enter(
        &mut self,
        request: &Acquire,
        now: Instant,
        mut fence: impl FnMut(Fencing) -> u64,
    ) -> Acquired {
        let mode = request.target.mode;
        let left = self.excluded_for(mode, now);
        let left = left.or_else(|| self.queued_for(mode, request.place, now));
        if let Some(left) = left {
            if let (Some(place), Some(side)) = (request.place, side(mode)) {
                self.queue(side, place, now);
            }
            return Acquired::held(Some(left));
        }
        if let Some(side) = side(mode) {
            self.line[side] = None;
        }
        let fence = match mode {
            Mode::Read if !self.holds.is_empty() => self.phase,
            Mode::Permits { .. } => None,
            Mode::Exclusive | Mode::Read | Mode::Write => request.fencing.map(&mut fence),
        };
        if mode == Mode::Read {
            self.phase = fence;
        }
        let (holder, count, expires) = (request.holder, request.count, now + request.ttl);
        self.holds.push(Hold { holder, mode, count, fence, expires });
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

    /// Returns how long an older waiter of the other side keeps its place; `None` if there is none.
    fn queued_for(&self, mode: Mode, place: Option<Place>, now: Instant) -> Option<Duration> {
        let other = self.line[1 - side(mode)?].filter(|waiter| waiter.until > now)?;
        let older = other.arrived < arrived(place, now);
        older.then(|| other.until.saturating_duration_since(now))
    }

    fn queue(&mut self, side: usize, place: Place, now: Instant) {
        let mut arrived = arrived(Some(place), now);
        if let Some(first) = self.line[side].filter(|waiter| waiter.until > now) {
            arrived = arrived.min(first.arrived);
        }
        self.line[side] = Some(Waiter { arrived, until: now + place.kept });
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

    /// Lowers the count of a hold, or ends it. Returns whether waiters may be granted the name now.
    pub(super) fn release(
        &mut self,
        holder: HolderId,
        mode: Mode,
        count: u32,
    ) -> Result<bool, Absence> {
        let at = self.holds.iter().position(|hold| hold.holder == holder);
        let at = at.ok_or_else(|| self.absence(mode))?;
        if count > 0 {
            self.holds[at].count = count;
            return Ok(false);
        }
        self.holds.swap_remove(at);
        Ok(self.holds.is_empty() || self.kind == Kind::Semaphore)
    }

    pub(super) fn renew(
        &mut self,
        holder: HolderId,
        mode: Mode,
        expires: Instant,
    ) -> Option<Absence> {
        match self.holds.iter_mut().find(|hold| hold.holder == holder) {
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

/// Returns the index of a side in the order of waiters.
fn side(mode: Mode) -> Option<usize> {
    match mode {
        Mode::Read => Some(0),
        Mode::Write => Some(1),
        Mode::Exclusive | Mode::Permits { .. } => None,
    }
}

pub(super) fn arrived(place: Option<Place>, now: Instant) -> i128 {
    let waited = place.map_or(Duration::ZERO, |place| place.waited);
    let nanos = |duration: Duration| i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX);
    nanos(now.saturating_duration_since(Instant::ZERO)) - nanos(waited)
}

/// The verdict on a release, with the number of waiters that it wakes.
pub(super) fn verdict(released: Result<bool, Absence>, wake: impl FnOnce() -> u64) -> Released {
    match released {
        Ok(wakes) => Released::done(if wakes { wake() } else { 0 }),
        Err(absence) => Released::NotYours(absence),
    }
}
