//! The answers of the ZooKeeper store where a lock alone would not show them: late answers, answers after a lost reply, and
//! answers when other clients change its nodes.

use kit::pipe::{Pace, Pipe};
use kit::reached::Must;
use kit::relay::{Relay, Traffic, request};
use kit::trace::Trace;
use kit::within;
use kit::zookeeper::{Look, ZooKeeper, directory};
use leasehold::clock::Clock;
use leasehold::store::{
    Absence, Acquire, Acquired, Fencing, ForceRelease, HolderId, HolderInfo, Inspect, Name,
    Release, Released, RenewBatch, RenewCall, Renewal, Renewed, Store, Target, Wait, Wakeups,
};
use leasehold::testing::zookeeper_store;
use leasehold::{ErrorKind, Fate, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;
use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Permission};

/// The timeout of the session. A lease is valid for three quarters of it.
const SESSION: Duration = Duration::from_secs(4);
const LEASE: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(15);
const SESSIONS: &str = "/leasehold/sessions";
/// The kind of a request that lists a directory.
const LIST: i32 = 8;

async fn store(url: &str) -> Arc<dyn Store> {
    zookeeper_store(url, LEASE).await.expect("the server runs")
}

/// A holder id that asks for `job`.
struct Party {
    store: Arc<dyn Store>,
    token: HolderId,
}

impl Party {
    fn of(store: &Arc<dyn Store>) -> Self {
        Self { store: Arc::clone(store), token: HolderId::new(Uuid::new_v4(), 1) }
    }

    async fn at(url: &str) -> Self {
        Self::of(&store(url).await)
    }

    fn request(&self, ttl: Duration, timeout: Duration) -> Acquire {
        Acquire::new(job(), self.token, ttl, timeout).with_fencing(Some(Fencing::new(1, None)))
    }

    async fn acquire_for(&self, ttl: Duration) -> Result<Acquired> {
        self.store.acquire(self.request(ttl, LONG)).await
    }

    async fn acquire_within(&self, limit: Duration) -> Result<Acquired> {
        self.store.acquire(self.request(LEASE, limit)).await
    }

    async fn acquire(&self) -> Result<Acquired> {
        self.acquire_for(LEASE).await
    }

    async fn release(&self, count: u32) -> Released {
        let request = Release::new(job(), self.token, count, LONG);
        self.store.release(request).await.expect("an answer")
    }

    async fn renew(&self, ttl: Duration, limit: Duration) -> Result<Renewed> {
        let items = vec![Renewal::new(job(), self.token)];
        RenewCall::join(self.store.renew(RenewBatch::new(items, ttl, limit))).await
    }

    async fn subscribe(&self) -> Wakeups {
        subscribe(&*self.store).await
    }

    /// Creates a node that bears the name of this party, with another session.
    async fn forge(&self, look: &Look) {
        let path = format!("{}/h~{}~", directory("job"), self.token);
        forge(look, &path).await;
    }
}

/// Creates a node at the end of the queue. Returns its path.
async fn forge(look: &Look, path: &str) -> String {
    let open = Acls::anyone_all();
    let mode = CreateMode::Container.with_acls(open);
    look.0.mkdir(&directory("job"), &mode).await.expect("created");
    let mode = CreateMode::EphemeralSequential.with_acls(open);
    let (_, sequence) = look.0.create(path, b"", &mode).await.expect("created");
    format!("{path}{sequence}")
}

fn job() -> Target {
    Target::exclusive(Name::new("job").expect("a name"))
}

async fn subscribe(store: &dyn Store) -> Wakeups {
    let wait = Wait::new(job(), Some(HolderId::new(Uuid::new_v4(), 2)), LONG);
    store.subscribe(wait).await.expect("an answer").expect("wake-ups")
}

async fn inspect(store: &dyn Store) -> Result<Option<HolderInfo>> {
    store.inspect(Inspect::new(job(), LONG)).await.map(|inspection| inspection.into_holder())
}

