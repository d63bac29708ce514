//! Calls the store. A panic of the store is a failure like others. A mode that the store does not support is refused here,
//! before anything is sent. [`Core::bounded`] and [`in_time`] put a limit on a request; the callers of acquires, releases and
//! subscriptions do.

use super::core::Core;
use super::queue::Queue;
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Result};

use crate::store::{
    About, Acquire, Acquired, ForceRelease, HolderId, Inbox, Inspect, Inspection, Line, Mode, Name,
    Note, Place, Reason, Release, Released, Resize, SetVerdicts, StoreFuture, Target, Wait,
    WaitingManager, Wakeups, Want, failed,
};
use crate::util::trace;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tracing::Level;

/// Ends the hand-offs of a semaphore that may have become smaller.
struct Shrinks<'a> {
    queue: &'a Queue,
    name: &'a Name,
    may_be: bool,
}

impl Drop for Shrinks<'_> {
    fn drop(&mut self) {
        if self.may_be {
            self.queue.shrunk(self.name);
        }
    }
}

impl Core {
    /// Asks the store for a name.
    pub(crate) fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        match self.check(request.target.mode) {
            Ok(()) => caught_call(|| self.store.acquire(request)),
            Err(error) => failed(error),
        }
    }

    /// Asks the store for several names: all of them or none.
    pub(in crate::engine) fn acquire_all(
        &self,
        requests: Vec<Acquire>,
    ) -> StoreFuture<SetVerdicts> {
        match requests.iter().try_for_each(|request| self.check(request.target.mode)) {
            Ok(()) => caught_call(|| self.store.acquire_all(requests)),
            Err(error) => failed(error),
        }
    }

    /// Returns whether the store takes all names of a set in one step.
    pub(crate) fn is_atomic(&self, names: &[&Name]) -> bool {
        // A panic of the store is no reason to fail: it can grant each name by itself.
        let ask = || self.store.is_atomic(names);
        names.len() == 1 || catch_unwind(AssertUnwindSafe(ask)).unwrap_or(false)
    }

    /// Has the store tell a holder that its name is wanted. Returns whether it has the name.
    pub(in crate::engine) async fn want(
        &self,
        target: Target,
        from: String,
        reason: Reason,
    ) -> Result<bool> {
        let request = Want::new(target, from, reason, self.timing.attempt);
        self.in_time(|| self.store.want(request)).await
    }

    /// Asks the store for the note that was left for a holder.
    pub(crate) async fn read_note(&self, target: Target, holder: HolderId) -> Result<Option<Note>> {
        let request = Inspect::new(target, self.timing.attempt);
        let request = request.with_about(About::Note(holder));
        Ok(self.in_time(|| self.store.inspect(request)).await?.note)
    }

    /// Subscribes to the inbox of this manager, if the store has inboxes.
    pub(in crate::engine) fn subscribe_inbox(&self) -> Option<Inbox> {
        catch_unwind(AssertUnwindSafe(|| self.store.inbox(self.manager()))).ok().flatten()
    }

    /// Has the store release a name.
    pub(crate) fn release(&self, request: Release) -> StoreFuture<Released> {
        caught_call(|| self.store.release(request))
    }

    /// Refuses a mode that the store does not support. A release or a renewal follows an acquire.
    fn check(&self, mode: Mode) -> Result<()> {
        if self.can.supports(mode) { Ok(()) } else { Err(self.can.unsupported(mode)) }
    }

    /// Has the store set the number of permits of a semaphore.
    pub(crate) async fn resize(&self, name: &Name, size: u32) -> Result<()> {
        self.check(Mode::Permits { size, take: 1 })?;
        let request = Resize::new(name.clone(), size, self.idle_kept(), self.timing.attempt);
        // A call that is dropped may have made it smaller, too.
        let mut shrinks = Shrinks { queue: &self.queue, name, may_be: true };
        let answer = self.in_time(|| self.store.resize(request)).await;
        shrinks.may_be = !matches!(answer, Ok(Some(before)) if before <= size);
        answer.map(|_| ())
    }

    /// Asks the store for the holders of a name, whatever kind of lock it is.
    pub(crate) async fn inspect(&self, name: &Name) -> Result<Inspection> {
        self.of_any_kind(name, |target| {
            self.store.inspect(Inspect::new(target, self.timing.attempt))
        })
        .await
    }

    /// Asks the store for the holders of a name in a mode.
    pub(crate) async fn inspect_as(&self, name: &Name, mode: Mode) -> Result<Inspection> {
        self.check(mode)?;
        let request = Inspect::new(Target::new(name.clone(), mode), self.timing.attempt);
        self.in_time(|| self.store.inspect(request)).await
    }

    /// Has the store release a name by force, whatever kind of lock it is.
    pub(crate) async fn force_release(&self, name: &Name, reason: &Reason) -> Result<bool> {
        self.of_any_kind(name, |target| {
            let force = ForceRelease::new(target, self.timing.attempt);
            self.store.force_release(force.with_reason(Some(reason.clone())))
        })
        .await
    }

    /// Asks for a name as one kind of lock after the other, until it is one of that kind.
    async fn of_any_kind<'a, T: Send + 'a>(
        &self,
        name: &Name,
        ask: impl Fn(Target) -> Request<'a, T>,
    ) -> Result<T> {
        self.check(Mode::Exclusive)?;
        let first = self.in_time(|| ask(Target::exclusive(name.clone()))).await;
        let others = [Mode::Read, Mode::Permits { size: 1, take: 1 }];
        for mode in others.into_iter().filter(|mode| self.can.supports(*mode)) {
            if !is_wrong_type(&first) {
                break;
            }
            let answer = self.in_time(|| ask(Target::new(name.clone(), mode))).await;
            if !is_wrong_type(&answer) {
                return answer;
            }
        }
        first
    }

    /// Asks the store for the wake-ups of a target, for a holder that is about to ask for it, or for one that only
    /// listens.
    pub(crate) async fn subscribe(
        &self,
        target: Target,
        holder: Option<HolderId>,
    ) -> Result<Option<Wakeups>> {
        self.check(target.mode)?;
        let request = Wait::new(target, holder, self.timing.attempt);
        asked(|| self.store.subscribe(request)).await
    }

    /// Refuses a place in a line, if the store orders the waiters of several managers in no way.
    pub(super) fn check_line(&self) -> Result<()> {
        if self.can.line == Line::Unordered { Err(Place::unsupported()) } else { Ok(()) }
    }

    /// Asks the store for the managers in the line of a name.
    pub(crate) async fn waiters(&self, name: &Name) -> Result<Vec<WaitingManager>> {
        self.check_line()?;
        let request = Inspect::new(Target::exclusive(name.clone()), self.timing.attempt);
        let request = request.with_about(About::Line);
        Ok(self.in_time(|| self.store.inspect(request)).await?.line)
    }

    /// Has the store give up a place, or give it to the waiter that arrived at `next`. A place that is not given up lapses.
    pub(in crate::engine) async fn leave(
        &self,
        target: Target,
        holder: HolderId,
        next: Option<Instant>,
    ) {
        let name = target.name.clone();
        let next = next.map(|arrived| self.place_of(arrived));
        let request = Release::arrival(target, holder, self.timing.attempt).with_place(next);
        let left = self.in_time(|| self.store.release(request)).await;
        if let Err(error) = left {
            trace::later(
                Level::DEBUG,
                || move || tracing::debug!(name = name.as_str(), %error, "a place is left to lapse"),
            );
        }
    }

    /// Makes a request and awaits it for two attempts at most. Whatever the store does, the call of a user ends then.
    pub(in crate::engine) async fn in_time<'a, T: Send + 'a>(
        &self,
        request: impl FnOnce() -> Request<'a, T>,
    ) -> Result<T> {
        in_time(self.timing.attempt * 2, asked(request)).await
    }

    /// Ends the store's connections.
    pub(in crate::engine) async fn close_store(&self) {
        let closed = asked(|| {
            Box::pin(async {
                self.store.close(self.timing.attempt).await;
                Ok(())
            })
        });
        if let Err(error) = closed.await {
            trace::later(
                Level::WARN,
                || move || tracing::warn!(%error, "the store's connections were not closed"),
            );
        }
    }

    /// Bounds a request of `since` that no caller waits for. Its caller may not have polled it for long, and others may
    /// wait behind it now.
    pub(in crate::engine) fn bounded<T: 'static>(
        &self,
        request: StoreFuture<T>,
        since: Instant,
    ) -> StoreFuture<T> {
        let passed = self.now().saturating_duration_since(since);
        // Even without time left, it is polled once, so that an answer that is there counts.
        Box::pin(in_time((self.timing.attempt * 2).saturating_sub(passed), request))
    }
}

