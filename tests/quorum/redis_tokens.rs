//! Fencing tokens on a quorum of real servers, which restart without their keys, are flushed, away, or ahead of the others.

use super::redis::{LONG, Servers, T, connect, lock};
use kit::look::fence_key;
use kit::{Mode, Proxy, Server, eventually};
use leasehold::LeaseManager;
use leasehold::store::{
    Acquire, Acquired, Fencing, HolderId, Name, Release, Reservation, Reserve, Store, Target,
    TokenVerdict,
};
use std::time::Duration;
use uuid::Uuid;

/// The tokens of grants, one after the other.
#[derive(Default)]
struct Tokens(Vec<u64>);

impl Tokens {
    /// Locks and unlocks. The token must be larger than the last one.
    async fn grow(&mut self, leases: &LeaseManager) -> u64 {
        let lease = lock(leases, "job").await;
        let token = lease.fence().expect("a token");
        assert!(self.0.last().is_none_or(|last| token > *last), "{token} after {:?}", self.0);
        self.0.push(token);
        let _ = lease.unlock().await;
        token
    }
}

fn last(server: &Server) -> u64 {
    server.command(&["GET", &fence_key("job")]).text().parse().expect("a token")
}

fn proxies(servers: &Servers) -> (Vec<Proxy>, String) {
    let proxies: Vec<Proxy> = servers.0.iter().map(|server| Proxy::start(server.port())).collect();
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let urls = urls.join(",");
    (proxies, urls)
}

#[tokio::test]
async fn tokens_grow_while_one_node_after_the_other_is_away() {
    let servers = Servers::start(3);
    let (proxies, urls) = proxies(&servers);
    let managers = [connect(&urls).await, connect(&urls).await, connect(&servers.urls()).await];
    let mut tokens = Tokens::default();
    for round in 0..12 {
        proxies[round % 3].set(Mode::Refuse);
        for leases in &managers {
            tokens.grow(leases).await;
        }
        proxies[round % 3].set(Mode::Pass);
    }
    eventually(LONG, || (0..3).all(|node| !servers.holds(node, "job"))).await;
}

