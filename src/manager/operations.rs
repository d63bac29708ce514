//! Reports the state of a manager to an operator, without I/O.

use super::LeaseManager;
use crate::locks::lease::LeaseState;
use crate::observe::{Events, Health, Stats};
use crate::store::{HolderId, Mode};
use std::time::Duration;

impl LeaseManager {
    /// Returns a stream of what happens to the leases of this manager from now on. It keeps the last `capacity` events that
    /// were not taken, at least one.
    ///
    /// [`Events::dropped`] counts those that were dropped. The stream ends when the manager is closed.
    ///
    /// ```
    /// use leasehold::EventKind;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let mut events = leases.events(1_000);
    /// let lease = leases.lock("orders:42").lock().await?;
    /// let event = events.next().await.expect("open");
    /// assert_eq!(event.name(), Some("orders:42"));
    /// assert!(matches!(event.kind(), EventKind::Granted { .. }));
    /// # drop(lease);
    /// # Ok(())
    /// # }
    /// ```
    pub fn events(&self, capacity: usize) -> Events {
        Events::new(&self.engine.core.board, capacity)
    }

    /// Returns what this manager has counted since it was made, without I/O.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("orders:42").lock().await?;
    /// lease.unlock().await?;
    /// let stats = leases.stats();
    /// assert_eq!((stats.granted, stats.released, stats.lost), (1, 1, 0));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine.core.counters.stats()
    }

    /// Returns whether this manager and its store work, without I/O.
    ///
    /// [`operations`](crate::guide::operations#health-checks) says how to use it in health checks.
    ///
    /// ```
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let health = leases.health();
    /// assert!(health.is_live() && health.is_ready());
    /// ```
    #[must_use]
    pub fn health(&self) -> Health {
        self.engine.core.health()
    }

    /// Returns what this manager holds now, without I/O: the oldest grant first.
    ///
    /// It copies an entry for each hold, so with very many leases call it for people, not in a loop. To ask the store who
    /// holds a name in any process, use [`inspect`](LeaseManager::inspect).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let lease = leases.lock("orders:42").lock().await?;
    /// for holding in leases.holdings() {
    ///     println!("{} for {:?}, {} wait", holding.name, holding.age, holding.waiters);
    /// }
    /// assert_eq!(leases.holdings()[0].holder, lease.holder_id());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn holdings(&self) -> Vec<Holding> {
        let core = &self.engine.core;
        let holding = |(hold, waiters): (std::sync::Arc<crate::engine::Hold>, usize)| {
            let state = LeaseState::of(hold.in_use(core)?);
            Some(Holding {
                name: hold.name.to_string(),
                mode: hold.mode,
                state,
                remaining: hold.remaining(core),
                age: hold.held(core.now()),
                holder: hold.holder,
                fence: hold.fence,
                hold_count: hold.count(),
                waiters,
                class: hold.options.class(),
                label: hold.options.label().map(|label| label.to_string()),
            })
        };
        core.queue.held().into_iter().filter_map(holding).collect()
    }
}

/// A hold of this manager: see [`LeaseManager::holdings`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holding {
    /// The name.
    pub name: String,
    /// The mode.
    pub mode: Mode,
    /// Held, at risk, or lost with a lease that was not dropped yet.
    pub state: LeaseState,
    /// The time for which the holder may rely on it; zero when lost.
    pub remaining: Duration,
    /// The time since the grant, the hand-off, or the change of the mode.
    pub age: Duration,
    /// The id of the holder, as [`Lease::holder_id`](crate::Lease::holder_id) returns it.
    pub holder: HolderId,
    /// The fencing token.
    pub fence: Option<u64>,
    /// The number of leases that share the hold.
    pub hold_count: u32,
    /// The number of calls of this manager that wait for the name.
    pub waiters: usize,
    /// The class of the name.
    pub class: &'static str,
    /// The label of the handle.
    pub label: Option<String>,
}
