//! What the same work costs without a lock library, through leasehold's client: its two scripts with the
//! same arguments and socket options, or the least that can be called a lock.

use crate::contender::{Contender, Lock, Result};
use fred::clients::Client;
use fred::interfaces::ClientLike;
use fred::types::config::{Config, ConnectionConfig, Options, TcpConfig};
use fred::types::{Builder, ClusterHash, CustomCommand, Value};
use std::sync::Arc;
use std::time::Duration;

/// leasehold's script for acquires and releases. Its arguments below are those of leasehold's own calls;
/// whoever changes them there changes them here.
pub const BATCH: &str = concat!(
    include_str!("../../../../src/store/redis/scripts/common.lua"),
    include_str!("../../../../src/store/redis/scripts/acquire.lua"),
    include_str!("../../../../src/store/redis/scripts/release.lua"),
    include_str!("../../../../src/store/redis/scripts/batch.lua"),
);
const DELETE_IF_MINE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
pub const TOKEN: &str = "5f0c5a8e-6c1f-4d5e-9a3b-1c2d3e4f5a6b:1";
/// Time to live, count, how many fencing tokens to reserve, and how long to remember the last.
const FENCED: [&str; 4] = ["30000", "1", "128", "86400000"];
const PLAIN: [&str; 4] = ["30000", "1", "1", "0"];

/// What follows EVALSHA and the script's hash for both scripts on one name in one command.
pub fn pair_in_one(name: &str, fenced: bool) -> Vec<String> {
    let fence = format!("redisson_lock_token:{{{name}}}");
    let words = if fenced {
        [&["3", name, &fence, name], &FENCED[..], &[TOKEN, TOKEN, "SFR"]].concat()
    } else {
        [&["2", name, name], &PLAIN[..], &[TOKEN, TOKEN, "SAR"]].concat()
    };
    words.into_iter().map(String::from).collect()
}

/// Which commands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Scripts { fenced: bool, timeout: bool },
    Set,
}

#[derive(Clone)]
pub struct Floor {
    client: Client,
    sha: Arc<str>,
    way: Way,
}

pub async fn client(url: &str) -> std::result::Result<Client, fred::error::Error> {
    let mut builder = Builder::from_config(Config::from_url(url)?);
    builder.set_connection_config(ConnectionConfig {
        max_command_attempts: 1,
        tcp: TcpConfig {
            nodelay: Some(true),
            linger: Some(Duration::ZERO),
            ..TcpConfig::default()
        },
        ..ConnectionConfig::default()
    });
    let client = builder.build()?;
    client.init().await?;
    Ok(client)
}

pub async fn load(
    client: &Client,
    script: &str,
) -> std::result::Result<String, fred::error::Error> {
    let load = CustomCommand::new_static("SCRIPT", ClusterHash::Random, false);
    client.custom(load, vec!["LOAD".to_owned(), script.to_owned()]).await
}

pub async fn connect(url: String, way: Way) -> std::result::Result<Floor, fred::error::Error> {
    let client = client(&url).await?;
    let script = if way == Way::Set { DELETE_IF_MINE } else { BATCH };
    let sha = load(&client, script).await?.into();
    Ok(Floor { client, sha, way })
}

pub struct Handle {
    floor: Floor,
    name: String,
}

impl Handle {
    async fn script(&self, keys: &[&str], args: &[&str]) -> Result<Value> {
        let mut words: Vec<Value> = vec![(&*self.floor.sha).into(), (keys.len() as i64).into()];
        words.extend(keys.iter().map(|&key| Value::from(key)));
        words.extend(args.iter().map(|&arg| Value::from(arg)));
        self.send("EVALSHA", words).await
    }

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
        Value::Array(values) if values.first() == Some(&Value::Integer(1)) => Ok(()),
        Value::Integer(1) => Ok(()),
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
        if fenced {
            let fence = format!("redisson_lock_token:{{{name}}}");
            let args = [&FENCED[..], &[TOKEN, "SF"]].concat();
            done(&self.script(&[name, &fence], &args).await?)
        } else {
            done(&self.script(&[name], &[&PLAIN[..], &[TOKEN, "SA"]].concat()).await?)
        }
    }

    async fn release(&mut self) -> Result<()> {
        let name = self.name.as_str();
        if self.floor.way == Way::Set {
            return done(&self.script(&[name], &[TOKEN]).await?);
        }
        done(&self.script(&[name], &[TOKEN, "R"]).await?)
    }
}
