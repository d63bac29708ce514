//! Counts what happens, whether it is observed or not.

use super::event::{EventKind, How, Operation, Refusal};
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Loss};
use crate::util::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The number of seconds for which losses are remembered.
const MINUTE: usize = 60;

/// What a manager has counted since it was made: see [`LeaseManager::stats`](crate::LeaseManager::stats).
///
/// These are the numbers of the [metrics](crate::guide::operations#metrics), as totals. Two fields may disagree by what
/// happened between the reads of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Leases that the store has granted.
    pub granted: u64,
    /// Leases that were handed off within this manager.
    pub handed_off: u64,
    /// Leases of readers that share the hold of another handle.
    pub joined: u64,
    /// Leases that were stolen from their holders.
    pub stolen: u64,
    /// Calls that do not wait, and that found the name held.
    pub busy: u64,
    /// Calls that have waited until their timeout.
    pub timed_out: u64,
    /// Calls that have returned an error.
    pub failed: u64,
    /// Calls whose future was dropped.
    pub dropped: u64,
    /// The time that the calls which got a lease have waited, together.
    pub waited: Duration,
    /// Holds that were released, with a confirmation of the store.
    pub released: u64,
    /// Holds that were left to expire: the store has not confirmed the release, or the lease was forgotten.
    pub not_released: u64,
    /// Holds that were lost, for any reason.
    pub lost: u64,
    /// The time for which the holds that have ended were held, together.
    pub held: Duration,
    /// How often a lease came to be at risk.
    pub at_risk: u64,
    /// How often a lease at risk was renewed in time.
    pub recovered: u64,
    /// Reconnects of the store.
    pub reconnects: u64,
    /// Calls that are waiting now.
    pub waiters: usize,
    /// By the place of the reason in [`Loss::ALL`].
    losses: [u64; Loss::ALL.len()],
}

impl Stats {
    /// Returns the number of holds that were lost for this reason.
    #[must_use]
    pub fn lost_by(&self, cause: Loss) -> u64 {
        self.losses[cause as usize]
    }
}

#[derive(Default)]
pub(crate) struct Counters {
    granted: [AtomicU64; 4],
    refused: [AtomicU64; 4],
    /// In nanoseconds, as `held`.
    waited: AtomicU64,
    released: AtomicU64,
    not_released: AtomicU64,
    losses: [AtomicU64; Loss::ALL.len()],
    held: AtomicU64,
    at_risk: AtomicU64,
    recovered: AtomicU64,
    reconnects: AtomicU64,
    waiters: AtomicUsize,
    at_risk_now: AtomicUsize,
    /// The time without an answer of the store to any request.
    silence: Failing,
    /// The time in which the store has answered, but has refused every acquire in a way that has nothing to do with its name.
    refusal: Failing,
    recent: Mutex<Recent>,
}

/// A time in which something has failed each time.
#[derive(Default)]
struct Failing {
    /// The nanosecond, by the clock, of the first failure; 0 while there is none.
    since: AtomicU64,
    /// The nanosecond of the last failure.
    at: AtomicU64,
}

impl Failing {
    fn failed(&self, now: Instant) {
        let now = now.to_nanos().max(1);
        self.at.store(now, Ordering::Relaxed);
        if read(&self.since) == 0 {
            self.since.store(now, Ordering::Relaxed);
        }
    }

    fn end(&self) {
        if read(&self.since) != 0 {
            self.since.store(0, Ordering::Relaxed);
        }
    }

    /// Returns how long it has lasted; zero if nothing has failed for as long as `recent`. Otherwise a process to which no
    /// work comes, because it does not count as ready, would never see that the store is back.
    fn lasts(&self, now: Instant, recent: Duration) -> Duration {
        let passed =
            |since: &AtomicU64| now.saturating_duration_since(Instant::at_nanos(read(since)));
        match read(&self.since) {
            0 => Duration::ZERO,
            _ if passed(&self.at) > recent => Duration::ZERO,
            _ => passed(&self.since),
        }
    }
}

