//! What holds a name or asks for it in this process, and what waits for it. [`NameState`](super::name::NameState) is made of
//! these, and has their transitions.
//!
//! - An [`Occupant`] is a turn or the slot of a hold. [`Occupants`] says who may share the name, and who may ask for it.
//! - [`Waiters`] are in the queue, in the order of their numbers.
//! - [`Offers`] are what waiters find at their next pulse.
//! - [`Contention`] has the waiters and the offers of a name, and what only matters while there are some, or while there are
//!   several holders. Most names have none.

use super::chain::Chain;
use super::mode;
use super::pulse::Pulse;
use crate::clock::Instant;
use crate::store::Mode;
use crate::util::reached::Rare;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU64;
use std::time::Duration;

/// The slot of a live hold among the occupants of its name: the number that its
/// [`Turn`](crate::engine::acquire::turn::Turn) had before the grant.
///
/// It is neither `Clone` nor `Copy`: it goes from the turn to the hold, and from hold to hold.
/// [`NameState::leave`](super::name::NameState::leave) ends it, which admits the waiters that it blocked.
#[derive(Debug)]
pub(in crate::engine) struct HolderSlot(NonZeroU64);

impl HolderSlot {
    /// Creates the slot of a number that the queue has drawn; the first one is 1. `Option<HolderSlot>` is no larger than
    /// the number, which counts in each hold.
    pub(in crate::engine) fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    pub(in crate::engine) fn number(&self) -> u64 {
        self.0.get()
    }
}

/// A turn or a holder slot: the permission to ask the store, or the place of a hold. `H` is the hold.
pub(in crate::engine) struct Occupant<H> {
    pub(super) number: u64,
    pub(in crate::engine) mode: Mode,
    stage: Stage<H>,
    /// Whether the name was forced open after its last request, which may have been granted before.
    pub(super) forced: bool,
    /// Whether another manager said since then that it has taken the name.
    pub(super) doubted: bool,
}

/// The stage of an occupant.
enum Stage<H> {
    /// A turn, with the last pulse of its call. It is `refused` if the store has refused its last request,
    /// so that it waits.
    Asking { pulse: Pulse, refused: bool },
    /// A holder slot. `None` until the grant is installed.
    Holding(Option<H>),
}

impl<H> Occupant<H> {
    pub(super) fn asking(number: u64, mode: Mode, pulse: Pulse) -> Self {
        let stage = Stage::Asking { pulse, refused: false };
        Self { number, mode, stage, forced: false, doubted: false }
    }

    pub(in crate::engine) fn hold(&self) -> Option<&H> {
        match &self.stage {
            Stage::Holding(hold) => hold.as_ref(),
            Stage::Asking { .. } => None,
        }
    }

    pub(super) fn into_hold(self) -> Option<H> {
        match self.stage {
            Stage::Holding(hold) => hold,
            Stage::Asking { .. } => None,
        }
    }

    pub(super) fn is_asking(&self) -> bool {
        matches!(self.stage, Stage::Asking { .. })
    }

    /// Puts a hold into the slot, or keeps the slot for the one that is to come. Returns the hold before.
    pub(super) fn occupy(&mut self, hold: Option<H>) -> Option<H> {
        match std::mem::replace(&mut self.stage, Stage::Holding(hold)) {
            Stage::Holding(before) => before,
            Stage::Asking { .. } => None,
        }
    }

    pub(super) fn is_slot(&self) -> bool {
        matches!(self.stage, Stage::Holding(_))
    }

    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        matches!(self.stage, Stage::Asking { pulse, .. } if pulse.is_over(now))
    }

    /// Returns whether the store has refused its last request, so that it waits.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.stage, Stage::Asking { refused: true, .. })
    }
}

/// The occupants of a name. Most names have one.
#[derive(Default)]
pub(super) enum Occupants<H> {
    #[default]
    None,
    One(Occupant<H>),
    Many(Box<Several<H>>),
}

/// Several occupants. A semaphore may have thousands, so what is asked about all of them is counted.
pub(super) struct Several<H> {
    occupants: BTreeMap<u64, Occupant<H>>,
    /// Those without a hold: the turns, and the holder slots whose grants are not installed yet.
    open: BTreeSet<u64>,
    /// The number of occupants of each mode, by [`Mode::index`].
    counts: [usize; Mode::COUNT],
}

