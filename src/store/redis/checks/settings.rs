//! Asks servers for their settings, and finds those that may cost leases.
//!
//! A store asks each server when it connects, and each that it meets later: the next primary after a failover, a new
//! shard, or what answers at the address after a reconnect. Only connecting can refuse; later findings are warnings.

use crate::error::{Error, Fate, Result};
use crate::store::connect::preflight::{Check, Finding, Preflight, Unfit};
use crate::store::redis::link::address::Server;
use crate::store::redis::link::health::field;
use crate::store::redis::scripts::reply;
use crate::store::redis::topology::routes::Routes;
use crate::store::redis::topology::{Connection, Connector, Destination};
use crate::util::trace;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::Level;

/// The first version with the permissions and scripts that leasehold relies on.
const OLDEST: u32 = 7;
/// The time after which servers of a fleet that could not be asked are asked again.
const RETRY: Duration = Duration::from_secs(10);

/// The findings of each server that was asked, by what the server is called.
type Known = BTreeMap<String, Vec<Finding>>;

/// Checks the servers of a store.
pub(in crate::store::redis) struct Checkup {
    connection: Connection,
    /// `None` for a single server.
    routes: Option<Arc<Routes>>,
    /// The number of replicas that must confirm a grant.
    replicas: u32,
    /// The position in a quorum.
    node: Option<usize>,
    preflight: Preflight,
    /// Where to report to which server the connection leads.
    destination: watch::Sender<Destination>,
    /// The host and the port of a single server, or its socket.
    server_address: String,
}

impl Checkup {
    pub(in crate::store::redis) fn new(connector: &Connector, connection: Connection) -> Self {
        let address = &connector.address;
        let replicas = address.replicas.map_or(0, |replicas| replicas.count);
        let routes = connector.routes.clone();
        let destination = connector.destination.clone();
        let node = address.node;
        let preflight = address.preflight;
        let server_address = address.server_address();
        Self { connection, routes, replicas, node, preflight, destination, server_address }
    }

