//! Keeps a batcher for each runtime that locks: see [`PerRuntime`].

mod batch;
pub(super) mod calls;
mod defer;
pub(super) mod renew;
mod slot_batcher;

use super::scripts::lock::Codec;
use super::topology::runtimes::{Ends, Nearest, PerRuntime, Reservation, time_is_paused};
use super::topology::{Connection, Connector};
use crate::clock::Clock;
use crate::store::StoreFuture;
use crate::util::trace;
use batch::Batcher;
use calls::{Batched, CallContext};
use slot_batcher::SlotBatcher;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tracing::Level;

/// The pause between two attempts to connect.
const RETRY: Duration = Duration::from_secs(1);

/// The default batcher, and one for each other runtime that locks.
pub(super) struct RuntimeBatchers {
    default: RuntimeBatcher,
    others: PerRuntime<RuntimeBatcher>,
    shared: Arc<Shared>,
}

/// The batcher of a runtime.
#[derive(Clone)]
enum RuntimeBatcher {
    One(Batcher),
    Slots(SlotBatcher),
}

impl RuntimeBatcher {
    /// Makes a batcher for the current runtime, and the work that must run there.
    fn new(context: CallContext) -> (Self, Work) {
        if context.connection.is_cluster() {
            let (batcher, work) = SlotBatcher::new(context);
            return (Self::Slots(batcher), Box::pin(work));
        }
        let (batcher, work) = Batcher::new(context);
        (Self::One(batcher), Box::pin(work))
    }

    async fn close(self) {
        match self {
            Self::One(batcher) => batcher.close().await,
            Self::Slots(batcher) => batcher.close().await,
        }
    }
}

impl Ends for RuntimeBatcher {
    fn is_closed(&self) -> bool {
        match self {
            Self::One(batcher) => batcher.is_closed(),
            Self::Slots(batcher) => batcher.is_closed(),
        }
    }
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

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
            RuntimeBatcher::new(CallContext::new(connection, codec.clone(), clock.clone()));
        tokio::spawn(work);
        let shared = Arc::new(Shared { connector, codec, clock });
        Self { default, others: PerRuntime::new(), shared }
    }

    /// Sends a request by the batcher that is nearest to the caller.
    pub(super) fn send<R: Batched>(&self, request: R) -> StoreFuture<R::Verdict> {
        match self.nearest() {
            (RuntimeBatcher::One(batcher), here) => batcher.send(request, here),
            (RuntimeBatcher::Slots(batcher), here) => batcher.send(request, here),
        }
    }

    /// Returns the batcher of the current runtime, or the default one, and whether it is on the current runtime.
    fn nearest(&self) -> (RuntimeBatcher, bool) {
        let open = |reservation| open_and_serve(reservation, Arc::clone(&self.shared));
        match self.others.nearest(open) {
            Nearest::Own(batcher) => (batcher, true),
            Nearest::Default { here } => (self.default.clone(), here),
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
async fn open_and_serve(reservation: Reservation<RuntimeBatcher>, shared: Arc<Shared>) {
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
    let (batcher, work) = RuntimeBatcher::new(context);
    // After the end, the work only closes the connection.
    reservation.fill(batcher);
    drop(reservation);
    drop(shared);
    work.await;
}
