//! Finds the names that are in use at any node.

use super::tally::majority;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Kind, List, Listed, Pages, Store};
use async_trait::async_trait;
use std::sync::Arc;

/// The names at one node after the other. A name that a majority has is at one of any `nodes - majority + 1` of them, so
/// that so many must answer to the end.
pub(super) struct QuorumPages {
    nodes: Vec<Arc<dyn Store>>,
    request: List,
    /// The index of the node whose pages are read.
    node: usize,
    pages: Option<Box<dyn Pages>>,
    /// How many nodes were read to the end.
    read: usize,
    /// Why the last of the others was not.
    failure: Option<Error>,
}

impl QuorumPages {
    pub(super) fn new(nodes: Vec<Arc<dyn Store>>, request: List) -> Self {
        Self { nodes, request, node: 0, pages: None, read: 0, failure: None }
    }

    fn go_on(&mut self) {
        self.node += 1;
        self.pages = None;
    }

    /// Returns the error of too few nodes, and begins again.
    fn too_few(&mut self) -> Error {
        let (read, nodes) = (self.read, self.nodes.len());
        let needed = nodes - majority(nodes) + 1;
        let why = self.failure.take();
        *self = Self::new(std::mem::take(&mut self.nodes), self.request.clone());
        let message = format!(
            "only {read} of {nodes} nodes could be listed to the end, and {needed} are needed to see each name that a majority has"
        );
        match why {
            Some(why) => Error::new(why.kind(), format!("{message}: {why}")).with_source(why),
            None => Error::new(ErrorKind::Unavailable, message),
        }
    }
}

#[async_trait]
impl Pages for QuorumPages {
    async fn next(&mut self) -> Result<Option<Vec<Listed>>> {
        loop {
            let Some(node) = self.nodes.get(self.node) else {
                let needed = self.nodes.len() - majority(self.nodes.len()) + 1;
                return if self.read >= needed { Ok(None) } else { Err(self.too_few()) };
            };
            let page = match &mut self.pages {
                Some(pages) => pages.next().await,
                None => match node.list(self.request.clone()) {
                    Ok(pages) => {
                        self.pages = Some(pages);
                        continue;
                    }
                    Err(error) => Err(error),
                },
            };
            match page {
                Ok(Some(mut names)) => {
                    // A quorum has none.
                    names.retain(|listed| listed.kind != Kind::Semaphore);
                    return Ok(Some(names));
                }
                Ok(None) => {
                    self.read += 1;
                    self.go_on();
                }
                Err(error) => {
                    self.failure = Some(error);
                    self.go_on();
                }
            }
        }
    }
}
