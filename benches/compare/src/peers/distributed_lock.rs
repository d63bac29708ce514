//! distributed-lock on Redis (fred 9). Its `acquire` fails at once when the name is taken, whatever its
//! timeout, so the loop that waits is ours: every 100 ms, as its neighbours do.

use crate::contender::{Contender, Lock, Result};
use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_redis::{RedisDistributedLock, RedisLockHandle, RedisLockProvider};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone)]
pub struct DistributedLock {
    provider: Arc<RedisLockProvider>,
    retry: Duration,
}

pub async fn connect(url: String, retry: Option<Duration>) -> Result<DistributedLock> {
    let provider = RedisLockProvider::new(url).await.map_err(|error| error.to_string())?;
    let provider = Arc::new(provider);
    Ok(DistributedLock { provider, retry: retry.unwrap_or(Duration::from_millis(100)) })
}

pub struct Handle {
    lock: RedisDistributedLock,
    retry: Duration,
    guard: Option<RedisLockHandle>,
}

impl Contender for DistributedLock {
    type Lock = Handle;

    fn lock(&self, name: &str) -> Handle {
        Handle { lock: self.provider.create_lock(name), retry: self.retry, guard: None }
    }
}

impl Lock for Handle {
    async fn acquire(&mut self) -> Result<()> {
        while self.guard.is_none() {
            self.guard = self.lock.try_acquire().await.map_err(|error| error.to_string())?;
            if self.guard.is_none() {
                tokio::time::sleep(self.retry).await;
            }
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let guard = self.guard.take().ok_or("not held")?;
        guard.release().await.map_err(|error| error.to_string())
    }
}