async fn force(store: &dyn Store) -> Result<bool> {
    store.force_release(ForceRelease::new(job(), LONG)).await
}

#[track_caller]
fn granted(verdict: Result<Acquired>) -> (leasehold::clock::Instant, u64) {
    match verdict {
        Ok(Acquired::Granted { sent, fence: Some(fence), .. }) => (sent, fence),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn held(verdict: Result<Acquired>) {
    assert!(matches!(verdict, Ok(Acquired::Held { remaining: None, .. })), "{verdict:?}");
}

/// Returns the sessions of the nodes in the queue.
async fn owners(look: &Look) -> Vec<i64> {
    let mut owners = Vec::new();
    for node in look.nodes("job").await {
        let path = format!("{}/{node}", directory("job"));
        let stat = look.0.check_stat(&path).await.expect("an answer");
        owners.extend(stat.map(|stat| stat.ephemeral_owner));
    }
    owners
}

/// Deletes all nodes in a directory, as an operator can.
async fn clear(look: &Look, directory: &str) {
    for node in look.0.list_children(directory).await.expect("the directory exists") {
        look.0.delete(&format!("{directory}/{node}"), None).await.expect("deleted");
    }
}

#[tokio::test]
async fn listener_without_a_holder_gets_no_place_in_the_queue() {
    let server = ZooKeeper::start();
    let look = Look::at(&server.hosts()).await;
    let party = Party::at(&server.url()).await;
    granted(party.acquire().await);
    let wakeups = party.store.subscribe(Wait::new(job(), None, LONG)).await.expect("an answer");
    assert!(wakeups.is_none());
    assert_eq!(look.nodes("job").await.len(), 1);
}

#[tokio::test]
async fn requests_to_a_silent_server_end_with_the_connection() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let store = store(&relay.url()).await;
    relay.set(Traffic::Hold);
    let start = Instant::now();
    let timed = |result: Result<()>| {
        let error = result.expect_err("no answer");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        let passed = start.elapsed();
        assert!(passed >= SESSION / 8 && passed < SESSION / 2, "{passed:?}");
    };
    let all = async {
        tokio::join!(async { timed(inspect(&*store).await.map(drop)) }, async {
            timed(force(&*store).await.map(drop))
        },)
    };
    within(SESSION, all).await;
}

#[tokio::test]
async fn reconnect_is_signalled() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let store = store(&relay.url()).await;
    let reconnects = store.reconnects().expect("the store signals reconnects");
    relay.set(Traffic::Refuse);
    relay.set(Traffic::Pass);
    within(LONG, reconnects.recv()).await;
}

#[tokio::test]
async fn waiter_that_stays_is_granted_after_another_has_left() {
    let server = ZooKeeper::start();
    let (holder, waiter) = (Party::at(&server.url()).await, Party::at(&server.url()).await);
    let look = Look::at(&server.hosts()).await;
    granted(holder.acquire().await);
    let (first, mut second) = (waiter.subscribe().await, waiter.subscribe().await);
    drop(first);
    look.until_nodes("job", 2).await;
    assert_eq!(holder.release(0).await, Released::done(0));
    within(LONG, second.recv()).await;
    granted(waiter.acquire().await);
}

