//! Parses and checks URLs. Errors never echo them, because they may hold a password.

use crate::error::{Error, Result};
use crate::store::connect::percent::decode;
use fred::types::config::{Config, Server, ServerConfig};

/// A parsed URL.
pub(super) struct Parsed {
    /// The configuration for one server. In a fleet, each server has its own address in it.
    pub(in crate::store::redis) config: Config,
    pub(in crate::store::redis) topology: Topology,
    /// Whether the URL asks for TLS. `config` has none: fred would choose a library, and panics if rustls has two providers.
    pub(super) tls: bool,
}

/// The kind of deployment, and the servers that know its members.
#[derive(Clone)]
pub(in crate::store::redis) enum Topology {
    Single,
    Sentinel(Sentinels),
    /// The nodes to ask first.
    Cluster(Vec<Server>),
}

#[derive(Clone)]
pub(in crate::store::redis) struct Sentinels {
    pub(in crate::store::redis) servers: Vec<Server>,
    /// The name of the primary at the sentinels.
    pub(in crate::store::redis) service: String,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
}

impl Sentinels {
    /// Returns whether the URL has a user or a password for sentinels.
    pub(super) fn has_login(&self) -> bool {
        self.username.is_some() || self.password.is_some()
    }
}

pub(super) fn parse(url: &str) -> Result<Parsed> {
    let Some((scheme, rest)) = url.split_once("://") else {
        if ["redis", "rediss", "valkey", "valkeys"].iter().any(|scheme| has_scheme(url, scheme)) {
            return Err(Error::invalid(
                "the URL lacks // after its scheme; write redis://host:6379",
            ));
        }
        return Err(Error::invalid(
            "the URL has no scheme; write redis://host:6379, redis+unix:///path or memory:",
        ));
    };
    // The rest would be ignored. Most likely it is a piece of a password.
    if rest.contains('#') {
        return Err(Error::invalid(
            "the URL has a '#', which has no meaning here; leave out what begins with it, or write %23 where it is \
             part of a password or path",
        ));
    }
    // A path may have one.
    if scheme != "redis+unix" && rest.contains(char::is_whitespace) {
        return Err(Error::invalid(
            "the URL has a space; separate the URLs of a quorum by commas, and write a space in a password as %20",
        ));
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let tls = scheme.starts_with("rediss") || scheme.starts_with("valkeys");
    let single = |config| Parsed { config, topology: Topology::Single, tls };
    match scheme {
        "redis" | "valkey" | "rediss" | "valkeys" => parse_single(rest, query).map(single),
        "redis+unix" => parse_unix(rest, query).map(single),
        "redis-sentinel" | "valkey-sentinel" | "rediss-sentinel" | "valkeys-sentinel" => {
            parse_sentinel(tls, rest, query)
        }
        "redis-cluster" | "valkey-cluster" | "rediss-cluster" | "valkeys-cluster" => {
            parse_cluster(tls, rest, query)
        }
        _ => Err(Error::invalid(
            "the URL's scheme is unknown; use redis, rediss, redis+unix, redis-sentinel, \
             redis-cluster, zookeeper or memory:, or valkey in place of redis",
        )),
    }
}

/// Returns whether a URL begins with this scheme, or with one for a fleet of such servers.
fn has_scheme(url: &str, scheme: &str) -> bool {
    let begins = |with: &str| url.strip_prefix(with).is_some_and(|rest| rest.starts_with(':'));
    ["", "-sentinel", "-cluster"].iter().any(|fleet| begins(&format!("{scheme}{fleet}")))
}

// The text of fred may echo the URL.
const UNREADABLE: &str = "the URL cannot be parsed; write redis://user:password@host:6379/0, with a port below 65536, and percent-encode odd characters";

/// The advice for several hosts in one URL.
const SEVERAL: &str = "a redis URL has one host; write redis://a,redis://b,redis://c for a quorum, or redis-cluster:// or redis-sentinel:// with ?node= for others";

fn parse_single(rest: &str, query: &str) -> Result<Config> {
    if let Some(key) = keys(query).next() {
        return Err(unknown_key(key, "put the database into the path, as in redis://host:6379/3"));
    }
    // Behind the user and the password, which may have any character.
    if rest.rsplit('@').next().is_some_and(|hosts| hosts.contains(',')) {
        return Err(Error::invalid(SEVERAL));
    }
    let host = rest.rsplit('@').next().unwrap_or_default();
    if host.is_empty() || host.starts_with([':', '/']) {
        return Err(Error::invalid("the URL has no host; write redis://host:6379"));
    }
    let database = database_of(rest)?;
    let mut config = Config::from_url_centralized(&format!("redis://{rest}"))
        .map_err(|_| Error::invalid(UNREADABLE))?;
    config.database = database;
    Ok(config)
}

/// `redis-sentinel://user:password@host:26379/0?node=host2:26379&sentinelServiceName=mymaster`: the hosts are
/// sentinels, user and password those of the servers.
fn parse_sentinel(tls: bool, rest: &str, query: &str) -> Result<Parsed> {
    const KNOWN: [&str; 4] =
        ["node", "sentinelServiceName", "sentinelUsername", "sentinelPassword"];
    const HINT: &str = "known are node, sentinelServiceName, sentinelUsername and sentinelPassword";
    let unknown = keys(query).find(|key| !KNOWN.contains(key));
    if let Some(key) = unknown.or_else(|| repeated(query, &KNOWN[1..])) {
        return Err(unknown_key(key, HINT));
    }
    if !keys(query).any(|key| key == "sentinelServiceName") {
        return Err(Error::invalid(
            "the URL does not name the primary; add ?sentinelServiceName=mymaster",
        ));
    }
    let database = database_of(rest)?;
    let mut config = Config::from_url_sentinel(&format!("redis-sentinel://{rest}?{query}"))
        .map_err(|_| {
            Error::invalid(
                "the URL cannot be parsed; write redis-sentinel://host:26379?node=host2:26379&sentinelServiceName=mymaster and percent-encode odd characters",
            )
        })?;
    config.database = database;
    let topology = match &config.server {
        ServerConfig::Sentinel { hosts, service_name, username, password }
            if !service_name.is_empty() =>
        {
            Topology::Sentinel(Sentinels {
                servers: distinct(hosts),
                service: service_name.clone(),
                username: username.clone(),
                password: password.clone(),
            })
        }
        _ => return Err(Error::invalid("the URL's sentinelServiceName is empty")),
    };
    Ok(Parsed { config, topology, tls })
}

/// `redis-cluster://user:password@host:6379/0?node=host2:6379`. Only some servers have more than one database in a cluster; the
/// server says so.
fn parse_cluster(tls: bool, rest: &str, query: &str) -> Result<Parsed> {
    if let Some(key) = keys(query).find(|key| *key != "node") {
        return Err(unknown_key(key, "only node=host:port is known here"));
    }
    let database = database_of(rest)?;
    let rest = rest.split_once('/').map_or(rest, |(hosts, _)| hosts);
    let query = if query.is_empty() { String::new() } else { format!("?{query}") };
    let mut config = Config::from_url_clustered(&format!("redis-cluster://{rest}{query}"))
        .map_err(|_| {
            Error::invalid(
                "the URL cannot be parsed; write redis-cluster://host:6379?node=host2:6379 and percent-encode odd characters",
            )
        })?;
    config.database = database;
    let topology = Topology::Cluster(distinct(&config.server.hosts()));
    Ok(Parsed { config, topology, tls })
}

fn distinct(servers: &[Server]) -> Vec<Server> {
    let mut servers = servers.to_vec();
    servers.sort();
    servers.dedup();
    servers
}

/// `redis+unix:///path`, or with credentials `redis+unix://user:password@localhost/path`; since the path is the
/// socket, the database is `?db=`.
fn parse_unix(rest: &str, query: &str) -> Result<Config> {
    let db = match query.split_once('=') {
        None if query.is_empty() => None,
        Some(("db", number)) if !number.contains('&') => database(number)?,
        _ => {
            return Err(unknown_key(
                keys(query).next().unwrap_or_default(),
                "only db=<number> is known here",
            ));
        }
    };
    let Some((credentials, path)) = rest.split_once('/').filter(|(_, path)| !path.is_empty())
    else {
        return Err(Error::invalid(
            "the URL names no socket; write redis+unix:///path/to/redis.sock",
        ));
    };
    let unreadable = || {
        Error::invalid(
            "the URL cannot be parsed; write redis+unix:///path/to/redis.sock or \
             redis+unix://user:password@localhost/path/to/redis.sock, and percent-encode odd characters, a '%' as %25",
        )
    };
    // fred would leave the path encoded.
    let mut config = Config::from_url_unix(&format!("redis+unix://{credentials}/socket"))
        .map_err(|_| unreadable())?;
    let path = format!("/{}", decode(path).ok_or_else(unreadable)?);
    config.server = ServerConfig::new_unix_socket(path);
    config.database = db;
    Ok(config)
}

fn keys(query: &str) -> impl Iterator<Item = &str> {
    let pairs = query.split('&').filter(|_| !query.is_empty());
    pairs.map(|pair| pair.split_once('=').map_or(pair, |(key, _)| key))
}

fn repeated<'a>(query: &'a str, once: &[&str]) -> Option<&'a str> {
    keys(query)
        .find(|key| once.contains(key) && keys(query).filter(|other| other == key).count() > 1)
}

