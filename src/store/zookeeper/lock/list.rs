//! Finds the names that are in use: the directories of locks that have a node of leasehold.

use super::recipe::Recipe;
use crate::error::{Error, ErrorKind, Result};
use crate::store::zookeeper::session::errors::{Found, classify, find, in_time};
use crate::store::zookeeper::tree::queue::Queue;
use crate::store::{List, Listed, Name, Pages};
use async_trait::async_trait;
use std::sync::Arc;
use tokio::runtime::Handle;
use zookeeper_client::Error as ZkError;

/// The pages of a listing.
pub(in crate::store::zookeeper) struct ZooKeeperPages {
    recipe: Arc<Recipe>,
    /// The runtime of the session.
    runtime: Handle,
    request: List,
    /// The names that have a directory and were not looked at; `None` before the first page.
    names: Option<Vec<Name>>,
}

impl ZooKeeperPages {
    pub(in crate::store::zookeeper) fn new(
        recipe: Arc<Recipe>,
        runtime: Handle,
        request: List,
    ) -> Self {
        Self { recipe, runtime, request, names: None }
    }
}

#[async_trait]
impl Pages for ZooKeeperPages {
    async fn next(&mut self) -> Result<Option<Vec<Listed>>> {
        let recipe = Arc::clone(&self.recipe);
        let timeout = self.request.timeout;
        let names = match &mut self.names {
            Some(names) => names,
            None => {
                let prefix = self.request.prefix.clone();
                let reading = self.runtime.spawn(async move {
                    in_time(recipe.read_limit(timeout), names(&recipe, &prefix)).await
                });
                self.names = Some(reading.await.unwrap_or_else(|_| Err(gone()))?);
                return Ok(Some(Vec::new()));
            }
        };
        let left = names.len().saturating_sub(self.request.page_size);
        let page = names[left..].to_vec();
        if page.is_empty() {
            return Ok(None);
        }
        let reading = self
            .runtime
            .spawn(async move { in_time(recipe.read_limit(timeout), used(&recipe, page)).await });
        let listed = reading.await.unwrap_or_else(|_| Err(gone()))?;
        names.truncate(left);
        Ok(Some(listed))
    }
}

fn gone() -> Error {
    let message = "the runtime of the session with ZooKeeper has ended, or a request has panicked";
    Error::new(ErrorKind::Unavailable, message)
}

/// Returns the names that have a directory, including those of all writes that were confirmed before.
async fn names(recipe: &Recipe, prefix: &str) -> Result<Vec<Name>> {
    let session = recipe.sessions.current()?;
    let link = session.link().await?;
    let directory = recipe.names.locks();
    let sync = link.client.sync(&directory);
    // Both are sent together and answered in this order.
    let list = find(link.client.list_children(&directory));
    let (sync, list) = tokio::join!(sync, list);
    match sync {
        Ok(()) | Err(ZkError::NoNode) => {}
        Err(error) => return Err(classify(error)),
    }
    let Found::Yes(children) = list? else { return Ok(Vec::new()) };
    let names = children.iter().filter_map(|child| recipe.names.name(child));
    Ok(names.filter(|name| name.as_str().starts_with(prefix)).collect())
}

/// Returns those of the names that have a node of leasehold. The first one says what the name is.
async fn used(recipe: &Recipe, names: Vec<Name>) -> Result<Vec<Listed>> {
    let session = recipe.sessions.current()?;
    let link = session.link().await?;
    let paths: Vec<_> = names.iter().map(|name| recipe.names.lock(name)).collect();
    // All are sent together.
    let reads: Vec<_> = paths.iter().map(|path| link.client.list_children(path)).collect();
    let mut listed = Vec::new();
    for (read, name) in reads.into_iter().zip(names) {
        if let Found::Yes(children) = find(read).await? {
            listed.extend(Queue::new(children).kind().map(|kind| Listed::new(name, kind)));
        }
    }
    Ok(listed)
}
