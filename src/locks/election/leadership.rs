//! The guard of a leader.

use crate::engine::{LeaderEntry, describe};
use crate::error::Result;
use crate::locks::lease::Lease;
use crate::observe::LeadershipHealth;
use crate::store::contract::metadata::check_value;
use crate::util::panics::run_wakers;
use std::fmt;
use std::ops::Deref;
use tokio_util::sync::CancellationToken;

/// The guard of a leader: a [`Lease`], with the term and the value.
///
/// Dropping it resigns in the background. It can be lost like any lease: its
/// [`cancellation_token`](Lease::cancellation_token) fires before another candidate can lead.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let leases = leasehold::LeaseManager::in_memory();
/// let me = leases.election("scheduler").candidate("10.0.0.7:8080").campaign().await?;
/// me.check()?; // as a lease
/// me.proclaim("10.0.0.7:9090").await?;
/// me.resign().await
/// # }
/// ```
#[must_use = "a leadership that is not kept is resigned at once; bind it: `let _me = ..`, not `let _ = ..`"]
#[clippy::has_significant_drop]
pub struct Leadership {
    lease: Lease,
    /// Fires when the candidate is asked to stop.
    retiring: CancellationToken,
    entry: LeaderEntry,
}

impl Leadership {
    /// Takes over a lease that was just granted, before the candidate gets it.
    pub(super) fn of(lease: Lease) -> Self {
        let (engine, hold) = lease.parts();
        let entry = LeaderEntry::new(&engine.core, &hold);
        Self { lease, retiring: CancellationToken::new(), entry }
    }

    /// Begins the limits of the lease: the candidate gets it.
    pub(super) fn begin(&mut self) {
        self.lease.begin();
    }

    /// Returns the term: the [fencing token](Lease::fence), which is larger than that of each earlier leader.
    ///
    /// Returns `None` if the store has no fencing tokens, and with
    /// [`fencing(false)`](crate::Builder::fencing).
    pub fn term(&self) -> Option<u64> {
        self.lease.fence()
    }

    /// Replaces the value that observers read.
    ///
    /// The store writes it only if this leader still has the name, in one step, so the value of a leader never replaces
    /// that of a later one.
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::ErrorKind::Lost): the leadership is lost; nothing was written.
    /// - [`Invalid`](crate::ErrorKind::Invalid): the value has more than 4096 bytes.
    /// - [`Unavailable`](crate::ErrorKind::Unavailable): the store did not answer. The value may have been written; otherwise
    ///   the next renewals write it, unless another one is proclaimed.
    /// - [`Denied`](crate::ErrorKind::Denied), [`Rejected`](crate::ErrorKind::Rejected): the store refuses to write it.
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the value may or may not be written, as with `Unavailable`. The leadership is not affected.
    pub async fn proclaim(&self, value: impl Into<String>) -> Result<()> {
        tokio::task::coop::consume_budget().await;
        let value = value.into();
        check_value(&value)?;
        let (engine, hold) = self.lease.parts();
        if describe::write_value(&engine.core, &hold, &value).await? {
            return Ok(());
        }
        Err(describe::denied(&engine.core, &hold).await)
    }

    /// Resigns: releases the name, so that the next candidate leads at once. Waits for the store's answer.
    ///
    /// # Errors
    ///
    /// As [`Lease::unlock`].
    ///
    /// # Panics
    ///
    /// As [`Lease::unlock`].
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, the name is released in the background; only the answer is lost.
    #[doc(alias = "step down")]
    pub async fn resign(self) -> Result<()> {
        let Self { lease, entry, .. } = self;
        // It is gone with this call: what waits for the store is no work of the leader.
        drop(entry);
        lease.unlock().await
    }

    /// Returns a token that fires when [`Candidate::until`](super::Candidate::until) asks the candidate to stop. It
    /// leads for the time of [`graceful`](super::Candidate::graceful) after that.
    #[must_use]
    pub fn retiring(&self) -> CancellationToken {
        self.retiring.child_token()
    }

    /// Asks the work to come to its end.
    pub(super) fn retire(&self) {
        run_wakers(|| self.retiring.cancel());
    }

    /// Returns the health of this leadership, without I/O.
    pub fn health(&self) -> LeadershipHealth {
        let (engine, hold) = self.lease.parts();
        describe::leadership(&engine.core, &hold)
    }
}

impl Deref for Leadership {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leadership").field(&self.lease).finish()
    }
}
