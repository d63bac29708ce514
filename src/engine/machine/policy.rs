//! Applies the optional limits of a hold. Most holds have none.

use super::hold::{Phase, State};
use super::pulse::Heartbeat;
use super::timing::Timing;
use crate::clock::Instant;
use crate::engine::shared::options::Caller;
use crate::error::{Error, ErrorKind, Loss};
use crate::store::{Keep, Mark};
use std::sync::Arc;
use std::time::Duration;

/// The terms of a hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terms {
    /// The end of `min_hold`; `None` before its caller has the lease.
    pub(crate) min_until: Option<Instant>,
    /// True if `stall_after` and `max_hold` have not begun, because its caller has no lease yet.
    pub(crate) awaits_lease: bool,
    /// That of the call that it was granted to, if it may have to wait for its lease.
    pub(crate) heartbeat: Option<Arc<Heartbeat>>,
    /// The leases that no caller has: it does not have them yet, or they are in a change of the mode.
    pub(crate) ahead: u32,
    /// The time for which the store keeps the name closed beyond T.
    pub(crate) delay: Duration,
    /// The longest time between two reports of progress, and the time of the last one.
    pub(crate) stall: Option<(Duration, Instant)>,
    /// The time at which a warning is due that it is still held.
    pub(crate) warn_at: Option<Instant>,
    /// When it began, and where it was acquired.
    pub(crate) began: Option<(Instant, Caller)>,
    /// The time for which the name stays closed after the release, because the work is done.
    pub(crate) done: Option<Duration>,
}

impl State {
    pub(in crate::engine) fn set_terms(&mut self, terms: Option<Box<Terms>>) {
        if terms.as_ref().is_some_and(|terms| terms.awaits_lease) {
            self.max_until = None;
        }
        self.terms = terms;
    }

    /// Begins `stall_after` and `max_hold`, if they have not begun with the hold.
    pub(in crate::engine) fn begin_limits(
        &mut self,
        now: Instant,
        stall_after: Option<Duration>,
        max_hold: Option<Duration>,
    ) {
        let Some(terms) = self.terms.as_mut().filter(|terms| terms.awaits_lease) else { return };
        terms.awaits_lease = false;
        terms.stall = stall_after.map(|longest| (longest, now));
        self.max_until = max_hold.map(|max| now + max);
    }

    /// Records that no caller has a new lease yet, if its call has a heartbeat. Returns whether it has.
    pub(in crate::engine) fn begin_ahead(&mut self) -> bool {
        let terms = self.terms.as_mut().filter(|terms| terms.heartbeat.is_some());
        terms.map(|terms| terms.ahead += 1).is_some()
    }

    /// Records that a lease is in a change of the mode, so that no caller has it.
    pub(in crate::engine) fn begin_change(&mut self) {
        self.terms.get_or_insert_default().ahead += 1;
    }

    /// Records that a caller has got such a lease, or that it ends next.
    pub(in crate::engine) fn end_ahead(&mut self) {
        if let Some(terms) = self.terms.as_mut() {
            terms.ahead = terms.ahead.saturating_sub(1);
        }
    }

    /// Returns whether the hold is to be renewed: a caller has a lease of it, or a heartbeat watches the call that will return
    /// one. A change of the mode is so short that it needs none, and a future that is not polled keeps nothing.
    pub(super) fn is_kept(&self) -> bool {
        let unused = |terms: &Terms| terms.ahead == self.live && terms.heartbeat.is_none();
        self.live > 0 && !self.terms.as_deref().is_some_and(unused)
    }

    /// Loses the hold for want of a heartbeat.
    pub(super) fn lose_silent(&mut self, now: Instant) {
        if self.believed()
            && let Some(terms) = self.terms.as_mut()
        {
            // No caller has a lease, so there is no use that the delay would wait for.
            terms.delay = Duration::ZERO;
        }
        self.lose(Loss::Stalled, Some(now));
    }

    /// Begins `min_hold`, which ends at `until`, unless an earlier lease of the hold has begun it.
    pub(in crate::engine) fn begin_min_hold(&mut self, until: Instant) {
        self.terms.get_or_insert_default().min_until.get_or_insert(until);
    }

    /// Returns the time for which the store keeps the name closed beyond T.
    pub(in crate::engine) fn delay(&self) -> Duration {
        self.terms.as_ref().map_or(Duration::ZERO, |terms| terms.delay)
    }

    /// Records that the work is done, if the hold is not lost: its release keeps the name closed for `keep`.
    pub(in crate::engine) fn finish(&mut self, timing: &Timing, now: Instant, keep: Duration) {
        self.expire(timing, now);
        if self.believed() {
            self.terms.get_or_insert_default().done = Some(keep);
        }
    }

