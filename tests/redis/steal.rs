//! Steals on a real server: the script, the note, the inbox, and the guards of writes.

use super::cluster::shared;
use super::errors::{app, lease_url, set_user};
use super::refused_only;
use fred::clients::Client;
use fred::interfaces::{ClientLike, LuaInterface};
use fred::types::Builder as FredBuilder;
use fred::types::config::Config;
use kit::{Server, eventually, within};
use leasehold::guard::{STALE, Script};
use leasehold::{Act, ErrorKind, LeaseManager, Loss};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);
const WHY: &str = "it hangs";

async fn connect(server: &Server) -> LeaseManager {
    LeaseManager::builder().ttl(LONG).connect(&server.url()).await.expect("a manager")
}

/// Waits until the inboxes of so many managers are subscribed.
async fn inboxes(server: &Server, count: usize) {
    let there =
        || server.command(&["PUBSUB", "CHANNELS", "leasehold_inbox:*"]).list().len() == count;
    eventually(LONG, there).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_holder_learns_by_its_inbox_when_the_steal_is_answered() {
    let server = Server::start();
    let (here, there) = (connect(&server).await, connect(&server).await);
    inboxes(&server, 2).await;
    let (mut answered, mut notified) = (Vec::new(), Vec::new());
    for round in 0..20 {
        let name = format!("job:{round}");
        let old = here.lock(&name).lock().await.expect("a lease");
        let lost = old.lost();
        let news = tokio::spawn(async move { (lost.await, Instant::now()) });
        let start = Instant::now();
        let new = there.lock(&name).steal(WHY).await.expect("an answer").expect("none between");
        answered.push(start.elapsed());
        let (loss, at) = within(LONG, news).await.expect("no panic");
        assert_eq!(loss, Loss::Stolen);
        notified.push(at.saturating_duration_since(start));
        assert!(old.fence() < new.fence());
        let note = old.note().await.expect("an answer").expect("a note");
        assert_eq!((note.act, &*note.why, note.fence_to_beat), (Act::Stolen, WHY, new.fence()));
        new.unlock().await.expect("a release");
    }
    // The old holder hears at the time of one request. The ratio holds on a busy machine too.
    answered.sort();
    notified.sort();
    println!("answered after {:?}, told after {:?} (medians)", answered[10], notified[10]);
    assert!(notified[10] < 4 * answered[10], "answered: {answered:?}, told: {notified:?}");
}

/// The control of the test before: without the message, the next renewal tells it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_holder_without_its_inbox_learns_by_a_renewal() {
    const T: Duration = Duration::from_secs(3);
    let server = Server::start();
    set_user(&server, &["~*", "resetchannels", "+@all"]);
    let deaf = LeaseManager::builder().ttl(T).connect(&lease_url(&server)).await.expect("one");
    let there = connect(&server).await;
    let old = deaf.lock("job").lock().await.expect("a lease");
    let start = Instant::now();
    let new = there.lock("job").steal(WHY).await.expect("an answer").expect("none between");
    assert_eq!(within(LONG, old.lost()).await, Loss::Stolen);
    let took = start.elapsed();
    assert!(took > Duration::from_millis(300) && took < T / 2, "{took:?}");
    assert_eq!(old.note().await.expect("an answer").expect("a note").why, WHY);
    new.check().expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forced_release_ends_the_lease_with_its_reason() {
    let server = Server::start();
    let (here, there) = (connect(&server).await, connect(&server).await);
    inboxes(&server, 2).await;
    let (lease, mut rw) = (here.lock("job").lock().await.expect("a lease"), here.rw_lock("rw"));
    let edit = rw.write().await.expect("a lease");
    for name in ["job", "rw"] {
        assert!(there.force_unlock(name, WHY).await.expect("an answer"));
    }
    assert_eq!(within(LONG / 10, lease.lost()).await, Loss::Revoked);
    assert_eq!(within(LONG / 10, edit.lost()).await, Loss::Revoked);
    for note in [lease.note().await, edit.note().await] {
        let note = note.expect("an answer").expect("a note");
        assert_eq!((note.act, &*note.why), (Act::Forced, WHY));
    }
    for key in ["leasehold_note:{job}", "leasehold_note:{rw}"] {
        assert!(server.command(&["PTTL", key]).int() > 86_000_000, "{key}");
    }
}

/// In a cluster the hint is a request of its own, to the server of the inbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_holder_on_a_cluster_learns_by_its_inbox() {
    let cluster = shared().await;
    for (sharded, channels) in [(false, "CHANNELS"), (true, "SHARDCHANNELS")] {
        let connect = async || {
            let builder = LeaseManager::builder().ttl(LONG).sharded_pubsub(sharded);
            builder.connect(&cluster.url()).await.expect("a manager")
        };
        let (here, there) = (connect().await, connect().await);
        let probe = here.lock("probe").lock().await.expect("a lease");
        let inbox = format!("leasehold_inbox:{}", probe.holder_id().manager());
        let listens =
            |node: &Server| !node.command(&["PUBSUB", channels, &inbox]).list().is_empty();
        eventually(LONG, || cluster.nodes.iter().any(listens)).await;
        probe.unlock().await.expect("a release");
        let mut times = Vec::new();
        // Names of all servers.
        for round in 0..12 {
            let name = format!("stolen:{round}:{sharded}");
            let old = here.lock(&name).lock().await.expect("a lease");
            let mut thief = there.lock(&name);
            let start = Instant::now();
            let (notified, note) = match round % 3 {
                0 => {
                    let new = thief.steal(WHY).await.expect("an answer").expect("none between");
                    assert_eq!(within(LONG, old.lost()).await, Loss::Stolen);
                    new.unlock().await.expect("a release");
                    (start.elapsed(), old.note().await)
                }
                1 => {
                    assert!(there.force_unlock(&name, WHY).await.expect("an answer"));
                    assert_eq!(within(LONG, old.lost()).await, Loss::Revoked);
                    (start.elapsed(), old.note().await)
                }
                _ => {
                    let wants = tokio::spawn(async move { thief.steal_after(LONG, WHY).await });
                    within(LONG, old.wanted()).await;
                    let (notified, note) = (start.elapsed(), old.note().await);
                    old.unlock().await.expect("a release");
                    let new = wants.await.expect("no panic").expect("an answer").expect("released");
                    new.unlock().await.expect("a release");
                    (notified, note)
                }
            };
            assert_eq!(note.expect("an answer").expect("a note").why, WHY);
            times.push(notified);
        }
        times.sort();
        println!("sharded: {sharded}, told after {:?} to {:?}", times[0], times[11]);
        // The next renewal, which would find it too, is due after ten seconds.
        assert!(times[11] < LONG / 6, "{times:?}");
    }
}

