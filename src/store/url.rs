//! From a URL to a store: the one place that knows them all.

use super::connect::examination::Examination;
use super::connect::finding::{Check, Finding, Severity};
use super::connect::options::{Common, ConnectOptions, in_task};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
#[cfg(feature = "redis")]
use crate::store::redis::{Address, RedisStore};
#[cfg(feature = "zookeeper")]
use crate::store::zookeeper::{Address as ZooKeeperAddress, ZooKeeperStore};
use crate::store::{MemoryStore, NodeOpener, Quorum, Store, open_quorum};
use crate::util::join::{BoxedCall, all};
use std::sync::Arc;
use std::time::Duration;

/// What others call ZooKeeper over TLS.
const SECURE_ZOOKEEPER: [&str; 4] =
    ["zookeepers:", "zookeeper+tls:", "zookeeper+ssl:", "zookeeper-tls:"];

/// A checked URL. Its secrets are never shown.
#[derive(Clone, Debug)]
pub(crate) enum Backend {
    Memory,
    #[cfg(feature = "redis")]
    Redis(Box<Address>),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(ZooKeeperAddress),
    Quorum(Vec<Backend>),
}

impl Backend {
    /// Checks a URL, or a list of them, without connecting.
    pub(crate) fn parse(url: &str, common: &Common) -> Result<Self> {
        match &list(url)[..] {
            [url] => Self::one(url, common),
            urls => {
                let node = |(index, url): (usize, &&str)| Self::node(url, common, index + 1);
                let nodes: Result<_> = urls.iter().enumerate().map(node).collect();
                let nodes: Vec<Backend> = nodes?;
                Quorum::check(nodes.len())?;
                if !nodes.iter().all(Self::is_one_server) {
                    return Err(Error::invalid(
                        "a node of a quorum is one server, not Sentinel, Cluster or ZooKeeper: each of these \
                         may replace a server by one that has forgotten a lock",
                    ));
                }
                if let Some([one, other]) = twice(&nodes) {
                    return Err(Error::invalid(format!(
                        "URL {one} and URL {other} of the quorum name the same server, whose vote would count twice; \
                         name each server once"
                    )));
                }
                Ok(Self::Quorum(nodes))
            }
        }
    }

    /// The URL of a node of a quorum.
    fn node(url: &str, common: &Common, position: usize) -> Result<Self> {
        let _ = position;
        Ok(match Self::one(url, common)? {
            #[cfg(feature = "redis")]
            Self::Redis(address) => Self::Redis(Box::new(address.at_position(position))),
            other => other,
        })
    }

