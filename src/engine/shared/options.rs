//! What users choose: the [`Settings`] of a manager, and the [`Options`] of a handle.
//!
//! The options go with each acquire of the handle into the hold. Where the handle has not set one, the setting of the manager
//! counts. [`setters`] gives a handle the options that it can set.

use super::calls::check_line;
use super::core::Core;
use super::overrun::Overrun;
use super::pulse::CallPulse;
use crate::clock::Instant;
use crate::engine::machine::hold::HoldPolicy;
use crate::engine::machine::mode;
use crate::engine::machine::policy::CallSite;
use crate::engine::machine::timing::LONGEST_TTL;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::DEFAULT_CLASS;
use crate::store::contract::metadata::check_word;
use crate::store::{Fencing, Mode, Name};
use std::sync::Arc;
use std::time::Duration;

/// The longest `lock_delay`. Within it, what a holder has sent has arrived or never will.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// The shortest `stall_after`, which leaves the watchdog the time to see a report.
const SHORTEST_STALL: Duration = Duration::from_millis(10);

/// Returns the class of a name.
type Classify = fn(&str) -> &'static str;

/// What the builder sets for the whole engine, besides T.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) max_hold: Option<Duration>,
    /// The longest time between two reports of progress.
    pub(crate) stall_after: Option<Duration>,
    /// The age of a hold at which it is reported.
    pub(crate) warn_held: Option<Duration>,
    pub(crate) max_poll_interval: Duration,
    /// The maximum number of consecutive hand-offs in memory.
    pub(crate) max_local_handoffs: u32,
    /// For how long a hold rests that no call waits for.
    pub(crate) linger: Option<Duration>,
    pub(crate) fencing: Option<Fencing>,
    /// Returns the class of a name whose handle has none.
    pub(crate) classify: Option<Classify>,
    /// The seed of the jitter, so that a simulation can be repeated.
    #[cfg(feature = "testing")]
    pub(crate) seed: Option<u64>,
}

impl Settings {
    /// Without fencing tokens and hand-offs, for tests.
    #[cfg(test)]
    pub(in crate::engine) const PLAIN: Self = Self {
        max_hold: None,
        stall_after: None,
        warn_held: None,
        max_poll_interval: Duration::from_secs(1),
        max_local_handoffs: 0,
        linger: None,
        fencing: None,
        classify: None,
        #[cfg(feature = "testing")]
        seed: None,
    };

    /// Returns options with the class of the name, if those of its handle have none.
    pub(in crate::engine) fn classified(&self, name: &Name, options: &Options) -> Option<Options> {
        let classify = self.classify.filter(|_| options.class() == DEFAULT_CLASS)?;
        let mut options = options.clone();
        options.set_class(classify(name.as_str()));
        Some(options)
    }

    pub(super) fn seed(&self) -> Option<u64> {
        #[cfg(feature = "testing")]
        return self.seed;
        #[cfg(not(feature = "testing"))]
        None
    }
}

/// The options of a handle. Without any, it is empty: it allocates nothing and costs one pointer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options(Option<Arc<Set>>);

/// Those of a handle that has none.
pub(crate) static NO_OPTIONS: Options = Options(None);

#[derive(Clone, Debug)]
struct Set {
    min_hold: Option<Duration>,
    lock_delay: Duration,
    stall_after: Option<Duration>,
    warn_held: Option<Duration>,
    pulse: Option<Arc<CallPulse>>,
    label: Option<Arc<str>>,
    class: &'static str,
    fair: bool,
    never_rests: bool,
    on_overrun: Option<Overrun>,
}

impl Default for Set {
    fn default() -> Self {
        Self {
            min_hold: None,
            lock_delay: Duration::ZERO,
            stall_after: None,
            warn_held: None,
            pulse: None,
            label: None,
            class: DEFAULT_CLASS,
            fair: false,
            never_rests: false,
            on_overrun: None,
        }
    }
}

