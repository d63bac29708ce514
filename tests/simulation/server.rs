//! The simulated server: its keys, by its own clock.
//!
//! It decides by compatibility of modes, in its own words: it shares no code with the stores.

use super::plan::HoldId;
use leasehold::store::{
    Absence, Acquire, Acquired, Annotate, Arrival, Closed, HolderId, HolderInfo, Mark, Metadata,
    Mode, Name, Release, Renewal,
};
use std::collections::BTreeMap;
use std::time::Duration;
use uuid::Uuid;

/// So that a step back does not pass zero.
const ORIGIN: u64 = 1_000_000_000_000;

#[derive(Clone)]
pub struct Entry {
    pub token: HolderId,
    pub hold: HoldId,
    pub mode: Mode,
    pub count: u32,
    pub fence: Option<u64>,
    /// What its holder tells of itself.
    reported: Option<Metadata>,
    /// It is a mark that keeps the name closed, since this time in milliseconds.
    pub closed: Option<(Mark, u64)>,
    /// In microseconds of the server's clock.
    pub expires: u64,
    /// In milliseconds of true time.
    pub granted: u64,
}

/// The oldest waiter of one side of a read-write lock, by the server's clock in microseconds.
#[derive(Clone, Copy)]
struct Waiter {
    hold: HoldId,
    arrived: u64,
    until: u64,
}

#[derive(Clone, Default)]
struct Data {
    holds: BTreeMap<Name, Vec<Entry>>,
    fences: BTreeMap<Name, u64>,
    /// Who waits to read, and who to write.
    lines: BTreeMap<Name, [Option<Waiter>; 2]>,
    /// Readers and permits whose time is over, while a store may still find them: see [`Server::real`].
    ghosts: BTreeMap<Name, Vec<Entry>>,
    /// When the hash of a read-write lock ends, by the server's clock in microseconds.
    ends: BTreeMap<Name, u64>,
}

pub struct Server {
    data: Data,
    /// What a replica would have.
    replica: Data,
    /// By how many millionths its clock is too fast.
    rate: i64,
    /// By how many microseconds it was stepped.
    step: i64,
    /// It counts time as Redis does: a key is there to the end of the millisecond in which its time is over. It remembers the
    /// readers and permits that have expired, because the scripts remove them only for a request that needs what they have.
    pub real: bool,
}

/// All that a server keeps, as it was once.
pub struct Copy(Data);

/// What a request of an outermost acquire did.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    Created,
    Again,
    /// The holder has another mode now.
    Changed,
    Nothing,
}

/// Whether two can have a name at once, whoever else is there.
pub fn excludes(one: Mode, other: Mode) -> bool {
    let both = (one, other);
    !matches!(both, (Mode::Read, Mode::Read) | (Mode::Permits { .. }, Mode::Permits { .. }))
}

/// The number of permits of a mode.
pub fn permits(mode: Mode) -> u32 {
    match mode {
        Mode::Permits { take, .. } => take,
        _ => 0,
    }
}

fn side(mode: Mode) -> Option<usize> {
    match mode {
        Mode::Read => Some(0),
        Mode::Write => Some(1),
        _ => None,
    }
}

impl Server {
    pub fn new(rate: i64) -> Self {
        let (data, replica) = (Data::default(), Data::default());
        Self { data, replica, rate, step: 0, real: false }
    }

    pub fn clock(&self, now: u64) -> u64 {
        let micros = (now * 1000) as i64;
        (ORIGIN as i64 + micros + micros * self.rate / 1_000_000 + self.step) as u64
    }

    /// Whole milliseconds, as a server counts.
    fn expiry(&self, now: u64, ttl: Duration, mode: Mode) -> u64 {
        let own = matches!(mode, Mode::Read | Mode::Permits { .. });
        let last = if self.real && !own { 1000 } else { 0 };
        self.clock(now) / 1000 * 1000 + ttl.as_micros() as u64 + last
    }

