//! What holds write about themselves, beside their locks in the store.
//!
//! # Invariants
//!
//! 1. **Nothing on the way of a lock.** A hold writes its description at its first renewal, or when it is asked to. It is a
//!    request of its own: no acquire, renewal or release waits for it.
//! 2. **Bounded.** At most eight requests of the background are in flight, however many holds are renewed at once. A hold
//!    is queued for them once, in a queue of [some length](crate::engine::shared::descriptions). One that finds it full, or
//!    whose request fails, comes back at its next renewal.
//! 3. **In order.** The value of a hold is read, and the number of the write drawn, in one step. So a later write has the
//!    later value, and a store ignores an earlier one that arrives later.

use super::renew;
use crate::clock::Instant;
use crate::engine::machine::hold::Phase;
use crate::engine::machine::mode;
use crate::engine::shared::calls;
use crate::engine::shared::core::Core;
use crate::engine::shared::descriptions::Description;
use crate::engine::shared::hold::{Hold, Inner};
use crate::engine::shared::job::Job;
use crate::engine::shared::report;
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

impl LeaderEntry {
    /// Enters a hold among those that lead.
    pub(crate) fn new(core: &Arc<Core>, hold: &Arc<Hold>) -> Self {
        hold.lock().described.get_or_insert_default();
        let number = {
            let mut leading = core.descriptions.leading.lock();
            let number = leading.last_key_value().map_or(0, |(last, _)| last + 1);
            leading.insert(number, Arc::clone(hold));
            number
        };
        Self { core: Arc::clone(core), number }
    }
}

impl Drop for LeaderEntry {
    fn drop(&mut self) {
        // The hold is dropped without the lock.
        let _hold = self.core.descriptions.leading.lock().remove(&self.number);
    }
}

/// Returns for how long a store keeps what is not written again.
fn kept(core: &Core) -> Duration {
    // Not so long for a T of more than a day, which is renewed more often.
    (core.timing.ttl * 3).clamp(KEPT.0, KEPT.1)
}

/// Has the description of a hold written in the background.
pub(in crate::engine) fn write_later(core: &Core, hold: &Arc<Hold>) {
    if !set_queued(hold, true) && !core.descriptions.add(hold) {
        set_queued(hold, false);
    }
}

/// Returns a hold that was queued, if its description is still to be written.
pub(in crate::engine) fn still_due(core: &Core, hold: &Weak<Hold>) -> Option<Arc<Hold>> {
    hold.upgrade().filter(|hold| is_still_due(core, hold))
}

/// Has the store delete the description of a hold. It counts no more already.
pub(in crate::engine) async fn delete(core: &Core, target: Target, holder: HolderId) {
    let kept = kept(core);
    let request = Annotate::new(target, holder, None, kept, core.timing.attempt);
    let _ = calls::ask(core, || core.store.annotate(request)).await;
}

/// Asks the store for hints on the descriptions of the holders of a name.
pub(crate) async fn watch(core: &Core, name: &Name) -> Result<Option<Wakeups>> {
    let request = Wait::new(Target::exclusive(name.clone()), None, core.timing.attempt);
    let request = request.with_topic(Topic::Metadata);
    calls::ask(core, || core.store.subscribe(request)).await
}

/// Returns how those fare that lead.
pub(crate) fn leading(core: &Core) -> Vec<LeadershipHealth> {
    let leading: Vec<_> = core.descriptions.leading.lock().values().cloned().collect();
    leading.iter().map(|hold| leadership(core, hold)).collect()
}

/// Returns whether the description of a hold that was just renewed is to be written.
pub(in crate::engine) fn is_due(core: &Core, hold: &Hold, inner: &Inner, now: Instant) -> bool {
    let has_any = mode::has_metadata(hold.mode)
        && (inner.described.is_some() || hold.options.label().is_some());
    has_any && inner.described.as_ref().is_none_or(|described| described.is_due(kept(core), now))
}

/// Records whether the hold is queued. Returns whether it was.
fn set_queued(hold: &Hold, queued: bool) -> bool {
    let mut inner = hold.lock();
    std::mem::replace(&mut inner.described.get_or_insert_default().queued, queued)
}

/// Records that the hold is queued no more, and returns whether its description is to be written: it may be there
/// already.
fn is_still_due(core: &Core, hold: &Hold) -> bool {
    let mut inner = hold.lock();
    let now = core.now();
    inner.described.as_mut().is_some_and(|described| {
        described.queued = false;
        described.is_due(kept(core), now)
    })
}

