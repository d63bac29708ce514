//! A lease that is alive after its loss: what the manager does, and when it does nothing.

use super::{lock, millis};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kit::{Mode, Proxy, Server, eventually};
use leasehold::store::MemoryStore;
use leasehold::{Builder, ErrorKind, LeaseManager, Loss, Overrun, OverrunReport};

const T: Duration = millis(1_500);
/// The longest, so that a busy machine is no overrun.
const GRACE: Duration = millis(500);
const LONG: Duration = Duration::from_secs(10);

/// What the hooks were called with, and when.
#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Vec<(OverrunReport, Instant)>>>);

impl Reports {
    fn hook(&self) -> Overrun {
        let reports = self.clone();
        Overrun::hook(move |report| {
            reports.0.lock().unwrap().push((report.clone(), Instant::now()));
        })
    }

    fn all(&self) -> Vec<(OverrunReport, Instant)> {
        self.0.lock().unwrap().clone()
    }

    fn names(&self) -> Vec<String> {
        self.all().iter().map(|(report, _)| report.name().to_owned()).collect()
    }

    async fn first(&self) -> (OverrunReport, Instant) {
        eventually(LONG, || !self.all().is_empty()).await;
        self.all().swap_remove(0)
    }

    /// Waits until the hook was called for a lease that is lost from now on: all earlier ones were due before.
    async fn none_but_the_next(&self, leases: &LeaseManager, server: &Server) {
        let last = lock(leases, "last").await;
        server.command(&["DEL", "last"]);
        eventually(LONG, || self.names().contains(&"last".to_owned())).await;
        drop(last);
        assert_eq!(self.names(), ["last"]);
    }
}