    /// The live entries of a name; dead ones are removed.
    fn of_name(&mut self, name: &Name, now: u64) -> &mut Vec<Entry> {
        let clock = self.clock(now);
        let entries = self.data.holds.entry(name.clone()).or_default();
        if self.real {
            let shared = |entry: &&Entry| matches!(entry.mode, Mode::Read | Mode::Permits { .. });
            let over = entries.iter().filter(|entry| entry.expires <= clock).filter(shared);
            self.data.ghosts.entry(name.clone()).or_default().extend(over.cloned());
        }
        entries.retain(|entry| entry.expires > clock);
        entries
    }

    pub fn is_taken(&mut self, name: &Name, now: u64) -> bool {
        if !self.of_name(name, now).is_empty() {
            return true;
        }
        // A writer waits for the end of the hash.
        let hash = self.data.ends.get(name).is_some_and(|ends| *ends > self.clock(now));
        hash && self.data.ghosts.get(name).is_some_and(|ghosts| !ghosts.is_empty())
    }

    pub fn holders(&mut self, name: &Name, now: u64) -> Vec<Entry> {
        self.of_name(name, now).clone()
    }

    /// How much of true time is left of an entry, in microseconds.
    fn left(&self, entry_expires: u64, now: u64) -> u64 {
        let left = entry_expires.saturating_sub(self.clock(now));
        (left as i128 * 1_000_000 / (1_000_000 + self.rate) as i128) as u64
    }

    pub fn left_of(&mut self, name: &Name, hold: HoldId, now: u64) -> Option<u64> {
        let mut entries = self.of_name(name, now).iter();
        let expires = entries.find(|entry| entry.hold == hold)?.expires;
        Some(self.left(expires, now))
    }

    /// The entry of a holder, whichever mode it has; `mode` is that in which it looks for it.
    fn own(
        &mut self,
        name: &Name,
        token: HolderId,
        mode: Mode,
        now: u64,
    ) -> Result<&mut Entry, Absence> {
        let entries = self.of_name(name, now);
        let other = entries.iter().any(|entry| excludes(entry.mode, mode));
        let absence = if other { Absence::Taken } else { Absence::Gone };
        let own = |entry: &&mut Entry| entry.token == token && entry.closed.is_none();
        entries.iter_mut().find(own).ok_or(absence)
    }

    pub fn acquire(
        &mut self,
        now: u64,
        sent: leasehold::clock::Instant,
        request: &Acquire,
        hold: HoldId,
    ) -> (Acquired, Deed) {
        let expires = self.expiry(now, request.ttl, request.target.mode);
        let clock = self.clock(now);
        let (name, mode) = (&request.target.name, request.target.mode);
        let lingers = self.lingering(name, now).is_some();
        let held = |until: u64| {
            let left = Duration::from_micros(until.saturating_sub(clock));
            (Acquired::held(Some(left)).with_lingering(lingers), Deed::Nothing)
        };
        match self.own(name, request.holder, mode, now).map(|entry| entry.clone()) {
            Ok(own) if request.converts && own.mode != mode => {
                let others = self.of_name(name, now).iter().filter(|entry| entry.hold != hold);
                let others = others.map(|entry| entry.expires).max();
                let waits = self.waits(name, 1, clock);
                if mode == Mode::Write
                    && let Some(until) = others.or(waits.map(|waiter| waiter.until))
                {
                    return held(until);
                }
                let fence = self.fence(name, request, clock);
                let entry = self.own(name, request.holder, mode, now).expect("it was just there");
                (entry.mode, entry.fence) = (mode, fence);
                (entry.count, entry.expires) = (1, expires);
                (Acquired::granted(sent, fence), Deed::Changed)
            }
            Ok(own) if (own.mode, mode) == (Mode::Read, Mode::Write) => held(own.expires),
            Ok(own) => {
                let entry = self.own(name, request.holder, mode, now).expect("it was just there");
                entry.expires = expires;
                (Acquired::granted(sent, own.fence), Deed::Again)
            }
            Err(absence) if request.converts => (Acquired::NotYours(absence), Deed::Nothing),
            Err(_) => {
                if let Some(until) = self.refuses(name, mode, request.arrival, (hold, now)) {
                    if let (Some(place), Some(side)) = (request.arrival, side(mode)) {
                        self.queue(name, side, place, (hold, clock));
                    }
                    return held(until);
                }
                // The place of its client ends with the grant.
                if let Some(side) = side(mode) {
                    let own = &mut self.data.lines.entry(name.clone()).or_default()[side];
                    own.take_if(|first| first.hold.0 == hold.0);
                }
                let fence = match mode {
                    Mode::Permits { .. } => None,
                    _ => self.fence(name, request, clock),
                };
                let (token, count) = (request.holder, 1);
                let (reported, closed) = (None, None);
                let entry = Entry {
                    token,
                    hold,
                    mode,
                    count,
                    fence,
                    reported,
                    closed,
                    expires,
                    granted: now,
                };
                self.of_name(name, now).push(entry);
                (Acquired::granted(sent, fence), Deed::Created)
            }
        }
    }

