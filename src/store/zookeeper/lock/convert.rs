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

use super::recipe::Recipe;
use crate::error::Result;
use crate::store::zookeeper::tree::holds::OwnNode;
use crate::store::zookeeper::tree::names::{Child, NodeOwner, Role, in_place_of, record};
use crate::store::{Acquire, Mode};

/// The outcome of a change of the mode.
pub(super) enum Changed {
    /// The node, in the mode of the request.
    Yes(OwnNode),
    /// Others have the name, or wait for it. The node is a reader's.
    Refused,
    /// The node is gone.
    Gone,
}

impl Recipe {
    /// Changes the mode of a hold to that of the request, or completes an earlier change.
    pub(super) async fn change(&self, request: &Acquire, own: OwnNode) -> Result<Changed> {
        let own = self.located(&request.target.name, request.holder, own).await?;
        let Some(role) = own.name().and_then(|name| Child::parse(name.to_owned()).ok()) else {
            self.holds.remove(&request.target.name, request.holder);
            return Ok(Changed::Gone);
        };
        let writes = role.role == Role::Writer;
        let was = own.mode;
        let to = if request.converts { request.target.mode } else { was };
        match (to, was) {
            (Mode::Write, Mode::Write) if writes => Ok(self.changed(request, own, Mode::Write)),
            (Mode::Write, _) if writes => self.verify(request, own).await,
            (Mode::Write, _) if request.converts => self.upgrade(request, own).await,
            (Mode::Write, _) => {
                self.changed(request, own, Mode::Read);
                Ok(Changed::Refused)
            }
            _ if writes => self.read(request, own).await,
            _ => Ok(self.changed(request, own, Mode::Read)),
        }
    }

    /// Makes the node of a reader that of the writer, if it is alone.
    async fn upgrade(&self, request: &Acquire, own: OwnNode) -> Result<Changed> {
        let directory = self.names.lock(&request.target.name);
        let queue = own.session.children(&directory).await?;
        if !own.name().is_some_and(|name| queue.is_only(name)) {
            self.changed(request, own, Mode::Read);
            return Ok(Changed::Refused);
        }
        match self.rename(request, own, Role::Writer).await? {
            Some(own) => self.verify(request, own).await,
            None => Ok(Changed::Gone),
        }
    }

    /// Checks that the node of the writer is alone, and makes it that of a reader again if not.
    async fn verify(&self, request: &Acquire, own: OwnNode) -> Result<Changed> {
        let directory = self.names.lock(&request.target.name);
        let (Some(path), Some(name)) = (&own.path, own.name()) else { return Ok(Changed::Gone) };
        let (queue, made) =
            tokio::try_join!(own.session.children(&directory), own.session.made_at(path))?;
        match made {
            Some(token) if queue.is_only(name) => {
                let own = OwnNode { token, fenced: request.fencing.is_some(), ..own };
                Ok(self.changed(request, own, Mode::Write))
            }
            _ => match self.read(request, own).await? {
                Changed::Yes(_) => Ok(Changed::Refused),
                refused => Ok(refused),
            },
        }
    }

    /// Makes the node of a writer that of a reader.
    async fn read(&self, request: &Acquire, own: OwnNode) -> Result<Changed> {
        let role = Role::Reader(Some(own.token));
        match self.rename(request, own, role).await? {
            Some(own) => Ok(self.changed(request, own, Mode::Read)),
            None => Ok(Changed::Gone),
        }
    }

    /// Records the outcome of a change.
    fn changed(&self, request: &Acquire, own: OwnNode, mode: Mode) -> Changed {
        let own = OwnNode { mode, changing: false, ..own };
        self.note(request, &own);
        Changed::Yes(own)
    }

    /// Gives a node another name in the same place. Returns `None` if it is gone.
    async fn rename(&self, request: &Acquire, own: OwnNode, role: Role) -> Result<Option<OwnNode>> {
        let Some(path) = own.path.clone() else { return Ok(None) };
        let own = OwnNode { changing: true, changes: own.changes.wrapping_add(1), ..own };
        self.note(request, &own);
        let by = in_place_of(&path, role, NodeOwner::Acquire(request.holder));
        let data = record(request.holder, 1);
        if own.session.replace(&path, &by, &data).await? {
            let own = OwnNode { path: Some(by), ..own };
            self.note(request, &own);
            return Ok(Some(own));
        }
        self.holds.remove(&request.target.name, request.holder);
        Ok(None)
    }

    /// Records what is known of a node. It expires when it did before.
    fn note(&self, request: &Acquire, own: &OwnNode) {
        self.holds.change(&request.target.name, request.holder, |entry| {
            *entry = OwnNode { expires: entry.expires, ..own.clone() };
        });
    }
}
