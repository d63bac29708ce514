//! Fencing tokens on a server that has forgotten writes, and what guards make of them.

use fred::clients::Client;
use fred::interfaces::{ClientLike, LuaInterface};
use fred::types::Builder as FredBuilder;
use fred::types::config::Config;
use kit::{Sentinels, Server, within};
use leasehold::guard::{Guard, STALE, Script};
use leasehold::{LeaseManager, Upgraded};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);
/// So long that no reader that a server has brought back expires in a test.
const TTL: Duration = Duration::from_secs(120);

async fn connect(url: &str) -> LeaseManager {
    LeaseManager::builder().ttl(TTL).connect(url).await.expect("a manager")
}

/// A server that has nothing to do with the locks, where the data is.
struct Resource {
    _server: Server,
    client: Client,
    script: Script,
}

impl Resource {
    async fn start() -> Self {
        let server = Server::start();
        let config = Config::from_url(&server.url()).expect("a good URL");
        let client = FredBuilder::from_config(config).build().expect("a client");
        client.init().await.expect("a server");
        let script = Script::new("return redis.call('SET', KEYS[1], ARGV[1])").expect("a script");
        Self { _server: server, client, script }
    }

    /// Reads by a script like any other, behind the guard. Returns `None` if it was refused.
    async fn read(&self, guard: Guard) -> Option<String> {
        let script = Script::new("return redis.call('GET', KEYS[1]) or ''").expect("a script");
        let (keys, args) = guard.with(["data"], Vec::<String>::new());
        match self.client.eval(script.text(), keys, args).await {
            Ok(value) => Some(value),
            Err(error) => {
                assert!(error.details().starts_with(STALE), "{error}");
                None
            }
        }
    }

    /// Returns whether the write was accepted.
    async fn write(&self, guard: Guard) -> bool {
        let (keys, args) = guard.with(["data"], ["1"]);
        match self.client.eval::<(), _, _, _>(self.script.text(), keys, args).await {
            Ok(()) => true,
            Err(error) => {
                assert!(error.details().starts_with(STALE), "{error}");
                false
            }
        }
    }
}

#[tokio::test]
async fn reader_beside_one_a_failover_brought_back_has_a_larger_token() {
    let all = tokio::task::spawn_blocking(Sentinels::start_to_cut).await.expect("sentinels");
    let resource = Resource::start().await;
    let (here, there) = (connect(&all.url()).await, connect(&all.url()).await);
    let ghost = here.rw_lock("page").read().await.expect("a lease");
    // WAIT counts the replicas that have what its own connection has written, and so all before it.
    let mut connection = all.primary().connection();
    connection.command(&["SET", "after", "1"]);
    assert_eq!(connection.command(&["WAIT", "2", "20000"]).int(), 2);
    all.cut_replicas();
    ghost.unlock().await.expect("a release");
    let edit = here.rw_lock("page").write().await.expect("a lease");
    let old = all.primary_port();
    all.primary().kill();
    let all = tokio::task::spawn_blocking(move || {
        all.failed_over(old);
        all
    });
    let all = all.await.expect("a failover");
    let readers: Vec<String> = all
        .primary()
        .command(&["HKEYS", "page"])
        .list()
        .into_iter()
        .map(kit::Reply::text)
        .collect();
    assert_eq!(readers.len(), 2, "the reader that left is back: {readers:?}");

    let page = within(LONG, there.rw_lock("page").read()).await.expect("a lease");
    assert!(page.fence() > edit.fence(), "{:?} after {:?}", page.fence(), edit.fence());
    assert!(resource.write(page.fence_guard("data").expect("a token")).await);
    assert!(!resource.write(edit.fence_guard("data").expect("a token")).await, "a late write");
    page.unlock().await.expect("a release");
}

#[tokio::test]
async fn readers_after_a_restart_from_an_old_file_have_larger_tokens() {
    let server = Server::start();
    let resource = Resource::start().await;
    let here = connect(&server.url()).await;
    let ghost = here.rw_lock("page").read().await.expect("a lease");
    server.command(&["SAVE"]);
    ghost.unlock().await.expect("a release");
    let mut last = here.rw_lock("page").write().await.expect("a lease").fence();
    let edit = here.rw_lock("page").write().await.expect("a lease");
    assert!(edit.fence() > last);
    last = edit.fence();
    assert!(resource.write(edit.fence_guard("data").expect("a token")).await);
    server.restart();
    assert_eq!(server.command(&["HLEN", "page"]).int(), 2, "the reader that left is back");

    // Of processes of their own: readers of one process share a hold, and its token.
    let mut held = Vec::new();
    for _ in 0..3 {
        let there = connect(&server.url()).await;
        let page = there.rw_lock("page").read().await.expect("a lease");
        assert!(page.fence() > last, "{:?} after {last:?}", page.fence());
        last = page.fence();
        assert!(resource.write(page.fence_guard("data").expect("a token")).await);
        held.push((there, page));
    }
    assert!(!resource.write(edit.fence_guard("data").expect("a token")).await, "a late write");
}

