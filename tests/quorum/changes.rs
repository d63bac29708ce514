//! Changes between reading and writing, at nodes that disagree, hang, fail and forget.

use super::fates::{FATES, Fate, Fated, process};
use super::*;
use kit::reached::Must;
use leasehold::store::{
    Absence, Acquire, Acquired, HolderId, HolderInfo, Inspect, Mode, Release, RenewBatch,
    RenewCall, Renewal, Target,
};
use leasehold::testing::Call;
use leasehold::{LeaseState, Loss, ReadLease, Upgraded, WriteLease};
use std::cell::RefCell;
use uuid::Uuid;

const TTL: Duration = super::fates::TTL;

fn acquire(mode: Mode, holder: HolderId) -> Acquire {
    Acquire::new(Target::new(name("job"), mode), holder, T, T / 10)
}

fn change(mode: Mode, holder: HolderId) -> Acquire {
    acquire(mode, holder).with_converts(true)
}

fn someone() -> HolderId {
    HolderId::new(Uuid::new_v4(), 1)
}

async fn at_node(node: &MemoryStore) -> Vec<HolderInfo> {
    let target = Target::new(name("job"), Mode::Read);
    node.inspect(Inspect::new(target, T)).await.expect("memory").holders
}

/// How many readers and writers each node has.
async fn sides(nodes: &Nodes) -> Vec<(usize, usize)> {
    let mut sides = Vec::new();
    for node in &nodes.0 {
        let holders = at_node(node).await;
        let writers = holders.iter().filter(|holder| holder.mode == Mode::Write).count();
        sides.push((holders.len() - writers, writers));
    }
    sides
}

fn granted(verdict: &leasehold::Result<Acquired>) -> bool {
    matches!(verdict, Ok(Acquired::Granted { .. }))
}

fn held(verdict: &leasehold::Result<Acquired>) -> bool {
    matches!(verdict, Ok(Acquired::Held { .. }))
}

async fn write(leases: &LeaseManager) -> WriteLease {
    leases.rw_lock("job").write().await.expect("granted")
}

async fn upgraded(page: ReadLease) -> WriteLease {
    match page.try_upgrade().await.expect("an answer") {
        Upgraded::Write(edit) => {
            settle().await;
            edit
        }
        Upgraded::Read(_) => panic!("another lease reads"),
    }
}

async fn renewed(quorum: &Quorum, holder: HolderId) -> bool {
    let items = vec![Renewal::new(Target::new(name("job"), Mode::Read), holder)];
    let renewed =
        RenewCall::join(quorum.renew(RenewBatch::new(items, T, T / 10))).await.expect("verdicts");
    matches!(renewed.verdicts[..], [Ok(None)])
}

#[tokio::test(start_paused = true)]
async fn downgrade_is_done_by_a_majority_and_the_rest_is_set_right() {
    let _reached = Must::reach("QuorumSetRight");
    for fault in [Fault::Fail(Error::new(ErrorKind::Unavailable, "out")), Fault::Hang] {
        let nodes = Nodes::new(3);
        let (here, faults) = nodes.process();
        let (there, _) = nodes.process();
        let edit = write(&here).await;
        faults[2].add(Rule::new(fault).on(Call::Acquire).times(1));
        let page = edit.downgrade().await.expect("two of three");
        settle().await;
        assert_eq!(sides(&nodes).await, [(1, 0), (1, 0), (0, 1)]);
        // Others may read with it, by the nodes that have changed. Nobody may write.
        let other = there.rw_lock("job").try_read().await.expect("an answer").expect("granted");
        assert!(there.rw_lock("job").try_write().await.expect("an answer").is_none());
        sleep(PERIOD + T / 10).await;
        assert_eq!(sides(&nodes).await[2].1, 0, "set right");
        sleep(PERIOD).await;
        assert_eq!(sides(&nodes).await, [(2, 0); 3], "made again for the other");
        assert_eq!([page.state(), other.state()], [LeaseState::Held; 2]);
        faults[2].heal();
        page.unlock().await.expect("held");
        other.unlock().await.expect("held");
        settle().await;
        assert!(nodes.free(), "{:?}", nodes.keys());
    }
}

