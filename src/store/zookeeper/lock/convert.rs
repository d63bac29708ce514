//! Changes the mode of a reader or writer.
//!
//! It gives the node another name, in the same place of the queue: one transaction deletes it and makes it again with the
//! same number.
//!
//! # Invariants
//!
//! 1. **A writer becomes a reader in one transaction.** Nothing is granted in between, and the readers behind it watch its
//!    node. It keeps its fencing token: a new one would be larger than those of the writers that wait.
//! 2. **A reader becomes the writer only if it is alone.** Its node becomes a writer's, and then a list shows all nodes that
//!    were made before. If there is any, the node becomes a reader's again, and the change is refused. Until then nothing
//!    relies on it. A node that is made later finds a writer before it.
//! 3. **A change is recorded before it is sent**, as [`OwnNode::changing`], until its outcome is known.

use super::holds::OwnNode;
use super::recipe::Recipe;
use crate::error::Result;
use crate::store::zookeeper::session::nodes;
use crate::store::zookeeper::tree::names::{Child, NodeOwner, Role, record, replacement};
use crate::store::{Acquire, Mode};
use crate::util::reached::Rare;

/// The outcome of a change of the mode.
pub(super) enum Converted {
    /// The node, in the mode of the request.
    Yes(OwnNode),
    /// Others have the name, or wait for it. The node is a reader's.
    Refused,
    /// The node is gone.
    Gone,
}

/// Changes the mode of a hold to that of the request, or completes an earlier change.
pub(super) async fn convert(recipe: &Recipe, request: &Acquire, own: OwnNode) -> Result<Converted> {
    let own = recipe.located(&request.target.name, request.holder, own).await?;
    let Some(role) = own.name().and_then(|name| Child::parse(name.to_owned()).ok()) else {
        recipe.holds.remove(&request.target.name, request.holder);
        return Ok(Converted::Gone);
    };
    let writes = role.role == Role::Writer;
    let was = own.mode;
    let to = if request.converts { request.target.mode } else { was };
    match (to, was) {
        (Mode::Write, Mode::Write) if writes => Ok(changed(recipe, request, own, Mode::Write)),
        (Mode::Write, _) if writes => verify(recipe, request, own).await,
        (Mode::Write, _) if request.converts => upgrade(recipe, request, own).await,
        (Mode::Write, _) => {
            changed(recipe, request, own, Mode::Read);
            Ok(Converted::Refused)
        }
        _ if writes => read(recipe, request, own).await,
        _ => Ok(changed(recipe, request, own, Mode::Read)),
    }
}

/// Makes the node of a reader that of the writer, if it is alone.
async fn upgrade(recipe: &Recipe, request: &Acquire, own: OwnNode) -> Result<Converted> {
    let directory = recipe.names.lock(&request.target.name);
    let queue = nodes::children(&own.session, &directory).await?;
    if !own.name().is_some_and(|name| queue.is_only(name)) {
        changed(recipe, request, own, Mode::Read);
        return Ok(Converted::Refused);
    }
    match rename(recipe, request, own, Role::Writer).await? {
        Some(own) => verify(recipe, request, own).await,
        None => Ok(Converted::Gone),
    }
}

/// Checks that the node of the writer is alone, and makes it that of a reader again if not.
async fn verify(recipe: &Recipe, request: &Acquire, own: OwnNode) -> Result<Converted> {
    let directory = recipe.names.lock(&request.target.name);
    let (Some(path), Some(name)) = (&own.path, own.name()) else { return Ok(Converted::Gone) };
    let (queue, made) = tokio::try_join!(
        nodes::children(&own.session, &directory),
        nodes::made_at(&own.session, path)
    )?;
    match made {
        Some(token) if queue.is_only(name) => {
            let own = OwnNode { token, fenced: request.fencing.is_some(), ..own };
            Ok(changed(recipe, request, own, Mode::Write))
        }
        _ => match read(recipe, request, own).await? {
            Converted::Yes(_) => {
                Rare::ZooKeeperUpgradeUndone.reached();
                Ok(Converted::Refused)
            }
            refused => Ok(refused),
        },
    }
}

/// Makes the node of a writer that of a reader.
async fn read(recipe: &Recipe, request: &Acquire, own: OwnNode) -> Result<Converted> {
    let role = Role::Reader(Some(own.token));
    match rename(recipe, request, own, role).await? {
        Some(own) => Ok(changed(recipe, request, own, Mode::Read)),
        None => Ok(Converted::Gone),
    }
}

/// Records the outcome of a change.
fn changed(recipe: &Recipe, request: &Acquire, own: OwnNode, mode: Mode) -> Converted {
    let own = OwnNode { mode, changing: false, ..own };
    note(recipe, request, &own);
    Converted::Yes(own)
}

/// Gives a node another name in the same place. Returns `None` if it is gone.
async fn rename(
    recipe: &Recipe,
    request: &Acquire,
    own: OwnNode,
    role: Role,
) -> Result<Option<OwnNode>> {
    let Some(path) = own.path.clone() else { return Ok(None) };
    let own = OwnNode { changing: true, changes: own.changes.wrapping_add(1), ..own };
    note(recipe, request, &own);
    let by = replacement(&path, role, NodeOwner::Acquire(request.holder));
    let data = record(request.holder, 1);
    if nodes::replace(&own.session, &path, &by, &data).await? {
        let own = OwnNode { path: Some(by), ..own };
        note(recipe, request, &own);
        return Ok(Some(own));
    }
    recipe.holds.remove(&request.target.name, request.holder);
    Ok(None)
}

/// Records what is known of a node. It expires when it did before.
fn note(recipe: &Recipe, request: &Acquire, own: &OwnNode) {
    recipe.holds.update(&request.target.name, request.holder, |entry| {
        *entry = OwnNode { expires: entry.expires, ..own.clone() };
    });
}
