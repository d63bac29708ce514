//! What the options of a handle and the settings of the manager ask of a hold.

use super::core::Core;
use super::options::{Caller, Options};
use crate::clock::Instant;
use crate::engine::machine::hold::HoldPolicy;
use crate::engine::machine::mode;
use crate::engine::machine::timing::LONGEST_TTL;
use crate::error::{Error, ErrorKind, Result};
use crate::store::contract::metadata::check_word;
use crate::store::{Keep, Mode};
use std::time::Duration;

/// The longest `lock_delay`. Within it, what a holder has sent has arrived or never will.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// The shortest `stall_after`, which leaves the watchdog the time to see a report.
const SHORTEST_STALL: Duration = Duration::from_millis(10);

/// Refuses a limit on the time between two reports that is too short.
pub(crate) fn check_stall_after(limit: Duration) -> Result<()> {
    if limit >= SHORTEST_STALL {
        return Ok(());
    }
    Err(Error::invalid(format!("a stall_after of {limit:?} is too short; choose at least 10 ms")))
}

impl Core {
    /// Refuses options that are out of range, or that the store cannot have.
    pub(in crate::engine) fn check_options(&self, options: &Options, mode: Mode) -> Result<()> {
        if options.is_fair() {
            self.check_line()?;
        }
        let min_hold = options.min_hold().unwrap_or_default();
        let delay = options.lock_delay();
        if !(mode::can_stay_closed(mode) || min_hold.is_zero() && delay.is_zero()) {
            return Err(Error::invalid("only an exclusive lock has a min_hold or a lock_delay"));
        }
        if min_hold > LONGEST_TTL {
            return Err(Error::invalid(format!(
                "a min_hold of {min_hold:?} is too long; choose at most 365 days"
            )));
        }
        if delay > LONGEST_DELAY {
            return Err(Error::invalid(format!(
                "a lock_delay of {delay:?} is too long; choose at most 60 s"
            )));
        }
        if let Some(limit) = options.stall_after() {
            check_stall_after(limit)?;
        }
        if let Some(label) = options.label() {
            check_word("label", label)?;
        }
        if !min_hold.is_zero() && !self.can.keeps {
            let message = "this store cannot keep a name closed after its release, so it has no min_hold; hold the lease for that time, or use Redis, a quorum of it, or memory";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if !delay.is_zero() && !self.can.own_ttl {
            let message = "on this store all leases live for the same time, so it has no lock_delay; choose a longer ttl instead";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(())
    }

    /// Refuses a store that cannot keep a name closed after its release.
    pub(crate) fn check_keeps(&self) -> Result<()> {
        if self.can.keeps { Ok(()) } else { Err(Keep::unsupported()) }
    }

    /// Returns the time to live to ask for.
    pub(in crate::engine) fn ttl_of(&self, options: &Options) -> Duration {
        self.delayed_ttl(options.lock_delay())
    }

    /// Returns the time to live to ask for with a delay.
    pub(in crate::engine) fn delayed_ttl(&self, delay: Duration) -> Duration {
        self.timing.ttl.saturating_add(delay).min(LONGEST_TTL)
    }

    /// Returns the longest time between two reports of progress.
    pub(super) fn stall_after(&self, options: &Options) -> Option<Duration> {
        options.stall_after().or(self.settings.stall_after)
    }

    /// Returns the policy of a hold that begins now; `None` for most. Its `min_hold` begins with the lease, and so do its
    /// limits if its call has a [pulse](Options::pulse).
    pub(in crate::engine) fn policy(
        &self,
        options: &Options,
        now: Instant,
        caller: Caller,
    ) -> Option<Box<HoldPolicy>> {
        let stall = self.stall_after(options);
        let limited = stall.is_some() || self.settings.max_hold.is_some();
        let pulse = options.pulse().map(|pulse| pulse.last());
        let awaits_lease = limited && pulse.is_some();
        let stall = stall.filter(|_| !awaits_lease);
        let warn = options.warn_held().or(self.settings.warn_held);
        let delay = options.lock_delay();
        if pulse.is_none() && stall.is_none() && warn.is_none() && delay.is_zero() {
            return None;
        }
        Some(Box::new(HoldPolicy {
            awaits_lease,
            pulse,
            delay,
            stall: stall.map(|longest| (longest, now)),
            warn_at: warn.map(|after| now + after),
            began: warn.map(|_| (now, caller)),
            ..HoldPolicy::default()
        }))
    }
}
