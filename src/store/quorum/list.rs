//! Finds the names that are in use at any node.

use super::tally::majority;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Kind, List, Listed, Pages, Store};
use crate::util::bound::within;
use async_trait::async_trait;
use std::pin::pin;
use std::sync::Arc;

/// The names at one node after the other. A name that a majority has is at one of any `nodes - majority + 1` of them, so
/// that so many must answer to the end.
pub(super) struct QuorumPages {
    nodes: Vec<NodeToRead>,
    request: List,
    /// Whether nodes that did not answer are asked again, because too few did.
    again: bool,
}

struct NodeToRead {
    store: Arc<dyn Store>,
    pages: Option<Box<dyn Pages>>,
    progress: Progress,
}

enum Progress {
    ToRead,
    Read,
    Failed(Error),
}

impl QuorumPages {
    pub(super) fn new(stores: impl Iterator<Item = Arc<dyn Store>>, request: List) -> Self {
        let node = |store| NodeToRead { store, pages: None, progress: Progress::ToRead };
        Self { nodes: stores.map(node).collect(), request, again: false }
    }

    fn read(&self) -> usize {
        self.nodes.iter().filter(|node| matches!(node.progress, Progress::Read)).count()
    }

    /// Returns how many nodes must be read.
    fn needed(&self) -> usize {
        self.nodes.len() - majority(self.nodes.len()) + 1
    }

    /// Returns the error of too few nodes.
    fn too_few(&self) -> Error {
        let mut failures = self.nodes.iter().filter_map(|node| match &node.progress {
            Progress::Failed(error) => Some(error.clone()),
            Progress::ToRead | Progress::Read => None,
        });
        let message = format!(
            "only {} of {} nodes could be listed to the end, and {} are needed to see each name that a majority has",
            self.read(),
            self.nodes.len(),
            self.needed()
        );
        match failures.next_back() {
            Some(why) => Error::new(why.kind(), format!("{message}: {why}")).with_source(why),
            None => Error::new(ErrorKind::Unavailable, message),
        }
    }
}

impl NodeToRead {
    async fn next(&mut self, request: &List) -> Result<Option<Vec<Listed>>> {
        let pages = match &mut self.pages {
            Some(pages) => pages,
            None => self.pages.insert(self.store.list(request.clone())?),
        };
        let page = within(request.timeout, pin!(pages.next())).await;
        page.unwrap_or_else(|| Err(Error::silent()))
    }
}

#[async_trait]
impl Pages for QuorumPages {
    /// Asks one node, so that one which does not answer takes no time of the others.
    async fn next(&mut self) -> Result<Option<Vec<Listed>>> {
        let is_enough = self.read() >= self.needed();
        let to_read = |node: &&mut NodeToRead| matches!(node.progress, Progress::ToRead);
        let Some(node) = self.nodes.iter_mut().find(to_read) else {
            if is_enough {
                return Ok(None);
            }
            let error = self.too_few();
            self.again = true;
            let failed = |node: &&mut NodeToRead| matches!(node.progress, Progress::Failed(_));
            self.nodes.iter_mut().filter(failed).for_each(|node| node.progress = Progress::ToRead);
            return Err(error);
        };
        match node.next(&self.request).await {
            Ok(Some(mut names)) => {
                // A quorum has none.
                names.retain(|listed| listed.kind != Kind::Semaphore);
                return Ok(Some(names));
            }
            Ok(None) => node.progress = Progress::Read,
            Err(error) => {
                node.pages = None;
                node.progress = Progress::Failed(error);
                // Otherwise the caller would not see that it still does not answer.
                if self.again && !is_enough {
                    return Err(self.too_few());
                }
            }
        }
        Ok(Some(Vec::new()))
    }
}