/// Keys that are known elsewhere, and words that are easily taken for a key.
const MISTAKEN: [&str; 12] = [
    "db",
    "database",
    "node",
    "nodes",
    "user",
    "username",
    "password",
    "protocol",
    "timeout",
    "sentinelServiceName",
    "sentinelUsername",
    "sentinelPassword",
];

fn unknown_key(key: &str, hint: &str) -> Error {
    // Any other word may be a piece of a password that was not percent-encoded.
    if MISTAKEN.contains(&key) {
        Error::invalid(format!("the URL's query key {key:?} is unknown or repeated; {hint}"))
    } else {
        Error::invalid(format!(
            "the URL has a query that is not known; {hint}, and a '?' in a password as %3F"
        ))
    }
}

fn database_of(rest: &str) -> Result<Option<u8>> {
    match rest.split_once('/') {
        Some((_, path)) if path.contains('@') => Err(Error::invalid(
            "the URL has an '@' behind a '/'; if it belongs to a password, write a '/' in it as %2F",
        )),
        Some((_, path)) if !path.is_empty() => database(path),
        _ => Ok(None),
    }
}

/// Parses the number of a database. Returns `None` for 0, the default: `SELECT` needs a permission of its own.
fn database(text: &str) -> Result<Option<u8>> {
    match text.parse::<u8>() {
        // "+3" and "015" may be meant for something else.
        Ok(number) if number.to_string() == text => Ok(Some(number).filter(|number| *number > 0)),
        _ => Err(Error::invalid(
            "the URL's database is not a number from 0 to 255; write digits alone, without a sign or leading zeros",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Result<Config> {
        parse(url).map(|parsed| parsed.config)
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
        let unix = parsed("redis+unix://u:p%23@localhost/run/redis.sock").unwrap();
        assert_eq!(unix.password.as_deref(), Some("p#"));
        for (path, expected) in [
            ("/run/my%20redis/a%c3%b6%25%3F%23", "/run/my redis/aö%?#"),
            ("/run/my redis/aö", "/run/my redis/aö"),
            ("/run/../x//y", "/run/../x//y"),
        ] {
            let unix = parsed(&format!("redis+unix://{path}")).unwrap();
            assert_eq!(unix.server, ServerConfig::new_unix_socket(expected));
        }
        assert_eq!(parsed("redis://host/0").unwrap().database, None);
    }

    #[test]
    fn bad_urls_say_what_to_do_and_never_echo_a_secret() {
        let table = [
            ("localhost:6379", "no scheme"),
            ("redis:hunter:6379", "write redis://host"),
            ("rediss-cluster:hunter:6379", "write redis://host"),
            ("redis://a:6379 redis://hunter:6379", "by commas"),
            ("redis://u:hun ter@host:6379", "as %20"),
            ("redis://host/0 ", "has a space"),
            ("http://localhost", "redis-cluster, zookeeper or memory:"),
            ("redis://", "has no host"),
            ("redis:///3", "has no host"),
            ("redis://u:hunter2@:99999", "has no host"),
            ("redis://host:99999", "cannot be parsed"),
            ("redis://u:hunter2@host:port", "cannot be parsed"),
            ("redis://u:hunter2@a,b,c", "has one host"),
            ("redis://a:1,b:2,c:3", "has one host"),
            ("redis://host/x", "database is not a number"),
            ("redis://host/256", "database is not a number"),
            ("redis://host/+3", "database is not a number"),
            ("redis://host/015", "database is not a number"),
            ("redis://host/00", "database is not a number"),
            ("redis-cluster://host/00", "database is not a number"),
            ("redis-sentinel://host/+0?sentinelServiceName=m", "database is not a number"),
            ("redis+unix:///a?db=+3", "database is not a number"),
            ("redis+unix:///a?db=", "database is not a number"),
            ("redis://host#hunter2", "has a '#'"),
            ("redis://host/3#hunter2", "has a '#'"),
            ("redis://u:6379#hunter2@host", "has a '#'"),
            ("redis+unix:///a#hunter2", "has a '#'"),
            ("redis://:hun/ter2@host:6379", "a '/' in it as %2F"),
            ("redis-cluster://u:hun/ter2@host:6379", "a '/' in it as %2F"),
            ("redis-sentinel://u:hun/ter2@host:6379?sentinelServiceName=m", "a '/' in it as %2F"),
            ("redis-cluster://u:p@host?node=h2:1#hunter2", "has a '#'"),
            ("redis-sentinel://host?sentinelServiceName=m#hunter2", "has a '#'"),
            ("redis+unix:///a%2", "a '%' as %25"),
            ("redis+unix:///a%FF", "a '%' as %25"),
            ("redis+unix://u:hunter2:@:/a", "cannot be parsed"),
            ("redis://u:hunter2@host?password=hunter2", "query key \"password\""),
            ("redis://host?db=3", "query key \"db\""),
            ("redis://app:hun?ter2hunter2@db.internal:6379/0", "a query that is not known"),
            ("redis://app:hun?hunter2=@db", "a query that is not known"),
            ("redis://app:x?hunter=staple@db:6379/0", "a query that is not known"),
            ("redis://app:p&hunter=1?hunters=2@h", "a query that is not known"),
            ("redis-cluster://app:x?hunter_two=1@h", "a query that is not known"),
            ("redis-sentinel://app:x?sentinelhunter=1@h:1", "a query that is not known"),
            ("redis-sentinel://h?sentinelServiceName=m&sentinelPassword=a&hunter", "not known"),
            ("redis+unix:///a?hunter=1", "a query that is not known"),
            ("redis+unix://", "names no socket"),
            ("redis+unix:///a?database=hunter2", "query key \"database\""),
            ("redis+unix:///a?db", "query key \"db\""),
            ("redis+unix:///a?db=1&db=2", "query key \"db\""),
            ("redis-cluster://u:hunter2@host/x", "database is not a number"),
            ("redis-cluster://host?nodes=hunter2", "query key \"nodes\""),
            ("redis-cluster://host?node=h2:1&db=3", "query key \"db\""),
            ("redis-cluster://host?node=hunter2", "cannot be parsed"),
            ("redis-sentinel://u:hunter2@host", "sentinelServiceName"),
            ("redis-sentinel://host?sentinelServiceName=", "sentinelServiceName is empty"),
            ("redis-sentinel://host?sentinelServiceName=m&password=hunter2", "query key"),
            ("redis-sentinel://host/x?sentinelServiceName=m", "database is not a number"),
            (
                "redis-sentinel://host?sentinelServiceName=a&sentinelServiceName=b",
                "\"sentinelServiceName\" is unknown or repeated",
            ),
            ("zookeeper://host", "scheme is unknown"),
        ];
        for (url, hint) in table {
            let error = parsed(url).unwrap_err();
            assert!(error.to_string().contains(hint), "{url}: {error}");
            let shown = format!("{error:?} {error}");
            assert!(!shown.contains("hunter"), "{shown}");
        }
    }

    #[test]
    fn tls_is_asked_for_by_the_scheme() {
        for kind in ["://host", "-cluster://host", "-sentinel://host?sentinelServiceName=m"] {
            for (scheme, tls) in
                [("redis", false), ("rediss", true), ("valkey", false), ("valkeys", true)]
            {
                let parsed = parse(&format!("{scheme}{kind}")).unwrap();
                assert_eq!(parsed.tls, tls, "{scheme}{kind}");
            }
        }
    }

    #[test]
    fn sentinel_url_names_sentinels_a_primary_and_two_users() {
        let url = "redis-sentinel://app:a%40b@s1:26379/2?node=s2:26380&node=s3:26381\
                   &sentinelServiceName=orders&sentinelUsername=watch&sentinelPassword=c%40d";
        let parsed = parse(url).unwrap();
        let Topology::Sentinel(sentinels) = parsed.topology else { panic!("sentinels") };
        let servers: Vec<String> = sentinels.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["s1:26379", "s2:26380", "s3:26381"]);
        assert_eq!(sentinels.service, "orders");
        assert_eq!(sentinels.username.as_deref(), Some("watch"));
        assert_eq!(sentinels.password.as_deref(), Some("c@d"));
        assert_eq!(parsed.config.username.as_deref(), Some("app"));
        assert_eq!(parsed.config.password.as_deref(), Some("a@b"));
        assert_eq!(parsed.config.database, Some(2));
    }

    #[test]
    fn cluster_url_names_nodes() {
        let parsed = parse("redis-cluster://u:p@a:7001/0?node=b:7002&node=a:7001").unwrap();
        let Topology::Cluster(seeds) = parsed.topology else { panic!("a cluster") };
        let seeds: Vec<String> = seeds.iter().map(ToString::to_string).collect();
        assert_eq!(seeds, ["a:7001", "b:7002"]);
        assert_eq!(parsed.config.username.as_deref(), Some("u"));
        assert_eq!(parsed.config.database, None);
        assert!(parse("redis-cluster://a").is_ok());
        let parsed = parse("redis-cluster://u:p@a:7001/2?node=b:7002").unwrap();
        assert_eq!((parsed.config.server.hosts().len(), parsed.config.database), (2, Some(2)));
    }
}