/// Returns what the next hold of a chain is to replace, if this one has written anything.
pub(super) fn for_next(inner: &Inner) -> Option<Box<Description>> {
    let described = inner.described.as_ref().filter(|described| described.sent)?;
    Some(Box::new(Description { sent: described.sent, ..Description::default() }))
}

/// Has the store delete the description of the hold, in the background, after its release was confirmed.
pub(in crate::engine) fn delete_later(core: &Core, hold: &Hold) {
    if !core.descriptions.used.load(Ordering::Relaxed) {
        return;
    }
    let sent =
        hold.lock().described.as_mut().is_some_and(|described| std::mem::take(&mut described.sent));
    if sent {
        core.submit(Job::DeleteDescription { target: hold.target(), holder: hold.holder });
    }
}

/// Sets the value of a leader, writes it, and returns whether the store still has the hold. If that fails, the
/// background writes it at a later renewal.
pub(crate) async fn write_value(core: &Arc<Core>, hold: &Arc<Hold>, value: &str) -> Result<bool> {
    {
        let mut inner = hold.lock();
        let described = inner.described.get_or_insert_default();
        described.value = Some(value.into());
        described.written = None;
    }
    write(core, hold).await
}

/// Writes what is to be written now, and returns whether the store still has the hold.
pub(crate) async fn write(core: &Arc<Core>, hold: &Arc<Hold>) -> Result<bool> {
    hold.check(core)?;
    let now = core.now();
    let (metadata, fence) = {
        let mut inner = hold.lock();
        let age = now.saturating_duration_since(inner.state.chain_began());
        let described = inner.described.get_or_insert_default();
        described.sent = true;
        core.descriptions.used.store(true, Ordering::Relaxed);
        let revision = core.descriptions.next_revision();
        let metadata = Metadata::new(core.descriptions.owner(), revision)
            .with_label(hold.options.label().map(|label| label.to_string()))
            .with_value(described.value.as_deref().map(str::to_owned))
            .with_since(SystemTime::now().checked_sub(age));
        (metadata, hold.fence)
    };
    let metadata = Some(metadata.with_fence(fence));
    let request =
        Annotate::new(hold.target(), hold.holder, metadata, kept(core), core.timing.attempt);
    let written = calls::ask(core, || core.store.annotate(request)).await;
    match &written {
        Ok(true) => set_written(hold, now),
        Ok(false) => {}
        Err(error) if error.is_unavailable() => {}
        Err(error) => {
            // Another try would end as this one, so it is for the next time.
            set_written(hold, now);
            trace::later(Level::WARN, || {
                let name = hold.name.clone();
                let error = error.clone();
                move || tracing::warn!(name = name.as_str(), %error, "metadata not written")
            });
        }
    }
    written
}

fn set_written(hold: &Hold, at: Instant) {
    let mut inner = hold.lock();
    if let Some(described) = &mut inner.described {
        described.written = described.written.max(Some(at));
    }
}

/// Finds out what became of a hold that the store denies to have, and returns the error.
pub(crate) async fn denied(core: &Arc<Core>, hold: &Arc<Hold>) -> Error {
    let limit = core.timing.attempt;
    // Without an answer it is lost in time, as always.
    let _ = tokio::time::timeout(limit, renew::renew_now(core, hold)).await;
    hold.check(core).err().unwrap_or_else(|| {
        let message = "the store does not find the lease now, and may have it again; try again";
        Error::new(ErrorKind::Unavailable, message)
    })
}

/// Reports to the observers that it leads, unless it has ended meanwhile: no event of a hold comes after its end.
pub(crate) fn report_leader(core: &Core, hold: &Hold) {
    let inner = hold.lock();
    let event = match inner.state.phase() {
        Phase::Held | Phase::AtRisk => {
            report::publish(core, || hold.event(EventKind::Leads { term: hold.fence }))
        }
        _ => Recorded::default(),
    };
    drop(inner);
    event.finish();
}

/// Returns how the leader fares that has this hold.
pub(crate) fn leadership(core: &Core, hold: &Hold) -> LeadershipHealth {
    let inner = hold.lock();
    // The watchdog may not have run.
    let silent = core.now().saturating_duration_since(inner.state.believed_until(&core.timing));
    let lost_for = match inner.state.phase() {
        Phase::Lost(_) => {
            let at = inner.described.as_ref().and_then(|described| described.lost_at);
            Some(at.map_or(Duration::ZERO, |at| core.now().saturating_duration_since(at)))
        }
        Phase::Held | Phase::AtRisk if !silent.is_zero() => Some(silent),
        _ => None,
    };
    let name = hold.name.as_str().to_owned();
    LeadershipHealth { name, term: hold.fence, lost_for }
}
