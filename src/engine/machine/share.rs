//! The shares of the handles in one hold.

use std::collections::HashMap;

/// The share of a handle in a hold: its own leases among all that the hold has. Only a read hold has more than one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Share(u32);

impl Share {
    /// The share of the handle that got the grant or the hand-off.
    pub(crate) const FIRST: Self = Self(0);
}

/// The number of leases of each share that has one.
pub(in crate::engine) struct Shares {
    counts: HashMap<Share, u32>,
    /// The last number drawn.
    last: u32,
}

impl Shares {
    /// Creates the shares of a hold with so many leases, all of the first one.
    pub(in crate::engine) fn new(leases: u32) -> Self {
        Self { counts: HashMap::from([(Share::FIRST, leases)]), last: 0 }
    }

    /// Adds a share with one lease.
    pub(in crate::engine) fn add(&mut self) -> Share {
        self.last = self.last.wrapping_add(1);
        let share = Share(self.last);
        self.counts.insert(share, 1);
        share
    }

    /// Adds a lease to a share.
    pub(in crate::engine) fn grow(&mut self, share: Share) {
        *self.counts.entry(share).or_default() += 1;
    }

    /// Ends a lease of a share.
    pub(in crate::engine) fn leave(&mut self, share: Share) {
        if let Some(count) = self.counts.get_mut(&share) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&share);
            }
        }
    }

    /// Returns the only share that has a lease.
    pub(in crate::engine) fn only(&self) -> Share {
        self.counts.keys().next().copied().unwrap_or_default()
    }

    /// Returns the number of leases of a share.
    pub(in crate::engine) fn count(&self, share: Share) -> u32 {
        self.counts.get(&share).copied().unwrap_or_default()
    }
}