impl<H> Default for Several<H> {
    fn default() -> Self {
        let counts = [0; Mode::COUNT];
        Self { occupants: BTreeMap::new(), open: BTreeSet::new(), counts }
    }
}

impl<H> Several<H> {
    fn open(&self) -> impl Iterator<Item = &Occupant<H>> {
        self.open.iter().filter_map(|number| self.occupants.get(number))
    }

    fn push(&mut self, occupant: Occupant<H>) {
        let number = occupant.number;
        if occupant.hold().is_none() {
            self.open.insert(number);
        }
        self.counts[occupant.mode.index()] += 1;
        self.occupants.insert(number, occupant);
    }

    fn take(&mut self, number: u64) -> Option<Occupant<H>> {
        let occupant = self.occupants.remove(&number)?;
        self.open.remove(&number);
        self.counts[occupant.mode.index()] -= 1;
        Some(occupant)
    }

    /// Returns whether all occupants have this mode.
    fn all_have(&self, mode: Mode) -> bool {
        self.counts[mode.index()] == self.occupants.len()
    }
}

impl<H> Occupants<H> {
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Returns the only occupant, if there is one.
    pub(super) fn only(&self) -> Option<&Occupant<H>> {
        match self {
            Self::None => None,
            Self::One(occupant) => Some(occupant),
            Self::Many(several) if several.occupants.len() == 1 => {
                several.occupants.values().next()
            }
            Self::Many(_) => None,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Occupant<H>> {
        let (one, many) = self.parts();
        one.into_iter().chain(many.into_iter().flat_map(|several| several.occupants.values()))
    }

    /// Returns the occupants without a hold.
    pub(super) fn open(&self) -> impl Iterator<Item = &Occupant<H>> {
        let (one, many) = self.parts();
        let one = one.into_iter().filter(|occupant| occupant.hold().is_none());
        one.chain(many.into_iter().flat_map(Several::open))
    }

    fn parts(&self) -> (Option<&Occupant<H>>, Option<&Several<H>>) {
        match self {
            Self::None => (None, None),
            Self::One(occupant) => (Some(occupant), None),
            Self::Many(several) => (None, Some(several)),
        }
    }

    pub(super) fn get(&self, number: u64) -> Option<&Occupant<H>> {
        match self {
            Self::None => None,
            Self::One(occupant) => Some(occupant).filter(|occupant| occupant.number == number),
            Self::Many(several) => several.occupants.get(&number),
        }
    }

    /// Changes the occupant of this number. Returns `None` if there is none.
    pub(super) fn change<R>(
        &mut self,
        number: u64,
        change: impl FnOnce(&mut Occupant<H>) -> R,
    ) -> Option<R> {
        match self {
            Self::One(occupant) if occupant.number == number => Some(change(occupant)),
            Self::Many(several) => {
                let mut occupant = several.take(number)?;
                let result = change(&mut occupant);
                several.push(occupant);
                Some(result)
            }
            Self::None | Self::One(_) => None,
        }
    }

    /// Returns an occupant to change what is not counted.
    fn get_mut(&mut self, number: u64) -> Option<&mut Occupant<H>> {
        match self {
            Self::One(occupant) if occupant.number == number => Some(occupant),
            Self::Many(several) => several.occupants.get_mut(&number),
            Self::None | Self::One(_) => None,
        }
    }

    /// Records a pulse of the call that has a turn.
    pub(super) fn record_pulse(&mut self, number: u64, next: Pulse) {
        if let Some(Occupant { stage: Stage::Asking { pulse, .. }, .. }) = self.get_mut(number) {
            *pulse = next;
        }
    }

    /// Records that a turn sends a request now. Returns `None` if there is no such turn.
    pub(super) fn asks(&mut self, number: u64, next: Pulse) -> Option<()> {
        let occupant = self.get_mut(number)?;
        (occupant.forced, occupant.doubted) = (false, false);
        if let Stage::Asking { pulse, .. } = &mut occupant.stage {
            *pulse = next;
        }
        Some(())
    }

    /// Records that the store has refused the request of a turn.
    pub(super) fn refuse(&mut self, number: u64) {
        if let Some(Occupant { stage: Stage::Asking { refused, .. }, .. }) = self.get_mut(number) {
            *refused = true;
        }
    }

    /// Records that the name was forced open, by this occupant if one is given: each request of the others so far may have
    /// been granted before.
    pub(super) fn mark_forced(&mut self, by: Option<u64>) {
        self.mark(|occupant| occupant.forced |= by != Some(occupant.number));
    }

    /// Records that another manager says that it has taken the name.
    pub(super) fn mark_doubted(&mut self) {
        self.mark(|occupant| occupant.doubted = true);
    }

    fn mark(&mut self, mark: impl Fn(&mut Occupant<H>)) {
        match self {
            Self::None => {}
            Self::One(occupant) => mark(occupant),
            Self::Many(several) => several.occupants.values_mut().for_each(mark),
        }
    }

    pub(super) fn push(&mut self, occupant: Occupant<H>) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(occupant),
            Self::One(first) => {
                let mut several = Box::<Several<H>>::default();
                several.push(first);
                several.push(occupant);
                Self::Many(several)
            }
            Self::Many(mut several) => {
                several.push(occupant);
                Self::Many(several)
            }
        };
    }

