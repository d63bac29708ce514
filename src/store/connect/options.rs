//! Settings of a store that is connected without a manager.

use super::credentials::CredentialsProvider;
use super::layout::Layout;
use super::preflight::Preflight;
use super::provider::Provider;
use super::remote::{Remote, Replicas};
use super::tls::{Identity, Pem, TlsLibrary};
use crate::error::{Error, ErrorKind, Result};
use crate::store::DEFAULT_TTL;
use crate::store::contract::metadata::Owner;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;
use uuid::Uuid;

/// Settings of a store that you connect without a manager, for example to wrap it in a [`Store`](crate::store::Store)
/// of your own.
///
/// They are the settings of the [`Builder`](crate::Builder) that concern the server. Set the same time to live on the
/// manager's builder, and leave the other settings out there, because the store has them.
///
/// ```no_run
/// # async fn connected() -> leasehold::Result<()> {
/// use leasehold::store::{ConnectOptions, Quorum};
/// use std::time::Duration;
///
/// let ttl = Duration::from_secs(10);
/// let options = ConnectOptions::new().ttl(ttl).prefix("shop:");
/// let store = Quorum::connect_with("redis://a,redis://b,redis://c", &options).await?;
/// # drop(store);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing until something connects with them"]
pub struct ConnectOptions {
    ttl: Duration,
    remote: Remote,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { ttl: DEFAULT_TTL, remote: Remote::default() }
    }
}

impl ConnectOptions {
    /// Creates the default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the longest time to live that is requested: that of the manager.
    ///
    /// How long connections and reconnects may take follows from it. The session with ZooKeeper is a third longer.
    ///
    /// Defaults to 30 s.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// Sets the text that precedes each name in its key.
    ///
    /// Defaults to an empty text.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.remote.prefix = prefix.into();
        self
    }

    /// Sets the layout of locks on the server, as [`Builder::layout`](crate::Builder::layout). Redis only.
    ///
    /// Defaults to [`Layout::Redisson`].
    pub fn layout(mut self, layout: Layout) -> Self {
        self.remote.layout = Some(layout);
        self
    }

    /// Accepts a grant only if `count` replicas acknowledge it within `timeout`, as
    /// [`Builder::replicas`](crate::Builder::replicas). Redis only.
    ///
    /// `count` is at least 1. `timeout` is at least 1 ms and at most T/12, or 500 ms if that is longer: 2.5 s with a TTL of
    /// 30 s. That is more than the builder allows.
    ///
    /// Defaults to off: a grant counts without replicas.
    pub fn replicas(mut self, count: u32, timeout: Duration) -> Self {
        self.remote.replicas = Some(Replicas { count, timeout });
        self
    }

    /// Sets what connecting does about a server whose settings may cost leases, as
    /// [`Builder::preflight`](crate::Builder::preflight). Redis only.
    ///
    /// Defaults to [`warn`](Preflight::warn).
    pub fn preflight(mut self, preflight: Preflight) -> Self {
        self.remote.preflight = Some(preflight);
        self
    }

    /// Sets whether waiters in a Redis Cluster are woken by sharded pub/sub, as
    /// [`Builder::sharded_pubsub`](crate::Builder::sharded_pubsub). Redis only.
    ///
    /// Defaults to `true` in a cluster.
    pub fn sharded_pubsub(mut self, on: bool) -> Self {
        self.remote.sharded_pubsub = Some(on);
        self
    }

    /// Trusts the certificates in `pem` instead of those of the platform, as [`Builder::tls_ca`](crate::Builder::tls_ca).
    /// For `rediss` URLs.
    ///
    /// Defaults to the certificates of the platform.
    pub fn tls_ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.remote.tls.ca = Some(Pem::Given(pem.into()));
        self
    }

    /// Trusts the certificates in a file, which is read each time a connection is made, as
    /// [`Builder::tls_ca_file`](crate::Builder::tls_ca_file). For `rediss` URLs. Replaces [`tls_ca`](Self::tls_ca).
    ///
    /// Defaults to the certificates of the platform.
    pub fn tls_ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.remote.tls.ca = Some(Pem::File(path.into()));
        self
    }

    /// Presents a client certificate: a chain and its private key, in PEM, as
    /// [`Builder::tls_identity`](crate::Builder::tls_identity). For `rediss` URLs.
    ///
    /// Defaults to no certificate.
    pub fn tls_identity(mut self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.remote.tls.identity =
            Some(Identity { chain: Pem::Given(chain.into()), key: Pem::Given(key.into()) });
        self
    }

    /// Presents a client certificate from files, which are read each time a connection is made, as
    /// [`Builder::tls_identity_files`](crate::Builder::tls_identity_files). For `rediss` URLs. Replaces
    /// [`tls_identity`](Self::tls_identity).
    ///
    /// Defaults to no certificate.
    pub fn tls_identity_files(
        mut self,
        chain: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.remote.tls.identity =
            Some(Identity { chain: Pem::File(chain.into()), key: Pem::File(key.into()) });
        self
    }

    /// Chooses the library that makes TLS connections, as [`Builder::tls_library`](crate::Builder::tls_library). For `rediss`
    /// URLs.
    ///
    /// Defaults to the first in the list of [`TlsLibrary`] whose feature is on.
    pub fn tls_library(mut self, library: TlsLibrary) -> Self {
        self.remote.tls.library = Some(library);
        self
    }

    /// Sets what provides the user and the password of each connection, as
    /// [`Builder::credentials`](crate::Builder::credentials). Redis only.
    ///
    /// Defaults to the user and the password of the URL.
    pub fn credentials(mut self, provider: impl CredentialsProvider) -> Self {
        self.remote.credentials = Some(Provider::new(provider));
        self
    }

    /// Checks the settings, and derives how long one attempt may take.
    pub(crate) fn common(&self) -> Result<Common> {
        if self.ttl.is_zero() {
            return Err(Error::invalid(
                "a time to live of 0 is too short; give that of the manager",
            ));
        }
        let attempt = (self.ttl / 6).max(Duration::from_secs(1));
        self.remote.check(attempt)?;
        let client_name = "leasehold".to_owned();
        Ok(Common { ttl: self.ttl, attempt, remote: self.remote.clone(), client_name })
    }
}

