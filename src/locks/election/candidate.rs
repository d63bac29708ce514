//! Candidates: they stand for election, once or again and again.
//!
//! # Invariants
//!
//! 1. **A candidate leads once at a time.** The body of a term, and the lease under it, are gone before it stands again.
//! 2. **`lead` ends only on purpose**: by a body that breaks, by its token, by `close`, by bad input, or when it is dropped.
//! 3. **Nothing delays a loss.** The time to come to an end is that of a candidate that still leads.

use super::leadership::Leadership;
use crate::engine::{
    AcquireSpec, CallPulse, Engine, Options, WaitLimit, acquire, describe, setters,
};
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::locks::lease::Lease;
use crate::store::contract::metadata::check_value;
use crate::store::{Mode, Name};
use crate::util::runtime;
use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// The bounds of the pause before a candidate stands again; it doubles with each failure.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// A candidate of an [`Election`](super::Election).
///
/// Candidates of one manager lead in the order in which they stand for election. There is no order between managers,
/// except with ZooKeeper.
#[must_use = "a candidate does not stand before `lead` or `campaign`"]
pub struct Candidate {
    engine: Arc<Engine>,
    name: Result<Name>,
    value: String,
    options: Options,
    pulse: Arc<CallPulse>,
    graceful: Duration,
    until: CancellationToken,
}

/// How a term of a candidate ended.
enum End {
    /// The body wants no more.
    Break,
    /// The body has ended, or the leadership was lost.
    StandAgain,
    /// The candidate was asked to stop.
    Retired,
}

impl Candidate {
    pub(super) fn new(engine: Arc<Engine>, name: Result<Name>, value: String) -> Self {
        let name = name.and_then(|name| check_value(&value).map(|()| name));
        let pulse = Arc::default();
        let mut options = Options::default();
        options.set_pulse(&pulse);
        Self {
            engine,
            name,
            value,
            options,
            pulse,
            graceful: Duration::ZERO,
            until: CancellationToken::new(),
        }
    }

    /// Sets how long the work may go on after [`until`](Self::until) has fired; zero by default.
    ///
    /// The candidate leads during that time, and then the work is dropped. After a loss there is no such time: the work
    /// is dropped at once.
    pub fn graceful(self, graceful: Duration) -> Self {
        Self { graceful, ..self }
    }

    /// Ends [`lead`](Self::lead) when `token` fires, such as at the shutdown of a service.
    ///
    /// A candidate that waits withdraws. If it leads, [`Leadership::retiring`] fires, and it resigns when its work has
    /// ended, or after the time of [`graceful`](Self::graceful).
    pub fn until(self, token: CancellationToken) -> Self {
        Self { until: token, ..self }
    }

    /// Stands for election once, and waits until this candidate leads.
    ///
    /// It may be called again. While the candidate leads, that call waits until the leadership has ended.
    ///
    /// The value is written before it returns. If the store does not answer that, the value follows later, and the
    /// leadership may begin with less than half of its TTL left, or at risk.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`](crate::Lock::lock), and [`Unsupported`](ErrorKind::Unsupported) if the store keeps no value
    /// beside a lock. [`Denied`](ErrorKind::Denied) also if the user may lock, but not write the value.
    /// [`lead`](Self::lead) stands again after every error but [`Closed`](ErrorKind::Closed),
    /// [`Invalid`](ErrorKind::Invalid) and `Unsupported`.
    ///
    /// # Panics
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the candidate withdraws, and a leadership that the store grants to it is resigned in the
    /// background. If it is not polled for a [TTL](crate::Builder::ttl), it loses a leadership that it has been granted, and
    /// stands again when it is polled.
    pub async fn campaign(&mut self) -> Result<Leadership> {
        runtime::need();
        let core = &self.engine.core;
        self.pulse.during(core.clock(), core.timing.ttl, pin!(self.stand())).await
    }

    async fn stand(&self) -> Result<Leadership> {
        let core = &self.engine.core;
        let name = Name::of_handle(&self.name).await?;
        let spec = AcquireSpec::from(Mode::Exclusive).with(&self.options);
        loop {
            // Without the hold of an earlier term: a candidate does not lead twice at once.
            let claim = acquire(core, name, spec, &mut None, WaitLimit::Forever).await?;
            let Some(claim) = claim else { continue };
            let mut me = Leadership::of(Lease::unreturned(&self.engine, claim));
            let (_, hold) = me.parts();
            let leads = match describe::write_value(core, &hold, &self.value).await {
                // The call may have been put aside after that, for so long that it has lost it.
                Ok(true) => me.check().is_ok(),
                // The store has lost it already.
                Ok(false) => {
                    drop(describe::denied(core, &hold).await);
                    false
                }
                // It leads; the value follows at a renewal.
                Err(error) if error.is_unavailable() => me.check().is_ok(),
                Err(error) if error.kind() == ErrorKind::Lost => false,
                Err(error) => return Err(error),
            };
            if leads {
                // Observers hear of it now, so that they find its value.
                describe::report_leader(core, &hold);
                me.begin();
                return Ok(me);
            }
            core.life.check()?;
        }
    }

