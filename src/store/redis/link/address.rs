//! Makes connections to an address.

use super::errors::{Failure, classify_connect, not_connected_in_time, step};
use super::health::Refusals;
use super::login::Login;
use super::tls::Tls;
use super::url::{self, Sentinels, Topology};
use crate::error::{Error, ErrorKind, Result};
use crate::store::connect::credentials::CredentialsRequest;
use crate::store::connect::layout::Layout;
use crate::store::connect::outage::Outages;
use crate::store::connect::preflight::Preflight;
use crate::store::connect::provider::Provider;
use crate::store::connect::remote::{Remote, Replicas};
use crate::util::backoff::Backoff;
use fred::clients::{Client, SubscriberClient};
use fred::error::ErrorKind as Kind;
use fred::interfaces::ClientLike;
/// A host, its port, and the name of its certificate.
pub(in crate::store::redis) use fred::types::config::Server;
use fred::types::config::{
    Config, ConnectionConfig, CredentialProvider, PerformanceConfig, ReconnectPolicy, ServerConfig,
    TcpConfig, UnresponsiveConfig,
};
use fred::types::{Builder, ClusterHash, ConnectHandle, CustomCommand, Value};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::timeout;

const CONNECT_TIMEOUT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// The capacity of a subscriber for messages. fred's default of 32 loses some in a burst. fred reserves as much for other
/// events, of each client: 4096 for all of them took 9.6 MB a manager.
const MESSAGES: usize = 1024;
/// The capacity of other clients for their few events. An event that is missed says no more than the next one.
const EVENTS: usize = 16;
const FIRST_RECONNECT: Duration = Duration::from_millis(20);

/// A connected client of fred, and the task of fred that serves it. While that task lives, fred itself replaces a lost
/// connection. When it has ended, whatever the reason, only a fresh client helps.
pub(in crate::store::redis) struct Answers<C> {
    pub(in crate::store::redis) client: C,
    pub(in crate::store::redis) task: ConnectHandle,
    /// Where a provider says with what it logs in.
    pub(in crate::store::redis) login: Option<Arc<Login>>,
}

impl<C: ClientLike> Answers<C> {
    /// Closes the connection. Ends the task, if it does not end in time.
    pub(in crate::store::redis) async fn close(self, attempt: Duration) {
        let _ = timeout(attempt, self.client.quit()).await;
        self.abort_unless_ended(attempt).await;
    }
}

impl<C> Answers<C> {
    /// Ends the task of a client that was closed, if it does not end in time.
    pub(super) async fn abort_unless_ended(mut self, limit: Duration) {
        if timeout(limit, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// A checked URL and its time limits. Its secrets are never shown.
#[derive(Clone)]
pub(crate) struct Address {
    /// The configuration for one server; in a fleet, for each.
    config: Config,
    pub(in crate::store::redis) topology: Topology,
    pub(in crate::store::redis) prefix: String,
    /// The time limit of one attempt.
    pub(in crate::store::redis) attempt: Duration,
    pub(in crate::store::redis) ttl: Duration,
    pub(in crate::store::redis) replicas: Option<Replicas>,
    pub(in crate::store::redis) layout: Layout,
    pub(in crate::store::redis) plain_pubsub: bool,
    pub(in crate::store::redis) preflight: Preflight,
    /// Its position in a quorum, from 1.
    pub(in crate::store::redis) node: Option<usize>,
    /// Shared by all that connects to these servers.
    pub(super) outages: Outages,
    /// What the server shows as the name of each connection.
    client_name: String,
    /// Of all connections of a store.
    pub(super) refusals: Arc<Refusals>,
    /// In place of a user and a password in `config`.
    credentials: Option<Provider>,
    /// `None` without TLS.
    tls: Option<Tls>,
    is_sentinel: bool,
    /// Whether connections to it carry renewals alone.
    for_renewals: bool,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").finish_non_exhaustive()
    }
}

impl Address {
    /// Checks a URL, and the settings that it cannot have, without connecting. Errors never echo it: it may hold a password.
    pub(crate) fn parse(
        url: &str,
        remote: &Remote,
        ttl: Duration,
        attempt: Duration,
    ) -> Result<Self> {
        let url::Parsed { config, topology, tls } = url::parse(url)?;
        let cluster = matches!(topology, Topology::Cluster(_));
        if remote.sharded_pubsub == Some(true) && !cluster {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "sharded_pubsub(true) needs a redis-cluster:// URL; leave it out (a cluster uses it by default)",
            ));
        }
        let tls = match remote.tls.name() {
            Some(setting) if !tls => {
                return Err(Error::invalid(format!(
                    "{setting} is for TLS; write rediss:// (or rediss-sentinel://, rediss-cluster://), or leave it out"
                )));
            }
            _ => tls.then(|| Tls::new(&remote.tls)).transpose()?,
        };
        let address = Self {
            config,
            topology,
            prefix: remote.prefix.clone(),
            ttl,
            attempt,
            replicas: remote.replicas,
            layout: remote.layout.unwrap_or_default(),
            plain_pubsub: remote.sharded_pubsub == Some(false),
            preflight: remote.preflight.unwrap_or_default(),
            node: None,
            outages: Outages::new(ttl, attempt),
            client_name: "leasehold".to_owned(),
            refusals: Arc::default(),
            credentials: remote.credentials.clone(),
            tls,
            is_sentinel: false,
            for_renewals: false,
        };
        if remote.credentials.is_some() && address.has_login() {
            return Err(Error::invalid(
                "the URL has a user or a password, and `credentials` is set, too; leave them out of the URL, and have \
                 the provider return them",
            ));
        }
        Ok(address)
    }

