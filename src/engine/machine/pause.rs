//! The pause of the first local waiter after a release that waiters of other processes have heard.
//!
//! A waiter elsewhere needs time for the message, for its reaction and for its request. The first
//! local waiter needs no message. Without a pause it would be first each time, however long the
//! other one has waited: measured with Redisson, which reacts 3 ms after the message (6 ms in one
//! of ten), and with a process 0.25 ms away.
//!
//! # Invariants
//!
//! 1. **A pause grows until it is long enough.** It doubles each time that this process was the
//!    next holder again although a waiter elsewhere listens, and shrinks a little each time that
//!    another holder was seen. If two of the longest pauses show no other holder, none comes, or it
//!    is gone again before the pause ends: the pauses start again from the shortest.
//! 2. **A cheap pause is not learned.** After this process held a name for long, a pause of a
//!    fiftieth of that time is made in any case.
//! 3. **About half of the time is ours.** A full pause comes when the time since the last one is a
//!    third longer than itself, as short pauses are part of that time; otherwise the pause is one
//!    round trip. A waiter elsewhere that listens gets a full pause within `LONGEST` and a third.
//! 4. **A waiter that is away for a moment is not forgotten.** The learned length, and the limit on
//!    chains of hand-offs, stay for a while after the last release that was heard.
//! 5. **Bounded.** Names without recent listeners elsewhere have no entry, and old entries are
//!    removed.

use crate::clock::Instant;
use crate::store::{Name, NameMap};
use crate::util::reached::Rare;
use std::collections::hash_map::Entry;
use std::time::Duration;

/// The shortest pause, for stores that answer at once.
const SHORTEST: Duration = Duration::from_micros(100);
/// The longest pause after a short hold: eight times what the slowest tenth of Redisson's waiters need.
const LONGEST: Duration = Duration::from_millis(50);
/// A waiter farther away may cost one part in `OURS_PER_LONGEST_PAUSE` of the time a name was held, up to `FARTHEST`.
const OURS_PER_LONGEST_PAUSE: u32 = 10;
const FARTHEST: Duration = Duration::from_millis(500);
/// The time for which a waiter may be away.
const AWAY: Duration = Duration::from_secs(2);
/// A pause of one part in `OURS_PER_CHEAP_PAUSE` of the time a name was held is cheap.
const OURS_PER_CHEAP_PAUSE: u32 = 50;

/// A release in the store that waiters elsewhere have heard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    /// The time of its answer.
    pub(crate) now: Instant,
    pub(crate) round_trip: Duration,
    /// The time for which this process held the name.
    pub(crate) ours: Duration,
    /// A number in [0, 1) that keeps processes apart.
    pub(crate) jitter: f64,
}

/// The pauses of all names that waiters elsewhere have heard released lately.
pub(in crate::engine) struct Pauses {
    names: NameMap<Pause>,
    /// The time for which an expired entry is kept.
    keep: Duration,
    /// The number of releases since old entries were last removed.
    releases: usize,
}

struct Pause {
    length: Duration,
    /// The time until which the next turn waits.
    until: Instant,
    /// The end of the last full pause.
    last_full_end: Instant,
    /// True if the last pause was a full one and a waiter elsewhere was there.
    was_full: bool,
    /// True if another holder was seen since the pause began.
    seen: bool,
    /// The time at which a waiter elsewhere last heard a release.
    heard: Instant,
    /// The number of longest pauses in a row that showed no other holder.
    fruitless: u32,
}

impl Pauses {
    pub(in crate::engine) fn new(keep: Duration) -> Self {
        Self { names: NameMap::default(), keep, releases: 0 }
    }

    /// Begins a pause.
    pub(in crate::engine) fn begin(&mut self, name: &Name, heard: Heard) {
        let Heard { now, round_trip, ours, jitter } = heard;
        self.prune(now);
        let round_trip = round_trip.clamp(SHORTEST, LONGEST);
        let longest = (ours / OURS_PER_LONGEST_PAUSE).clamp(LONGEST, FARTHEST);
        let little = (ours / OURS_PER_CHEAP_PAUSE).min(LONGEST);
        let jittered = |pause: Duration| now + pause.max(little).mul_f64(1.0 + jitter).min(longest);
        match self.names.entry(name.clone()) {
            Entry::Vacant(entry) => {
                let until = jittered(round_trip);
                entry.insert(Pause {
                    length: round_trip,
                    until,
                    last_full_end: until,
                    was_full: true,
                    seen: false,
                    heard: now,
                    fruitless: 0,
                });
            }
            Entry::Occupied(mut entry) => {
                entry.get_mut().follow(round_trip.max(little), longest, now, jittered);
            }
        }
    }

