//! Calls the store. A panic of the store is a failure like others. A mode that the store does not support is refused here,
//! before anything is sent. [`bounded`] and [`in_time`] put a limit on a request; the callers of acquires, releases and
//! subscriptions do.

use super::core::Core;
use super::queue::Queue;
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{
    About, Acquire, Acquired, Arrival, Capabilities, ForceRelease, HolderId, Inbox, Inspect,
    Inspection, Line, List, Listed, Mode, Name, Note, Pages, Reason, Release, Released, Resize,
    SetVerdicts, StoreFuture, Target, Wait, WaitingManager, Wakeups, Want, failed,
};
use crate::util::bound::within;
use crate::util::trace;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;
use tracing::Level;

/// The time between two tries to read a page of a listing.
const LIST_AGAIN: Duration = Duration::from_millis(200);

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

/// Asks the store for a name.
pub(crate) fn acquire(core: &Core, request: Acquire) -> StoreFuture<Acquired> {
    match check(core, request.target.mode) {
        Ok(()) => caught_call(|| core.store.acquire(request)),
        Err(error) => failed(error),
    }
}

/// Asks the store for several names: all of them or none.
pub(in crate::engine) fn acquire_all(
    core: &Core,
    requests: Vec<Acquire>,
) -> StoreFuture<SetVerdicts> {
    match requests.iter().try_for_each(|request| check(core, request.target.mode)) {
        Ok(()) => caught_call(|| core.store.acquire_all(requests)),
        Err(error) => failed(error),
    }
}

/// Returns whether the store takes all names of a set in one step.
pub(crate) fn is_atomic(core: &Core, names: &[&Name]) -> bool {
    // A panic of the store is no reason to fail: it can grant each name by itself.
    let ask = || core.store.is_atomic(names);
    names.len() == 1 || catch_unwind(AssertUnwindSafe(ask)).unwrap_or(false)
}

/// Has the store report to a holder that its name is wanted. Returns whether it has the name.
pub(in crate::engine) async fn want(
    core: &Core,
    target: Target,
    from: String,
    reason: Reason,
) -> Result<bool> {
    let request = Want::new(target, from, reason, core.timing.attempt);
    ask(core, || core.store.want(request)).await
}

/// Has the store ask the manager that has a name to give up a hold that rests. A question that is lost costs the time for which
/// it lingers.
pub(in crate::engine) async fn ask_to_yield(core: &Core, name: Name) {
    let request = Want::resting(Target::exclusive(name), core.timing.attempt);
    let _ = ask(core, || core.store.want(request)).await;
}

/// Asks the store for the note that was left for a holder.
pub(crate) async fn read_note(
    core: &Core,
    target: Target,
    holder: HolderId,
) -> Result<Option<Note>> {
    let request = Inspect::new(target, core.timing.attempt);
    let request = request.with_about(About::Note(holder));
    Ok(ask(core, || core.store.inspect(request)).await?.note)
}

/// Subscribes to the inbox of this manager, if the store has inboxes.
pub(in crate::engine) fn subscribe_inbox(core: &Core) -> Option<Inbox> {
    catch_unwind(AssertUnwindSafe(|| core.store.inbox(core.manager()))).ok().flatten()
}

/// Has the store release a name.
pub(crate) fn release(core: &Core, request: Release) -> StoreFuture<Released> {
    caught_call(|| core.store.release(request))
}

/// Refuses a mode that the store does not support. A release or a renewal follows an acquire.
fn check(core: &Core, mode: Mode) -> Result<()> {
    if core.can.supports(mode) { Ok(()) } else { Err(core.can.unsupported(mode)) }
}

