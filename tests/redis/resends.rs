//! What the scripts make of copies of requests: at once, as a client sends them whose reply was lost, and late, as a network
//! delivers them. The calls are those of real managers, run again on a server of their own.

use kit::look::fence_key;
use kit::{Proxy, Reply, Resp, Server, eventually};
use leasehold::{Lease, LeaseManager, Permit, ReadLease, Upgraded, WriteLease};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const LONG: Duration = Duration::from_secs(10);
const T: Duration = Duration::from_secs(2);
/// The time to live of those that hold and wait while copies arrive. Nothing of theirs may end by itself while the copies are
/// looked at one by one, on a slow machine too.
const LASTING: Duration = Duration::from_secs(120);
/// In ms. How far times may be from each other that are meant to be the same.
const NEAR: i64 = 800;
/// How many permits the semaphores have.
const SIZE: u32 = 3;

/// The keys that are there while one holds a name.
const HOLDS: [&str; 5] = ["lock", "fair", "read", "write", "{pool}:timeout"];

/// The keys of a semaphore.
const POOL: [&str; 3] = ["pool", "{pool}:timeout", "leasehold_sizes:{pool}"];

/// A script call: the script's digest, and all words after it.
type Call = (String, Vec<String>);

/// What passed a proxy.
#[derive(Default)]
struct Captured {
    /// The scripts, by their digests.
    scripts: HashMap<String, String>,
    /// The calls of them, in their order, without those that try out permissions.
    calls: Vec<Call>,
}

fn captured(server: &Server, proxy: &Proxy) -> Captured {
    let (mut scripts, mut called) = (HashMap::new(), Vec::<Call>::new());
    for request in proxy.requests() {
        if let Some(rest) = request.strip_prefix("EVALSHA ") {
            let mut words = rest.split(' ').map(str::to_owned);
            let digest = words.next().expect("a digest");
            called.push((digest, words.collect()));
        } else if let Some(rest) = request.strip_prefix("EVAL ") {
            // The same call once more, now with its text. Others may have been sent in between.
            let found = called.iter_mut().rev().find_map(|(digest, words)| {
                let text = rest.strip_suffix(&words.join(" "))?.strip_suffix(' ')?;
                let loaded = server.command(&["SCRIPT", "LOAD", text]).text();
                // To see whether texts are let in, `connect` sends one under a name that no server knows.
                if *digest == "0".repeat(40) {
                    digest.clone_from(&loaded);
                }
                (loaded == *digest).then(|| (loaded, text.to_owned()))
            });
            let (digest, text) = found.expect("EVALSHA comes first, with the same words");
            scripts.insert(digest, text);
        }
    }
    // What the try-outs leave is remembered for a millisecond only.
    called.retain(|(_, words)| !words.iter().any(|word| word.contains("leasehold-probe")));
    Captured { scripts, calls: called }
}

/// A key of the server.
#[derive(Debug)]
struct Key {
    /// The value, field by field, without the times in it.
    fields: BTreeMap<String, String>,
    /// The times in it, in ms.
    times: BTreeMap<String, i64>,
    /// The time to live, in ms, at that instant.
    left: i64,
    at: Instant,
}

impl Key {
    /// Returns what is left of the time to live at a later instant, in ms, if nothing has changed it.
    fn left_at(&self, later: Instant) -> i64 {
        self.left - later.saturating_duration_since(self.at).as_millis() as i64
    }
}

/// A server that is fed by hand.
struct Mirror {
    connection: Resp,
    _server: Server,
}

