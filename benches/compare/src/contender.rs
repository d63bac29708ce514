//! What is measured: something that can acquire and release a name.

use crate::grants::Tenure;
use crate::kernels::{self, Spread};
use crate::peers::Pulse;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub type Result<T> = std::result::Result<T, String>;
/// The end of connecting.
pub type Connecting = Boxed<'static, Result<Box<dyn Runner>>>;
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A lock crate, or a floor, connected to the server.
pub trait Contender: Clone + Send + Sync + 'static {
    type Lock: Lock;

    /// A handle for one task.
    fn lock(&self, name: &str) -> Self::Lock;
}

/// One task's handle on one name, which keeps the guard while it is held.
pub trait Lock: Send + 'static {
    fn acquire(&mut self) -> impl Future<Output = Result<()>> + Send;
    fn release(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// The same without its types: one call for each measurement, so that no boxing is measured.
pub trait Runner: Send + Sync {
    fn sequential(&self, name: String, count: usize) -> Boxed<'_, Result<Vec<u64>>>;
    fn spread(&self, tasks: usize, names: usize, window: Duration) -> Boxed<'_, Result<Spread>>;
    fn contend(
        &self,
        name: String,
        tasks: usize,
        start: u64,
        end: u64,
    ) -> Boxed<'_, Result<Tenure>>;
    fn herd(&self, name: String, tasks: usize, hold: Duration) -> Boxed<'_, Result<Tenure>>;
    fn turns(
        &self,
        name: String,
        start: u64,
        end: u64,
        pulse: Arc<Pulse>,
    ) -> Boxed<'_, Result<Tenure>>;
}

impl<C: Contender> Runner for C {
    fn sequential(&self, name: String, count: usize) -> Boxed<'_, Result<Vec<u64>>> {
        Box::pin(kernels::sequential(self, name, count))
    }

    fn spread(&self, tasks: usize, names: usize, window: Duration) -> Boxed<'_, Result<Spread>> {
        Box::pin(kernels::spread(self, tasks, names, window))
    }

    fn contend(
        &self,
        name: String,
        tasks: usize,
        start: u64,
        end: u64,
    ) -> Boxed<'_, Result<Tenure>> {
        Box::pin(kernels::contend(self, name, tasks, start, end))
    }

    fn herd(&self, name: String, tasks: usize, hold: Duration) -> Boxed<'_, Result<Tenure>> {
        Box::pin(kernels::herd(self, name, tasks, hold))
    }

    fn turns(
        &self,
        name: String,
        start: u64,
        end: u64,
        pulse: Arc<Pulse>,
    ) -> Boxed<'_, Result<Tenure>> {
        Box::pin(kernels::turns(self, name, start, end, pulse))
    }
}

/// What is known of a contender before it is connected.
pub struct Entry {
    pub id: &'static str,
    /// What it is, for the legend.
    pub about: &'static str,
    pub role: Role,
    /// The commands that it sends itself; all others run inside scripts.
    pub sends: &'static [&'static str],
    /// Whether it needs keyspace events, which cost the server time on every write of anyone.
    pub events: bool,
    pub connect: fn(String) -> Connecting,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Ours,
    /// One of ours a second time: how much it differs from itself is what no other difference should be judged below. In
    /// the scenarios that are run on one core, too.
    Again,
    /// Acquires and releases, but cannot wait: in scenarios without contention only.
    Floor,
    /// Waits for one other process: in the scenario with turns of two only.
    FloorThatWaits,
    Peer,
    /// A peer in scenarios without contention only.
    Blocking,
    /// A peer asked to poll every 5 ms: in scenarios with contention only.
    Eager,
}

impl Role {
    pub fn waits(self) -> bool {
        matches!(self, Role::Ours | Role::Peer | Role::Eager)
    }

    pub fn is_peer(self) -> bool {
        matches!(self, Role::Peer | Role::Blocking | Role::Eager)
    }
}

impl Entry {
    /// Whether scenarios without contention measure it.
    pub fn alone(&self) -> bool {
        !matches!(self.role, Role::Eager | Role::FloorThatWaits)
    }

    /// Whether the scenario with turns on a cluster measures it: few of the peers know one.
    pub fn takes_turns_on_a_cluster(&self) -> bool {
        matches!(self.role, Role::Ours | Role::Again | Role::FloorThatWaits)
    }

    /// Whether the scenario with turns of two processes measures it.
    pub fn takes_turns(&self) -> bool {
        self.role.waits() || matches!(self.role, Role::Again | Role::FloorThatWaits)
    }
}

/// A connector for the registry.
#[macro_export]
macro_rules! connector {
    ($connect:expr) => {
        |url| {
            Box::pin(async move {
                let contender = $connect(url).await.map_err(|error| error.to_string())?;
                Ok(Box::new(contender) as Box<dyn $crate::contender::Runner>)
            })
        }
    };
}
