//! Read-write locks on a quorum of memory stores: nodes fail, are slow, forget, or are one server.

use super::*;
use leasehold::store::{
    Acquire, Acquired, Arrival, HolderId, Mode, Release, RenewBatch, RenewCall, Renewal, Target,
};
use leasehold::testing::Call;
use leasehold::{LeaseState, Loss, ReadLease};
use std::cell::Cell;
use tokio::time::timeout;
use uuid::Uuid;

fn target(mode: Mode) -> Target {
    Target::new(name("job"), mode)
}

fn acquire(mode: Mode, holder: HolderId) -> Acquire {
    Acquire::new(target(mode), holder, T, T / 10)
}

fn someone() -> HolderId {
    HolderId::new(Uuid::new_v4(), 1)
}

async fn read(leases: &LeaseManager) -> ReadLease {
    leases.rw_lock("job").read().await.expect("granted")
}

#[tokio::test(start_paused = true)]
async fn readers_share_and_writers_are_alone_while_nodes_are_down() {
    for count in [3, 5] {
        let nodes = Nodes::new(count);
        let (here, faults) = nodes.process();
        let (there, to_there) = nodes.process();
        let minority = (count - 1) / 2;
        // Their majorities have one node in common.
        faults[..minority].iter().for_each(|node| node.add(down()));
        to_there[count - minority..].iter().for_each(|node| node.add(down()));
        let (one, two) = (read(&here).await, read(&here).await);
        assert!(there.rw_lock("job").try_write().await.expect("an answer").is_none());
        let three = read(&there).await;
        sleep(3 * T).await;
        for page in [&one, &two, &three] {
            assert_eq!(page.state(), LeaseState::Held);
        }
        one.unlock().await.expect("held");
        two.unlock().await.expect("held");
        assert!(here.rw_lock("job").try_write().await.expect("an answer").is_none());
        three.unlock().await.expect("held");
        let edit = here.rw_lock("job").try_write().await.expect("an answer").expect("free");
        assert!(there.rw_lock("job").try_read().await.expect("an answer").is_none());
        assert!(there.rw_lock("job").try_write().await.expect("an answer").is_none());
        sleep(3 * T).await;
        assert_eq!(edit.state(), LeaseState::Held);
        edit.unlock().await.expect("held");
        settle().await;
        assert!(nodes.free(), "{:?}", nodes.keys());
    }
}

/// A slow node is waited for once, not once for each reader.
#[tokio::test(start_paused = true)]
async fn readers_of_one_process_share_a_hold_at_each_node() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    let slow = Duration::from_millis(10);
    faults.iter().for_each(|node| node.add(Rule::new(Fault::Delay(slow)).on(Call::Acquire)));
    let mut readers = tokio::task::JoinSet::new();
    let start = Instant::now();
    for _ in 0..50 {
        let leases = leases.clone();
        readers.spawn(async move { read(&leases).await });
    }
    let pages = readers.join_all().await;
    assert!(start.elapsed() < 2 * slow, "{:?}", start.elapsed());
    sleep(slow).await;
    assert_eq!(nodes.keys(), [1; 3]);
    drop(pages);
    settle().await;
    assert!(nodes.free(), "{:?}", nodes.keys());
}

