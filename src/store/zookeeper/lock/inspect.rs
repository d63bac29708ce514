//! Inspects names, and releases them by force.

use super::acquire::acquire;
use super::metadata;
use super::recipe::Recipe;
use super::size::{forget_size, size_of};
use crate::error::Result;
use crate::store::contract::mode::Kind;
use crate::store::zookeeper::session::errors::{Found, find, in_time};
use crate::store::zookeeper::session::{Session, nodes};
use crate::store::zookeeper::tree::names::parse_record;
use crate::store::{
    Absence, Acquire, Acquired, ForceRelease, HolderInfo, Inspection, Mode, Steal, Target,
};

/// A node that has a name.
struct Holding {
    path: String,
    mode: Mode,
    data: Vec<u8>,
}

pub(in crate::store::zookeeper) async fn inspect(
    recipe: &Recipe,
    target: &Target,
) -> Result<Inspection> {
    let session = recipe.sessions.current()?;
    let (holding, mut size, holders_and_waiters) = holding(recipe, &session, target).await?;
    if size.is_none() && target.mode.kind() == Kind::Semaphore {
        size = size_of(&session, &recipe.names.lock(&target.name)).await?;
    }
    let info = |holding: &Holding| {
        let (holder, count) = parse_record(&holding.data)?;
        let count = match holding.mode {
            Mode::Permits { take, .. } => take.into(),
            Mode::Exclusive | Mode::Read | Mode::Write => count,
        };
        let info = HolderInfo::new(holder, count, None).with_mode(holding.mode);
        Some(info.with_metadata(metadata::read(&holding.data)))
    };
    let waiting = Some(holders_and_waiters.saturating_sub(holding.len()) as u64);
    Ok(Inspection::new(holding.iter().filter_map(info)).with_size(size).with_waiting(waiting))
}

/// Deletes the nodes that have the name, even if their owners do not know yet, but never one of another kind, nor that of
/// another holder than the one that is named. A path is never used again. Returns whether there were any.
pub(in crate::store::zookeeper) async fn force_release(
    recipe: &Recipe,
    request: &ForceRelease,
) -> Result<bool> {
    let target = &request.target;
    request.check_mode()?;
    let session = recipe.sessions.current()?;
    let (mut holding, size, _) = holding(recipe, &session, target).await?;
    if request.from.is_some() {
        let holder = |holding: &Holding| parse_record(&holding.data).map(|(holder, _)| holder);
        holding.retain(|one| holder(one).is_some_and(|holder| request.is_meant_for(&holder)));
        if holding.is_empty() {
            return Ok(false);
        }
    }
    let mut found = false;
    for Holding { path, .. } in &holding {
        found |= nodes::delete(&session, path).await?;
    }
    if holding.is_empty() || size.is_some() {
        forget_size(&session, &recipe.names.lock(&target.name)).await?;
    }
    Ok(found)
}

/// Deletes the node of one holder, and acquires in its stead. A waiter of another process may come between: the acquire
/// is refused then.
pub(in crate::store::zookeeper) async fn steal(
    recipe: &Recipe,
    request: Acquire,
    Steal { from, reason }: Steal,
) -> Result<Acquired> {
    let target = request.target.clone();
    Steal::check_mode(target.mode)?;
    let limit = recipe.read_limit(request.timeout);
    let holder = in_time(limit, inspect(recipe, &target)).await?.into_holder();
    match holder {
        None => return Ok(Acquired::NotYours(Absence::Gone)),
        // A copy of the request: an acquire recognises its own.
        Some(holder) if holder.holder == request.holder.to_string() => {}
        Some(holder) if holder.holder == from => {
            let force = ForceRelease::new(target, request.timeout).with_reason(Some(reason));
            in_time(limit, force_release(recipe, &force.with_from(Some(from)).of_a_steal()))
                .await?;
        }
        Some(_) => return Ok(Acquired::held(None)),
    }
    acquire(recipe, request).await
}

/// Returns the nodes that have the name, the size of a semaphore in use, and the number of all nodes. Beside a node that is not leasehold's one
/// of them must be a holder's: a waiter is not granted there.
async fn holding(
    recipe: &Recipe,
    session: &Session,
    target: &Target,
) -> Result<(Vec<Holding>, Option<u32>, usize)> {
    let directory = recipe.names.lock(&target.name);
    loop {
        let queue = nodes::synced_children(session, &directory).await?;
        let holders = queue.holders(target.mode.kind())?;
        let link = session.link().await?;
        let paths: Vec<_> =
            holders.iter().map(|child| format!("{directory}/{}", child.name)).collect();
        // All are sent together.
        let reads: Vec<_> = paths.iter().map(|path| link.client.get_data(path)).collect();
        let mut holding = Vec::with_capacity(reads.len());
        for ((read, child), path) in reads.into_iter().zip(holders).zip(&paths) {
            if let Found::Yes((data, _)) = find(read).await? {
                holding.push(Holding { path: path.clone(), mode: child.role.mode(), data });
            }
        }
        if holding.is_empty() && !holders.is_empty() {
            continue;
        }
        if holding.iter().all(|holding| parse_record(&holding.data).is_none()) {
            queue.alone()?;
        }
        return Ok((holding, queue.size(), queue.len()));
    }
}
