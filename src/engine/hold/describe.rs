//! What holds tell about themselves, beside their locks in the store.
//!
//! # Invariants
//!
//! 1. **Nothing on the way of a lock.** A hold writes its description at its first renewal, or when it is asked to. It is a
//!    request of its own: no acquire, renewal or release waits for it.
//! 2. **Bounded.** At most eight requests of the background are in flight, however many holds are renewed at once. A hold
//!    is queued for them once, in a queue of [some length](crate::engine::shared::describer). One that finds it full, or
//!    whose request fails, comes back at its next renewal.
//! 3. **In order.** The value of a hold is read, and the number of the write drawn, in one step. So a later write has the
//!    later value, and a store ignores an earlier one that arrives later.

use crate::clock::Instant;
use crate::engine::machine::hold::Phase;
use crate::engine::machine::mode;
use crate::engine::shared::core::Core;
use crate::engine::shared::description::Description;
use crate::engine::shared::hold::{Hold, Inner};
use crate::engine::shared::job::Job;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::{EventKind, LeadershipHealth, Recorded};
use crate::store::{Annotate, HolderId, Metadata, Name, Target, Topic, Wait, Wakeups};
use crate::util::trace;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};
use tracing::Level;

/// The bounds of the time for which a store keeps what is not written again.
const KEPT: (Duration, Duration) =
    (Duration::from_secs(60 * 60), Duration::from_secs(24 * 60 * 60));

/// A leader's entry among those of its manager, until it is dropped.
pub(crate) struct LeaderEntry {
    core: Arc<Core>,
    number: u64,
}

impl Drop for LeaderEntry {
    fn drop(&mut self) {
        // The hold is dropped without the lock.
        let _hold = self.core.describer.leading.lock().remove(&self.number);
    }
}

impl Core {
    /// Returns for how long a store keeps what is not written again.
    fn metadata_kept(&self) -> Duration {
        // Not so long for a T of more than a day, which is renewed more often.
        (self.timing.ttl * 3).clamp(KEPT.0, KEPT.1)
    }

    /// Has the description of a hold written in the background.
    pub(in crate::engine) fn tell_later(&self, hold: &Arc<Hold>) {
        if !hold.set_queued(true) && !self.describer.add(hold) {
            hold.set_queued(false);
        }
    }

    /// Takes a hold that was queued, if its description is still to be written.
    pub(in crate::engine) fn take_queued(&self, hold: &Weak<Hold>) -> Option<Arc<Hold>> {
        hold.upgrade().filter(|hold| hold.is_still_due(self))
    }

    /// Has the store delete the description of a hold. It counts no more already.
    pub(in crate::engine) async fn untell(&self, target: Target, holder: HolderId) {
        let kept = self.metadata_kept();
        let request = Annotate::new(target, holder, None, kept, self.timing.attempt);
        let _ = self.in_time(|| self.store.annotate(request)).await;
    }

    /// Asks the store for hints on what the holders of a name tell.
    pub(crate) async fn watch(&self, name: &Name) -> Result<Option<Wakeups>> {
        let request = Wait::new(Target::exclusive(name.clone()), None, self.timing.attempt);
        let request = request.with_topic(Topic::Metadata);
        self.in_time(|| self.store.subscribe(request)).await
    }

    /// Returns how those fare that lead.
    pub(in crate::engine) fn leading(&self) -> Vec<LeadershipHealth> {
        let leading: Vec<_> = self.describer.leading.lock().values().cloned().collect();
        leading.iter().map(|hold| hold.leadership(self)).collect()
    }
}

impl Hold {
    /// Returns whether a hold that was just renewed is to tell about itself.
    pub(in crate::engine) fn has_to_tell(&self, core: &Core, inner: &Inner, now: Instant) -> bool {
        let tells = mode::has_metadata(self.mode)
            && (inner.described.is_some() || self.options.label().is_some());
        tells && inner.described.as_ref().is_none_or(|told| told.is_due(core.metadata_kept(), now))
    }

    /// Records whether the hold is queued. Returns whether it was.
    fn set_queued(&self, queued: bool) -> bool {
        let mut inner = self.lock();
        std::mem::replace(&mut inner.described.get_or_insert_default().queued, queued)
    }

    /// Records that the hold is queued no more, and returns whether its description is to be written: it may be there
    /// already.
    fn is_still_due(&self, core: &Core) -> bool {
        let (mut inner, now) = (self.lock(), core.now());
        inner.described.as_mut().is_some_and(|told| {
            told.queued = false;
            told.is_due(core.metadata_kept(), now)
        })
    }

    /// Returns what the next hold of a chain is to replace, if this one has written anything.
    pub(super) fn described_to(inner: &Inner) -> Option<Box<Description>> {
        let told = inner.described.as_ref().filter(|told| told.sent)?;
        Some(Box::new(Description { sent: told.sent, ..Description::default() }))
    }