#[tokio::test(start_paused = true)]
async fn downgrade_without_a_majority_releases_the_hold() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    let edit = write(&leases).await;
    faults[1..].iter().for_each(|node| node.add(down().on(Call::Acquire)));
    let error = edit.downgrade().await.expect_err("one of three");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    settle().await;
    assert!(nodes.free(), "{:?}", nodes.keys());
}

#[tokio::test(start_paused = true)]
async fn upgrade_by_a_minority_is_undone_and_the_hold_reads_on() {
    let _reached = Must::reach("QuorumChangeUndone");
    let nodes = Nodes::new(3);
    let (here, _) = nodes.process();
    let (there, to_there) = nodes.process();
    // The other reader lacks node 3.
    to_there[2].add(down());
    let other = there.rw_lock("job").read().await.expect("two of three");
    let page = here.rw_lock("job").read().await.expect("granted");
    assert_eq!(sides(&nodes).await, [(2, 0), (2, 0), (1, 0)]);
    let Upgraded::Read(page) = page.try_upgrade().await.expect("an answer") else {
        panic!("somebody else reads");
    };
    settle().await;
    assert_eq!(sides(&nodes).await, [(2, 0), (2, 0), (1, 0)], "undone");
    sleep(3 * T).await;
    assert_eq!([page.state(), other.state()], [LeaseState::Held; 2]);
    other.unlock().await.expect("held");
    let edit = upgraded(page).await;
    assert_eq!(sides(&nodes).await, [(0, 1); 3]);
    edit.unlock().await.expect("held");
}

/// What the refused change left at node 3 cannot be undone at once: it is set right with the next renewal.
#[tokio::test(start_paused = true)]
async fn upgrade_that_could_not_be_undone_is_set_right_later() {
    for fault in [down(), Rule::new(Fault::LoseReply), Rule::new(Fault::RunLate)] {
        let label = format!("{fault:?}");
        let nodes = Nodes::new(3);
        let (stores, faults) = nodes.handles();
        let quorum = Quorum::new(stores).expect("enough nodes");
        let (holder, other) = (someone(), someone());
        quorum.acquire(acquire(Mode::Read, holder)).await.expect("free");
        for node in &nodes.0[..2] {
            node.acquire(acquire(Mode::Read, other)).await.expect("readers share");
        }
        // The first runs, and the change back does not.
        faults[2].add(fault.on(Call::Acquire).times(1));
        faults[2].add(Rule::new(Fault::Delay(Duration::ZERO)).on(Call::Acquire).times(1));
        let verdict = quorum.acquire(change(Mode::Write, holder)).await;
        assert!(held(&verdict), "{label}: {verdict:?}");
        settle().await;
        assert!(renewed(&quorum, holder).await, "{label}: it reads on");
        settle().await;
        assert_eq!(sides(&nodes).await, [(2, 0), (2, 0), (1, 0)], "{label}");
        // A change back that may still run rules the node out for a writer.
        for node in &nodes.0[..1] {
            let release = Release::new(Target::new(name("job"), Mode::Read), other, 0, T);
            node.release(release).await.expect("there");
        }
        let verdict = quorum.acquire(change(Mode::Write, holder)).await;
        faults[2].heal();
        settle().await;
        if granted(&verdict) {
            assert_eq!(sides(&nodes).await[2], (0, 1), "{label}");
        } else {
            assert!(held(&verdict), "{label}: {verdict:?}");
        }
        assert!(renewed(&quorum, holder).await, "{label}");
    }
}

/// The answer to the change back of node 2 got lost, and it runs later, when the hold writes again. Node 2 must not count
/// then: another reader can have it.
#[tokio::test(start_paused = true)]
async fn late_downgrade_takes_no_node_from_a_writer() {
    let nodes = Nodes::new(3);
    let (here, faults) = nodes.process();
    let (there, to_there) = nodes.process();
    to_there[0].add(down());
    let edit = write(&here).await;
    faults[1].add(Rule::new(Fault::RunLate).on(Call::Acquire).times(1));
    let page = edit.downgrade().await.expect("two of three");
    // Node 3 fails: of the other two, node 2 does not count.
    faults[2].add(down().on(Call::Acquire));
    match page.try_upgrade().await {
        Ok(Upgraded::Write(edit)) => {
            faults[1].heal();
            settle().await;
            let second = there.rw_lock("job").try_read().await;
            assert!(!matches!(second, Ok(Some(_))) || edit.check().is_err(), "both");
            panic!("a node that may change back counted");
        }
        Ok(Upgraded::Read(page)) => assert_eq!(page.state(), LeaseState::Held),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable),
    }
}

