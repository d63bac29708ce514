//! Metrics, as a Prometheus exporter renders them. In a program of its own, because its recorder serves the whole process.

use http::{Request, Response};
use leasehold::store::MemoryStore;
use leasehold::testing::{Call, Fault, FaultyStore, Rule};
use leasehold::tower::{FENCE_HEADER, FenceGuard};
use leasehold::{Error, ErrorKind, LeaseManager, Metrics};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
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
const MODES: [&str; 4] = ["exclusive", "read", "write", "permits"];

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

/// All series of the table, each with labels that one of them has.
fn series() -> Vec<(&'static str, Vec<(&'static str, &'static str)>)> {
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
    for mode in MODES {
        all.push(("leasehold_leases", vec![("class", "all"), ("mode", mode)]));
        for outcome in
            ["granted", "handed_off", "joined", "busy", "timeout", "error", "dropped", "stolen"]
        {
            let labels = vec![("class", "all"), ("mode", mode), ("outcome", outcome)];
            all.push(("leasehold_acquire_duration_count", labels));
        }
        for end in ["released", "handed_off", "lost", "not_released", "mode_changed"] {
            let labels = vec![("class", "all"), ("mode", mode), ("end", end)];
            all.push(("leasehold_hold_duration_count", labels));
        }
    }
    for op in ["acquire", "release", "renew"] {
        for outcome in ["done", "refused", "unavailable", "error"] {
            all.push(("leasehold_store_duration_count", vec![("op", op), ("outcome", outcome)]));
        }
    }
    for outcome in ["done", "refused", "unavailable", "error"] {
        all.push(("leasehold_store_batch_count", vec![("op", "renew"), ("outcome", outcome)]));
    }
    all
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

#[tokio::test(start_paused = true)]
async fn series_are_all_there_at_zero_and_move() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let scrape = recorder.handle();
    metrics::set_global_recorder(recorder).expect("the only one");
    let observer = Metrics::new().classes(["import"]);
    for (name, labels) in series() {
        assert_eq!(value(&scrape, name, &labels), Some(0.0), "{name} {labels:?}");
    }
    let import = [("class", "import"), ("mode", "write")];
    assert_eq!(value(&scrape, "leasehold_leases", &import), Some(0.0));

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
    leases.close().await.unwrap();
}