/// The permissions that the guide lists for one server are enough for all of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_of_the_guide_are_enough_to_steal() {
    let server = Server::start();
    set_user(&server, &kit::permissions::of_one_server());
    let connect = async || app().ttl(LONG).connect(&lease_url(&server)).await.expect("a manager");
    let (here, there) = (connect().await, connect().await);
    inboxes(&server, 2).await;
    server.command(&["ACL", "LOG", "RESET"]);
    let old = here.lock("job").lock().await.expect("a lease");
    let new = there.lock("job").steal(WHY).await.expect("an answer").expect("none between");
    assert_eq!(within(LONG / 10, old.lost()).await, Loss::Stolen);
    assert!(here.force_unlock("job", WHY).await.expect("an answer"));
    assert_eq!(within(LONG / 10, new.lost()).await, Loss::Revoked);
    assert_eq!(new.note().await.expect("an answer").expect("a note").why, WHY);
    refused_only(&server, &["leasehold_meta:", "pubsub|numsub"]);
}

#[tokio::test]
async fn steal_without_the_permission_for_notes_is_denied() {
    let server = Server::start();
    let permissions: Vec<&str> = kit::permissions::of_one_server()
        .into_iter()
        .filter(|word| !word.contains("note"))
        .collect();
    set_user(&server, &permissions);
    let leases = app().ttl(LONG).connect(&lease_url(&server)).await.expect("a manager");
    let other = app().ttl(LONG).connect(&lease_url(&server)).await.expect("a manager");
    let old = other.lock("job").lock().await.expect("a lease");
    let error = leases.lock("job").steal(WHY).await.expect_err("denied");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    old.check().expect("not taken");
    assert!(leases.force_unlock("job", WHY).await.expect("a note is not needed for that"));
}

/// A client of the data, as a service has it.
async fn client(server: &Server) -> Client {
    let config = Config::from_url(&server.url()).expect("a URL");
    let client = FredBuilder::from_config(config).build().expect("a client");
    client.init().await.expect("connected");
    client
}

async fn write(
    client: &Client,
    script: &Script,
    guard: leasehold::guard::Guard,
    value: &str,
) -> Result<String, String> {
    let (keys, args) = guard.with(["level"], [value]);
    let written: Result<String, _> = client.eval(script.text(), keys, args).await;
    written.map_err(|error| error.details().to_owned())
}

