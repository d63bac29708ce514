//! A hold that rests: its last lease has ended, no call of this process waits, and the store keeps it for a moment.
//!
//! The next call of this process takes it over as a hold that is handed off, without a request. No holder believes in it, and it
//! is not renewed: it is a hold that was offered, whose waiter is still to come. Here is for how long it may be one.
//!
//! # Invariants
//!
//! 1. **Only what may be handed off rests**, and what rests is taken over only as long as it may be handed off: a process that
//!    did not run looks at the clock first.
//! 2. **It ends within the chain**: by the time that is set, and before a hand-off would be refused for its age.
//! 3. **Nothing rests in the way of others.** A hold does not rest while others are known to wait elsewhere, and not any more
//!    in a chain during which another manager has asked for the name.

use crate::clock::Instant;
use std::time::Duration;

/// Who has a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// A call of this process has it.
    Accepted,
    /// It is on its way to a waiter, or back.
    Offered,
    /// No call; it rests until the time of its next renewal, which is not sent.
    Resting,
}

/// How long a hold rests.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Rest {
    /// The time that is set.
    pub(in crate::engine) linger: Duration,
    /// The end of its chain.
    pub(in crate::engine) chain_ends: Instant,
}

impl Rest {
    /// Returns until when a hold rests whose last lease ends at `now` and that is due for renewal at `due`. `None` if no time
    /// is left.
    pub(super) fn until(self, now: Instant, due: Instant) -> Option<Instant> {
        let until = (now + self.linger).min(self.chain_ends).min(due);
        (until > now).then_some(until)
    }
}