    /// Checks all servers now, and those that are met later until `end`.
    pub(in crate::store::redis) async fn run(self, end: &CancellationToken) -> Result<()> {
        if !self.preflight.asks() {
            self.report_without_asking(end.clone());
            return Ok(());
        }
        let known = match &self.connection {
            Connection::One(_) => self.check_one().await?,
            Connection::Fleet(_) => self.check_fleet(self.servers()).await,
        };
        let mut reported = Vec::new();
        let findings = news(&Known::new(), &known, &mut reported);
        if self.preflight.refuses() && !findings.is_empty() {
            return Err(Unfit::error(findings));
        }
        warn(findings);
        let end = end.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = end.cancelled() => {}
                () = self.follow(known, reported) => {}
            }
        });
        Ok(())
    }

    fn servers(&self) -> Vec<Server> {
        self.routes.as_ref().map(|routes| routes.servers()).unwrap_or_default()
    }

    /// Reports that a connection was made again, where the servers are not asked for anything.
    fn report_without_asking(self, end: CancellationToken) {
        let Connection::One(node) = &self.connection else { return };
        let mut connects = node.connects();
        tokio::spawn(async move {
            while let Some(Ok(())) = end.run_until_cancelled(connects.changed()).await {
                let connects = *connects.borrow_and_update();
                self.destination.send_replace(Destination { connects, run_id: None });
            }
        });
    }

    async fn check_one(&self) -> Result<Known> {
        let Connection::One(node) = &self.connection else { return Ok(Known::new()) };
        let name = self.node.map_or_else(|| self.server_address.clone(), |at| format!("node {at}"));
        let connects = *node.connects().borrow();
        let info = node.info().await;
        let run_id = info.as_ref().ok().and_then(|info| field(info, "run_id")).map(str::to_owned);
        self.destination.send_replace(Destination { connects, run_id });
        let deployment = if self.node.is_some() { Deployment::Quorum } else { Deployment::Alone };
        let findings = judge(&name, info, self.replicas, deployment)?;
        Ok(Known::from([(name, allowed(self.preflight, findings))]))
    }

    /// Checks servers of a fleet. One that cannot be asked is left out: it may be down, which must affect only its names.
    async fn check_fleet(&self, servers: Vec<Server>) -> Known {
        let Connection::Fleet(fleet) = &self.connection else { return Known::new() };
        let mut asking = JoinSet::new();
        for server in servers {
            let fleet = Arc::clone(fleet);
            let Self { replicas, preflight, .. } = *self;
            asking.spawn(async move {
                let name = server.to_string();
                let info = fleet.info(&server).await;
                let findings = judge(&name, info, replicas, Deployment::Fleet);
                findings.map(|findings| (name, allowed(preflight, findings)))
            });
        }
        let mut known = Known::new();
        while let Some(asked) = asking.join_next().await {
            known.extend(asked.ok().and_then(Result::ok));
        }
        known
    }

    /// Checks what is met later, and warns of what is new there.
    async fn follow(self, mut known: Known, mut reported: Vec<Check>) {
        match (&self.connection, &self.routes) {
            (Connection::One(node), _) => {
                let mut connects = node.connects();
                while connects.changed().await.is_ok() {
                    // A server that cannot be asked is asked at the next reconnect.
                    if let Ok(found) = self.check_one().await {
                        warn(news(&known, &found, &mut reported));
                        known = found;
                    }
                }
            }
            (Connection::Fleet(_), Some(routes)) => {
                let mut changes = routes.changes();
                loop {
                    let mut servers = self.servers();
                    // A server that comes back may have other settings.
                    known
                        .retain(|name, _| servers.iter().any(|server| server.to_string() == *name));
                    servers.retain(|server| !known.contains_key(&server.to_string()));
                    let found = self.check_fleet(servers).await;
                    warn(news(&known, &found, &mut reported));
                    known.extend(found);
                    let all_known = self.servers().len() == known.len();
                    let limit = if all_known { Duration::MAX } else { RETRY };
                    if let Ok(Err(_)) = timeout(limit, changes.changed()).await {
                        return;
                    }
                }
            }
            (Connection::Fleet(_), None) => {}
        }
    }
}

/// Returns the findings that are left.
fn allowed(preflight: Preflight, mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.retain(|finding| !preflight.allows(finding.check));
    findings
}

/// Returns the findings that are not known. What is found at one server and holds for all is reported once: `reported` has
/// those checks, also when the server has gone.
fn news(known: &Known, found: &Known, reported: &mut Vec<Check>) -> Vec<Finding> {
    let mut new = Vec::new();
    for finding in found.values().flatten() {
        if matches!(finding.check, Check::Info | Check::Failover) {
            if reported.contains(&finding.check) {
                continue;
            }
            reported.push(finding.check);
        } else if known.values().flatten().any(|known| known == finding) {
            continue;
        }
        new.push(finding.clone());
    }
    new
}

fn warn(findings: Vec<Finding>) {
    for finding in findings {
        trace::later(
            Level::WARN,
            || move || tracing::warn!(server = finding.server, check = ?finding.check, "{finding}"),
        );
    }
}

/// Returns whether the server refuses `INFO`, to this user or to all, in words of Redis or of a proxy. Without a password it
/// refuses everything, and so does a server that accepts no more clients.
fn is_refusal(error: &Error) -> bool {
    let words = reply::words_of(error).unwrap_or_default();
    let is_passing = error.is_unavailable() && error.fate() == Fate::NotExecuted;
    words.starts_with("NOPERM ") || (words.starts_with("ERR ") && !is_passing)
}

/// What a server is a part of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deployment {
    /// It is the only one.
    Alone,
    /// A quorum relies on no single node.
    Quorum,
    /// Sentinel, or a cluster: one of its replicas may be promoted.
    Fleet,
}

