//! Parses a URL into a list of servers.

use super::auth::User;
use super::liveness::lease_time;
use crate::error::{Error, Result};
use crate::store::connect::outage::Outages;
use crate::store::zookeeper::tree::names::Names;
use std::time::Duration;

/// With a shorter timeout, ordinary pauses of a machine would end sessions.
const SHORTEST: Duration = Duration::from_secs(1);
/// The longest timeout of the protocol.
const LONGEST: Duration = Duration::from_millis(i32::MAX as u64);

/// A checked URL, and the session timeout to ask for. Its secrets are never shown.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    /// The servers, in the form of the client library.
    pub(super) hosts: String,
    pub(super) user: Option<User>,
    pub(in crate::store::zookeeper) names: Names,
    pub(in crate::store::zookeeper) session: Duration,
    pub(super) outages: Outages,
}

impl Address {
    /// Checks a URL without connecting. Errors never echo it: it may hold a password.
    pub(crate) fn parse(url: &str, prefix: &str, session: Duration) -> Result<Self> {
        if !(SHORTEST..=LONGEST).contains(&session) {
            return Err(Error::invalid(format!(
                "a session timeout of {session:?} is out of range for ZooKeeper; it is the ttl of the manager, or a third \
                 more than that of `ConnectOptions`: choose a ttl for which it lasts at least 1 s, and what its servers give"
            )));
        }
        let Some(rest) = url.strip_prefix("zookeeper://") else {
            return Err(Error::invalid(
                "the URL's scheme is not zookeeper; expected zookeeper://host:2181/path",
            ));
        };
        let (hosts, chroot) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, hosts) = match hosts.rsplit_once('@') {
            Some((user, hosts)) => (Some(User::parse(user)?), hosts),
            None => (None, hosts),
        };
        if !hosts.split(',').all(is_host) {
            return Err(Error::invalid(
                "the URL's servers cannot be read; expected zookeeper://host:2181,host:2181/path",
            ));
        }
        let chroot = chroot.trim_end_matches('/');
        if !chroot.split('/').skip(1).all(is_level) {
            return Err(Error::invalid(
                "the URL's path cannot be read; expected names of letters, digits, '_', '-' and '.', with one \
                 '/' between two",
            ));
        }
        // The server counts whole milliseconds.
        let session = Duration::from_millis(session.as_millis() as u64);
        let names = Names::new(chroot, prefix);
        // Any of the servers will do, so they fail together.
        let outages = Outages::new(session, session / 10);
        Ok(Self { hosts: hosts.to_owned(), user, names, session, outages })
    }

    /// Returns the longest time to live of a lease.
    pub(crate) fn lease_time(&self) -> Duration {
        lease_time(self.session)
    }
}

/// Returns whether a character means nothing special in a host or a level of a path.
fn is_plain(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '.' | '-' | '_')
}

fn is_host(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (host, None),
    };
    let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let named = match address {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !name.is_empty() && name.chars().all(is_plain),
    };
    named && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

fn is_level(level: &str) -> bool {
    !level.is_empty() && level != "." && level != ".." && level.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address> {
        Address::parse(url, "", Duration::from_secs(6))
    }

    #[test]
    fn good_urls_are_taken_apart() {
        let address = parse("zookeeper://zk1:2181,10.0.0.2,[::1]:2182/shop/eu/").unwrap();
        assert_eq!(address.hosts, "zk1:2181,10.0.0.2,[::1]:2182");
        assert_eq!(address.names.root, "/shop/eu/leasehold");
        assert_eq!(parse("zookeeper://zk1").unwrap().names.root, "/leasehold");
        assert_eq!(parse("zookeeper://[::1],zk2").unwrap().hosts, "[::1],zk2");
        assert_eq!(address.lease_time(), Duration::from_millis(4500));
        assert_eq!(address.user, None);
        let address = parse("zookeeper://me:hunter2%40@zk1,zk2/shop").unwrap();
        assert_eq!(address.hosts, "zk1,zk2");
        assert_eq!(address.user, Some(User::parse("me:hunter2%40").unwrap()));
        assert!(!format!("{address:?}").contains("hunter2"));
    }

    #[test]
    fn bad_ones_say_what_to_do() {
        for (url, hint) in [
            ("zookeeper://", "servers cannot be read"),
            ("zookeeper://zk1,,zk2", "servers cannot be read"),
            ("zookeeper://zk1:0", "servers cannot be read"),
            ("zookeeper://zk1:99999", "servers cannot be read"),
            ("zookeeper://zk1?a=b", "servers cannot be read"),
            ("zookeeper://[::1", "servers cannot be read"),
            ("zookeeper://zk1//a", "path cannot be read"),
            ("zookeeper://zk1/a/../b", "path cannot be read"),
            ("zookeeper://zk1/a?b=c", "path cannot be read"),
            ("zookeeper://me:hunter2@", "servers cannot be read"),
            ("zookeeper://me:hunter2@zk1,you:hunter2@zk2", "cannot be read"),
            ("zookeeper://me:hunter2/3@zk1", "servers cannot be read"),
            ("zookeeper://me:hunter2@zk1/a b", "path cannot be read"),
            ("zookeeper://hunter2@zk1", "has no password"),
        ] {
            let error = parse(url).unwrap_err().to_string();
            assert!(error.contains(hint) && !error.contains("hunter2"), "{url}: {error}");
        }
        let short = Address::parse("zookeeper://zk1", "", Duration::from_millis(999));
        assert!(short.unwrap_err().to_string().contains("at least 1 s"));
    }
}