    fn one(url: &str, common: &Common) -> Result<Self> {
        let url = &normalized(url);
        let tls = common.remote.tls.name().is_some() && url.starts_with("zookeeper:");
        if tls || SECURE_ZOOKEEPER.iter().any(|scheme| url.starts_with(scheme)) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "TLS to ZooKeeper is not supported; write zookeeper:// to the near end of a tunnel that speaks it, \
                 and leave out all settings that begin with tls_",
            ));
        }
        if let Some(rest) = url.strip_prefix("memory:") {
            if !rest.is_empty() {
                return Err(Error::invalid(
                    "a store in memory has no address; write memory: alone",
                ));
            }
            common.remote.refuse("memory:")?;
            return Ok(Self::Memory);
        }
        if url.starts_with("zookeeper:") {
            common.remote.refuse_all_but_prefix("ZooKeeper")?;
            return Self::zookeeper(url, common);
        }
        Self::redis(url, common)
    }

    #[cfg(feature = "zookeeper")]
    fn zookeeper(url: &str, common: &Common) -> Result<Self> {
        ZooKeeperAddress::parse(url, &common.remote.prefix, common.ttl).map(Self::ZooKeeper)
    }

    #[cfg(not(feature = "zookeeper"))]
    fn zookeeper(_: &str, _: &Common) -> Result<Self> {
        Err(Error::new(
            ErrorKind::Unsupported,
            "ZooKeeper is not compiled in; turn on leasehold's feature \"zookeeper\"",
        ))
    }

    /// By the address, whatever their users and databases are.
    #[cfg(feature = "redis")]
    fn is_same_server(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Redis(one), Self::Redis(other)) if one.is_same_server(other))
    }

    #[cfg(not(feature = "redis"))]
    fn is_same_server(&self, _: &Self) -> bool {
        false
    }

    fn is_one_server(&self) -> bool {
        match self {
            Self::Memory => true,
            #[cfg(feature = "redis")]
            Self::Redis(address) => address.is_one_server(),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(_) => false,
            Self::Quorum(_) => false,
        }
    }

    /// The time to live that the engine is to count with, where it is not the one that was asked for.
    pub(crate) fn lease_time(&self) -> Option<Duration> {
        match self {
            // The rest of the session's timeout is for what is not proven yet.
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(address) => Some(address.lease_time()),
            _ => None,
        }
    }

    #[cfg(feature = "redis")]
    fn redis(url: &str, common: &Common) -> Result<Self> {
        let Common { ttl, attempt, remote, client_name } = common;
        Address::parse(url, remote, *ttl, *attempt)
            .map(|address| Self::Redis(Box::new(address.named(client_name))))
    }

    #[cfg(not(feature = "redis"))]
    fn redis(url: &str, _: &Common) -> Result<Self> {
        if !url.contains("://") {
            return Err(Error::invalid("the URL has no scheme; write memory:"));
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            "only memory: is compiled in; turn on leasehold's feature \"redis\" for Redis",
        ))
    }

    /// Whether its watchdog is best on a thread of its own.
    pub(crate) fn dedicated_thread(&self) -> bool {
        match self {
            Self::Memory => false,
            #[cfg(feature = "redis")]
            Self::Redis(_) => true,
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(_) => true,
            Self::Quorum(nodes) => nodes.iter().any(Self::dedicated_thread),
        }
    }

    /// Connects, on the current runtime.
    pub(crate) async fn open(self, clock: Clock) -> Result<Arc<dyn Store>> {
        match self {
            Self::Quorum(nodes) => Ok(Arc::new(open_nodes(nodes, clock).await?)),
            one => one.open_one(clock).await,
        }
    }

    /// Examines its servers, on the current runtime. Whatever is wrong is a finding.
    pub(crate) async fn examine(self, ttl: Duration) -> Examination {
        let mut examination = match self {
            Self::Quorum(nodes) => {
                let nodes = nodes.into_iter();
                let asked = nodes.map(|node| Box::pin(node.examine_one()) as BoxedCall<'_, _>);
                Examination::of_quorum(all(asked.collect()).await)
            }
            one => one.examine_one().await,
        };
        examination.compare_clocks(ttl);
        examination
    }

    async fn examine_one(self) -> Examination {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(address) => Box::pin(crate::store::redis::examine(*address)).await,
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(address) => Box::pin(crate::store::zookeeper::examine(address)).await,
            Self::Memory | Self::Quorum(_) => {
                let advice = "is the memory of this process, which has no servers to examine";
                let finding = Finding::new(Check::Reachable, Severity::Fine, "memory:", advice);
                Examination::of(finding)
            }
        }
    }

    async fn open_one(self, clock: Clock) -> Result<Arc<dyn Store>> {
        let _ = &clock;
        match self {
            Self::Memory => Ok(Arc::new(MemoryStore::new())),
            #[cfg(feature = "redis")]
            Self::Redis(address) => Ok(Arc::new(RedisStore::open(*address, clock).await?)),
            #[cfg(feature = "zookeeper")]
            // Its sessions do not live by tokio's clock.
            Self::ZooKeeper(address) => {
                Ok(Arc::new(ZooKeeperStore::open(address, Clock::system()).await?))
            }
            Self::Quorum(_) => Err(Error::invalid("a quorum cannot be a node of another")),
        }
    }
}