    /// Returns whether the URL has a user or a password.
    fn has_login(&self) -> bool {
        let of_sentinels = match &self.topology {
            Topology::Sentinel(sentinels) => sentinels.has_login(),
            Topology::Single | Topology::Cluster(_) => false,
        };
        self.config.username.is_some() || self.config.password.is_some() || of_sentinels
    }

    /// Names the connections that are made.
    pub(crate) fn named(self, client_name: &str) -> Self {
        Self { client_name: client_name.to_owned(), ..self }
    }

    /// Makes it the address of a node of a quorum, of which `position` counts from 1.
    pub(crate) fn at_position(self, position: usize) -> Self {
        Self { node: Some(position), ..self }
    }

    /// Makes it one of which no server is asked for its settings when connecting.
    pub(in crate::store::redis) fn without_preflight(self) -> Self {
        Self { preflight: Preflight::off(), ..self }
    }

    /// Makes it the address for connections that carry renewals alone.
    pub(in crate::store::redis) fn for_renewals(self) -> Self {
        Self { for_renewals: true, ..self }
    }

    /// Returns whether a silent connection stays in use until there are credentials for the next one. The leases depend on it,
    /// and a renewal that the server reads late does no harm, as another request might.
    pub(super) fn outlives_silence(&self) -> bool {
        self.for_renewals && self.credentials.is_some()
    }

    pub(crate) fn is_one_server(&self) -> bool {
        matches!(self.topology, Topology::Single)
    }

    /// Returns whether two addresses of single servers name the same host and port.
    pub(crate) fn is_same_server(&self, other: &Self) -> bool {
        use ServerConfig::Centralized;
        match (&self.config.server, &other.config.server) {
            (Centralized { server: one }, Centralized { server: other }) => {
                one.host.eq_ignore_ascii_case(&other.host) && one.port == other.port
            }
            (one, other) => one == other,
        }
    }

    /// Returns the host and the port of a single server, or its socket.
    pub(in crate::store::redis) fn server_address(&self) -> String {
        ServerAddress(&self.config.server).to_string()
    }

    /// Returns the address of one server of a fleet.
    pub(in crate::store::redis) fn of(&self, server: &Server) -> Self {
        let mut address = self.clone();
        address.config.server = ServerConfig::Centralized { server: server.clone() };
        address.topology = Topology::Single;
        address
    }

    /// Returns the address of a sentinel, which has no databases, and users of its own.
    pub(in crate::store::redis) fn of_sentinel(
        &self,
        sentinels: &Sentinels,
        server: &Server,
    ) -> Self {
        let mut address = self.of(server);
        address.config.database = None;
        address.config.username.clone_from(&sentinels.username);
        address.config.password.clone_from(&sentinels.password);
        address.is_sentinel = true;
        address
    }

    /// Returns what a new client logs in with, if a provider says it: what was prepared for the client `before`, if anything was.
    fn login(&self, before: Option<&Login>) -> Option<Arc<Login>> {
        let provider = self.credentials.clone()?;
        let request = CredentialsRequest::new(self.server_address(), self.is_sentinel);
        // The rest is for the server: fred has one limit for both.
        let limit = self.connect_timeout() * 3 / 4;
        let login = Login::new(provider, request, limit);
        Some(Arc::new(match before {
            Some(before) => login.after(before),
            None => login,
        }))
    }

    /// Returns the configuration of a client that is made now. Reads the files of certificates, if there are some.
    async fn configured(&self, login: Option<&Arc<Login>>) -> Result<Config, Failure> {
        let mut config = self.config.clone();
        config.credential_provider =
            login.map(|login| Arc::clone(login) as Arc<dyn CredentialProvider>);
        if let Some(tls) = &self.tls
            && let Err(failure) = tls.configure(&mut config, self.connect_timeout()).await
        {
            self.note_failure(&failure);
            return Err(failure);
        }
        Ok(config)
    }

