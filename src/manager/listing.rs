//! The names that are in use, as a stream.

use crate::engine::{Engine, calls};
use crate::error::Result;
use crate::store::{List, Listed, NameMap, Pages};
use futures_core::Stream;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::task::coop::poll_proceed;

/// How many names a listing remembers, in order to return each of them once.
const REMEMBERED: usize = 100_000;

/// A stream of the names that are in use: see [`LeaseManager::list`](crate::LeaseManager::list).
///
/// # What it promises
///
/// It is no snapshot: the names change while it is read.
///
/// - A name that has a holder from the first poll to the end is returned, whatever else changes, also across a failover and
///   when slots of a cluster move. One case is left: names of a slot that is on its way between two servers at the end can be
///   missing. On a quorum such a name is returned if a majority has it.
/// - A name that is held for a part of that time only may be returned. So may one whose hold has ended or expired a moment
///   ago, and, on a quorum, one that only a minority still has. Ask by [`inspect`](crate::LeaseManager::inspect).
/// - Each name is returned once, as long as there are not more than 100 000. Beyond these it can be returned again. One that is
///   a lock and a semaphore at once is returned as one of them; [`holders`](crate::LeaseManager::holders) shows those of the lock.
/// - Their order has no meaning.
///
/// # How names are found
///
/// | store | what it looks at |
/// |---|---|
/// | Redis, also Sentinel and Cluster | `SCAN` of each primary. A key is a lock by its shape: a hash whose fields are holder ids, or a sorted set of permits; with [`Layout::Plain`](crate::Layout::Plain) a string that has a time to live. Locks of Redisson, and plain ones of other clients, are among them |
/// | a quorum | all nodes that answer, one after the other; too few of them is an error |
/// | ZooKeeper | the directory of all locks, in one answer, and each lock in it |
/// | memory | all names at once |
///
/// # What it costs
///
/// A page takes a server of Redis less than a millisecond, however large the keys are. To ask about a name afterwards, by
/// [`holders`](crate::LeaseManager::holders) or [`inspect`](crate::LeaseManager::inspect), reads the whole key in one step, and
/// its shape can be that of a lock by chance: ask no further where [`is_large`](crate::Listed::is_large) is set.
///
/// # Errors
///
/// After an error it ends. An outage becomes an error after a [TTL](crate::Builder::ttl); until then it tries again.
///
/// - [`Unavailable`](crate::ErrorKind::Unavailable): the store does not answer, or the slots of a cluster move all the time.
/// - [`Denied`](crate::ErrorKind::Denied): the user may not list. On Redis it needs the
///   [permissions for listing](crate::guide::redis#permissions).
/// - [`Unsupported`](crate::ErrorKind::Unsupported): the store does not know its names.
/// - [`Closed`](crate::ErrorKind::Closed): the manager is closed.
/// - [`Protocol`](crate::ErrorKind::Protocol): the reply is not that of the expected server.
///
/// # Panics
///
/// Polling it panics outside a tokio runtime, and in one without timers.
#[must_use = "a stream does nothing until it is polled"]
pub struct Listing {
    engine: Arc<Engine>,
    request: List,
    stage: Stage,
    /// Those that are found and not returned yet.
    found: VecDeque<Listed>,
    /// Those that were found, up to a number.
    known: NameMap<()>,
}

/// A page that is on its way. It returns the pages, for the next one.
type Reading = Pin<Box<dyn Future<Output = Result<Page>> + Send>>;

struct Page {
    pages: Box<dyn Pages>,
    names: Option<Vec<Listed>>,
}

enum Stage {
    New,
    Reading(Reading),
    Read(Box<dyn Pages>),
    Ended,
}

impl Listing {
    pub(super) fn new(engine: Arc<Engine>, prefix: String) -> Self {
        // It takes as long as a request: the time is set when it begins.
        let request = List::new(prefix, Duration::ZERO);
        Self {
            engine,
            request,
            stage: Stage::New,
            found: VecDeque::new(),
            known: NameMap::default(),
        }
    }

    /// Sets how many keys of the store one request looks at: 500 by default, which takes a server of Redis less than a
    /// millisecond.
    ///
    /// A value outside of 1 to 10 000 is moved to the nearer bound. A smaller one has less influence on others and takes
    /// longer. Once the stream is polled, it changes nothing.
    pub fn page_size(mut self, keys: usize) -> Self {
        self.request = self.request.with_page_size(keys);
        self
    }

    /// Waits for the next name. Returns `None` after the last one, and after an error.
    ///
    /// # Errors
    ///
    /// See [`Listing`].
    ///
    /// # Cancel safety
    ///
    /// Safe. If it is dropped, no name is lost.
    pub async fn next(&mut self) -> Option<Result<Listed>> {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Listed>>> {
        // A stream that is always ready must not starve other tasks.
        let budget = ready!(poll_proceed(cx));
        loop {
            if let Some(listed) = self.found.pop_front() {
                budget.made_progress();
                return Poll::Ready(Some(Ok(listed)));
            }
            let page = match &mut self.stage {
                Stage::Reading(reading) => ready!(reading.as_mut().poll(cx)),
                Stage::New | Stage::Read(_) => {
                    self.stage = self.read();
                    continue;
                }
                Stage::Ended => return Poll::Ready(None),
            };
            self.stage = Stage::Ended;
            match page {
                Ok(Page { pages, names: Some(names) }) => {
                    self.stage = Stage::Read(pages);
                    self.keep(names);
                }
                Ok(Page { names: None, .. }) => {}
                Err(error) => {
                    budget.made_progress();
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }

    /// Begins to read the next page.
    fn read(&mut self) -> Stage {
        let engine = Arc::clone(&self.engine);
        let before = std::mem::replace(&mut self.stage, Stage::Ended);
        let mut request = self.request.clone();
        Stage::Reading(Box::pin(async move {
            let core = &engine.core;
            core.life.check()?;
            request.timeout = core.timing.attempt;
            let mut pages = match before {
                Stage::Read(pages) => pages,
                _ => calls::list(core, request)?,
            };
            let names = calls::next_page(core, &mut *pages).await?;
            Ok(Page { pages, names })
        }))
    }

    /// Keeps the names that are new.
    fn keep(&mut self, names: Vec<Listed>) {
        for listed in names {
            if self.known.contains_key(&listed.name) {
                continue;
            }
            if self.known.len() < REMEMBERED {
                self.known.insert(listed.name.clone(), ());
            }
            self.found.push_back(listed);
        }
    }
}

impl Stream for Listing {
    type Item = Result<Listed>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Listed>>> {
        self.get_mut().poll(cx)
    }
}

impl fmt::Debug for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listing").field("prefix", &self.request.prefix).finish_non_exhaustive()
    }
}
