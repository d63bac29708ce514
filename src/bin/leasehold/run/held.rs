//! Takes the names, in whatever mode, and releases them.

use super::Run;
use super::clock::Moment;
use crate::connection::Connection;
use crate::exit::Failure;
use crate::hold::{described, say_why};
use crate::output::say;
use leasehold::{Builder, ErrorKind, Lease, LeaseManager, Loss, MultiLease, Result};
use std::convert::Infallible;
use std::pin::Pin;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// The time from one attempt to reach the store to the next.
pub(super) const PAUSE: Duration = Duration::from_millis(500);

/// How long to wait for the names.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    Once,
    Until(Instant),
    Forever,
}

impl Limit {
    pub(super) fn new(run: &Run) -> Self {
        match run.wait {
            _ if run.no_wait => Self::Once,
            Some(Duration::ZERO) => Self::Once,
            Some(wait) => Instant::now().checked_add(wait).map_or(Self::Forever, Self::Until),
            None => Self::Forever,
        }
    }

    pub(super) fn left(self) -> Option<Duration> {
        match self {
            Self::Once => Some(Duration::ZERO),
            Self::Until(end) => Some(end.saturating_duration_since(Instant::now())),
            Self::Forever => None,
        }
    }

    pub(super) fn is_over(self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}

/// The names, as this process has them.
#[derive(Debug)]
pub(super) enum Held {
    One { lease: Lease, slot: Option<u32> },
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
            Self::One { lease, .. } => {
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
            Self::One { slot, .. } => *slot,
            Self::Set(_) => None,
        }
    }

    /// Returns until when the names may be relied on, without a further renewal.
    pub(super) fn stop(&self) -> Moment {
        // Before the other: if this process is stopped in between, the lease must not become longer.
        let now = Moment::now();
        now.after(match self {
            Self::One { lease, .. } => lease.remaining(),
            Self::Set(lease) => lease.remaining(),
        })
    }

    pub(super) fn lost(&self) -> Pin<Box<dyn Future<Output = Loss> + Send>> {
        match self {
            Self::One { lease, .. } => Box::pin(lease.lost()),
            Self::Set(lease) => Box::pin(lease.lost()),
        }
    }

    /// Shows others which program it is.
    pub(super) async fn described(&self) -> Infallible {
        match self {
            Self::One { lease, .. } => described(lease).await,
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
            Self::One { lease, .. } => say_why(lease).await,
            Self::Set(set) => {
                for lease in set.leases() {
                    say_why(lease).await;
                }
            }
        }
    }

    pub(super) async fn unlock(self) -> Result<()> {
        match self {
            Self::One { lease, .. } => lease.unlock().await,
            Self::Set(lease) => lease.unlock().await,
        }
    }
}

/// Connects. While the store does not answer, it tries again.
pub(super) async fn connect(
    connection: &Connection,
    builder: &Builder,
) -> Result<LeaseManager, Failure> {
    connect_while(connection, builder, || Some(PAUSE)).await
}

/// Connects. While the store does not answer, it tries again, as long as the wait allows it.
pub(super) async fn connect_in_time(
    run: &Run,
    connection: &Connection,
    builder: &Builder,
    limit: Limit,
) -> Result<LeaseManager, Failure> {
    let pause = || {
        let goes_on = !run.fail_fast && !limit.is_over();
        goes_on.then(|| PAUSE.min(limit.left().unwrap_or(PAUSE)))
    };
    connect_while(connection, builder, pause).await
}

/// Connects. While the store does not answer, it tries again after a pause, if there is one.
async fn connect_while(
    connection: &Connection,
    builder: &Builder,
    pause: impl Fn() -> Option<Duration>,
) -> Result<LeaseManager, Failure> {
    let mut is_said = false;
    loop {
        match connection.connect_with(builder.clone()).await {
            Err(failure) if failure.kind == Some(ErrorKind::Unavailable) => {
                let Some(pause) = pause() else { return Err(failure) };
                if !std::mem::replace(&mut is_said, true) {
                    say(&format!("{}; trying again", failure.message));
                }
                sleep(pause).await;
            }
            result => return result,
        }
    }
}

/// Takes the names. Returns `None` if they were not free in time.
pub(super) async fn acquire(
    run: &Run,
    leases: &LeaseManager,
    limit: Limit,
) -> Result<Option<Held>, Failure> {
    let mut is_said = false;
    loop {
        match ask(run, leases, limit).await {
            Ok(held) => return Ok(held),
            Err(error) if error.kind() != ErrorKind::Unavailable => return Err(error.into()),
            Err(error) if run.fail_fast || limit.is_over() => return Err(error.into()),
            Err(error) => {
                if !std::mem::replace(&mut is_said, true) {
                    say(&format!("{error}; trying again"));
                }
                sleep(PAUSE.min(limit.left().unwrap_or(PAUSE))).await;
            }
        }
    }
}

async fn ask(run: &Run, leases: &LeaseManager, limit: Limit) -> Result<Option<Held>> {
    let one = |lease: Lease| Held::One { lease, slot: None };
    let label = run.program.label();
    let name = run.names.first().map(String::as_str).unwrap_or_default();
    /// The three ways in which each kind of lock waits.
    macro_rules! ask {
        ($lock:ident: $once:ident, $until:ident, $forever:ident) => {
            match limit {
                Limit::Once => $lock.$once().await?,
                Limit::Until(_) => $lock.$until(limit.left().unwrap_or_default()).await?,
                Limit::Forever => Some($lock.$forever().await?),
            }
        };
    }
    // The first attempt shows whether the store answers at all.
    if run.fail_fast
        && !matches!(limit, Limit::Once)
        && let Some(held) = Box::pin(ask(run, leases, Limit::Once)).await?
    {
        return Ok(Some(held));
    }
    if run.names.len() > 1 {
        let mut lock = leases.multi_lock(&run.names)?.label(label);
        return Ok(ask!(lock: try_lock, lock_timeout, lock).map(Held::Set));
    }
    if run.shared {
        let mut lock = leases.rw_lock(name).label(label);
        let lease = ask!(lock: try_read, read_timeout, read);
        return Ok(lease.map(|lease| one(lease.into_lease())));
    }
    if run.exclusive {
        let mut lock = leases.rw_lock(name).label(label);
        let lease = ask!(lock: try_write, write_timeout, write);
        return Ok(lease.map(|lease| one(lease.into_lease())));
    }
    if let Some(size) = run.permit {
        let lock = leases.semaphore(name, size).label(label);
        let lease = ask!(lock: try_acquire, acquire_timeout, acquire);
        return Ok(lease.map(|lease| one(lease.into_lease())));
    }
    if let Some(size) = run.slot {
        let lock = leases.slots(name, size).label(label);
        let slot = ask!(lock: try_take, take_timeout, take);
        return Ok(slot.map(|slot| {
            let index = slot.index();
            Held::One { lease: slot.into_lease(), slot: Some(index) }
        }));
    }
    let lock = if run.fair { leases.fair_lock(name) } else { leases.lock(name) };
    let mut lock = lock.label(label);
    Ok(ask!(lock: try_lock, lock_timeout, lock).map(one))
}