    fn builder(&self, capacity: usize, config: Config) -> Builder {
        let mut builder = Builder::from_config(config);
        builder.set_connection_config(ConnectionConfig {
            connection_timeout: self.connect_timeout(),
            internal_command_timeout: self.connect_timeout(),
            // A script whose reply was lost must not be sent again behind our back.
            max_command_attempts: 1,
            // fred's check takes a stall of this process for silence; `node.rs` and `pubsub/subscriber.rs` have our
            // own.
            unresponsive: UnresponsiveConfig { max_timeout: None, ..UnresponsiveConfig::default() },
            tcp: TcpConfig {
                nodelay: Some(true),
                // Data that was not sent when a connection is closed must not arrive later.
                linger: Some(Duration::ZERO),
                ..TcpConfig::default()
            },
            ..ConnectionConfig::default()
        });
        builder.set_performance_config(PerformanceConfig {
            default_command_timeout: self.attempt,
            broadcast_channel_capacity: capacity,
            ..PerformanceConfig::default()
        });
        builder
    }

    /// Returns the builder of clients that replace a lost connection themselves, unless each connection needs a client of its
    /// own.
    fn lasting(&self, config: Config) -> Builder {
        let mut builder = self.builder(EVENTS, config);
        if !self.ends_with_connection() {
            let longest = millis(self.longest_pause());
            let mut policy =
                ReconnectPolicy::new_exponential(0, millis(FIRST_RECONNECT), longest, 2);
            policy.set_jitter(longest / 4);
            builder.set_policy(policy);
        }
        builder
    }

    /// Returns whether a client ends with its connection, because the next one reads certificates again, which fred cannot do.
    pub(super) fn ends_with_connection(&self) -> bool {
        self.tls.as_ref().is_some_and(Tls::reads_files)
    }

    /// Returns the longest pause between two attempts to connect.
    pub(super) fn longest_pause(&self) -> Duration {
        (self.ttl / 20).clamp(FIRST_RECONNECT, Duration::from_secs(3))
    }

    /// Returns by when fred has begun to make a connection again, unless its task is stuck: after its first pause, with a
    /// quarter of a second for a busy machine.
    pub(super) fn first_pause(&self) -> Duration {
        FIRST_RECONNECT + self.longest_pause() / 4 + Duration::from_millis(250)
    }

    /// Returns the pauses between attempts to make a fresh client.
    pub(in crate::store::redis) fn pauses(&self) -> Backoff {
        Backoff::new(FIRST_RECONNECT, self.longest_pause())
    }

    /// Returns what the log calls the server.
    pub(in crate::store::redis) fn server_name(&self) -> String {
        self.node.map_or_else(|| self.server_address(), |at| format!("node {at}"))
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        self.attempt.clamp(CONNECT_TIMEOUT.0, CONNECT_TIMEOUT.1)
    }

    pub(in crate::store::redis) async fn client(&self) -> Result<Answers<Client>> {
        self.fresh(None).await.map_err(|failure| self.cannot_connect(&failure))
    }

    /// Connects as [`client`](Self::client) does, for an owner that knows what to do with a failure of fred. Logs in with what
    /// was prepared by the login `before`.
    pub(super) async fn fresh(&self, before: Option<&Login>) -> Result<Answers<Client>, Failure> {
        let login = self.login(before);
        let config = self.configured(login.as_ref()).await?;
        self.connect(self.lasting(config).build()?, login).await
    }

    /// Connects a client that ends with its connection: its owner makes the next.
    pub(in crate::store::redis) async fn subscriber(&self) -> Result<Answers<SubscriberClient>> {
        let connected = async {
            let login = self.login(None);
            let config = self.configured(login.as_ref()).await?;
            let client = self.builder(MESSAGES, config).build_subscriber_client()?;
            self.connect(client, login).await
        };
        connected.await.map_err(|failure| self.cannot_connect(&failure))
    }

    fn cannot_connect(&self, failure: &Failure) -> Error {
        self.explain(failure).at(&format!("cannot connect to {}", self.server_address()))
    }

    fn note_failure(&self, failure: &Failure) {
        self.outages.failed(&self.server_address(), step(failure), &self.explain(failure));
    }

    fn explain(&self, failure: &Failure) -> Error {
        let tls = self.tls.is_some();
        match failure.kind() {
            Kind::Timeout => not_connected_in_time(tls),
            _ => classify_connect(failure, tls),
        }
    }

