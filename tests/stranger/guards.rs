//! The leases of a run, of whatever kind, and looks at whether they are good.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold::{
    CancellationToken, Leadership, Lease, MultiLease, Permit, ReadLease, Result, Slot, WriteLease,
};

use crate::history::{Log, Lost};

/// A guard of the family.
pub enum Guard {
    Lease(Lease),
    Read(ReadLease),
    Write(WriteLease),
    Permit(Permit),
    Slot(Slot),
    Multi(MultiLease),
    Leader(Leadership),
}

impl Guard {
    pub fn leases(&self) -> Vec<&Lease> {
        match self {
            Self::Lease(lease) => vec![lease],
            Self::Read(lease) => vec![lease],
            Self::Write(lease) => vec![lease],
            Self::Permit(lease) => vec![lease],
            Self::Slot(lease) => vec![lease],
            Self::Multi(lease) => lease.leases().collect(),
            Self::Leader(lease) => vec![lease],
        }
    }

    pub fn token(&self) -> CancellationToken {
        match self {
            Self::Multi(lease) => lease.cancellation_token(),
            other => other.leases()[0].cancellation_token(),
        }
    }

    pub async fn unlock(self) -> Result<()> {
        match self {
            Self::Lease(lease) => lease.unlock().await,
            Self::Read(lease) => lease.unlock().await,
            Self::Write(lease) => lease.unlock().await,
            Self::Permit(lease) => lease.unlock().await,
            Self::Slot(lease) => lease.unlock().await,
            Self::Multi(lease) => lease.unlock().await,
            Self::Leader(lease) => lease.resign().await,
        }
    }

    pub async fn unlock_now(self) -> Result<()> {
        match self {
            Self::Lease(lease) => lease.unlock_now().await,
            other => other.unlock().await,
        }
    }

    /// Returns false where the guard has no `forget`; it is dropped then.
    pub fn forget(self) -> bool {
        match self {
            Self::Lease(lease) => lease.forget(),
            Self::Read(lease) => lease.into_lease().forget(),
            Self::Write(lease) => lease.into_lease().forget(),
            Self::Permit(lease) => lease.into_lease().forget(),
            Self::Slot(lease) => lease.into_lease().forget(),
            Self::Multi(_) | Self::Leader(_) => return false,
        }
        true
    }
}

/// A guard that several may look at, until its holder takes it out.
pub struct Shared(Mutex<Option<Guard>>);

impl Shared {
    pub fn new(guard: Guard) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(guard))))
    }

    pub fn guard(&self) -> MutexGuard<'_, Option<Guard>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is needed to look at one lease.
#[derive(Clone)]
pub struct Probe {
    pub held: usize,
    pub name: String,
    pub token: CancellationToken,
    pub shared: Arc<Shared>,
}

impl Probe {
    /// Looks at the lease, and notes whether it is good.
    pub fn look(&self, log: &Log) {
        let guard = self.shared.guard();
        let Some(guard) = guard.as_ref() else { return };
        let Some(lease) = guard.leases().into_iter().find(|lease| lease.name() == self.name) else {
            return;
        };
        let before = log.stamp();
        let has_fired = self.token.is_cancelled();
        let checked = lease.check();
        let after = log.stamp();
        log.write(|history| {
            let held = &mut history.leases[self.held];
            if !has_fired {
                held.unfired_until = held.unfired_until.max(before);
            }
            match checked {
                Ok(()) if !has_fired => held.good_until = held.good_until.max(before),
                Ok(()) => {}
                Err(error) if held.lost.is_none() => {
                    held.lost = Some(Lost { seen: after, loss: error.loss() })
                }
                Err(_) => {}
            }
        });
    }
}

impl Probe {
    /// Reports progress of a lease that is good.
    pub fn report(&self, log: &Log) {
        let guard = self.shared.guard();
        let Some(guard) = guard.as_ref() else { return };
        let Some(lease) = guard.leases().into_iter().find(|lease| lease.name() == self.name) else {
            return;
        };
        if lease.check().is_ok() {
            lease.progress();
            let reported = log.stamp();
            log.write(|history| history.leases[self.held].reported = Some(reported));
        }
    }
}

/// All leases that are there, by their names.
#[derive(Default)]
pub struct Registry(Mutex<HashMap<String, Vec<Probe>>>);

impl Registry {
    fn names(&self) -> MutexGuard<'_, HashMap<String, Vec<Probe>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, probe: &Probe) {
        self.names().entry(probe.name.clone()).or_default().push(probe.clone());
    }

    pub fn remove(&self, probe: &Probe) {
        if let Some(probes) = self.names().get_mut(&probe.name) {
            probes.retain(|other| other.held != probe.held);
        }
    }

    /// Looks at all leases of a name, the youngest last.
    pub fn look(&self, log: &Log, name: &str) {
        let probes = self.names().get(name).cloned().unwrap_or_default();
        for probe in probes {
            probe.look(log);
        }
    }
}
