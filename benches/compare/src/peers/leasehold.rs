//! leasehold, with and without fencing tokens.

use crate::contender::{Contender, Lock, Result};
use leasehold::{Lease, LeaseManager};

#[derive(Clone)]
pub struct Leasehold(LeaseManager);

pub async fn connect(url: String, fencing: bool) -> leasehold::Result<Leasehold> {
    Ok(Leasehold(LeaseManager::builder().fencing(fencing).connect(&url).await?))
}

pub struct Handle {
    lock: leasehold::Lock,
    lease: Option<Lease>,
}

impl Contender for Leasehold {
    type Lock = Handle;

    fn lock(&self, name: &str) -> Handle {
        Handle { lock: self.0.lock(name), lease: None }
    }
}

impl Lock for Handle {
    async fn acquire(&mut self) -> Result<()> {
        self.lease = Some(self.lock.lock().await.map_err(|error| error.to_string())?);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let lease = self.lease.take().ok_or("not held")?;
        lease.unlock().await.map_err(|error| error.to_string())
    }
}