    /// Has the store delete the description of the hold, in the background, after its release was confirmed.
    pub(in crate::engine) fn untell(&self, core: &Core) {
        if !core.describer.used.load(Ordering::Relaxed) {
            return;
        }
        let sent =
            self.lock().described.as_mut().is_some_and(|told| std::mem::take(&mut told.sent));
        if sent {
            core.submit(Job::Untell { target: self.target(), holder: self.holder });
        }
    }

    /// Sets the value of a leader, writes it, and returns whether the store still has the hold. If that fails, the
    /// background writes it at a later renewal.
    pub(crate) async fn tell_value(
        self: &Arc<Self>,
        core: &Arc<Core>,
        value: &str,
    ) -> Result<bool> {
        {
            let mut inner = self.lock();
            let told = inner.described.get_or_insert_default();
            (told.value, told.written) = (Some(value.into()), None);
        }
        self.tell(core).await
    }

    /// Writes what is to be written now, and returns whether the store still has the hold.
    pub(crate) async fn tell(self: &Arc<Self>, core: &Arc<Core>) -> Result<bool> {
        self.check(core)?;
        let now = core.now();
        let (metadata, fence) = {
            let mut inner = self.lock();
            let age = now.saturating_duration_since(inner.state.chain_began());
            let told = inner.described.get_or_insert_default();
            told.sent = true;
            core.describer.used.store(true, Ordering::Relaxed);
            let revision = core.describer.next_revision();
            let metadata = Metadata::new(core.describer.owner(), revision)
                .with_label(self.options.label().map(|label| label.to_string()))
                .with_value(told.value.as_deref().map(str::to_owned))
                .with_since(SystemTime::now().checked_sub(age));
            (metadata, self.fence)
        };
        let (metadata, kept) = (Some(metadata.with_fence(fence)), core.metadata_kept());
        let (target, attempt) = (self.target(), core.timing.attempt);
        let request = Annotate::new(target, self.holder, metadata, kept, attempt);
        let told = core.in_time(|| core.store.annotate(request)).await;
        match &told {
            Ok(true) => self.wrote(now),
            Ok(false) => {}
            Err(error) if error.is_unavailable() => {}
            Err(error) => {
                // Another try would end as this one, so it is for the next time.
                self.wrote(now);
                trace::later(Level::WARN, || {
                    let (name, error) = (self.name.clone(), error.clone());
                    move || tracing::warn!(name = name.as_str(), %error, "metadata not written")
                });
            }
        }
        told
    }

    fn wrote(&self, at: Instant) {
        let mut inner = self.lock();
        if let Some(told) = &mut inner.described {
            told.written = told.written.max(Some(at));
        }
    }

    /// Finds out what became of a hold that the store denies to have, and returns the error.
    pub(crate) async fn denied(self: &Arc<Self>, core: &Arc<Core>) -> Error {
        let limit = core.timing.attempt;
        // Without an answer it is lost in time, as always.
        let _ = tokio::time::timeout(limit, self.renew_now(core)).await;
        self.check(core).err().unwrap_or_else(|| {
            let message = "the store does not find the lease now, and may have it again; try again";
            Error::new(ErrorKind::Unavailable, message)
        })
    }

    /// Enters the hold among those that lead.
    pub(crate) fn leads(self: &Arc<Self>, core: &Arc<Core>) -> LeaderEntry {
        self.lock().described.get_or_insert_default();
        let number = {
            let mut leading = core.describer.leading.lock();
            let number = leading.last_key_value().map_or(0, |(last, _)| last + 1);
            leading.insert(number, Arc::clone(self));
            number
        };
        LeaderEntry { core: Arc::clone(core), number }
    }

    /// Reports to the observers that it leads, unless it has ended meanwhile: no event of a hold comes after its end.
    pub(crate) fn tell_leads(&self, core: &Core) {
        let inner = self.lock();
        let told = match inner.state.phase() {
            Phase::Held | Phase::AtRisk => {
                core.publish(|| self.event(EventKind::Leads { term: self.fence }))
            }
            _ => Recorded::default(),
        };
        drop(inner);
        told.finish();
    }

    /// Returns how the leader fares that has this hold.
    pub(crate) fn leadership(&self, core: &Core) -> LeadershipHealth {
        let inner = self.lock();
        // The watchdog may not have run.
        let silent = core.now().saturating_duration_since(inner.state.believed_until(&core.timing));
        let lost_for = match inner.state.phase() {
            Phase::Lost(_) => {
                let at = inner.described.as_ref().and_then(|told| told.lost_at);
                Some(at.map_or(Duration::ZERO, |at| core.now().saturating_duration_since(at)))
            }
            Phase::Held | Phase::AtRisk if !silent.is_zero() => Some(silent),
            _ => None,
        };
        let name = self.name.as_str().to_owned();
        LeadershipHealth { name, term: self.fence, lost_for }
    }
}
