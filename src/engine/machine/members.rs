//! The turns and seats of one name.

use crate::clock::Instant;
use crate::engine::shared::hold::Hold;
use crate::store::Mode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A turn or a seat: the permission to ask the store, or the place of a hold.
pub(in crate::engine) struct Member {
    pub(in crate::engine) number: u64,
    pub(in crate::engine) mode: Mode,
    pub(in crate::engine) stage: Stage,
    /// Whether the name was forced open after its last request, which may have been granted before.
    pub(in crate::engine) forced: bool,
    /// Whether another manager said since then that it has taken the name.
    pub(in crate::engine) doubted: bool,
}

/// The stage of a member.
pub(in crate::engine) enum Stage {
    /// A turn. It takes its next step by `due` if it is polled. It is `refused` if the store has refused its last request,
    /// so that it waits.
    Asking { due: Instant, refused: bool },
    /// A seat. `None` until the grant is installed.
    Holding(Option<Arc<Hold>>),
}

impl Member {
    pub(in crate::engine) fn asking(number: u64, mode: Mode, due: Instant) -> Self {
        let stage = Stage::Asking { due, refused: false };
        Self { number, mode, stage, forced: false, doubted: false }
    }

    pub(in crate::engine) fn hold(&self) -> Option<&Arc<Hold>> {
        match &self.stage {
            Stage::Holding(hold) => hold.as_ref(),
            Stage::Asking { .. } => None,
        }
    }

    pub(in crate::engine) fn is_seat(&self) -> bool {
        matches!(self.stage, Stage::Holding(_))
    }

    pub(in crate::engine) fn is_overdue(&self, now: Instant) -> bool {
        matches!(self.stage, Stage::Asking { due, .. } if due < now)
    }

    /// Returns whether the store has refused its last request, so that it waits.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.stage, Stage::Asking { refused: true, .. })
    }
}

/// The members of an entry. Most names have one.
#[derive(Default)]
pub(in crate::engine) enum Members {
    #[default]
    None,
    One(Member),
    Many(Box<Crowd>),
}

/// Several members. A semaphore may have thousands, so what is asked about all of them is counted.
#[derive(Default)]
pub(in crate::engine) struct Crowd {
    members: BTreeMap<u64, Member>,
    /// Those without a hold: the turns, and the seats whose grants are not installed yet.
    open: BTreeSet<u64>,
    /// The number of members of each mode, by [`Mode::index`].
    counts: [usize; Mode::COUNT],
}

impl Crowd {
    fn open(&self) -> impl Iterator<Item = &Member> {
        self.open.iter().filter_map(|number| self.members.get(number))
    }

    fn push(&mut self, member: Member) {
        let number = member.number;
        if member.hold().is_none() {
            self.open.insert(number);
        }
        self.counts[member.mode.index()] += 1;
        self.members.insert(number, member);
    }

    fn take(&mut self, number: u64) -> Option<Member> {
        let member = self.members.remove(&number)?;
        self.open.remove(&number);
        self.counts[member.mode.index()] -= 1;
        Some(member)
    }

    /// Returns whether all members have this mode.
    fn all_have(&self, mode: Mode) -> bool {
        self.counts[mode.index()] == self.members.len()
    }
}

impl Members {
    pub(in crate::engine) fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Returns the only member, if there is one.
    pub(in crate::engine) fn only(&self) -> Option<&Member> {
        match self {
            Self::None => None,
            Self::One(member) => Some(member),
            Self::Many(crowd) if crowd.members.len() == 1 => crowd.members.values().next(),
            Self::Many(_) => None,
        }
    }

    pub(in crate::engine) fn iter(&self) -> impl Iterator<Item = &Member> {
        let (one, many) = self.parts();
        one.into_iter().chain(many.into_iter().flat_map(|crowd| crowd.members.values()))
    }

    /// Returns the members without a hold.
    pub(super) fn open(&self) -> impl Iterator<Item = &Member> {
        let (one, many) = self.parts();
        let one = one.into_iter().filter(|member| member.hold().is_none());
        one.chain(many.into_iter().flat_map(Crowd::open))
    }

    fn parts(&self) -> (Option<&Member>, Option<&Crowd>) {
        match self {
            Self::None => (None, None),
            Self::One(member) => (Some(member), None),
            Self::Many(crowd) => (None, Some(crowd)),
        }
    }

    pub(in crate::engine) fn get(&self, number: u64) -> Option<&Member> {
        match self {
            Self::None => None,
            Self::One(member) => Some(member).filter(|member| member.number == number),
            Self::Many(crowd) => crowd.members.get(&number),
        }
    }