    /// The manager that has a name, if a hold may rest there.
    pub fn lingering(&mut self, name: &Name, now: u64) -> Option<Uuid> {
        let entries = self.of_name(name, now);
        let holder = entries
            .iter()
            .find(|entry| entry.mode == Mode::Exclusive && entry.closed.is_none())?
            .token;
        holder.lingers().then(|| holder.manager())
    }

    fn fence(&mut self, name: &Name, request: &Acquire, clock: u64) -> Option<u64> {
        let fencing = request.fencing?;
        let last = self.data.fences.entry(name.clone()).or_default();
        let first = (*last + 1).max(clock);
        *last = first + u64::from(fencing.block) - 1;
        Some(first)
    }

    /// Until when at least nobody is let in by this mode.
    fn refuses(
        &mut self,
        name: &Name,
        mode: Mode,
        place: Option<Arrival>,
        (hold, now): (HoldId, u64),
    ) -> Option<u64> {
        let clock = self.clock(now);
        let entries = self.of_name(name, now);
        let others = entries.iter().filter(|entry| excludes(entry.mode, mode));
        if let Some(until) = others.map(|entry| entry.expires).max() {
            return Some(until);
        }
        if let Mode::Permits { size, take } = mode {
            let out: u32 = entries.iter().map(|entry| permits(entry.mode)).sum();
            let first = entries.iter().map(|entry| entry.expires).min();
            return first.filter(|_| out + take > size);
        }
        // Who waits on the other side, and came before.
        let other = self.waits(name, 1 - side(mode)?, clock)?;
        let arrived = clock - place.map_or(0, |place| place.waited.as_micros() as u64);
        let own = self.waits(name, side(mode)?, clock).filter(|own| own.hold == hold);
        // As the scripts do it: both sides compare what a refusal would write here, so one of them always goes.
        let arrived = own.map_or(arrived, |own| own.arrived.min(arrived));
        let tie = self.real && mode == Mode::Read && other.arrived == arrived;
        (other.arrived < arrived || tie).then_some(other.until)
    }

    fn waits(&self, name: &Name, side: usize, clock: u64) -> Option<Waiter> {
        let line = self.data.lines.get(name)?;
        line[side].filter(|waiter| waiter.until > clock)
    }

    /// Only its own requests keep a place. A later waiter of its client takes it over, and then it is that one's.
    fn queue(&mut self, name: &Name, side: usize, place: Arrival, (hold, clock): (HoldId, u64)) {
        if place.kept.is_zero() {
            return;
        }
        let mut waiter = Waiter {
            hold,
            arrived: clock - place.waited.as_micros() as u64,
            until: match self.real {
                true => clock / 1000 * 1000 + place.kept.as_micros() as u64 + 1000,
                false => clock + place.kept.as_micros() as u64,
            },
        };
        if let Some(first) = self.waits(name, side, clock) {
            if first.hold == hold {
                waiter.arrived = waiter.arrived.min(first.arrived);
                waiter.until = waiter.until.max(first.until);
            }
            let takes = match first.hold.0 == hold.0 {
                true => first.hold.1 <= hold.1,
                false => waiter.arrived < first.arrived,
            };
            if !takes {
                return;
            }
        }
        self.data.lines.entry(name.clone()).or_default()[side] = Some(waiter);
    }

