//! What the same work costs without a lock library, through leasehold's client: its two scripts with the
//! same arguments and socket options, or the least that can be called a lock.

use super::bare::{self, Loaded, TOKEN};
use crate::contender::{Contender, Lock, Result};
use fred::clients::Client;
use fred::interfaces::ClientLike;
use fred::types::config::Options;
use fred::types::{ClusterHash, CustomCommand, Value};
use std::sync::Arc;
use std::time::Duration;

const DELETE_IF_MINE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// Which commands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Scripts { fenced: bool, timeout: bool },
    Set,
}

#[derive(Clone)]
pub struct Floor {
    client: Client,
    scripts: Arc<Scripts>,
    way: Way,
}

/// What each script is called by.
struct Scripts {
    leasehold: Loaded,
    delete_if_mine: String,
}

pub async fn connect(url: String, way: Way) -> std::result::Result<Floor, fred::error::Error> {
    let client = bare::client(&url).await?;
    let leasehold = Loaded::new(&client).await?;
    let delete_if_mine = bare::load(&client, DELETE_IF_MINE).await?;
    Ok(Floor { client, scripts: Arc::new(Scripts { leasehold, delete_if_mine }), way })
}

pub struct Handle {
    floor: Floor,
    name: String,
}

impl Handle {
    async fn send(&self, name: &'static str, words: Vec<Value>) -> Result<Value> {
        let client = &self.floor.client;
        let command = CustomCommand::new_static(name, ClusterHash::Offset(2), false);
        let reply = if let Way::Scripts { timeout: true, .. } = self.floor.way {
            // As leasehold sends its own; fred arms a timer for each.
            let options = Options {
                max_attempts: Some(1),
                timeout: Some(Duration::from_secs(3)),
                ..Options::default()
            };
            client.with_options(&options).custom(command, words).await
        } else {
            client.custom(command, words).await
        };
        reply.map_err(|error: fred::error::Error| error.to_string())
    }
}

/// The reply of a script that did what it was asked to.
fn done(reply: &Value) -> Result<()> {
    match reply {
        Value::Integer(0..) => Ok(()),
        other => Err(format!("unexpected reply {other:?}")),
    }
}

impl Contender for Floor {
    type Lock = Handle;

    fn lock(&self, name: &str) -> Handle {
        Handle { floor: self.clone(), name: name.to_owned() }
    }
}

impl Lock for Handle {
    async fn acquire(&mut self) -> Result<()> {
        let name = self.name.as_str();
        let Way::Scripts { fenced, .. } = self.floor.way else {
            let words = [name, TOKEN, "NX", "PX", "30000"].map(Value::from).to_vec();
            return match self.send("SET", words).await? {
                Value::Null => Err("taken".to_owned()),
                _ => Ok(()),
            };
        };
        done(&self.send("EVALSHA", self.floor.scripts.leasehold.acquire(name, fenced)).await?)
    }

    async fn release(&mut self) -> Result<()> {
        let name = self.name.as_str();
        let scripts = &self.floor.scripts;
        let words = match self.floor.way {
            Way::Set => bare::words(&scripts.delete_if_mine, &[name], &[TOKEN]),
            Way::Scripts { .. } => scripts.leasehold.release(name),
        };
        done(&self.send("EVALSHA", words).await?)
    }
}
