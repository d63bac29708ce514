//! The servers of a run, and the tasks that watch them.
//!
//! What differs from store to store is a [`Scene`]: its names, its faults, and how its [`Servers`] are raised.

mod cluster;
mod ensemble;
mod one;
mod quorum;
mod scene;
mod sentinel;
mod watch;

pub use scene::Scene;
pub use watch::watch;

use crate::faults::ServerKind;
use crate::line::Line;
use kit::soak::history::{Event, What};
use kit::soak::leases::Kind;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A store, and the names whose locks are kept there.
pub struct Backend {
    pub house: &'static House,
    pub servers: Box<dyn Servers>,
    pub names: Vec<String>,
}

/// A store as the plan needs it, before anything runs.
pub struct House {
    pub label: &'static str,
    /// As the holders ask for it.
    pub ttl: Duration,
    /// What the engine counts with.
    pub engine_ttl: Duration,
    /// So many replicas have to have a grant.
    pub replicas: u32,
    pub names: &'static [&'static str],
    /// How many servers a fault can choose from.
    pub nodes: usize,
}

/// The running servers of one store.
pub trait Servers: Send + Sync {
    /// One way to the servers for each of them that a holder process reaches by a proxy of its own.
    fn lines(&self) -> Vec<Line>;

    /// Of the store, for a holder process with proxies at these ports.
    fn url(&self, ports: &[u16]) -> String;

    /// Breaks something, for so long if that is up to us, and mends it.
    fn strike(&self, fault: Strike<'_>) -> Harm;

    /// Looks at the locks of these names, and at others perhaps, whenever it is called.
    fn looker<'a>(&'a self, names: &'a [String]) -> Box<dyn FnMut() -> io::Result<Vec<Key>> + 'a>;

    /// What is left where nothing should be held: locks, and channels.
    fn left_over(&self) -> Result<Vec<String>, String>;

    /// The hold counts of a name.
    fn counts(&self, name: &str) -> Vec<u64>;
}

pub struct Strike<'a> {
    pub kind: ServerKind,
    /// Which server, or which name.
    pub at: usize,
    pub lasts: Duration,
    pub names: &'a [String],
}

/// What a fault did to the locks.
#[derive(Default)]
pub struct Harm {
    /// The keys of these names were taken away.
    pub wiped: Vec<String>,
    /// Another primary took over from when to when; what it had not been told is gone.
    pub replaced: Option<(u64, u64)>,
    /// Whether all that are awake know of it by then.
    pub known: bool,
}

/// A key as a server has it.
pub struct Key {
    pub name: String,
    pub ttl: i64,
    /// The holders in a lock, and in a semaphore's set of permits; none for other keys, [`Key::UNKNOWN`] if they cannot be
    /// seen.
    pub tokens: Vec<String>,
}

impl Key {
    /// The token of nobody.
    pub const UNKNOWN: &str = "?:0";
}

/// The key that has the holders of a name: of a semaphore, the set of its permits.
pub fn main_key(name: &str) -> String {
    match Kind::of(name) {
        Kind::Semaphore { .. } => format!("{{{name}}}:timeout"),
        _ => name.to_owned(),
    }
}

/// Whether the name says its slot, as others do.
pub fn is_tied(name: &str) -> bool {
    name.starts_with('{')
}

/// What the parent writes down.
#[derive(Default)]
pub struct Log(Mutex<Vec<Event>>);

impl Log {
    pub fn write(&self, at: u64, what: What) {
        let event = Event { at, who: "soak".to_owned(), what };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
