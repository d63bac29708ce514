//! Taking and giving back.
//!
//! # Invariants
//!
//! 1. **The first in the line holds.** Numbers grow with each node, a node goes when its owner deletes it or
//!    its session ends, and only then is the next one the first.
//! 2. **Known before it is sent.** Before a node is made, an entry in [`Holds`] says that it may be there,
//!    and dies with it; so a request that is dropped, or whose answer is lost, leaves nothing for longer than
//!    the time to live.
//! 3. **A hold belongs to one session.** When that is over the hold is gone, whatever the next session says.
//! 4. **Who is refused leaves at once.** An acquire that finds itself behind another deletes its node; a
//!    place in the line is had by subscribing ([`Place`]), and the next acquire of this process takes it over.
//! 5. **A grant is a write that the ensemble has confirmed**: the creation, or the token written to the node.

use super::errors::{Found, find, in_time, no_session};
use super::holds::{Holds, Own};
use super::names::{Child, Names, Who, parse_record, record};
use super::place::Place;
use super::session::Session;
use super::sessions::Sessions;
use crate::clock::{Clock, Instant};
use crate::error::{Error, Fate, Result};
use crate::store::{Acquire, Acquired, HolderId, Holding, Inspection, Name, Release, Released};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Recipe {
    pub(super) clock: Clock,
    pub(super) names: Names,
    /// The longest time to live.
    pub(super) longest: Duration,
    pub(super) sessions: Sessions,
    pub(super) holds: Arc<Holds>,
    pub(super) places: Mutex<HashMap<Name, Vec<Arc<Place>>>>,
}

impl Drop for Recipe {
    /// The last request is answered, the last place left.
    fn drop(&mut self) {
        self.sessions.close(self.holds.is_empty());
    }
}

impl Recipe {
    pub(super) fn places(&self) -> MutexGuard<'_, HashMap<Name, Vec<Arc<Place>>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn acquire(&self, request: Acquire) -> Result<Acquired> {
        request.target.require_exclusive()?;
        self.check_ttl(request.ttl)?;
        let asked = self.clock.now();
        let limit = self.limit(&request);
        let verdict = in_time(limit, async {
            let session = self.sessions.fresh(limit).await?;
            Attempt { recipe: self, request: &request, session, asked }.run().await
        });
        verdict.await.map_err(|error| match self.holds.find(&request.target.name, request.holder) {
            None => error.with_fate(Fate::NotExecuted),
            // Refused halfway, there may still be a node.
            Some(own) if !own.granted => error.with_fate(Fate::Unknown),
            Some(_) => error,
        })
    }

    /// Two round trips must fit, also those of a server that is far away.
    fn limit(&self, request: &Acquire) -> Duration {
        // A nested one must not outlive its hold.
        if request.count > 1 { request.timeout } else { self.look_limit(request.timeout) }
    }

    /// The same for a look, which nothing depends on.
    pub(super) fn look_limit(&self, timeout: Duration) -> Duration {
        let Ok(session) = self.sessions.current() else { return timeout };
        (session.round_trip() * 4).clamp(timeout, timeout * 2)
    }

    pub(super) fn check_ttl(&self, ttl: Duration) -> Result<()> {
        if ttl <= self.longest {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a time to live of {ttl:?} is longer than the {:?} that the session allows",
            self.longest
        )))
    }

    pub(super) async fn release(&self, request: Release) -> Result<Released> {
        request.target.require_exclusive()?;
        in_time(request.timeout, async {
            let session = self.sessions.current()?;
            let released = self.give_back(&session, &request).await?;
            if released {
                // Whoever is next in the line is told by its watch.
                return Ok(Released::done(0));
            }
            Ok(Released::NotYours(self.absence(&request.target.name).await))
        })
        .await
    }

    /// Whether it was there.
    async fn give_back(&self, session: &Arc<Session>, request: &Release) -> Result<bool> {
        let Release { target, holder: token, count, .. } = request;
        let name = &target.name;
        let own = self.holds.find(name, *token).filter(|own| !own.session.is_over());
        let Some(own) = own else {
            self.holds.remove(name, *token);
            // A creation that this process knows nothing of; there should be none.
            let sweep = *count == 0;
            return if sweep { self.sweep(session, name, *token).await } else { Ok(false) };
        };
        let mut there = false;
        if *count > 0 {
            if let (Some(path), true) = (&own.path, own.granted) {
                there = own.session.write(path, &record(*token, *count)).await?;
            }
            if !there {
                self.holds.remove(name, *token);
            }
            return Ok(there);
        }
        if let Some(path) = &own.path {
            there = own.session.delete(path).await?;
        }
        if own.doubtful {
            // Refused halfway, what is deleted stays so.
            let swept = self.sweep(&own.session, name, *token).await;
            there |= swept.map_err(|error| error.with_fate(Fate::Unknown))?;
        }
        own.session.directories.left(&self.names.lock(name));
        self.holds.remove(name, *token);
        Ok(there)
    }

    async fn sweep(&self, session: &Session, name: &Name, token: HolderId) -> Result<bool> {
        session.sweep(&self.names.lock(name), Who::Acquire(token)).await
    }

    pub(super) async fn inspect(&self, name: &Name) -> Result<Inspection> {
        let session = self.sessions.current()?;
        let first = self.first(&session, name).await?;
        let held = first.and_then(|(_, data)| parse_record(&data));
        Ok(Inspection::new(held.map(|(holder, count)| Holding::new(holder, count, None))))
    }

    /// Deletes the first in the line, also if it does not know yet that it is; whether there was one.
    pub(super) async fn force(&self, name: &Name) -> Result<bool> {
        let session = self.sessions.current()?;
        match self.first(&session, name).await? {
            Some((path, _)) => session.delete(&path).await,
            None => Ok(false),
        }
    }

    async fn first(&self, session: &Session, name: &Name) -> Result<Option<(String, Vec<u8>)>> {
        let directory = self.names.lock(name);
        loop {
            let line = session.line_now(&directory).await?;
            let Some(first) = line.first() else { return Ok(None) };
            let path = format!("{directory}/{}", first.name);
            if let Found::Yes((data, _)) =
                find(session.link().await?.client.get_data(&path)).await?
            {
                return Ok(Some((path, data)));
            }
        }
    }
}