/// Gives a handle the setters of some options, with the same documentation for all kinds. The handle has a field `options`.
macro_rules! setters {
    ($($option:ident)+) => { $( $crate::engine::setters!(@$option); )+ };
    (@class) => {
        /// Sets the class of the name: a word for all names of its kind, which metrics and
        /// [events](crate::Event::class) show.
        ///
        /// Otherwise it is that of [`Builder::classify`](crate::Builder::classify), or `all`.
        ///
        /// ```
        /// # let leases = leasehold::LeaseManager::in_memory();
        /// let lock = leases.lock("orders:42").class("order"); // as for all kinds of handles
        /// ```
        #[must_use = "returns the handle with the option set"]
        pub fn class(mut self, class: &'static str) -> Self {
            self.options.set_class(class);
            self
        }
    };
    (@label) => {
        /// Sets a text, for people, that says what the name is held for, at most 256 bytes. The first attempt to
        /// acquire reports a longer one.
        ///
        /// [`holdings`](crate::LeaseManager::holdings) shows it. The holder of an exclusive lock also writes it beside
        /// the lock at its first renewal, with its host and process id, and [`inspect`](crate::LeaseManager::inspect)
        /// reports it; see [`Builder::describe`](crate::Builder::describe). It is as public as the name: do not put a
        /// secret or a person's data into it.
        ///
        /// ```
        /// # let leases = leasehold::LeaseManager::in_memory();
        /// let lock = leases.lock("import").label("import of a.csv"); // as for all kinds of handles
        /// ```
        #[must_use = "returns the handle with the option set"]
        pub fn label(mut self, label: impl AsRef<str>) -> Self {
            self.options.set_label(label.as_ref().into());
            self
        }
    };
    (@min_hold) => {
        /// Sets the shortest time for which the name stays closed after a grant, however early the lease ends; none by
        /// default.
        ///
        /// A release before that leaves a mark under the name, which ends by itself; meanwhile every other caller, and
        /// this handle too, find the name held. So a job of a few milliseconds does not run once more on a replica
        /// whose clock is late. It counts from the time at which the call returns the lease: a call that ends without
        /// one closes nothing. The end of a nested lease does not count. A crash, a loss without a release and
        /// [`forget`](crate::Lease::forget) leave the name to expire as usual, even if that is earlier. ZooKeeper does
        /// not support it: the first attempt to lock returns [`Unsupported`](crate::ErrorKind::Unsupported). At most
        /// 365 days; a longer one is reported by the first attempt, too. See
        /// [`jobs`](crate::guide::jobs#a-shortest-time).
        ///
        /// ```
        /// use std::time::Duration;
        ///
        /// # #[tokio::main(flavor = "current_thread")]
        /// # async fn main() -> leasehold::Result<()> {
        /// # let leases = leasehold::LeaseManager::in_memory();
        /// let mut cron = leases.lock("nightly").min_hold(Duration::from_secs(55));
        /// cron.lock().await?.unlock().await?;
        /// assert!(cron.try_lock().await?.is_none());
        /// # Ok(())
        /// # }
        /// ```
        #[must_use = "returns the handle with the option set"]
        #[doc(alias = "lockAtLeastFor")]
        pub fn min_hold(mut self, min_hold: std::time::Duration) -> Self {
            self.options.set_min_hold(min_hold);
            self
        }
    };
    (@lock_delay) => {
        /// Sets how much longer than the [TTL](crate::Builder::ttl) the name stays closed after a crash or a loss: 0 to 60 s,
        /// 0 by default.
        ///
        /// In this time, writes that the last holder has sent can still arrive. A clean release (an unlock, or a drop
        /// of a lease that is not lost) ends the delay at once. The delay belongs to the grant, so other processes need
        /// not set it. It costs no requests. ZooKeeper does not support it: the first attempt to lock returns
        /// [`Unsupported`](crate::ErrorKind::Unsupported). A value out of range is reported by the first attempt, too.
        /// See [`jobs`](crate::guide::jobs#a-delay-after-a-crash).
        ///
        /// ```
        /// use std::time::Duration;
        ///
        /// # #[tokio::main(flavor = "current_thread")]
        /// # async fn main() -> leasehold::Result<()> {
        /// # let leases = leasehold::LeaseManager::in_memory();
        /// let mut lock = leases.lock("disk").lock_delay(Duration::from_secs(5));
        /// lock.lock().await?.unlock().await
        /// # }
        /// ```
        #[must_use = "returns the handle with the option set"]
        pub fn lock_delay(mut self, delay: std::time::Duration) -> Self {
            self.options.set_lock_delay(delay);
            self
        }
    };
    (@stall_after) => {
        /// Sets the longest time between two reports of [progress](crate::Lease::progress) for this handle, in place of
        /// that of [`Builder::stall_after`](crate::Builder::stall_after): at least 10 ms. The first attempt to acquire
        /// reports a shorter one.
        ///
        /// ```
        /// use std::time::Duration;
        ///
        /// # #[tokio::main(flavor = "current_thread")]
        /// # async fn main() -> leasehold::Result<()> {
        /// # let leases = leasehold::LeaseManager::in_memory();
        /// let lease = leases.lock("import").stall_after(Duration::from_secs(60)).lock().await?;
        /// for file in ["a.csv", "b.csv"] {
        ///     println!("{file}"); // ... import it ...
        ///     lease.progress();
        /// }
        /// lease.unlock().await
        /// # }
        /// ```
        #[must_use = "returns the handle with the option set"]
        pub fn stall_after(mut self, limit: std::time::Duration) -> Self {
            self.options.set_stall_after(limit);
            self
        }
    };
    (@on_overrun) => {
        /// Sets what the process does when a lease of this handle is lost, and is still alive shortly before another process
        /// can have the name, in place of that of [`Builder::on_overrun`](crate::Builder::on_overrun).
        ///
        /// The first attempt to acquire starts the thread that acts, if there is none, and returns
        /// [`Unsupported`](crate::ErrorKind::Unsupported) where the manager has no threads of its own.
        ///
        /// ```no_run
        /// use leasehold::Overrun;
        ///
        /// # #[tokio::main(flavor = "current_thread")]
        /// # async fn main() -> leasehold::Result<()> {
        /// # let leases = leasehold::LeaseManager::connect("redis://localhost").await?;
        /// let lease = leases.lock("disk").on_overrun(Overrun::Abort).lock().await?;
        /// // ... work that may hang in a blocking call ...
        /// lease.unlock().await
        /// # }
        /// ```
        #[must_use = "returns the handle with the option set"]
        pub fn on_overrun(mut self, action: crate::Overrun) -> Self {
            self.options.set_on_overrun(action);
            self
        }
    };
    (@warn_held) => {
        /// Sets the age at which a lease of this handle is reported in the log, once, in place of that of
        /// [`Builder::warn_held`](crate::Builder::warn_held).
        ///
        /// ```
        /// use std::time::Duration;
        ///
        /// # let leases = leasehold::LeaseManager::in_memory();
        /// let lock = leases.lock("import").warn_held(Duration::from_secs(3600));
        /// ```
        #[must_use = "returns the handle with the option set"]
        pub fn warn_held(mut self, age: std::time::Duration) -> Self {
            self.options.set_warn_held(age);
            self
        }
    };
}
pub(crate) use setters;

