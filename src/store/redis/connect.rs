//! From a URL to connections.

use super::scripts::sorted;
use crate::error::{Error, ErrorKind, Result};
use crate::store::name::check_braces;
use fred::clients::{Client, SubscriberClient};
use fred::interfaces::ClientLike;
use fred::types::Builder;
use fred::types::config::{
    Config, ConnectionConfig, PerformanceConfig, ReconnectPolicy, TcpConfig, UnresponsiveConfig,
};
use std::fmt;
use std::time::Duration;
use tokio::time::timeout;

const CONNECT_TIMEOUT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// fred's default of 32 loses messages in a burst.
const MESSAGES: usize = 4096;
const FIRST_RECONNECT: Duration = Duration::from_millis(20);
const LONGEST_PREFIX: usize = 256;

/// A checked URL, and how long things may take. Its secrets are never shown.
#[derive(Clone)]
pub(crate) struct Address {
    config: Config,
    pub(super) prefix: String,
    /// How long one attempt may take.
    pub(super) attempt: Duration,
    ttl: Duration,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").finish_non_exhaustive()
    }
}

impl Address {
    /// Checks a URL without connecting. Errors never echo it: it may hold a password.
    pub(crate) fn parse(url: &str, prefix: &str, ttl: Duration, attempt: Duration) -> Result<Self> {
        check_braces(prefix)?;
        if prefix.len() > LONGEST_PREFIX {
            return Err(Error::invalid(format!(
                "the prefix is longer than {LONGEST_PREFIX} bytes"
            )));
        }
        let config = parse(url)?;
        Ok(Self { config, prefix: prefix.to_owned(), ttl, attempt })
    }

    fn builder(&self) -> Builder {
        let mut builder = Builder::from_config(self.config.clone());
        let longest_gap = (self.ttl / 20).clamp(FIRST_RECONNECT, Duration::from_secs(3));
        builder.set_connection_config(ConnectionConfig {
            connection_timeout: self.connect_timeout(),
            internal_command_timeout: self.connect_timeout(),
            // A script whose reply was lost must not be sent again behind our back.
            max_command_attempts: 1,
            unresponsive: UnresponsiveConfig {
                max_timeout: Some((self.ttl / 6).max(self.attempt * 2)),
                interval: (self.ttl / 30).clamp(Duration::from_millis(10), Duration::from_secs(1)),
            },
            tcp: TcpConfig {
                nodelay: Some(true),
                // What was not sent when a connection is given up must not arrive later.
                linger: Some(Duration::ZERO),
                ..TcpConfig::default()
            },
            ..ConnectionConfig::default()
        });
        builder.set_performance_config(PerformanceConfig {
            default_command_timeout: self.attempt,
            broadcast_channel_capacity: MESSAGES,
            ..PerformanceConfig::default()
        });
        let mut policy =
            ReconnectPolicy::new_exponential(0, millis(FIRST_RECONNECT), millis(longest_gap), 2);
        policy.set_jitter(millis(longest_gap) / 4);
        builder.set_policy(policy);
        builder
    }

    fn connect_timeout(&self) -> Duration {
        self.attempt.clamp(CONNECT_TIMEOUT.0, CONNECT_TIMEOUT.1)
    }

    pub(super) async fn client(&self) -> Result<Client> {
        let client = self.builder().build().map_err(|error| sorted(&error))?;
        self.init(&client).await?;
        Ok(client)
    }

    pub(super) async fn subscriber(&self) -> Result<SubscriberClient> {
        let client = self.builder().build_subscriber_client().map_err(|error| sorted(&error))?;
        self.init(&client).await?;
        Ok(client)
    }

    async fn init(&self, client: &impl ClientLike) -> Result<()> {
        match timeout(self.connect_timeout() * 2, client.init()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                // It would go on trying to connect.
                let _ = timeout(self.attempt, client.quit()).await;
                Err(sorted(&error))
            }
            Err(_) => {
                let _ = timeout(self.attempt, client.quit()).await;
                let message = "the server did not answer in time; is it up?";
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

fn parse(url: &str) -> Result<Config> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(Error::invalid(
            "the URL has no scheme; write redis://host:6379, redis+unix:///path or memory:",
        ));
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    match scheme {
        "redis" | "valkey" => {}
        "rediss" | "valkeys" if cfg!(feature = "rustls") => {}
        "rediss" | "valkeys" => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "TLS is not compiled in; turn on leasehold's feature \"rustls\"",
            ));
        }
        "redis+unix" => return parse_unix(rest, query),
        "redis-cluster" | "rediss-cluster" | "redis-sentinel" | "rediss-sentinel" | "zookeeper" => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "this version knows one Redis server, not Sentinel, Cluster or ZooKeeper",
            ));
        }
        _ => {
            return Err(Error::invalid(
                "the URL's scheme is unknown; use redis, rediss, redis+unix or memory",
            ));
        }
    }
    if let Some(key) = first_key(query) {
        return Err(unknown_key(key, "put the database into the path, as in redis://host:6379/3"));
    }
    let (_, path) = rest.split_once('/').unwrap_or((rest, ""));
    let database = if path.is_empty() { None } else { database(path)? };
    let mut config = Config::from_url_centralized(&format!("{scheme}://{rest}")).map_err(|_| {
        // fred's own text may echo the URL.
        Error::invalid("the URL cannot be parsed; write redis://user:password@host:6379/0 and percent-encode odd characters")
    })?;
    config.database = database;
    Ok(config)
}