    /// Stands for election again and again, and runs `body` in each term, until the body returns
    /// [`ControlFlow::Break`].
    ///
    /// `body` gets the leadership. [`ControlFlow::Continue`] resigns and stands again; [`ControlFlow::Break`] resigns
    /// and ends the call. When the leadership is lost, `body` is dropped at once, at its current await, and only then
    /// does the candidate stand again. The same goes for a body that returns after the loss: its output is ignored, and it
    /// is called again in the next term. Put what must end with the leadership into values of the body, and give tasks
    /// that it spawns the [`cancellation_token`](crate::Lease::cancellation_token). Where `lead` itself runs in a
    /// spawned task, write `async move |me|`, and let the body capture owned values, such as a `String` or an `Arc`:
    /// the compiler accepts no body there that captures a reference, not even a `&'static str`.
    ///
    /// **It never ends by itself**: after an outage, a lost lease or a refusal of the store it pauses and stands again.
    /// It ends when the body breaks, when [`until`](Self::until) fires, when the manager is closed, or when it is
    /// dropped.
    ///
    /// # Errors
    ///
    /// - [`Closed`](ErrorKind::Closed): the manager was closed.
    /// - [`Invalid`](ErrorKind::Invalid), [`Unsupported`](ErrorKind::Unsupported): no campaign could ever succeed. Reported
    ///   before the first term.
    ///
    /// # Panics
    ///
    /// As [`campaign`](Self::campaign). A panic of `body` passes through, and the leadership is resigned.
    ///
    /// # Cancel safety
    ///
    /// As cancel safe as `body`, which is dropped at its current await. The leadership is resigned in the background.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let mut terms = 0;
    /// leases.election("scheduler").candidate("10.0.0.7:8080").lead(async |_me| {
    ///     terms += 1;
    ///     if terms < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    /// }).await?;
    /// assert_eq!(terms, 3);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lead<F>(&mut self, mut body: F) -> Result<()>
    where
        F: AsyncFnMut(&Leadership) -> ControlFlow<()>,
    {
        let until = self.until.clone();
        let graceful = self.graceful;
        let mut failures = 0;
        loop {
            let campaign = tokio::select! {
                biased;
                () = until.cancelled() => return Ok(()),
                campaign = self.campaign() => campaign,
            };
            match campaign {
                Ok(me) => {
                    failures = 0;
                    let end = term(&me, body(&me), &until, graceful).await;
                    let released = me.resign().await;
                    self.note(released.err());
                    if !matches!(end, End::StandAgain) {
                        return Ok(());
                    }
                }
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => {
                    failures += 1;
                    self.note(Some(error));
                }
            }
            tokio::select! {
                biased;
                () = until.cancelled() => return Ok(()),
                () = self.engine.core.life.pause(self.pause(failures)) => {}
            }
        }
    }

    /// Returns the pause before the next campaign.
    fn pause(&self, failures: u32) -> Duration {
        let longest = PAUSES.0.saturating_mul(1 << failures.min(10)).min(PAUSES.1);
        longest.mul_f64(0.5 + self.engine.core.jitter() / 2.0)
    }

    /// Traces why it stands again.
    fn note(&self, error: Option<Error>) {
        let Some(error) = error.filter(|error| error.loss() != Some(Loss::Closed)) else { return };
        let name = Name::text_of(&self.name);
        tracing::warn!(name, %error, "the candidate stands again");
    }
}

// After the calls, which a reader looks for first.
impl Candidate {
    setters!(class label lock_delay stall_after on_overrun warn_held);
}

/// Runs the body of one term. It is gone when this returns.
async fn term(
    me: &Leadership,
    body: impl Future<Output = ControlFlow<()>>,
    until: &CancellationToken,
    graceful: Duration,
) -> End {
    let mut work = pin!(me.run(body));
    let ended = tokio::select! {
        biased;
        ended = &mut work => ended,
        () = until.cancelled() => {
            me.retire();
            // Without time it is dropped at its current await.
            let _ = timeout(graceful, work).await;
            return End::Retired;
        }
    };
    match ended {
        Ok(ControlFlow::Break(())) => End::Break,
        Ok(ControlFlow::Continue(())) | Err(_) => End::StandAgain,
    }
}

/// Returns whether no later campaign can succeed.
fn is_final(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Closed | ErrorKind::Invalid | ErrorKind::Unsupported)
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate")
            .field("name", &self.name)
            .field("value", &self.value)
            .finish_non_exhaustive()
    }
}
