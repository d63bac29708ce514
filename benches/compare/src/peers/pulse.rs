//! One round trip to the server, through the same client as the floor.

use super::floor_fred;
use crate::contender::Result;
use fred::clients::Client;
use fred::interfaces::ClientLike;
use fred::types::{ClusterHash, CustomCommand, Value};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The shortest script, called now and then, and how long each call took.
pub struct Pulse {
    client: Client,
    sha: String,
    times: Mutex<Vec<u64>>,
}

impl Pulse {
    pub async fn connect(url: &str) -> Result<Self> {
        let client = floor_fred::client(url).await.map_err(|error| error.to_string())?;
        let sha = floor_fred::load(&client, "return 1").await.map_err(|error| error.to_string())?;
        Ok(Self { client, sha, times: Mutex::default() })
    }

    pub async fn beat(&self) {
        let words: Vec<Value> = vec![self.sha.as_str().into(), 0.into()];
        let command = CustomCommand::new_static("EVALSHA", ClusterHash::Random, false);
        let start = Instant::now();
        let reply: std::result::Result<i64, fred::error::Error> =
            self.client.custom(command, words).await;
        let elapsed = start.elapsed().as_nanos() as u64;
        if reply.is_ok() {
            self.times.lock().unwrap_or_else(PoisonError::into_inner).push(elapsed);
        }
    }

    pub fn times(&self) -> Vec<u64> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
