//! The tools of leasehold's tests and benchmarks: servers of their own, a proxy that breaks connections in
//! chosen ways, a client that looks at the server from outside, and the oracle of the soak.
//!
//! Everything here is synchronous, except for [`eventually`], so that it serves any runtime;
//! each call is short enough to be made from async code.

// What is made anew here starts threads and networks, which no default should.
#![allow(clippy::new_without_default)]

pub mod beliefs;
pub mod delegate;
pub mod dice;
#[cfg(target_os = "linux")]
pub mod fault;
pub mod frame;
#[cfg(target_os = "linux")]
pub mod holder;
pub mod janitor;
pub mod look;
pub mod lua;
#[cfg(target_os = "linux")]
pub mod namespaces;
pub mod order;
pub mod permissions;
pub mod pipe;
pub mod polled;
#[cfg(target_os = "linux")]
pub mod preload;
pub mod proxy;
pub mod reached;
pub mod relay;
pub mod resp;
pub mod server;
pub mod soak;
#[cfg(target_os = "linux")]
pub mod step_clock;
pub mod stub;
pub mod topology;
pub mod trace;
pub mod zookeeper;

use leasehold::{Builder, ErrorKind, Lease, LeaseManager};
use std::panic::Location;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

pub use dice::Dice;
pub use pipe::{Pace, Pipe};
pub use proxy::{Mode, Proxy};
pub use resp::{Reply, Resp, is_timeout};
pub use server::Server;
pub use stub::Stub;
pub use topology::{Cluster, Sentinels};

pub const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub async fn lock(leases: &LeaseManager, name: &str) -> Lease {
    leases.lock(name).lock().await.expect("a lease")
}

/// Connects; where the machine was too slow for the limits that follow from a short time to live, again.
pub async fn connect_in_the_end(builder: Builder, url: &str) -> LeaseManager {
    let start = Instant::now();
    loop {
        match builder.clone().connect(url).await {
            Ok(leases) => return leases,
            Err(error) => {
                let slow = error.kind() == ErrorKind::Unavailable;
                assert!(slow && start.elapsed() < Duration::from_secs(15), "no manager: {error}");
            }
        }
    }
}

/// Waits until `condition` holds; panics, naming the caller's line, if it does not within `limit`.
///
/// The limit is real time even under a paused tokio clock: what is waited for happens in other
/// processes and threads, which know nothing of that clock. A paused clock skips the wait between two looks, so
/// the thread sleeps instead: else its looks may keep a lock from the thread that they wait for.
#[track_caller]
pub fn eventually(
    limit: Duration,
    mut condition: impl FnMut() -> bool,
) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move {
        let start = Instant::now();
        while !condition() {
            assert!(
                start.elapsed() < limit,
                "what {caller} waits for did not come true within {limit:?}"
            );
            let looked = Instant::now();
            tokio::time::sleep(Duration::from_millis(5)).await;
            if looked.elapsed() < Duration::from_millis(1) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Awaits what must come; panics, naming the caller's line, if it does not within `limit`.
#[track_caller]
pub fn within<F: Future>(limit: Duration, future: F) -> impl Future<Output = F::Output> {
    let caller = Location::caller();
    async move {
        let output = tokio::time::timeout(limit, future).await;
        output.unwrap_or_else(|_| panic!("what {caller} awaits did not come within {limit:?}"))
    }
}

/// Polls what must wait once, and spawns it: it is in line from here on.
#[track_caller]
pub fn in_line<F>(future: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let mut future = Box::pin(future);
    let first = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(first.is_pending(), "it does not wait");
    tokio::spawn(future)
}
