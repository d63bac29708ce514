//! Settings of stores behind a network that a URL cannot say.

use crate::error::{Error, ErrorKind, Result};
use std::fmt;
use std::time::Duration;

#[derive(Clone, Default)]
pub(crate) struct Remote {
    pub(crate) replicas: Option<Replicas>,
    /// In a cluster, too, messages go to all servers.
    pub(crate) plain_pubsub: bool,
    /// Certificates of authorities, in PEM.
    pub(crate) ca: Option<Vec<u8>>,
    /// A chain of certificates and its key, in PEM.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// How many replicas must have a grant, and how long they may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub(crate) count: u32,
    pub(crate) timeout: Duration,
}

impl Remote {
    /// For stores that are not Redis: nothing of this may be set.
    pub(crate) fn refuse(&self) -> Result<()> {
        if self.replicas.is_none() && !self.plain_pubsub && !self.has_tls() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            "replicas, sharded_pubsub and TLS are settings for Redis; this store has none of them",
        ))
    }

    pub(crate) fn has_tls(&self) -> bool {
        self.ca.is_some() || self.identity.is_some()
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the key.
        f.debug_struct("Remote")
            .field("replicas", &self.replicas)
            .field("plain_pubsub", &self.plain_pubsub)
            .field("ca", &self.ca.is_some())
            .field("identity", &self.identity.is_some())
            .finish()
    }
}