async fn open_nodes(nodes: Vec<Backend>, clock: Clock) -> Result<Quorum> {
    let opener = |node: Backend| -> NodeOpener {
        let clock = clock.clone();
        Box::new(move || {
            let node = node.clone();
            let clock = clock.clone();
            Box::pin(async move { node.open_one(clock).await })
        })
    };
    let openings = nodes.into_iter().map(opener).collect();
    open_quorum(openings, clock).await
}

impl Quorum {
    /// Connects to the servers of a list of URLs, on the current runtime, with the default settings.
    ///
    /// As [`connect_with`](Self::connect_with).
    ///
    /// # Errors
    ///
    /// As [`connect_with`](Self::connect_with).
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe: what was connected is disconnected.
    pub async fn connect(urls: &str) -> Result<Self> {
        Self::connect_with(urls, &ConnectOptions::new()).await
    }

    /// Connects to the servers of a list of URLs, on the current runtime, as a node each.
    ///
    /// The URLs are those of [`LeaseManager::connect`](crate::LeaseManager::connect) for 3 to 15 servers, with a comma
    /// between two. A minority may be down: it is tried again in the background.
    ///
    /// # Errors
    ///
    /// As [`LeaseManager::connect`](crate::LeaseManager::connect), and [`Invalid`](ErrorKind::Invalid) for one URL alone.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe: what was connected is disconnected.
    pub async fn connect_with(urls: &str, options: &ConnectOptions) -> Result<Self> {
        let backend = Backend::parse(urls, &options.common()?)?;
        let clock = if backend.dedicated_thread() { Clock::system() } else { Clock::tokio() };
        match backend {
            Backend::Quorum(nodes) => in_task(open_nodes(nodes, clock)).await,
            _ => Err(Error::invalid(
                "one URL is no quorum; write 3 to 15 of them with a comma between two",
            )),
        }
    }
}

/// The places of two that are one server.
fn twice(nodes: &[Backend]) -> Option<[usize; 2]> {
    nodes.iter().enumerate().find_map(|(at, node)| {
        let first = nodes[..at].iter().position(|before| before.is_same_server(node))?;
        Some([first + 1, at + 1])
    })
}

/// Writes the scheme in small letters, and removes spaces around the URL.
fn normalized(url: &str) -> String {
    match url.trim().split_once(':') {
        Some((scheme, rest)) => format!("{}:{rest}", scheme.to_ascii_lowercase()),
        None => url.trim().to_owned(),
    }
}

/// The URLs of a list: a comma separates them where a scheme follows, for URLs may have commas inside.
fn list(text: &str) -> Vec<&str> {
    let mut urls = Vec::new();
    let mut start = 0;
    for (comma, _) in text.match_indices(',') {
        if begins_with_scheme(text[comma + 1..].trim_start()) {
            urls.push(text[start..comma].trim());
            start = comma + 1;
        }
    }
    urls.push(text[start..].trim());
    urls
}

