//! The host of the URL is a name: for a while nobody knows it, a name server hangs, or it leads to another server.
//!
//! Each holder has an `/etc/hosts` and an `/etc/resolv.conf` of its own, in a network of the test's own.
#![cfg(target_os = "linux")]

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use kit::fault::{LONG, exists, millis};
use kit::holder::Holder;
use kit::namespaces::{unshared, with_own_network};
use kit::{Resp, Server, eventually};
use tempfile::TempDir;
use tokio::time::sleep;

const T: Duration = millis(6_000);
/// Where the name server of the holder would be.
const RESOLVER: &str = "127.0.0.77";

/// The files by which a holder resolves names.
struct Names {
    folder: TempDir,
}

impl Names {
    fn new() -> Self {
        let names = Self { folder: TempDir::new().expect("a folder") };
        names.lead_to(Some("127.0.0.1"));
        let resolver = format!("nameserver {RESOLVER}\noptions timeout:2 attempts:1\n");
        fs::write(names.path("resolv.conf"), resolver).expect("written");
        names
    }

    fn path(&self, file: &str) -> String {
        self.folder.path().join(file).to_str().expect("UTF-8").to_owned()
    }

    /// Lets the name of the server lead to an address, or to none. The file stays the same one.
    fn lead_to(&self, address: Option<&str>) {
        let line = address.map(|address| format!("{address} redis.test\n")).unwrap_or_default();
        fs::write(self.path("hosts"), format!("127.0.0.1 localhost\n{line}")).expect("written");
    }

    fn holder(&self) -> Holder {
        let script = "mount --bind \"$0\" /etc/hosts && mount --bind \"$1\" /etc/resolv.conf && shift && exec \"$@\"";
        let (hosts, resolver) = (self.path("hosts"), self.path("resolv.conf"));
        unshared(&["--mount", "sh", "-c", script, &hosts, &resolver])
    }
}

fn url(server: &Server) -> String {
    format!("redis://redis.test:{}", server.port())
}

async fn tried(holder: &mut Holder, name: &str) -> String {
    holder.send(&format!("try {name}"));
    holder.event(&["tried", name]).await.word(2).to_owned()
}

async fn granted_in_the_end(holder: &mut Holder, what: &str) {
    for n in 0..100 {
        if tried(holder, &format!("{what}-{n}")).await == "Granted" {
            return;
        }
        sleep(millis(50)).await;
    }
    panic!("{what}: nothing is granted");
}

#[test]
fn name_that_is_unknown_for_a_while_costs_no_lease() {
    with_own_network("names::name_that_is_unknown_for_a_while_costs_no_lease", || async {
        let (server, names) = (Server::start(), Names::new());
        let mut holder = names.holder();
        holder.hold(&url(&server), T, "job").await;
        names.lead_to(None);
        server.kill_clients();
        assert_eq!(tried(&mut holder, "meanwhile").await, "Unavailable");
        names.lead_to(Some("127.0.0.1"));
        granted_in_the_end(&mut holder, "after").await;
        sleep(T).await;
        assert!(holder.happened(&["fired", "job"]).is_none());
        assert!(exists(&server, "job"));
    });
}

#[test]
fn name_server_that_hangs_delays_no_token_and_is_survived() {
    with_own_network("names::name_server_that_hangs_delays_no_token_and_is_survived", || async {
        let (server, names) = (Server::start(), Names::new());
        let mut holder = names.holder();
        holder.hold(&url(&server), T, "job").await;
        // It takes each question, and never answers.
        let hanging = UdpSocket::bind((RESOLVER, 53)).expect("a port of this network");
        names.lead_to(None);
        server.kill_clients();
        assert_eq!(tried(&mut holder, "meanwhile").await, "Unavailable");
        let fired = holder.event(&["fired", "job"]).await;
        assert_eq!(fired.word(2), "Expired");
        drop(hanging);
        names.lead_to(Some("127.0.0.1"));
        granted_in_the_end(&mut holder, "after").await;
    });
}

#[test]
fn name_that_leads_elsewhere_once_the_server_died_is_followed() {
    with_own_network(
        "names::name_that_leads_elsewhere_once_the_server_died_is_followed",
        || async {
            const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
            let (old, names) = (Server::start(), Names::new());
            let port = old.port().to_string();
            let options =
                ["--bind", &OTHER.to_string(), "--port", &port, "--replicaof", "127.0.0.1", &port];
            let new = Server::start_with(&options);
            let is_online =
                || old.command(&["INFO", "replication"]).text().contains("state=online");
            eventually(LONG, is_online).await;
            let mut holder = names.holder();
            holder.hold(&url(&old), T, "job").await;
            let at_new = |words: &[&str]| Resp::connect_to(OTHER, old.port()).command(words);
            eventually(LONG, || at_new(&["EXISTS", "job"]).int() == 1).await;
            // In this order: the old server ends before the name moves.
            old.kill();
            at_new(&["REPLICAOF", "NO", "ONE"]);
            names.lead_to(Some(&OTHER.to_string()));
            granted_in_the_end(&mut holder, "after").await;
            sleep(T * 2).await;
            assert!(holder.happened(&["fired", "job"]).is_none(), "the replicated lease is kept");
            assert_eq!(at_new(&["EXISTS", "job"]).int(), 1);
            drop(new);
        },
    );
}
