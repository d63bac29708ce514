//! Drives the example over real HTTP: two replicas, of which one is killed, on a server that is stopped for a while.

use leasehold_services::{LONG, Process, Redis, Result, http};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// That of the service.
const TTL: Duration = Duration::from_secs(2);

struct Replica {
    process: Process,
    address: String,
}

impl Replica {
    async fn start(redis: &Redis) -> Result<Self> {
        let program = env!("CARGO_BIN_EXE_axum_service");
        let mut process = Process::start(program, redis, &["serve", "127.0.0.1:0"])?;
        let address = process.line("listens").await?;
        Ok(Self { process, address })
    }

    async fn leads(&mut self) -> Result<u64> {
        Ok(self.process.line("leads").await?.parse()?)
    }

    async fn price(&self, order: u32) -> Result<(u16, String)> {
        http(&self.address, "POST", &format!("/orders/{order}/price")).await
    }

    async fn status(&self, path: &str) -> Result<u16> {
        Ok(http(&self.address, "GET", path).await?.0)
    }

    /// Waits until it has read that it leads.
    async fn until_it_is_known(&self) -> Result {
        let start = Instant::now();
        while !http(&self.address, "GET", "/leader").await?.1.contains(&self.address) {
            assert!(start.elapsed() < LONG, "it never reads who leads");
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Waits until a path has this status, and returns how long that took.
    async fn until(&self, path: &str, status: u16) -> Result<Duration> {
        let start = Instant::now();
        while self.status(path).await? != status {
            assert!(start.elapsed() < LONG, "{path} never answers {status}");
            sleep(Duration::from_millis(50)).await;
        }
        Ok(start.elapsed())
    }
}

fn fence(text: &str) -> u64 {
    let fence = text.trim().rsplit(' ').next().and_then(|fence| fence.parse().ok());
    fence.unwrap_or_else(|| panic!("no fence in {text:?}"))
}

#[tokio::test]
async fn order_is_priced_by_one_replica_at_a_time() -> Result {
    let redis = Redis::start().await?;
    let (one, other) = (Replica::start(&redis).await?, Replica::start(&redis).await?);
    let start = Instant::now();
    let (a, b) = tokio::try_join!(one.price(42), other.price(42))?;
    assert_eq!((a.0, b.0), (200, 200), "{a:?} {b:?}");
    assert!(start.elapsed() >= Duration::from_millis(200), "{a:?} beside {b:?}");
    assert_ne!(fence(&a.1), fence(&b.1));
    // One waits at most a second: of twenty, not all have their turn.
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let address = one.address.clone();
        requests.spawn(async move { http(&address, "POST", "/orders/7/price").await });
    }
    let (mut priced, mut busy) = (Vec::new(), 0);
    while let Some(answer) = requests.join_next().await {
        match answer?? {
            (200, text) => priced.push(fence(&text)),
            (409, text) => busy += usize::from(text.contains("order:7 is being priced")),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((priced.len() + busy, priced.is_empty(), busy > 0), (20, false, true));
    priced.sort_unstable();
    priced.dedup();
    assert_eq!(priced.len() + busy, 20, "each has a fence of its own");
    // Such a name is no order, and reaches no other lock.
    assert_eq!(http(&one.address, "POST", "/orders/{/price").await?.0, 400);
    for spelling in ["007", "+7", "%37"] {
        let path = format!("/orders/{spelling}/price");
        assert_eq!(http(&one.address, "POST", &path).await?.0, 404, "{path} has another lock");
    }
    Ok(())
}

#[tokio::test]
async fn killed_replica_is_replaced_within_the_ttl_and_serves() -> Result {
    let redis = Redis::start().await?;
    let mut leader = Replica::start(&redis).await?;
    let mut term = leader.leads().await?;
    let mut best = Duration::MAX;
    // A machine that is busy may be late, but not each time.
    for _ in 0..3 {
        let mut next = Replica::start(&redis).await?;
        let expected = format!("{} leads; 0 ticks here\n", leader.address);
        let start = Instant::now();
        while http(&next.address, "GET", "/leader").await?.1 != expected {
            assert!(start.elapsed() < LONG, "it does not learn who leads");
            sleep(Duration::from_millis(20)).await;
        }
        // It is killed while it works on an order.
        let address = leader.address.clone();
        let cut = tokio::spawn(async move { http(&address, "POST", "/orders/9/price").await });
        sleep(Duration::from_millis(50)).await;
        leader.process.kill().await?;
        let killed = Instant::now();
        let (after, took) = (next.leads().await?, killed.elapsed());
        assert!(after > term, "term {after} after {term}");
        assert!(cut.await?.is_err(), "its client sees no answer");
        let (status, text) = loop {
            match next.price(9).await? {
                (409, _) => assert!(killed.elapsed() < LONG, "the order is never free"),
                answer => break answer,
            }
        };
        assert_eq!(status, 200, "{text}");
        (leader, term, best) = (next, after, best.min(took));
        if best <= TTL + Duration::from_millis(150) {
            return Ok(());
        }
    }
    panic!("the next one led {best:?} after the kill at best");
}

#[tokio::test]
async fn replica_that_ends_leaves_nothing_to_wait_for() -> Result {
    let redis = Redis::start().await?;
    let mut first = Replica::start(&redis).await?;
    first.leads().await?;
    let mut next = Replica::start(&redis).await?;
    let address = first.address.clone();
    let last = tokio::spawn(async move { http(&address, "POST", "/orders/5/price").await });
    sleep(Duration::from_millis(30)).await;
    let asked = Instant::now();
    let end = tokio::spawn(first.process.terminate());
    next.leads().await?;
    assert!(asked.elapsed() < TTL, "it has resigned: {:?}", asked.elapsed());
    assert_eq!(last.await??.0, 200, "the last request was served");
    assert_eq!(end.await??.last().map(String::as_str), Some("closed"));
    assert_eq!(next.price(5).await?.0, 200);
    Ok(())
}

#[tokio::test]
async fn store_that_is_away_is_no_reason_for_a_restart() -> Result {
    let redis = Redis::start().await?;
    let mut replica = Replica::start(&redis).await?;
    replica.leads().await?;
    assert_eq!((replica.status("/livez").await?, replica.status("/readyz").await?), (200, 200));
    replica.until_it_is_known().await?;
    redis.signal("STOP").await?;
    replica.until("/readyz", 503).await?;
    assert_eq!(replica.status("/livez").await?, 200);
    let (_, leader) = http(&replica.address, "GET", "/leader").await?;
    assert!(leader.contains(" ago; "), "it claims to know who leads: {leader}");
    assert_eq!(replica.price(1).await?.0, 503);
    redis.signal("CONT").await?;
    replica.until("/readyz", 200).await?;
    assert!(replica.leads().await? > 0, "it leads again by itself");
    assert_eq!(replica.price(1).await?.0, 200);
    let (_, metrics) = http(&replica.address, "GET", "/metrics").await?;
    for line in ["leasehold_hold_duration", "leasehold_losses"] {
        assert!(metrics.contains(line), "no {line} in {metrics}");
    }
    Ok(())
}
