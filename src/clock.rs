//! Provides the clock of a [`Store`](crate::store::Store): only for authors of one. It has `now` and `sleep` of the same
//! clock.
//!
//! Deadlines are never taken from the wall clock. On Linux the clock is `CLOCK_BOOTTIME`,
//! which continues while the machine is suspended, as the server's time to live does.
//! Elsewhere it is the monotonic clock of the standard library.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Add;
use std::time::Duration;
use tokio::runtime::{Handle, TryCurrentError};

/// A point in time of one [`Clock`]; instants of different clocks must not be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant {
    /// One more than the nanoseconds since the clock's origin, so that `Option<Instant>` is no larger; enough
    /// for 584 years.
    nanos: NonZeroU64,
}

impl Instant {
    pub(crate) const ZERO: Instant = Instant { nanos: NonZeroU64::MIN };
    pub(crate) const MAX: Instant = Instant { nanos: NonZeroU64::MAX };

    /// Returns the time that is this many nanoseconds after the clock's origin.
    pub(crate) fn at_nanos(nanos: u64) -> Self {
        Self { nanos: Self::ZERO.nanos.saturating_add(nanos) }
    }

    /// Returns the nanoseconds since the clock's origin.
    pub(crate) fn to_nanos(self) -> u64 {
        self.nanos.get() - Self::ZERO.nanos.get()
    }

    /// Returns the time since the clock's origin.
    pub(crate) fn since_origin(self) -> Duration {
        Duration::from_nanos(self.to_nanos())
    }

    /// Returns the time since `earlier`, or zero when `earlier` is later.
    #[must_use]
    pub fn saturating_duration_since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.nanos.get().saturating_sub(earlier.nanos.get()))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        Instant { nanos: self.nanos.saturating_add(nanos(duration)) }
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.since_origin().fmt(f)
    }
}

/// A monotonic clock with a matching sleep.
///
/// ```
/// use leasehold::clock::Clock;
///
/// let clock = Clock::system();
/// let start = clock.now();
/// assert!(clock.now() >= start);
/// ```
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System,
    /// With its origin.
    Tokio(std::time::Instant),
}

impl Clock {
    /// Creates the clock of the system that continues during a suspend: `CLOCK_BOOTTIME` on Linux.
    #[must_use]
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// Creates a clock on tokio's time, which a test can pause and advance. It starts at zero.
    #[must_use]
    pub fn tokio() -> Self {
        Self(Source::Tokio(tokio::time::Instant::now().into_std()))
    }

    pub(crate) fn is_tokio(&self) -> bool {
        matches!(self.0, Source::Tokio(_))
    }

    /// Returns the current time.
    pub fn now(&self) -> Instant {
        match &self.0 {
            Source::System => system::now(),
            Source::Tokio(origin) => {
                let now = if has_tokio() {
                    tokio::time::Instant::now().into_std()
                } else {
                    std::time::Instant::now()
                };
                Instant::ZERO + now.saturating_duration_since(*origin)
            }
        }
    }

    /// Waits until the clock shows `at`.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime, or in one without timers (and, on Linux, without I/O).
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    pub async fn sleep_until(&self, at: Instant) {
        Sleeper::new(self).until(at).await;
    }
}

/// Returns whether this thread can read tokio's clock. While the thread's locals are destroyed, those of tokio may be gone
/// already: its clock then panics if a clock was ever paused in this process. A lease may be dropped as late as that.
fn has_tokio() -> bool {
    /// Is destroyed before tokio's locals, because its constructor uses them.
    struct Known(bool);

    impl Drop for Known {
        fn drop(&mut self) {}
    }

    thread_local! {
        static KNOWN: Known = {
            let gone = |error: TryCurrentError| error.is_thread_local_destroyed();
            Known(!Handle::try_current().is_err_and(gone))
        };
    }
    KNOWN.try_with(|known| known.0).unwrap_or(false)
}

/// Returns whether tokio's clock of the current runtime is paused, or was: it does not show the time of the system.
pub(crate) fn is_paused() -> bool {
    let before = std::time::Instant::now();
    let now = tokio::time::Instant::now().into_std();
    now < before || now > std::time::Instant::now()
}

/// Sleeps many times with one timer, on one runtime only.
pub(crate) struct Sleeper {
    clock: Clock,
    timer: system::Timer,
}

