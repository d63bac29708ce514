//! The contention for one name. Its occupants are what asks for it or holds it in this process.

use super::mode;
use super::pulse::Pulse;
use crate::clock::Instant;
use crate::store::Mode;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

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
    pub(super) stage: Stage<H>,
    /// Whether the name was forced open after its last request, which may have been granted before.
    pub(super) forced: bool,
    /// Whether another manager said since then that it has taken the name.
    pub(super) doubted: bool,
}

/// The stage of an occupant.
pub(in crate::engine) enum Stage<H> {
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
pub(in crate::engine) enum Occupants<H> {
    #[default]
    None,
    One(Occupant<H>),
    Many(Box<Several<H>>),
}

/// Several occupants. A semaphore may have thousands, so what is asked about all of them is counted.
pub(in crate::engine) struct Several<H> {
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
