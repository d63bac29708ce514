//! Capabilities of a store.

use super::mode::Mode;
use crate::error::{Error, ErrorKind};

/// The abilities of a store.
///
/// The engine asks once, when a manager is created. For a [mode](Self::supports) or a [line](Self::line) that the store
/// does not have, it returns [`Unsupported`](crate::ErrorKind::Unsupported) before anything is sent. It works without
/// any other missing ability.
///
/// The default store has exclusive locks, fencing tokens in blocks, remaining times, hold counts and wake-ups, and no other ability: a store
/// names what else it does.
///
/// ```
/// use leasehold::store::{Capabilities, Mode};
///
/// let can = Capabilities::default().with_wakeups(false).with_renewal_batch(1);
/// assert!(can.supports(Mode::Exclusive));
/// assert!(!can.supports(Mode::Read));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Grants carry a fencing token.
    pub fencing: bool,
    /// A grant reserves [`Fencing::block`](crate::store::Fencing::block) fencing tokens. Otherwise it has one token,
    /// and its hold is not handed off in memory.
    pub fence_blocks: bool,
    /// How many fencing tokens a grant reserves at most. A store on which they are a number of microseconds must not be
    /// asked for more than pass between two grants, or they run ahead of its clock, and fall back to it when the key is
    /// lost. Beyond these, holders have one as soon as the store's clock has surely passed it, after a grant that
    /// reports that the clock has reached the first (see
    /// [`Acquired::granted_with_fence_reached`](crate::store::Acquired::granted_with_fence_reached)).
    pub longest_fence_block: u32,
    /// [`Acquired::Held`](crate::store::Acquired::Held) and [`HolderInfo`](crate::store::HolderInfo) report the
    /// remaining time.
    pub time_left: bool,
    /// [`Store::subscribe`](crate::store::Store::subscribe) gives wake-ups; without them waiters poll.
    pub wakeups: bool,
    /// Each release of a name, also one by force, wakes all that have subscribed to it, whether they have asked for it
    /// or not. Then the first in line behind a hold of its own process subscribes too, and the hold is renewed at once
    /// when it was forced open elsewhere. Without that it is noticed by the next renewal that is due.
    pub announces: bool,
    /// How many items one [call](crate::store::RenewCall) of a renewal has room for. The engine fills a call up with leases that
    /// are due soon.
    pub renewal_batch: usize,
    /// An acquire can [take a name](crate::store::Acquire::steal) from its holder.
    pub steals: bool,
    /// How the waiters of several managers are ordered, for [`fair_lock`](crate::LeaseManager::fair_lock).
    pub line: Line,
    /// True if a [release](crate::store::Release::keep) can keep a name closed.
    pub keeps: bool,
    /// True if a hold can have another time to live than others, and each [renewal](crate::store::Renewal::ttl) that of its
    /// own.
    pub own_ttl: bool,
    /// True if an acquire can [propose](crate::store::Fencing::proposal) a fencing token without reserving it, and
    /// [`Store::reserve`](crate::store::Store::reserve) reserves one that the caller names. A
    /// [`Quorum`](crate::store::Quorum) has fencing tokens if all its nodes can do that.
    pub reserves: bool,
    /// True if a [release](crate::store::Release::count) records a hold count, which
    /// [`HolderInfo`](crate::store::HolderInfo) then reports. Otherwise the engine sends none, and the count is known to the
    /// process alone that has the hold.
    pub counts: bool,
    /// True if a refusal reports that the holder's manager [lingers](crate::store::HolderId::lingers), and
    /// [`Store::want`](crate::store::Store::want) brings it the question of a manager that waits. Without that no hold rests.
    pub lingers: bool,
    modes: Modes,
    /// Why there are no readers and writers, where the store knows more than that.
    against_read_write: Option<&'static str>,
    /// Why there are no permits, where the store knows more than that.
    against_permits: Option<&'static str>,
}

/// How a store orders the waiters of several managers for an exclusive lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Line {
    /// In no order. A request with an [`Arrival`](crate::store::Arrival) is [`Unsupported`](crate::ErrorKind::Unsupported).
    #[default]
    Unordered,
    /// By the [`Arrival`](crate::store::Arrival) of their requests, for those that have one; see the
    /// [contract](crate::store::Store#lines).
    Arrivals,
    /// By a queue of the store itself, which every waiter enters when it [subscribes](crate::store::Store::subscribe).
    /// The requests of a fair lock are those of an exclusive lock that is not fair.
    Queue,
}

/// One bit for each mode, whatever its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Modes(u8);

impl Modes {
    fn of(mode: Mode) -> Self {
        Self(match mode {
            Mode::Exclusive => 1,
            Mode::Read => 2,
            Mode::Write => 4,
            Mode::Permits { .. } => 8,
        })
    }
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            fencing: true,
            fence_blocks: true,
            longest_fence_block: u32::MAX,
            time_left: true,
            wakeups: true,
            announces: true,
            renewal_batch: 100,
            steals: false,
            line: Line::Unordered,
            keeps: false,
            own_ttl: false,
            reserves: false,
            lingers: false,
            modes: Modes::of(Mode::Exclusive),
            counts: true,
            against_read_write: None,
            against_permits: None,
        }
    }
}

