//! Elections: one leader among the candidates of all processes.

mod candidate;
mod leadership;
mod view;

pub use candidate::Candidate;
pub use leadership::Leadership;
pub use view::{Leader, View};

use crate::engine::Engine;
use crate::error::Result;
use crate::store::Name;
use std::fmt;
use std::sync::Arc;

/// An election: at most one of the candidates for a name leads, across all processes.
///
/// [`LeaseManager::election`](crate::LeaseManager::election) creates it without I/O. The leader holds the lock of that
/// name, so the promises of a [`Lease`](crate::Lease) apply: the token of a leader fires before the next one leads. See
/// [`leader_election`](crate::guide::leader_election).
///
/// ```
/// use std::ops::ControlFlow;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let leases = leasehold::LeaseManager::in_memory();
/// let election = leases.election("scheduler");
/// election
///     .candidate("10.0.0.7:8080")
///     .lead(async |me| {
///         println!("leads in term {:?}", me.term());
///         // ... work until this future is dropped ...
///         ControlFlow::Break(())
///     })
///     .await
/// # }
/// ```
#[derive(Clone)]
#[must_use = "an election does nothing until `candidate` or `observe` is called"]
#[doc(alias = "leader election")]
#[doc(alias = "LeaderElector")]
#[doc(alias = "LeaderSelector")]
pub struct Election {
    engine: Arc<Engine>,
    /// The first campaign reports an invalid name.
    name: Result<Name>,
}

impl Election {
    pub(crate) fn new(engine: Arc<Engine>, name: &str) -> Self {
        Self { engine, name: Name::new(name) }
    }

    /// Returns the name; empty if the one that was given is invalid.
    pub fn name(&self) -> &str {
        Name::text_of(&self.name)
    }

    /// Creates a candidate with a value that everyone can read while it leads, such as its address, without I/O.
    ///
    /// The value has at most 4096 bytes. It is as public as the name. The first campaign reports one that is too long.
    pub fn candidate(&self, value: impl Into<String>) -> Candidate {
        Candidate::new(Arc::clone(&self.engine), self.name.clone(), value.into())
    }

    /// Begins to observe who leads. A background task keeps the view up to date while it, or a clone of it, is alive.
    ///
    /// With an invalid name it shows forever that it is [not known](Leader::stale_since) who leads.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let leases = leasehold::LeaseManager::in_memory();
    /// let election = leases.election("scheduler");
    /// let mut view = election.observe();
    /// let me = election.candidate("10.0.0.7:8080").campaign().await?;
    /// while view.current().value.as_deref() != Some("10.0.0.7:8080") {
    ///     view.changed().await;
    /// }
    /// assert_eq!(view.current().term, me.term());
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn observe(&self) -> View {
        View::new(&self.engine, &self.name)
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("name", &self.name).finish_non_exhaustive()
    }
}
