//! The faults that a seed decides.

use super::dice::Dice;
use std::time::Duration;

/// A fault that a seed may choose. Each is also a method of [`World`](crate::testing::World).
///
/// ```
/// use leasehold::testing::{Strike, World};
///
/// // Losses by the network alone: the store forgets nothing.
/// let network = World::seeds(0..20).only([Strike::Cut, Strike::Freeze, Strike::Delay]);
/// # let _ = network;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strike {
    /// [`World::cut`](crate::testing::World::cut), for at most one and a half TTLs
    Cut,
    /// [`World::freeze`](crate::testing::World::freeze), for at most one and a half TTLs
    Freeze,
    /// [`World::delay`](crate::testing::World::delay), by at most a thirtieth of the TTL
    Delay,
    /// [`World::expire`](crate::testing::World::expire), a name that is held
    Expire,
    /// [`World::steal`](crate::testing::World::steal), a name that is held
    Steal,
    /// [`World::flush`](crate::testing::World::flush)
    Flush,
    /// [`World::forget_last_grants`](crate::testing::World::forget_last_grants), those of at most a tenth of the TTL
    ForgetLastGrants,
}

impl Strike {
    /// All of them.
    pub const ALL: [Strike; 7] = [
        Strike::Cut,
        Strike::Freeze,
        Strike::Delay,
        Strike::Expire,
        Strike::Steal,
        Strike::Flush,
        Strike::ForgetLastGrants,
    ];
}

/// A fault with all that the seed has decided of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DrawnStrike {
    Cut { manager: usize, time: Duration },
    Freeze { manager: usize, time: Duration },
    Delay { manager: usize, by: Duration, time: Duration },
    Expire { name: String },
    Steal { name: String },
    Flush,
    ForgetLastGrants { within: Duration },
}

impl DrawnStrike {
    /// Ends within this time.
    pub(super) fn within(mut self, left: Duration) -> Self {
        if let DrawnStrike::Cut { time, .. }
        | DrawnStrike::Freeze { time, .. }
        | DrawnStrike::Delay { time, .. } = &mut self
        {
            *time = left.min(*time);
        }
        self
    }
}

/// Draws the faults of one seed.
#[derive(Debug)]
pub(super) struct Storm {
    dice: Dice,
    strikes: Vec<Strike>,
    /// In milliseconds.
    ttl: u64,
}

impl Storm {
    /// Chooses some of the strikes: with all of them at once, each hides the others.
    pub(super) fn new(mut dice: Dice, allowed: &[Strike], ttl: Duration) -> Self {
        let mut strikes: Vec<Strike> =
            allowed.iter().copied().filter(|_| dice.percent(50)).collect();
        if strikes.is_empty() {
            strikes.extend(dice.pick(allowed));
        }
        let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX / 4);
        Self { dice, strikes, ttl }
    }

    /// Returns the time until the next fault.
    pub(super) fn pause(&mut self) -> Duration {
        self.time(self.ttl / 60, self.ttl / 2)
    }

    /// Returns the next fault, if there is something that it can strike.
    pub(super) fn next(&mut self, managers: usize, names: &[String]) -> Option<DrawnStrike> {
        let ttl = self.ttl;
        let strike = *self.dice.pick(&self.strikes)?;
        let last = managers.saturating_sub(1) as u64;
        let manager = self.dice.between(0, last) as usize;
        let name = self.dice.pick(names).cloned();
        Some(match strike {
            Strike::Cut => DrawnStrike::Cut { manager, time: self.time(1, ttl * 3 / 2) },
            Strike::Freeze => DrawnStrike::Freeze { manager, time: self.time(1, ttl * 3 / 2) },
            Strike::Delay => {
                let by = self.time(1, ttl / 30);
                DrawnStrike::Delay { manager, by, time: self.time(1, ttl) }
            }
            Strike::Expire => DrawnStrike::Expire { name: name? },
            Strike::Steal => DrawnStrike::Steal { name: name? },
            Strike::Flush => DrawnStrike::Flush,
            Strike::ForgetLastGrants => {
                DrawnStrike::ForgetLastGrants { within: self.time(1, ttl / 10) }
            }
        })
    }

    fn time(&mut self, low: u64, high: u64) -> Duration {
        let low = low.max(1);
        Duration::from_millis(self.dice.between(low, high.max(low)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    fn acts(seed: u64, allowed: &[Strike], names: &[String]) -> Vec<Option<DrawnStrike>> {
        let mut storm = Storm::new(Dice::new(seed), allowed, TTL);
        (0..50).map(|_| storm.next(3, names)).collect()
    }

    #[test]
    fn storm_is_decided_by_its_seed_alone() {
        let names = ["a".to_owned(), "b".to_owned()];
        assert_eq!(acts(7, &Strike::ALL, &names), acts(7, &Strike::ALL, &names));
        assert_ne!(acts(7, &Strike::ALL, &names), acts(8, &Strike::ALL, &names));
    }

    #[test]
    fn storm_has_only_what_is_allowed_and_something_of_it() {
        for seed in 0..100 {
            let all = acts(seed, &[Strike::Cut], &[]);
            assert!(
                all.iter().all(|act| matches!(act, Some(DrawnStrike::Cut { manager: 0..3, .. })))
            );
            assert!(acts(seed, &[], &[]).iter().all(Option::is_none));
            let nothing_held = acts(seed, &[Strike::Expire, Strike::Steal], &[]);
            assert!(nothing_held.iter().all(Option::is_none));
        }
    }
}