/// On several threads the requests come to the nodes in different orders, and nobody waits for the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_do_not_wait_for_each_other_at_different_nodes() {
    let nodes = Nodes::new(4);
    let (leases, _) = nodes.process();
    for _ in 0..50 {
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let leases = leases.clone();
            readers.spawn(async move { read(&leases).await.unlock().await });
        }
        // A node has 1.5 s, an attempt 3 s.
        let all = timeout(Duration::from_secs(60), readers.join_all());
        for released in all.await.expect("they wait for each other") {
            released.expect("held");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn refused_reader_and_writer_release_what_they_got() {
    for (held, asked) in [(Mode::Write, Mode::Read), (Mode::Read, Mode::Write)] {
        let nodes = Nodes::new(3);
        let (stores, faults) = nodes.handles();
        let contender = Quorum::new(nodes.handles().0).expect("enough nodes");
        let quorum = Quorum::new(stores).expect("enough nodes");
        contender.acquire(acquire(held, someone())).await.expect("free");
        nodes.0[2].delete("job");
        let verdict = quorum.acquire(acquire(asked, someone())).await;
        assert!(matches!(verdict, Ok(Acquired::Held { .. })), "{verdict:?}");
        settle().await;
        assert_eq!(nodes.keys(), [1, 1, 0], "{asked:?}");
        // Its reply is lost, and so are some releases: it is swept.
        faults[2].add(Rule::new(Fault::LoseReply).on(Call::Acquire));
        faults[2].add(down().on(Call::Release));
        let verdict = quorum.acquire(acquire(asked, someone())).await;
        assert!(matches!(verdict, Ok(Acquired::Held { .. })), "{verdict:?}");
        settle().await;
        assert_eq!(nodes.keys(), [1, 1, 1], "{asked:?}");
        faults[2].heal();
        sleep(T / 10).await;
        assert_eq!(nodes.keys(), [1, 1, 0], "{asked:?}");
    }
}

/// The release at node 3 failed; node 1 is down; the own key on node 3 must not stand in the way of the other side.
#[tokio::test(start_paused = true)]
async fn own_keys_never_vote_against_the_other_side() {
    for reads_first in [true, false] {
        let nodes = Nodes::new(3);
        let (leases, faults) = nodes.process();
        let mut lock = leases.rw_lock("job");
        faults[2].add(down().on(Call::Release).times(1));
        if reads_first {
            lock.read().await.expect("granted").unlock().await.expect("two of three");
        } else {
            lock.write().await.expect("granted").unlock().await.expect("two of three");
        }
        assert_eq!(nodes.keys(), [0, 0, 1]);
        faults[0].add(down());
        let granted = if reads_first {
            lock.try_write().await.expect("two of three answer").is_some()
        } else {
            lock.try_read().await.expect("two of three answer").is_some()
        };
        assert!(granted, "reads first: {reads_first}");
    }
}

#[tokio::test(start_paused = true)]
async fn silent_node_delays_no_reader_and_no_writer() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    faults[1].add(Rule::new(Fault::Hang));
    let mut lock = leases.rw_lock("job");
    let (time, page) = timed(lock.read()).await;
    assert_eq!(time, Duration::ZERO);
    let (time, edit) = timed(page.expect("granted").try_upgrade()).await;
    let leasehold::Upgraded::Write(edit) = edit.expect("two of three") else { panic!("alone") };
    assert_eq!(time, Duration::ZERO);
    let (time, page) = timed(edit.downgrade()).await;
    assert_eq!(time, Duration::ZERO);
    let (time, released) = timed(page.expect("two of three").unlock()).await;
    released.expect("two of three");
    assert_eq!(time, Duration::ZERO);
}

