//! One name in the queue: its turns, its holds and its waiters.

use super::handed_off::{HandedOff, Wake, wake_waiter};
use super::heirs::Heirs;
use super::members::{Member, Members, Stage};
use super::offers::{Offer, Offers};
use super::seen::Seen;
use super::waiters::{Waiter, Waiters};
use crate::clock::Instant;
use crate::engine::shared::hold::Hold;
use crate::engine::shared::options::Options;
use crate::store::Mode;
use std::sync::Arc;

/// The times by which the queue acts.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Times {
    pub(in crate::engine) now: Instant,
    /// The time since which a waiter that is polled has checked in.
    pub(in crate::engine) since: Instant,
    /// The time by which an offer that is made now is taken up.
    pub(in crate::engine) due: Instant,
}

/// A time without an answer of the store about a name.
#[derive(Clone, Copy)]
pub(crate) struct Silence {
    /// The time of the first request that it has not answered.
    pub(crate) since: Instant,
    /// The time of its last answer to a request for this name before that.
    pub(crate) heard: Option<Instant>,
}

/// A name that this process asks for or holds.
pub(in crate::engine) struct NameEntry {
    pub(in crate::engine) members: Members,
    /// The time of the first request for this name that the store has not answered.
    pub(in crate::engine) silent_since: Option<Instant>,
    /// The time of the last answer of the store to a request for this name.
    pub(in crate::engine) heard: Option<Instant>,
    /// `None` for a name that only one flow of control locks, as most names are.
    rivals: Option<Box<Rivals>>,
}

/// The waiters of a name, and facts that only matter with waiters or other holders.
#[derive(Default)]
pub(in crate::engine) struct Rivals {
    pub(in crate::engine) waiters: Waiters,
    /// The offers that waiters find at their next check-in.
    pub(in crate::engine) offers: Offers,
    /// While waiters elsewhere listen: the last number drawn before the store granted the name.
    pub(in crate::engine) served_at: Option<u64>,
    /// When this process made the semaphore smaller: what the store had granted by then is released to it.
    pub(in crate::engine) shrunk: Option<Instant>,
    /// The read hold that readers of other handles join.
    pub(in crate::engine) cohort: Option<Cohort>,
    /// The flow that asks for permits, if a hold can be handed off to it.
    pub(in crate::engine) seeker: Option<Seeker>,
    /// What that flow has learned, for the next turn.
    pub(in crate::engine) seen: Option<Seen>,
}

/// The youngest read hold of a name, by the number of its seat.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Cohort {
    pub(in crate::engine) number: u64,
    /// The time from which on readers ask the store again.
    pub(in crate::engine) until: Instant,
}

/// A flow with a turn. It is no longer in the queue, but comes before all that are.
pub(in crate::engine) struct Seeker {
    /// That of its turn.
    pub(in crate::engine) number: u64,
    pub(in crate::engine) mode: Mode,
    pub(in crate::engine) options: Options,
    /// The number of its ticket, by which waiters are in order.
    pub(in crate::engine) ticket: u64,
    pub(in crate::engine) pass: Wake,
    pub(in crate::engine) seen: Option<Seen>,
}

/// The local waiter that a hold is handed off to.
pub(in crate::engine) enum Recipient {
    Waiter(u64),
    /// The flow that asks the store.
    Seeker,
}

/// A hold on its way to the recipient.
#[derive(Default)]
pub(crate) struct Delivery {
    passed: Option<(Wake, HandedOff)>,
    woken: Vec<Wake>,
    void: (Option<Waiter>, Option<Offer>),
    turn: Option<Member>,
    removed: Removed,
}

impl Delivery {
    /// Wakes the recipient, and those that may ask next. Call it with no lock held.
    pub(crate) fn complete(self) {
        drop((self.void, self.turn, self.removed));
        if let Some((pass, offered)) = self.passed {
            wake_waiter(pass, Some(offered));
        }
        self.woken.into_iter().for_each(|wake| wake_waiter(wake, None));
    }
}

/// Everything that was removed from an entry, mostly nothing. Drop it with no lock held.
pub(in crate::engine) type Removed = Vec<Gone>;

/// Something that was removed from an entry, which is only kept to be dropped.
pub(in crate::engine) enum Gone {
    Member { _gone: Member },
    Offer { _gone: Offer },
    Waiter { _gone: Waiter },
    Seeker { _gone: Seeker },
    Seen { _gone: Seen },
}