/// One acquire.
struct Attempt<'a> {
    recipe: &'a Recipe,
    request: &'a Acquire,
    session: Arc<Session>,
    asked: Instant,
}

impl Attempt<'_> {
    async fn run(self) -> Result<Acquired> {
        let Acquire { target, holder: token, count, .. } = self.request;
        let name = &target.name;
        let holds = &self.recipe.holds;
        let mut own = holds.find(name, *token);
        if own.take_if(|own| own.session.is_over()).is_some() {
            holds.remove(name, *token);
        }
        if let Some(own) = &own
            && own.granted
        {
            if let Some(path) = &own.path
                && self.session.write(path, &record(*token, *count)).await?
            {
                return self.granted(own.clone());
            }
            holds.remove(name, *token);
        }
        if *count > 1 {
            return Ok(Acquired::NotYours(self.recipe.absence(name).await));
        }
        match own {
            Some(own) if !own.granted => self.retry(own).await,
            _ => self.first_try().await,
        }
    }

    fn directory(&self) -> String {
        self.recipe.names.lock(&self.request.target.name)
    }

    fn who(&self) -> Who {
        Who::Acquire(self.request.holder)
    }

    fn own(&self, path: Option<String>, czxid: u64) -> Own {
        Own {
            session: Arc::clone(&self.session),
            path,
            granted: false,
            doubtful: false,
            fence: self.request.fencing.map(|_| czxid),
            expires: self.recipe.clock.now() + self.request.ttl,
        }
    }

    fn granted(&self, own: Own) -> Result<Acquired> {
        let Acquire { target, holder: token, ttl, .. } = self.request;
        let name = &target.name;
        if own.session.is_over() {
            return Err(no_session());
        }
        let (sent, fence) = (own.session.confirmed(self.asked), own.fence);
        let expires = self.recipe.clock.now() + *ttl;
        let known = self.recipe.holds.change(name, *token, |entry| {
            *entry = Own { granted: true, expires, ..own };
        });
        // It took so long that it was swept.
        if known { Ok(Acquired::granted(sent, fence)) } else { Err(no_session()) }
    }

    async fn first_try(&self) -> Result<Acquired> {
        if let Some(verdict) = self.take_place().await? {
            return Ok(verdict);
        }
        let directory = self.directory();
        if !self.session.line(&directory).await?.is_empty() {
            return Ok(self.refused());
        }
        self.create(&directory).await
    }

    /// Takes over a place of this process that is the first in the line.
    async fn take_place(&self) -> Result<Option<Acquired>> {
        let Acquire { target, holder: token, count, .. } = self.request;
        let name = &target.name;
        let taken = {
            let places = self.recipe.places();
            let places = places.get(name).into_iter().flatten();
            places.filter_map(|place| Some((Arc::clone(place), place.take()?))).next()
        };
        let Some((place, node)) = taken else { return Ok(None) };
        if node.session.is_over() {
            return Ok(None);
        }
        let own = Own { session: node.session, ..self.own(Some(node.path.clone()), node.czxid) };
        self.recipe.holds.put(name, *token, own.clone());
        if own.session.write(&node.path, &record(*token, *count)).await? {
            return self.granted(own).map(Some);
        }
        self.recipe.holds.remove(name, *token);
        place.queue_again();
        Ok(None)
    }

    async fn create(&self, directory: &str) -> Result<Acquired> {
        let Acquire { target, holder: token, count, .. } = self.request;
        let name = &target.name;
        let holds = &self.recipe.holds;
        holds.put(name, *token, Own { doubtful: true, ..self.own(None, 0) });
        let data = record(*token, *count);
        let create = self.session.enqueue(directory, self.who(), &data);
        // Both leave together; if the directory is missing, the list must be asked for again.
        let (created, line) = tokio::join!(biased; create, self.session.line(directory));
        let (path, czxid) = created?;
        let own = self.own(Some(path), czxid);
        holds.change(name, *token, |entry| *entry = own.clone());
        let mut line = line?;
        if position(&line, &own).is_none() {
            line = self.session.line(directory).await?;
        }
        self.decide(own, &line).await
    }

    /// The same token once more, after an answer was lost.
    async fn retry(&self, mut own: Own) -> Result<Acquired> {
        let directory = self.directory();
        let line = self.session.line_now(&directory).await?;
        if own.path.is_none() {
            let who = self.who();
            let Some(child) = line.iter().find(|child| child.is_of(who)) else {
                self.recipe.holds.remove(&self.request.target.name, self.request.holder);
                return self.first_try().await;
            };
            let path = format!("{directory}/{}", child.name);
            let Some(czxid) = self.session.has_made(&path).await? else {
                return Err(no_session());
            };
            own = Own { doubtful: true, ..self.own(Some(path), czxid) };
        } else if let (Some(path), Some(_)) = (&own.path, position(&line, &own)) {
            // A place that was taken over may not have its token yet.
            self.session.write(path, &record(self.request.holder, self.request.count)).await?;
        }
        self.decide(own, &line).await
    }

    /// Granted if it is the first; else it leaves.
    async fn decide(&self, own: Own, line: &[Child]) -> Result<Acquired> {
        let Acquire { target, holder: token, .. } = self.request;
        let name = &target.name;
        if position(line, &own) == Some(0) {
            return self.granted(own);
        }
        if let Some(path) = &own.path {
            own.session.delete(path).await?;
        }
        if own.doubtful {
            self.recipe.sweep(&own.session, name, *token).await?;
        }
        self.recipe.holds.remove(name, *token);
        Ok(self.refused())
    }

    /// Its process may have taken over a place for a grant that came too late, or whose node was deleted.
    fn refused(&self) -> Acquired {
        let places = self.recipe.places();
        places
            .get(&self.request.target.name)
            .into_iter()
            .flatten()
            .for_each(|place| place.queue_again());
        Acquired::held(None)
    }
}

fn position(line: &[Child], own: &Own) -> Option<usize> {
    let name = own.path.as_deref()?.rsplit('/').next()?;
    line.iter().position(|child| child.name == name)
}
