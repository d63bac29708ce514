//! Leases on real Redis servers: alone, behind TLS, watched by sentinels, and in a cluster.

mod by_hand;
mod cluster;
mod commands;
mod credentials;
mod drop;
mod election;
mod errors;
mod fair;
mod fences;
mod handoff;
mod in_process;
mod jobs;
mod linger;
mod loss;
mod mixed;
mod moving;
mod new_addresses;
mod operator;
mod overrun;
mod plain;
mod preflight;
mod ready;
mod resends;
mod runtimes;
mod scripts;
mod sentinel;
mod shared;
mod steal;
mod subscriptions;
mod tls;
mod wait;
mod waiting_runtimes;
mod wire;

use kit::{Reply, Server};
use leasehold::{Lease, LeaseManager};
use std::time::Duration;

/// A holder as Redisson writes it.
const JAVA: &str = "5e1f3a54-5c1b-4b0e-9a39-0f5d1c0a7b11:47";

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

async fn lock(leases: &LeaseManager, name: &str) -> Lease {
    leases.lock(name).lock().await.expect("a lease")
}

include!("../../src/store/redis/scripts/compose.rs");

/// Returns the text of a script for one server.
fn script(name: &str) -> String {
    script_of("", name)
}

/// Returns the same in a layout: the beginning of the names of its files.
fn script_of(layout: &'static str, name: &str) -> String {
    let files = lua_files!("../../src/store/redis/scripts/");
    compose(&files, name, Form { layout, publish: "publish" })
}

fn exists(server: &Server, key: &str) -> bool {
    server.command(&["EXISTS", key]).int() == 1
}

/// Makes a lock as another program would, which never releases it.
fn lock_by_hand(server: &Server, key: &str, ttl: Duration) {
    let ttl = ttl.as_millis().to_string();
    let script =
        "redis.call('HSET', KEYS[1], ARGV[1], 1) return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
    assert_eq!(server.command(&["EVAL", script, "1", key, JAVA, &ttl]), Reply::Int(1));
}

/// Checks that the server has refused nothing but what the client does without, and objects that begin with `more`.
#[track_caller]
fn refused_only(server: &Server, more: &[&str]) {
    for refused in server.command(&["ACL", "LOG", "128"]).list() {
        let refused = refused.pairs();
        let object = refused.iter().find(|(name, _)| name == "object").expect("an object");
        let optional = ["info", "client|id", "client|setname", "ping"].contains(&&*object.1);
        assert!(optional || more.iter().any(|more| object.1.starts_with(more)), "{refused:?}");
    }
}