/// Bounds a request: it may wait for a runtime that is no longer driven. Its fate is unknown then,
/// and the engine asks again on its own connection.
pub(in crate::engine) async fn in_time<T>(
    limit: Duration,
    request: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(limit, request).await.unwrap_or_else(|_| Err(Error::silent()))
}

/// A request to the store, which may borrow the name in question.
pub(in crate::engine) type Request<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Awaits a request. A panic of the store is a failure like others, with an unknown fate.
pub(in crate::engine) async fn caught<T>(request: &mut Request<'_, T>) -> Result<T> {
    poll_fn(|cx| {
        catch_unwind(AssertUnwindSafe(|| request.as_mut().poll(cx)))
            .unwrap_or_else(|_| Poll::Ready(Err(panicked())))
    })
    .await
}

/// Makes a request. A panic of the store is a failure, as in [`caught`].
pub(in crate::engine) fn caught_call<'a, T: Send + 'a>(
    request: impl FnOnce() -> Request<'a, T>,
) -> Request<'a, T> {
    catch_unwind(AssertUnwindSafe(request)).unwrap_or_else(|_| failed(panicked()))
}

/// Makes a request and awaits it, and turns a panic in either into a failure.
async fn asked<'a, T: Send + 'a>(request: impl FnOnce() -> Request<'a, T>) -> Result<T> {
    caught(&mut caught_call(request)).await
}