/// The writer has nodes 1 and 2; node 3 has it as a reader, beside the rest of another one.
#[tokio::test(start_paused = true)]
async fn writer_is_not_renewed_by_a_node_that_has_a_reader() {
    let nodes = Nodes::new(3);
    let (here, faults) = nodes.process();
    let page = here.rw_lock("job").read().await.expect("granted");
    let target = Target::new(name("job"), Mode::Read);
    let other = Acquire::new(target, someone(), 9 * T, T / 10);
    nodes.0[2].acquire(other).await.expect("readers share");
    let edit = upgraded(page).await;
    assert_eq!(sides(&nodes).await, [(0, 1), (0, 1), (2, 0)]);
    sleep(PERIOD).await;
    faults[1].add(down());
    let (time, loss) = tokio::time::timeout(T, timed(edit.lost())).await.expect("lost");
    assert_eq!(loss, Loss::Expired);
    assert!(time <= C && time + PERIOD + MOMENT >= C, "{time:?}");
}

/// The same, but the other reader goes away: node 3 changes with a renewal, and counts from the next one on.
#[tokio::test(start_paused = true)]
async fn node_that_lacks_the_change_gets_it_with_a_renewal() {
    let nodes = Nodes::new(3);
    let (here, faults) = nodes.process();
    let other = someone();
    let page = here.rw_lock("job").read().await.expect("granted");
    nodes.0[2].acquire(acquire(Mode::Read, other)).await.expect("readers share");
    let edit = upgraded(page).await;
    let release = Release::new(Target::new(name("job"), Mode::Read), other, 0, T);
    nodes.0[2].release(release).await.expect("there");
    sleep(PERIOD + T / 10).await;
    assert_eq!(sides(&nodes).await, [(0, 1); 3]);
    faults[1].add(down());
    sleep(3 * T).await;
    assert_eq!(edit.state(), LeaseState::Held);
    // A node that comes back empty gets the writer, not the reader that it was.
    faults[1].heal();
    sleep(T + PERIOD).await;
    nodes.0[0].restart();
    sleep(PERIOD + T / 10).await;
    assert_eq!(sides(&nodes).await, [(0, 1); 3]);
    sleep(T + PERIOD).await;
    faults[1].add(down());
    sleep(3 * T).await;
    assert_eq!(edit.state(), LeaseState::Held);
}

#[tokio::test(start_paused = true)]
async fn change_of_a_hold_that_is_gone_makes_nothing() {
    for mode in [Mode::Read, Mode::Write] {
        let nodes = Nodes::new(3);
        let (stores, _) = nodes.handles();
        let quorum = Quorum::new(stores).expect("enough nodes");
        let holder = someone();
        let gone = |verdict| matches!(verdict, Ok(Acquired::NotYours(Absence::Gone)));
        assert!(gone(quorum.acquire(change(mode, holder)).await), "never there");
        quorum.acquire(acquire(mode, holder)).await.expect("free");
        nodes.0[..2].iter().for_each(|node| assert!(node.delete("job")));
        assert!(gone(quorum.acquire(change(mode, holder)).await), "lost by a majority");
        nodes.0[2].delete("job");
        quorum.acquire(acquire(mode, someone())).await.expect("free");
        settle().await;
        let left = Release::new(Target::new(name("job"), mode), holder, 0, T / 10);
        quorum.release(left).await.expect("an answer");
        assert!(!granted(&quorum.acquire(change(mode, holder)).await), "released");
        assert_eq!(nodes.keys(), [1; 3]);
    }
}

