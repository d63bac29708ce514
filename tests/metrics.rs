//! Metrics, as a Prometheus exporter renders them. In a program of its own, because its recorder serves the whole process.

use http::{Request, Response};
use leasehold::store::MemoryStore;
use leasehold::testing::{Call, Fault, FaultyStore, Rule};
use leasehold::tower::{FENCE_HEADER, FenceGuard};
use leasehold::{Error, ErrorKind, LeaseManager, Metrics};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::sleep;
use tower_layer::Layer;
use tower_service::Service;

const T: Duration = Duration::from_secs(30);

const CAUSES: [&str; 8] =
    ["expired", "gone", "taken", "revoked", "stolen", "max_hold", "closed", "stalled"];

/// Returns the value of a series, by its start.
fn value(scrape: &PrometheusHandle, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let text = scrape.render();
    let line = text.lines().find(|line| {
        let rest = line.strip_prefix(name);
        let rest = rest.filter(|rest| rest.starts_with(['{', ' ']));
        let has = |(key, value): &(&str, &str)| line.contains(&format!("{key}=\"{value}\""));
        rest.is_some() && labels.iter().all(has)
    })?;
    line.rsplit(' ').next()?.parse().ok()
}

/// A resource that accepts every write.
struct Rows;

impl Service<Request<()>> for Rows {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(())))
    }
}

/// A series, by its name and by labels that one of its lines has.
type Series = (&'static str, Vec<(&'static str, &'static str)>);

/// The series that are there from the start, at zero.
fn from_the_start() -> Vec<Series> {
    let mut all = vec![
        ("leasehold_waiters", vec![("class", "all")]),
        ("leasehold_at_risk", vec![("class", "all")]),
        ("leasehold_renewal_headroom_count", vec![]),
        ("leasehold_watchdog_lag_count", vec![]),
        ("leasehold_store_reconnects", vec![]),
        ("leasehold_fence_refused", vec![("class", "all")]),
        ("leasehold_leader", vec![("election", "all")]),
        ("leasehold_events_dropped", vec![]),
    ];
    for cause in CAUSES {
        all.push(("leasehold_losses", vec![("class", "all"), ("cause", cause)]));
    }
    all
}

/// Those that begin with their first value.
const LATER: [&str; 5] = [
    "leasehold_leases",
    "leasehold_acquire_duration_count",
    "leasehold_hold_duration_count",
    "leasehold_store_duration_count",
    "leasehold_store_batch_count",
];

/// The number of lines with a value.
fn lines(scrape: &PrometheusHandle) -> usize {
    scrape.render().lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count()
}

/// The names in the rules of the guide.
fn names_in_rules() -> BTreeSet<&'static str> {
    let page = include_str!("../src/guide/operations.md");
    let rules = page.split("```yaml").nth(1).expect("the rules").split("```").next();
    let words = rules.expect("their end").split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("leasehold_")).collect()
}

/// Waits until the thread of the observer has reported a value.
async fn until(scrape: &PrometheusHandle, name: &str, labels: &[(&str, &str)], expected: f64) {
    let start = std::time::Instant::now();
    loop {
        let now = value(scrape, name, labels);
        if now == Some(expected) {
            return;
        }
        let text = scrape.render();
        assert!(start.elapsed() < T, "{name} {labels:?}: {now:?}, not {expected}\n{text}");
        // The clock stands still meanwhile.
        tokio::task::yield_now().await;
    }
}

#[test]
fn series_of_a_new_process_are_few() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let scrape = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        let metrics = Metrics::new();
        // The page of operations has these numbers.
        assert_eq!(lines(&scrape), 32, "{}", scrape.render());
        let _metrics = metrics.classes(["import"]);
        assert_eq!(lines(&scrape), 32 + 12, "{}", scrape.render());
    });
}

