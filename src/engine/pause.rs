//! How long the first in line stays away after a release that waiters of other processes have heard.
//!
//! A waiter elsewhere needs the way of the message, its own reaction and the way of its request. The first in line here
//! needs no message. Without a pause it would be first each time, however long the other one has waited: measured with
//! Redisson, which reacts 3 ms after the message (6 ms in one of ten), and with a process 0.25 ms away.
//!
//! # Invariants
//!
//! 1. **A pause grows until it is long enough**: twice as long each time that this process was the next holder again
//!    although a waiter elsewhere listens, and a little shorter each time that another holder was seen. If none was seen
//!    after two of the longest, none comes, or it is gone again before the pause ends: the first one follows again.
//! 2. **What costs little is not learned.** After a name was ours for long, a pause of a fiftieth of that time is made in
//!    any case.
//! 3. **About half of the time is ours.** A whole pause is not longer than the time since the last one; where it would be, the
//!    pause is one of a round trip.
//! 4. **A waiter that is away for a moment is not forgotten.** What was learned, and that chains of hand-offs are short,
//!    stays for a while after the last release that was heard.
//! 5. **Bounded.** Names to which nobody elsewhere has listened lately have no entry, and what is old is forgotten.

use crate::clock::Instant;
use crate::store::Name;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

/// For stores that answer at once; the others have to be woken up first.
const SHORTEST: Duration = Duration::from_micros(100);
/// Ten times what one in ten of Redisson's waiters need.
const LONGEST: Duration = Duration::from_millis(50);
/// The share of the time of a name that a waiter farther away may cost, and the most of it.
const MUCH: u32 = 10;
const FARTHEST: Duration = Duration::from_millis(500);
/// For how long a waiter may be away.
const AWAY: Duration = Duration::from_secs(2);
/// The share of the time of a name that costs little.
const LITTLE: u32 = 50;

/// A real release that was heard by waiters elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    /// When its answer came.
    pub(crate) now: Instant,
    pub(crate) round_trip: Duration,
    /// For how long the name was ours.
    pub(crate) ours: Duration,
    /// A number in [0, 1) to keep processes apart.
    pub(crate) jitter: f64,
}

pub(super) struct Pauses {
    names: HashMap<Name, Pause>,
    /// For how long one is kept that does not count any more.
    keep: Duration,
    /// Releases since the old ones were last swept out.
    releases: usize,
}

struct Pause {
    length: Duration,
    /// Until when the next turn is to wait.
    until: Instant,
    /// When the last whole one ended.
    rested: Instant,
    whole: bool,
    /// Another holder was seen since it began.
    seen: bool,
    /// When a waiter elsewhere last heard a release.
    heard: Instant,
    /// How many of the longest ones have shown no other holder.
    fruitless: u32,
}

impl Pauses {
    pub(super) fn new(keep: Duration) -> Self {
        Self { names: HashMap::new(), keep, releases: 0 }
    }

    /// Begins a pause.
    pub(super) fn begin(&mut self, name: &Name, heard: Heard) {
        let Heard { now, round_trip, ours, jitter } = heard;
        self.sweep(now);
        let round_trip = round_trip.clamp(SHORTEST, LONGEST);
        let longest = (ours / MUCH).clamp(LONGEST, FARTHEST);
        let little = (ours / LITTLE).min(LONGEST);
        let jittered = |pause: Duration| now + pause.max(little).mul_f64(1.0 + jitter).min(longest);
        match self.names.entry(name.clone()) {
            Entry::Vacant(place) => {
                let until = jittered(round_trip);
                let (length, rested) = (round_trip, until);
                let (whole, seen, heard) = (true, false, now);
                place.insert(Pause { length, until, rested, whole, seen, heard, fruitless: 0 });
            }
            Entry::Occupied(mut place) => {
                place.get_mut().follow((round_trip.max(little), longest), now, jittered);
            }
        }
    }

    /// Forgets what is old, once in so many releases that it costs each of them little.
    fn sweep(&mut self, now: Instant) {
        self.releases += 1;
        if self.releases > 64.max(self.names.len() / 16) {
            self.releases = 0;
            self.names.retain(|_, pause| pause.until + self.keep > now);
            self.names.shrink_to(64);
        }
    }