/// A young node may have forgotten another reader.
#[tokio::test(start_paused = true)]
async fn young_node_does_not_help_an_upgrade() {
    let nodes = Nodes::new(3);
    let (here, faults) = nodes.process();
    let (there, to_there) = nodes.process();
    // The other reader has nodes 1 and 2.
    to_there[2].add(down());
    let other = there.rw_lock("job").read().await.expect("two of three");
    let page = here.rw_lock("job").read().await.expect("granted");
    to_there.iter().for_each(|node| node.add(down()));
    nodes.0[1].restart();
    faults[1].reconnect();
    settle().await;
    assert_eq!(sides(&nodes).await, [(2, 0), (1, 0), (1, 0)], "node 2 has forgotten the other");
    let Ok(Upgraded::Write(_)) = page.try_upgrade().await else { return };
    assert!(other.check().is_err(), "a reader and a writer at once");
}

/// What the first changes of the mode meet at each node, while two rivals want to read and to write all the time.
fn run(up: [Fate; 3], back: [Fate; 3]) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let label = (up, back);
        let nodes: Vec<MemoryStore> = (0..3).map(|_| MemoryStore::new()).collect();
        let (own, rival): (Vec<_>, Vec<_>) =
            nodes.iter().map(|node| (Fated::of(node.clone()), Fated::of(node.clone()))).unzip();
        let leases = process(&own);
        let meet =
            |fates: [Fate; 3]| own.iter().zip(fates).for_each(|(node, fate)| node.meet(fate));
        let writes: RefCell<Option<WriteLease>> = RefCell::default();
        let reads: RefCell<Option<ReadLease>> = RefCell::default();
        let believes = |lease: &RefCell<Option<WriteLease>>| {
            lease.borrow().as_ref().is_some_and(|edit| edit.check().is_ok())
        };
        let life = async {
            let mut page = leases.rw_lock("job").read().await.expect("granted");
            for _ in 0..2 {
                meet(up);
                let edit = match page.try_upgrade().await {
                    Err(_) => break,
                    Ok(Upgraded::Read(still)) => {
                        page = still;
                        sleep(TTL / 2).await;
                        continue;
                    }
                    Ok(Upgraded::Write(edit)) => edit,
                };
                *writes.borrow_mut() = Some(edit);
                sleep(TTL / 2).await;
                let Some(edit) = writes.borrow_mut().take() else { break };
                if edit.check().is_err() {
                    break;
                }
                meet(back);
                match edit.downgrade().await {
                    Ok(next) => page = next,
                    Err(_) => return,
                }
                *reads.borrow_mut() = Some(page);
                sleep(TTL / 2).await;
                match reads.borrow_mut().take() {
                    Some(next) => page = next,
                    None => break,
                }
            }
        };
        let others = process(&rival);
        let rivalry = async {
            let start = Instant::now();
            while start.elapsed() < TTL * 4 {
                if let Ok(Some(other)) = others.rw_lock("job").try_read().await {
                    assert!(!believes(&writes), "a reader beside the writer: {label:?}");
                    drop(other);
                }
                sleep(Duration::from_millis(61)).await;
                if let Ok(Some(other)) = others.rw_lock("job").try_write().await {
                    assert!(!believes(&writes), "two writers: {label:?}");
                    let page = reads.borrow().as_ref().is_some_and(|page| page.check().is_ok());
                    assert!(!page, "a writer beside the reader: {label:?}");
                    drop(other);
                }
                sleep(Duration::from_millis(61)).await;
            }
        };
        tokio::join!(life, rivalry);
        sleep(TTL * 2).await;
        for node in &nodes {
            assert!(node.is_empty(), "left behind: {label:?}");
        }
        let again = process(&rival).rw_lock("job").try_write().await;
        assert!(matches!(again, Ok(Some(_))), "{again:?}: {label:?}");
    });
}

fn triples() -> Vec<[Fate; 3]> {
    let each = || FATES.into_iter();
    each().flat_map(|a| each().flat_map(move |b| each().map(move |c| [a, b, c]))).collect()
}

fn whatever_becomes_of_both_changes(part: usize) {
    for (at, up) in triples().into_iter().enumerate() {
        for (number, back) in triples().into_iter().enumerate() {
            // A part of the 4096: the nodes are alike.
            if (at + 3 * number) % 16 == 0 && at % 2 == part {
                run(up, back);
            }
        }
    }
}

#[test]
fn whatever_becomes_of_both_changes_1() {
    whatever_becomes_of_both_changes(0);
}

#[test]
fn whatever_becomes_of_both_changes_2() {
    whatever_becomes_of_both_changes(1);
}