    /// Gives up the place of a waiter, unless it is a later one's. Returns whether the other side may go now.
    pub fn leave(&mut self, now: u64, name: &Name, mode: Mode, hold: HoldId) -> bool {
        let clock = self.clock(now);
        let Some(side) = side(mode) else { return false };
        let Some(first) = self.waits(name, side, clock).filter(|first| first.hold.0 == hold.0)
        else {
            return false;
        };
        if first.hold.1 <= hold.1 {
            self.data.lines.entry(name.clone()).or_default()[side] = None;
        }
        let entries = self.of_name(name, now);
        entries.is_empty()
            || mode == Mode::Write && entries.iter().all(|each| each.mode == Mode::Read)
    }

    /// Also whether others may be let in now.
    pub fn release(&mut self, now: u64, request: &Release) -> (Option<Absence>, bool) {
        let (name, mode) = (&request.target.name, request.target.mode);
        if let (0, Some(keep)) = (request.count, request.keep) {
            let (expires, mut entries) =
                (self.expiry(now, keep.time, mode), self.of_name(name, now).iter_mut());
            let own = entries.find(|entry| entry.token == request.holder);
            let Some(own) = own else {
                let taken = !self.of_name(name, now).is_empty();
                return (Some(if taken { Absence::Taken } else { Absence::Gone }), false);
            };
            if own.closed.is_none() {
                (own.closed, own.expires) = (Some((keep.mark, now)), expires);
            }
            return (None, false);
        }
        match self.own(name, request.holder, mode, now) {
            Err(absence) => (Some(absence), false),
            Ok(entry) if request.count > 0 => {
                entry.count = request.count;
                (None, false)
            }
            Ok(_) => {
                let entries = self.of_name(name, now);
                entries.retain(|entry| entry.token != request.holder);
                let lets_in = entries.iter().all(|entry| permits(entry.mode) > 0);
                (None, lets_in)
            }
        }
    }

    pub fn renew(&mut self, now: u64, request: &Renewal, ttl: Duration) -> Option<Absence> {
        let expires = self.expiry(now, ttl, request.target.mode);
        match self.own(&request.target.name, request.holder, request.target.mode, now) {
            Err(absence) => Some(absence),
            Ok(entry) => {
                entry.expires = expires;
                None
            }
        }
    }

    /// Writes what a holder tells, or deletes it. Whether it has the name.
    pub fn annotate(&mut self, now: u64, request: &Annotate) -> bool {
        let (name, mode) = (&request.target.name, request.target.mode);
        let Ok(entry) = self.own(name, request.holder, mode, now) else { return false };
        let Some(metadata) = &request.metadata else { return entry.reported.take().is_some() };
        if entry.reported.as_ref().is_none_or(|reported| reported.revision < metadata.revision) {
            entry.reported = Some(metadata.clone());
        }
        true
    }

    /// Deletes what is under a name; whose it was.
    pub fn delete(&mut self, name: &Name, now: u64) -> Vec<HoldId> {
        let entries = std::mem::take(self.of_name(name, now));
        self.data.ghosts.remove(name);
        entries.into_iter().map(|entry| entry.hold).collect()
    }

    /// All live entries, but for marks.
    pub fn entries(&mut self, now: u64) -> Vec<(Name, Entry)> {
        let clock = self.clock(now);
        let all = self.data.holds.iter();
        let all = all.flat_map(|(name, entries)| entries.iter().map(move |each| (name, each)));
        let live = all.filter(|(_, entry)| entry.expires > clock && entry.closed.is_none());
        live.map(|(name, entry)| (name.clone(), entry.clone())).collect()
    }

