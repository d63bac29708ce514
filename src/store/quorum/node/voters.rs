//! Counts each server once, whatever addresses lead to it.

use crate::error::{Error, ErrorKind, Fate, Result};
use crate::util::sync::Mutex;

/// The servers that have voted for a reader in one ballot.
#[derive(Default)]
pub(in crate::store::quorum) struct Voters(Mutex<Vec<(String, usize)>>);

impl Voters {
    /// Counts the vote of a server. Returns an error if it has voted as another node.
    pub(in crate::store::quorum) fn count(
        &self,
        server: Option<String>,
        node: usize,
    ) -> Result<()> {
        let Some(server) = server else { return Ok(()) };
        let mut voters = self.0.lock();
        match voters.iter().find(|(other, _)| *other == server) {
            Some((_, twin)) if *twin != node => Err(twin_error(*twin, Fate::Executed)),
            Some(_) => Ok(()),
            None => {
                voters.push((server, node));
                Ok(())
            }
        }
    }
}

/// The error of a node whose address leads to the server of another one.
pub(super) fn twin_error(twin: usize, fate: Fate) -> Error {
    let message = format!("its address leads to the server of node {}, which votes once", twin + 1);
    Error::new(ErrorKind::Unavailable, message).with_fate(fate)
}