/// The nodes of the old session exist until the servers end it.
#[tokio::test]
async fn waiter_of_an_ended_session_queues_again_in_the_new_one() {
    let server = ZooKeeper::start();
    let look = Look::at(&server.hosts()).await;
    let waiter = Party::at(&server.url()).await;
    let mut wakeups = waiter.subscribe().await;
    within(LONG, wakeups.recv()).await;
    let old = owners(&look).await;
    let other = forge(&look, &format!("{}/w~{}~", directory("job"), Uuid::new_v4())).await;
    clear(&look, SESSIONS).await;
    // Beside the other node there is only one of the new session.
    let start = Instant::now();
    loop {
        let owners = owners(&look).await;
        if owners.len() == 2 && !owners.contains(&old[0]) {
            break;
        }
        assert!(start.elapsed() < LONG, "first {old:?}, then {owners:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    held(waiter.acquire().await);
    look.0.delete(&other, None).await.expect("deleted");
    within(LONG, wakeups.recv()).await;
    granted(waiter.acquire().await);
    // This takes longer than the old session lasts.
    for _ in 0..6 {
        tokio::time::sleep(SESSION / 4).await;
        let renewed = waiter.renew(LEASE, LONG).await.expect("an answer");
        assert!(matches!(renewed.verdicts[..], [Ok(None)]), "{renewed:?}");
    }
}

/// The node belongs to the holder from then on.
#[tokio::test]
async fn node_of_a_waiter_is_taken_over_only_once() {
    let server = ZooKeeper::start();
    let look = Look::at(&server.hosts()).await;
    let holder = Party::at(&server.url()).await;
    let next = Party::of(&holder.store);
    let mut wakeups = holder.subscribe().await;
    within(LONG, wakeups.recv()).await;
    let (_, first) = granted(holder.acquire().await);
    // The waiter still listens, so it queues again.
    held(next.acquire().await);
    look.until_nodes("job", 2).await;
    held(next.acquire().await);
    assert_eq!(holder.release(0).await, Released::done(0));
    within(LONG, wakeups.recv()).await;
    let (_, second) = granted(next.acquire().await);
    assert!(second > first, "{first}, then {second}");
    assert_eq!(look.nodes("job").await.len(), 1);
}

/// The acquire finds out when it writes its holder id there.
#[tokio::test]
async fn node_of_a_waiter_that_was_deleted_is_not_taken_over() {
    let _reached = Must::reach("ZooKeeperAdoptedTooLate");
    let server = ZooKeeper::start();
    let look = Look::at(&server.hosts()).await;
    let party = Party::at(&server.url()).await;
    let mut wakeups = party.subscribe().await;
    within(LONG, wakeups.recv()).await;
    let nodes = look.nodes("job").await;
    look.0.delete(&format!("{}/{}", directory("job"), nodes[0]), None).await.expect("deleted");
    granted(party.acquire().await);
    // The waiter still listens, so it queues again.
    look.until_nodes("job", 2).await;
}

#[tokio::test]
async fn hold_of_an_ended_session_is_not_renewed_despite_its_node() {
    let server = ZooKeeper::start();
    let look = Look::at(&server.hosts()).await;
    let party = Party::at(&server.url()).await;
    granted(party.acquire().await);
    clear(&look, SESSIONS).await;
    // The next session has a node of its own.
    look.until_children(SESSIONS, 1).await;
    assert_eq!(look.nodes("job").await.len(), 1);
    let renewed = party.renew(LEASE, LONG).await.expect("an answer");
    assert!(matches!(renewed.verdicts[..], [Ok(Some(Absence::Taken))]), "{renewed:?}");
    held(party.acquire().await);
}

#[tokio::test]
async fn waiter_that_leaves_during_its_creation_leaves_no_node() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let look = Look::at(&server.hosts()).await;
    let waiter = store(&relay.url()).await;
    forge(&look, &format!("{}/w~{}~", directory("job"), Uuid::new_v4())).await;
    relay.lose_reply_and_refuse(request::CREATE);
    let wakeups = subscribe(&*waiter).await;
    kit::eventually(LONG, || relay.lost() == 1).await;
    assert_eq!(look.nodes("job").await.len(), 2);
    drop(wakeups);
    relay.set(Traffic::Pass);
    look.until_nodes("job", 1).await;
}

#[tokio::test]
async fn closed_store_leaves_only_the_nodes_of_its_holds() {
    let server = ZooKeeper::start();
    let look = Look::at(&server.hosts()).await;
    for holds in [false, true] {
        let party = Party::at(&server.url()).await;
        if holds {
            granted(party.acquire().await);
        }
        party.store.close(LONG).await;
        let nodes = look.0.list_children(SESSIONS).await.expect("the directory exists");
        assert_eq!(nodes.len(), usize::from(holds), "{nodes:?}");
        let error = party.acquire().await.expect_err("closed");
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Closed, Fate::NotExecuted));
        // The handle does not keep the session alive.
        look.until_children(SESSIONS, 0).await;
        look.until_nodes("job", 0).await;
    }
}

