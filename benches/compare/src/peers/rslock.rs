//! rslock: `acquire` waits for ever, in steps of three tries 0..200 ms apart.

use super::TTL;
use crate::contender::{Contender, Lock, Result};
use rslock::{LockGuard, LockManager};
use std::time::Duration;

#[derive(Clone)]
pub struct Rslock(LockManager);

pub async fn connect(url: String, retry: Option<Duration>) -> Result<Rslock> {
    let mut manager = LockManager::new(vec![url]);
    if let Some(retry) = retry {
        manager.set_retry(3, retry);
    }
    Ok(Rslock(manager))
}

pub struct Handle {
    manager: LockManager,
    name: String,
    guard: Option<LockGuard>,
}

impl Contender for Rslock {
    type Lock = Handle;

    fn lock(&self, name: &str) -> Handle {
        Handle { manager: self.0.clone(), name: name.to_owned(), guard: None }
    }
}

impl Lock for Handle {
    async fn acquire(&mut self) -> Result<()> {
        let guard = self.manager.acquire(self.name.as_str(), TTL).await;
        self.guard = Some(guard.map_err(|error| error.to_string())?);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        self.guard.take().ok_or("not held")?.release().await;
        Ok(())
    }
}