#[tokio::test(start_paused = true)]
async fn series_begin_at_zero_or_with_a_value_and_move() {
    let headroom = Matcher::Full("leasehold.renewal.headroom".to_owned());
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Prefix("leasehold".to_owned()), &[0.1, 1.5, 10.0])
        .and_then(|builder| builder.set_buckets_for_metric(headroom, &[0.08, 0.5, 0.7]))
        .expect("buckets")
        .build_recorder();
    let scrape = recorder.handle();
    metrics::set_global_recorder(recorder).expect("the only one");
    let observer = Metrics::new().classes(["import"]);
    for (name, labels) in from_the_start() {
        assert_eq!(value(&scrape, name, &labels), Some(0.0), "{name} {labels:?}");
    }
    for name in LATER {
        assert_eq!(value(&scrape, name, &[]), None, "{name}");
    }
    let import = [("class", "import"), ("cause", "expired")];
    assert_eq!(value(&scrape, "leasehold_losses", &import), Some(0.0));

    let (store, faults) = FaultyStore::new(MemoryStore::new());
    let leases = LeaseManager::builder().observer(observer).build(store).unwrap();
    let all = ("class", "all");
    let exclusive = [all, ("mode", "exclusive")];
    let acquired = |outcome| [all, ("mode", "exclusive"), ("outcome", outcome)];
    let ended = |end| [all, ("mode", "exclusive"), ("end", end)];

    let lease = leases.lock("secret-name").lock().await.unwrap();
    until(&scrape, "leasehold_leases", &exclusive, 1.0).await;
    until(&scrape, "leasehold_acquire_duration_count", &acquired("granted"), 1.0).await;
    assert!(leases.lock("secret-name").try_lock().await.unwrap().is_none());
    until(&scrape, "leasehold_acquire_duration_count", &acquired("busy"), 1.0).await;
    let mut lock = leases.lock("secret-name");
    {
        let mut waiting = pin!(lock.lock());
        tokio::select! { biased; _ = &mut waiting => panic!("it is held"), () = sleep(T / 4) => {} }
        until(&scrape, "leasehold_waiters", &[all], 1.0).await;
        lease.unlock().await.unwrap();
        until(&scrape, "leasehold_waiters", &[all], 1.0).await;
        drop(waiting.await.unwrap());
    }
    until(&scrape, "leasehold_waiters", &[all], 0.0).await;
    until(&scrape, "leasehold_hold_duration_count", &ended("released"), 2.0).await;
    until(&scrape, "leasehold_leases", &exclusive, 0.0).await;

    let renewed = [("op", "renew"), ("outcome", "done")];
    let lease = leases.lock("secret-name").lock().await.unwrap();
    faults.until_calls(Call::Renew, 1).await;
    until(&scrape, "leasehold_store_duration_count", &renewed, 1.0).await;
    until(&scrape, "leasehold_renewal_headroom_count", &[], 1.0).await;
    let headroom = value(&scrape, "leasehold_renewal_headroom_sum", &[]).unwrap();
    assert!((0.6..0.7).contains(&headroom), "{headroom}");
    assert!(value(&scrape, "leasehold_watchdog_lag_count", &[]).unwrap() >= 1.0);
    faults.reconnect();
    sleep(T / 100).await;
    until(&scrape, "leasehold_store_reconnects", &[], 1.0).await;

    let error = Error::new(ErrorKind::Unavailable, "none");
    faults.add(Rule::new(Fault::Fail(error)).on(Call::Renew));
    lease.lost().await;
    until(&scrape, "leasehold_losses", &[all, ("cause", "expired")], 1.0).await;
    until(&scrape, "leasehold_at_risk", &[all], 1.0).await;
    until(&scrape, "leasehold_hold_duration_count", &ended("lost"), 1.0).await;
    until(&scrape, "leasehold_leases", &exclusive, 0.0).await;
    faults.heal();
    drop(lease);

    let mut rw = leases.rw_lock("secret-name-too");
    let read = rw.write().await.unwrap().downgrade().await.unwrap();
    until(&scrape, "leasehold_leases", &[all, ("mode", "read")], 1.0).await;
    until(&scrape, "leasehold_leases", &[all, ("mode", "write")], 0.0).await;
    let other = leases.rw_lock("secret-name-too").read().await.unwrap();
    let joined = [all, ("mode", "read"), ("outcome", "joined")];
    until(&scrape, "leasehold_acquire_duration_count", &joined, 1.0).await;
    drop((read, other));
    until(&scrape, "leasehold_leases", &[all, ("mode", "read")], 0.0).await;

    let mut candidate = leases.election("secret-post").candidate("here");
    let me = candidate.campaign().await.unwrap();
    until(&scrape, "leasehold_leader", &[("election", "all")], 1.0).await;
    me.resign().await.unwrap();
    until(&scrape, "leasehold_leader", &[("election", "all")], 0.0).await;
    let me = candidate.campaign().await.unwrap();
    until(&scrape, "leasehold_leader", &[("election", "all")], 1.0).await;
    leases.force_unlock("secret-post", "a test").await.unwrap();
    until(&scrape, "leasehold_leader", &[("election", "all")], 0.0).await;
    drop(me);

    // A resource that refuses the write of an earlier holder.
    let mut resource = FenceGuard::new(|_: &Request<()>| Some("row".to_owned())).layer(Rows);
    for (fence, status) in [(2, 200), (1, 412)] {
        let request = Request::put("/").header(FENCE_HEADER, fence).body(()).unwrap();
        assert_eq!(resource.call(request).await.unwrap().status(), status);
    }
    until(&scrape, "leasehold_fence_refused", &[all], 1.0).await;

    assert!(!scrape.render().contains("secret"), "a name is a label");
    // 0.66 is between 0.5 and 0.7.
    let below = |le| value(&scrape, "leasehold_renewal_headroom_bucket", &[("le", le)]);
    assert!(below("0.5") < below("0.7"), "{}", scrape.render());
    let names = names_in_rules();
    assert!(names.len() >= 6, "{names:?}");
    for name in names {
        assert!(value(&scrape, name, &[]).is_some(), "a rule of the guide asks for {name}");
    }
    leases.close().await.unwrap();
}