/// What the stores of a manager have in common.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    /// T, and how long one attempt may take.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) ttl: Duration,
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) attempt: Duration,
    pub(crate) remote: Remote,
    /// What servers show as the name of a connection.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) client_name: String,
}

impl Common {
    /// Returns the name of the connections of a manager: its service, or the host and the process id, and its uuid. Redis
    /// refuses spaces and what cannot be printed, and a colon separates the parts.
    pub(crate) fn client_name(owner: &Owner, manager: Uuid) -> String {
        let service = match &*owner.service {
            "" => format!("{}.{}", owner.host, owner.pid),
            service => service.to_owned(),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._/@+".contains(c);
        format!("leasehold:{}:{manager}", service.replace(|c: char| !plain(c), "_"))
    }
}

/// Connects in a task of its own, so that a dropped future leaves nothing half connected. The task begins at once, so
/// the future that waits for it does not contain what it runs.
pub(crate) fn in_task<T: Send + 'static>(
    connect: impl Future<Output = Result<T>> + Send + 'static,
) -> impl Future<Output = Result<T>> {
    let task = tokio::spawn(connect);
    async move {
        task.await.unwrap_or_else(|error| {
            let cancelled = Error::new(ErrorKind::Unavailable, "the connection task was cancelled");
            Err(cancelled.with_source(error))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Credentials;

    #[test]
    fn settings_out_of_range_are_refused() {
        let ms = Duration::from_millis;
        let options = || ConnectOptions::new().ttl(Duration::from_secs(12));
        for (options, good) in [
            (options(), true),
            (options().ttl(ms(1)), true),
            (options().ttl(ms(0)), false),
            (options().replicas(1, ms(1)), true),
            (options().replicas(1, ms(1000)), true),
            (options().replicas(1, ms(1001)), false),
            (options().replicas(1, ms(0)), false),
            (options().replicas(0, ms(1)), false),
        ] {
            let checked = options.common();
            assert_eq!(checked.is_ok(), good, "{options:?}");
            if let Err(error) = checked {
                assert_eq!(error.kind(), ErrorKind::Invalid);
            }
        }
    }

    #[test]
    fn connections_are_named_after_the_service_or_the_process() {
        let name = |owner| Common::client_name(&owner, Uuid::nil());
        let service = Owner::new("Ünder the: bridge\n/v2");
        let manager = Uuid::nil();
        assert_eq!(name(service), format!("leasehold:_nder_the__bridge_/v2:{manager}"));
        let other = Owner { pid: 7, ..Owner::new("").host("a.b") };
        assert_eq!(name(other), format!("leasehold:a.b.7:{manager}"));
    }

    #[test]
    fn options_show_no_secrets() {
        let options = ConnectOptions::new().tls_identity("chain", "hunter2");
        let options = options.credentials(Credentials::password("hunter2"));
        assert!(!format!("{options:?}").contains("hunter2"));
    }
}