impl Mirror {
    /// Starts a server that knows the scripts.
    fn start<'a>(scripts: impl IntoIterator<Item = &'a String>) -> Self {
        let server = Server::start();
        let mut connection = server.connection();
        for text in scripts {
            connection.command(&["SCRIPT", "LOAD", text]);
        }
        Self { connection, _server: server }
    }

    fn run(&mut self, (digest, words): &Call) -> Reply {
        let mut request = vec!["EVALSHA", digest.as_str()];
        request.extend(words.iter().map(String::as_str));
        let reply = self.connection.command(&request);
        // A request for each kind of lock meets those of other kinds.
        let refused = reply.error().filter(|text| !text.starts_with("WRONGTYPE"));
        assert_eq!(refused, None, "{words:?}");
        reply
    }

    fn look(&mut self) -> Snapshot {
        let names = self.connection.command(&["KEYS", "*"]).list().into_iter().map(Reply::text);
        let keys = names.filter_map(|name| Some((name.clone(), self.key(&name)?))).collect();
        Snapshot { keys, taken: Instant::now() }
    }

    /// Returns `None` for a key that has just expired.
    fn key(&mut self, key: &str) -> Option<Key> {
        // The ids of permits are bytes.
        let sorted = "local reply = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES') for i = 1, #reply, 2 do \
            reply[i] = string.gsub(reply[i], '.', function(c) return string.format('%02x', string.byte(c)) end) end return reply";
        let (mut fields, mut times) = (BTreeMap::new(), BTreeMap::new());
        match self.connection.command(&["TYPE", key]).text().as_str() {
            // Manager -> number of the holder, and when its place lapses.
            "hash" if key.starts_with("leasehold_lapse:") => {
                for (manager, place) in self.connection.command(&["HGETALL", key]).pairs() {
                    let (number, lapse) = place.split_once(' ').expect("two numbers");
                    times.insert(manager.clone(), lapse.parse::<i64>().expect("a time") / 1000);
                    fields.insert(manager, number.to_owned());
                }
            }
            "hash" => fields.extend(self.connection.command(&["HGETALL", key]).pairs()),
            "zset" => {
                let micros = if key.starts_with("leasehold_line:") { 1000 } else { 1 };
                for (member, time) in self.connection.command(&["EVAL", sorted, "1", key]).pairs() {
                    let time = time.parse::<f64>().expect("a time") as i64;
                    times.insert(member.clone(), time / micros);
                    fields.insert(member, String::new());
                }
            }
            // When a reader or writer that waits arrived, and its holder id.
            "string"
                if ["leasehold_read:", "leasehold_write:"]
                    .iter()
                    .any(|side| key.starts_with(side)) =>
            {
                let Reply::Text(value) = self.connection.command(&["GET", key]) else {
                    return None;
                };
                let (arrived, holder) = value.split_once(' ')?;
                times.insert(holder.to_owned(), arrived.parse::<i64>().expect("a time") / 1000);
                fields.insert(holder.to_owned(), String::new());
            }
            "string" => {
                let Reply::Text(value) = self.connection.command(&["GET", key]) else {
                    return None;
                };
                fields.insert(String::new(), value);
            }
            "none" => return None,
            other => panic!("{key:?} is a {other}"),
        }
        let left = self.connection.command(&["PTTL", key]).int();
        (left != -2).then_some(Key { fields, times, left, at: Instant::now() })
    }
}

/// All keys at an instant.
struct Snapshot {
    keys: BTreeMap<String, Key>,
    taken: Instant,
}

impl Snapshot {
    /// Demands that what was there is as it was, and that nothing stays forever.
    #[track_caller]
    fn assert_kept(&self, after: &Self, words: &[String]) {
        for (name, key) in &self.keys {
            let now = after.keys.get(name);
            let left = key.left_at(now.map_or(after.taken, |now| now.at));
            if left < NEAR {
                // It expires about now.
                continue;
            }
            let Some(now) = now else { panic!("{name} has gone: {words:?}") };
            for (field, value) in &key.fields {
                assert_eq!(now.fields.get(field), Some(value), "{name} {field} {words:?}");
            }
            for (field, time) in &key.times {
                let moved = now.times[field] - time;
                assert!(moved.abs() < NEAR, "{name} {field} by {moved} ms {words:?}");
            }
            let moved = now.left - left;
            let limit = if now.fields.len() > key.fields.len() {
                // It may last longer for what has come to it.
                i64::MAX
            } else if POOL.contains(&name.as_str()) {
                // Each acquire keeps an idle semaphore for its whole time again.
                key.left - left + NEAR
            } else {
                NEAR
            };
            assert!(-NEAR < moved && moved < limit, "{name} by {moved} ms {words:?}");
        }
        for (name, key) in &after.keys {
            assert_ne!(key.left, -1, "{name} would stay: {words:?}");
        }
    }

