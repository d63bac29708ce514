//! Takes the names, in whatever mode, and releases them.

use super::Run;
use super::clock::Moment;
use crate::acquire::{Limit, Mode, acquire_name, wait_for};
use crate::connection::Connection;
use crate::exit::Failure;
use crate::hold::{described, say_why};
use crate::output::say;
use leasehold::{Builder, ErrorKind, Lease, LeaseManager, Loss, MultiLease, Result};
use std::convert::Infallible;
use std::fmt::Display;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::sleep;

/// The time from one attempt to reach the store to the next.
pub(super) const PAUSE: Duration = Duration::from_millis(500);

/// An outage of the store, which is said once.
#[derive(Debug, Default)]
pub(super) struct Outage {
    is_said: bool,
}

impl Outage {
    /// Waits before the next attempt.
    pub(super) async fn wait(&mut self, why: impl Display, pause: Duration) {
        if !std::mem::replace(&mut self.is_said, true) {
            say(&format!("{why}; trying again"));
        }
        sleep(pause).await;
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
        Moment::by(|| match self {
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
    let mut outage = Outage::default();
    loop {
        match connection.connect_with(builder.clone()).await {
            Err(failure) if failure.kind == Some(ErrorKind::Unavailable) => {
                let Some(pause) = pause() else { return Err(failure) };
                outage.wait(&failure.message, pause).await;
            }
            result => return result,
        }
    }
}

/// Closes a manager, which gives up the arrivals of a wait that has ended, and tries a release again that was not confirmed.
pub(super) async fn close(leases: &LeaseManager) {
    if let Err(error) = leases.close().await {
        say(&format!(
            "the store has not confirmed the release; the name is free after the ttl: {error}"
        ));
    }
}

/// Takes the names. Returns `None` if they were not free in time.
pub(super) async fn acquire(
    run: &Run,
    leases: &LeaseManager,
    limit: Limit,
) -> Result<Option<Held>, Failure> {
    let mut outage = Outage::default();
    loop {
        match ask(run, leases, limit).await {
            Ok(held) => return Ok(held),
            Err(error) if error.kind() != ErrorKind::Unavailable => return Err(error.into()),
            Err(error) if run.fail_fast || limit.is_over() => return Err(error.into()),
            Err(error) => outage.wait(&error, PAUSE.min(limit.left().unwrap_or(PAUSE))).await,
        }
    }
}

async fn ask(run: &Run, leases: &LeaseManager, limit: Limit) -> Result<Option<Held>> {
    let one = |lease: Lease| Held::One { lease, slot: None };
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
    if let Some(size) = run.permit {
        let lock = leases.semaphore(name, size).label(label);
        let lease = wait_for!(limit, lock: try_acquire, acquire_timeout, acquire);
        return Ok(lease.map(|lease| one(lease.into_lease())));
    }
    if let Some(size) = run.slot {
        let lock = leases.slots(name, size).label(label);
        let slot = wait_for!(limit, lock: try_take, take_timeout, take);
        return Ok(slot.map(|slot| {
            let index = slot.index();
            Held::One { lease: slot.into_lease(), slot: Some(index) }
        }));
    }
    let mode = match () {
        () if run.shared => Mode::Reader,
        () if run.exclusive => Mode::Writer,
        () if run.fair => Mode::Fair,
        () => Mode::Lock,
    };
    Ok(acquire_name(leases, name, mode, &label, limit).await?.map(one))
}