impl Rivals {
    /// Takes a turn in this mode that was offered to a waiter behind this ticket, and not taken up yet: a waiter that comes
    /// back is at its place again.
    pub(in crate::engine) fn take_turn_behind(&mut self, ticket: u64, mode: Mode) -> Option<Offer> {
        let Self { waiters, offers, .. } = self;
        let behind = offers.first_turn_behind(ticket)?;
        let is_alike = waiters.get(behind).is_some_and(|waiter| waiter.mode == mode);
        if is_alike { offers.take(behind) } else { None }
    }
}

impl NameEntry {
    pub(in crate::engine) fn new(member: Member) -> Self {
        Self { members: Members::One(member), silent_since: None, heard: None, rivals: None }
    }

    /// Records that the store answered at `now`.
    pub(in crate::engine) fn answered(&mut self, now: Instant) {
        (self.silent_since, self.heard) = (None, Some(now));
    }

    /// Ends a silence if no turn is left: the request without an answer was that of a member that has left, and the others
    /// hold the name beside it. A release of theirs that gets no answer begins another.
    pub(super) fn end_silence(&mut self) {
        if self.silent_since.is_some() && self.members.open().next().is_none() {
            self.silent_since = None;
        }
    }

    /// Returns the rivals to change, if any.
    pub(in crate::engine) fn rivals_mut(&mut self) -> Option<&mut Rivals> {
        self.rivals.as_deref_mut()
    }

    /// Returns the rivals to read, if any.
    pub(in crate::engine) fn rivals(&self) -> Option<&Rivals> {
        self.rivals.as_deref()
    }

    pub(in crate::engine) fn rivals_or_default(&mut self) -> &mut Rivals {
        self.rivals.get_or_insert_default()
    }

    pub(in crate::engine) fn holds(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.members.iter().filter_map(Member::hold)
    }

    pub(super) fn has_waiters(&self) -> bool {
        self.rivals().is_some_and(|rivals| !rivals.waiters.is_empty())
    }

    pub(in crate::engine) fn is_overdue(&self, now: Instant) -> bool {
        self.members.is_overdue(now)
    }

    /// Returns whether a call that makes one attempt may ask now.
    pub(in crate::engine) fn may_try(&self, mode: Mode) -> bool {
        // Those that wait for a hold to join are no contention.
        let excluded = |waiter: &Waiter| !(mode.is_joined() && mode.can_share(waiter.mode));
        let waits = self
            .rivals()
            .is_some_and(|rivals| rivals.waiters.iter().any(|(_, waiter)| excluded(waiter)));
        !waits && self.members.may_try(mode)
    }

    /// Returns the hold that a reader may join.
    fn joinable(&self, now: Instant) -> Option<&Arc<Hold>> {
        let cohort = self.rivals()?.cohort.filter(|cohort| now < cohort.until)?;
        let member = self.members.get(cohort.number)?;
        member.hold().filter(|_| member.mode.is_joined())
    }

    /// Returns the hold that a reader joins that has not waited.
    pub(in crate::engine) fn cohort(&self, now: Instant) -> Option<&Arc<Hold>> {
        if self.has_waiters() { None } else { self.joinable(now) }
    }

    /// Offers turns, and holds that can be joined, to waiters in FIFO order, up to the first that must wait. It passes
    /// over those that have not checked in lately, unless none has. Returns the waiters to wake.
    pub(in crate::engine) fn advance(
        &mut self,
        numbers: &mut u64,
        times: Times,
    ) -> (Vec<Wake>, Removed) {
        let (mut woken, mut joining) = (Vec::new(), Vec::new());
        let cohort = self.joinable(times.now).cloned();
        let Some(rivals) = self.rivals.as_deref_mut() else { return Default::default() };
        let polled = rivals.waiters.iter().any(|(_, waiter)| waiter.checked_in >= times.since);
        for (ticket, waiter) in rivals.waiters.iter_mut() {
            let passed_over = polled && waiter.checked_in < times.since;
            if passed_over || rivals.offers.contains(ticket) {
                continue;
            }
            let joins = cohort.as_ref().filter(|_| self.members.can_all_share(waiter.mode));
            if let Some(hold) = joins {
                joining.push((ticket, Arc::clone(hold)));
            } else if self.members.may_ask(waiter.mode) {
                *numbers += 1;
                self.members.push(Member::asking(*numbers, waiter.mode, times.due));
                rivals.offers.insert(ticket, Offer::Turn(*numbers));
            } else {
                break;
            }
            woken.extend(waiter.wake.take());
        }
        for (ticket, hold) in joining {
            // It blocks no waiter behind it, unless the hold ends before it joins.
            if let Some(waiter) = rivals.waiters.remove(ticket) {
                rivals.offers.insert(ticket, Offer::Join(hold, waiter));
            }
        }
        // Without a flow that asks next, nothing listens.
        let seen = rivals.seen.take_if(|_| self.members.open().next().is_none());
        (woken, seen.map(|seen| Gone::Seen { _gone: seen }).into_iter().collect())
    }