/// The process stands still with its guard in hand, while the name is stolen, and then it writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_write_of_a_paused_holder_is_refused_by_both_guards() {
    let server = Server::start();
    let (here, there, client) =
        (connect(&server).await, connect(&server).await, client(&server).await);
    let script =
        Script::new("redis.call('SET', KEYS[1], ARGV[1]) return #KEYS .. #ARGV -- its own")
            .unwrap();
    let old = here.lock("job").lock().await.expect("a lease");
    let owner = old.guard().expect("on Redis");
    let fence = old.fence_guard("level").expect("with a fencing token");
    assert_eq!(write(&client, &script, owner.clone(), "1").await.as_deref(), Ok("11"));
    assert_eq!(write(&client, &script, fence.clone(), "2").await.as_deref(), Ok("11"));
    assert_eq!(write(&client, &script, fence.clone(), "3").await.as_deref(), Ok("11"), "again");
    assert!(server.command(&["PTTL", "leasehold_seen:{level}"]).int() > 60_000);

    let new = there.lock("job").steal(WHY).await.expect("an answer").expect("none between");
    let refused = write(&client, &script, owner.clone(), "late").await.expect_err("stale");
    assert_eq!(refused, format!("{STALE} {}", new.holder_id()));
    // The fence guard refuses from the first write of the new holder on.
    assert!(write(&client, &script, new.fence_guard("level").unwrap(), "4").await.is_ok());
    let refused = write(&client, &script, fence, "late").await.expect_err("stale");
    assert_eq!(refused, format!("{STALE} {}", new.fence().unwrap()));
    assert_eq!(server.command(&["GET", "level"]).text(), "4");

    new.unlock().await.expect("a release");
    let refused = write(&client, &script, owner, "late").await.expect_err("stale");
    assert_eq!(refused, format!("{STALE} "), "nobody holds it");
    assert_eq!(server.command(&["GET", "level"]).text(), "4");
}

#[tokio::test]
async fn guarded_script_passes_errors_of_the_server_on() {
    let server = Server::start();
    let (leases, client) = (connect(&server).await, client(&server).await);
    let lease = leases.lock("job").lock().await.expect("a lease");
    let script = Script::new("return redis.call('INCR', KEYS[1])").unwrap();
    server.command(&["SET", "leasehold_seen:{level}", "7", "PX", "60000"]);
    server.command(&["RPUSH", "leasehold_seen:{other}", "7"]);
    server.command(&["RPUSH", "level", "7"]);
    let ours = write(&client, &script, lease.guard().unwrap(), "").await.expect_err("no number");
    assert!(ours.contains("WRONGTYPE"), "{ours}");
    let guard = lease.fence_guard("other").unwrap();
    let ours = write(&client, &script, guard, "").await.expect_err("no string");
    assert!(ours.contains("WRONGTYPE"), "{ours}");
    let refused: Result<i64, _> =
        client.eval(script.text(), vec!["a", "b"], vec!["-1".to_owned(), "x".to_owned()]).await;
    assert!(refused.unwrap_err().details().starts_with("LEASEHOLD bad argument"));
}

/// Keys beside the lock that are not ours: the error names the key, and not the lock.
#[tokio::test]
async fn key_of_another_type_beside_a_lock_is_named_and_left_alone() {
    let server = Server::start();
    let (leases, other) = (connect(&server).await, connect(&server).await);
    let old = other.lock("job").label("import").lock().await.expect("a lease");
    let keys = ["leasehold_note:{job}", "leasehold_meta:{job}"];
    keys.iter().for_each(|key| _ = server.command(&["RPUSH", key, "x"]));
    let named = |error: leasehold::Error, key: &str| {
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::WrongType, "{text}");
        assert!(text.contains(key) && !text.contains("under this name"), "{text}");
    };
    named(leases.lock("job").steal(WHY).await.expect_err("no note"), keys[0]);
    let patience = LONG / 1000;
    named(leases.lock("job").steal_after(patience, WHY).await.expect_err("no note"), keys[0]);
    named(old.note().await.expect_err("no note"), keys[0]);
    named(old.describe_now().await.expect_err("no metadata"), keys[1]);
    // Nothing of it concerns the lock.
    old.check().expect("not taken");
    assert!(leases.inspect("job").await.expect("an answer").expect("held").metadata.is_none());
    assert!(leases.force_unlock("job", WHY).await.expect("a note is not needed for that"));
    for key in keys {
        assert_eq!(server.command(&["LRANGE", key, "0", "-1"]).list().len(), 1, "{key}");
    }
}