impl Options {
    /// Returns those of a handle that takes part in the order of the waiters of all processes.
    pub(crate) fn fair() -> Self {
        let mut options = Self::default();
        options.set().fair = true;
        options
    }

    /// Returns whether the handle takes part in the order of the waiters of all processes.
    pub(in crate::engine) fn is_fair(&self) -> bool {
        self.0.as_ref().is_some_and(|set| set.fair)
    }

    /// Returns those of a handle whose holds never rest: others choose by what is taken.
    pub(crate) fn without_rest() -> Self {
        let mut options = Self::default();
        options.set().never_rests = true;
        options
    }

    /// Returns whether a hold may rest. One of a set, or of an election, has a pulse.
    pub(in crate::engine) fn may_rest(&self) -> bool {
        self.0.as_ref().is_none_or(|set| !set.never_rests && set.pulse.is_none())
    }

    /// Returns what the process does if a lease outlives its loss, if it is another action than that of the manager.
    pub(super) fn on_overrun(&self) -> Option<&Overrun> {
        self.0.as_ref()?.on_overrun.as_ref()
    }

    pub(crate) fn set_on_overrun(&mut self, action: Overrun) {
        self.set().on_overrun = Some(action);
    }

    /// Returns the time from the grant for which the name stays closed, even if the hold is released earlier.
    pub(crate) fn min_hold(&self) -> Option<Duration> {
        self.0.as_ref()?.min_hold
    }