    /// The fields of all keys, but of those that expire about `now`.
    fn fields(&self, now: &Self) -> BTreeSet<(&String, &String)> {
        let lasting = self.keys.iter().filter(|(_, key)| key.left_at(now.taken) >= NEAR);
        lasting.flat_map(|(name, key)| key.fields.keys().map(move |field| (name, field))).collect()
    }
}

/// Runs each call twice: the second run finds what the first one left, leaves it so, and replies the same.
fn run_twice(mirror: &mut Mirror, Captured { scripts, calls }: &Captured) {
    for call @ (digest, words) in calls {
        let before = mirror.look();
        let first = mirror.run(call);
        let once = mirror.look();
        let second = mirror.run(call);
        let twice = mirror.look();
        once.assert_kept(&twice, words);
        let names = once.fields(&twice);
        let new: Vec<_> = twice.fields(&twice).difference(&once.fields(&once)).cloned().collect();
        assert!(new.is_empty(), "{new:?} {words:?}");
        // The same answers too, times apart, unless the first has deleted something, or says what was there before.
        let resizes = scripts.get(digest).is_some_and(|text| text.contains("call('HSET', sizes"));
        if !resizes && before.fields(&twice).is_subset(&names) {
            assert_eq!(without_times(first), without_times(second), "{words:?}");
        }
    }
}

/// A reply without times to live, and without the ages of waiters.
fn without_times(reply: Reply) -> Vec<Reply> {
    let about = |item| match item {
        Reply::Int(-100_000..=-4 | 3..=100_000) => Reply::Nil,
        item => item,
    };
    match reply {
        Reply::List(items) => items.into_iter().map(about).collect(),
        one => vec![about(one)],
    }
}

/// Waits until a lease is renewed.
async fn renewed(lease: &Lease) {
    let mut lowest = lease.remaining();
    let renewed = || {
        let left = lease.remaining();
        lowest = lowest.min(left);
        left > lowest + T / 20
    };
    eventually(LONG, renewed).await;
}

async fn connect(proxy: &Proxy, ttl: Duration) -> LeaseManager {
    LeaseManager::builder().ttl(ttl).connect(&proxy.url()).await.expect("a manager")
}