/// Has the store set the number of permits of a semaphore.
pub(crate) async fn resize(core: &Core, name: &Name, size: u32) -> Result<()> {
    check(core, Mode::Permits { size, take: 1 })?;
    let request = Resize::new(name.clone(), size, core.idle_kept(), core.timing.attempt);
    // A call that is dropped may have made it smaller, too.
    let mut shrinks = Shrinks { queue: &core.queue, name, may_be: true };
    let answer = ask(core, || core.store.resize(request)).await;
    shrinks.may_be = !matches!(answer, Ok(Some(before)) if before <= size);
    answer.map(|_| ())
}

/// Asks the store for the holders of a name, whatever kind of lock it is.
pub(crate) async fn inspect(core: &Core, name: &Name) -> Result<Inspection> {
    in_any_mode(core, name, |target| core.store.inspect(Inspect::new(target, core.timing.attempt)))
        .await
}

/// Asks the store for the holders of a name in a mode.
pub(crate) async fn inspect_as(core: &Core, name: &Name, mode: Mode) -> Result<Inspection> {
    check(core, mode)?;
    let request = Inspect::new(Target::new(name.clone(), mode), core.timing.attempt);
    ask(core, || core.store.inspect(request)).await
}

/// Has the store release a name by force, whatever kind of lock it is.
pub(crate) async fn force_release(core: &Core, name: &Name, reason: &Reason) -> Result<bool> {
    in_any_mode(core, name, |target| {
        let force = ForceRelease::new(target, core.timing.attempt);
        core.store.force_release(force.with_reason(Some(reason.clone())))
    })
    .await
}

/// Asks for a name as one kind of lock after the other, until it is one of that kind.
async fn in_any_mode<'a, T: Send + 'a>(
    core: &Core,
    name: &Name,
    request: impl Fn(Target) -> Request<'a, T>,
) -> Result<T> {
    check(core, Mode::Exclusive)?;
    let first = ask(core, || request(Target::exclusive(name.clone()))).await;
    let others = [Mode::Read, Mode::Permits { size: 1, take: 1 }];
    for mode in others.into_iter().filter(|mode| core.can.supports(*mode)) {
        if !is_wrong_type(&first) {
            break;
        }
        let answer = ask(core, || request(Target::new(name.clone(), mode))).await;
        if !is_wrong_type(&answer) {
            return answer;
        }
    }
    first
}

/// Asks the store for the wake-ups of a target, for a holder that is about to ask for it, or for one that only
/// listens.
pub(crate) async fn subscribe(
    core: &Core,
    target: Target,
    holder: Option<HolderId>,
) -> Result<Option<Wakeups>> {
    check(core, target.mode)?;
    let request = Wait::new(target, holder, core.timing.attempt);
    asked(|| core.store.subscribe(request)).await
}

/// Refuses an arrival in a line, if the store orders the waiters of several managers in no way.
pub(super) fn check_line(can: &Capabilities) -> Result<()> {
    if can.line == Line::Unordered { Err(Arrival::unsupported()) } else { Ok(()) }
}

/// Asks the store for the managers in the line of a name.
pub(crate) async fn waiters(core: &Core, name: &Name) -> Result<Vec<WaitingManager>> {
    check_line(&core.can)?;
    let request = Inspect::new(Target::exclusive(name.clone()), core.timing.attempt);
    let request = request.with_about(About::Line);
    Ok(ask(core, || core.store.inspect(request)).await?.line)
}

/// Asks the store for the names that are in use, which sends nothing yet.
pub(crate) fn list(core: &Core, request: List) -> Result<Box<dyn Pages>> {
    catch_unwind(AssertUnwindSafe(|| core.store.list(request))).unwrap_or_else(|_| Err(panicked()))
}

/// Reads the next page of them. While the store does not answer, it is tried again, until one time to live has passed: for as
/// long as a failover takes.
pub(crate) async fn next_page(core: &Core, pages: &mut dyn Pages) -> Result<Option<Vec<Listed>>> {
    let until = core.now() + core.timing.ttl;
    loop {
        core.life.check()?;
        match ask(core, || pages.next()).await {
            Err(error) if error.is_unavailable() && core.now() < until => {
                core.clock().sleep_until(core.now() + LIST_AGAIN).await;
            }
            page => return page,
        }
    }
}