    /// Returns the time for which the store keeps the name closed after the time to live of a hold that was not released.
    pub(crate) fn lock_delay(&self) -> Duration {
        self.0.as_ref().map_or(Duration::ZERO, |set| set.lock_delay)
    }

    /// Returns the text that says what the hold is for.
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

    /// Returns the longest time between two reports of progress.
    pub(super) fn stall_after(&self, settings: &Settings) -> Option<Duration> {
        self.0.as_ref().and_then(|set| set.stall_after).or(settings.stall_after)
    }

    /// Returns the age at which a lease is reported, if it is another than that of the manager.
    fn warn_held(&self) -> Option<Duration> {
        self.0.as_ref()?.warn_held
    }

    /// Returns the pulse of its calls, if a caller may get its lease much later than the grant.
    pub(in crate::engine) fn pulse(&self) -> Option<&Arc<CallPulse>> {
        self.0.as_ref()?.pulse.as_ref()
    }

    /// Lets the limits of a hold begin when its caller gets the lease.
    pub(crate) fn set_pulse(&mut self, pulse: &Arc<CallPulse>) {
        self.set().pulse = Some(Arc::clone(pulse));
    }

    pub(crate) fn set_stall_after(&mut self, limit: Duration) {
        self.set().stall_after = Some(limit);
    }

    pub(crate) fn set_warn_held(&mut self, age: Duration) {
        self.set().warn_held = Some(age);
    }

    pub(crate) fn set_label(&mut self, label: Arc<str>) {
        self.set().label = Some(label);
    }

    pub(crate) fn set_class(&mut self, class: &'static str) {
        self.set().class = class;
    }

    /// Refuses options that are out of range, or that the store cannot have.
    pub(in crate::engine) fn check(&self, core: &Core, mode: Mode) -> Result<()> {
        let can = &core.can;
        if self.is_fair() {
            check_line(can)?;
        }
        let min_hold = self.min_hold().unwrap_or_default();
        let delay = self.lock_delay();
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
        if let Some(limit) = self.0.as_ref().and_then(|set| set.stall_after) {
            check_stall_after(limit)?;
        }
        if let Some(label) = self.label() {
            check_word("label", label)?;
        }
        if let Some(action) = self.on_overrun() {
            core.overruns.start(action, core.clock(), core.on_caller)?;
        }
        if !min_hold.is_zero() && !can.keeps {
            let message = "this store cannot keep a name closed after its release, so it has no min_hold; hold the lease for that time, or use Redis, a quorum of it, or memory";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if !delay.is_zero() && !can.own_ttl {
            let message = "on this store all leases live for the same time, so it has no lock_delay; choose a longer ttl instead";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(())
    }

    /// Returns the policy of a hold that begins now; `None` for most. Its `min_hold` begins with the lease, and so do its
    /// limits if its call has a [pulse](Self::pulse).
    pub(in crate::engine) fn policy(
        &self,
        settings: &Settings,
        now: Instant,
        caller: CallSite,
    ) -> Option<Box<HoldPolicy>> {
        let stall = self.stall_after(settings);
        let limited = stall.is_some() || settings.max_hold.is_some();
        let pulse = self.pulse().map(|pulse| pulse.last());
        let awaits_lease = limited && pulse.is_some();
        let stall = stall.filter(|_| !awaits_lease);
        let warn = self.warn_held().or(settings.warn_held);
        let delay = self.lock_delay();
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

    /// Returns the options to change. A clone that shares them keeps its own.
    fn set(&mut self) -> &mut Set {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

/// Refuses a limit on the time between two reports that is too short.
pub(crate) fn check_stall_after(limit: Duration) -> Result<()> {
    if limit >= SHORTEST_STALL {
        return Ok(());
    }
    Err(Error::invalid(format!("a stall_after of {limit:?} is too short; choose at least 10 ms")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_cost_one_pointer() {
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
