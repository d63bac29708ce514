//! The answers of the ZooKeeper store in the modes that share a name: requests that race, run twice, or whose answer is lost.

use kit::relay::{Relay, Traffic};
use kit::zookeeper::{Look, ZooKeeper, directory};
use leasehold::store::{
    Absence, Acquire, Acquired, Fencing, HolderId, Mode, Name, Release, Released, RenewBatch,
    RenewCall, Renewal, Store, Target,
};
use leasehold::testing::zookeeper_store;
use leasehold::{ErrorKind, Fate, Result};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use uuid::Uuid;
use zookeeper_client::{Acls, CreateMode};

const LEASE: Duration = Duration::from_secs(6);
const LONG: Duration = Duration::from_secs(15);
/// The kind of a request that is a transaction.
const MULTI: i32 = 14;

async fn store(url: &str) -> Arc<dyn Store> {
    zookeeper_store(url, LEASE).await.expect("the server runs")
}

/// A holder id that asks for a name.
#[derive(Clone)]
struct Party {
    store: Arc<dyn Store>,
    name: String,
    holder: HolderId,
}

impl Party {
    fn of(store: &Arc<dyn Store>, name: &str) -> Self {
        let holder = HolderId::new(Uuid::new_v4(), 1);
        Self { store: Arc::clone(store), name: name.to_owned(), holder }
    }

    fn target(&self, mode: Mode) -> Target {
        Target::new(Name::new(&self.name).expect("a name"), mode)
    }

    fn request(&self, mode: Mode) -> Acquire {
        Acquire::new(self.target(mode), self.holder, LEASE, LONG)
            .with_fencing(Some(Fencing::new(1, None)))
    }

    async fn acquire(&self, mode: Mode) -> Result<Acquired> {
        self.store.acquire(self.request(mode)).await
    }

    async fn convert(&self, mode: Mode) -> Result<Acquired> {
        self.store.acquire(self.request(mode).with_converts(true)).await
    }

    async fn release(&self) -> Released {
        let request = Release::new(self.target(Mode::Read), self.holder, 0, LONG);
        self.store.release(request).await.expect("an answer")
    }

    async fn is_there(&self) -> bool {
        let items = vec![Renewal::new(self.target(Mode::Read), self.holder)];
        let renewed = RenewCall::join(self.store.renew(RenewBatch::new(items, LEASE, LONG))).await;
        matches!(renewed.expect("an answer").verdicts[..], [Ok(None)])
    }
}

#[track_caller]
fn granted(verdict: Result<Acquired>) -> Option<u64> {
    match verdict {
        Ok(Acquired::Granted { fence, .. }) => fence,
        other => panic!("{other:?}"),
    }
}

fn is_granted(verdict: &Result<Acquired>) -> bool {
    matches!(verdict, Ok(Acquired::Granted { .. }))
}

#[track_caller]
fn held(verdict: Result<Acquired>) {
    assert!(matches!(verdict, Ok(Acquired::Held { .. })), "{verdict:?}");
}

async fn forge(look: &Look, node: &str) -> String {
    let open = Acls::anyone_all();
    let container = CreateMode::Container.with_acls(open);
    look.0.mkdir(&directory("job"), &container).await.expect("created");
    let path = format!("{}/{node}", directory("job"));
    let mode = CreateMode::EphemeralSequential.with_acls(open);
    let (_, sequence) = look.0.create(&path, b"", &mode).await.expect("created");
    format!("{path}{sequence}")
}

