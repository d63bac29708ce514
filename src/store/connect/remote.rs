//! Settings that a URL cannot express, and that not every store has.

use super::layout::Layout;
use super::preflight::Preflight;
use super::provider::Provider;
use super::tls::TlsSettings;
use crate::error::{Error, ErrorKind, Result};
use crate::store::contract::name::check_prefix;
use std::fmt;
use std::time::Duration;

#[derive(Clone, Default)]
pub(crate) struct Remote {
    /// Precedes each name in its key.
    pub(crate) prefix: String,
    pub(crate) replicas: Option<Replicas>,
    /// `None`: that of Redisson.
    pub(crate) layout: Option<Layout>,
    /// `None`: the default, for stores that have servers to check.
    pub(crate) preflight: Option<Preflight>,
    /// `None`: where there is a cluster.
    pub(crate) sharded_pubsub: Option<bool>,
    pub(crate) tls: TlsSettings,
    /// In place of the user and the password of the URL.
    pub(crate) credentials: Option<Provider>,
}

/// How many replicas must have a grant, and how long they may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub(crate) count: u32,
    pub(crate) timeout: Duration,
}

/// The shortest time that replicas may be given.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

impl Remote {
    /// Checks the settings that are set, for requests that may take `attempt`.
    pub(crate) fn check(&self, attempt: Duration) -> Result<()> {
        check_prefix(&self.prefix)?;
        if let Some(Replicas { count, timeout }) = self.replicas {
            let longest = attempt / 2;
            if count == 0 || !(SHORTEST_WAIT..=longest).contains(&timeout) {
                return Err(Error::invalid(format!(
                    "replicas({count}, {timeout:?}) is out of range; choose at least 1 and 1 ms to {longest:?}"
                )));
            }
        }
        Ok(())
    }

    /// Refuses all of these settings, for `store` has none of them: not even keys.
    pub(crate) fn refuse(&self, store: &str) -> Result<()> {
        let prefix = (!self.prefix.is_empty()).then_some("prefix");
        refuse(prefix.or(self.of_redis()), store)
    }

    /// Refuses the settings that only Redis has.
    pub(crate) fn refuse_all_but_prefix(&self, store: &str) -> Result<()> {
        refuse(self.of_redis(), store)
    }

    /// Returns the name of a setting that only Redis has, if one is set.
    fn of_redis(&self) -> Option<&'static str> {
        let set = [
            ("layout", self.layout.is_some()),
            ("replicas", self.replicas.is_some()),
            ("preflight", self.preflight.is_some()),
            ("sharded_pubsub", self.sharded_pubsub.is_some()),
            ("credentials", self.credentials.is_some()),
        ];
        set.iter().find_map(|(name, set)| set.then_some(*name)).or(self.tls.name())
    }
}

fn refuse(setting: Option<&str>, store: &str) -> Result<()> {
    let Some(setting) = setting else { return Ok(()) };
    Err(Error::new(
        ErrorKind::Unsupported,
        format!("the setting {setting} does not apply to {store}; leave it out"),
    ))
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the key, nor what credentials hold.
        f.debug_struct("Remote")
            .field("prefix", &self.prefix)
            .field("layout", &self.layout)
            .field("replicas", &self.replicas)
            .field("preflight", &self.preflight)
            .field("sharded_pubsub", &self.sharded_pubsub)
            .field("ca", &self.tls.ca.is_some())
            .field("identity", &self.tls.identity.is_some())
            .field("library", &self.tls.library)
            .field("credentials", &self.credentials.is_some())
            .finish()
    }
}
