//! What `redis-cli` shows of leases: the section of that name in the guide.

use kit::{Reply, Server, eventually, within};
use leasehold::{LeaseManager, Loss};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const T: Duration = Duration::from_secs(6);

async fn connect(server: &Server) -> LeaseManager {
    LeaseManager::builder().ttl(T).prefix("shop:").connect(&server.url()).await.expect("a manager")
}

/// The keys that `SCAN 0 MATCH 'shop:*' COUNT 1000 TYPE ..` returns.
fn scan(server: &Server, kind: &str) -> Vec<String> {
    let scan = ["SCAN", "0", "MATCH", "shop:*", "COUNT", "1000", "TYPE", kind];
    let keys = server.command(&scan).list().remove(1).list();
    let mut keys: Vec<_> = keys.into_iter().map(Reply::text).collect();
    keys.sort();
    keys
}

#[tokio::test]
async fn locks_are_seen_as_the_guide_says() {
    let server = Server::start();
    let (leases, other) = (connect(&server).await, connect(&server).await);
    let lease = leases.lock("orders:42").lock().await.expect("a lease");
    let _page = leases.rw_lock("prices").read().await.expect("a lease");
    let _permit = leases.semaphore("api", 3).acquire().await.expect("a permit");
    let mut fair = other.fair_lock("orders:42");
    let mut waits = Box::pin(fair.lock());
    let channel = "redisson_lock__channel:{shop:orders:42}";
    let waiters = || server.command(&["PUBSUB", "NUMSUB", channel]).list()[1].int();
    tokio::select! {
        _ = &mut waits => panic!("it is held"),
        () = eventually(LONG, || waiters() == 1) => {}
    }

    let locks: Vec<_> = scan(&server, "hash");
    let locks: Vec<_> = locks.iter().filter(|key| !key.starts_with("shop:leasehold")).collect();
    assert_eq!(locks, ["shop:orders:42", "shop:prices"]);
    assert_eq!(scan(&server, "string"), ["shop:api"]);
    assert_eq!(server.command(&["GET", "shop:api"]).int(), 2);
    assert_eq!(server.command(&["ZCARD", "{shop:api}:timeout"]).int(), 1);
    let fields = server.command(&["HGETALL", "shop:orders:42"]).list();
    let fields: Vec<_> = fields.into_iter().map(Reply::text).collect();
    assert_eq!(fields, [lease.holder_id().to_string(), "1".to_owned()]);
    assert_eq!(server.command(&["HGET", "shop:prices", "mode"]).text(), "read");
    let left = server.command(&["PTTL", "shop:orders:42"]).int();
    assert!((1..=T.as_millis() as i64).contains(&left), "{left} ms");
    let fence = server.command(&["GET", "redisson_lock_token:{shop:orders:42}"]).int();
    assert!(fence as u64 >= lease.fence().expect("a token"));

    // By hand, without a word to anyone: the waiter finds out by the clock, and the holder at its next renewal.
    assert_eq!(server.command(&["DEL", "shop:orders:42"]).int(), 1);
    let next = within(LONG, waits).await.expect("a lease");
    assert!(next.fence() > lease.fence());
    assert_eq!(within(LONG, lease.lost()).await, Loss::Taken);
}