/// Makes a request and awaits it for two attempts at most. Whatever the store does, the call of a user ends then.
pub(in crate::engine) async fn ask<'a, T: Send + 'a>(
    core: &Core,
    request: impl FnOnce() -> Request<'a, T>,
) -> Result<T> {
    in_time(core.timing.attempt * 2, asked(request)).await
}

/// Ends the store's connections.
pub(in crate::engine) async fn close(core: &Core) {
    let closed = asked(|| {
        Box::pin(async {
            core.store.close(core.timing.attempt).await;
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
    core: &Core,
    request: StoreFuture<T>,
    since: Instant,
) -> StoreFuture<T> {
    let passed = core.now().saturating_duration_since(since);
    // Even without time left, it is polled once, so that an answer that is there counts.
    Box::pin(in_time((core.timing.attempt * 2).saturating_sub(passed), request))
}

/// Bounds a request: it may wait for a runtime that is no longer driven. Its fate is unknown then,
/// and the engine asks again on its own connection.
pub(in crate::engine) async fn in_time<T>(
    limit: Duration,
    request: impl Future<Output = Result<T>>,
) -> Result<T> {
    within(limit, pin!(request)).await.unwrap_or_else(|| Err(Error::silent()))
}

/// A request to the store, which may borrow the name in question.
type Request<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Awaits a request. A panic of the store is a failure like others, with an unknown fate.
pub(in crate::engine) async fn caught<T>(request: &mut Request<'_, T>) -> Result<T> {
    poll_fn(|cx| {
        catch_unwind(AssertUnwindSafe(|| request.as_mut().poll(cx)))
            .unwrap_or_else(|_| Poll::Ready(Err(panicked())))
    })
    .await
}

/// Awaits a request in place, so that a guard's Drop finds it while it is in flight.
pub(in crate::engine) async fn land<T>(flight: &mut Option<StoreFuture<T>>) -> Result<T> {
    let verdict = match flight {
        Some(request) => caught(request).await,
        None => {
            Err(Error::new(ErrorKind::Unavailable, "nothing was sent").with_fate(Fate::NotExecuted))
        }
    };
    *flight = None;
    verdict
}

/// Makes a request. A panic of the store is a failure, as in [`caught`].
fn caught_call<'a, T: Send + 'a>(request: impl FnOnce() -> Request<'a, T>) -> Request<'a, T> {
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
    use crate::engine::run::Engine;
    use crate::engine::shared::options::Settings;
    use crate::store::MemoryStore;
    use crate::testing::{Call, FaultyStore};
    use std::sync::Arc;
    use uuid::Uuid;

    #[tokio::test(start_paused = true)]
    async fn mode_a_store_does_not_support_is_refused_before_a_request() {
        let (store, faults) = FaultyStore::new(MemoryStore::new());
        let store = store.with_capabilities(Capabilities::default());
        let core =
            Engine::core(Uuid::new_v4(), Arc::new(store), Timing::DEFAULT, Settings::PLAIN, true);
        for mode in [Mode::Read, Mode::Write, Mode::Permits { size: 2, take: 1 }] {
            let target = Target::new(Name::new("n").unwrap(), mode);
            let ttl = core.timing.ttl;
            let request = Acquire::new(target, core.draw_holder(), ttl, core.timing.attempt);
            let error = acquire(&core, request).await.unwrap_err();
            assert_eq!((error.kind(), error.fate()), (ErrorKind::Unsupported, Fate::NotExecuted));
        }
        assert_eq!(faults.calls(Call::Acquire), 0);
        let target = Target::exclusive(Name::new("n").unwrap());
        let request =
            Acquire::new(target, core.draw_holder(), core.timing.ttl, core.timing.attempt);
        acquire(&core, request).await.unwrap();
        assert_eq!(faults.calls(Call::Acquire), 1);
    }
}
