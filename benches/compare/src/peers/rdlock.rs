//! rdlock: waits by keyspace events, over a connection of its own for each acquire.

use super::TTL;
use crate::contender::{Contender, Lock, Result};
use rdlock::RdLockConnectionManager;
use rdlock::lock::BasicLock;

#[derive(Clone)]
pub struct Rdlock(RdLockConnectionManager);

pub async fn connect(url: String) -> Result<Rdlock> {
    let manager = RdLockConnectionManager::new(url).await;
    Ok(Rdlock(manager.map_err(|error| error.to_string())?))
}

pub struct Handle(BasicLock);

impl Contender for Rdlock {
    type Lock = Handle;

    fn lock(&self, name: &str) -> Handle {
        Handle(self.0.new_basic_lock(name, TTL.as_secs()))
    }
}

impl Lock for Handle {
    async fn acquire(&mut self) -> Result<()> {
        // `lock()` asks tokio for a timer of 2^64 s.
        let limit = std::time::Duration::from_secs(3600);
        self.0.lock_timeout(limit).await.map_err(|error| error.to_string())
    }

    async fn release(&mut self) -> Result<()> {
        self.0.release().await.map_err(|error| error.to_string())
    }
}