#[tokio::test]
async fn session_of_a_dropped_store_ends() {
    let server = ZooKeeper::start();
    let look = Look::at(&server.hosts()).await;
    let party = Party::at(&server.url()).await;
    granted(party.acquire().await);
    drop(party);
    look.until_children(SESSIONS, 0).await;
    look.until_nodes("job", 0).await;
}

#[tokio::test]
async fn ttl_longer_than_the_session_allows_is_refused() {
    let server = ZooKeeper::start();
    let party = Party::at(&server.url()).await;
    let longer = LEASE + Duration::from_millis(1);
    let error = party.acquire_for(longer).await.expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    granted(party.acquire().await);
    let renewed = party.renew(longer, LONG).await.expect("an answer");
    let error = renewed.verdicts[0].as_ref().expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let renewed = party.renew(LEASE, LONG).await.expect("an answer");
    assert!(matches!(renewed.verdicts[..], [Ok(None)]), "{renewed:?}");
}

#[tokio::test]
async fn grant_that_is_repeated_has_a_new_ttl() {
    let server = ZooKeeper::start();
    let (party, look) = (Party::at(&server.url()).await, Look::at(&server.hosts()).await);
    let short = LEASE / 3;
    let (_, first) = granted(party.acquire_for(short).await);
    assert_eq!(granted(party.acquire().await).1, first);
    tokio::time::sleep(short + LEASE / 6).await;
    assert_eq!(look.nodes("job").await.len(), 1);
    look.until_nodes("job", 0).await;
}

#[tokio::test]
async fn hold_whose_node_was_deleted_is_granted_again() {
    let server = ZooKeeper::start();
    let (party, look) = (Party::at(&server.url()).await, Look::at(&server.hosts()).await);
    let (_, first) = granted(party.acquire().await);
    clear(&look, &directory("job")).await;
    let (_, second) = granted(party.acquire().await);
    assert!(second > first, "{first}, then {second}");
    assert_eq!(look.nodes("job").await.len(), 1);
}

#[tokio::test]
async fn hold_whose_grant_was_lost_is_released_and_reported() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let (party, look) = (Party::at(&relay.url()).await, Look::at(&server.hosts()).await);
    granted(party.acquire().await);
    party.release(0).await;
    relay.lose_reply_of(request::CREATE);
    let error = party.acquire().await.expect_err("no answer");
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::Unknown));
    assert_eq!(look.nodes("job").await.len(), 1);
    assert_eq!(party.release(0).await, Released::done(0));
    assert_eq!(look.nodes("job").await.len(), 0);
    assert_eq!(party.release(0).await, Released::NotYours(Absence::Gone));
}

#[tokio::test]
async fn creation_beside_a_node_of_another_kind_is_undone() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let (party, look) = (Party::at(&relay.url()).await, Look::at(&server.hosts()).await);
    granted(party.acquire().await);
    party.release(0).await;
    relay.lose_reply_of(request::CREATE);
    party.acquire().await.expect_err("no answer");
    let intruder = forge(&look, &format!("{}/read-", directory("job"))).await;
    let error = party.acquire().await.expect_err("not granted");
    assert_eq!((error.kind(), error.fate()), (ErrorKind::WrongType, Fate::NotExecuted), "{error}");
    let left = look.nodes("job").await;
    assert!(left.len() == 1 && intruder.ends_with(&left[0]), "{left:?}");
    // A release sweeps its nodes beside it.
    party.forge(&look).await;
    assert_eq!(party.release(0).await, Released::done(0));
    assert_eq!(party.release(0).await, Released::NotYours(Absence::Taken));
}

