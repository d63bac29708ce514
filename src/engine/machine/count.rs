//! The hold count: the leases of each handle, and the record of their number in the store.
//!
//! The count in this process is the truth. The store's is a record, for those who look at it: it is written in the
//! background, absolute, one request of a hold at a time, and nothing waits for it.

use crate::error::Loss;
use std::collections::HashMap;

/// Why a handle cannot enter its hold again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoEntry {
    /// Its mode is being changed; ask again after a change.
    Busy,
    /// The hold is lost while older leases are alive.
    Lost(Loss),
    /// Nothing is left of the hold; acquire a new one.
    Over,
}

/// Whose record has ended: that of this hold, of one before it in the chain, or of another mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorder {
    Same,
    /// One that was handed off since.
    Before,
    /// One of another mode.
    OtherMode,
}

/// The count in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recorded {
    Known(u32),
    /// A record of this count has failed. It is not repeated.
    Tried(u32),
    Unknown,
    /// 1, whatever the number of leases: a read hold.
    One,
}

/// The record that is under way. There is at most one for a holder id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Recording {
    #[default]
    Idle,
    /// It is submitted, and reads the count when it is sent.
    Queued,
    InFlight(u32),
}

/// The record of the count in the store.
#[derive(Debug)]
pub(super) struct CountRecord {
    recorded: Recorded,
    recording: Recording,
}

impl CountRecord {
    /// That of a new grant.
    pub(super) const GRANTED: Self =
        Self { recorded: Recorded::Known(1), recording: Recording::Idle };

    /// Makes it the record of a read hold, which handles share: the store counts one lease.
    pub(super) fn share(&mut self) {
        self.recorded = Recorded::One;
    }

    /// Returns whether it is that of a read hold.
    pub(super) fn is_shared(&self) -> bool {
        self.recorded == Recorded::One
    }

    /// Returns the record of the next hold of the same holder id, which goes on with what is under way.
    pub(super) fn hand_off(&mut self) -> Self {
        let recorded = match self.recorded {
            // What has failed is tried again.
            Recorded::Tried(_) => Recorded::Unknown,
            recorded => recorded,
        };
        Self { recorded, recording: std::mem::take(&mut self.recording) }
    }

    /// Returns the record of the hold of another mode with one lease, which goes on with what is under way.
    pub(super) fn change_mode(&mut self) -> Self {
        Self { recording: std::mem::take(&mut self.recording), ..Self::GRANTED }
    }

    /// Returns whether this count needs no further record.
    pub(super) fn needs_no_record(&self, count: u32) -> bool {
        match self.recorded {
            Recorded::Known(recorded) | Recorded::Tried(recorded) => recorded == count,
            Recorded::Unknown => false,
            Recorded::One => true,
        }
    }

    /// Returns whether a record is submitted or in flight.
    pub(super) fn is_under_way(&self) -> bool {
        self.recording != Recording::Idle
    }

    /// Submits a record that is needed, unless one is under way. Returns whether it did.
    pub(super) fn queue_if_idle(&mut self, needs_one: bool) -> bool {
        let queues = needs_one && !self.is_under_way();
        if queues {
            self.recording = Recording::Queued;
        }
        queues
    }

    /// Begins the record that was submitted, with this count, or ends it without one. Returns the count.
    pub(super) fn begin(&mut self, count: Option<u32>) -> Option<u32> {
        self.recording = count.map_or(Recording::Idle, Recording::InFlight);
        count
    }

    /// Submits the record again: its task has ended halfway.
    pub(super) fn requeue(&mut self) {
        if let Recording::InFlight(_) = self.recording
            && !self.is_shared()
        {
            self.recorded = Recorded::Unknown;
        }
        self.recording = Recording::Queued;
    }

    /// Ends a request, and submits the record again, which goes on until the store has the count. Returns the count that the
    /// request had, or `None` if none was in flight.
    pub(super) fn end(&mut self) -> Option<u32> {
        let Recording::InFlight(count) = self.recording else { return None };
        self.recording = Recording::Queued;
        Some(count)
    }

    /// Records whether the store has this count now.
    pub(super) fn set(&mut self, count: u32, is_known: bool) {
        self.recorded = if is_known { Recorded::Known(count) } else { Recorded::Tried(count) };
    }
}

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