    /// Until when the next turn of a name is to wait.
    pub(super) fn not_before(&self, name: &Name, now: Instant) -> Option<Instant> {
        self.get(name).map(|pause| pause.until).filter(|until| *until > now)
    }

    /// Whether a waiter elsewhere heard a release of a name lately.
    pub(super) fn is_heard(&self, name: &Name) -> bool {
        self.get(name).is_some()
    }

    fn get(&self, name: &Name) -> Option<&Pause> {
        if self.names.is_empty() { None } else { self.names.get(name) }
    }

    /// A name is held elsewhere.
    pub(super) fn saw_another(&mut self, name: &Name) {
        if let Some(pause) = self.names.get_mut(name) {
            pause.seen = true;
        }
    }

    /// A release at `now` was heard by nobody elsewhere.
    pub(super) fn unheard(&mut self, name: &Name, now: Instant) {
        if self.names.is_empty() {
            return;
        }
        self.sweep(now);
        if let Entry::Occupied(mut place) = self.names.entry(name.clone()) {
            // Whoever is next says nothing of a waiter that was not there.
            place.get_mut().whole = false;
            if place.get().heard + AWAY < now {
                place.remove();
            }
        }
    }
}

impl Pause {
    fn follow(
        &mut self,
        (shortest, longest): (Duration, Duration),
        now: Instant,
        jittered: impl Fn(Duration) -> Instant,
    ) {
        if self.seen {
            (self.length, self.fruitless) = ((self.length * 7 / 8).max(shortest), 0);
        } else if self.whole && self.length < longest {
            self.length = (self.length.max(shortest) * 2).min(longest);
        } else if self.whole {
            self.fruitless += 1;
            if self.fruitless == 2 {
                (self.length, self.fruitless) = (shortest, 0);
            }
        }
        (self.seen, self.heard) = (false, now);
        self.whole = now.saturating_duration_since(self.rested) >= self.length * 2;
        self.until = jittered(if self.whole { self.length } else { shortest });
        if self.whole {
            self.rested = self.until;
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

    /// The pauses after releases that are a second apart.
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
        // None comes, or it is gone again before the pause ends.
        let last = [4000, 8000, 16_000, 32_000, 50_000, 50_000, 1000, 2000];
        assert_eq!(lengths(&mut pauses, &mut now, 8), last);
    }

    #[test]
    fn releases_that_nobody_hears_end_it_after_a_while() {
        let (mut pauses, mut now) = (Pauses::new(KEEP), Instant::ZERO);
        lengths(&mut pauses, &mut now, 3);
        now = now + AWAY;
        pauses.unheard(&name(), now);
        assert!(pauses.is_heard(&name()));
        assert_eq!(pauses.not_before(&name(), now), None);
        // It is no longer for that.
        assert_eq!(length(&mut pauses, now).as_micros(), 4000);
        now = now + AWAY + Duration::from_millis(1);
        pauses.unheard(&name(), now);
        assert!(!pauses.is_heard(&name()));
        assert_eq!(lengths(&mut pauses, &mut now, 1), [1000]);
    }

    #[test]
    fn half_of_the_time_is_ours_however_short_we_hold() {
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
        // The short ones come on top.
        assert!(away < all * 3 / 5, "{away:?} of {all:?}");
    }

    #[test]
    fn a_pause_is_never_longer_than_the_longest() {
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
    fn pause_is_a_fiftieth_at_least_of_the_time_we_held() {
        let (mut pauses, now) = (Pauses::new(KEEP), Instant::ZERO);
        pauses.begin(&name(), Heard { ours: Duration::from_secs(1), ..heard(now) });
        assert_eq!(pauses.not_before(&name(), now), Some(now + Duration::from_millis(20)));
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let (mut pauses, mut now) = (Pauses::new(KEEP), Instant::ZERO);
        for i in 0..10_000 {
            pauses.begin(&Name::new(&format!("n:{i}")).unwrap(), heard(now));
            // Some ten count at any time.
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
        // Those that count stay.
        pauses.begin(&name(), heard(now));
        for i in 0..200 {
            pauses.begin(&Name::new(&format!("more:{i}")).unwrap(), heard(now));
        }
        assert!(pauses.is_heard(&name()));
    }
}
