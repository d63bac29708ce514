//! The lock of cf-redis-cluster-plugin ("gears"): waits by pub/sub, shared by a pool of connections. Behind the
//! feature `gears`, for it brings 300 crates, and features of fred that leasehold and the floor then have too.

use super::TTL;
use crate::contender::{Contender, Lock, Result};
use cluster_sdk::{DistributedLockBackend, LockGuard};
use redis_cluster_plugin::{RedisLockConfig, RedisLockHandle, RedisLockPlugin};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone)]
pub struct Gears {
    /// Its background work ends with this.
    _plugin: Arc<RedisLockHandle>,
    backend: Arc<dyn DistributedLockBackend>,
}

pub async fn connect(url: String) -> Result<Gears> {
    let config: RedisLockConfig =
        serde_json::from_value(json!({ "url": url })).map_err(|error| error.to_string())?;
    let plugin = RedisLockPlugin::builder(config).build_and_start().await;
    let plugin = plugin.map_err(|error| error.to_string())?;
    Ok(Gears { backend: plugin.lock(), _plugin: Arc::new(plugin) })
}

pub struct Handle {
    backend: Arc<dyn DistributedLockBackend>,
    name: String,
    guard: Option<LockGuard>,
}

impl Contender for Gears {
    type Lock = Handle;

    fn lock(&self, name: &str) -> Handle {
        // Its names go by a grammar of their own.
        let name = name.replace(':', "/");
        Handle { backend: Arc::clone(&self.backend), name, guard: None }
    }
}

impl Lock for Handle {
    async fn acquire(&mut self) -> Result<()> {
        let limit = Duration::from_secs(3600);
        let guard = self.backend.lock(&self.name, TTL, limit).await;
        self.guard = Some(guard.map_err(|error| error.to_string())?);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let guard = self.guard.take().ok_or("not held")?;
        guard.release().await.map_err(|error| error.to_string())
    }
}
