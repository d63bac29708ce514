//! One name in the queue: its turns, its holds and its waiters.

use super::heirs::Heirs;
use super::hold::Hold;
use crate::clock::Instant;
use crate::store::Mode;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The owner of hand-offs, which takes back a hold that its waiter did not accept.
pub(super) trait TakesBack: Send + Sync {
    /// Hands the hold off to the next waiter, or releases it.
    fn take_back(self: Arc<Self>, hold: Arc<Hold>);
}

/// A hold on its way to a waiter. Dropping it hands the hold off to the next waiter, or releases
/// it.
pub(crate) struct HandedOff {
    pub(super) from: Arc<dyn TakesBack>,
    pub(super) hold: Option<Arc<Hold>>,
}

impl HandedOff {
    /// Returns whether it carries this hold.
    pub(super) fn is(&self, hold: &Arc<Hold>) -> bool {
        self.hold.as_ref().is_some_and(|own| Arc::ptr_eq(own, hold))
    }
}

impl Drop for HandedOff {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            Arc::clone(&self.from).take_back(hold);
        }
    }
}

/// A turn or a seat: the permission to ask the store, or the place of a hold.
pub(super) struct Member {
    pub(super) number: u64,
    pub(super) mode: Mode,
    pub(super) stage: Stage,
}

/// The stage of a member.
pub(super) enum Stage {
    /// A turn. It takes its next step by `due` if it is polled.
    Asking { due: Instant },
    /// A seat. `None` until the grant is installed.
    Holding(Option<Arc<Hold>>),
}

impl Member {
    pub(super) fn asking(number: u64, mode: Mode, due: Instant) -> Self {
        Self { number, mode, stage: Stage::Asking { due } }
    }

    pub(super) fn hold(&self) -> Option<&Arc<Hold>> {
        match &self.stage {
            Stage::Holding(hold) => hold.as_ref(),
            Stage::Asking { .. } => None,
        }
    }

    fn is_overdue(&self, now: Instant) -> bool {
        matches!(self.stage, Stage::Asking { due } if due < now)
    }
}

/// The members of an entry. Most names have one.
#[derive(Default)]
pub(super) enum Members {
    #[default]
    None,
    One(Member),
    Many(Vec<Member>),
}

impl Members {
    pub(super) fn all(&self) -> &[Member] {
        match self {
            Self::None => &[],
            Self::One(member) => std::slice::from_ref(member),
            Self::Many(members) => members,
        }
    }

    pub(super) fn all_mut(&mut self) -> &mut [Member] {
        match self {
            Self::None => &mut [],
            Self::One(member) => std::slice::from_mut(member),
            Self::Many(members) => members,
        }
    }

    pub(super) fn get(&mut self, number: u64) -> Option<&mut Member> {
        self.all_mut().iter_mut().find(|member| member.number == number)
    }

    pub(super) fn push(&mut self, member: Member) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(member),
            Self::One(first) => Self::Many(vec![first, member]),
            Self::Many(mut members) => {
                members.push(member);
                Self::Many(members)
            }
        };
    }

    /// Removes and returns the members that `keep` rejects.
    pub(super) fn remove(&mut self, mut keep: impl FnMut(&Member) -> bool) -> Self {
        match self {
            Self::None => Self::None,
            Self::One(member) if keep(member) => Self::None,
            Self::One(_) => std::mem::take(self),
            Self::Many(members) => {
                let removed = members.extract_if(.., |member| !keep(member)).collect();
                if members.is_empty() {
                    *self = Self::None;
                }
                Self::Many(removed)
            }
        }
    }

    /// Returns whether one more may ask for the name in this mode. This alone decides which local
    /// waiter asks next; between processes the store decides.
    pub(super) fn may_ask(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive | Mode::Write => self.all().is_empty(),
            Mode::Read => self.all().iter().all(|member| member.mode == Mode::Read),
            Mode::Permits { .. } => self.all().iter().all(|member| {
                matches!(member.mode, Mode::Permits { .. }) && member.hold().is_some()
            }),
        }
    }
}