/// Waits until the store has recorded that one lease is left.
async fn counted(leases: &LeaseManager, name: &str) {
    let one =
        async || leases.inspect(name).await.expect("an answer").expect("held").hold_count == 1;
    while !one().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A lock and a fair lock in all that can become of them.
async fn lock_and_unlock(leases: LeaseManager, fair: bool) {
    let (mut plain, mut in_line) = (leases.lock("lock"), leases.fair_lock("fair"));
    let lease = if fair { in_line.lock().await } else { plain.lock().await };
    let outer = lease.expect("a lease");
    let again = if fair { in_line.lock().await } else { plain.lock().await };
    let inner = again.expect("a nested lease");
    renewed(&outer).await;
    inner.unlock().await.expect("a lower count");
    counted(&leases, if fair { "fair" } else { "lock" }).await;
    outer.unlock().await.expect("a release");
}

/// A reader that becomes the writer, and a reader once more.
async fn read_and_upgrade(leases: LeaseManager) {
    let page = leases.rw_lock("read").read().await.expect("a lease");
    renewed(&page).await;
    let Upgraded::Write(edit) = page.try_upgrade().await.expect("an answer") else {
        panic!("alone")
    };
    renewed(&edit).await;
    edit.downgrade().await.expect("a reader").unlock().await.expect("a release");
}

/// A writer that enters once more.
async fn write_and_nest(leases: LeaseManager) {
    let mut lock = leases.rw_lock("write");
    let edit = lock.write().await.expect("a lease");
    let inner = lock.write().await.expect("a nested lease");
    renewed(&edit).await;
    inner.unlock().await.expect("a lower count");
    counted(&leases, "write").await;
    edit.unlock().await.expect("a release");
}

async fn take_permits(leases: LeaseManager) {
    let pool = leases.semaphore("pool", SIZE);
    let two = pool.acquire_many(2).await.expect("permits");
    renewed(&two).await;
    pool.usage().await.expect("an answer");
    two.unlock().await.expect("a release");
}

/// What a manager does in each mode, from the acquires to the releases.
async fn live(leases: &LeaseManager) {
    let mut lives = JoinSet::new();
    lives.spawn(lock_and_unlock(leases.clone(), false));
    lives.spawn(lock_and_unlock(leases.clone(), true));
    lives.spawn(read_and_upgrade(leases.clone()));
    lives.spawn(write_and_nest(leases.clone()));
    lives.spawn(take_permits(leases.clone()));
    lives.join_all().await;
}

/// What another manager may hold of the names of [`live`].
#[derive(Default)]
struct Held {
    locks: Vec<Lease>,
    readers: Vec<ReadLease>,
    writers: Vec<WriteLease>,
    permits: Vec<Permit>,
}

impl Held {
    async fn by(leases: &LeaseManager, reads: bool) -> Self {
        let mut held = Self::default();
        held.locks.push(leases.lock("lock").lock().await.expect("a lease"));
        held.locks.push(leases.fair_lock("fair").lock().await.expect("a lease"));
        for name in ["read", "write"] {
            let mut lock = leases.rw_lock(name);
            if reads {
                held.readers.push(lock.read().await.expect("a lease"));
            } else {
                held.writers.push(lock.write().await.expect("a lease"));
            }
        }
        // So that with a reader there is room for two more.
        let count = if reads { 1 } else { SIZE };
        held.permits
            .push(leases.semaphore("pool", SIZE).acquire_many(count).await.expect("permits"));
        held
    }

    async fn release(self) {
        for lease in self.locks {
            lease.unlock().await.expect("a release");
        }
        for page in self.readers {
            page.unlock().await.expect("a release");
        }
        for edit in self.writers {
            edit.unlock().await.expect("a release");
        }
        for permit in self.permits {
            permit.unlock().await.expect("a release");
        }
    }
}

/// The places of those that wait in a line.
const PLACES: [&str; 3] =
    ["leasehold_line:{fair}", "leasehold_read:{read}", "leasehold_write:{write}"];

fn places(server: &Server) -> i64 {
    server.command(&[&["EXISTS"], &PLACES[..]].concat()).int()
}

/// Waits for each name, which is held, until all have a place; then gives up. Each place would be kept for long.
async fn wait_in_vain(leases: &LeaseManager, server: &Server, proxy: &Proxy) {
    let (mut plain, mut in_line) = (leases.lock("lock"), leases.fair_lock("fair"));
    let (mut page, mut edit) = (leases.rw_lock("read"), leases.rw_lock("write"));
    let pool = leases.semaphore("pool", SIZE);
    let asks = || proxy.requests().iter().filter(|request| request.contains(" pool ")).count();
    let before = asks();
    tokio::select! {
        answer = plain.lock_timeout(LASTING) => panic!("{answer:?}"),
        answer = in_line.lock_timeout(LASTING) => panic!("{answer:?}"),
        answer = page.read_timeout(LASTING) => panic!("{answer:?}"),
        answer = edit.write_timeout(LASTING) => panic!("{answer:?}"),
        answer = pool.acquire_timeout(LASTING) => panic!("{answer:?}"),
        // What has no place has asked.
        () = eventually(LONG, || places(server) == 3 && asks() > before + 1) => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_every_mode_may_run_twice() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let leases = connect(&proxy, T).await;
    live(&leases).await;
    let held = Held::by(&leases, false).await;
    let other = connect(&proxy, T).await;
    wait_in_vain(&other, &server, &proxy).await;
    held.release().await;
    leases.semaphore("pool", SIZE).resize(5).await.expect("an answer");
    let held = Held::by(&leases, true).await;
    for name in ["lock", "fair", "read", "pool"] {
        leases.inspect(name).await.expect("an answer");
        assert!(leases.force_unlock(name, "test").await.expect("an answer"), "{name}");
    }
    drop(held);
    let captured = captured(&server, &proxy);
    let called: BTreeSet<&String> = captured.calls.iter().map(|(digest, _)| digest).collect();
    assert!(called.len() >= 12, "{} scripts", called.len());
    run_twice(&mut Mirror::start(captured.scripts.values()), &captured);
}

/// Copies of all that a manager ever sent arrive when others hold and wait, in the order in which they left, and in reverse.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_copies_of_every_mode_touch_no_later_holder() {
    for reads in [false, true] {
        let server = Server::start();
        let [first, second, third] = [(); 3].map(|()| Proxy::start(server.port()));
        live(&connect(&first, T).await).await;
        let leases = connect(&second, LASTING).await;
        let held = Held::by(&leases, reads).await;
        let acquires = captured(&server, &second).calls.len();
        let mut waits = 0;
        if !reads {
            let waiter = connect(&third, LASTING).await;
            wait_in_vain(&waiter, &server, &third).await;
            // It gives its places up.
            eventually(LONG, || places(&server) == 0).await;
            waits = captured(&server, &third).calls.len();
            wait_in_vain(&waiter, &server, &third).await;
        }
        held.release().await;
        let [first, second, third] =
            [&first, &second, &third].map(|proxy| captured(&server, proxy));
        let scripts_of: HashMap<&String, &String> =
            [&first, &second, &third].into_iter().flat_map(|one| &one.scripts).collect();
        let mut mirror = Mirror::start(scripts_of.values().copied());

        // Which of its calls made a hold. All others are about a hold that is there.
        let (mut rest, mut others) = (mirror.look(), Vec::new());
        for call in &first.calls {
            mirror.run(call);
            let after = mirror.look();
            let made = HOLDS
                .iter()
                .any(|key| after.keys.contains_key(*key) && !rest.keys.contains_key(*key));
            if !made {
                others.push(call);
            }
            rest = after;
        }
        let (acquires, releases) = second.calls.split_at(acquires);
        acquires.iter().for_each(|call| drop(mirror.run(call)));
        // Those that wait, without what they send when they give up.
        let leaves = |call: &&Call| {
            let script = scripts_of[&call.0];
            ["waits.leave(now - waited, kept) then", "call('DEL', side)"]
                .iter()
                .any(|part| script.contains(part))
        };
        let (earlier, later) = third.calls.split_at(waits);
        later.iter().filter(|call| !leaves(call)).for_each(|call| drop(mirror.run(call)));
        let before = mirror.look();
        assert!(reads || PLACES.iter().all(|place| before.keys.contains_key(*place)));
        for call in others.iter().chain(others.iter().rev()).copied().chain(earlier) {
            mirror.run(call);
            let after = mirror.look();
            before.assert_kept(&after, &call.1);
            let fields = before.fields(&before);
            let new: Vec<_> = after.fields(&after).difference(&fields).cloned().collect();
            assert!(new.is_empty(), "{new:?} {:?}", call.1);
        }
        let late = first.calls.iter().chain(first.calls.iter().rev());
        for call in late {
            mirror.run(call);
            let mut after = mirror.look();
            // The number of free permits, which those of a late acquire change.
            let [free, out] = ["pool", "{pool}:timeout"].map(|name| &after.keys[name].fields);
            let free: u32 = free[""].parse().expect("a number");
            assert_eq!(free + out.len() as u32, SIZE, "{:?}", call.1);
            let counter = after.keys.get_mut("pool").expect("a counter");
            counter.fields = before.keys["pool"].fields.clone();
            // The fencing token, of which a late reader reserves one more.
            let fence = "redisson_lock_token:{read}";
            if let (Some(new), Some(old)) = (after.keys.get_mut(fence), before.keys.get(fence)) {
                let [last, known] =
                    [&*new, old].map(|key| key.fields[""].parse::<u64>().expect("a number"));
                assert!(last >= known, "{last} after {known}: {:?}", call.1);
                new.fields = old.fields.clone();
            }
            before.assert_kept(&after, &call.1);
        }
        // What the late acquires have left goes by the releases, which are repeated for as long as that can be.
        first.calls.iter().for_each(|call| drop(mirror.run(call)));
        releases.iter().for_each(|call| drop(mirror.run(call)));
        let after = mirror.look();
        let places = ["line", "lapse", "read", "write"].map(|kind| format!("leasehold_{kind}:"));
        let left = after.keys.keys().filter(|key| !rest.keys.contains_key(*key));
        let left = left.filter(|key| !places.iter().any(|place| key.starts_with(place)));
        let left: Vec<&String> = left.collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_script_of_locks_may_run_twice() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let builder = LeaseManager::builder().ttl(T).fence_retention(Some(T * 2));
    let leases = builder.connect(&proxy.url()).await.expect("a manager");

    // Everything that leasehold does with a lock, with calls of one item and of several.
    let mut lock = leases.lock("job");
    let outer = lock.lock().await.expect("a lease");
    let inner = lock.lock().await.expect("a nested lease");
    leases.inspect("job").await.expect("an answer");
    // As Redisson writes it.
    let java = ["HSET", "java", "5e1f3a54-5c1b-4b0e-9a39-0f5d1c0a7b11:47", "1"];
    server.command(&java);
    server.command(&["PEXPIRE", "java", "10000"]);
    let none = leases.lock("java").try_lock().await.expect("an answer");
    assert!(none.is_none());
    let mut several = JoinSet::new();
    for i in 0..20 {
        let mut lock = leases.lock(format!("several:{i}"));
        several.spawn(async move { lock.lock().await });
    }
    let several = several.join_all().await;
    // Until a renewal has also prolonged the memory of the fencing token.
    let mut lowest = i64::MAX;
    let renewed = || {
        let left = server.command(&["PTTL", &fence_key("job")]).int();
        lowest = lowest.min(left);
        left > lowest + 100
    };
    eventually(LONG, renewed).await;
    drop(several);
    eventually(LONG, || server.command(&["KEYS", "several:*"]) == Reply::List(vec![])).await;
    inner.unlock().await.expect("a release");
    outer.unlock().await.expect("a release");
    let forced = leases.lock("forced").lock().await.expect("a lease");
    leases.force_unlock("forced", "test").await.expect("an answer");
    drop(forced);

    let captured = captured(&server, &proxy);
    assert!(captured.scripts.len() >= 4, "{:?}", captured.scripts.keys());
    let mut mirror = Mirror::start(captured.scripts.values());
    mirror.connection.command(&java);
    mirror.connection.command(&["PEXPIRE", "java", "10000"]);
    run_twice(&mut mirror, &captured);
    // Fencing tokens and notes outlive the locks.
    let left: Vec<String> = mirror.look().keys.into_keys().collect();
    let locks: Vec<&String> =
        left.iter().filter(|key| !key.contains("_token:") && !key.contains("_note:")).collect();
    assert_eq!(locks, ["java"]);
}