#[tokio::test]
async fn readers_write_in_any_order_and_no_writer_before_them() {
    let server = Server::start();
    let resource = Resource::start().await;
    let managers = [connect(&server.url()).await, connect(&server.url()).await];
    let guard = |lease: &leasehold::Lease| lease.fence_guard("data").expect("a token");
    let before = managers[0].rw_lock("page").write().await.expect("a lease");
    assert!(resource.write(guard(&before)).await);
    let late = guard(&before);
    before.unlock().await.expect("a release");

    let one = managers[0].rw_lock("page").read().await.expect("a lease");
    let two = managers[1].rw_lock("page").read().await.expect("a lease");
    let beside = managers[0].rw_lock("page").read().await.expect("a lease");
    assert_eq!(one.fence(), beside.fence(), "they share a hold");
    assert!(two.fence() > one.fence());
    for lease in [&two, &one, &beside, &two, &one] {
        assert!(resource.write(guard(lease)).await);
    }
    assert!(!resource.write(late).await, "of a writer before the readers");
    let (ones, twos) = (guard(&one), guard(&two));
    beside.unlock().await.expect("a release");
    two.unlock().await.expect("a release");

    let Upgraded::Write(edit) = one.try_upgrade().await.expect("an answer") else {
        panic!("alone")
    };
    assert!(resource.write(twos.clone()).await, "no writer has written since");
    assert!(resource.write(guard(&edit)).await);
    for reader in [ones, twos] {
        assert!(!resource.write(reader).await, "of a reader before the writer");
    }
    let writer = guard(&edit);
    let edited = edit.fence();
    let page = edit.downgrade().await.expect("a lease");
    assert!(page.fence() > edited);
    assert!(resource.write(writer.clone()).await);
    assert!(resource.write(guard(&page)).await);
    assert!(!resource.write(writer).await, "the reader that it became has written");
}

/// Between the first read of the new holder and its first write, a late write would be lost or built upon.
#[tokio::test]
async fn read_behind_the_guard_leaves_no_gap_before_the_first_write() {
    let server = Server::start();
    let resource = Resource::start().await;
    let leases = connect(&server.url()).await;
    let guard = |lease: &leasehold::Lease| lease.fence_guard("data").expect("a token");
    for is_guarded in [false, true] {
        let old = leases.lock("stock").lock().await.expect("a lease");
        let late = guard(&old);
        drop(old);
        let new = leases.lock("stock").lock().await.expect("a lease");
        if is_guarded {
            assert!(resource.read(guard(&new)).await.is_some());
        }
        // The gap that the guard of a write alone leaves.
        assert_eq!(resource.write(late.clone()).await, !is_guarded);
        assert_eq!(resource.read(late).await.is_some(), !is_guarded);
        assert!(resource.write(guard(&new)).await);
        new.unlock().await.expect("a release");
    }
}

#[tokio::test]
async fn reads_of_readers_refuse_late_writers_and_no_reader() {
    let server = Server::start();
    let resource = Resource::start().await;
    let managers = [connect(&server.url()).await, connect(&server.url()).await];
    let guard = |lease: &leasehold::Lease| lease.fence_guard("data").expect("a token");
    let before = managers[0].rw_lock("page").write().await.expect("a lease");
    let late = guard(&before);
    before.unlock().await.expect("a release");
    let one = managers[0].rw_lock("page").read().await.expect("a lease");
    let two = managers[1].rw_lock("page").read().await.expect("a lease");
    assert!(two.fence() > one.fence());
    for lease in [&two, &one, &two] {
        assert!(resource.read(guard(lease)).await.is_some());
    }
    assert!(!resource.write(late).await, "of a writer before the readers");
    let (ones, twos) = (guard(&one), guard(&two));
    one.unlock().await.expect("a release");
    two.unlock().await.expect("a release");
    let edit = managers[0].rw_lock("page").write().await.expect("a lease");
    assert!(resource.read(guard(&edit)).await.is_some());
    for reader in [ones, twos] {
        assert!(resource.read(reader).await.is_none(), "of a reader before the writer");
    }
}

/// A reply that is lost: the same grant again.
#[tokio::test]
async fn reader_that_is_granted_again_keeps_its_token() {
    use leasehold::store::{Acquire, Acquired, Fencing, HolderId, Mode, Name, Target};
    let server = Server::start();
    let store = leasehold::testing::redis_store(&server.url(), LONG).await.expect("a store");
    let name = Name::new("page").expect("a good name");
    let manager = uuid::Uuid::new_v4();
    let acquire = async |number: u64| {
        let target = Target::new(name.clone(), Mode::Read);
        let request = Acquire::new(target, HolderId::new(manager, number), TTL, LONG);
        let fencing = Fencing::new(1, Some(TTL * 2));
        match store.acquire(request.with_fencing(Some(fencing))).await.expect("an answer") {
            Acquired::Granted { fence, .. } => fence.expect("a token"),
            other => panic!("{other:?}"),
        }
    };
    let (one, two) = (acquire(1).await, acquire(2).await);
    assert!(two > one);
    assert_eq!((acquire(1).await, acquire(2).await), (one, two));
    // An older client keeps no token there, and neither does a renewal that makes the key again.
    let key = format!("{{page}}:{manager}:1:rwlock_timeout:1");
    server.command(&["SET", &key, "1", "PX", "60000"]);
    let again = acquire(1).await;
    assert!(again > two);
    assert_eq!(server.command(&["GET", &key]).text(), again.to_string());
    assert_eq!(acquire(1).await, again);
}