/// Returns whether two holds of these modes can exist at once.
pub(super) fn can_share(one: Mode, other: Mode) -> bool {
    match (one, other) {
        (Mode::Read, Mode::Read) | (Mode::Permits { .. }, Mode::Permits { .. }) => true,
        (Mode::Exclusive | Mode::Read | Mode::Write | Mode::Permits { .. }, _) => false,
    }
}

/// Returns whether a hold of this mode can be handed off to a waiter for the same mode.
fn can_hand_off(mode: Mode) -> bool {
    match mode {
        Mode::Exclusive | Mode::Write => true,
        Mode::Read | Mode::Permits { .. } => false,
    }
}

/// A name that this process asks for or holds.
pub(super) struct NameEntry {
    pub(super) members: Members,
    /// The time of the first request for this name that the store has not answered.
    pub(super) silent_since: Option<Instant>,
    /// `None` for a name that only one flow of control locks, as most names are.
    rivals: Option<Box<Rivals>>,
}

/// The waiters of a name, and facts that only matter with waiters or other holders.
#[derive(Default)]
pub(super) struct Rivals {
    /// The waiters in FIFO order, by their tickets.
    pub(super) waiters: BTreeMap<u64, Waiter>,
    /// The offers that waiters find at their next check-in.
    pub(super) offers: BTreeMap<u64, Offer>,
    /// The time at which this process last forced the name open.
    pub(super) forced: Option<Instant>,
    /// While waiters elsewhere listen: the last number drawn before the store granted the name.
    pub(super) served_at: Option<u64>,
}

/// A waiter in the queue.
pub(super) struct Waiter {
    pub(super) mode: Mode,
    /// Wakes it for an offer. `None` while it has not checked in since it was woken.
    pub(super) wake: Option<oneshot::Sender<()>>,
    /// The time of its last check-in.
    pub(super) checked_in: Instant,
    /// The time of its arrival.
    pub(super) arrived: Instant,
    /// Whether it takes part in the line of the name.
    pub(super) fair: bool,
}

/// An offer to a waiter.
pub(super) enum Offer {
    /// The turn of this number.
    Turn(u64),
    Hold(HandedOff),
}

impl Rivals {
    /// Returns the tickets whose offer matches.
    fn tickets(&self, mut matches: impl FnMut(&Offer) -> bool) -> Vec<u64> {
        let offers = self.offers.iter().filter(|(_, offer)| matches(offer));
        offers.map(|(ticket, _)| *ticket).collect()
    }

    /// Removes and returns the offers that match.
    pub(super) fn take_offers(&mut self, matches: impl FnMut(&Offer) -> bool) -> Vec<(u64, Offer)> {
        let tickets = self.tickets(matches);
        let taken = tickets.into_iter().filter_map(|ticket| self.offers.remove_entry(&ticket));
        taken.collect()
    }
}

/// Everything that was removed from an entry. Drop it with no lock held.
#[derive(Default)]
pub(super) struct Removed {
    _members: Members,
    _offers: Vec<Offer>,
    _waiters: Vec<Waiter>,
}

impl NameEntry {
    pub(super) fn new(member: Member) -> Self {
        Self { members: Members::One(member), silent_since: None, rivals: None }
    }

    /// Returns the rivals to change, if any.
    pub(super) fn rivals_mut(&mut self) -> Option<&mut Rivals> {
        self.rivals.as_deref_mut()
    }

    /// Returns the rivals to read, if any.
    pub(super) fn rivals(&self) -> Option<&Rivals> {
        self.rivals.as_deref()
    }

    pub(super) fn rivals_or_default(&mut self) -> &mut Rivals {
        self.rivals.get_or_insert_default()
    }

    pub(super) fn holds(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.members.all().iter().filter_map(Member::hold)
    }

    pub(super) fn has_waiters(&self) -> bool {
        self.rivals().is_some_and(|rivals| !rivals.waiters.is_empty())
    }