#[tokio::test]
async fn first_waiter_beside_a_node_of_another_kind_is_refused() {
    let server = ZooKeeper::start();
    let (waiter, look) = (Party::at(&server.url()).await, Look::at(&server.hosts()).await);
    let mut wakeups = waiter.subscribe().await;
    within(LONG, wakeups.recv()).await;
    let intruder = forge(&look, &format!("{}/_c_2a5f9f6e-lock-", directory("job"))).await;
    // The list in which the waiter was the first is not repeated at once.
    tokio::time::sleep(Duration::from_millis(30)).await;
    let error = waiter.acquire().await.expect_err("not granted");
    assert_eq!((error.kind(), error.fate()), (ErrorKind::WrongType, Fate::NotExecuted), "{error}");
    let left = look.nodes("job").await;
    assert!(left.len() == 1 && intruder.ends_with(&left[0]), "{left:?}");
    // The waiter queues again when the name is free.
    look.0.delete(&intruder, None).await.expect("deleted");
    look.until_nodes("job", 1).await;
    within(LONG, async {
        while waiter.acquire().await.is_err() {
            wakeups.recv().await;
        }
    })
    .await;
    assert_eq!(look.nodes("job").await.len(), 1);
}

#[tokio::test]
async fn waiter_beside_a_node_of_another_kind_is_no_holder() {
    let server = ZooKeeper::start();
    let (party, look) = (Party::at(&server.url()).await, Look::at(&server.hosts()).await);
    forge(&look, &format!("{}/w~{}~", directory("job"), Uuid::new_v4())).await;
    forge(&look, &format!("{}/read-", directory("job"))).await;
    let error = inspect(&*party.store).await.expect_err("the other kind may hold");
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    let error = force(&*party.store).await.expect_err("nothing is held here");
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    assert_eq!(look.nodes("job").await.len(), 2);
}

/// A creation of unknown outcome may have run twice.
#[tokio::test]
async fn hold_that_ends_leaves_no_node_of_its_token() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let (party, look) = (Party::at(&relay.url()).await, Look::at(&server.hosts()).await);
    for expires in [false, true] {
        granted(party.acquire().await);
        party.release(0).await;
        relay.lose_reply_of(request::CREATE);
        party.acquire().await.expect_err("no answer");
        party.forge(&look).await;
        granted(party.acquire().await);
        assert_eq!(look.nodes("job").await.len(), 2);
        if !expires {
            assert_eq!(party.release(0).await, Released::done(0));
            assert_eq!(look.nodes("job").await.len(), 0);
        }
        look.until_nodes("job", 0).await;
    }
}

/// The user may delete the node, but not list the directory for others of the same token.
#[tokio::test]
async fn release_that_is_refused_halfway_is_unknown() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let (party, look) = (Party::at(&relay.url()).await, Look::at(&server.hosts()).await);
    granted(party.acquire().await);
    party.release(0).await;
    relay.lose_reply_of(request::CREATE);
    party.acquire().await.expect_err("no answer");
    granted(party.acquire().await);
    let no_list = Permission::WRITE | Permission::CREATE | Permission::DELETE | Permission::ADMIN;
    for (rights, refused) in [(no_list, true), (Permission::ALL, false)] {
        let acl = [Acl::new(rights, AuthId::anyone())];
        look.0.set_acl(&directory("job"), &acl, None).await.expect("changed");
        let request = Release::new(job(), party.token, 0, LONG);
        let released = party.store.release(request).await;
        if refused {
            let error = released.expect_err("the list is denied");
            assert_eq!((error.kind(), error.fate()), (ErrorKind::Denied, Fate::Unknown));
        } else {
            assert_eq!(released.expect("an answer"), Released::NotYours(Absence::Gone));
        }
    }
    assert_eq!(look.nodes("job").await.len(), 0);
}

