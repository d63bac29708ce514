//! Asks the store for several names in one call: all of them or none.
//!
//! Each name has an acquire of its own. It [arrives](SetCall::arrive) here when it has its turn in this process. When all have
//! arrived, they make their requests, which leave in one call. From then on each request waits for its verdict by itself,
//! wherever it is polled.
//!
//! # Invariants
//!
//! 1. Nothing is asked of the store while an acquire has not arrived, and nothing at all if one has ended without its name.
//!    So a set that waits for a silent name does not make the others look silent.
//! 2. No waker is woken and no future is dropped under a lock.

use crate::engine::shared::calls;
use crate::engine::shared::core::Core;
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{Acquire, Acquired, Name, SetVerdicts, StoreFuture};
use crate::util::join::Next;
use crate::util::reached::Rare;
use crate::util::sync::Mutex;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

/// The acquires of a set. One task polls all of them.
#[derive(Debug)]
pub(crate) struct SetCall {
    /// Whether the store takes all names in one step.
    atomic: bool,
    /// How many acquires have arrived since the last round began.
    arrived: AtomicUsize,
    round: AtomicUsize,
    /// Whether an acquire has ended without its name, so that the others are given up.
    is_given_up: AtomicBool,
    /// The requests of this round, which have not left.
    call: Mutex<Arc<Call>>,
    not_tried: Arc<Mutex<Vec<Name>>>,
}

impl SetCall {
    pub(crate) fn new(atomic: bool) -> Self {
        Self {
            atomic,
            arrived: AtomicUsize::new(0),
            round: AtomicUsize::new(0),
            is_given_up: AtomicBool::new(false),
            call: Mutex::default(),
            not_tried: Arc::default(),
        }
    }

    /// Waits until all acquires have arrived. [`next`](Self::next) has the task poll this again, so it needs no waker.
    pub(super) async fn arrive(&self) {
        let round = self.round.load(Relaxed);
        self.arrived.fetch_add(1, Relaxed);
        poll_fn(|_| match self.round.load(Relaxed) == round {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await;
    }

    /// Adds a request, and returns its verdict.
    pub(in crate::engine) fn add(&self, request: Acquire) -> StoreFuture<Acquired> {
        let call = Arc::clone(&self.call.lock());
        let name = request.target.name.clone();
        let index = call.0.lock().add(request);
        Box::pin(Part { call, index, name, not_tried: Arc::clone(&self.not_tried) })
    }

    /// Decides what comes next when all acquires were polled; `ended` are those that have.
    pub(crate) fn next<T>(
        &self,
        core: &Core,
        ended: &[Option<T>],
        has_name: impl Fn(&T) -> bool,
    ) -> Next {
        let arrived = self.arrived.load(Relaxed);
        let requests = self.call.lock().0.lock().requests.len();
        if arrived + requests == 0 {
            return Next::Wait;
        }
        if !ended.iter().flatten().all(has_name) {
            Rare::SetGivenUp.reached();
            self.is_given_up.store(true, Relaxed);
            return Next::Stop;
        }
        if arrived + requests < ended.iter().filter(|ended| ended.is_none()).count() {
            return Next::Wait;
        }
        if arrived > 0 {
            self.arrived.store(0, Relaxed);
            self.round.fetch_add(1, Relaxed);
        } else {
            // A request that comes later is in another call.
            let call = std::mem::take(&mut *self.call.lock());
            call.send(core, self.atomic);
        }
        Next::PollAgain
    }

    /// Returns whether the store left this name as it is because another one of the set was not granted.
    pub(crate) fn has_not_tried(&self, name: &Name) -> bool {
        self.not_tried.lock().contains(name)
    }

    /// Returns whether the acquires that have not ended are given up because of one that has, also later.
    pub(super) fn is_given_up(&self) -> &AtomicBool {
        &self.is_given_up
    }
}

impl Drop for SetCall {
    fn drop(&mut self) {
        // If one of the acquires failed after all had arrived, the requests of the others never leave.
        let call = Arc::clone(&self.call.lock());
        call.give_up();
    }
}

/// Requests that leave together.
#[derive(Default)]
struct Call(Mutex<State>);

#[derive(Default)]
struct State {
    /// Those that have not left.
    requests: Vec<Acquire>,
    flight: Flight,
    /// The wakers of those that wait for the answer.
    wakers: Vec<Option<Waker>>,
}

#[derive(Default)]
enum Flight {
    #[default]
    NotSent,
    GivenUp,
    /// In one call.
    Together(StoreFuture<SetVerdicts>),
    /// Each by itself.
    Each(Vec<StoreFuture<Acquired>>),
    Answered(SetVerdicts),
}

impl Call {
    fn send(&self, core: &Core, atomic: bool) {
        let requests = std::mem::take(&mut self.0.lock().requests);
        let flight = match atomic && requests.len() > 1 {
            true => Flight::Together(calls::acquire_all(core, requests)),
            false => {
                Flight::Each(requests.into_iter().map(|one| calls::acquire(core, one)).collect())
            }
        };
        self.0.lock().flight = flight;
    }

    fn give_up(&self) {
        let mut state = self.0.lock();
        let flight = std::mem::replace(&mut state.flight, Flight::GivenUp);
        let wakers = state.wakers();
        drop(state);
        drop(flight);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns `None` for a name that was not tried.
    fn poll(&self, index: usize, cx: &mut Context<'_>) -> Poll<Result<Option<Acquired>>> {
        let mut over = None;
        let mut wakers = Vec::new();
        let mut state = self.0.lock();
        if let Flight::Together(flight) = &mut state.flight
            && let Poll::Ready(answer) = flight.as_mut().poll(cx)
        {
            let verdicts = verdicts(answer, state.wakers.len());
            over = Some(std::mem::replace(&mut state.flight, Flight::Answered(verdicts)));
            wakers = state.wakers();
        }
        let verdict = match &mut state.flight {
            Flight::Answered(verdicts) => Poll::Ready(verdicts[index].clone()),
            Flight::GivenUp => Poll::Ready(Err(not_sent())),
            Flight::Each(flights) => flights[index].as_mut().poll(cx).map_ok(Some),
            Flight::NotSent | Flight::Together(_) => Poll::Pending,
        };
        if verdict.is_pending() {
            state.wakers[index] = Some(cx.waker().clone());
        }
        drop(state);
        drop(over);
        // This task looks at the others by itself.
        wakers.into_iter().filter(|other| !other.will_wake(cx.waker())).for_each(Waker::wake);
        verdict
    }
}

impl State {
    fn add(&mut self, request: Acquire) -> usize {
        self.requests.push(request);
        self.wakers.push(None);
        self.wakers.len() - 1
    }

    fn wakers(&mut self) -> Vec<Waker> {
        self.wakers.iter_mut().filter_map(Option::take).collect()
    }
}

/// Gives each request its part of the answer.
fn verdicts(answer: Result<SetVerdicts>, count: usize) -> SetVerdicts {
    let nonsense = |why| vec![Err(Error::protocol(why)); count];
    match answer {
        Ok(verdicts) if verdicts.len() != count => nonsense("a verdict is needed for each name"),
        Ok(verdicts) if verdicts.iter().all(|verdict| matches!(verdict, Ok(None))) => {
            nonsense("a set was refused, and none of its names")
        }
        Ok(verdicts) => verdicts,
        Err(error) => vec![Err(error); count],
    }
}

fn not_sent() -> Error {
    Error::new(ErrorKind::Unavailable, "another name of the set could not be asked for")
        .with_fate(Fate::NotExecuted)
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").finish_non_exhaustive()
    }
}

/// One request of a call.
struct Part {
    call: Arc<Call>,
    index: usize,
    name: Name,
    not_tried: Arc<Mutex<Vec<Name>>>,
}

impl Future for Part {
    type Output = Result<Acquired>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.call.poll(self.index, cx).map_ok(|verdict| {
            verdict.unwrap_or_else(|| {
                self.not_tried.lock().push(self.name.clone());
                // To this acquire it is the same.
                Acquired::held(None)
            })
        })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut state = self.call.0.lock();
        state.wakers[self.index] = None;
        // The answer may wake the last one that has polled, which may be this one.
        let wakers = match state.flight {
            Flight::Together(_) => state.wakers(),
            _ => Vec::new(),
        };
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc;
    use std::task::Wake;
    use std::time::Duration;

    /// Looks at the call when it is woken, as the waker of a user could through what it wakes.
    struct Looks {
        call: Arc<Call>,
        woken: AtomicU32,
    }

    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            self.woken.fetch_add(1, Relaxed);
            drop(self.call.0.lock());
        }
    }