    /// Removes the occupant of this number.
    pub(super) fn take(&mut self, number: u64) -> Option<Occupant<H>> {
        match self {
            Self::One(occupant) if occupant.number == number => match std::mem::take(self) {
                Self::One(occupant) => Some(occupant),
                Self::None | Self::Many(_) => None,
            },
            Self::Many(several) => {
                let occupant = several.take(number);
                if several.occupants.is_empty() {
                    *self = Self::None;
                }
                occupant
            }
            Self::None | Self::One(_) => None,
        }
    }

    /// Returns whether all occupants can share the name with a hold of this mode.
    pub(super) fn can_all_share(&self, mode: Mode) -> bool {
        match self {
            Self::None => true,
            Self::One(occupant) => mode::can_share(occupant.mode, mode),
            Self::Many(several) => mode::is_shared(mode) && several.all_have(mode),
        }
    }

    /// Returns whether an occupant uses the name as another kind of lock than this mode does.
    pub(super) fn is_mixed(&self, mode: Mode) -> bool {
        let differs = |occupant: &Occupant<H>| occupant.mode.kind() != mode.kind();
        match self {
            Self::None => false,
            Self::One(occupant) => differs(occupant),
            // Without a look at each of thousands that are all alike.
            Self::Many(several) => {
                !several.all_have(mode) && several.occupants.values().any(differs)
            }
        }
    }

    /// Returns whether one more may ask for the name in this mode. This alone decides which local
    /// waiter asks next; between processes the store decides.
    ///
    /// In a shared mode one asks at a time: readers may join its hold, and permits are granted in the order of arrival.
    pub(super) fn may_ask(&self, mode: Mode) -> bool {
        self.can_all_share(mode) && self.open().next().is_none()
    }

    /// As [`may_ask`](Self::may_ask), for a call that makes one attempt and must not take another request for
    /// contention.
    pub(super) fn may_try(&self, mode: Mode) -> bool {
        match mode {
            Mode::Read => self.can_all_share(mode),
            // One that was refused waits, and comes first.
            Mode::Permits { .. } => {
                self.can_all_share(mode) && self.open().all(|occupant| !occupant.is_refused())
            }
            Mode::Exclusive | Mode::Write => self.may_ask(mode),
        }
    }

    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.open().any(|occupant| occupant.is_overdue(now))
    }
}

/// What a call wants that may have to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Demand {
    pub(in crate::engine) mode: Mode,
    /// The time of its arrival.
    pub(in crate::engine) arrived: Instant,
    /// Whether it takes part in the line of the name.
    pub(in crate::engine) fair: bool,
    /// The time for which its hold keeps the name closed beyond T if it is not released.
    pub(in crate::engine) lock_delay: Duration,
}

/// A waiter in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) demand: Demand,
    /// Its last pulse.
    pub(super) pulse: Pulse,
    /// Whether an offer wakes it. False while it has given no pulse since it was woken.
    pub(super) listens: bool,
}

/// The number of entries that are kept though no waiter is in them.
const SLACK: usize = 64;

/// The waiters of a name in FIFO order. Most enter at the end and leave at the front, which takes a sorted queue half of the
/// instructions that it takes a tree.
#[derive(Default)]
pub(super) struct Waiters {
    /// Each with its number. One that left from the middle leaves an empty entry, so that leaving does not move all that are
    /// behind it. The first and the last entry are never empty.
    entries: VecDeque<(u64, Option<Waiter>)>,
    /// The number of entries with a waiter.
    count: usize,
}

