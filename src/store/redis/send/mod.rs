//! Keeps a batcher for each runtime that locks.
//!
//! A request that crosses to another thread and back costs two wake-ups more than one that stays on its thread. On
//! loopback this is half a round trip. So each runtime gets a connection of its own when it first sends a request. Until
//! that is up, or if the runtime cannot have one, the default batcher serves it, which is on the runtime of the engine.

mod batch;
pub(super) mod calls;
mod defer;
pub(super) mod renew;
mod slot_batcher;

use super::scripts::lock::Codec;
use super::topology::{Connection, Connector};
use crate::clock::Clock;
use crate::store::StoreFuture;
use crate::util::sync::Mutex;
use crate::util::trace;
use batch::Batcher;
use calls::{Batched, CallContext};
use slot_batcher::SlotBatcher;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio::time::{sleep, timeout};
use tracing::Level;

/// The pause between two attempts to connect.
const RETRY: Duration = Duration::from_secs(1);

/// The default batcher, and one for each other runtime that locks.
pub(super) struct RuntimeBatchers {
    default: RuntimeBatcher,
    default_runtime: Id,
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

    fn is_closed(&self) -> bool {
        match self {
            Self::One(batcher) => batcher.is_closed(),
            Self::Slots(batcher) => batcher.is_closed(),
        }
    }

    async fn close(self) {
        match self {
            Self::One(batcher) => batcher.close().await,
            Self::Slots(batcher) => batcher.close().await,
        }
    }
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The state that the tasks which open batchers share, and their batchers.
struct Shared {
    connector: Connector,
    codec: Codec,
    clock: Clock,
    registry: Mutex<Registry>,
}

#[derive(Default)]
struct Registry {
    closed: bool,
    /// By runtime; `None` while the connection is being made. There are few runtimes, so this is a list.
    batchers: Vec<(Id, Option<RuntimeBatcher>)>,
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
        let shared = Arc::new(Shared { connector, codec, clock, registry: Mutex::default() });
        Self { default, default_runtime: Handle::current().id(), shared }
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
        let Ok(runtime) = Handle::try_current() else { return (self.default.clone(), false) };
        let id = runtime.id();
        if id == self.default_runtime {
            return (self.default.clone(), true);
        }
        let mut registry = self.shared.lock();
        // tokio may use an id again once its runtime has ended. The batcher has ended with the runtime.
        registry
            .batchers
            .retain(|(_, batcher)| batcher.as_ref().is_none_or(|batcher| !batcher.is_closed()));
        match registry.batchers.iter().find(|(known, _)| *known == id) {
            Some((_, Some(batcher))) => return (batcher.clone(), true),
            Some((_, None)) => {}
            None if registry.closed => {}
            None => {
                registry.batchers.push((id, None));
                drop(registry);
                runtime.spawn(open_and_serve(Reservation { id, shared: Arc::clone(&self.shared) }));
            }
        }
        (self.default.clone(), false)
    }

    /// Ends all batchers and their connections. Waits for at most `limit`.
    pub(super) async fn close(&self, limit: Duration) {
        let batchers = {
            let mut registry = self.shared.lock();
            registry.closed = true;
            std::mem::take(&mut registry.batchers)
        };
        let close = async {
            for batcher in batchers.into_iter().filter_map(|(_, batcher)| batcher) {
                batcher.close().await;
            }
        };
        let _ = timeout(limit, close).await;
    }
}

impl Drop for RuntimeBatchers {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock()
    }

    /// Makes the batcher of a runtime and opens it for requests. Returns the work that serves it.
    fn register(&self, id: Id, connection: Connection) -> Work {
        let codec = self.codec.clone();
        let clock = self.clock.clone();
        let (batcher, work) = RuntimeBatcher::new(CallContext::new(connection, codec, clock));
        let mut registry = self.lock();
        // Without a reservation, the batcher is dropped here, and its work only closes the connection.
        if let Some((_, reserved)) = registry.batchers.iter_mut().find(|(known, _)| *known == id) {
            *reserved = Some(batcher);
        }
        work
    }
}

/// Reserves the entry of a runtime. Removes it when the runtime ends before the batcher is there.
struct Reservation {
    id: Id,
    shared: Arc<Shared>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The runtime has no I/O driver. It cannot have a batcher, so it must not try again.
            return;
        }
        self.shared.lock().batchers.retain(|(id, batcher)| *id != self.id || batcher.is_some());
    }
}

/// Connects on this runtime, then serves its batcher.
async fn open_and_serve(reservation: Reservation) {
    let shared = &reservation.shared;
    if time_is_paused() {
        // Every reply would seem to come too late.
        return std::future::pending().await;
    }
    let work = loop {
        match shared.connector.connect().await {
            Ok(connection) => break shared.register(reservation.id, connection),
            Err(error) => trace::later(
                Level::DEBUG,
                || move || tracing::debug!(%error, "no connection for this runtime yet"),
            ),
        }
        if shared.lock().closed {
            return;
        }
        sleep(RETRY).await;
    };
    drop(reservation);
    work.await;
}

/// Returns whether a test has paused tokio's clock: then it disagrees with the system's clock.
fn time_is_paused() -> bool {
    let apart = || {
        let ours = std::time::Instant::now();
        let tokios = tokio::time::Instant::now().into_std();
        tokios.saturating_duration_since(ours).max(ours.saturating_duration_since(tokios))
    };
    // Between two readings the thread may have to wait for a processor.
    (0..5).map(|_| apart()).min() > Some(Duration::from_millis(1))
}