/// It can be a node of a session that has ended.
#[tokio::test]
async fn node_unknown_to_the_store_is_deleted_by_its_last_release() {
    let server = ZooKeeper::start();
    let (party, look) = (Party::at(&server.url()).await, Look::at(&server.hosts()).await);
    party.forge(&look).await;
    assert_eq!(party.release(1).await, Released::NotYours(Absence::Taken));
    assert_eq!(look.nodes("job").await.len(), 1);
    assert_eq!(party.release(0).await, Released::done(0));
    assert_eq!(look.nodes("job").await.len(), 0);
    assert_eq!(party.release(0).await, Released::NotYours(Absence::Gone));
}

#[tokio::test]
async fn hold_that_is_gone_is_reported_even_if_the_list_fails() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let (party, rival) = (Party::at(&relay.url()).await, Party::at(&server.url()).await);
    granted(rival.acquire().await);
    assert_eq!(party.release(1).await, Released::NotYours(Absence::Taken));
    relay.lose_reply_of(LIST);
    assert_eq!(party.release(1).await, Released::NotYours(Absence::Gone));
    assert_eq!(relay.lost(), 1);
}

#[tokio::test]
async fn waiter_that_does_not_know_it_is_first_is_deleted_by_force() {
    let server = ZooKeeper::start();
    let (party, look) = (Party::at(&server.url()).await, Look::at(&server.hosts()).await);
    forge(&look, &format!("{}/w~{}~", directory("job"), Uuid::new_v4())).await;
    assert_eq!(inspect(&*party.store).await.expect("an answer"), None);
    assert!(force(&*party.store).await.expect("an answer"));
    assert_eq!(look.nodes("job").await.len(), 0);
    assert!(!force(&*party.store).await.expect("an answer"), "the queue is empty");
}

#[tokio::test]
async fn renewal_counts_at_most_from_the_write_before_the_last() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let party = Party::at(&relay.url()).await;
    let writes = || relay.times_of(request::SET_DATA);
    granted(party.acquire().await);
    kit::eventually(LONG, || writes().len() >= 2).await;
    for _ in 0..40 {
        let renewed = party.renew(LEASE, LONG).await.expect("an answer");
        assert!(matches!(renewed.verdicts[..], [Ok(None)]), "{renewed:?}");
        // The relay saw it after it was sent.
        let writes = writes();
        let one_before = writes[writes.len() - 2];
        let session_ends = one_before + SESSION;
        assert!(renewed.sent + LEASE <= session_ends, "{:?}, but {writes:?}", renewed.sent);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn grant_after_a_pause_waits_for_a_proof_of_the_session() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let party = Party::at(&relay.url()).await;
    relay.set(Traffic::Hold);
    // A proof is too old by then, but the session is still alive.
    tokio::time::sleep(SESSION * 3 / 5).await;
    relay.set(Traffic::Pass);
    let asked = Clock::system().now();
    let (sent, _) = granted(party.acquire().await);
    let late = asked.saturating_duration_since(sent);
    assert!(late <= SESSION / 3, "the grant counts from {late:?} before the request");
}

#[tokio::test]
async fn leases_are_renewed_while_the_server_answers_slowly() {
    let server = ZooKeeper::start();
    let pipe = Pipe::start(server.port(0));
    let party = Party::at(&pipe.url().replace("redis", "zookeeper")).await;
    granted(party.acquire().await);
    // The write before the last is never recent then.
    pipe.set(Pace { latency: SESSION / 20, ..Pace::default() });
    let start = Instant::now();
    while start.elapsed() < SESSION * 3 / 2 {
        let renewed = party.renew(LEASE, SESSION * 5 / 8).await.expect("in time");
        assert!(matches!(renewed.verdicts[..], [Ok(None)]), "{renewed:?}");
    }
}

