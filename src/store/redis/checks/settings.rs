//! Asks servers for their settings, and finds those that may cost leases.
//!
//! A store asks each server when it connects, and each that it meets later: the next primary after a failover, a new
//! shard, or what answers at the address after a reconnect. Only connecting can refuse; later findings are warnings.

use super::info::{Deployment, judge};
use crate::error::Result;
use crate::store::connect::finding::{Check, Finding};
use crate::store::connect::preflight::{Preflight, Unfit};
use crate::store::redis::link::address::Server;
use crate::store::redis::link::health::field;
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
            #[cfg(feature = "testing")]
            Connection::InProcess(_) => Known::new(),
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
            #[cfg(feature = "testing")]
            (Connection::InProcess(_), _) => {}
        }
    }
}

/// Returns the findings that are left: what is wrong, and not allowed.
fn allowed(preflight: Preflight, mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.retain(|finding| !finding.is_fine() && !preflight.allows(finding.check));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::connect::finding::Severity;

    #[test]
    fn news_are_reported_once_and_what_holds_for_all_once() {
        let finding =
            |check, server: &str| Finding::new(check, Severity::Warning, server, "is odd");
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
