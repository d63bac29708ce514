//! What each runtime has of its own: a connection, and what it serves.
//!
//! A request or a message that crosses to another thread and back costs two wake-ups more than one that stays on its thread.
//! On loopback this is half a round trip. So each runtime gets its own when it first needs it. Until that is up, or if the
//! runtime cannot have one, the default one serves it, which is on the runtime of the engine.
//!
//! A runtime without an I/O driver can have none. This is found out once.

use crate::util::sync::Mutex;
use crate::util::trace;
use std::future::Future;
use std::panic::catch_unwind;
use std::sync::Arc;
use tokio::runtime::{Handle, Id};
use tokio_util::sync::CancellationToken;
use tracing::Level;

/// What has ended with its runtime, or was closed.
pub(in crate::store::redis) trait Closable {
    fn is_closed(&self) -> bool;
}

/// One for each runtime that has needed it, except that of the default one.
pub(in crate::store::redis) struct PerRuntime<T> {
    default_runtime: Option<Id>,
    registry: Arc<Mutex<Registry<T>>>,
    /// Ends the tasks of runtimes that can have none.
    closing: CancellationToken,
}

struct Registry<T> {
    closed: bool,
    /// By runtime; `None` while it is being made. There are few runtimes, so this is a list.
    entries: Vec<(Id, Option<T>)>,
}

/// Which one serves a caller.
pub(in crate::store::redis) enum Nearest<T> {
    /// That of the caller's runtime.
    Own(T),
    /// The default one. `here`: the caller is on its runtime.
    Default { here: bool },
}

impl<T: Closable + Clone + Send + 'static> PerRuntime<T> {
    /// Makes an empty list. The default one is on the current runtime.
    pub(in crate::store::redis) fn new() -> Self {
        let registry = Registry { closed: false, entries: Vec::new() };
        let registry = Arc::new(Mutex::new(registry));
        let default_runtime = Handle::try_current().ok().map(|runtime| runtime.id());
        Self { default_runtime, registry, closing: CancellationToken::new() }
    }

    /// Returns the one of the current runtime. If there is none yet, `open` makes it, there and in the background.
    pub(in crate::store::redis) fn nearest<F: Future<Output = ()> + Send + 'static>(
        &self,
        open: impl FnOnce(Reservation<T>) -> F,
    ) -> Nearest<T> {
        let Ok(runtime) = Handle::try_current() else { return Nearest::Default { here: false } };
        let id = runtime.id();
        if Some(id) == self.default_runtime {
            return Nearest::Default { here: true };
        }
        let mut registry = self.registry.lock();
        // tokio may use an id again once its runtime has ended. What it had has ended with it.
        registry.entries.retain(|(_, own)| own.as_ref().is_none_or(|own| !own.is_closed()));
        match registry.entries.iter().find(|(known, _)| *known == id) {
            Some((_, Some(own))) => return Nearest::Own(own.clone()),
            Some((_, None)) => {}
            None if registry.closed => {}
            None => {
                registry.entries.push((id, None));
                drop(registry);
                let opening = open(Reservation { id, registry: Arc::clone(&self.registry) });
                let closing = self.closing.clone();
                runtime.spawn(async move {
                    if has_io() {
                        opening.await;
                    } else {
                        trace::later(Level::DEBUG, || {
                            || tracing::debug!("a runtime without I/O uses the connections of another one; enable_io is better")
                        });
                        // The reservation stays until the manager is closed, so that the runtime is not asked again.
                        let _reserved = opening;
                        closing.cancelled().await;
                    }
                });
            }
        }
        Nearest::Default { here: false }
    }

    /// Lets no more be made, and takes those that there are.
    pub(in crate::store::redis) fn close(&self) -> Vec<T> {
        self.closing.cancel();
        let mut registry = self.registry.lock();
        registry.closed = true;
        std::mem::take(&mut registry.entries).into_iter().filter_map(|(_, own)| own).collect()
    }
}

impl<T> Drop for PerRuntime<T> {
    fn drop(&mut self) {
        self.closing.cancel();
        let mut registry = self.registry.lock();
        registry.closed = true;
        let entries = std::mem::take(&mut registry.entries);
        drop(registry);
        drop(entries);
    }
}

/// Reserves the entry of a runtime. Removes it when the runtime ends before the entry is filled.
pub(in crate::store::redis) struct Reservation<T> {
    id: Id,
    registry: Arc<Mutex<Registry<T>>>,
}

impl<T> Reservation<T> {
    /// Returns the runtime.
    pub(in crate::store::redis) fn runtime(&self) -> Id {
        self.id
    }

    /// Returns whether nothing is to be made any more.
    pub(in crate::store::redis) fn is_closed(&self) -> bool {
        self.registry.lock().closed
    }

    /// Opens it for callers. After the end, it is dropped here instead.
    pub(in crate::store::redis) fn fill(&self, own: T) {
        let mut registry = self.registry.lock();
        if let Some((_, entry)) = registry.entries.iter_mut().find(|(known, _)| *known == self.id) {
            *entry = Some(own);
        } else {
            drop(registry);
            drop(own);
        }
    }
}

impl<T> Drop for Reservation<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Whatever it was, it may come again, so it must not try again.
            return;
        }
        self.registry.lock().entries.retain(|(id, own)| *id != self.id || own.is_some());
    }
}

/// Returns whether the current runtime has an I/O driver. tokio says it only by a panic, which the panic hook reports.
fn has_io() -> bool {
    #[cfg(unix)]
    let has_panicked = catch_unwind(|| drop(tokio::net::UnixStream::pair())).is_err();
    #[cfg(not(unix))]
    let has_panicked = catch_unwind(|| {
        // Without a socket it is not known.
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").ok()?;
        socket.set_nonblocking(true).ok()?;
        tokio::net::UdpSocket::from_std(socket).ok()
    })
    .is_err();
    !has_panicked
}

/// Returns whether a test has paused tokio's clock: then it disagrees with the system's clock, and every reply would seem to
/// come too late.
pub(in crate::store::redis) fn time_is_paused() -> bool {
    let apart = || {
        let ours = std::time::Instant::now();
        let tokios = tokio::time::Instant::now().into_std();
        tokios.saturating_duration_since(ours).max(ours.saturating_duration_since(tokios))
    };
    // Between two readings the thread may have to wait for a processor.
    (0..5).map(|_| apart()).min() > Some(std::time::Duration::from_millis(1))
}
