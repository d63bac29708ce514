//! The least that can be called a lock, through redis-rs, which most peers use.

use crate::contender::{Contender, Lock, Result};
use redis::aio::MultiplexedConnection;
use std::sync::Arc;

#[derive(Clone)]
pub struct Floor {
    connection: MultiplexedConnection,
    delete_if_mine: Arc<redis::Script>,
}

pub async fn connect(url: String) -> redis::RedisResult<Floor> {
    let connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let script = redis::Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0",
    );
    Ok(Floor { connection, delete_if_mine: Arc::new(script) })
}

pub struct Handle {
    floor: Floor,
    name: String,
}

impl Contender for Floor {
    type Lock = Handle;

    fn lock(&self, name: &str) -> Handle {
        Handle { floor: self.clone(), name: name.to_owned() }
    }
}

impl Lock for Handle {
    async fn acquire(&mut self) -> Result<()> {
        let mut set = redis::cmd("SET");
        set.arg(&self.name).arg(super::bare::TOKEN).arg("NX").arg("PX").arg(30_000);
        let reply: redis::RedisResult<Option<String>> =
            set.query_async(&mut self.floor.connection).await;
        reply.map_err(|error| error.to_string())?.map(drop).ok_or_else(|| "taken".to_owned())
    }

    async fn release(&mut self) -> Result<()> {
        let mut script = self.floor.delete_if_mine.prepare_invoke();
        script.key(&self.name).arg(super::bare::TOKEN);
        let reply: redis::RedisResult<i64> = script.invoke_async(&mut self.floor.connection).await;
        match reply.map_err(|error| error.to_string())? {
            1 => Ok(()),
            other => Err(format!("unexpected reply {other}")),
        }
    }
}
