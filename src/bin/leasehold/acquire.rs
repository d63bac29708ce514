//! Acquires a name, in the modes that `hold` and `run` share.

use leasehold::{Lease, LeaseManager, Result};
use std::time::{Duration, Instant};

/// How long to wait for a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    Once,
    Until(Instant),
    Forever,
}

impl Limit {
    /// Begins a wait: none at all, for at most so long, or forever.
    pub(crate) fn new(once: bool, wait: Option<Duration>) -> Self {
        match wait {
            _ if once => Self::Once,
            Some(Duration::ZERO) => Self::Once,
            Some(wait) => Instant::now().checked_add(wait).map_or(Self::Forever, Self::Until),
            None => Self::Forever,
        }
    }

    pub(crate) fn left(self) -> Option<Duration> {
        match self {
            Self::Once => Some(Duration::ZERO),
            Self::Until(end) => Some(end.saturating_duration_since(Instant::now())),
            Self::Forever => None,
        }
    }

    pub(crate) fn is_over(self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}

/// Waits in one of the three ways that each kind of lock has.
macro_rules! wait_for {
    ($limit:expr, $lock:ident: $once:ident, $until:ident, $forever:ident) => {
        match $limit {
            $crate::acquire::Limit::Once => $lock.$once().await?,
            $crate::acquire::Limit::Until(_) => {
                $lock.$until($limit.left().unwrap_or_default()).await?
            }
            $crate::acquire::Limit::Forever => Some($lock.$forever().await?),
        }
    };
}
pub(crate) use wait_for;

/// How one process holds a name beside others.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mode {
    Lock,
    Fair,
    Reader,
    Writer,
}

/// Acquires a name. Returns `None` if it was not free in time.
pub(crate) async fn acquire_name(
    leases: &LeaseManager,
    name: &str,
    mode: Mode,
    label: &str,
    limit: Limit,
) -> Result<Option<Lease>> {
    let mut lock = match mode {
        Mode::Reader => {
            let mut lock = leases.rw_lock(name).label(label);
            let lease = wait_for!(limit, lock: try_read, read_timeout, read);
            return Ok(lease.map(|lease| lease.into_lease()));
        }
        Mode::Writer => {
            let mut lock = leases.rw_lock(name).label(label);
            let lease = wait_for!(limit, lock: try_write, write_timeout, write);
            return Ok(lease.map(|lease| lease.into_lease()));
        }
        Mode::Fair => leases.fair_lock(name),
        Mode::Lock => leases.lock(name),
    }
    .label(label);
    Ok(wait_for!(limit, lock: try_lock, lock_timeout, lock))
}
