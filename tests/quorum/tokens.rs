//! Fencing tokens on a quorum of memory stores: nodes fail, are slow, forget, or are ahead of the others.

use super::*;
use leasehold::Upgraded;
use leasehold::store::{
    Acquire, Acquired, Fencing, HolderId, Mode, Release, Reservation, Reserve, Target, TokenVerdict,
};
use leasehold::testing::Call;
use std::cell::Cell;
use uuid::Uuid;

fn fencing() -> Fencing {
    Fencing::new(10, Some(2 * T))
}

fn holder() -> HolderId {
    HolderId::new(Uuid::new_v4(), 1)
}

fn acquire(holder: HolderId, fencing: Fencing) -> Acquire {
    let target = Target::exclusive(name("job"));
    Acquire::new(target, holder, T, T / 10).with_fencing(Some(fencing))
}

fn fence(verdict: Result<Acquired, Error>) -> u64 {
    match verdict {
        Ok(Acquired::Granted { fence, .. }) => fence.expect("a token"),
        other => panic!("{other:?}"),
    }
}

/// Asks one node to reserve a block that begins at `first`.
async fn reserve(node: &MemoryStore, holder: HolderId, first: u64) -> TokenVerdict {
    let item = Reservation::new(Target::exclusive(name("job")), holder, first, fencing());
    let reserved = node.reserve(Reserve::new(vec![item], T)).await.expect("memory can");
    reserved.verdicts.into_iter().next().expect("one").expect("no error")
}

/// Grants the name at one node alone, with a token that is ahead of the clock, and releases it. Returns the last token.
async fn run_ahead(node: &MemoryStore, by: u64) -> u64 {
    let holder = holder();
    let first = fence(node.acquire(acquire(holder, Fencing::proposal())).await) + by;
    assert_eq!(reserve(node, holder, first).await, TokenVerdict::Stored);
    let release = Release::new(Target::exclusive(name("job")), holder, 0, T);
    node.release(release).await.expect("held");
    first + 9
}

#[tokio::test(start_paused = true)]
async fn node_stores_only_a_token_that_is_larger() {
    let node = MemoryStore::new();
    let (here, there) = (holder(), holder());
    let first = fence(node.acquire(acquire(here, Fencing::proposal())).await);
    let again = fence(node.acquire(acquire(here, Fencing::proposal())).await);
    assert_eq!(first, again, "a proposal reserves nothing");
    assert_eq!(reserve(&node, here, first).await, TokenVerdict::Stored);
    // A second copy, and an older token.
    for late in [first, first - 1, first + 9] {
        let last = first + 9;
        assert_eq!(reserve(&node, here, late).await, TokenVerdict::outrun(last), "{late}");
    }
    assert!(matches!(reserve(&node, there, first + 10).await, TokenVerdict::NotYours(_)));
    assert_eq!(fence(node.acquire(acquire(here, Fencing::proposal())).await), first + 10);
}

