//! The options of a handle. They go with each of its acquires into the hold.

use super::core::Core;
use super::state::Terms;
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::DEFAULT_CLASS;
use crate::store::{Keep, Mode};
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// The place in the user's code where a name is acquired, if it is known.
pub(crate) type Caller = Option<&'static Location<'static>>;

/// The longest `lock_delay`. Within it, what a holder has sent has arrived or never will.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// The options of a handle. Without any, it is empty: it allocates nothing and costs one pointer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options(Option<Arc<Set>>);

/// Those of a handle that has none.
pub(crate) static NO_OPTIONS: Options = Options(None);

#[derive(Clone, Debug)]
struct Set {
    min_hold: Option<Duration>,
    lock_delay: Duration,
    label: Option<Arc<str>>,
    class: &'static str,
}

impl Default for Set {
    fn default() -> Self {
        Self { min_hold: None, lock_delay: Duration::ZERO, label: None, class: DEFAULT_CLASS }
    }
}

#[allow(dead_code, reason = "labels and classes are to come")]
impl Options {
    /// Returns the time from the grant for which the name stays closed, even if the hold is released earlier.
    pub(crate) fn min_hold(&self) -> Option<Duration> {
        self.0.as_ref()?.min_hold
    }

    /// Returns the time for which the store keeps the name closed after the time to live of a hold that was not released.
    pub(crate) fn lock_delay(&self) -> Duration {
        self.0.as_ref().map_or(Duration::ZERO, |set| set.lock_delay)
    }

    /// Returns the text that tells a person what the hold is for.
    pub(crate) fn label(&self) -> Option<&Arc<str>> {
        self.0.as_ref()?.label.as_ref()
    }

    /// Returns the class by which holds are counted.
    pub(crate) fn class(&self) -> &'static str {
        self.0.as_ref().map_or(DEFAULT_CLASS, |set| set.class)
    }

    pub(crate) fn set_min_hold(&mut self, min_hold: Duration) {
        self.set().min_hold = Some(min_hold);
    }

    pub(crate) fn set_lock_delay(&mut self, lock_delay: Duration) {
        self.set().lock_delay = lock_delay;
    }

    pub(crate) fn set_label(&mut self, label: Arc<str>) {
        self.set().label = Some(label);
    }

    pub(crate) fn set_class(&mut self, class: &'static str) {
        self.set().class = class;
    }

    /// Returns the options to change. A clone that shares them keeps its own.
    fn set(&mut self) -> &mut Set {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

impl Core {
    /// Refuses options that are out of range, or that the store cannot have.
    pub(super) fn check_options(&self, options: &Options, mode: Mode) -> Result<()> {
        let Some(set) = &options.0 else { return Ok(()) };
        let (min_hold, delay) = (set.min_hold.unwrap_or_default(), set.lock_delay);
        if mode != Mode::Exclusive && !(min_hold.is_zero() && delay.is_zero()) {
            return Err(Error::invalid("only an exclusive lock has a min_hold or a lock_delay"));
        }
        if min_hold > super::timing::LONGEST_TTL {
            return Err(Error::invalid(format!(
                "a min_hold of {min_hold:?} is too long; choose at most 365 days"
            )));
        }
        if delay > LONGEST_DELAY {
            return Err(Error::invalid(format!(
                "a lock_delay of {delay:?} is too long; choose at most 60 s"
            )));
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
    pub(super) fn ttl_of(&self, options: &Options) -> Duration {
        self.delayed_ttl(options.lock_delay())
    }

    /// Returns the time to live to ask for with a delay.
    pub(super) fn delayed_ttl(&self, delay: Duration) -> Duration {
        (self.timing.ttl + delay).min(super::timing::LONGEST_TTL)
    }

    /// Returns the terms of a hold that begins now; `None` for most.
    pub(super) fn terms(
        &self,
        options: &Options,
        now: Instant,
        caller: Caller,
    ) -> Option<Box<Terms>> {
        let (stall, warn) = (self.settings.stall_after, self.settings.warn_held);
        let (min_hold, delay) = (options.min_hold(), options.lock_delay());
        if stall.is_none() && warn.is_none() && min_hold.is_none() && delay.is_zero() {
            return None;
        }
        Some(Box::new(Terms {
            min_until: min_hold.map(|min| now + min),
            delay,
            stall: stall.map(|longest| (longest, now)),
            warn_at: warn.map(|after| now + after),
            began: caller.map(|caller| (now, caller)),
            ..Terms::default()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_take_one_pointer() {
        assert_eq!(size_of::<Options>(), size_of::<usize>());
        assert!(NO_OPTIONS.0.is_none());
    }

    #[test]
    fn options_of_a_clone_change_apart() {
        let mut options = Options::default();
        options.set_class("jobs");
        let mut other = options.clone();
        other.set_label("backup".into());
        other.set_class("nightly");
        assert_eq!((options.class(), options.label()), ("jobs", None));
        assert_eq!(other.class(), "nightly");
        assert_eq!(other.label().map(|label| &**label), Some("backup"));
        assert_eq!(NO_OPTIONS.class(), DEFAULT_CLASS);
    }
}