    /// Removes the member of this number and its offer. Returns `None` if it was reclaimed.
    pub(in crate::engine) fn take(&mut self, number: u64) -> Option<(Member, Removed)> {
        let member = self.members.take(number)?;
        let removed = self.remove_traces(std::slice::from_ref(&member));
        Some((member, removed))
    }

    /// Removes the members that exclude a hold of this mode.
    pub(in crate::engine) fn take_excluded(&mut self, mode: Mode, number: u64) -> Removed {
        if self.members.can_all_share(mode) {
            return Removed::default();
        }
        self.take_all(|member| member.number != number && !member.mode.can_share(mode))
    }

    fn take_all(&mut self, reject: impl Fn(&Member) -> bool) -> Removed {
        let rejected = self.members.iter().filter(|member| reject(member));
        let numbers: Vec<_> = rejected.map(|member| member.number).collect();
        let taken = numbers.into_iter().filter_map(|number| self.members.take(number));
        let members: Vec<_> = taken.collect();
        let mut removed = self.remove_traces(&members);
        removed.extend(members.into_iter().map(|member| Gone::Member { _gone: member }));
        removed
    }

    /// Removes what the entry has about members that are gone.
    fn remove_traces(&mut self, members: &[Member]) -> Removed {
        let Some(rivals) = self.rivals.as_deref_mut() else { return Removed::default() };
        let is = |number: u64| members.iter().any(|member| member.number == number);
        rivals.cohort.take_if(|cohort| is(cohort.number));
        let seeker = rivals.seeker.take_if(|seeker| is(seeker.number));
        let has_ended = |hold: &Arc<Hold>| {
            members.iter().filter_map(Member::hold).any(|ended| Arc::ptr_eq(ended, hold))
        };
        // Those that have not joined wait at their places again.
        for ticket in
            rivals.offers.tickets(|offer| matches!(offer, Offer::Join(hold, _) if has_ended(hold)))
        {
            if let Some(Offer::Join(_, waiter)) = rivals.offers.take(ticket) {
                rivals.waiters.get_or_insert_with(ticket, || waiter);
            }
        }
        let offers = rivals.offers.take_all(|offer| match offer {
            Offer::Turn(number) => is(*number),
            Offer::Join(..) => false,
            Offer::Hold(offered) => {
                members.iter().any(|member| member.hold().is_some_and(|hold| offered.is(hold)))
            }
        });
        let offers = offers.into_iter().map(|(_, offer)| Gone::Offer { _gone: offer });
        offers.chain(seeker.map(|seeker| Gone::Seeker { _gone: seeker })).collect()
    }

    /// Reclaims turns from futures that are not polled. A waiter that was offered a turn and has
    /// not checked in by its due time leaves the queue until its next check-in. So does each waiter
    /// at the head of the queue that has not checked in since `since`.
    pub(in crate::engine) fn reclaim(&mut self, Times { now, since, .. }: Times) -> Removed {
        let mut waiters = Vec::new();
        if let Some(rivals) = self.rivals.as_deref_mut() {
            let members = &self.members;
            let overdue = rivals.offers.tickets(|offer| {
                let Offer::Turn(number) = offer else { return false };
                members.get(*number).is_some_and(|member| member.is_overdue(now))
            });
            waiters.extend(overdue.iter().filter_map(|ticket| rivals.waiters.remove(*ticket)));
            // Remove all of them at once: otherwise each would be waited for in turn.
            while let Some((first, waiter)) = rivals.waiters.first()
                && waiter.checked_in < since
                && !rivals.offers.contains(first)
            {
                waiters.extend(rivals.waiters.remove(first));
            }
        }
        let mut removed = self.take_all(|member| member.is_overdue(now));
        removed.extend(waiters.into_iter().map(|waiter| Gone::Waiter { _gone: waiter }));
        removed
    }