impl Capabilities {
    /// Returns whether the store grants in a mode; of permits, in any number.
    #[must_use]
    pub fn supports(&self, mode: Mode) -> bool {
        self.modes.0 & Modes::of(mode).0 != 0
    }

    /// Adds a mode to those that the store grants in; of permits, in any number.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.modes.0 |= Modes::of(mode).0;
        self
    }

    /// Sets the error of a request for permits.
    pub(crate) fn with_reason_against_permits(self, reason: &'static str) -> Self {
        Self { against_permits: Some(reason), ..self }
    }

    /// Sets the error of a request to read or to write.
    #[cfg(feature = "redis")]
    pub(crate) fn with_reason_against_read_write(self, reason: &'static str) -> Self {
        Self { against_read_write: Some(reason), ..self }
    }

    /// Returns the error of a request in a mode that the store does not support.
    pub(crate) fn unsupported(&self, mode: Mode) -> Error {
        let reason = match mode {
            Mode::Exclusive => None,
            Mode::Read | Mode::Write => self.against_read_write,
            Mode::Permits { .. } => self.against_permits,
        };
        reason
            .map_or_else(|| mode.unsupported(), |reason| Error::new(ErrorKind::Unsupported, reason))
    }

    /// Sets [`fencing`](Self::fencing).
    #[must_use]
    pub fn with_fencing(self, fencing: bool) -> Self {
        Self { fencing, ..self }
    }

    /// Sets [`fence_blocks`](Self::fence_blocks).
    #[must_use]
    pub fn with_fence_blocks(self, fence_blocks: bool) -> Self {
        Self { fence_blocks, ..self }
    }

    /// Sets [`longest_fence_block`](Self::longest_fence_block).
    #[must_use]
    pub fn with_longest_fence_block(self, longest_fence_block: u32) -> Self {
        Self { longest_fence_block, ..self }
    }

    /// Sets [`time_left`](Self::time_left).
    #[must_use]
    pub fn with_time_left(self, time_left: bool) -> Self {
        Self { time_left, ..self }
    }

    /// Sets [`wakeups`](Self::wakeups).
    #[must_use]
    pub fn with_wakeups(self, wakeups: bool) -> Self {
        Self { wakeups, ..self }
    }

    /// Sets [`announces`](Self::announces).
    #[must_use]
    pub fn with_announces(self, announces: bool) -> Self {
        Self { announces, ..self }
    }

    /// Sets [`steals`](Self::steals).
    #[must_use]
    pub fn with_steals(self, steals: bool) -> Self {
        Self { steals, ..self }
    }

    /// Sets [`renewal_batch`](Self::renewal_batch).
    #[must_use]
    pub fn with_renewal_batch(self, renewal_batch: usize) -> Self {
        Self { renewal_batch, ..self }
    }

    /// Sets the [`line`](Self::line).
    #[must_use]
    pub fn with_line(self, line: Line) -> Self {
        Self { line, ..self }
    }

    /// Sets [`keeps`](Self::keeps).
    #[must_use]
    pub fn with_keeps(self, keeps: bool) -> Self {
        Self { keeps, ..self }
    }

    /// Sets [`counts`](Self::counts).
    #[must_use]
    pub fn with_counts(self, counts: bool) -> Self {
        Self { counts, ..self }
    }

    /// Sets [`own_ttl`](Self::own_ttl).
    #[must_use]
    pub fn with_own_ttl(self, own_ttl: bool) -> Self {
        Self { own_ttl, ..self }
    }

    /// Sets [`reserves`](Self::reserves).
    #[must_use]
    pub fn with_reserves(self, reserves: bool) -> Self {
        Self { reserves, ..self }
    }

    /// Sets [`lingers`](Self::lingers).
    #[must_use]
    pub fn with_lingers(self, lingers: bool) -> Self {
        Self { lingers, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHERS: [Mode; 3] = [Mode::Read, Mode::Write, Mode::Permits { size: 3, take: 1 }];

    #[test]
    fn store_has_the_modes_that_it_names_and_no_other() {
        let plain = Capabilities::default();
        assert!(plain.supports(Mode::Exclusive));
        for mode in OTHERS {
            assert!(!plain.supports(mode), "{mode:?}");
            let more = plain.with_mode(mode);
            for other in OTHERS {
                assert_eq!(more.supports(other), other == mode, "{mode:?}, {other:?}");
            }
            assert!(more.supports(Mode::Exclusive));
        }
        let permits = plain.with_mode(Mode::Permits { size: 3, take: 1 });
        assert!(permits.supports(Mode::Permits { size: 7, take: 2 }), "whatever the numbers");
    }
}