    pub fn holds(&self) -> Vec<HoldId> {
        self.data.holds.values().flatten().map(|entry| entry.hold).collect()
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

    /// A request that was refused waits, if it says that it does.
    pub fn wait(&mut self, now: u64, request: &Acquire, hold: HoldId) {
        let (name, clock) = (&request.target.name, self.clock(now));
        if let (Some(place), Some(side)) = (request.arrival, side(request.target.mode)) {
            self.queue(name, side, place, (hold, clock));
        }
    }

    /// Whether a holder has a name to write.
    pub fn is_writer(&mut self, name: &Name, token: HolderId, now: u64) -> bool {
        let mut entries = self.of_name(name, now).iter();
        entries.any(|entry| entry.token == token && entry.mode == Mode::Write)
    }

    pub fn copy(&self) -> Copy {
        Copy(self.data.clone())
    }

    pub fn restore(&mut self, Copy(data): Copy) {
        self.data = data;
    }

    /// Whether readers or permits of a name have expired that may still be found.
    pub fn has_ghosts(&mut self, name: &Name, now: u64) -> bool {
        self.of_name(name, now);
        self.data.ghosts.get(name).is_some_and(|ghosts| !ghosts.is_empty())
    }

    /// Takes what has expired of a holder, as one that the store has not found, or before it is there again.
    pub fn exorcise(&mut self, name: &Name, token: HolderId, now: u64) -> Option<Entry> {
        self.of_name(name, now);
        let ghosts = self.data.ghosts.get_mut(name)?;
        let at = ghosts.iter().position(|ghost| ghost.token == token)?;
        Some(ghosts.remove(at))
    }

    /// What had expired is found once more, and still counts for nothing.
    pub fn haunt(&mut self, name: &Name, ghost: Option<Entry>) {
        self.data.ghosts.entry(name.clone()).or_default().extend(ghost);
    }

    /// What had expired is there again for a time.
    pub fn revive(&mut self, name: &Name, ghost: Entry, now: u64, ttl: Duration) {
        let expires = self.expiry(now, ttl, ghost.mode);
        self.of_name(name, now).push(Entry { expires, ..ghost });
    }

    /// Whether a holder has a name to read.
    pub fn is_reader(&mut self, name: &Name, token: HolderId, now: u64) -> bool {
        let mut entries = self.of_name(name, now).iter();
        entries.any(|entry| entry.token == token && entry.mode == Mode::Read)
    }

    /// The holders of a name, also those that have expired.
    pub fn all_of(&self, name: &Name) -> Vec<(HoldId, HolderId)> {
        let all = [&self.data.holds, &self.data.ghosts].map(|all| all.get(name));
        all.into_iter().flatten().flatten().map(|entry| (entry.hold, entry.token)).collect()
    }

    /// Removes all that has expired.
    pub fn forget_what_is_over(&mut self, now: u64) {
        for name in self.data.holds.keys().cloned().collect::<Vec<_>>() {
            self.of_name(&name, now);
        }
        let clock = self.clock(now);
        for waiter in self.data.lines.values_mut().flatten() {
            waiter.take_if(|waiter| waiter.until <= clock);
        }
    }

    /// Keeps only what has expired and is still there, and notes when the hash ends.
    pub fn see(&mut self, name: &Name, ends: Option<u64>, there: impl Fn(HolderId) -> bool) {
        if let Some(ghosts) = self.data.ghosts.get_mut(name) {
            ghosts.retain(|ghost| there(ghost.token));
        }
        match ends {
            Some(ends) => self.data.ends.insert(name.clone(), ends),
            None => self.data.ends.remove(name),
        };
    }

    /// The holder's token and the last one of its block are those that the store chose.
    pub fn set_fence(&mut self, name: &Name, token: HolderId, now: u64, tokens: [u64; 2]) {
        let [first, last] = tokens;
        if let Some(entry) = self.of_name(name, now).iter_mut().find(|entry| entry.token == token) {
            entry.fence = Some(first);
        }
        self.data.fences.insert(name.clone(), last);
    }

    pub fn last_fence(&self, name: &Name) -> u64 {
        self.data.fences.get(name).copied().unwrap_or(0)
    }

    /// The mark that keeps a name closed.
    pub fn mark(&mut self, name: &Name, now: u64) -> Option<Mark> {
        self.of_name(name, now).iter().find_map(|entry| entry.closed).map(|(mark, _)| mark)
    }

    pub fn step(&mut self, millis: i64) {
        self.step += millis * 1000;
    }
}

impl Entry {
    /// What an observer is told.
    pub fn info(self, now: u64) -> HolderInfo {
        let holder = self.token.to_string();
        if let Some((mark, since)) = self.closed {
            let ago = Duration::from_millis(now - since);
            return HolderInfo::closed(Closed::new(mark, ago, holder), None);
        }
        HolderInfo::new(holder, self.count.into(), None)
            .with_mode(self.mode)
            .with_metadata(self.reported)
    }
}