impl Waiters {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the index of the entry of this number, or the one at which it would be.
    fn find(&self, waiter_no: u64) -> Result<usize, usize> {
        match (self.entries.front(), self.entries.back()) {
            (Some((first, _)), _) if *first == waiter_no => Ok(0),
            (_, Some((last, _))) if *last < waiter_no => Err(self.entries.len()),
            _ => self.entries.binary_search_by_key(&waiter_no, |(waiter_no, _)| *waiter_no),
        }
    }

    pub(super) fn get(&self, waiter_no: u64) -> Option<&Waiter> {
        self.entries.get(self.find(waiter_no).ok()?)?.1.as_ref()
    }

    pub(super) fn get_mut(&mut self, waiter_no: u64) -> Option<&mut Waiter> {
        let index = self.find(waiter_no).ok()?;
        self.entries.get_mut(index)?.1.as_mut()
    }

    /// Returns the waiter with this number; if there is none, it enters at its place.
    pub(super) fn get_or_insert_with(
        &mut self,
        waiter_no: u64,
        new: impl FnOnce() -> Waiter,
    ) -> &mut Waiter {
        let index = self.find(waiter_no).unwrap_or_else(|index| {
            self.entries.insert(index, (waiter_no, None));
            index
        });
        let entry = &mut self.entries[index].1;
        self.count += usize::from(entry.is_none());
        entry.get_or_insert_with(new)
    }

    /// Removes the waiter with this number.
    pub(super) fn remove(&mut self, waiter_no: u64) -> Option<Waiter> {
        let index = self.find(waiter_no).ok()?;
        let removed = self.entries.get_mut(index)?.1.take()?;
        self.count -= 1;
        while let Some((_, None)) = self.entries.front() {
            self.entries.pop_front();
        }
        while let Some((_, None)) = self.entries.back() {
            self.entries.pop_back();
        }
        let slack = 2 * self.count + SLACK;
        if self.entries.len() > slack {
            self.entries.retain(|(_, waiter)| waiter.is_some());
        }
        if self.entries.capacity() > 2 * slack {
            self.entries.shrink_to(slack);
        }
        Some(removed)
    }

    /// Returns the first waiter, and its number.
    pub(super) fn first(&self) -> Option<(u64, &Waiter)> {
        self.iter().next()
    }

    /// Returns the waiters in FIFO order, with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Waiter)> {
        self.entries.iter().filter_map(|(waiter_no, waiter)| Some((*waiter_no, waiter.as_ref()?)))
    }

    /// Returns the waiters in FIFO order to change, with their numbers.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Waiter)> {
        self.entries
            .iter_mut()
            .filter_map(|(waiter_no, waiter)| Some((*waiter_no, waiter.as_mut()?)))
    }
}

/// An offer to a waiter. `H` is a hold.
pub(super) enum Offer<H> {
    /// The turn of this number.
    Turn(u64),
    /// A read hold that it may join.
    Join(H, Waiter),
    /// A hold that is handed off to a waiter that was woken for another reason just before.
    Hold(H),
}

/// The offers of a name, in the order of the numbers of their waiters. There is mostly one, which a sorted queue finds, adds
/// and removes for less than half of what a tree takes. They stand beside the waiters: the end of each turn looks through
/// all offers, and there may be thousands of waiters.
pub(super) struct Offers<H>(VecDeque<(u64, Offer<H>)>);

impl<H> Default for Offers<H> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<H> Offers<H> {
    /// Returns the index of the offer to this number, or the one at which it would be.
    fn find(&self, waiter_no: u64) -> Result<usize, usize> {
        self.0.binary_search_by_key(&waiter_no, |(waiter_no, _)| *waiter_no)
    }

    pub(super) fn contains(&self, waiter_no: u64) -> bool {
        self.find(waiter_no).is_ok()
    }

    /// Adds an offer. Returns the one that it replaces.
    pub(super) fn insert(&mut self, waiter_no: u64, offer: Offer<H>) -> Option<Offer<H>> {
        match self.find(waiter_no) {
            Ok(index) => self.0.get_mut(index).map(|(_, before)| std::mem::replace(before, offer)),
            Err(index) => {
                self.0.insert(index, (waiter_no, offer));
                None
            }
        }
    }

