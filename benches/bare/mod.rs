//! leasehold's scripts without a lock library: the same arguments, client and socket options. The floor
//! of all benches, those of `benches/compare` too.
//!
//! The arguments are those of leasehold's own calls; whoever changes them there changes them here.

use fred::clients::Client;
use fred::error::Error;
use fred::interfaces::ClientLike;
use fred::types::config::{Config, ConnectionConfig, TcpConfig};
use fred::types::{Builder, ClusterHash, CustomCommand, Value};
use std::time::Duration;

include!("../../src/store/redis/scripts/compose.rs");

/// Returns the text of a script of leasehold for one server.
pub fn script(name: &str) -> String {
    compose(
        &lua_files!("../../src/store/redis/scripts/"),
        name,
        Form { layout: "", publish: "publish" },
    )
}

pub const TOKEN: &str = "5f0c5a8e-6c1f-4d5e-9a3b-1c2d3e4f5a6b:1";
/// Time to live, count, how many fencing tokens to reserve, and how long to remember the last.
pub const FENCED: [&str; 4] = ["30000", "1", "64", "86400000"];

pub async fn client(url: &str) -> Result<Client, Error> {
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

/// The hash of a script that the server now knows.
pub async fn load(client: &Client, script: &str) -> Result<String, Error> {
    let load = CustomCommand::new_static("SCRIPT", ClusterHash::Random, false);
    client.custom(load, vec!["LOAD".to_owned(), script.to_owned()]).await
}

pub fn fence_key(name: &str) -> String {
    format!("redisson_lock_token:{{{name}}}")
}

/// What follows EVALSHA.
pub fn words(sha: &str, keys: &[&str], args: &[&str]) -> Vec<Value> {
    let mut words: Vec<Value> = vec![sha.into(), (keys.len() as i64).into()];
    words.extend(keys.iter().chain(args).map(|&word| Value::from(word)));
    words
}

/// What leasehold's two scripts for lone requests are called by.
#[derive(Clone)]
pub struct Loaded {
    acquire: String,
    release: String,
}

impl Loaded {
    pub async fn new(client: &Client) -> Result<Self, Error> {
        let load = async |name| load(client, &script(name)).await;
        Ok(Self { acquire: load("acquire_alone").await?, release: load("release_alone").await? })
    }

    /// The [`words`] of an acquire.
    pub fn acquire(&self, name: &str, fenced: bool) -> Vec<Value> {
        let [ttl, _, block, retention] = FENCED;
        if fenced {
            words(&self.acquire, &[name, &fence_key(name)], &[TOKEN, ttl, block, retention])
        } else {
            words(&self.acquire, &[name], &[TOKEN, ttl])
        }
    }

    /// Those of a release.
    pub fn release(&self, name: &str) -> Vec<Value> {
        words(&self.release, &[name], &[TOKEN])
    }
}