    pub(super) fn has_fair_waiters(&self) -> bool {
        self.rivals().is_some_and(|rivals| rivals.waiters.values().any(|waiter| waiter.fair))
    }

    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.members.all().iter().any(|member| member.is_overdue(now))
    }

    /// Offers turns to waiters in FIFO order, up to the first that may not ask. It passes over those
    /// that have not checked in since `since`, unless none has. Returns the waiters to wake.
    pub(super) fn advance(
        &mut self,
        numbers: &mut u64,
        (since, due): (Instant, Instant),
    ) -> Vec<oneshot::Sender<()>> {
        let mut woken = Vec::new();
        let Some(rivals) = self.rivals.as_deref_mut() else { return woken };
        let polled = rivals.waiters.values().any(|waiter| waiter.checked_in >= since);
        for (ticket, waiter) in &mut rivals.waiters {
            let passed_over = polled && waiter.checked_in < since;
            if passed_over || rivals.offers.contains_key(ticket) {
                continue;
            }
            if !self.members.may_ask(waiter.mode) {
                break;
            }
            *numbers += 1;
            self.members.push(Member::asking(*numbers, waiter.mode, due));
            rivals.offers.insert(*ticket, Offer::Turn(*numbers));
            woken.extend(waiter.wake.take());
        }
        woken
    }

    /// Removes the members that `keep` rejects, and their offers.
    pub(super) fn remove(&mut self, keep: impl FnMut(&Member) -> bool) -> Removed {
        let members = self.members.remove(keep);
        if members.all().is_empty() {
            return Removed::default();
        }
        let offers = self.rivals_mut().map(|rivals| {
            rivals.take_offers(|offer| {
                members.all().iter().any(|member| match offer {
                    Offer::Turn(number) => *number == member.number,
                    Offer::Hold(offered) => member.hold().is_some_and(|hold| offered.is(hold)),
                })
            })
        });
        let offers = offers.into_iter().flatten().map(|(_, offer)| offer).collect();
        Removed { _offers: offers, _members: members, _waiters: Vec::new() }
    }

    /// Reclaims turns from futures that are not polled. A waiter that was offered a turn and has
    /// not checked in by its due time leaves the queue until its next check-in. So does each waiter
    /// at the head of the queue that has not checked in since `since`.
    pub(super) fn reclaim(&mut self, now: Instant, since: Instant) -> Removed {
        let mut waiters = Vec::new();
        if let Some(rivals) = self.rivals.as_deref_mut() {
            let members = self.members.all();
            let overdue = rivals.tickets(|offer| {
                let Offer::Turn(number) = offer else { return false };
                members.iter().any(|member| member.number == *number && member.is_overdue(now))
            });
            waiters.extend(overdue.iter().filter_map(|ticket| rivals.waiters.remove(ticket)));
            // Remove all of them at once: otherwise each would be waited for in turn.
            while let Some(first) = rivals.waiters.first_entry()
                && first.get().checked_in < since
                && !rivals.offers.contains_key(first.key())
            {
                waiters.push(first.remove());
            }
        }
        let removed = self.remove(|member| !member.is_overdue(now));
        Removed { _waiters: waiters, ..removed }
    }

    /// Returns the ticket of the first waiter that has checked in since `since`, if the only hold can be handed off to it.
    pub(super) fn handoff_target(&self, since: Instant, heirs: Heirs) -> Option<u64> {
        let [member] = self.members.all() else { return None };
        let (ticket, waiter) = self.first_waiter(since)?;
        let fits = can_hand_off(member.mode) && waiter.mode == member.mode;
        (fits && heirs.admit(waiter.fair, waiter.arrived)).then_some(ticket)
    }

    /// Returns the first waiter that has checked in since `since`, and its ticket.
    pub(super) fn first_waiter(&self, since: Instant) -> Option<(u64, &Waiter)> {
        let mut waiters = self.rivals()?.waiters.iter();
        let first = waiters.find(|(_, waiter)| waiter.checked_in >= since)?;
        Some((*first.0, first.1))
    }
}