    /// Removes the offer to this number.
    pub(super) fn take(&mut self, waiter_no: u64) -> Option<Offer<H>> {
        let index = self.find(waiter_no).ok()?;
        self.0.remove(index).map(|(_, offer)| offer)
    }

    /// Returns the numbers whose offer matches.
    pub(super) fn numbers(&self, mut matches: impl FnMut(&Offer<H>) -> bool) -> Vec<u64> {
        let offers = self.0.iter().filter(|(_, offer)| matches(offer));
        offers.map(|(waiter_no, _)| *waiter_no).collect()
    }

    /// Removes and returns the offers that match.
    pub(super) fn remove_all(
        &mut self,
        matches: impl FnMut(&Offer<H>) -> bool,
    ) -> Vec<(u64, Offer<H>)> {
        let numbers = self.numbers(matches);
        let taken =
            numbers.into_iter().filter_map(|waiter_no| Some((waiter_no, self.take(waiter_no)?)));
        taken.collect()
    }

    /// Removes the turns that are offered to waiters behind this one. Returns their numbers.
    pub(super) fn remove_turns_behind(&mut self, waiter_no: u64) -> Vec<u64> {
        let mut turns = Vec::new();
        self.0.retain(|(other, offer)| match offer {
            Offer::Turn(number) if *other > waiter_no => {
                turns.push(*number);
                false
            }
            _ => true,
        });
        turns
    }

    /// Returns the last number whose offer matches.
    pub(super) fn last(&self, mut matches: impl FnMut(&Offer<H>) -> bool) -> Option<u64> {
        self.0.iter().rev().find(|(_, offer)| matches(offer)).map(|(waiter_no, _)| *waiter_no)
    }
}

/// The waiters of a name, and facts that only matter with waiters or other holders.
pub(super) struct Contention<H> {
    pub(super) waiters: Waiters,
    /// The offers that waiters find at their next pulse.
    pub(super) offers: Offers<H>,
    /// While waiters elsewhere listen: the last number drawn before the store granted the name.
    pub(super) served_at: Option<u64>,
    /// When this process made the semaphore smaller: what the store had granted by then is released to it.
    pub(super) shrunk: Option<Instant>,
    /// The read hold that readers of other handles join.
    pub(super) read_hold: Option<ReadHold>,
    /// The call that asks for permits, if a hold can be handed off to it.
    pub(super) seeker: Option<Seeker>,
    /// The last request of such a call, when a hold was handed off to it, for the next turn.
    pub(super) last_ask: Option<LastAsk>,
    /// The number of the slot whose hold rests.
    pub(super) resting: Option<u64>,
}

/// The youngest read hold of a name, by the number of its slot.
#[derive(Clone, Copy)]
pub(super) struct ReadHold {
    pub(super) number: u64,
    /// The time from which on readers ask the store again.
    pub(super) until: Instant,
}

/// A call with a turn. It is no longer in the queue, but comes before all that are.
#[derive(Clone, Copy)]
pub(super) struct Seeker {
    /// That of its turn.
    pub(super) number: u64,
    pub(super) waiter_no: u64,
    pub(super) mode: Mode,
    pub(super) lock_delay: Duration,
    pub(super) last_ask: Option<LastAsk>,
}

/// The last request for permits of a call. If a hold is handed off to that call, the next one goes on from there, so that
/// calls whose permits are handed off do not ask the store at each change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct LastAsk {
    /// The number of the turn that asked, by which the shell keeps what hears of releases for it.
    pub(in crate::engine) by: u64,
    pub(in crate::engine) mode: Mode,
    /// When the store is asked again, without a hint.
    pub(in crate::engine) again_at: Instant,
}

impl<H> Default for Contention<H> {
    fn default() -> Self {
        Self {
            waiters: Waiters::default(),
            offers: Offers::default(),
            served_at: None,
            shrunk: None,
            read_hold: None,
            seeker: None,
            last_ask: None,
            resting: None,
        }
    }
}