#[tokio::test]
async fn renewal_at_a_distant_server_leaves_time_for_its_read() {
    let server = ZooKeeper::start();
    let pipe = Pipe::start(server.port(0));
    let party = Party::at(&pipe.url().replace("redis", "zookeeper")).await;
    granted(party.acquire().await);
    pipe.set(Pace { latency: SESSION * 7 / 200, ..Pace::default() });
    // The round trip is known after the next write.
    tokio::time::sleep(SESSION / 2).await;
    let (start, mut renewed, mut late) = (Instant::now(), 0, 0_u32);
    while start.elapsed() < SESSION * 2 {
        // The engine gives it this much, which is less than two round trips.
        match party.renew(LEASE, SESSION / 10).await {
            Ok(_) => renewed += 1,
            Err(_) => {
                // On a busy machine one with more time takes as long.
                let again = Instant::now();
                party.renew(LEASE, LONG).await.expect("an answer");
                late += u32::from(again.elapsed() < SESSION / 10);
            }
        }
    }
    // If no time were left for the read, most would be late.
    assert!(renewed > late, "{renewed} in time, {late} late");
}

#[tokio::test]
async fn proof_that_failed_is_tried_again_soon() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let _store = store(&relay.url()).await;
    let writes = || relay.times_of(request::SET_DATA).len();
    // The next write is due after a quarter of the session, and is given up after another quarter. The connection is given
    // up soon after that, so the writes must go on before.
    kit::eventually(LONG, || writes() == 1).await;
    let start = Instant::now();
    let until = async |at| tokio::time::sleep_until((start + at).into()).await;
    until(SESSION / 5).await;
    relay.set(Traffic::Hold);
    until(SESSION * 21 / 40).await;
    let before = writes();
    relay.set(Traffic::Pass);
    kit::eventually(SESSION, || writes() >= before + 2).await;
}

/// The outage is logged once, with its end, however many attempts fail, and a new session follows the one that has ended.
#[tokio::test]
async fn connection_is_made_soon_after_an_outage() {
    let (trace, _guard) = Trace::of_this_thread();
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let store = zookeeper_store(&relay.url(), Duration::from_millis(750)).await;
    let store = store.expect("the server runs");
    let look = Look::at(&server.hosts()).await;
    let logged = |message: &str| trace.matching(|event| event.message() == message).len();
    relay.set(Traffic::Refuse);
    kit::eventually(LONG, || logged("the server does not answer") == 1).await;
    look.until_children(SESSIONS, 0).await;
    assert_eq!(logged("the server does not answer"), 1);
    relay.set(Traffic::Pass);
    look.until_children(SESSIONS, 1).await;
    kit::eventually(LONG, || logged("the server answers again") == 1).await;
    let ready = async {
        while inspect(&*store).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(LONG, ready).await;
}

/// So the engine sweeps nothing, however many acquires have failed.
#[tokio::test]
async fn acquire_that_created_nothing_is_not_executed() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let party = Party::at(&relay.url()).await;
    let asked = async || {
        let error = party.acquire_within(SESSION / 40).await.expect_err("no answer");
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotExecuted));
    };
    // The server is asked whether the name is free, and does not answer.
    relay.set(Traffic::Hold);
    asked().await;
    // Without a connection the server is not asked.
    let reconnects = party.store.reconnects().expect("the store signals reconnects");
    relay.set(Traffic::Refuse);
    let before = relay.times_of(LIST).len();
    for _ in 0..10 {
        asked().await;
    }
    relay.set(Traffic::Pass);
    within(LONG, reconnects.recv()).await;
    granted(party.acquire().await);
    let lists = relay.times_of(LIST).len() - before;
    assert!(lists <= 4, "{lists} lists for one grant");
}

#[tokio::test]
async fn request_outlives_the_runtime_of_its_caller() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let url = relay.url();
    let party = runtime.spawn(async move { Party::at(&url).await }).await.expect("the task ends");
    relay.set(Traffic::Hold);
    let mut request = party.store.acquire(party.request(LEASE, LONG));
    let asking = std::thread::spawn(move || {
        let other = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let other = other.expect("a runtime");
        other.block_on(async {
            tokio::select! {
                _ = &mut request => panic!("an answer from a silent server"),
                () = tokio::time::sleep(SESSION / 40) => {}
            }
        });
        drop(other);
        request
    });
    let request = asking.join().expect("the thread ends");
    relay.set(Traffic::Pass);
    granted(within(LONG, request).await);
    runtime.shutdown_background();
}

