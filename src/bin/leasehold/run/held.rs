//! Acquires the names, in any mode, and releases them.

use super::Run;
use super::clock::Moment;
use crate::acquire::{Acquired, Limit, acquire_name, wait_for};
use crate::exit::Failure;
use crate::hold::{described, say_why};
use crate::outage::Outage;
use crate::output::say;
use crate::release::unconfirmed;
use leasehold::{Lease, LeaseManager, Loss, MultiLease, Result};
use std::convert::Infallible;
use std::pin::Pin;

/// The names, as this process has them.
#[derive(Debug)]
pub(super) enum Held {
    One(Acquired),
    Set(MultiLease),
}

/// A name, and what a resource or a log may want to know of its lease.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) fence: Option<u64>,
    pub(super) token: String,
}

impl Entry {
    pub(super) fn new(name: &str, lease: &Lease) -> Self {
        let token = lease.holder_id().to_string();
        Self { name: name.to_owned(), fence: lease.fence(), token }
    }
}

impl Held {
    /// Returns the names in the order of the command line.
    pub(super) fn entries(&self, names: &[String]) -> Vec<Entry> {
        match self {
            // The lease of a slot has a longer name.
            Self::One(Acquired { lease, .. }) => {
                names.first().map(|name| Entry::new(name, lease)).into_iter().collect()
            }
            Self::Set(lease) => {
                let find = |name: &String| lease.leases().find(|lease| lease.name() == name);
                names.iter().filter_map(|name| Some(Entry::new(name, find(name)?))).collect()
            }
        }
    }

    pub(super) fn slot(&self) -> Option<u32> {
        match self {
            Self::One(one) => one.slot,
            Self::Set(_) => None,
        }
    }

    /// Returns until when the names may be relied on, without a further renewal.
    pub(super) fn stop(&self) -> Moment {
        Moment::by(|| match self {
            Self::One(Acquired { lease, .. }) => lease.remaining(),
            Self::Set(lease) => lease.remaining(),
        })
    }

    pub(super) fn lost(&self) -> Pin<Box<dyn Future<Output = Loss> + Send>> {
        match self {
            Self::One(Acquired { lease, .. }) => Box::pin(lease.lost()),
            Self::Set(lease) => Box::pin(lease.lost()),
        }
    }

    /// Shows others which program it is.
    pub(super) async fn described(&self) -> Infallible {
        match self {
            Self::One(Acquired { lease, .. }) => described(lease).await,
            Self::Set(set) => {
                for lease in set.leases() {
                    let _ = lease.describe_now().await;
                }
                std::future::pending().await
            }
        }
    }

    /// Says who has taken the names away, and why.
    pub(super) async fn say_why(&self) {
        match self {
            Self::One(Acquired { lease, .. }) => say_why(lease).await,
            Self::Set(set) => {
                for lease in set.leases() {
                    say_why(lease).await;
                }
            }
        }
    }

    pub(super) async fn unlock(self) -> Result<()> {
        match self {
            Self::One(Acquired { lease, .. }) => lease.unlock().await,
            Self::Set(lease) => lease.unlock().await,
        }
    }
}

/// Releases what this process has, and closes the manager, which tries again what was not confirmed.
pub(super) async fn release(
    unlock: impl Future<Output = Result<()>>,
    leases: &LeaseManager,
    is_verbose: bool,
) {
    if let Err(error) = unlock.await
        && is_verbose
    {
        say(&format!("the release failed: {error}"));
    }
    close(leases).await;
}

/// Closes a manager, and says what follows if a release was not confirmed.
pub(super) async fn close(leases: &LeaseManager) {
    if let Err(error) = leases.close().await {
        say(&unconfirmed(&error));
    }
}

/// Takes the names. Returns `None` if they were not free in time.
pub(super) async fn acquire(
    run: &Run,
    leases: &LeaseManager,
    limit: Limit,
) -> Result<Option<Held>, Failure> {
    let outage = Outage::new(limit).fails_fast(run.fail_fast);
    outage.wait_out(async || Ok(ask(run, leases, limit).await?)).await
}

async fn ask(run: &Run, leases: &LeaseManager, limit: Limit) -> Result<Option<Held>> {
    let label = run.program.label();
    let name = run.names.first().map(String::as_str).unwrap_or_default();
    // The first attempt shows whether the store answers at all.
    if run.fail_fast
        && !matches!(limit, Limit::Once)
        && let Some(held) = Box::pin(ask(run, leases, Limit::Once)).await?
    {
        return Ok(Some(held));
    }
    if run.names.len() > 1 {
        let mut lock = leases.multi_lock(&run.names)?.label(label);
        return Ok(wait_for!(limit, lock: try_lock, lock_timeout, lock).map(Held::Set));
    }
    Ok(acquire_name(leases, name, run.mode.mode(), &label, limit).await?.map(Held::One))
}