    /// Changes the member of this number. Returns whether there is one.
    pub(in crate::engine) fn change(
        &mut self,
        number: u64,
        change: impl FnOnce(&mut Member),
    ) -> bool {
        match self {
            Self::One(member) if member.number == number => change(member),
            Self::Many(crowd) => {
                let Some(mut member) = crowd.take(number) else { return false };
                change(&mut member);
                crowd.push(member);
            }
            Self::None | Self::One(_) => return false,
        }
        true
    }

    /// Returns a member to change what is not counted.
    fn get_mut(&mut self, number: u64) -> Option<&mut Member> {
        match self {
            Self::One(member) if member.number == number => Some(member),
            Self::Many(crowd) => crowd.members.get_mut(&number),
            Self::None | Self::One(_) => None,
        }
    }

    /// Sets the time by which a turn takes its next step.
    pub(in crate::engine) fn set_due(&mut self, number: u64, time: Instant) {
        if let Some(Member { stage: Stage::Asking { due, .. }, .. }) = self.get_mut(number) {
            *due = time;
        }
    }

    /// Records that a turn sends a request now, and takes its next step by `due`. Returns `None` if there is no such turn.
    pub(in crate::engine) fn asks(&mut self, number: u64, due: Instant) -> Option<()> {
        let member = self.get_mut(number)?;
        (member.forced, member.doubted) = (false, false);
        if let Stage::Asking { due: step, .. } = &mut member.stage {
            *step = due;
        }
        Some(())
    }

    /// Records that the store has refused the request of a turn.
    pub(in crate::engine) fn refuse(&mut self, number: u64) {
        if let Some(Member { stage: Stage::Asking { refused, .. }, .. }) = self.get_mut(number) {
            *refused = true;
        }
    }

    /// Records that the name was forced open, by this member if one is given: each request of the others so far may have
    /// been granted before.
    pub(super) fn mark_forced(&mut self, by: Option<u64>) {
        self.mark(|member| member.forced |= by != Some(member.number));
    }

    /// Records that another manager says that it has taken the name.
    pub(super) fn mark_doubted(&mut self) {
        self.mark(|member| member.doubted = true);
    }

    fn mark(&mut self, mark: impl Fn(&mut Member)) {
        match self {
            Self::None => {}
            Self::One(member) => mark(member),
            Self::Many(crowd) => crowd.members.values_mut().for_each(mark),
        }
    }

    pub(in crate::engine) fn push(&mut self, member: Member) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(member),
            Self::One(first) => {
                let mut crowd = Box::<Crowd>::default();
                crowd.push(first);
                crowd.push(member);
                Self::Many(crowd)
            }
            Self::Many(mut crowd) => {
                crowd.push(member);
                Self::Many(crowd)
            }
        };
    }

    /// Removes the member of this number.
    pub(in crate::engine) fn take(&mut self, number: u64) -> Option<Member> {
        match self {
            Self::One(member) if member.number == number => match std::mem::take(self) {
                Self::One(member) => Some(member),
                Self::None | Self::Many(_) => None,
            },
            Self::Many(crowd) => {
                let member = crowd.take(number);
                if crowd.members.is_empty() {
                    *self = Self::None;
                }
                member
            }
            Self::None | Self::One(_) => None,
        }
    }

    /// Returns whether all members can share the name with a hold of this mode.
    pub(in crate::engine) fn can_all_share(&self, mode: Mode) -> bool {
        match self {
            Self::None => true,
            Self::One(member) => member.mode.can_share(mode),
            Self::Many(crowd) => mode.is_shared() && crowd.all_have(mode),
        }
    }

    /// Returns whether a member uses the name as another kind of lock than this mode does.
    pub(in crate::engine) fn is_mixed(&self, mode: Mode) -> bool {
        let differs = |member: &Member| member.mode.kind() != mode.kind();
        match self {
            Self::None => false,
            Self::One(member) => differs(member),
            // Without a look at each of thousands that are all alike.
            Self::Many(crowd) => !crowd.all_have(mode) && crowd.members.values().any(differs),
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
    pub(in crate::engine) fn may_try(&self, mode: Mode) -> bool {
        match mode {
            Mode::Read => self.can_all_share(mode),
            // One that was refused waits, and comes first.
            Mode::Permits { .. } => {
                self.can_all_share(mode) && self.open().all(|member| !member.is_refused())
            }
            Mode::Exclusive | Mode::Write => self.may_ask(mode),
        }
    }

    pub(in crate::engine) fn is_overdue(&self, now: Instant) -> bool {
        self.open().any(|member| member.is_overdue(now))
    }
}