fn is_wrong_type<T>(answer: &Result<T>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::WrongType)
}

/// The error of a request at which the store panicked.
pub(in crate::engine) fn panicked() -> Error {
    Error::new(ErrorKind::Unavailable, "the store panicked")
}

#[cfg(test)]
#[cfg(feature = "testing")]
mod tests {
    use super::*;
    use crate::engine::machine::timing::Timing;
    use crate::engine::shared::core::Settings;
    use crate::error::{ErrorKind, Fate};
    use crate::store::{Capabilities, MemoryStore, Mode};
    use crate::testing::{Call, FaultyStore};
    use std::sync::Arc;

    #[tokio::test(start_paused = true)]
    async fn mode_a_store_does_not_support_is_refused_before_a_request() {
        let (store, faults) = FaultyStore::new(MemoryStore::new());
        let store = store.with_capabilities(Capabilities::default());
        let core = Core::new(Arc::new(store), Timing::DEFAULT, Settings::PLAIN, true);
        for mode in [Mode::Read, Mode::Write, Mode::Permits { size: 2, take: 1 }] {
            let target = Target::new(Name::new("n").unwrap(), mode);
            let ttl = core.timing.ttl;
            let request = Acquire::new(target, core.draw_holder(), ttl, core.timing.attempt);
            let error = core.acquire(request).await.unwrap_err();
            assert_eq!((error.kind(), error.fate()), (ErrorKind::Unsupported, Fate::NotExecuted));
        }
        assert_eq!(faults.calls(Call::Acquire), 0);
        let target = Target::exclusive(Name::new("n").unwrap());
        let request =
            Acquire::new(target, core.draw_holder(), core.timing.ttl, core.timing.attempt);
        core.acquire(request).await.unwrap();
        assert_eq!(faults.calls(Call::Acquire), 1);
    }
}