    /// Runs a story on a thread of its own, because a lock that is held stops it.
    fn watched(story: impl FnOnce() + Send + 'static) {
        let (done, ended) = mpsc::channel();
        std::thread::spawn(move || {
            story();
            let _ = done.send(());
        });
        ended.recv_timeout(Duration::from_secs(20)).expect("no waker under the lock");
    }

    /// A call of two requests without an answer, and the waker of the second one.
    fn two_wait() -> (Arc<Call>, Arc<Looks>) {
        let call = Arc::new(Call::default());
        call.0.lock().wakers = vec![None, None];
        let looks = Arc::new(Looks { call: Arc::clone(&call), woken: AtomicU32::new(0) });
        let waker = Waker::from(Arc::clone(&looks));
        assert!(call.poll(1, &mut Context::from_waker(&waker)).is_pending());
        (call, looks)
    }

    #[test]
    fn wakers_are_woken_without_a_lock() {
        watched(|| {
            let (call, looks) = two_wait();
            let verdicts = vec![Ok(Some(Acquired::held(None))), Ok(None)];
            call.0.lock().flight = Flight::Together(Box::pin(std::future::ready(Ok(verdicts))));
            let first = call.poll(0, &mut Context::from_waker(Waker::noop()));
            assert!(matches!(first, Poll::Ready(Ok(Some(_)))));
            assert_eq!(looks.woken.load(Relaxed), 1);

            let (call, looks) = two_wait();
            call.give_up();
            assert_eq!(looks.woken.load(Relaxed), 1);
        });
    }

    /// The store wakes the last one that has polled it.
    #[test]
    fn request_that_goes_leaves_the_answer_to_another() {
        let (call, looks) = two_wait();
        call.0.lock().flight = Flight::Together(Box::pin(std::future::pending()));
        let name = Name::new("a").unwrap();
        let part = Part { call: Arc::clone(&call), index: 0, name, not_tried: Arc::default() };
        let mut part = Box::pin(part);
        assert!(part.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(part);
        assert_eq!(looks.woken.load(Relaxed), 1);
    }
}