    /// Removes old entries, at intervals that make the cost per release small.
    fn prune(&mut self, now: Instant) {
        self.releases += 1;
        if self.releases > 64.max(self.names.len() / 16) {
            self.releases = 0;
            self.names.retain(|_, pause| pause.until + self.keep > now);
            self.names.shrink_to(64);
        }
    }

    /// Returns the time until which the next turn of a name waits, if that is after `now`.
    pub(in crate::engine) fn not_before(&self, name: &Name, now: Instant) -> Option<Instant> {
        self.get(name).map(|pause| pause.until).filter(|until| *until > now)
    }

    /// Returns whether a waiter elsewhere heard a release of a name lately.
    pub(in crate::engine) fn is_heard(&self, name: &Name) -> bool {
        self.get(name).is_some()
    }

    fn get(&self, name: &Name) -> Option<&Pause> {
        if self.names.is_empty() { None } else { self.names.get(name) }
    }

    /// Records that a name is held elsewhere.
    pub(in crate::engine) fn saw_another(&mut self, name: &Name) {
        if let Some(pause) = self.names.get_mut(name) {
            pause.seen = true;
        }
    }

    /// Records that no waiter elsewhere heard a release at `now`.
    pub(in crate::engine) fn unheard(&mut self, name: &Name, now: Instant) {
        if self.names.is_empty() {
            return;
        }
        self.prune(now);
        if let Entry::Occupied(mut entry) = self.names.entry(name.clone()) {
            // No waiter was there, so the next holder is no evidence about one.
            entry.get_mut().was_full = false;
            if entry.get().heard + AWAY < now {
                entry.remove();
            }
        }
    }
}