#[tokio::test]
async fn upgrade_and_reader_that_comes_do_not_both_succeed() {
    let server = ZooKeeper::start();
    let (here, there) = (store(&server.url()).await, store(&server.url()).await);
    let (mut upgraded, mut joined) = (0, 0);
    for round in 0..400 {
        let (reader, other) = (Party::of(&here, "job"), Party::of(&there, "job"));
        granted(reader.acquire(Mode::Read).await);
        let late = async |late: bool| {
            for _ in 0..if late { round / 2 } else { 0 } {
                tokio::task::yield_now().await;
            }
        };
        let change = async {
            late(round % 2 == 0).await;
            reader.convert(Mode::Write).await
        };
        let read = async {
            late(round % 2 == 1).await;
            other.acquire(Mode::Read).await
        };
        let (change, read) = tokio::join!(change, read);
        let (change, read) = (is_granted(&change), is_granted(&read));
        assert!(!(change && read), "round {round}: a writer beside a reader");
        upgraded += usize::from(change);
        joined += usize::from(read);
        // Refused, it is the reader that it was.
        assert!(reader.is_there().await);
        assert_eq!(reader.release().await, Released::done(0));
        if read {
            assert_eq!(other.release().await, Released::done(0));
        }
    }
    println!("{upgraded} upgrades, {joined} readers");
    assert!(upgraded > 0 && joined > 0, "{upgraded} upgrades, {joined} readers");
}

#[tokio::test]
async fn two_readers_never_both_become_the_writer() {
    let server = ZooKeeper::start();
    let stores = [store(&server.url()).await, store(&server.url()).await];
    for round in 0..50 {
        let [one, two] = stores.each_ref().map(|store| Party::of(store, "job"));
        granted(one.acquire(Mode::Read).await);
        granted(two.acquire(Mode::Read).await);
        let (first, second) = tokio::join!(one.convert(Mode::Write), two.convert(Mode::Write));
        held(first);
        held(second);
        assert_eq!(two.release().await, Released::done(0), "round {round}");
        granted(one.convert(Mode::Write).await);
        assert_eq!(one.release().await, Released::done(0));
    }
}

/// A mode, its fencing token, and from when to when it was surely held.
type Seen = (Mode, u64, Instant, Instant);

