//! Asks the store for several names in one call: all of them or none.
//!
//! Each name has an acquire of its own. When it has its turn in this process, it brings its request here, and the call is
//! sent when all of them have come. From then on each request waits for the answer by itself, wherever it is polled.

use super::ask::caught_call;
use super::core::Core;
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{Acquire, Acquired, Name, SetVerdicts, StoreFuture, failed};
use crate::sync::Mutex;
use crate::together::Next;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The requests of a set that are to be sent in one call.
#[derive(Debug)]
pub(crate) struct SetCall {
    /// Whether the store takes all names in one step.
    atomic: bool,
    call: Mutex<Arc<Mutex<Call>>>,
    spared: Arc<Mutex<Vec<Name>>>,
}

/// What the requests of one call share.
#[derive(Default)]
struct Call {
    /// Those that have not been sent.
    requests: Vec<Acquire>,
    flight: Flight,
    /// The wakers of those that wait for the answer of another's poll.
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

impl SetCall {
    pub(crate) fn new(atomic: bool) -> Self {
        Self { atomic, call: Mutex::default(), spared: Arc::default() }
    }

    /// Adds a request, and returns its verdict.
    pub(super) fn add(&self, request: Acquire) -> StoreFuture<Acquired> {
        let call = Arc::clone(&self.call.lock());
        let name = request.target.name.clone();
        let mut open = call.lock();
        let index = open.requests.len();
        open.requests.push(request);
        open.wakers.push(None);
        drop(open);
        Box::pin(Part { call, index, name, spared: Arc::clone(&self.spared) })
    }

    /// Decides how a set goes on when all its acquires were polled; `ended` are those that have. Sends the requests when all
    /// others have come. Sends none if one has ended without its name.
    pub(crate) fn next<T>(
        &self,
        core: &Core,
        ended: &[Option<T>],
        has_name: impl Fn(&T) -> bool,
    ) -> Next {
        let mut open = self.call.lock();
        let waiting = open.lock().requests.len();
        if waiting == 0 {
            return Next::Wait;
        }
        if !ended.iter().flatten().all(has_name) {
            return Next::Stop;
        }
        if waiting < ended.iter().filter(|ended| ended.is_none()).count() {
            return Next::Wait;
        }
        // A request that comes later is in another call.
        let call = std::mem::take(&mut *open);
        drop(open);
        call.lock().send(core, self.atomic);
        Next::PollAgain
    }

    /// Returns whether the store left a name free because another one of the set was held.
    pub(crate) fn has_spared(&self, name: &Name) -> bool {
        self.spared.lock().contains(name)
    }
}

impl Drop for SetCall {
    fn drop(&mut self) {
        let call = self.call.lock();
        let mut call = call.lock();
        call.flight = Flight::GivenUp;
        call.wake_others(None);
    }
}

impl Call {
    fn send(&mut self, core: &Core, atomic: bool) {
        let requests = std::mem::take(&mut self.requests);
        self.flight = match atomic && requests.len() > 1 {
            true => Flight::Together(core.acquire_all(requests)),
            false => Flight::Each(requests.into_iter().map(|one| core.acquire(one)).collect()),
        };
    }

    /// Wakes all that wait, but for the task of `waker`, which looks by itself.
    fn wake_others(&mut self, waker: Option<&Waker>) {
        for waiting in &mut self.wakers {
            let other = |waiting: &mut Waker| !waker.is_some_and(|own| waiting.will_wake(own));
            waiting.take_if(other).into_iter().for_each(Waker::wake);
        }
    }

    /// Returns `None` for a name that was spared.
    fn poll(&mut self, index: usize, cx: &mut Context<'_>) -> Poll<Result<Option<Acquired>>> {
        if let Flight::Together(flight) = &mut self.flight
            && let Poll::Ready(answer) = flight.as_mut().poll(cx)
        {
            let count = self.wakers.len();
            let verdicts = match answer {
                Ok(verdicts) if verdicts.len() == count => verdicts,
                Ok(_) => vec![Err(Error::protocol("a verdict is needed for each name")); count],
                Err(error) => vec![Err(error); count],
            };
            self.flight = Flight::Answered(verdicts);
            self.wake_others(Some(cx.waker()));
        }
        let verdict = match &mut self.flight {
            Flight::Answered(verdicts) => Poll::Ready(verdicts[index].clone()),
            Flight::GivenUp => Poll::Ready(Err(not_sent())),
            Flight::Each(flights) => flights[index].as_mut().poll(cx).map_ok(Some),
            Flight::NotSent | Flight::Together(_) => Poll::Pending,
        };
        if verdict.is_pending() {
            self.wakers[index] = Some(cx.waker().clone());
        }
        verdict
    }
}

fn not_sent() -> Error {
    Error::new(ErrorKind::Unavailable, "another name of the set could not be asked for")
        .with_fate(Fate::NotExecuted)
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("requests", &self.requests).finish_non_exhaustive()
    }
}

/// One request of a call.
struct Part {
    call: Arc<Mutex<Call>>,
    index: usize,
    name: Name,
    spared: Arc<Mutex<Vec<Name>>>,
}

impl Future for Part {
    type Output = Result<Acquired>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let verdict = self.call.lock().poll(self.index, cx);
        verdict.map_ok(|verdict| {
            verdict.unwrap_or_else(|| {
                self.spared.lock().push(self.name.clone());
                // To this acquire it is the same.
                Acquired::held(None)
            })
        })
    }
}

impl Core {
    /// Returns whether the store takes all names of a set in one step.
    pub(crate) fn is_atomic(&self, names: &[&Name]) -> bool {
        names.len() == 1 || self.store.is_atomic(names)
    }

    /// Asks the store for several names: all of them or none.
    fn acquire_all(&self, requests: Vec<Acquire>) -> StoreFuture<SetVerdicts> {
        match requests.iter().try_for_each(|request| self.check(request.target.mode)) {
            Ok(()) => caught_call(|| self.store.acquire_all(requests)),
            Err(error) => failed(error),
        }
    }
}
