//! async-redis-lock: polls every 100 ms; its default of giving up after 1 s is off, or no waiter would last.

use crate::contender::{Contender, Lock, Result};
use async_redis_lock::{Locker, Options};
use std::time::Duration;

#[derive(Clone)]
pub struct AsyncRedisLock {
    locker: Locker,
    options: Options,
}

pub async fn connect(url: String, retry: Option<Duration>) -> Result<AsyncRedisLock> {
    let locker = Locker::from_redis_url(&url).await.map_err(|error| error.to_string())?;
    let mut options = Options::new().timeout(None);
    if let Some(retry) = retry {
        options = options.retry(retry);
    }
    Ok(AsyncRedisLock { locker, options })
}

pub struct Handle {
    locker: AsyncRedisLock,
    name: String,
    guard: Option<async_redis_lock::Lock>,
}

impl Contender for AsyncRedisLock {
    type Lock = Handle;

    fn lock(&self, name: &str) -> Handle {
        Handle { locker: self.clone(), name: name.to_owned(), guard: None }
    }
}

impl Lock for Handle {
    async fn acquire(&mut self) -> Result<()> {
        let AsyncRedisLock { locker, options } = &self.locker;
        let guard = locker.acquire_with_options(options, &self.name).await;
        self.guard = Some(guard.map_err(|error| error.to_string())?);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let guard = self.guard.take().ok_or("not held")?;
        guard.release().await.map_err(|error| error.to_string())
    }
}
