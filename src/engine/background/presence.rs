//! The description of a manager in the store, by which the ids of its holders lead to a process.
//!
//! The worker keeps it there, apart from all locks: one small request from time to time, whatever the number of leases.

use crate::engine::shared::calls;
use crate::engine::shared::core::Core;
use crate::error::{ErrorKind, Result};
use crate::store::{Describe, HolderInfo, Owner, Owners, WaitingManager, manager_of};
use crate::util::trace;
use std::collections::{BTreeSet, HashMap};
use std::future::pending;
use std::pin::pin;
use std::time::Duration;
use tracing::Level;

/// The least time for which a store keeps a description. It may outlive its manager for as long.
const KEPT: Duration = Duration::from_secs(30);
/// The longest time between two writes: a server that has lost it has it again soon.
const LONGEST_GAP: Duration = Duration::from_secs(60);
/// The time between two tries while the store refuses it.
const REFUSED: Duration = Duration::from_secs(10 * 60);

/// Describes this manager in the store before its first lock. The worker goes on with that, and reports a failure.
pub(crate) async fn introduce(core: &Core) {
    if let Some(owner) = core.descriptions.described() {
        let _ = write_description(core, Some(owner)).await;
    }
}

/// Keeps the description of this manager in the store, if it describes itself. Never ends.
pub(super) async fn keep_described(core: &Core) {
    let Some(owner) = core.descriptions.described() else { return pending().await };
    let mut warned = false;
    loop {
        // The server may have restarted without it.
        let mut reconnected = pin!(core.reconnected.notified());
        reconnected.as_mut().enable();
        let pause = match write_description(core, Some(owner.clone())).await {
            Ok(()) => (kept_described(core) / 3).min(LONGEST_GAP),
            Err(error) if error.is_retryable() => core.timing.attempt,
            Err(error) if error.kind() == ErrorKind::Unsupported => return pending().await,
            Err(error) => {
                if !std::mem::replace(&mut warned, true) {
                    trace::later(
                        Level::WARN,
                        || move || tracing::warn!(%error, "this manager is not described in the store"),
                    );
                }
                REFUSED
            }
        };
        let at = core.now() + pause;
        tokio::select! {
            () = core.clock().sleep_until(at) => {}
            () = reconnected => {}
        }
    }
}

/// Has the store forget the description of this manager, which ends.
pub(super) async fn forget(core: &Core) {
    if core.descriptions.described().is_some() {
        // What is not deleted lapses.
        let _ = write_description(core, None).await;
    }
}

fn kept_described(core: &Core) -> Duration {
    core.timing.ttl.max(KEPT)
}

async fn write_description(core: &Core, owner: Option<Owner>) -> Result<()> {
    let request = Describe::new(core.manager(), owner, kept_described(core), core.timing.attempt);
    calls::ask(core, || core.store.describe(request)).await
}

/// Adds their processes to holders, as far as they are known.
pub(crate) async fn resolve(core: &Core, holders: &mut [HolderInfo]) {
    // A leader, or a holder with a label, has written it beside the lock.
    let written = |holder: &HolderInfo| holder.metadata.as_ref().map(|data| data.owner.clone());
    holders.iter_mut().for_each(|holder| holder.owner = written(holder));
    let id = |holder: &HolderInfo| match &holder.closed {
        Some(closed) => closed.by.clone(),
        None => holder.holder.clone(),
    };
    let unknown: Vec<_> = holders.iter_mut().filter(|holder| holder.owner.is_none()).collect();
    let ids = unknown.iter().map(|holder| id(holder)).collect();
    let owners = owners_of(core, ids).await;
    for holder in unknown {
        holder.owner = manager_of(&id(holder)).and_then(|manager| owners.get(manager).cloned());
    }
}

/// Adds their processes to managers that wait, as far as they are known.
pub(crate) async fn resolve_waiting(core: &Core, line: &mut [WaitingManager]) {
    let ids = line.iter().map(|waiting| waiting.manager.clone()).collect();
    let owners = owners_of(core, ids).await;
    for waiting in line {
        let owner = manager_of(&waiting.manager).and_then(|manager| owners.get(manager));
        waiting.owner = owner.cloned();
    }
}

/// Returns the process of a holder or a manager. This one's is known without a request.
pub(crate) async fn owner_of(core: &Core, id: &str) -> Result<Option<Owner>> {
    let Some(manager) = manager_of(id) else { return Ok(None) };
    if is_own(core, manager) {
        return Ok(Some(core.descriptions.owner()));
    }
    let request = Owners::new(vec![manager.to_owned()], core.timing.attempt);
    let owners = calls::ask(core, || core.store.owners(request)).await?;
    Ok(owners.into_iter().next().flatten())
}

/// Returns the processes that are known. A store that does not say has none: the question was another one.
async fn owners_of(core: &Core, ids: Vec<String>) -> HashMap<String, Owner> {
    let managers: BTreeSet<_> =
        ids.iter().filter_map(|id| manager_of(id).map(str::to_owned)).collect();
    let (own, others): (Vec<_>, Vec<_>) =
        managers.into_iter().partition(|manager| is_own(core, manager));
    let mut known: HashMap<_, _> =
        own.into_iter().map(|manager| (manager, core.descriptions.owner())).collect();
    if !others.is_empty() {
        let request = Owners::new(others.clone(), core.timing.attempt);
        let owners = calls::ask(core, || core.store.owners(request)).await.unwrap_or_default();
        let found = others.into_iter().zip(owners);
        known.extend(found.filter_map(|(manager, owner)| Some((manager, owner?))));
    }
    known
}

fn is_own(core: &Core, manager: &str) -> bool {
    core.manager().to_string().starts_with(manager)
}