#[tokio::test]
async fn acquire_that_is_refused_halfway_may_have_a_node() {
    let server = ZooKeeper::start_with("enforceQuota=true");
    let look = Look::at(&server.hosts()).await;
    let (holder, waiter) = (Party::at(&server.url()).await, Party::at(&server.url()).await);
    granted(holder.acquire().await);
    let mut wakeups = waiter.subscribe().await;
    look.until_nodes("job", 2).await;
    let quota = "/zookeeper/quota/leasehold/locks";
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    look.0.mkdir(quota, &open).await.expect("created");
    let limits = b"count=-1,bytes=-1=;byteHardLimit=10;countHardLimit=-1";
    look.0.create(&format!("{quota}/zookeeper_limits"), limits, &open).await.expect("created");
    let stats = format!("{quota}/zookeeper_stats");
    look.0.create(&stats, b"count=0,bytes=0", &open).await.expect("created");
    assert_eq!(holder.release(0).await, Released::done(0));
    within(LONG, wakeups.recv()).await;
    let error = waiter.acquire().await.expect_err("over quota");
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Rejected, Fate::Unknown));
    drop(wakeups);
    // The engine does this then.
    assert_eq!(waiter.release(0).await, Released::done(0));
    look.until_nodes("job", 0).await;
}

#[tokio::test]
async fn acquire_at_a_distant_server_has_time_for_two_round_trips() {
    let server = ZooKeeper::start();
    let pipe = Pipe::start(server.port(0));
    let party = Party::at(&pipe.url().replace("redis", "zookeeper")).await;
    granted(party.acquire().await);
    party.release(0).await;
    pipe.set(Pace { latency: Duration::from_millis(60), ..Pace::default() });
    // The round trip is known after the next write.
    tokio::time::sleep(SESSION / 2).await;
    granted(party.acquire_within(Duration::from_millis(200)).await);
}

#[tokio::test]
async fn subscription_returns_before_the_waiter_is_in_the_queue() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let (holder, waiter) = (Party::at(&server.url()).await, Party::at(&relay.url()).await);
    let look = Look::at(&server.hosts()).await;
    granted(holder.acquire().await);
    relay.set(Traffic::Hold);
    let mut wakeups = waiter.subscribe().await;
    relay.set(Traffic::Pass);
    look.until_nodes("job", 2).await;
    assert_eq!(holder.release(0).await, Released::done(0));
    within(LONG, wakeups.recv()).await;
    granted(waiter.acquire().await);
}

#[tokio::test]
async fn many_lost_holds_do_not_delay_the_verdicts_of_others() {
    let server = ZooKeeper::start();
    let pipe = Pipe::start(server.port(0));
    let party = Party::at(&pipe.url().replace("redis", "zookeeper")).await;
    granted(party.acquire().await);
    let mut items = vec![Renewal::new(job(), party.token)];
    items.extend((2..200).map(|number| {
        let name = Name::new(&format!("job:{number}")).expect("a name");
        Renewal::new(Target::exclusive(name), HolderId::new(Uuid::new_v4(), number))
    }));
    let count = items.len();
    // One after the other, their answers would take 8 s.
    pipe.set(Pace { latency: SESSION / 200, ..Pace::default() });
    let renewed =
        RenewCall::join(party.store.renew(RenewBatch::new(items, LEASE, SESSION * 5 / 8)))
            .await
            .expect("in time");
    assert_eq!(renewed.verdicts.len(), count);
    assert!(matches!(renewed.verdicts[0], Ok(None)), "{:?}", renewed.verdicts[0]);
    let gone = |verdict: &Result<_>| matches!(verdict, Ok(Some(Absence::Gone)));
    assert!(renewed.verdicts[1..].iter().all(gone));
}