#[tokio::test(start_paused = true)]
async fn tokens_grow_over_the_grants_of_several_processes() {
    for count in [3, 4, 5] {
        let nodes = Nodes::new(count);
        let processes = [nodes.process(), nodes.process(), nodes.process()];
        let last = Cell::new(0);
        for round in 0..30 {
            let (leases, faults) = &processes[round % 3];
            // Each time another node is away.
            faults.iter().for_each(Faults::heal);
            faults[round % count].add(down());
            let lease = leases.lock("job").lock().await.expect("a majority");
            let fence = lease.fence().expect("a token");
            assert!(fence > last.replace(fence), "{count} nodes, grant {round}: {fence}");
            lease.unlock().await.expect("held");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn token_is_larger_than_that_of_any_node_of_the_majority() {
    let nodes = Nodes::new(3);
    let ahead = run_ahead(&nodes.0[0], 1_000_000).await;
    let (here, faults) = nodes.process();
    faults[2].add(down());
    let lease = here.lock("job").lock().await.expect("two of three");
    let first = lease.fence().expect("a token");
    assert!(first > ahead, "{first} after {ahead}");
    lease.unlock().await.expect("held");
    // The node that was ahead is away, and the others know the token.
    let (there, faults) = nodes.process();
    faults[0].add(down());
    let lease = there.lock("job").lock().await.expect("two of three");
    assert!(lease.fence().expect("a token") > first);
}

/// The majority that is counted proposes less than the slow node knows, and one of it does not store the token.
#[tokio::test(start_paused = true)]
async fn token_that_was_outrun_is_followed_by_a_larger_one() {
    let nodes = Nodes::new(3);
    let ahead = run_ahead(&nodes.0[2], 1_000_000).await;
    let (leases, faults) = nodes.process();
    faults[2].add(Rule::new(Fault::Delay(Duration::from_millis(2))).on(Call::Acquire));
    faults[1].add(down().on(Call::Reserve));
    let lease = leases.lock("job").lock().await.expect("two of three");
    assert!(lease.fence().expect("a token") > ahead);
}

#[tokio::test(start_paused = true)]
async fn node_that_did_not_store_the_token_does_not_count() {
    for fault in [down(), Rule::new(Fault::LoseReply), Rule::new(Fault::Hang)] {
        let nodes = Nodes::new(3);
        let (leases, faults) = nodes.process();
        faults[0].add(fault.clone().on(Call::Reserve));
        let lease = leases.lock("job").lock().await.expect("two of three");
        assert!(lease.fence().is_some());
        lease.unlock().await.expect("held");
        faults[1].add(fault.clone().on(Call::Reserve));
        let error = leases.lock("job").try_lock().await.expect_err("one of three");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        faults.iter().for_each(Faults::heal);
        sleep(T).await;
        assert!(nodes.free(), "{:?}", nodes.keys());
    }
}

/// Its hold is gone when the second round comes.
#[tokio::test(start_paused = true)]
async fn node_that_has_lost_the_hold_since_does_not_count() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    let late = Duration::from_millis(10);
    for node in &faults[..2] {
        node.add(Rule::new(Fault::Delay(late)).on(Call::Reserve));
    }
    faults[2].add(down());
    let handle = leases.clone();
    let call = tokio::spawn(async move { handle.lock("job").try_lock().await });
    sleep(late / 2).await;
    assert!(nodes.0[0].delete("job"));
    let error = call.await.expect("no panic").expect_err("one of three has it");
    assert!(error.to_string().contains("no longer has"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn node_that_forgot_its_token_counts_after_the_ttl() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    leases.lock("job").lock().await.expect("free").unlock().await.expect("held");
    faults[2].add(down());
    nodes.0[1].restart();
    let error = leases.lock("job").try_lock().await.expect_err("it is too young");
    assert!(error.to_string().contains("it counts after the time to live"), "{error}");
    sleep(T + MOMENT).await;
    assert!(leases.lock("job").try_lock().await.expect("two of three").is_some());
}

/// A hold that is handed off has a token that the grant has reserved, and a chain ends with them.
#[tokio::test(start_paused = true)]
async fn chain_of_hand_offs_ends_with_the_reserved_tokens() {
    let nodes = Nodes::new(3);
    let (stores, faults) = nodes.handles();
    let quorum = Quorum::new(stores).expect("enough nodes");
    let leases = LeaseManager::builder().ttl(T).max_local_handoffs(3).build(quorum);
    let leases = leases.expect("good settings");
    let first = leases.lock("job").lock().await.expect("free");
    let mut waiters = tokio::task::JoinSet::new();
    let (told, mut tokens) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..12 {
        let (leases, told) = (leases.clone(), told.clone());
        waiters.spawn(async move {
            let lease = leases.lock("job").lock().await.expect("its turn");
            told.send(lease.fence().expect("a token")).expect("the test listens");
            lease.unlock().await.expect("held");
        });
        settle().await;
    }
    let mut last = first.fence().expect("a token");
    first.unlock().await.expect("held");
    waiters.join_all().await;
    for _ in 0..12 {
        let token = tokens.recv().await.expect("twelve");
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    // Four holders have the tokens of one grant.
    assert_eq!(faults[0].calls(Call::Reserve), 4);
}

/// They may share one. None is refused because others were quicker.
#[tokio::test(start_paused = true)]
async fn readers_that_ask_at_once_have_tokens_between_two_writers() {
    let nodes = Nodes::new(3);
    let last = Cell::new(0);
    for round in 0..20 {
        let processes: Vec<_> = (0..12).map(|_| nodes.process()).collect();
        // Their requests come to the nodes in different orders.
        for (index, (_, faults)) in processes.iter().enumerate() {
            for (node, faults) in faults.iter().enumerate() {
                let late = Duration::from_millis(((index + node + round) % 3) as u64);
                faults.add(Rule::new(Fault::Delay(late)));
            }
        }
        let mut calls = tokio::task::JoinSet::new();
        for (leases, _) in &processes {
            let leases = leases.clone();
            calls.spawn(async move {
                let page = leases.rw_lock("page").try_read().await;
                page.expect("a majority has it").expect("no writer")
            });
        }
        let pages = calls.join_all().await;
        let tokens: Vec<u64> = pages.iter().map(|page| page.fence().expect("one")).collect();
        let (least, most) = (tokens.iter().min(), tokens.iter().max());
        assert!(least > Some(&last.get()), "{tokens:?} after {}", last.get());
        for page in pages {
            page.unlock().await.expect("held");
        }
        let edit = processes[0].0.rw_lock("page").write().await.expect("free");
        last.set(edit.fence().expect("a token"));
        assert!(Some(&last.get()) > most, "{} after {tokens:?}", last.get());
        edit.unlock().await.expect("held");
        // The release reaches the third node, too.
        sleep(T / 20).await;
    }
}

#[tokio::test(start_paused = true)]
async fn change_of_the_mode_is_a_grant_with_a_larger_token() {
    let nodes = Nodes::new(3);
    let (leases, faults) = nodes.process();
    faults[1].add(down());
    let page = leases.rw_lock("page").read().await.expect("free");
    let read = page.fence().expect("a token");
    let Upgraded::Write(edit) = page.try_upgrade().await.expect("two of three") else {
        panic!("no other reads")
    };
    let wrote = edit.fence().expect("a token");
    let page = edit.downgrade().await.expect("two of three");
    let reads = page.fence().expect("a token");
    assert!(read < wrote && wrote < reads, "{read} {wrote} {reads}");
}

/// The same hold is granted again with the same token.
#[tokio::test(start_paused = true)]
async fn hold_that_is_there_keeps_its_token() {
    let nodes = Nodes::new(3);
    let quorum = Quorum::new(nodes.handles().0).expect("enough nodes");
    let holder = holder();
    let first = fence(quorum.acquire(acquire(holder, fencing())).await);
    assert_eq!(fence(quorum.acquire(acquire(holder, fencing())).await), first);
}

#[tokio::test(start_paused = true)]
async fn quorum_with_a_node_that_reserves_nothing_has_no_tokens() {
    let nodes = Nodes::new(3);
    let (mut stores, faults) = nodes.handles();
    let (store, _) = FaultyStore::new(nodes.0[0].clone());
    let can = store.capabilities().with_reserves(false);
    stores[0] = Arc::new(store.with_capabilities(can));
    let quorum = Quorum::new(stores).expect("enough nodes");
    assert!(!quorum.capabilities().fencing);
    let verdict = quorum.acquire(acquire(holder(), fencing())).await;
    assert!(matches!(verdict, Ok(Acquired::Granted { fence: None, .. })), "{verdict:?}");
    assert_eq!(faults[1].calls(Call::Reserve), 0);
}

#[tokio::test(start_paused = true)]
async fn many_grants_share_the_second_round_of_a_node() {
    let nodes = Nodes::new(3);
    let (stores, faults) = nodes.handles();
    let quorum = Quorum::new(stores).expect("enough nodes");
    faults[0].add(Rule::new(Fault::Delay(Duration::from_millis(20))).on(Call::Reserve));
    let manager = Uuid::new_v4();
    let grants = (1..=50).map(|number| {
        let target = Target::new(name(&format!("job:{number}")), Mode::Exclusive);
        let request = Acquire::new(target, HolderId::new(manager, number), T, T / 10);
        quorum.acquire(request.with_fencing(Some(fencing())))
    });
    for grant in grants.collect::<Vec<_>>() {
        fence(grant.await);
    }
    sleep(Duration::from_millis(100)).await;
    let asked = faults[0].calls(Call::Reserve);
    assert!((1..=3).contains(&asked), "{asked}");
}

#[tokio::test(start_paused = true)]
async fn leader_of_a_quorum_has_a_term_that_grows() {
    let nodes = Nodes::new(3);
    let [here, there] = [nodes.process(), nodes.process()].map(|(leases, _)| leases);
    let mut view = here.election("region").observe();
    let mut last = None;
    for (leases, value) in [(&here, "a"), (&there, "b"), (&here, "c")] {
        let mut candidate = leases.election("region").candidate(value);
        let me = candidate.campaign().await.expect("it leads");
        assert!(me.term().is_some() && me.term() > last, "{:?} after {last:?}", me.term());
        last = me.term();
        let shown = async {
            while view.current().term != last {
                view.changed().await;
            }
        };
        tokio::time::timeout(2 * T, shown).await.expect("the view has the term");
        me.resign().await.expect("it led");
    }
}
