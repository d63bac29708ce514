//! The health of a manager.

use std::time::Duration;

/// The health of a manager: see [`LeaseManager::health`](crate::LeaseManager::health).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// How long the store has not answered: the time since the first request that failed without an answer, or was not sent
    /// because the store refuses the connection. Zero while the store answers. Also zero once a TTL has passed without a
    /// failed request: then there is nothing to ask, or it is time to try again.
    pub store_silent_for: Duration,
    /// How long the store has answered, but served no acquire: the time since the first acquire that was refused for a reason
    /// that has nothing to do with its name, such as a server that is read-only or out of memory. Zero after an acquire that
    /// was served, and if none has been refused for one time to live.
    pub store_refuses_for: Duration,
    /// The number of holds that are at risk now.
    pub at_risk: usize,
    /// The number of losses in the last minute, without those of [`close`](crate::LeaseManager::close).
    pub losses_1m: u32,
    /// The delay of the watchdog now. It is more than some milliseconds only if the process or its threads get no CPU
    /// time.
    pub watchdog_lag: Duration,
    /// The time that the engine counts as the time to live: the [TTL](crate::Builder::ttl), on ZooKeeper three quarters
    /// of it.
    pub ttl: Duration,
    /// Whether the manager is closed.
    pub closed: bool,
    /// Whether it has closed itself, because its watchdog panicked.
    pub panicked: bool,
    /// The leaders of this manager, also those whose work goes on after the loss of their leadership.
    pub leading: Vec<LeadershipHealth>,
}

impl Health {
    /// Returns whether the process can go on: false if the watchdog is late by more than the time to live, or has
    /// panicked.
    ///
    /// For a liveness probe, which restarts the process. A store that is out of reach is no reason for a restart.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !self.panicked && self.watchdog_lag <= self.ttl
    }

    /// Returns whether leases can be acquired: false if the manager is closed, or if for longer than the time to live the
    /// store has not answered, or has refused every acquire for a reason that has nothing to do with its name. [`operations`](crate::guide::operations#health-checks) lists
    /// which errors count. A missing permission for single names does not.
    ///
    /// For a readiness probe.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.closed && self.store_silent_for <= self.ttl && self.store_refuses_for <= self.ttl
    }
}

/// The health of a leadership, as [`Leadership::health`](crate::Leadership::health) and [`Health::leading`] report it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeadershipHealth {
    /// The name of the election.
    pub name: String,
    /// The term.
    pub term: Option<u64>,
    /// How long ago the leadership was lost, if it was: for so long its work has gone on without it. `None` while it leads.
    pub lost_for: Option<Duration>,
}

impl LeadershipHealth {
    /// Returns whether the work still runs more than `limit` after its leadership was lost: then it is stuck, and the
    /// process should be restarted. A process that does not lead is healthy.
    pub fn is_overdue(&self, limit: Duration) -> bool {
        self.lost_for.is_some_and(|lost| lost > limit)
    }
}