    /// Connects a client and names its connection. Reports whether the server has answered.
    async fn connect<C: ClientLike>(
        &self,
        client: C,
        login: Option<Arc<Login>>,
    ) -> Result<Answers<C>, Failure> {
        let connected = self.try_to_connect(client, login).await;
        match &connected {
            Ok(_) => self.outages.answered(&self.server_address()),
            Err(failure) => self.note_failure(failure),
        }
        connected
    }

    /// As the `init` of a client, but names the connection, notices the end of its task, and leaves nothing behind that tries
    /// on.
    async fn try_to_connect<C: ClientLike>(
        &self,
        client: C,
        login: Option<Arc<Login>>,
    ) -> Result<Answers<C>, Failure> {
        let waiting = client.clone();
        let mut connected = pin!(async move { waiting.wait_for_connect().await });
        begin(connected.as_mut()).await;
        let mut task = client.connect();
        let result = tokio::select! {
            biased;
            result = timeout(self.connect_timeout() * 2, connected) => {
                result.unwrap_or_else(|_| Err(Failure::new(Kind::Timeout, "")))
            }
            ended = &mut task => match ended {
                Ok(Err(failure)) => return Err(failure),
                _ => return Err(Failure::new(Kind::Canceled, "the task of the client has ended")),
            },
        };
        let named = match result {
            Ok(()) => self.name(&client).await,
            Err(failure) => Err(failure),
        };
        match named {
            Ok(()) => Ok(Answers { client, task, login }),
            Err(failure) => {
                Answers { client, task, login }.close(self.attempt).await;
                Err(failure)
            }
        }
    }

    /// Names a connection, for `CLIENT LIST`. A server that refuses that is as good without; fred would not connect to it.
    ///
    /// # Errors
    ///
    /// Only if there is no answer. The connection is of no use then: fred takes the next answer there for that of this
    /// command.
    pub(in crate::store::redis) async fn name(
        &self,
        client: &impl ClientLike,
    ) -> Result<(), Failure> {
        let set = CustomCommand::new_static("CLIENT", ClusterHash::FirstKey, false);
        let words = vec!["SETNAME", &*self.client_name];
        // Within an attempt, by the settings of the client.
        match client.custom::<Value, _>(set, words).await {
            Err(failure) if *failure.kind() == Kind::Timeout => Err(failure),
            _ => Ok(()),
        }
    }
}

/// Polls a future once, so that it hears of what happens from now on.
async fn begin<F: Future>(mut future: Pin<&mut F>) {
    poll_fn(|context| {
        let _ = future.as_mut().poll(context);
        Poll::Ready(())
    })
    .await;
}

/// The host and the port of a server, or its socket. No user and no password.
pub(super) struct ServerAddress<'a>(pub(in crate::store::redis) &'a ServerConfig);

impl fmt::Display for ServerAddress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // The host of a URL has its brackets, that of a redirection has none.
            ServerConfig::Centralized { server }
                if server.host.contains(':') && !server.host.starts_with('[') =>
            {
                write!(f, "[{}]:{}", server.host, server.port)
            }
            ServerConfig::Centralized { server } => write!(f, "{}:{}", server.host, server.port),
            ServerConfig::Unix { path } => write!(f, "{}", path.display()),
            _ => f.write_str("the servers of the URL"),
        }
    }
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_shows_nothing() {
        let t = Duration::from_secs(1);
        let address = Address::parse("redis://u:hunter2@host", &Remote::default(), t, t).unwrap();
        assert!(!format!("{address:?}").contains("hunter2"));
    }

    #[test]
    fn only_a_cluster_has_sharded_pubsub() {
        let t = Duration::from_secs(1);
        for (url, on, good) in [
            ("redis://host", true, false),
            ("redis-sentinel://host?sentinelServiceName=m", true, false),
            ("redis-cluster://host", true, true),
            ("redis://host", false, true),
            ("redis-cluster://host", false, true),
        ] {
            let remote = Remote { sharded_pubsub: Some(on), ..Remote::default() };
            let address = Address::parse(url, &remote, t, t);
            assert_eq!(address.as_ref().err().map(Error::kind).is_none(), good, "{url} {on}");
        }
    }

    #[test]
    fn one_server_is_neither_sentinel_nor_cluster() {
        let t = Duration::from_secs(1);
        for (url, one) in [
            ("redis://host", true),
            ("redis+unix:///socket", true),
            ("redis-cluster://host", false),
            ("redis-sentinel://host?sentinelServiceName=m", false),
        ] {
            assert_eq!(
                Address::parse(url, &Remote::default(), t, t).unwrap().is_one_server(),
                one,
                "{url}"
            );
        }
    }
}
