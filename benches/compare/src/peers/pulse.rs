//! One round trip to the server, through the same client as the floor.

use super::bare;
use super::floor_fred::{self, Way};
use crate::contender::{Contender, Lock, Result};
use fred::clients::Client;
use fred::interfaces::ClientLike;
use fred::types::{ClusterHash, CustomCommand, Value};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Two calls, now and then in turn, and how long each took: leasehold's acquire, bare, and the shortest
/// script there is.
pub struct Pulse {
    floor: floor_fred::Floor,
    name: String,
    client: Client,
    sha: String,
    times: Mutex<Times>,
}

#[derive(Clone, Default)]
pub struct Times {
    pub acquire: Vec<u64>,
    pub empty: Vec<u64>,
}

impl Pulse {
    pub async fn connect(url: &str) -> Result<Self> {
        let way = Way::Scripts { fenced: true, timeout: false };
        let text = |error: fred::error::Error| error.to_string();
        let floor = floor_fred::connect(url.to_owned(), way).await.map_err(text)?;
        let client = bare::client(url).await.map_err(text)?;
        let sha = bare::load(&client, "return 1").await.map_err(text)?;
        let name = format!("pulse:{}", std::process::id());
        Ok(Self { floor, name, client, sha, times: Mutex::default() })
    }

    pub async fn beat(&self) {
        let (acquires, empties) = self.counts();
        if acquires <= empties {
            self.acquire().await;
        } else {
            self.empty().await;
        }
    }

    async fn acquire(&self) {
        let mut lock = self.floor.lock(&self.name);
        let start = Instant::now();
        if lock.acquire().await.is_ok() {
            let elapsed = start.elapsed().as_nanos() as u64;
            self.note(|times| times.acquire.push(elapsed));
            // A refused release shows as a failing acquire, and so as too few of them.
            let _ = lock.release().await;
        }
    }

    async fn empty(&self) {
        let words: Vec<Value> = vec![self.sha.as_str().into(), 0.into()];
        let command = CustomCommand::new_static("EVALSHA", ClusterHash::Random, false);
        let start = Instant::now();
        let reply: std::result::Result<i64, fred::error::Error> =
            self.client.custom(command, words).await;
        if reply.is_ok() {
            let elapsed = start.elapsed().as_nanos() as u64;
            self.note(|times| times.empty.push(elapsed));
        }
    }

    fn counts(&self) -> (usize, usize) {
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        (times.acquire.len(), times.empty.len())
    }

    fn note(&self, note: impl FnOnce(&mut Times)) {
        note(&mut self.times.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub fn times(&self) -> Times {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