/// `redis+unix:///path`, or with credentials `redis+unix://user:password@localhost/path`; since the path is the
/// socket, the database is `?db=`.
fn parse_unix(rest: &str, query: &str) -> Result<Config> {
    let db = match query.split_once('=') {
        None if query.is_empty() => None,
        Some(("db", number)) if !number.contains('&') => database(number)?,
        _ => {
            return Err(unknown_key(
                first_key(query).unwrap_or_default(),
                "only db=<number> is known here",
            ));
        }
    };
    let invalid =
        || Error::invalid("the URL names no socket; write redis+unix:///path/to/redis.sock");
    if rest.split_once('/').is_none_or(|(_, path)| path.is_empty()) {
        return Err(invalid());
    }
    let mut config =
        Config::from_url_unix(&format!("redis+unix://{rest}")).map_err(|_| invalid())?;
    config.database = db;
    Ok(config)
}

fn first_key(query: &str) -> Option<&str> {
    let key = query.split_once('=').map_or(query, |(key, _)| key);
    Some(key).filter(|_| !query.is_empty())
}

fn unknown_key(key: &str, hint: &str) -> Error {
    // A key is shown, a value never: it may be part of a password that was not percent-encoded.
    if key.len() <= 32 && key.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
        Error::invalid(format!("the URL's query key {key:?} is unknown; {hint}"))
    } else {
        Error::invalid(format!(
            "the URL has a query that is not known; {hint}, and a '?' in a password as %3F"
        ))
    }
}

/// `None` for 0, where one is anyway: `SELECT` needs a right of its own.
fn database(text: &str) -> Result<Option<u8>> {
    match text.parse() {
        Ok(0) => Ok(None),
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(Error::invalid("the URL's database is not a number from 0 to 255")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Result<Config> {
        parse(url)
    }

    #[test]
    fn good_urls_are_taken_apart() {
        let config = parsed("redis://lease:s%40fe@db.example:6380/3").unwrap();
        assert_eq!(config.username.as_deref(), Some("lease"));
        assert_eq!(config.password.as_deref(), Some("s@fe"));
        assert_eq!(config.database, Some(3));
        assert_eq!(config.server.hosts()[0].port, 6380);
        assert!(parsed("redis://127.0.0.1").is_ok());
        assert!(parsed("redis://[::1]:6379/").is_ok());
        let unix = parsed("redis+unix:///run/redis.sock?db=2").unwrap();
        assert_eq!(unix.database, Some(2));
        assert!(parsed("redis+unix://u:p@localhost/run/redis.sock").is_ok());
    }

    #[test]
    fn bad_urls_say_what_to_do_and_never_echo_a_secret() {
        let table = [
            ("localhost:6379", "no scheme"),
            ("http://localhost", "scheme is unknown"),
            ("redis://", "cannot be parsed"),
            ("redis://u:hunter2@:99999", "cannot be parsed"),
            ("redis://u:hunter2@host:port", "cannot be parsed"),
            ("redis://host/x", "database is not a number"),
            ("redis://host/256", "database is not a number"),
            ("redis://u:hunter2@host?password=hunter2", "query key \"password\""),
            ("redis://host?db=3", "query key \"db\""),
            ("redis://app:hun?ter2hunter2@db.internal:6379/0", "a query that is not known"),
            ("redis://app:hun?hunter2=@db", "a query that is not known"),
            ("redis+unix://", "names no socket"),
            ("redis+unix:///a?database=hunter2", "query key \"database\""),
            ("redis-cluster://host", "not Sentinel, Cluster"),
        ];
        for (url, hint) in table {
            let error = parsed(url).unwrap_err();
            assert!(error.to_string().contains(hint), "{url}: {error}");
            let shown = format!("{error:?} {error}");
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }

    #[cfg(feature = "rustls")]
    #[test]
    fn tls_is_asked_for_by_the_scheme() {
        assert!(parsed("rediss://host").unwrap().tls.is_some());
        assert!(parsed("redis://host").unwrap().tls.is_none());
    }

    #[cfg(not(feature = "rustls"))]
    #[test]
    fn tls_without_the_feature_is_unsupported() {
        let error = parsed("rediss://host").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn an_address_shows_nothing() {
        let t = Duration::from_secs(1);
        let address = Address::parse("redis://u:hunter2@host", "app:", t, t).unwrap();
        assert!(!format!("{address:?}").contains("hunter2"));
        assert!(Address::parse("redis://host", "a{", t, t).is_err());
    }
}