impl<H> Contention<H> {
    /// Returns whether a chain of hand-offs may go on with this waiter, as far as others are concerned that the store serves.
    pub(super) fn may_continue(&self, waiter_no: u64, chain: &Chain) -> bool {
        let is_late = !chain.is_young && self.served_at.is_some_and(|last| waiter_no > last);
        let is_too_many = self.shrunk.is_some_and(|shrunk| chain.began <= shrunk);
        Rare::SemaphoreShrunk.reached_if(|| is_too_many);
        !is_late && !is_too_many
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(millis: u64) -> Waiter {
        let arrived = Instant::ZERO + Duration::from_millis(millis);
        let lock_delay = Duration::ZERO;
        let demand = Demand { mode: Mode::Exclusive, arrived, fair: false, lock_delay };
        Waiter { demand, pulse: Pulse::until(arrived), listens: false }
    }

    /// Enters and leaves 20 000 times in an order without pattern, beside a tree.
    #[test]
    fn waiters_are_in_the_order_of_numbers() {
        let (mut waiters, mut tree) = (Waiters::default(), BTreeMap::new());
        let mut random = 1_u64;
        for round in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round);
            // The queue grows to hundreds, and shrinks again.
            let (waiter_no, grows) = ((random >> 33) % 800, (round / 2000) % 2 == 0);
            if (random >> 20).is_multiple_of(4) != grows {
                let entered =
                    waiters.get_or_insert_with(waiter_no, || waiter(round)).demand.arrived;
                let expected = tree.entry(waiter_no).or_insert_with(|| waiter(round));
                assert_eq!(entered, expected.demand.arrived, "one that is there stays");
            } else {
                let left = waiters.remove(waiter_no).map(|waiter| waiter.demand.arrived);
                assert_eq!(left, tree.remove(&waiter_no).map(|waiter| waiter.demand.arrived));
            }
            assert_eq!(waiters.len(), tree.len());
            assert_eq!(waiters.first().map(|first| first.0), tree.keys().next().copied());
            assert_eq!(waiters.get(waiter_no).is_some(), tree.contains_key(&waiter_no));
            assert!(waiters.entries.len() <= 2 * waiters.len() + SLACK);
            if round % 100 == 0 {
                assert!(waiters.iter().map(|(waiter_no, _)| waiter_no).eq(tree.keys().copied()));
            }
        }
        for waiter_no in 0..800 {
            waiters.remove(waiter_no);
        }
        assert!(waiters.is_empty() && waiters.entries.is_empty());
        assert!(waiters.entries.capacity() <= 2 * SLACK, "an empty queue keeps no memory");
    }

    #[test]
    fn waiter_that_comes_back_is_where_it_was() {
        let mut waiters = Waiters::default();
        for waiter_no in [1, 2, 3] {
            waiters.get_or_insert_with(waiter_no, || waiter(waiter_no));
        }
        assert!(waiters.remove(2).is_some() && waiters.remove(2).is_none());
        assert!(waiters.get(2).is_none());
        waiters.get_or_insert_with(2, || waiter(2));
        let numbers: Vec<_> = waiters.iter_mut().map(|(waiter_no, _)| waiter_no).collect();
        assert_eq!(numbers, [1, 2, 3]);
    }

    fn number(offer: Option<Offer<()>>) -> Option<u64> {
        match offer? {
            Offer::Turn(number) => Some(number),
            Offer::Join(..) | Offer::Hold(_) => None,
        }
    }

    #[test]
    fn offers_are_in_the_order_of_numbers() {
        let mut offers = Offers::default();
        for waiter_no in [5, 2, 9, 7] {
            assert_eq!(number(offers.insert(waiter_no, Offer::Turn(10 * waiter_no))), None);
        }
        assert_eq!(number(offers.insert(7, Offer::Turn(71))), Some(70));
        let is_big = |offer: &Offer<()>| matches!(offer, Offer::Turn(number) if *number > 40);
        assert_eq!(offers.numbers(is_big), [5, 7, 9]);
        assert_eq!(offers.last(|offer| !is_big(offer)), Some(2));
        assert!(offers.contains(5) && !offers.contains(6));
        assert_eq!((number(offers.take(5)), number(offers.take(5))), (Some(50), None));
        let taken = offers.remove_all(is_big);
        assert_eq!(taken.into_iter().map(|(waiter_no, _)| waiter_no).collect::<Vec<_>>(), [7, 9]);
        assert_eq!(offers.numbers(|_| true), [2]);
    }
}