    /// Returns whether the work is done.
    pub(super) fn is_done(&self) -> bool {
        self.terms.as_ref().is_some_and(|terms| terms.done.is_some())
    }

    /// Returns the mark that a release at `now` leaves.
    pub(in crate::engine) fn mark(&self, timing: &Timing, now: Instant) -> Option<Keep> {
        let done = self.terms.as_ref().and_then(|terms| terms.done);
        // The store counts whole milliseconds; the name must not open earlier.
        let whole =
            |left: Duration| Duration::from_millis(left.as_nanos().div_ceil(1_000_000) as u64);
        match (done, self.min_left(timing, now).map(whole)) {
            (Some(done), left) => Some(Keep::new(Mark::Done, done.max(left.unwrap_or_default()))),
            (None, Some(left)) => Some(Keep::new(Mark::Kept, left)),
            (None, None) => None,
        }
    }

    /// Returns for how long a release at `now` keeps the name closed for `min_hold`; `None` if it does not.
    fn min_left(&self, timing: &Timing, now: Instant) -> Option<Duration> {
        let terms = self.terms.as_ref()?;
        let until = terms.min_until.filter(|until| *until > now)?;
        let left = until.saturating_duration_since(now);
        if terms.delay.is_zero() || !matches!(self.phase, Phase::Lost(_)) {
            return Some(left);
        }
        // The delay is in force, too. A name that is left to expire stays closed until then at least.
        let expires = self.deadline(timing) + terms.delay;
        (until > expires).then(|| left.max(timing.ttl + terms.delay))
    }

    /// Returns whether the terms allow that the next local waiter gets the hold.
    pub(super) fn may_end_early(&self, now: Instant) -> bool {
        self.terms.as_ref().is_none_or(|terms| {
            terms.done.is_none() && terms.min_until.is_none_or(|until| until <= now)
        })
    }

    /// Returns the time at which the hold is lost without a report of progress, or a heartbeat.
    pub(super) fn stalls_at(&self, timing: &Timing) -> Option<Instant> {
        let stall = self.terms.as_ref().and_then(|terms| terms.stall);
        let stalls = stall.map(|(longest, last)| last + longest);
        stalls.into_iter().chain(self.silent_at(timing)).min()
    }

    /// Returns the time at which the hold is lost without a heartbeat of the call that it was granted to.
    pub(super) fn silent_at(&self, timing: &Timing) -> Option<Instant> {
        let terms =
            self.terms.as_ref().filter(|terms| terms.ahead > 0 && terms.ahead == self.live)?;
        Some(terms.heartbeat.as_ref()?.ends_at(timing.ttl))
    }

    /// Returns the time at which the hold is lost if nothing happens before.
    pub(in crate::engine) fn ends_at(&self, timing: &Timing) -> Instant {
        let until = self.believed_until(timing);
        self.stalls_at(timing).map_or(until, |stalls| stalls.min(until))
    }

    /// Records progress.
    pub(in crate::engine) fn report(&mut self, now: Instant) {
        if let Some((_, last)) = self.terms.as_mut().and_then(|terms| terms.stall.as_mut()) {
            *last = now.max(*last);
        }
    }

    /// Returns the time at which a warning is due.
    pub(super) fn warns_at(&self) -> Option<Instant> {
        self.terms.as_ref()?.warn_at
    }

    /// Returns when the hold began, and where, if it has been held for so long that a warning is due. Once only.
    pub(in crate::engine) fn warn(&mut self, now: Instant) -> Option<(Instant, Caller)> {
        let believed = self.believed();
        let terms = self.terms.as_mut()?;
        terms.warn_at.take_if(|at| *at <= now && believed)?;
        terms.began
    }

    /// Gives up a release that is owed, if the name is left to expire: with the last lease, or at the end of the grace.
    pub(super) fn keep_delay(&mut self, timing: &Timing, now: Instant) {
        let due = self.owed.is_some_and(|at| self.live == 0 || at <= now);
        if due && self.leaves_to_expire(timing, now) {
            self.owed = None;
            let message = "the lease was lost while it was in use, so its name stays closed for its lock delay";
            self.release_error = Some(Error::new(ErrorKind::Unavailable, message));
        }
    }

    /// Returns whether a lost hold is left to expire, so that its delay is in force. A release that leaves a mark keeps the
    /// name closed by itself, and for longer.
    pub(super) fn leaves_to_expire(&self, timing: &Timing, now: Instant) -> bool {
        let left = match self.phase {
            Phase::Lost(Loss::Expired) => true,
            Phase::Lost(Loss::MaxHold | Loss::Stalled | Loss::Closed) => {
                self.mark(timing, now).is_none()
            }
            // The key is not there, or is to be deleted by force.
            _ => false,
        };
        left && !self.delay().is_zero()
    }
}
