//! distkit: a mutex object for each task, which polls every 50 ms.

use crate::contender::{Contender, Lock, Result};
use distkit::DistkitRedisKey;
use distkit::lock::{LockOptions, Mutex, MutexGuard};
use redis::aio::ConnectionManager;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone)]
pub struct Distkit {
    connection: ConnectionManager,
    retry: Option<Duration>,
}

pub async fn connect(url: String, retry: Option<Duration>) -> redis::RedisResult<Distkit> {
    let connection = redis::Client::open(url)?.get_connection_manager().await?;
    Ok(Distkit { connection, retry })
}

pub struct Handle {
    mutex: Arc<Mutex>,
    guard: Option<MutexGuard>,
}

impl Contender for Distkit {
    type Lock = Handle;

    fn lock(&self, name: &str) -> Handle {
        // Its keys must not contain a colon.
        let key = DistkitRedisKey::new_or_panic(name.replace(':', "_"));
        let mut options = LockOptions::new(key, self.connection.clone());
        if let Some(retry) = self.retry {
            options.retry_interval = retry;
        }
        Handle { mutex: Mutex::new(options), guard: None }
    }
}

impl Lock for Handle {
    async fn acquire(&mut self) -> Result<()> {
        self.guard = Some(self.mutex.lock().await.map_err(|error| error.to_string())?);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let guard = self.guard.take().ok_or("not held")?;
        guard.release().await.map(drop).map_err(|error| error.to_string())
    }
}