/// The losses of the last minute, by the second.
struct Recent([(u64, u32); MINUTE]);

impl Default for Recent {
    fn default() -> Self {
        Self([(0, 0); MINUTE])
    }
}

impl Recent {
    fn count(&mut self, now: Instant) {
        let second = now.since_origin().as_secs();
        let slot = &mut self.0[second as usize % MINUTE];
        if slot.0 != second {
            *slot = (second, 0);
        }
        slot.1 = slot.1.saturating_add(1);
    }

    fn total(&self, now: Instant) -> u32 {
        let second = now.since_origin().as_secs();
        let recent = self.0.iter().filter(|slot| second.saturating_sub(slot.0) < MINUTE as u64);
        recent.map(|slot| slot.1).sum()
    }
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Counters {
    /// Counts what happened at `now`.
    pub(crate) fn count(&self, kind: &EventKind, now: Instant) {
        match kind {
            EventKind::Waiting { .. } => _ = self.waiters.fetch_add(1, Ordering::Relaxed),
            EventKind::Granted { waited, how, was_waiting, .. } => {
                let how = match how {
                    How::Store => 0,
                    How::HandedOff => 1,
                    How::Joined => 2,
                    How::Stolen => 3,
                };
                add(&self.granted[how], 1);
                add(&self.waited, nanos(*waited));
                self.ends_wait(*was_waiting);
            }
            EventKind::NotGranted { why, was_waiting, .. } => {
                let why = match why {
                    Refusal::Busy => 0,
                    Refusal::TimedOut => 1,
                    Refusal::Failed(_) => 2,
                    Refusal::Dropped => 3,
                };
                add(&self.refused[why], 1);
                self.ends_wait(*was_waiting);
            }
            EventKind::AtRisk { .. } => add(&self.at_risk, 1),
            EventKind::Recovered => add(&self.recovered, 1),
            EventKind::Lost { cause, held, .. } => {
                add(&self.losses[*cause as usize], 1);
                add(&self.held, nanos(*held));
                // The end of all leases is no failure.
                if *cause != Loss::Closed {
                    self.recent.lock().count(now);
                }
            }
            EventKind::HandedOff { held } => add(&self.held, nanos(*held)),
            EventKind::Released { held } => {
                add(&self.released, 1);
                add(&self.held, nanos(*held));
            }
            EventKind::NotReleased { held, .. } => {
                add(&self.not_released, 1);
                add(&self.held, held.map_or(0, nanos));
            }
            EventKind::Reconnected => add(&self.reconnects, 1),
            _ => {}
        }
    }

    fn ends_wait(&self, was_waiting: bool) {
        if was_waiting {
            self.waiters.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Counts a hold that is at risk now, or is so no more.
    pub(crate) fn risks(&self, was: bool, is: bool) {
        match (was, is) {
            (false, true) => _ = self.at_risk_now.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = self.at_risk_now.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Records an answer of the store, or how the request has failed at `now`.
    ///
    /// A refusal that concerns one name, such as a missing permission, is an answer, and says nothing about other names.
    pub(crate) fn heard(
        &self,
        op: Operation,
        failure: Option<&Error>,
        now: impl FnOnce() -> Instant,
    ) {
        match failure.map(|error| (error.kind(), error.is_for_all_names())) {
            Some((ErrorKind::Unavailable, _) | (_, true)) => return self.silent(now()),
            Some((ErrorKind::Rejected | ErrorKind::Unsupported, _)) if op == Operation::Acquire => {
                self.refusal.failed(now());
            }
            None if op == Operation::Acquire => self.refusal.end(),
            _ => {}
        }
        self.silence.end();
    }

    /// Records that a request has no answer at `now`.
    pub(crate) fn silent(&self, now: Instant) {
        self.silence.failed(now);
    }

    /// Returns the time for which the store has not answered.
    pub(crate) fn silence(&self, now: Instant, recent: Duration) -> Duration {
        self.silence.lasts(now, recent)
    }

    /// Returns the time for which the store has granted no name.
    pub(crate) fn refusal(&self, now: Instant, recent: Duration) -> Duration {
        self.refusal.lasts(now, recent)
    }

    pub(crate) fn at_risk_now(&self) -> usize {
        self.at_risk_now.load(Ordering::Relaxed)
    }

    /// Returns the number of losses in the last minute.
    pub(crate) fn recent_losses(&self, now: Instant) -> u32 {
        self.recent.lock().total(now)
    }

    pub(crate) fn stats(&self) -> Stats {
        let [granted, handed_off, joined, stolen] = self.granted.each_ref().map(read);
        let [busy, timed_out, failed, dropped] = self.refused.each_ref().map(read);
        let losses = self.losses.each_ref().map(read);
        Stats {
            granted,
            handed_off,
            joined,
            stolen,
            busy,
            timed_out,
            failed,
            dropped,
            waited: Duration::from_nanos(read(&self.waited)),
            released: read(&self.released),
            not_released: read(&self.not_released),
            lost: losses.iter().sum(),
            held: Duration::from_nanos(read(&self.held)),
            at_risk: read(&self.at_risk),
            recovered: read(&self.recovered),
            reconnects: read(&self.reconnects),
            waiters: self.waiters.load(Ordering::Relaxed),
            losses,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_the_last_minute_are_forgotten_after_it() {
        let mut recent = Recent::default();
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        assert_eq!(recent.total(at(0)), 0);
        recent.count(at(100));
        recent.count(at(130));
        recent.count(at(130));
        assert_eq!(recent.total(at(159)), 3);
        assert_eq!(recent.total(at(160)), 2);
        recent.count(at(160));
        assert_eq!(recent.total(at(160)), 3);
        assert_eq!(recent.total(at(1_000)), 0);
    }

    #[test]
    fn silence_counts_from_the_first_failure_to_an_answer() {
        let counters = Counters::default();
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let silence = |seconds| counters.silence(at(seconds), Duration::from_secs(30)).as_secs();
        assert_eq!(silence(50), 0);
        counters.silent(at(10));
        counters.silent(at(45));
        assert_eq!(silence(50), 40);
        assert_eq!(silence(76), 0, "nothing has failed for long");
        counters.silent(at(80));
        assert_eq!(silence(81), 71, "it has never come back");
        counters.heard(Operation::Renew, None, || at(82));
        assert_eq!(silence(83), 0);
    }

    #[test]
    fn refusal_of_all_names_counts_until_an_acquire_is_served() {
        use ErrorKind::{Denied, Rejected, Unavailable, Unsupported, WrongType};
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let recent = Duration::from_secs(30);
        let table = [
            (Error::new(Unavailable, ""), (9, 0)),
            (Error::new(Denied, "").for_all_names(), (9, 0)),
            (Error::new(Rejected, ""), (0, 9)),
            (Error::new(Unsupported, ""), (0, 9)),
            (Error::new(Denied, ""), (0, 0)),
            (Error::new(WrongType, ""), (0, 0)),
        ];
        for (error, expected) in table {
            let counters = Counters::default();
            let lasts = || {
                let now = at(10);
                (counters.silence(now, recent).as_secs(), counters.refusal(now, recent).as_secs())
            };
            counters.heard(Operation::Acquire, Some(&error), || at(1));
            assert_eq!(lasts(), expected, "{error:?}");
            // A renewal that is served shows that the store answers, but not that it grants.
            counters.heard(Operation::Renew, None, || at(2));
            assert_eq!(lasts(), (0, expected.1), "{error:?}");
            counters.heard(Operation::Acquire, None, || at(3));
            assert_eq!(lasts(), (0, 0), "{error:?}");
        }
    }
}
