//! Read-write locks on a quorum of real servers, which are killed, stopped and restarted.

use super::redis::{LONG, Servers, T, connect, held_for, lock};
use kit::{Mode, Proxy, eventually, within};
use leasehold::{ErrorKind, LeaseManager, Loss, ReadLease, Upgraded, WriteLease};
use std::time::{Duration, Instant};

/// A stall of the machine longer than the time limit of an attempt fails it, so ask again.
async fn read(leases: &LeaseManager, name: &str) -> ReadLease {
    let start = Instant::now();
    loop {
        match leases.rw_lock(name).read().await {
            Ok(page) => return page,
            Err(error) => assert!(start.elapsed() < LONG, "{error}"),
        }
    }
}

async fn write(leases: &LeaseManager, name: &str) -> WriteLease {
    let start = Instant::now();
    loop {
        match leases.rw_lock(name).write().await {
            Ok(edit) => return edit,
            Err(error) => assert!(start.elapsed() < LONG, "{error}"),
        }
    }
}

#[tokio::test]
async fn readers_outlive_two_of_five_servers_and_not_three() {
    let servers = Servers::start(5);
    let (here, there) = (connect(&servers.urls()).await, connect(&servers.urls()).await);
    let pages = [read(&here, "job").await, read(&here, "job").await, read(&there, "job").await];
    servers.0[0].kill();
    servers.0[1].pause();
    for page in &pages {
        held_for(page, T).await;
    }
    let mut contender = there.rw_lock("job");
    assert!(!matches!(contender.try_write().await, Ok(Some(_))), "three read");
    read(&there, "job").await.unlock().await.expect("three of five are enough");

    servers.0[2].kill();
    let killed = Instant::now();
    for page in &pages {
        assert_eq!(within(LONG, page.lost()).await, Loss::Expired);
    }
    assert!(killed.elapsed() <= T, "{:?}", killed.elapsed());
    let error = here.rw_lock("other").try_read().await.expect_err("two of five");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    drop(pages);
    servers.0[1].resume();
    servers.0[0].restart();
    write(&there, "job").await.unlock().await.expect("three of five again");
}

/// A has servers 1 and 2, server 2 restarts empty, and B reaches 2 and 3.
#[tokio::test]
async fn restarted_server_does_not_help_a_writer_beside_a_reader() {
    let servers = Servers::start(3);
    let proxy = Proxy::start(servers.0[2].port());
    let [one, two, _] = [0, 1, 2].map(|node: usize| servers.0[node].url());
    let here = connect(&format!("{one},{two},{}", proxy.url())).await;
    let there = connect(&servers.urls()).await;
    lock(&there, "warm").await.unlock().await.expect("all are old enough");
    proxy.set(Mode::Refuse);
    let page = read(&here, "job").await;
    assert!(servers.holds(0, "job") && servers.holds(1, "job") && !servers.holds(2, "job"));
    servers.0[1].kill();
    servers.0[1].wipe();
    servers.0[1].restart();
    let start = Instant::now();
    let edit = loop {
        if let Ok(Some(edit)) = there.rw_lock("job").try_write().await {
            break edit;
        }
        assert!(start.elapsed() < LONG);
    };
    assert!(page.check().is_err(), "both {:?} after the restart", start.elapsed());
    drop(edit);
}

/// The address of node 2 leads to the server of node 1 after the start. Readers share a name there.
#[tokio::test]
async fn server_that_two_addresses_lead_to_reads_once() {
    let servers = Servers::start(3);
    let (moved, cut) = (Proxy::start(servers.0[1].port()), Proxy::start(servers.0[0].port()));
    let [one, two, three] = [0, 1, 2].map(|node: usize| servers.0[node].url());
    let here = connect(&format!("{one},{},{three}", moved.url())).await;
    let there = connect(&format!("{},{two},{three}", cut.url())).await;
    for leases in [&here, &there] {
        lock(leases, "warm").await.unlock().await.expect("all are old enough");
    }
    cut.set(Mode::Refuse);
    moved.lead_to(servers.0[0].port());
    let mut both = 0;
    for at in 0..50 {
        let name = format!("job:{at}");
        let edit = write(&there, &name).await;
        let page = here.rw_lock(&name).try_read().await;
        both += usize::from(matches!(page, Ok(Some(_))) && edit.check().is_ok());
        drop(edit);
    }
    assert_eq!(both, 0, "of 50 names have a reader beside the writer");
    // What is free has two servers of three.
    read(&here, "other").await.unlock().await.expect("held");
}

#[tokio::test]
async fn mode_is_changed_while_a_server_is_stopped() {
    let servers = Servers::start(3);
    let (here, there) = (connect(&servers.urls()).await, connect(&servers.urls()).await);
    lock(&here, "warm").await.unlock().await.expect("all are old enough");
    for stopped in 0..3 {
        let edit = write(&here, "job").await;
        servers.0[stopped].pause();
        // A stall of the machine releases the hold.
        let Ok(page) = edit.downgrade().await else {
            servers.0[stopped].resume();
            continue;
        };
        let other = read(&there, "job").await;
        assert!(!matches!(there.rw_lock("job").try_write().await, Ok(Some(_))));
        let page = match page.try_upgrade().await {
            Ok(Upgraded::Read(page)) => page,
            Ok(Upgraded::Write(_)) => panic!("another reads"),
            Err(_) => {
                servers.0[stopped].resume();
                continue;
            }
        };
        held_for(&page, T).await;
        other.unlock().await.expect("held");
        servers.0[stopped].resume();
        held_for(&page, T).await;
        match page.try_upgrade().await {
            Ok(Upgraded::Write(edit)) => {
                assert!(!matches!(there.rw_lock("job").try_read().await, Ok(Some(_))));
                held_for(&edit, T).await;
                edit.unlock().await.expect("held");
            }
            Ok(Upgraded::Read(page)) => page.unlock().await.expect("held"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
        eventually(LONG, || (0..3).all(|node| !servers.holds(node, "job"))).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
