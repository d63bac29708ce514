//! Keeps a batcher for each runtime that locks: see [`PerRuntime`].

mod batch;
pub(super) mod calls;
mod defer;
pub(super) mod renew;

use super::scripts::lock::{Codec, Request};
use super::topology::runtimes::{Ends, Nearest, PerRuntime, Reservation, time_is_paused};
use super::topology::{Connection, Connector};
use crate::clock::Clock;
use crate::store::StoreFuture;
use crate::util::trace;
use batch::Batcher;
use calls::CallContext;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tracing::Level;

/// The pause between two attempts to connect.
const RETRY: Duration = Duration::from_secs(1);

/// The default batcher, and one for each other runtime that locks.
pub(super) struct RuntimeBatchers {
    default: Batcher,
    others: PerRuntime<Batcher>,
    shared: Arc<Shared>,
}

impl Ends for Batcher {
    fn is_closed(&self) -> bool {
        Batcher::is_closed(self)
    }
}

/// What it takes to open a batcher.
struct Shared {
    connector: Connector,
    codec: Codec,
    clock: Clock,
}

impl RuntimeBatchers {
    /// Starts the default batcher, on the current runtime.
    pub(super) fn start(
        connection: Connection,
        connector: Connector,
        codec: Codec,
        clock: Clock,
    ) -> Self {
        let (default, work) =
            Batcher::new(CallContext::new(connection, codec.clone(), clock.clone()));
        tokio::spawn(work);
        let shared = Arc::new(Shared { connector, codec, clock });
        Self { default, others: PerRuntime::new(), shared }
    }

    /// Sends a request by the batcher of the current runtime, or by the default one.
    pub(super) fn send<R: Request>(&self, request: R) -> StoreFuture<R::Verdict> {
        let open = |reservation| open_and_serve(reservation, Arc::clone(&self.shared));
        match self.others.nearest(open) {
            Nearest::Own(batcher) => batcher.send(request, true),
            Nearest::Default { here } => self.default.send(request, here),
        }
    }

    /// Ends all batchers and their connections. Waits for at most `limit`.
    pub(super) async fn close(&self, limit: Duration) {
        let batchers = self.others.close();
        let close = async {
            for batcher in batchers {
                batcher.close().await;
            }
        };
        let _ = timeout(limit, close).await;
    }
}

/// Connects on this runtime, then serves its batcher.
async fn open_and_serve(reservation: Reservation<Batcher>, shared: Arc<Shared>) {
    if time_is_paused() {
        return std::future::pending().await;
    }
    let connection = loop {
        match shared.connector.connect().await {
            Ok(connection) => break connection,
            Err(error) => trace::later(
                Level::DEBUG,
                || move || tracing::debug!(%error, "no connection for this runtime yet"),
            ),
        }
        if reservation.is_closed() {
            return;
        }
        sleep(RETRY).await;
    };
    let context = CallContext::new(connection, shared.codec.clone(), shared.clock.clone());
    let (batcher, work) = Batcher::new(context);
    // After the end, the work only closes the connection.
    reservation.fill(batcher);
    drop(reservation);
    drop(shared);
    work.await;
}