/// A has nodes 1 and 2, node 2 forgets, and B reaches 2 and 3.
#[tokio::test(start_paused = true)]
async fn restarted_node_helps_nobody_on_the_other_side() {
    for (held, asked) in
        [(Mode::Read, Mode::Write), (Mode::Write, Mode::Read), (Mode::Write, Mode::Write)]
    {
        let nodes = Nodes::new(3);
        let (here, faults) = nodes.process();
        faults[2].add(down());
        let lease = match held {
            Mode::Read => read(&here).await.into_lease(),
            _ => here.rw_lock("job").write().await.expect("granted").into_lease(),
        };
        assert_eq!(nodes.keys(), [1, 1, 0]);
        nodes.0[1].restart();
        let (there, _) = nodes.process();
        let start = Instant::now();
        loop {
            let granted = match asked {
                Mode::Read => matches!(there.rw_lock("job").try_read().await, Ok(Some(_))),
                _ => matches!(there.rw_lock("job").try_write().await, Ok(Some(_))),
            };
            if granted {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
        assert!(lease.check().is_err(), "both after {:?}", start.elapsed());
        assert!(start.elapsed() >= T - PERIOD, "{:?}", start.elapsed());
        assert!(start.elapsed() <= 2 * T, "{:?}", start.elapsed());
    }
}

/// Readers share a name, so two addresses of one server would both be granted it.
#[tokio::test(start_paused = true)]
async fn one_server_that_is_two_nodes_votes_once_for_a_reader() {
    let mut nodes = Nodes::new(3);
    nodes.0[1] = nodes.0[0].clone();
    let (leases, faults) = nodes.process();
    let page = read(&leases).await;
    sleep(3 * T).await;
    assert_eq!(page.state(), LeaseState::Held, "two servers of three");
    // Renewals at one server do not add up.
    faults[2].add(down());
    let (time, loss) = timeout(T, timed(page.lost())).await.expect("lost");
    assert_eq!(loss, Loss::Expired);
    assert!(time <= C && time + PERIOD + MOMENT >= C, "{time:?}");
    let error = leases.rw_lock("job").try_read().await.expect_err("one server of three");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("leads to the server of node"), "{error}");
    drop(page);
    sleep(T).await;
    assert!(nodes.0[0].is_empty(), "{:?}", nodes.keys());
}

#[tokio::test(start_paused = true)]
async fn node_that_comes_back_empty_gets_all_readers_back() {
    let nodes = Nodes::new(3);
    let (here, _) = nodes.process();
    let (there, _) = nodes.process();
    let (beside, _) = nodes.process();
    let pages = [read(&here).await, read(&beside).await, read(&there).await];
    nodes.0[0].restart();
    assert_eq!(nodes.keys(), [0, 3, 3]);
    // A writer that waits there does not keep them out. Where it asks at the moment of a renewal, the next one brings the
    // reader back.
    let (elsewhere, _) = nodes.process();
    let waiting = tokio::spawn(async move { elsewhere.rw_lock("job").write().await.map(drop) });
    sleep(2 * PERIOD + MOMENT).await;
    assert_eq!(nodes.keys(), [3; 3]);
    for page in pages {
        page.unlock().await.expect("held");
    }
    timeout(T, waiting).await.expect("its turn").expect("no panic").expect("granted");
}

#[tokio::test(start_paused = true)]
async fn other_kind_is_what_a_majority_says() {
    for (plain, refused) in [(1, false), (2, true), (3, true)] {
        let nodes = Nodes::new(3);
        for node in &nodes.0[..plain] {
            let alone = LeaseManager::builder().ttl(T).build(node.clone()).expect("settings");
            alone.lock("job").lock().await.expect("free here").forget();
        }
        let (leases, _) = nodes.process();
        let page = leases.rw_lock("job").try_read().await;
        let edit = leases.rw_lock("job").try_write().await;
        if refused {
            let kinds = [page.map(drop), edit.map(drop)].map(|r| r.expect_err("refused").kind());
            assert_eq!(kinds, [ErrorKind::WrongType; 2], "{plain} of three");
        } else {
            let page = page.expect("two of three").expect("free");
            assert!(edit.expect("an answer").is_none());
            sleep(T / 2).await;
            assert_eq!(page.state(), LeaseState::Held);
            page.unlock().await.expect("held");
        }
    }
    // One node refuses, one is held, one fails: no kind is agreed on, and the name may become free.
    let nodes = Nodes::new(3);
    let (stores, faults) = nodes.handles();
    stores[0].acquire(acquire(Mode::Write, someone())).await.expect("free");
    stores[1].acquire(acquire(Mode::Exclusive, someone())).await.expect("free");
    faults[2].add(down());
    let quorum = Quorum::new(stores).expect("enough nodes");
    let verdict = quorum.acquire(acquire(Mode::Read, someone())).await;
    assert!(matches!(verdict, Ok(Acquired::Held { .. })), "{verdict:?}");
}

#[tokio::test(start_paused = true)]
async fn kind_that_a_majority_refuses_is_not_contention() {
    let nodes = Nodes::new(3);
    let (stores, _) = nodes.handles();
    stores[0].acquire(acquire(Mode::Write, someone())).await.expect("free");
    for store in &stores[1..] {
        store.acquire(acquire(Mode::Exclusive, someone())).await.expect("free");
    }
    let quorum = Quorum::new(stores).expect("enough nodes");
    let error = quorum.acquire(acquire(Mode::Read, someone())).await.expect_err("two refuse");
    assert_eq!(error.kind(), ErrorKind::WrongType);
}

#[tokio::test(start_paused = true)]
async fn quorum_has_the_modes_of_all_its_nodes() {
    let (mut stores, _) = Nodes::new(3).handles();
    let can = Quorum::new(stores.clone()).expect("enough nodes").capabilities();
    assert!(can.supports(Mode::Read) && can.supports(Mode::Write));
    assert!(!can.supports(Mode::Permits { size: 2, take: 1 }));
    let plain = leasehold::store::Capabilities::default();
    stores[1] = Arc::new(FaultyStore::new(MemoryStore::new()).0.with_capabilities(plain));
    let quorum = Quorum::new(stores).expect("enough nodes");
    for mode in [Mode::Read, Mode::Write] {
        assert!(!quorum.capabilities().supports(mode));
        let error = quorum.acquire(acquire(mode, someone())).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}

/// A writer that waits keeps out the readers that come later, at each node that refuses it.
#[tokio::test(start_paused = true)]
async fn writer_does_not_starve_among_readers_of_other_processes() {
    for down_nodes in [0, 1] {
        let nodes = Nodes::new(3);
        let (writes, faults) = nodes.process();
        faults[..down_nodes].iter().for_each(|node| node.add(down()));
        let stop = Cell::new(false);
        let start = Instant::now();
        let processes: Vec<_> = (0..4).map(|_| nodes.process().0).collect();
        let stream = |leases: LeaseManager, at: u64| {
            let stop = &stop;
            async move {
                sleep(Duration::from_millis(at * 25)).await;
                let mut reads = 0;
                while !stop.get() {
                    let page = read(&leases).await;
                    sleep(Duration::from_millis(100)).await;
                    page.unlock().await.expect("held");
                    reads += 1;
                    assert!(start.elapsed() < 2 * T, "the writer starves: {reads} reads");
                }
            }
        };
        let write = async {
            sleep(Duration::from_millis(500)).await;
            let (time, edit) = timed(writes.rw_lock("job").write()).await;
            edit.expect("granted").unlock().await.expect("held");
            stop.set(true);
            time
        };
        let streams = async {
            let mut at = 0..;
            let mut next = || at.next().unwrap_or(0);
            tokio::join!(
                stream(processes[0].clone(), next()),
                stream(processes[1].clone(), next()),
                stream(processes[2].clone(), next()),
                stream(processes[3].clone(), next())
            )
        };
        let (time, _) = tokio::join!(write, streams);
        println!("{down_nodes} down: the writer waited for {time:?}");
        // The longest read, and one poll interval.
        assert!(time <= Duration::from_millis(1_500), "{time:?}");
    }
}

/// A reader keeps out no writer of another process, so it needs a moment in which none of them wants the name.
#[tokio::test(start_paused = true)]
async fn reader_is_granted_the_name_when_writers_of_others_rest() {
    let nodes = Nodes::new(3);
    let (reads, _) = nodes.process();
    let mut writers = tokio::task::JoinSet::new();
    for at in 0..4 {
        let leases = nodes.process().0;
        writers.spawn(async move {
            loop {
                sleep(Duration::from_millis(100 + 7 * at)).await;
                let edit = leases.rw_lock("job").write().await.expect("granted");
                sleep(Duration::from_millis(20)).await;
                edit.unlock().await.expect("held");
            }
        });
    }
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        sleep(Duration::from_millis(137)).await;
        let (time, page) = timed(timeout(T, read(&reads))).await;
        page.expect("the reader starves").unlock().await.expect("held");
        longest = longest.max(time);
    }
    println!("a reader among writers waited for {longest:?} at most");
}

/// Nodes that kept the places of both sides could disagree about which comes first. Then nobody would be granted the name.
#[tokio::test(start_paused = true)]
async fn places_of_both_sides_never_block_each_other() {
    let nodes = Nodes::new(3);
    let [holds, writes, reads] = [0, 1, 2].map(|_| {
        let (stores, faults) = nodes.handles();
        (Quorum::new(stores).expect("enough nodes"), faults)
    });
    let asks = async |(quorum, _): &(Quorum, Vec<Faults>), mode, waited| {
        let place = Arrival::new(Duration::from_millis(waited), T);
        quorum.acquire(acquire(mode, someone()).with_arrival(Some(place))).await
    };
    let holder = someone();
    holds.0.acquire(acquire(Mode::Write, holder)).await.expect("free");
    // Node 1 meets the writer, node 2 the reader, and node 3 nobody.
    writes.1[2].add(down());
    reads.1[2].add(down());
    writes.1[1].add(down().on(Call::Acquire).times(1));
    let verdict = asks(&writes, Mode::Write, 500).await;
    assert!(matches!(verdict, Ok(Acquired::Held { .. })), "{verdict:?}");
    reads.1[0].add(down().on(Call::Acquire).times(1));
    let verdict = asks(&reads, Mode::Read, 900).await;
    assert!(matches!(verdict, Ok(Acquired::Held { .. })), "{verdict:?}");
    holds.0.release(Release::new(target(Mode::Write), holder, 0, T / 10)).await.expect("held");
    let verdict = asks(&writes, Mode::Write, 500).await;
    assert!(matches!(verdict, Ok(Acquired::Granted { .. })), "{verdict:?}");
}

/// A batch is renewed item by item, whatever the kinds and sides.
#[tokio::test(start_paused = true)]
async fn batch_of_both_sides_is_renewed_by_majorities() {
    let nodes = Nodes::new(3);
    let (stores, faults) = nodes.handles();
    let quorum = Quorum::new(stores).expect("enough nodes");
    let mut items = Vec::new();
    for (at, mode) in [Mode::Exclusive, Mode::Read, Mode::Write].into_iter().enumerate() {
        let (target, holder) = (Target::new(name(&format!("n{at}")), mode), someone());
        let request = Acquire::new(target.clone(), holder, T, T / 10);
        quorum.acquire(request).await.expect("free");
        items.push(Renewal::new(target, holder));
    }
    faults[0].add(down());
    let renewed = RenewCall::join(quorum.renew(RenewBatch::new(items.clone(), T, T / 10)))
        .await
        .expect("verdicts");
    assert!(matches!(renewed.verdicts[..], [Ok(None), Ok(None), Ok(None)]), "{renewed:?}");
    nodes.0[1].delete("n1");
    let renewed =
        RenewCall::join(quorum.renew(RenewBatch::new(items, T, T / 10))).await.expect("verdicts");
    assert!(matches!(renewed.verdicts[..], [Ok(None), Err(_), Ok(None)]), "{renewed:?}");
}