fn builder() -> Builder {
    LeaseManager::builder().ttl(T).grace(GRACE)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hook_is_called_before_the_name_has_another_holder() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let reports = Reports::default();
    let leases = builder().on_overrun(reports.hook()).connect(proxy.url()).await.unwrap();
    let others = builder().connect(server.url()).await.unwrap();
    let mut handle = leases.lock("job").label("import");
    let outer = handle.lock().await.unwrap();
    let inner = handle.lock().await.unwrap();
    let waiting = tokio::spawn(async move {
        let lease = others.lock("job").lock().await.unwrap();
        (lease, Instant::now())
    });
    proxy.set(Mode::BlackHole);
    let (report, at) = reports.first().await;
    let (next, entered) = waiting.await.unwrap();
    assert!(at < entered, "called {:?} after the next grant", at - entered);
    assert_eq!((report.name(), report.loss()), ("job", Loss::Expired));
    assert_eq!((report.label(), report.fence()), (Some("import"), outer.fence()));
    assert_eq!(report.holder_id(), outer.holder_id());
    assert!(report.lost_for() >= GRACE * 3 / 4, "{:?}", report.lost_for());
    assert!(next.fence() > report.fence());
    drop((inner, outer));
    proxy.set(Mode::Pass);
    reports.0.lock().unwrap().clear();
    reports.none_but_the_next(&leases, &server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_has_a_grace_after_a_loss_that_left_nothing() {
    let server = Server::start();
    let reports = Reports::default();
    let leases = builder().on_overrun(reports.hook()).connect(server.url()).await.unwrap();
    let lease = lock(&leases, "job").await;
    let lost = tokio::spawn(lease.lost());
    server.command(&["DEL", "job"]);
    lost.await.unwrap();
    let (report, _) = reports.first().await;
    assert_eq!(report.loss(), Loss::Gone);
    assert!(report.lost_for() >= GRACE, "{:?}", report.lost_for());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_happens_after_a_clean_end() {
    let server = Server::start();
    let reports = Reports::default();
    let leases = builder().on_overrun(reports.hook()).connect(server.url()).await.unwrap();
    lock(&leases, "unlocked").await.unlock().await.unwrap();
    drop(lock(&leases, "dropped").await);
    lock(&leases, "forgotten").await.forget();
    // Dropped within the grace.
    let lost = lock(&leases, "lost").await;
    server.command(&["DEL", "lost"]);
    lost.lost().await;
    drop(lost);
    reports.none_but_the_next(&leases, &server).await;
}

/// What a hook owns may do anything when it is dropped, and the engine has the last reference to most holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hook_is_dropped_on_the_thread_that_calls_it() {
    struct Reports(std::sync::mpsc::Sender<String>);
    impl Drop for Reports {
        fn drop(&mut self) {
            let thread = std::thread::current();
            let _ = self.0.send(thread.name().unwrap_or_default().to_owned());
            std::thread::sleep(T);
            panic!("a drop");
        }
    }
    let server = Server::start();
    let leases = builder().connect(server.url()).await.unwrap();
    let (dropped, threads) = std::sync::mpsc::channel();
    let hook = || {
        let owned = Reports(dropped.clone());
        Overrun::hook(move |_| drop(owned.0.clone()))
    };
    let kept = lock(&leases, "kept").await;
    // Released by the engine; lost and dropped in time; called.
    drop(leases.lock("a").on_overrun(hook()).lock().await.unwrap());
    let dropped_in_time = leases.lock("b").on_overrun(hook()).lock().await.unwrap();
    let overran = leases.lock("c").on_overrun(hook()).lock().await.unwrap();
    server.command(&["DEL", "b", "c"]);
    dropped_in_time.lost().await;
    drop(dropped_in_time);
    overran.lost().await;
    tokio::time::sleep(GRACE * 2).await;
    drop(overran);
    let threads = tokio::task::spawn_blocking(move || {
        (0..3).map(|_| threads.recv_timeout(LONG).unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(threads.await.unwrap(), ["leasehold-stop"; 3]);
    kept.check().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_term_of_a_candidate_counts() {
    let server = Server::start();
    let reports = Reports::default();
    let leases = builder().on_overrun(reports.hook()).connect(server.url()).await.unwrap();
    let mut candidate = leases.election("leader").candidate("me");
    let mut kept = Vec::new();
    for term in 1..=3 {
        kept.push(candidate.campaign().await.unwrap());
        server.command(&["DEL", "leader"]);
        eventually(LONG, || reports.all().len() == term).await;
    }
}

/// A service that closes its manager because a lease is lost must not disarm the action.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_waits_for_an_action_that_is_to_come() {
    let server = Server::start();
    let reports = Reports::default();
    let leases = builder().on_overrun(reports.hook()).connect(server.url()).await.unwrap();
    let lost = lock(&leases, "lost").await;
    let stopped = lock(&leases, "stopped").await;
    server.command(&["DEL", "lost", "stopped"]);
    lost.lost().await;
    stopped.lost().await;
    drop(stopped);
    leases.close().await.unwrap();
    assert_eq!(reports.names(), ["lost"]);
    drop(lost);
}

/// Hooks that wait for one another are called all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_takes_no_hook_back() {
    let server = Server::start();
    let reports = Reports::default();
    let called = reports.clone();
    let slow = Overrun::hook(move |report| {
        std::thread::sleep(millis(100));
        called.0.lock().unwrap().push((report.clone(), Instant::now()));
    });
    let leases = builder().on_overrun(slow).connect(server.url()).await.unwrap();
    let names = ["a", "b", "c"];
    let mut kept = Vec::new();
    for name in names {
        kept.push(lock(&leases, name).await);
    }
    server.command(&["DEL", "a", "b", "c"]);
    // At once as the token fires: the action is known by then.
    kept[0].cancellation_token().cancelled().await;
    for lease in &kept {
        lease.lost().await;
    }
    leases.close().await.unwrap();
    eventually(LONG, || reports.all().len() == names.len()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handle_can_leave_out_the_action_of_its_manager() {
    let server = Server::start();
    let reports = Reports::default();
    let leases = builder().on_overrun(reports.hook()).connect(server.url()).await.unwrap();
    let ignored = leases.lock("ignored").on_overrun(Overrun::Ignore).lock().await.unwrap();
    server.command(&["DEL", "ignored"]);
    ignored.lost().await;
    reports.none_but_the_next(&leases, &server).await;
    let memory = LeaseManager::in_memory();
    memory.lock("job").on_overrun(Overrun::Ignore).lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_is_no_overrun() {
    let server = Server::start();
    let reports = Reports::default();
    let leases = builder().on_overrun(reports.hook()).connect(server.url()).await.unwrap();
    let kept = lock(&leases, "kept").await;
    leases.close().await.unwrap();
    assert_eq!(kept.check().unwrap_err().loss(), Some(Loss::Closed));
    tokio::time::sleep(GRACE * 3).await;
    assert!(reports.names().is_empty());
}

/// The holds of a set share one action, and each set has its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_a_set_count_as_one() {
    let server = Server::start();
    let reports = Reports::default();
    let leases = builder().connect(server.url()).await.unwrap();
    let mut sets = leases.multi_lock(["a", "b", "c"]).unwrap().on_overrun(reports.hook());
    for round in 1..=2 {
        let set = sets.lock().await.unwrap();
        server.command(&["DEL", "a", "b"]);
        eventually(LONG, || reports.all().len() == round).await;
        // The third name is lost after the action.
        server.command(&["DEL", "c"]);
        let last = set.leases().find(|lease| lease.name() == "c").unwrap().lost();
        last.await;
        tokio::time::sleep(GRACE * 2).await;
        assert_eq!(reports.all().len(), round);
        drop(set);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hook_that_panics_or_blocks_holds_up_nothing_else() {
    let server = Server::start();
    let reports = Reports::default();
    let leases = builder().on_overrun(reports.hook()).connect(server.url()).await.unwrap();
    let panics = Overrun::hook(|_| panic!("a hook"));
    let broken = leases.lock("broken").on_overrun(panics).lock().await.unwrap();
    server.command(&["DEL", "broken"]);
    broken.lost().await;
    tokio::time::sleep(GRACE * 2).await;
    reports.none_but_the_next(&leases, &server).await;
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let blocks = Overrun::hook(move |_| {
        let _ = wait.lock().unwrap().recv();
    });
    let blocked = leases.lock("blocked").on_overrun(blocks).lock().await.unwrap();
    let kept = lock(&leases, "kept").await;
    server.command(&["DEL", "blocked"]);
    blocked.lost().await;
    tokio::time::sleep(T * 2).await;
    kept.check().unwrap();
    lock(&leases, "other").await.unlock().await.unwrap();
    drop(go);
}

#[tokio::test]
async fn manager_without_threads_of_its_own_is_refused() {
    let server = Server::start();
    let refused = [
        builder().on_overrun(Overrun::Abort).connect("memory:").await.unwrap_err(),
        builder().on_overrun(Overrun::Abort).build(MemoryStore::new()).unwrap_err(),
        builder()
            .on_overrun(Overrun::Abort)
            .dedicated_thread(false)
            .connect(server.url())
            .await
            .unwrap_err(),
        LeaseManager::in_memory().lock("job").on_overrun(Overrun::Abort).lock().await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("dedicated_thread"), "{error}");
    }
    let leases = builder().dedicated_thread(true).connect("memory:").await.unwrap();
    leases.lock("job").on_overrun(Overrun::Abort).lock().await.unwrap().unlock().await.unwrap();
}