/// Each of them forgets its last token in turn, and the clocks are those of one machine.
#[tokio::test]
async fn tokens_grow_across_restarts_that_forget() {
    let servers = Servers::start(3);
    let leases = connect(&servers.urls()).await;
    let other = connect(&servers.urls()).await;
    let mut tokens = Tokens::default();
    tokens.grow(&leases).await;
    for node in 0..3 {
        servers.0[node].kill();
        servers.0[node].wipe();
        servers.0[node].restart();
        let restarted = std::time::Instant::now();
        while restarted.elapsed() < T + Duration::from_secs(2) {
            tokens.grow(&leases).await;
            tokens.grow(&other).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    assert!(tokens.0.len() > 30, "{}", tokens.0.len());
}

/// As with a clock that is a second ahead: the token of one node is.
#[tokio::test]
async fn tokens_grow_past_a_node_that_is_ahead() {
    let servers = Servers::start(3);
    let (proxies, urls) = proxies(&servers);
    let leases = connect(&urls).await;
    let mut tokens = Tokens::default();
    let ahead = tokens.grow(&leases).await + 1_000_000;
    servers.0[0].command(&["SET", &fence_key("job"), &ahead.to_string(), "PX", "60000"]);
    proxies[2].set(Mode::Refuse);
    assert!(tokens.grow(&leases).await > ahead);
    proxies[2].set(Mode::Pass);
    proxies[0].set(Mode::Refuse);
    assert!(tokens.grow(&leases).await > ahead);
}

/// One node whose tokens are at their end keeps that to itself.
#[tokio::test]
async fn node_whose_tokens_are_at_their_end_does_not_count() {
    let servers = Servers::start(3);
    let leases = connect(&servers.urls()).await;
    let mut tokens = Tokens::default();
    tokens.grow(&leases).await;
    for last in ["9007199252999990", "9007199253000000"] {
        servers.0[0].command(&["SET", &fence_key("job"), last]);
        for _ in 0..5 {
            assert!(tokens.grow(&leases).await < 9_007_199_000_000_000, "{last}");
        }
    }
}

/// The other nodes know the last token, and the clocks are those of one machine.
#[tokio::test]
async fn tokens_grow_across_a_flush_of_one_node() {
    let servers = Servers::start(3);
    let leases = connect(&servers.urls()).await;
    let mut tokens = Tokens::default();
    for round in 0..6 {
        tokens.grow(&leases).await;
        servers.0[round % 3].command(&["FLUSHALL"]);
        tokens.grow(&leases).await;
    }
}

#[tokio::test]
async fn handed_off_hold_has_a_token_that_the_grant_reserved() {
    let servers = Servers::start(3);
    let leases = connect(&servers.urls()).await;
    let start = std::time::Instant::now();
    // A chain ends by itself after T/10, which a busy machine may need for two steps.
    loop {
        assert!(start.elapsed() < LONG, "never handed off");
        let first = lock(&leases, "job").await;
        let token = first.fence().expect("a token");
        let waiter = leases.clone();
        let next = tokio::spawn(async move { lock(&waiter, "job").await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        first.unlock().await.expect("held");
        let next = next.await.expect("no panic");
        let stored = servers.0.iter().filter(|server| last(server) == token + 63).count();
        let taken = next.fence().expect("a token");
        next.unlock().await.expect("held");
        assert!(taken > token);
        if taken == token + 1 {
            assert!(stored >= 2, "a majority has stored the block");
            break;
        }
    }
}

/// With more hand-offs than tokens: the chain ends with them, and the next grant has larger ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chain_longer_than_the_block_asks_the_nodes_again() {
    let servers = Servers::start(3);
    let leases = LeaseManager::builder().ttl(Duration::from_secs(30)).max_local_handoffs(1000);
    let leases = kit::connect_in_the_end(leases, &servers.urls()).await;
    // Servers count once they are old enough.
    let short = connect(&servers.urls()).await;
    lock(&short, "warm").await.unlock().await.expect("held");
    eventually(Duration::from_secs(60), || {
        let up = |server: &Server| {
            let info = server.command(&["INFO", "server"]).text();
            let line = info.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:"));
            line.and_then(|up| up.trim().parse::<u64>().ok()).is_some_and(|up| up > 32)
        };
        servers.0.iter().all(up)
    })
    .await;
    let first = lock(&leases, "job").await;
    let (told, mut tokens) = tokio::sync::mpsc::unbounded_channel();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let (leases, told) = (leases.clone(), told.clone());
        waiters.spawn(async move {
            let lease = lock(&leases, "job").await;
            told.send(lease.fence().expect("a token")).expect("the test listens");
            lease.unlock().await.expect("held");
        });
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut last = first.fence().expect("a token");
    first.unlock().await.expect("held");
    waiters.join_all().await;
    let mut chain = 1;
    let mut longest = 1;
    for _ in 0..200 {
        let token = tokens.recv().await.expect("two hundred");
        assert!(token > last, "{token} after {last}");
        chain = if token == last + 1 { chain + 1 } else { 1 };
        (longest, last) = (longest.max(chain), token);
    }
    assert!((2..=64).contains(&longest), "{longest}");
}

#[tokio::test]
async fn readers_of_two_managers_have_tokens_between_two_writers() {
    let servers = Servers::start(3);
    let (here, there) = (connect(&servers.urls()).await, connect(&servers.urls()).await);
    lock(&here, "warm").await.unlock().await.expect("all are old enough");
    let mut last = 0;
    for round in 0..10 {
        let (mut one, mut two) = (here.rw_lock("page"), there.rw_lock("page"));
        let (one, two) = tokio::join!(one.read(), two.read());
        let (one, two) = (one.expect("no writer"), two.expect("no writer"));
        let (a, b) = (one.fence().expect("a token"), two.fence().expect("a token"));
        assert!(a.min(b) > last, "round {round}: {a} {b} after {last}");
        one.unlock().await.expect("held");
        two.unlock().await.expect("held");
        let edit = there.rw_lock("page").write().await.expect("free");
        last = edit.fence().expect("a token");
        assert!(last > a.max(b));
        let page = edit.downgrade().await.expect("held");
        assert!(page.fence().expect("a token") > last);
        last = page.fence().expect("a token");
        page.unlock().await.expect("held");
    }
}

/// What a node does with requests that come twice, late, or for a hold that is gone.
#[tokio::test]
async fn node_stores_only_larger_tokens_of_holds_that_are_there() {
    let server = Server::start();
    let store = leasehold::testing::redis_store(&server.url(), LONG).await.expect("it is there");
    let target = || Target::exclusive(Name::new("job").expect("a name"));
    let [here, there] = [1, 2].map(|number| HolderId::new(Uuid::new_v4(), number));
    let fencing = Fencing::new(8, Some(Duration::from_secs(60)));
    let ask = async |holder| {
        let request = Acquire::new(target(), holder, LONG, T);
        let verdict = store.acquire(request.with_fencing(Some(Fencing::proposal()))).await;
        match verdict.expect("an answer") {
            Acquired::Granted { fence, .. } => fence.expect("a proposal"),
            other => panic!("{other:?}"),
        }
    };
    let reserve = async |holder, first| {
        let items = vec![Reservation::new(target(), holder, first, fencing)];
        let reserved = store.reserve(Reserve::new(items, T)).await.expect("an answer");
        assert!(reserved.uptime.age.is_some() && reserved.uptime.server.is_some());
        reserved.verdicts.into_iter().next().expect("one").expect("no error")
    };
    let first = ask(here).await;
    assert_eq!(server.command(&["EXISTS", &fence_key("job")]).int(), 0, "nothing is written");
    assert!(ask(here).await >= first, "a proposal for the same hold");
    assert_eq!(reserve(here, first).await, TokenVerdict::Stored);
    let kept = server.command(&["PTTL", &fence_key("job")]).int();
    assert!((1..=60_100).contains(&kept), "{kept}");
    for late in [first, first - 1, first + 7] {
        assert_eq!(reserve(here, late).await, TokenVerdict::outrun(first + 7), "{late}");
    }
    assert_eq!(last(&server), first + 7);
    assert!(matches!(reserve(there, first + 100).await, TokenVerdict::NotYours(_)));
    assert!(ask(here).await > first + 7);
    store.release(Release::new(target(), here, 0, T)).await.expect("held");
    assert!(matches!(reserve(here, first + 100).await, TokenVerdict::NotYours(_)));
    assert_eq!(last(&server), first + 7, "it comes after the release");
    // A value that is not ours stays.
    server.command(&["SET", &fence_key("job"), "text"]);
    let request = Acquire::new(target(), there, LONG, T).with_fencing(Some(Fencing::proposal()));
    store.acquire(request).await.expect_err("no number");
    assert_eq!(server.command(&["GET", &fence_key("job")]).text(), "text");
    assert_eq!(server.command(&["EXISTS", "job"]).int(), 0);
}
