//! The format of a lock's key on a Redis server.

/// The format of a lock's key on a Redis server, and so with which other clients it is shared.
///
/// Set by [`Builder::layout`](crate::Builder::layout). [`plain_locks`](crate::guide::plain_locks) has the tables: which clients
/// share plain locks, with which settings, and what plain locks cannot carry.
///
/// A worker in Python takes `nightly` by redis-py's `Lock`. This service takes the same name, and one of them waits:
///
/// ```no_run
/// # async fn run() -> leasehold::Result<()> {
/// use leasehold::{Layout, LeaseManager};
///
/// let leases = LeaseManager::builder()
///     .layout(Layout::Plain)
///     .connect("redis://127.0.0.1:6379")
///     .await?;
///
/// let mut lock = leases.lock("nightly");
/// let lease = lock.lock().await?; // waits for the worker, or for its time to live
/// // The watchdog renews the key, so the worker waits for us, however long this takes.
/// lease.unlock().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Layout {
    /// Hashes, channels and messages of Redisson: shared with Java services, with every kind of lock.
    #[default]
    Redisson,
    /// A string that holds the holder id, written by `SET NX PX`: shared with redis-py, redsync, node-redlock and every
    /// other client of that recipe. Exclusive locks only.
    Plain,
}