/// Returns what is wrong with a server, by its reply to `INFO`. `replicas` of its replicas must confirm a grant.
fn judge(
    name: &str,
    info: Result<String>,
    replicas: u32,
    deployment: Deployment,
) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut find = |check, advice: String| findings.push(Finding::new(check, name, advice));
    let info = match info {
        Ok(info) => info,
        Err(error) if is_refusal(&error) => {
            find(
                Check::Info,
                "does not let this user run INFO, so its settings are not checked; grant +info, or allow Check::Info"
                    .to_owned(),
            );
            String::new()
        }
        Err(error) => return Err(error),
    };
    let field = |name: &str| field(&info, name);

    let version = field("redis_version").unwrap_or_default();
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_some_and(|major| major < OLDEST) && field("valkey_version").is_none() {
        find(
            Check::Version,
            format!("is Redis {version}; leasehold needs Redis 7.0 or later, or Valkey"),
        );
    }
    if field("role") == Some("slave") {
        find(
            Check::Role,
            "is a replica, whose writes are refused or lost; connect to its primary, or by redis-sentinel:// or \
             redis-cluster://"
                .to_owned(),
        );
    }
    let policy = field("maxmemory_policy").unwrap_or("noeviction");
    if field("maxmemory").is_some_and(|limit| limit != "0") && policy != "noeviction" {
        find(
            Check::Eviction,
            format!(
                "may evict the key of a lease that is held, by its maxmemory-policy {policy}; set maxmemory-policy \
                 noeviction"
            ),
        );
    }
    if field("aof_enabled") == Some("0") && deployment != Deployment::Quorum {
        find(
            Check::Persistence,
            "has no append-only file, so a restart forgets all leases and others are granted their names; set \
             appendonly yes, or use a quorum of servers"
                .to_owned(),
        );
    }
    let connected = field("connected_slaves").and_then(|count| count.parse::<u32>().ok());
    if let Some(connected) = connected
        && connected < replicas
    {
        find(
            Check::Replicas,
            format!(
                "has too few replicas ({connected}) for replicas({replicas}, ..), so that no grant counts; add \
                 replicas, or demand fewer"
            ),
        );
    }
    // As Redis and as Valkey 9 name it.
    let mode = field("redis_mode").or_else(|| field("server_mode"));
    if deployment != Deployment::Fleet && mode == Some("cluster") {
        find(
            Check::ClusterMode,
            "is in cluster mode, where requests for names of several slots cannot share a call, so they and their \
             renewals are refused; write redis-cluster:// in the URL, or give all names one hash tag by prefix(\"{app}:\") \
             and allow Check::ClusterMode"
                .to_owned(),
        );
    }
    // Nothing replaces a server without a replica.
    if deployment == Deployment::Fleet && replicas == 0 && connected != Some(0) {
        find(
            Check::Failover,
            "may be replaced by a replica that lacks the last grants, and others are granted their names; set \
             replicas(1, ..), or allow Check::Failover"
                .to_owned(),
        );
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIT: &str = "redis_version:7.0.15\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n\
                       role:master\r\nconnected_slaves:0\r\n";

    fn checks(info: &str, replicas: u32, deployment: Deployment) -> Vec<Check> {
        let findings = judge("it", Ok(info.to_owned()), replicas, deployment).unwrap();
        findings.iter().map(|finding| finding.check).collect()
    }

    #[test]
    fn each_setting_is_judged_by_what_follows_from_it() {
        let limit = ("maxmemory:0", "maxmemory:1048576");
        let policy = |policy: &str| FIT.replace("noeviction", policy);
        for (info, expected) in [
            (FIT.to_owned(), None),
            (String::new(), None),
            (FIT.replace("7.0.15", "8.1.0"), None),
            (FIT.replace("7.0.15", "6.2.7"), Some(Check::Version)),
            (FIT.replace("7.0.15", "6.2.7\r\nvalkey_version:8.0.1"), None),
            (FIT.replace("7.0.15", "unknown"), None),
            (FIT.replace("master", "slave"), Some(Check::Role)),
            (FIT.replace("aof_enabled:1", "aof_enabled:0"), Some(Check::Persistence)),
            (FIT.replace(limit.0, limit.1), None),
            (policy("allkeys-lru"), None),
            (policy("allkeys-lru").replace(limit.0, limit.1), Some(Check::Eviction)),
            (policy("volatile-ttl").replace(limit.0, limit.1), Some(Check::Eviction)),
        ] {
            assert_eq!(checks(&info, 0, Deployment::Alone), Vec::from_iter(expected), "{info}");
        }
        let all = "redis_version:5.0\nrole:slave\nmaxmemory:1\nmaxmemory_policy:allkeys-lfu\naof_enabled:0";
        assert_eq!(checks(all, 0, Deployment::Alone).len(), 4);
        assert_eq!(checks(all, 0, Deployment::Quorum).len(), 3, "a quorum relies on no file");
    }

    #[test]
    fn replicas_count_only_where_they_are_demanded() {
        let one = FIT.replace("connected_slaves:0", "connected_slaves:1");
        assert_eq!(checks(FIT, 0, Deployment::Alone), []);
        assert_eq!(checks(FIT, 1, Deployment::Alone), [Check::Replicas]);
        assert_eq!(checks(&one, 0, Deployment::Fleet), [Check::Failover]);
        assert_eq!(checks(FIT, 0, Deployment::Fleet), [], "nothing replaces it");
        let cluster = format!("server_mode:cluster\r\n{FIT}");
        assert_eq!(checks(&cluster, 0, Deployment::Alone), [Check::ClusterMode]);
        assert_eq!(checks(&cluster, 1, Deployment::Fleet), [Check::Replicas]);
        assert_eq!(checks(&one, 1, Deployment::Fleet), []);
        assert_eq!(checks(&one, 2, Deployment::Fleet), [Check::Replicas]);
    }

    #[test]
    fn refusal_of_info_is_a_finding_and_an_outage_an_error() {
        let judged = |text: &str| {
            judge(
                "it",
                Err(crate::store::redis::scripts::reply::classify(text)),
                0,
                Deployment::Alone,
            )
        };
        for text in [
            "NOPERM this user has no permissions to run the 'info' command",
            "NOPERM User lease has no permissions to run the 'info' command",
            "ERR unknown command 'INFO', with args beginning with: ",
            "ERR unsupported command 'info'",
            "ERR not here",
        ] {
            assert_eq!(judged(text).unwrap()[0].check, Check::Info, "{text}");
        }
        for text in [
            "NOAUTH Authentication required.",
            "BUSY Redis is busy",
            "ERR max number of clients reached",
            "timeout",
        ] {
            assert!(judged(text).is_err(), "{text}");
        }
    }

    #[test]
    fn news_are_reported_once_and_what_holds_for_all_once() {
        let finding = |check, server: &str| Finding::new(check, server, "is odd");
        let known = |found: &[(&str, Check)]| {
            let mut known = Known::new();
            for (server, check) in found {
                known.entry((*server).to_owned()).or_default().push(finding(*check, server));
            }
            known
        };
        let news_of = |known: &Known, found: &Known| news(known, found, &mut Vec::new());
        for check in [Check::Info, Check::Failover] {
            let all = known(&[("a", check), ("b", check), ("c", check)]);
            let mut reported = Vec::new();
            assert_eq!(news(&Known::new(), &all, &mut reported), [finding(check, "a")]);
            // Also of a server that comes when the others have gone.
            assert_eq!(news(&Known::new(), &known(&[("d", check)]), &mut reported), []);
        }
        let both = known(&[("a", Check::Info), ("b", Check::Info), ("b", Check::Role)]);
        let expected = [finding(Check::Info, "a"), finding(Check::Role, "b")];
        assert_eq!(news_of(&Known::new(), &both), expected);
        assert_eq!(news(&both, &both, &mut vec![Check::Info]), []);
        let more = known(&[("c", Check::Info), ("c", Check::Role)]);
        assert_eq!(news(&both, &more, &mut vec![Check::Info]), [finding(Check::Role, "c")]);
        assert_eq!(news_of(&known(&[("a", Check::Role)]), &both), expected);
    }
}
