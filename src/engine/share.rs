//! The shares of the handles in one hold.

use super::hold::{Hold, Inner};
use std::collections::HashMap;

/// The share of a handle in a hold: its own leases among all that the hold has. Only a read hold has more than one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Share(u32);

impl Share {
    /// That of the handle that the store granted the hold, or to which it was handed off.
    pub(crate) const FIRST: Self = Self(0);
}

/// The number of leases of each share that has one.
#[derive(Default)]
pub(super) struct Shares {
    counts: HashMap<Share, u32>,
    /// The last number drawn.
    last: u32,
}

impl Inner {
    /// Adds the first lease of a further share to those that the state counts.
    pub(super) fn new_share(&mut self) -> Share {
        let first = self.state.live() - 1;
        let shares = self.shares.get_or_insert_with(|| {
            Box::new(Shares { counts: HashMap::from([(Share::FIRST, first)]), last: 0 })
        });
        shares.last = shares.last.wrapping_add(1);
        let share = Share(shares.last);
        shares.counts.insert(share, 1);
        share
    }

    /// Adds a lease to a share.
    pub(super) fn grow_share(&mut self, share: Share) {
        if let Some(shares) = &mut self.shares {
            *shares.counts.entry(share).or_default() += 1;
        }
    }

    /// Ends a lease of a share.
    pub(super) fn leave_share(&mut self, share: Share) {
        let Some(shares) = &mut self.shares else { return };
        if let Some(count) = shares.counts.get_mut(&share) {
            *count -= 1;
            if *count == 0 {
                shares.counts.remove(&share);
            }
        }
    }

    /// Returns the number of live leases of a share.
    pub(super) fn count_of(&self, share: Share) -> u32 {
        match &self.shares {
            None => self.state.live(),
            Some(shares) => shares.counts.get(&share).copied().unwrap_or_default(),
        }
    }
}

impl Hold {
    /// Returns the number of live leases of a share.
    pub(crate) fn count_of(&self, share: Share) -> u32 {
        self.lock().count_of(share)
    }
}