impl Pause {
    /// Sets the length of the next pause by the outcome of the last one.
    fn follow(
        &mut self,
        shortest: Duration,
        longest: Duration,
        now: Instant,
        jittered: impl Fn(Duration) -> Instant,
    ) {
        if self.seen {
            (self.length, self.fruitless) = ((self.length * 7 / 8).max(shortest), 0);
        } else if self.was_full && self.length < longest {
            self.length = (self.length.max(shortest) * 2).min(longest);
            Rare::PauseAtItsBound.reached_if(|| self.length == longest);
        } else if self.was_full {
            self.fruitless += 1;
            if self.fruitless == 2 {
                Rare::PauseForNothing.reached();
                (self.length, self.fruitless) = (shortest, 0);
            }
        }
        (self.seen, self.heard) = (false, now);
        self.until = jittered(self.length);
        let full = self.until.saturating_duration_since(now);
        self.was_full = now.saturating_duration_since(self.last_full_end) >= full * 4 / 3;
        if self.was_full {
            self.last_full_end = self.until;
        } else {
            self.until = jittered(shortest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_millis(1);
    const KEEP: Duration = Duration::from_secs(1);

    fn name() -> Name {
        Name::new("n").unwrap()
    }

    fn heard(now: Instant) -> Heard {
        Heard { now, round_trip: ROUND_TRIP, ours: Duration::ZERO, jitter: 0.0 }
    }

    fn length(pauses: &mut Pauses, now: Instant) -> Duration {
        pauses.begin(&name(), heard(now));
        pauses.not_before(&name(), now).unwrap().saturating_duration_since(now)
    }

    /// Returns the pauses after releases that are a second apart.
    fn lengths(pauses: &mut Pauses, now: &mut Instant, count: u32) -> Vec<u128> {
        let mut next = || {
            *now = *now + Duration::from_secs(1);
            length(pauses, *now).as_micros()
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn pause_grows_until_another_holder_was_seen_then_shrinks() {
        let (mut pauses, mut now) = (Pauses::new(KEEP), Instant::ZERO);
        assert_eq!(lengths(&mut pauses, &mut now, 5), [1000, 2000, 4000, 8000, 16_000]);
        pauses.saw_another(&name());
        assert_eq!(lengths(&mut pauses, &mut now, 1), [14_000]);
        for _ in 0..30 {
            pauses.saw_another(&name());
            lengths(&mut pauses, &mut now, 1);
        }
        pauses.saw_another(&name());
        assert_eq!(lengths(&mut pauses, &mut now, 2), [1000, 2000]);
        // No other holder comes, or it is gone again before the pause ends.
        let last = [4000, 8000, 16_000, 32_000, 50_000, 50_000, 1000, 2000];
        assert_eq!(lengths(&mut pauses, &mut now, 8), last);
    }

    #[test]
    fn pause_ends_a_while_after_releases_are_no_longer_heard() {
        let (mut pauses, mut now) = (Pauses::new(KEEP), Instant::ZERO);
        lengths(&mut pauses, &mut now, 3);
        now = now + AWAY;
        pauses.unheard(&name(), now);
        assert!(pauses.is_heard(&name()));
        assert_eq!(pauses.not_before(&name(), now), None);
        // The pause is not longer for that.
        assert_eq!(length(&mut pauses, now).as_micros(), 4000);
        now = now + AWAY + Duration::from_millis(1);
        pauses.unheard(&name(), now);
        assert!(!pauses.is_heard(&name()));
        assert_eq!(lengths(&mut pauses, &mut now, 1), [1000]);
    }

    #[test]
    fn pauses_are_about_half_of_the_time_however_short_the_holds() {
        let (mut pauses, mut now) = (Pauses::new(KEEP), Instant::ZERO);
        let (mut away, mut longest) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..1000 {
            now = now + Duration::from_millis(2);
            let pause = length(&mut pauses, now);
            (away, longest) = (away + pause, longest.max(pause));
            now = now + pause;
        }
        assert_eq!(longest, LONGEST);
        let all = now.saturating_duration_since(Instant::ZERO);
        // The short pauses come on top.
        assert!(away < all * 3 / 5, "{away:?} of {all:?}");
    }

    #[test]
    fn next_full_pause_comes_soon_after_the_longest_one() {
        let (mut pauses, mut now) = (Pauses::new(KEEP), Instant::ZERO);
        let longest = LONGEST.as_micros();
        assert_eq!(lengths(&mut pauses, &mut now, 7).last(), Some(&longest));
        let (end, between) = (now + LONGEST, LONGEST * 4 / 3);
        assert_eq!(length(&mut pauses, end + between.mul_f64(0.99)), ROUND_TRIP);
        assert_eq!(length(&mut pauses, end + between), LONGEST);
    }

    #[test]
    fn pause_is_never_longer_than_the_longest() {
        let (mut pauses, now) = (Pauses::new(KEEP), Instant::ZERO);
        let second = Duration::from_secs(1);
        let far = Heard { now, round_trip: second, ours: 60 * second, jitter: 0.9 };
        pauses.begin(&name(), far);
        assert_eq!(pauses.not_before(&name(), now), Some(now + second / 20 * 19 / 10));
        let far = Heard { ours: second / 10, ..far };
        pauses.begin(&Name::new("m").unwrap(), far);
        assert_eq!(pauses.not_before(&Name::new("m").unwrap(), now), Some(now + LONGEST));
    }

    #[test]
    fn pause_is_at_least_a_fiftieth_of_the_time_held() {
        let (mut pauses, now) = (Pauses::new(KEEP), Instant::ZERO);
        pauses.begin(&name(), Heard { ours: Duration::from_secs(1), ..heard(now) });
        assert_eq!(pauses.not_before(&name(), now), Some(now + Duration::from_millis(20)));
    }

    #[test]
    fn pauses_that_are_old_are_removed() {
        let (mut pauses, mut now) = (Pauses::new(KEEP), Instant::ZERO);
        for i in 0..10_000 {
            pauses.begin(&Name::new(&format!("n:{i}")).unwrap(), heard(now));
            // About ten entries count at any time.
            now = now + KEEP / 10;
            assert!(pauses.names.len() <= 80, "{i}");
        }
        for i in 0..10_000 {
            pauses.begin(&Name::new(&format!("burst:{i}")).unwrap(), heard(now));
        }
        now = now + 2 * KEEP;
        for _ in 0..1000 {
            pauses.unheard(&name(), now);
        }
        assert!(pauses.names.capacity() <= 128, "{}", pauses.names.capacity());
        for i in 0..10 {
            pauses.begin(&Name::new(&format!("o:{i}")).unwrap(), heard(now));
        }
        // Entries that count stay.
        pauses.begin(&name(), heard(now));
        for i in 0..200 {
            pauses.begin(&Name::new(&format!("more:{i}")).unwrap(), heard(now));
        }
        assert!(pauses.is_heard(&name()));
    }
}