impl Sleeper {
    pub(crate) fn new(clock: &Clock) -> Self {
        Self { clock: clock.clone(), timer: system::Timer::default() }
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) async fn until(&mut self, at: Instant) {
        match &self.clock.0 {
            Source::System => self.timer.sleep_until(at).await,
            Source::Tokio(origin) => {
                tokio::time::sleep_until((*origin + at.since_origin()).into()).await;
            }
        }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use super::Instant;
    use rustix::time::{
        ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec,
        clock_gettime, timerfd_create, timerfd_settime,
    };
    use std::io;
    use std::os::fd::OwnedFd;
    use std::time::Duration;
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    pub(super) fn now() -> Instant {
        let time = clock_gettime(ClockId::Boottime);
        // The kernel keeps both parts in range.
        Instant::at_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    /// A timer of the kernel, which the first sleep creates.
    #[derive(Default)]
    pub(super) struct Timer(Option<AsyncFd<OwnedFd>>);

    impl Timer {
        pub(super) async fn sleep_until(&mut self, at: Instant) {
            // tokio's timers stop during a suspend, and count in milliseconds.
            if self.sleep_by_kernel(at).await.is_err() {
                // No descriptor is left: sleep by tokio's clock, in steps, so that a suspend is
                // noticed soon after it.
                while now() < at {
                    let left = at.saturating_duration_since(now());
                    tokio::time::sleep(left.min(Duration::from_millis(100))).await;
                }
            }
        }

        async fn sleep_by_kernel(&mut self, at: Instant) -> io::Result<()> {
            let timer = match &mut self.0 {
                Some(timer) => timer,
                none => none.insert(create()?),
            };
            let time = at.since_origin();
            let value = Timespec {
                tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
                // Two zeros would disarm the timer.
                tv_nsec: time.subsec_nanos().max(1).into(),
            };
            let never = Timespec { tv_sec: 0, tv_nsec: 0 };
            let spec = Itimerspec { it_interval: never, it_value: value };
            timerfd_settime(timer.get_ref(), TimerfdTimerFlags::ABSTIME, &spec)?;
            // It may be readable because of an earlier sleep that was dropped.
            while now() < at {
                timer.readable().await?.clear_ready();
            }
            Ok(())
        }
    }

    fn create() -> io::Result<AsyncFd<OwnedFd>> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
        // Newer versions of tokio require unsafe code here, because a type might close its descriptor
        // early. An `OwnedFd` does not.
        #[allow(deprecated)]
        AsyncFd::with_interest(timer, Interest::READABLE)
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::Instant;
    use std::sync::OnceLock;

    static ORIGIN: OnceLock<std::time::Instant> = OnceLock::new();

    fn origin() -> std::time::Instant {
        *ORIGIN.get_or_init(std::time::Instant::now)
    }

    pub(super) fn now() -> Instant {
        Instant::ZERO + origin().elapsed()
    }

    #[derive(Default)]
    pub(super) struct Timer;

    impl Timer {
        pub(super) async fn sleep_until(&mut self, at: Instant) {
            tokio::time::sleep_until((origin() + at.since_origin()).into()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn system_clock_sleeps_to_its_own_time() {
        let clock = Clock::system();
        let at = clock.now() + Duration::from_millis(20);
        clock.sleep_until(at).await;
        assert!(clock.now() >= at);
        clock.sleep_until(Instant::ZERO).await;
    }

    #[test]
    fn tokio_clock_can_be_asked_until_the_end_of_a_thread() {
        use std::cell::RefCell;
        use std::panic::catch_unwind;
        use std::sync::mpsc::{Sender, channel};

        struct Last(Clock, Sender<bool>);
        impl Drop for Last {
            fn drop(&mut self) {
                // A panic here would abort the process.
                self.1.send(catch_unwind(|| self.0.now()).is_ok()).unwrap();
            }
        }
        thread_local!(static LAST: RefCell<Option<Last>> = const { RefCell::new(None) });

        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
        // From here on tokio checks for a paused clock.
        runtime().unwrap().block_on(async { tokio::time::pause() });
        // With the clock first used on that thread, and not.
        for used in [true, false] {
            let (told, worked) = channel();
            let clock = Clock::tokio();
            std::thread::spawn(move || {
                LAST.with(|last| drop(last.borrow_mut().take()));
                runtime().unwrap().block_on(async {});
                if used {
                    clock.now();
                }
                LAST.with(|last| *last.borrow_mut() = Some(Last(clock, told)));
            });
            assert!(worked.recv().unwrap(), "used: {used}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tokio_clock_follows_paused_time() {
        let clock = Clock::tokio();
        let start = clock.now();
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(clock.now().saturating_duration_since(start), Duration::from_secs(5));
        clock.sleep_until(start + Duration::from_secs(60)).await;
        assert_eq!(clock.now().saturating_duration_since(start), Duration::from_secs(60));
    }
}
