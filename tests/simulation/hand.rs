//! Leases in the hands of a caller, as the judge knows them.

use super::world::{Client, World};
use leasehold::{Lease, Permit, ReadLease, WriteLease};
use std::ops::Deref;
use std::sync::Arc;

/// A lease in one of the modes.
pub enum Side {
    Lock(Lease),
    Read(ReadLease),
    Write(WriteLease),
    Permit(Permit),
}

impl Deref for Side {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        match self {
            Self::Lock(lease) => lease,
            Self::Read(lease) => lease,
            Self::Write(lease) => lease,
            Self::Permit(permit) => permit,
        }
    }
}

impl Side {
    fn into_lease(self) -> Lease {
        match self {
            Self::Lock(lease) => lease,
            Self::Read(lease) => lease.into_lease(),
            Self::Write(lease) => lease.into_lease(),
            Self::Permit(permit) => permit.into_lease(),
        }
    }
}

/// A lease that the judge knows of.
pub struct Hand {
    pub world: Arc<World>,
    pub side: Option<Side>,
    pub belief: u64,
    pub id: u64,
}

impl Hand {
    pub fn open(client: &Client, task: u64, lease: Lease) -> Self {
        let world = Arc::clone(&client.world);
        let moment = world.moment();
        let (belief, id) = world.lock().judge.open(&world.plan, moment, (client.id, task), &lease);
        Self { world, side: Some(Side::Lock(lease)), belief, id }
    }

    pub fn nested(&self, side: Side) -> Self {
        let world = Arc::clone(&self.world);
        let id = world.lock().judge.enter(self.belief, &side);
        Self { world, side: Some(side), belief: self.belief, id }
    }

    pub fn side(&self) -> &Side {
        self.side.as_ref().expect("not released yet")
    }

    pub fn is_lost(&self) -> bool {
        self.sample();
        self.side().check().is_err()
    }

    pub fn sample(&self) {
        let moment = self.world.moment();
        self.world.lock().judge.sample(&self.world.plan, moment, self.belief, self.side());
    }

    /// Its end is asked for; the judge forgets it when `self` goes.
    pub fn leave(&mut self) -> Lease {
        self.leave_side().into_lease()
    }

    /// As [`Self::leave`].
    pub fn leave_side(&mut self) -> Side {
        self.world.lock().judge.leave(self.belief, self.id);
        self.side.take().expect("not released yet")
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        if self.side.is_some() {
            drop(self.leave());
        }
        self.world.lock().judge.left(self.belief, self.id);
    }
}