#[tokio::test]
async fn tokens_of_readers_lie_between_those_of_writers() {
    let server = ZooKeeper::start();
    let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let barrier = Arc::new(tokio::sync::Barrier::new(6));
    let mut tasks = Vec::new();
    for task in 0..6u64 {
        let (store, seen) = (store(&server.url()).await, Arc::clone(&seen));
        let barrier = Arc::clone(&barrier);
        tasks.push(tokio::spawn(async move {
            for round in 0..40u64 {
                // Now and then nothing else asks, so that there are writers between the readers.
                let writes = round % 8 == 7;
                let mode = if writes { Mode::Write } else { Mode::Read };
                if writes {
                    barrier.wait().await;
                }
                if writes && task > 0 {
                    barrier.wait().await;
                    continue;
                }
                let party = Party::of(&store, "job");
                let verdict = party.acquire(mode).await;
                let since = Instant::now();
                let fence = granted(verdict).expect("a token");
                tokio::time::sleep(Duration::from_micros((task * 7 + round * 13) % 11 * 300)).await;
                seen.lock().expect("no panic").push((mode, fence, since, Instant::now()));
                assert_eq!(party.release().await, Released::done(0));
                if writes {
                    barrier.wait().await;
                }
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    let seen = seen.lock().expect("no panic");
    let (mut shared, mut phases) = (0, 0);
    for (number, (mode, fence, since, until)) in seen.iter().enumerate() {
        phases += usize::from(*mode == Mode::Write);
        for (other_mode, other, from, to) in &seen[..number] {
            if from < until && since < to {
                assert_eq!((mode, other_mode), (&Mode::Read, &Mode::Read), "a writer is alone");
                assert_ne!(fence, other, "readers at one time");
                shared += 1;
            } else if (mode, other_mode) != (&Mode::Read, &Mode::Read) {
                assert_eq!(from < since, other < fence, "tokens grow in the order of grants");
            }
        }
    }
    println!("{shared} pairs of readers, {phases} writers, {} grants", seen.len());
    assert!(shared > 20 && phases == 5, "{shared}, {phases}");
}

#[tokio::test]
async fn change_whose_answer_is_lost_is_completed_by_the_next() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let (store, rival) = (store(&relay.url()).await, store(&server.url()).await);
    let look = Look::at(&server.hosts()).await;
    for (number, (from, to)) in
        [(Mode::Write, Mode::Read), (Mode::Read, Mode::Write)].into_iter().enumerate()
    {
        let (party, other) = (Party::of(&store, "job"), Party::of(&rival, "job"));
        let first = granted(party.acquire(from).await);
        relay.lose_reply_of(MULTI);
        let error = party.convert(to).await.expect_err("no answer");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(relay.lost(), number * 2 + 1);
        for _ in 0..2 {
            let second = granted(party.convert(to).await);
            assert!(if to == Mode::Write { second > first } else { second == first });
        }
        assert!(party.is_there().await);
        let read = other.acquire(Mode::Read).await;
        assert_eq!(is_granted(&read), to == Mode::Read, "{read:?}");
        other.release().await;
        // If nothing follows, the release finds the node under either name.
        relay.lose_reply_of(MULTI);
        party.convert(from).await.expect_err("no answer");
        assert_eq!(party.release().await, Released::done(0));
        assert_eq!(party.release().await, Released::NotYours(Absence::Gone));
        assert!(look.nodes("job").await.is_empty());
    }
}

/// The node has another name after each change.
#[tokio::test]
async fn renewal_beside_a_change_of_the_mode_reports_no_loss() {
    let server = ZooKeeper::start();
    let party = Party::of(&store(&server.url()).await, "job");
    granted(party.acquire(Mode::Write).await);
    let renewing = tokio::spawn({
        let party = party.clone();
        async move {
            for _ in 0..1000 {
                let items = vec![Renewal::new(party.target(Mode::Read), party.holder)];
                let renewed =
                    RenewCall::join(party.store.renew(RenewBatch::new(items, LEASE, LONG))).await;
                let verdicts = renewed.expect("an answer").verdicts;
                assert!(!matches!(verdicts[..], [Ok(Some(_))]), "{verdicts:?}");
            }
        }
    });
    let mut changes = 0;
    while !renewing.is_finished() {
        for mode in [Mode::Read, Mode::Write] {
            granted(party.convert(mode).await);
            changes += 1;
        }
    }
    renewing.await.expect("no loss");
    println!("{changes} changes");
    assert!(changes > 20, "{changes}");
    assert!(party.is_there().await);
}

#[tokio::test]
async fn kinds_that_race_for_a_name_do_not_mix() {
    let server = ZooKeeper::start();
    let stores =
        [store(&server.url()).await, store(&server.url()).await, store(&server.url()).await];
    let modes = [Mode::Exclusive, Mode::Read, Mode::Permits { size: 2, take: 1 }];
    let mut wins = [0; 3];
    for round in 0..60 {
        let parties = stores.each_ref().map(|store| Party::of(store, &format!("job:{round}")));
        let [one, two, three] = &parties;
        let verdicts = tokio::join!(
            one.acquire(modes[round % 3]),
            two.acquire(modes[(round + 1) % 3]),
            three.acquire(modes[(round + 2) % 3])
        );
        let verdicts = [verdicts.0, verdicts.1, verdicts.2];
        let wrong = |error: &leasehold::Error| error.kind() == ErrorKind::WrongType;
        for (number, verdict) in verdicts.iter().enumerate() {
            if is_granted(verdict) {
                wins[(round + number) % 3] += 1;
            } else {
                assert!(verdict.as_ref().is_err_and(wrong), "round {round}: {verdict:?}");
            }
        }
        let count = verdicts.iter().filter(|verdict| is_granted(verdict)).count();
        assert!(count <= 1, "round {round}: {verdicts:?}");
        for party in &parties {
            party.release().await;
        }
    }
    println!("{wins:?}");
    assert!(wins.iter().sum::<i32>() > 0, "{wins:?}");
}

#[tokio::test]
async fn sizes_that_race_for_a_semaphore_do_not_mix() {
    let server = ZooKeeper::start();
    let stores = [store(&server.url()).await, store(&server.url()).await];
    let mut wins = [0; 2];
    for round in 0..60 {
        let [one, two] = stores.each_ref().map(|store| Party::of(store, &format!("pool:{round}")));
        let (first, second) = tokio::join!(
            one.acquire(Mode::Permits { size: 2, take: 1 }),
            two.acquire(Mode::Permits { size: 3, take: 1 })
        );
        let both = [&first, &second];
        for (number, verdict) in both.iter().enumerate() {
            let invalid = |error: &leasehold::Error| error.kind() == ErrorKind::Invalid;
            assert!(is_granted(verdict) || verdict.as_ref().is_err_and(invalid), "{verdict:?}");
            wins[number] += usize::from(is_granted(verdict));
        }
        assert_eq!(both.iter().filter(|verdict| is_granted(verdict)).count(), 1, "round {round}");
        one.release().await;
        two.release().await;
    }
    println!("{wins:?}");
}

/// The owner of the node may be dead, or only wait.
#[tokio::test]
async fn node_of_any_owner_decides_the_kind() {
    let server = ZooKeeper::start();
    let (store, look) = (store(&server.url()).await, Look::at(&server.hosts()).await);
    let permits = Mode::Permits { size: 2, take: 1 };
    let waiter = Uuid::new_v4();
    for (node, kind) in [
        (format!("h~{waiter}:1~"), Mode::Exclusive),
        (format!("w~{waiter}~"), Mode::Exclusive),
        (format!("r0~{waiter}~"), Mode::Read),
        (format!("x~{waiter}:1~"), Mode::Write),
        (format!("p1of2~{waiter}~"), permits),
    ] {
        for mode in [Mode::Exclusive, Mode::Read, Mode::Write, permits] {
            let path = forge(&look, &node).await;
            let party = Party::of(&store, "job");
            let verdict = party.acquire(mode).await;
            let refused = verdict.as_ref().is_err_and(|error| error.kind() == ErrorKind::WrongType);
            let same = |mode| match mode {
                Mode::Read | Mode::Write => "rw",
                Mode::Exclusive => "lock",
                _ => "permits",
            };
            assert_eq!(refused, same(kind) != same(mode), "{node}, {mode:?}: {verdict:?}");
            look.0.delete(&path, None).await.expect("it is there");
            party.release().await;
            assert!(look.nodes("job").await.is_empty());
        }
    }
}

/// The record waits for the link, and then for the node under the name that the change has just replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_beside_a_downgrade_forgets_no_hold() {
    let server = ZooKeeper::start();
    let relay = Relay::to_server(server.port(0));
    let store: Arc<dyn Store> = store(&relay.url()).await;
    for round in 0..12 {
        let party = Party::of(&store, &format!("job:{round}"));
        party.acquire(Mode::Write).await.expect("granted");
        relay.set(Traffic::Refuse);
        tokio::time::sleep(Duration::from_millis(60)).await;
        let record = Release::new(party.target(Mode::Write), party.holder, 1, LONG);
        let recording = tokio::spawn(party.store.release(record));
        tokio::time::sleep(Duration::from_millis(30)).await;
        let change = party.request(Mode::Read).with_converts(true);
        let changing = tokio::spawn(party.store.acquire(change));
        tokio::time::sleep(Duration::from_millis(30)).await;
        relay.set(Traffic::Pass);
        let recorded = recording.await.expect("no panic");
        let changed = changing.await.expect("no panic");
        let changed = match changed {
            Ok(Acquired::Granted { .. }) => true,
            Err(error) if error.fate() == Fate::Unknown => false,
            other => panic!("{round}: {other:?} after {recorded:?}"),
        };
        if changed {
            let items = vec![Renewal::new(party.target(Mode::Read), party.holder)];
            let renewed = RenewCall::join(party.store.renew(RenewBatch::new(items, LEASE, LONG)));
            let verdict = renewed.await.expect("an answer").verdicts.remove(0);
            assert!(matches!(verdict, Ok(None)), "{round}: {verdict:?} after {recorded:?}");
        }
    }
}
