//! Acquires a name, in the modes that `hold` and `run` share, and with the wait that `wait` has, too.

use crate::duration;
use crate::exit::Exit;
use clap::Args;
use leasehold::{Lease, LeaseManager, Result};
use std::time::{Duration, Instant};

/// The options for the time to wait.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct WaitArgs {
    /// How long to wait, also for a store that does not answer; without it, forever
    #[arg(short, long, value_name = "TIME", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// Do not wait: ask once
    #[arg(short, long, conflicts_with = "wait")]
    now: bool,
    /// The exit code when the wait has ended and the store has said no
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = Exit::BUSY.0)]
    busy_code: u8,
}

impl WaitArgs {
    /// Begins the wait.
    pub(crate) fn begin(self) -> Limit {
        match self.wait {
            _ if self.now => Limit::Once,
            Some(Duration::ZERO) => Limit::Once,
            Some(wait) => Instant::now().checked_add(wait).map_or(Limit::Forever, Limit::Until),
            None => Limit::Forever,
        }
    }

    pub(crate) fn busy(self) -> Exit {
        Exit(self.busy_code)
    }
}

/// How long to wait for a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    Once,
    Until(Instant),
    Forever,
}

impl Limit {
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

/// The options for the way in which a name is held beside others, which exclude one another.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ModeArgs {
    /// Hold the name as a reader, beside other readers
    #[arg(long, group = "mode")]
    shared: bool,
    /// Hold the name alone, without any of those that hold it with --shared
    ///
    /// Without either, the name is a lock, which is another kind of name.
    #[arg(long, group = "mode")]
    exclusive: bool,
    /// Hold one of SIZE permits of the name
    #[arg(long, group = "mode", value_name = "SIZE")]
    permit: Option<u32>,
    /// Hold one of N slots of the name, which have numbers
    #[arg(long, group = "mode", value_name = "N")]
    slot: Option<u32>,
    /// Get the name in the order of arrival, in all processes
    #[arg(long, group = "mode")]
    fair: bool,
}

impl ModeArgs {
    pub(crate) fn mode(self) -> Mode {
        match self {
            Self { shared: true, .. } => Mode::Reader,
            Self { exclusive: true, .. } => Mode::Writer,
            Self { permit: Some(size), .. } => Mode::Permit(size),
            Self { slot: Some(size), .. } => Mode::Slot(size),
            Self { fair: true, .. } => Mode::Fair,
            _ => Mode::Lock,
        }
    }
}

/// How one process holds a name beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Lock,
    Fair,
    Reader,
    Writer,
    Permit(u32),
    Slot(u32),
}

/// A name that was acquired.
#[derive(Debug)]
pub(crate) struct Acquired {
    pub(crate) lease: Lease,
    /// The number of the slot, if it is one.
    pub(crate) slot: Option<u32>,
}

impl From<Lease> for Acquired {
    fn from(lease: Lease) -> Self {
        Self { lease, slot: None }
    }
}

/// Acquires a name. Returns `None` if it was not free in time.
pub(crate) async fn acquire_name(
    leases: &LeaseManager,
    name: &str,
    mode: Mode,
    label: &str,
    limit: Limit,
) -> Result<Option<Acquired>> {
    let mut lock = match mode {
        Mode::Reader => {
            let mut lock = leases.rw_lock(name).label(label);
            let lease = wait_for!(limit, lock: try_read, read_timeout, read);
            return Ok(lease.map(|lease| lease.into_lease().into()));
        }
        Mode::Writer => {
            let mut lock = leases.rw_lock(name).label(label);
            let lease = wait_for!(limit, lock: try_write, write_timeout, write);
            return Ok(lease.map(|lease| lease.into_lease().into()));
        }
        Mode::Permit(size) => {
            let lock = leases.semaphore(name, size).label(label);
            let permit = wait_for!(limit, lock: try_acquire, acquire_timeout, acquire);
            return Ok(permit.map(|permit| permit.into_lease().into()));
        }
        Mode::Slot(size) => {
            let lock = leases.slots(name, size).label(label);
            let slot = wait_for!(limit, lock: try_take, take_timeout, take);
            return Ok(slot.map(|slot| {
                let index = slot.index();
                Acquired { lease: slot.into_lease(), slot: Some(index) }
            }));
        }
        Mode::Fair => leases.fair_lock(name),
        Mode::Lock => leases.lock(name),
    }
    .label(label);
    Ok(wait_for!(limit, lock: try_lock, lock_timeout, lock).map(Acquired::from))
}