fn begins_with_scheme(text: &str) -> bool {
    let word = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    text.starts_with("memory:") || text.split_once("://").is_some_and(|(scheme, _)| word(scheme))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::connect::remote::Remote;
    use crate::store::connect::tls::{Identity, Pem, TlsSettings};

    fn parsed(url: &str) -> Result<Backend> {
        let second = Duration::from_secs(1);
        let remote = Remote::default();
        Backend::parse(
            url,
            &Common { ttl: second, attempt: second, remote, client_name: String::new() },
        )
    }

    #[test]
    fn comma_before_a_scheme_separates() {
        let table: [(&str, &[&str]); 5] = [
            ("redis://a:1,redis://b:2", &["redis://a:1", "redis://b:2"]),
            ("redis://a:1, rediss://b:2 ,memory:", &["redis://a:1", "rediss://b:2", "memory:"]),
            ("redis-sentinel://a:1,b:2/m", &["redis-sentinel://a:1,b:2/m"]),
            (
                "redis-sentinel://a:1,b:2/m,redis-sentinel://c:1,d:2/m",
                &["redis-sentinel://a:1,b:2/m", "redis-sentinel://c:1,d:2/m"],
            ),
            ("redis://u:p,q@a", &["redis://u:p,q@a"]),
        ];
        for (text, urls) in table {
            assert_eq!(list(text), urls, "{text}");
        }
    }

    #[test]
    fn tls_to_zookeeper_is_reported_as_missing() {
        let second = Duration::from_secs(1);
        let common =
            |remote| Common { ttl: second, attempt: second, remote, client_name: String::new() };
        let with = |tls| Remote { tls, ..Remote::default() };
        let empty = || Pem::Given(Vec::new());
        let ca = || with(TlsSettings { ca: Some(empty()), ..TlsSettings::default() });
        let identity = Identity { chain: empty(), key: empty() };
        let identity = with(TlsSettings { identity: Some(identity), ..TlsSettings::default() });
        for (url, remote) in [
            ("zookeepers://me:hunter2@zk1", Remote::default()),
            ("zookeeper+tls://me:hunter2@zk1", Remote::default()),
            ("zookeeper://me:hunter2@zk1", ca()),
            ("zookeepers://me:hunter2@zk1", ca()),
            ("zookeeper://me:hunter2@zk1", identity),
        ] {
            let error = Backend::parse(url, &common(remote)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let text = error.to_string();
            assert!(text.contains("a tunnel") && !text.contains("hunter2"), "{url}: {text}");
        }
    }

    #[test]
    fn quorum_has_three_nodes_at_least() {
        let three = parsed("memory:,memory:,memory:").unwrap();
        assert!(matches!(three, Backend::Quorum(nodes) if nodes.len() == 3));
        let error = parsed("memory:,memory:").unwrap_err();
        assert!(error.to_string().contains("3 to 15 nodes"), "{error}");
    }

    #[test]
    fn scheme_in_capitals_and_spaces_around_a_url_are_accepted() {
        for url in ["memory:", "Memory:", " memory:", "memory:\n"] {
            assert!(matches!(parsed(url), Ok(Backend::Memory)), "{url:?}");
        }
        #[cfg(feature = "redis")]
        for url in ["Redis://Host", " redis://host", "REDIS://host \n", "Valkey://host"] {
            assert!(matches!(parsed(url), Ok(Backend::Redis(_))), "{url:?}");
        }
        for url in ["memory://", "memory:///x", "Memory:x"] {
            let error = parsed(url).unwrap_err();
            assert!(error.to_string().contains("write memory: alone"), "{url}: {error}");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn server_is_named_once() {
        for (urls, same) in [
            ("redis://a,redis://b,redis://a", Some("URL 1 and URL 3")),
            ("redis://a,redis://u:hunter2@b:6379/1,redis://b", Some("URL 2 and URL 3")),
            ("redis://a,redis://b,redis://A", Some("URL 1 and URL 3")),
            ("redis+unix:///s,redis+unix:///s,redis://a", Some("URL 1 and URL 2")),
            ("redis://a:1,redis://a:2,redis://b:1", None),
            ("memory:,memory:,redis://a", None),
        ] {
            let parsed = parsed(urls);
            assert_eq!(parsed.is_err(), same.is_some(), "{urls}");
            if let (Err(error), Some(same)) = (parsed, same) {
                assert_eq!(error.kind(), ErrorKind::Invalid);
                assert!(error.to_string().contains(same), "{error}");
                assert!(!error.to_string().contains("hunter2"), "{error}");
            }
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn each_url_of_a_list_is_checked_and_no_secret_shown() {
        let error = parsed("redis://a,redis://u:hunter2@b/x,redis://c").unwrap_err();
        assert!(error.to_string().contains("database is not a number"), "{error}");
        let backend = parsed("redis://a,redis://u:hunter2@b,redis://c").unwrap();
        assert!(backend.dedicated_thread());
        assert!(!format!("{backend:?} {error:?}").contains("hunter2"));
    }
}
