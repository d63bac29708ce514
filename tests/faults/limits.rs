//! A process that has reached a limit of its system for a while: no more threads, no more files. Its connections are lost in
//! that time.
#![cfg(target_os = "linux")]

use std::io::{self, Write};
use std::process;
use std::time::Duration;

use kit::fault::{LONG, exists, millis};
use kit::holder::Holder;
use kit::{Mode, Proxy, Server, eventually};
use tokio::time::sleep;

const T: Duration = millis(4_000);

/// Tries until a lock is granted, for some seconds.
async fn is_granted_in_the_end(holder: &mut Holder, what: &str) -> bool {
    for n in 0..60 {
        let name = format!("{what}-{n}");
        holder.send(&format!("try {name}"));
        if holder.event(&["tried", &name]).await.word(2) == "Granted" {
            return true;
        }
        sleep(millis(100)).await;
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_without_threads_connects_again() {
    if !rustix::process::getuid().is_root() {
        let _ = writeln!(io::stderr(), "NOT CHECKED, as it needs root: a limit on threads");
        return;
    }
    let server = Server::start();
    // A user of its own, whose threads are counted.
    let user = (60_000 + process::id() % 5_000).to_string();
    let as_user = ["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"];
    let mut holder = Holder::start_by(&[&as_user[..], &["prlimit", "--nproc=60"]].concat());
    holder.hold(&server.url(), T, "job").await;
    assert!(is_granted_in_the_end(&mut holder, "before").await);
    // Threads that resolved the host have ended, where nothing keeps them: tokio keeps an idle one for 10 s.
    sleep(millis(11_000)).await;
    holder.send("exhaust threads");
    holder.event(&["exhausted", "threads"]).await;
    server.kill_clients();
    sleep(T).await;
    assert!(holder.happened(&["fired", "job"]).is_none(), "the lease is kept without new threads");
    assert!(exists(&server, "job"));
    holder.send("relieve");
    holder.event(&["relieved"]).await;
    assert!(is_granted_in_the_end(&mut holder, "after").await, "it never connects again");
    assert!(holder.happened(&["fired", "job"]).is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_without_files_connects_again() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut holder = Holder::start_by(&["prlimit", "--nofile=200"]);
    holder.hold(&proxy.url(), T, "job").await;
    assert!(is_granted_in_the_end(&mut holder, "before").await);
    // Those of its connections, too.
    proxy.set(Mode::Refuse);
    sleep(millis(200)).await;
    // Also the file of an attempt that was under way.
    let exhausted = || {
        holder.send("exhaust files");
        holder.happened(&["exhausted", "files", "0"]).is_some()
    };
    eventually(LONG, exhausted).await;
    let before = proxy.connections();
    proxy.set(Mode::Pass);
    holder.send("try meanwhile");
    let tried = holder.event(&["tried", "meanwhile"]).await;
    assert_eq!(tried.word(2), "Unavailable");
    assert_eq!(proxy.connections(), before, "it has a file left");
    holder.send("relieve");
    holder.event(&["relieved"]).await;
    assert!(is_granted_in_the_end(&mut holder, "after").await, "it never connects again");
    sleep(T).await;
    assert!(holder.happened(&["fired", "job"]).is_none(), "it lasted less than a TTL");
    assert!(exists(&server, "job"));
}