    /// Returns the first waiter that is polled, if the hold in this seat can be handed off to it, and the number of its
    /// ticket.
    pub(super) fn recipient(
        &self,
        seat: u64,
        heirs: Heirs,
        times: Times,
    ) -> Option<(Recipient, u64)> {
        let (rivals, mode) = (self.rivals()?, self.members.get(seat)?.mode);
        if !mode.can_hand_off() {
            return None;
        }
        let mut open = self.members.open();
        let (ticket, waiter) = match (open.next(), open.next()) {
            // A mode that is not shared has no other member beside the seat.
            (None, _) if self.members.only().is_some() || mode.is_shared() => {
                self.first_waiter(times.since)?
            }
            (Some(asks), None) if mode.is_shared() && !asks.is_overdue(times.now) => {
                let seeker = rivals.seeker.as_ref().filter(|seeker| seeker.number == asks.number);
                if let Some(seeker) = seeker {
                    return (seeker.mode == mode).then_some((Recipient::Seeker, seeker.ticket));
                }
                // It has not taken up its turn yet. The last of the offers, if there are others.
                let is_turn =
                    |offer: &Offer| matches!(offer, Offer::Turn(turn) if *turn == asks.number);
                let ticket = rivals.offers.last(is_turn)?;
                (ticket, rivals.waiters.get(ticket)?)
            }
            _ => return None,
        };
        let fits = waiter.mode == mode && heirs.admit(waiter.fair, waiter.arrived);
        fits.then_some((Recipient::Waiter(ticket), ticket))
    }

    /// Returns the options of the handle that a hold is handed off to.
    pub(super) fn options_of(&self, recipient: &Recipient) -> Options {
        let options = self.rivals().and_then(|rivals| match recipient {
            Recipient::Waiter(ticket) => rivals.waiters.get(*ticket).map(|waiter| &waiter.options),
            Recipient::Seeker => rivals.seeker.as_ref().map(|seeker| &seeker.options),
        });
        options.cloned().unwrap_or_default()
    }

    /// Puts the next hold of a chain into its seat, and offers it to the recipient. Returns what completes that with no
    /// lock held.
    pub(in crate::engine) fn hand_off(
        &mut self,
        (seat, recipient): (u64, Recipient),
        (next, offered): (&Arc<Hold>, HandedOff),
        (numbers, times): (&mut u64, Times),
    ) -> Delivery {
        let mut delivery = Delivery::default();
        // The caller still has the hold before, so none is dropped here.
        self.members.change(seat, |member| member.stage = Stage::Holding(Some(Arc::clone(next))));
        let rivals = self.rivals.get_or_insert_default();
        let mut seen = None;
        let turn = match recipient {
            Recipient::Waiter(ticket) => {
                let mut waiter = rivals.waiters.remove(ticket);
                let wake = waiter.as_mut().and_then(|waiter| waiter.wake.take());
                delivery.void.0 = waiter;
                match wake {
                    Some(wake) => {
                        delivery.passed = Some((wake, offered));
                        None
                    }
                    // It has been woken already, maybe for an offer that is void now.
                    None => {
                        delivery.void.1 = rivals.offers.insert(ticket, Offer::Hold(offered));
                        match delivery.void.1 {
                            Some(Offer::Turn(number)) => Some(number),
                            _ => None,
                        }
                    }
                }
            }
            Recipient::Seeker => rivals.seeker.take().map(|seeker| {
                seen = std::mem::replace(&mut rivals.seen, seeker.seen);
                delivery.passed = Some((seeker.pass, offered));
                seeker.number
            }),
        };
        // It asks no more, so the next one does.
        delivery.turn = turn.and_then(|number| self.members.take(number));
        if turn.is_some() {
            (delivery.woken, delivery.removed) = self.advance(numbers, times);
        }
        delivery.removed.extend(seen.map(|seen| Gone::Seen { _gone: seen }));
        delivery
    }

    /// Returns the first waiter that has checked in since `since`, and its ticket.
    pub(in crate::engine) fn first_waiter(&self, since: Instant) -> Option<(u64, &Waiter)> {
        self.rivals()?.waiters.iter().find(|(_, waiter)| waiter.checked_in >= since)
    }
}
