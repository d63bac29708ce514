//! rlock: polls every 100 ms, renews by itself.

use crate::contender::{Contender, Lock, Result};
use rlock::AcquireOptions;
use rlock::async_lock::{RLock, RLockGuard};
use std::time::Duration;

#[derive(Clone)]
pub struct Rlock {
    manager: RLock,
    options: AcquireOptions,
}

pub async fn connect(url: String, retry: Option<Duration>) -> Result<Rlock> {
    let manager = RLock::new(url).await.map_err(|error| error.to_string())?;
    let mut options = AcquireOptions::default();
    if let Some(retry) = retry {
        let builder = AcquireOptions::builder().retry_interval(retry);
        options = builder.build().map_err(|error| error.to_string())?;
    }
    Ok(Rlock { manager, options })
}

pub struct Handle {
    manager: Rlock,
    name: String,
    guard: Option<RLockGuard>,
}

impl Contender for Rlock {
    type Lock = Handle;

    fn lock(&self, name: &str) -> Handle {
        Handle { manager: self.clone(), name: name.to_owned(), guard: None }
    }
}

impl Lock for Handle {
    async fn acquire(&mut self) -> Result<()> {
        let Rlock { manager, options } = &self.manager;
        let guard = manager.acquire_mutex_with_options(&self.name, options.clone()).await;
        self.guard = Some(guard.map_err(|error| error.to_string())?);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let mut guard = self.guard.take().ok_or("not held")?;
        guard.release().await.map_err(|error| error.to_string())
    }
}
