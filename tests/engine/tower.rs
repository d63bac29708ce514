//! Requests that are worked on under a lease.

use super::*;
use http::header::RETRY_AFTER;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use leasehold::CancellationToken;
use leasehold::tower::{FENCE_HEADER, FenceGuard, LeaseBody, LeaseLayer, RequestLease};
use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Context;
use tower_layer::Layer;
use tower_service::Service;

const SECOND: Duration = Duration::from_secs(1);

/// The error of a handler, and of its body.
#[derive(Debug, PartialEq)]
struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("broken on purpose")
    }
}

impl std::error::Error for Broken {}

/// A body of these parts, which then ends, fails, or hangs.
#[derive(Default)]
struct Parts {
    parts: VecDeque<&'static str>,
    fails: bool,
    hangs: bool,
    _dropped: Option<Dropped>,
}

impl Body for Parts {
    type Data = &'static [u8];
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Self::Data>, Broken>>> {
        match self.parts.pop_front() {
            Some(part) => Poll::Ready(Some(Ok(Frame::data(part.as_bytes())))),
            None if self.hangs => Poll::Pending,
            None if std::mem::take(&mut self.fails) => Poll::Ready(Some(Err(Broken))),
            None => Poll::Ready(None),
        }
    }
}

fn parts(parts: &[&'static str]) -> Response<Parts> {
    Response::new(Parts { parts: parts.iter().copied().collect(), ..Parts::default() })
}

/// Counts when it is dropped, and asserts that the lease was still there.
struct Dropped {
    count: Arc<AtomicUsize>,
    held: Option<RequestLease>,
}

impl Drop for Dropped {
    fn drop(&mut self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if let Some(lease) = &self.held {
            assert!(!lease.cancellation_token().is_cancelled(), "the lease ended before the work");
        }
    }
}

type Answered = std::result::Result<Response<Parts>, Broken>;
type Handler = dyn Fn(Request<()>) -> Pin<Box<dyn Future<Output = Answered> + Send>> + Send + Sync;

/// A service whose instances must be ready before each call. A clone is not.
struct Site {
    handler: Arc<Handler>,
    calls: Arc<AtomicUsize>,
    ready: bool,
}

impl Site {
    fn new<F>(handler: impl Fn(Request<()>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Answered> + Send + 'static,
    {
        let handler: Arc<Handler> = Arc::new(move |request| Box::pin(handler(request)));
        Self { handler, calls: Arc::default(), ready: false }
    }

    /// Answers at once.
    fn quick() -> Self {
        Self::new(|_| async { Ok(parts(&["done"])) })
    }

    /// Works for a second.
    fn slow() -> Self {
        Self::new(|_| async {
            sleep(SECOND).await;
            Ok(parts(&["done"]))
        })
    }

    /// Works for ever, counts when its work is dropped, and shows the lease.
    fn endless() -> (Self, Arc<AtomicUsize>, Arc<Mutex<Option<RequestLease>>>) {
        let (count, shown) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<_>>::default());
        let (counted, show) = (Arc::clone(&count), Arc::clone(&shown));
        let site = Self::new(move |request: Request<()>| {
            let lease = request.extensions().get::<RequestLease>().cloned();
            *show.lock().expect("no panic") = lease;
            let dropped = Dropped { count: Arc::clone(&counted), held: None };
            async move {
                let _dropped = dropped;
                std::future::pending().await
            }
        });
        (site, count, shown)
    }
}

impl Clone for Site {
    fn clone(&self) -> Self {
        let (handler, calls) = (Arc::clone(&self.handler), Arc::clone(&self.calls));
        Self { handler, calls, ready: false }
    }
}

impl Service<Request<()>> for Site {
    type Response = Response<Parts>;
    type Error = Broken;
    type Future = Pin<Box<dyn Future<Output = Answered> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Broken>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "an instance was called that was not ready");
        self.calls.fetch_add(1, Ordering::SeqCst);
        (self.handler)(request)
    }
}

fn by_order(request: &Request<()>) -> Option<String> {
    Some(format!("orders:{}", request.uri().path().strip_prefix("/orders/")?))
}

type Key = fn(&Request<()>) -> Option<String>;

fn layer(leases: &LeaseManager) -> LeaseLayer<Key, Parts> {
    LeaseLayer::new(leases.clone(), by_order as Key)
}

fn get(path: &str) -> Request<()> {
    Request::get(path).body(()).expect("a request")
}

/// One request, as tower's `oneshot` does it.
async fn send<S, B>(mut service: S, path: &str) -> Response<LeaseBody<B>>
where
    S: Service<Request<()>, Response = Response<LeaseBody<B>>, Error = Broken>,
{
    poll_fn(|cx| service.poll_ready(cx)).await.expect("ready");
    service.call(get(path)).await.expect("an answer")
}

/// The next part of a body.
async fn part<B: Body + Unpin>(body: &mut B) -> Option<std::result::Result<B::Data, B::Error>> {
    let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
    Some(frame.map(|frame| frame.into_data().unwrap_or_else(|_| panic!("no trailers"))))
}

#[tokio::test(start_paused = true)]
async fn request_without_a_key_passes_without_a_lease() {
    let setup = Setup::new();
    let seen = Arc::new(AtomicBool::new(false));
    let site = Site::new({
        let seen = Arc::clone(&seen);
        move |request: Request<()>| {
            seen.store(request.extensions().get::<RequestLease>().is_some(), Ordering::SeqCst);
            async { Ok(parts(&["a", "b"])) }
        }
    });
    let answer = send(layer(&setup.leases).layer(site), "/about").await;
    let mut body = answer.into_body();
    assert_eq!(part(&mut body).await.expect("a part").expect("sound"), b"a");
    assert_eq!(part(&mut body).await.expect("a part").expect("sound"), b"b");
    assert!(part(&mut body).await.is_none());
    assert_eq!((setup.calls(Call::Acquire), seen.load(Ordering::SeqCst)), (0, false));
}

#[tokio::test(start_paused = true)]
async fn one_request_for_each_key_is_worked_on_at_a_time() {
    let setup = Setup::new();
    let service = layer(&setup.leases).wait(SECOND * 10).layer(Site::slow());
    let three = async {
        let [a, b] = ["/orders/1", "/orders/1"].map(|path| send(service.clone(), path));
        tokio::join!(a, b, send(service.clone(), "/orders/2"))
    };
    let (took, (a, b, other)) = timed(three).await;
    assert_eq!([a.status(), b.status(), other.status()], [StatusCode::OK; 3]);
    assert!((SECOND * 2..SECOND * 3).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn taken_name_is_answered_at_once_and_nothing_is_done() {
    let setup = Setup::new();
    let lease = setup.held_elsewhere("orders:1").await;
    let site = Site::quick();
    let answer = send(layer(&setup.leases).layer(site.clone()), "/orders/1").await;
    assert_eq!(answer.status(), StatusCode::CONFLICT);
    assert_eq!(answer.headers()[RETRY_AFTER], "1");
    let waiting = layer(&setup.leases).wait(SECOND).layer(site.clone());
    let (took, answer) = timed(send(waiting, "/orders/1")).await;
    assert_eq!((answer.status(), took), (StatusCode::CONFLICT, SECOND));
    let holder = lease.holder_id().to_string();
    let reported = layer(&setup.leases).wait(SECOND).try_now().on_busy(move |key, found| {
        assert_eq!((key, found.map(|found| &*found.holder)), ("orders:1", Some(&*holder)));
        let mut answer = parts(&["later"]);
        *answer.status_mut() = StatusCode::LOCKED;
        answer
    });
    let (took, answer) = timed(send(reported.layer(site.clone()), "/orders/1")).await;
    assert_eq!((answer.status(), took), (StatusCode::LOCKED, Duration::ZERO));
    assert_eq!(site.calls.load(Ordering::SeqCst), 0);
}

/// `poll_ready` belongs to no request: a caller may drop it, or never call.
#[tokio::test(start_paused = true)]
async fn lease_is_acquired_by_the_call_and_not_before_its_poll() {
    let setup = Setup::new();
    let _lease = setup.held_elsewhere("orders:1").await;
    let mut service = layer(&setup.leases).wait(SECOND).layer(Site::quick());
    for _ in 0..3 {
        poll_fn(|cx| service.poll_ready(cx)).await.expect("ready");
    }
    drop(service.call(get("/orders/2")));
    assert_eq!(setup.calls(Call::Acquire), 0);
    // The clone that took its place was not ready, and becomes so.
    poll_fn(|cx| service.poll_ready(cx)).await.expect("ready");
    assert_eq!(service.call(get("/orders/2")).await.expect("an answer").status(), StatusCode::OK);
    assert_eq!(setup.calls(Call::Acquire), 1);
}

#[tokio::test(start_paused = true)]
async fn request_carries_the_fence_and_not_the_lease() {
    let setup = Setup::new();
    let kept: Arc<Mutex<Vec<(RequestLease, CancellationToken)>>> = Arc::default();
    let site = Site::new({
        let (kept, leases) = (Arc::clone(&kept), setup.other());
        move |request: Request<()>| {
            let lease = request.extensions().get::<RequestLease>().cloned().expect("a lease");
            let (kept, leases) = (Arc::clone(&kept), leases.clone());
            async move {
                let holder = leases.inspect("orders:1").await.expect("known").expect("held");
                assert_eq!(holder.holder, lease.holder_id().to_string());
                assert_eq!(lease.name(), "orders:1");
                let token = lease.cancellation_token();
                assert!(!token.is_cancelled());
                kept.lock().expect("no panic").push((lease, token));
                Ok(parts(&[]))
            }
        }
    });
    let service = layer(&setup.leases).layer(site);
    for _ in 0..2 {
        assert_eq!(send(service.clone(), "/orders/1").await.status(), StatusCode::OK);
    }
    let kept = kept.lock().expect("no panic");
    let [(first, ended), (second, _)] = &kept[..] else { panic!("two requests") };
    assert!(first.fence().is_some() && first.fence() < second.fence());
    assert!(ended.is_cancelled() && second.cancellation_token().is_cancelled());
}

/// The client's next request finds the name free.
#[tokio::test(start_paused = true)]
async fn name_is_free_when_the_head_is_there_or_a_moment_later() {
    let setup = Setup::new();
    let service = layer(&setup.leases).layer(Site::quick());
    let answer = send(service.clone(), "/orders/1").await;
    assert_eq!(setup.recorded("orders:1").await, None);
    drop(answer);
    // A store that hangs delays no answer for long.
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Release).times(1));
    let (took, answer) = timed(send(service, "/orders/1")).await;
    assert_eq!((answer.status(), took), (StatusCode::OK, Duration::from_millis(250)));
    assert_eq!(setup.recorded("orders:1").await, Some(1));
    setup.faults.heal();
    settle().await;
    assert_eq!(setup.recorded("orders:1").await, None, "the engine went on");
}

#[tokio::test(start_paused = true)]
async fn loss_drops_the_work_and_is_answered() {
    let setup = Setup::new();
    let seen = Arc::new(Mutex::new(None));
    let custom = layer(&setup.leases).on_lost({
        let seen = Arc::clone(&seen);
        move |key, loss| {
            *seen.lock().expect("no panic") = Some((key.to_owned(), loss));
            parts(&["lost"])
        }
    });
    for (layer, status) in
        [(layer(&setup.leases), StatusCode::SERVICE_UNAVAILABLE), (custom, StatusCode::OK)]
    {
        let (site, dropped, shown) = Site::endless();
        let request = tokio::spawn(send(layer.layer(site), "/orders/1"));
        settle().await;
        let token = shown.lock().expect("no panic").as_ref().expect("a lease").cancellation_token();
        assert!(setup.leases.force_unlock("orders:1", "test").await.expect("known"));
        let answer = request.await.expect("no panic");
        assert_eq!(answer.status(), status);
        assert_eq!((dropped.load(Ordering::SeqCst), token.is_cancelled()), (1, true));
    }
    let seen = seen.lock().expect("no panic").take();
    assert_eq!(seen, Some(("orders:1".to_owned(), Loss::Revoked)));
}

#[tokio::test(start_paused = true)]
async fn body_keeps_the_lease_until_it_ends_fails_or_is_dropped() {
    let setup = Setup::new();
    for (fails, hangs) in [(false, false), (true, false), (false, true)] {
        let count = Arc::<AtomicUsize>::default();
        let site = Site::new({
            let count = Arc::clone(&count);
            move |request: Request<()>| {
                let held = request.extensions().get::<RequestLease>().cloned();
                let dropped = Some(Dropped { count: Arc::clone(&count), held });
                let parts = VecDeque::from(["a"]);
                async move { Ok(Response::new(Parts { parts, fails, hangs, _dropped: dropped })) }
            }
        });
        let answer = send(layer(&setup.leases).until_body_ends().layer(site), "/orders/1").await;
        let mut body = answer.into_body();
        assert_eq!(part(&mut body).await.expect("a part").expect("sound"), b"a");
        sleep(T * 2).await;
        assert_eq!(setup.recorded("orders:1").await, Some(1), "renewed for the body");
        match (fails, hangs) {
            (_, true) => drop(body),
            (true, _) => {
                let error = part(&mut body).await.expect("a part").expect_err("broken");
                assert_eq!(error.downcast_ref(), Some(&Broken));
                assert!(part(&mut body).await.is_none());
            }
            _ => assert!(part(&mut body).await.is_none()),
        }
        settle().await;
        assert_eq!(setup.recorded("orders:1").await, None);
        assert_eq!(count.load(Ordering::SeqCst), 1, "its body was dropped before the lease");
    }
}

#[tokio::test(start_paused = true)]
async fn body_is_cut_short_when_its_lease_is_lost() {
    let setup = Setup::new();
    let count = Arc::<AtomicUsize>::default();
    let site = Site::new({
        let count = Arc::clone(&count);
        move |_| {
            let dropped = Some(Dropped { count: Arc::clone(&count), held: None });
            async move {
                Ok(Response::new(Parts { hangs: true, _dropped: dropped, ..Parts::default() }))
            }
        }
    });
    let service = layer(&setup.leases).until_body_ends().layer(site);
    let mut body = send(service.clone(), "/orders/1").await.into_body();
    let reading = tokio::spawn(async move {
        let error = part(&mut body).await.expect("a part").expect_err("cut short");
        assert!(part(&mut body).await.is_none() && body.is_end_stream());
        error
    });
    settle().await;
    setup.leases.force_unlock("orders:1", "test").await.expect("known");
    let error = reading.await.expect("no panic");
    let error = error.downcast_ref::<Error>().expect("ours");
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(Loss::Revoked)));
    assert_eq!(count.load(Ordering::SeqCst), 1);
    // Also one that is not polled meanwhile, and has something to send.
    let mut body = send(service, "/orders/1").await.into_body();
    setup.faults.add(Rule::new(Fault::Hang).on(Call::Renew));
    sleep(T * 2).await;
    let error = part(&mut body).await.expect("a part").expect_err("cut short");
    assert_eq!(error.downcast_ref::<Error>().and_then(Error::loss), Some(Loss::Expired));
}

/// The clock is ahead of the watchdog.
#[tokio::test(start_paused = true)]
async fn body_does_not_send_after_its_time_though_no_task_has_run() {
    let setup = Setup::new();
    let site = Site::new(|_| async { Ok(parts(&["a"])) });
    let answer = send(layer(&setup.leases).until_body_ends().layer(site), "/orders/1").await;
    let mut body = answer.into_body();
    let mut late = Box::pin(tokio::time::advance(T * 2));
    assert!(poll_once(late.as_mut()).await.is_pending());
    let error = part(&mut body).await.expect("a part").expect_err("cut short");
    assert_eq!(error.downcast_ref::<Error>().and_then(Error::loss), Some(Loss::Expired));
}

/// The same in the middle of a response: the body has begun to wait for the loss, and nothing has told it.
#[tokio::test(start_paused = true)]
async fn body_in_its_middle_asks_the_clock_before_it_sends() {
    let setup = Setup::new();
    let site = Site::new(|_| async { Ok(parts(&["a", "b"])) });
    let answer = send(layer(&setup.leases).until_body_ends().layer(site), "/orders/1").await;
    let mut body = answer.into_body();
    assert_eq!(part(&mut body).await.expect("a part").expect("sound"), b"a");
    let mut late = Box::pin(tokio::time::advance(T * 2));
    assert!(poll_once(late.as_mut()).await.is_pending());
    // The task has used up its turn, so a future that waits for the loss would yield first.
    let polled = poll_fn(|cx| {
        while tokio::task::coop::has_budget_remaining() {
            let _ = std::pin::pin!(tokio::task::coop::consume_budget()).poll(cx);
        }
        Poll::Ready(Pin::new(&mut body).poll_frame(cx))
    });
    let Poll::Ready(Some(Err(error))) = polled.await else { panic!("it is sent, or waits") };
    assert_eq!(error.downcast_ref::<Error>().and_then(Error::loss), Some(Loss::Expired));
}

#[tokio::test(start_paused = true)]
async fn request_reports_progress_or_stalls() {
    let setup = Setup::with(LeaseManager::builder().stall_after(SECOND));
    for (reports, status) in [(true, StatusCode::OK), (false, StatusCode::SERVICE_UNAVAILABLE)] {
        let site = Site::new(move |request: Request<()>| async move {
            let lease = request.extensions().get::<RequestLease>().cloned().expect("a lease");
            for _ in 0..4 {
                sleep(SECOND * 2 / 3).await;
                if reports {
                    lease.progress();
                }
            }
            Ok(parts(&["done"]))
        });
        let answer = send(layer(&setup.leases).layer(site), "/orders/1").await;
        assert_eq!(answer.status(), status);
        sleep(T).await;
    }
}

#[tokio::test(start_paused = true)]
async fn request_that_is_dropped_leaves_nothing_behind() {
    let setup = Setup::new();
    let (site, dropped, _) = Site::endless();
    let service = layer(&setup.leases).wait(T).layer(site);
    let working = tokio::spawn(send(service.clone(), "/orders/1"));
    settle().await;
    let waiting = tokio::spawn(send(service.clone(), "/orders/1"));
    settle().await;
    assert_eq!((setup.memory.len(), dropped.load(Ordering::SeqCst)), (1, 0));
    // The client of the one that waits has gone, then the other.
    waiting.abort();
    working.abort();
    assert!(waiting.await.is_err() && working.await.is_err());
    settle().await;
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    assert_eq!(setup.recorded("orders:1").await, None);
    assert!(setup.other().lock("orders:1").try_lock().await.expect("known").is_some());
}

#[tokio::test(start_paused = true)]
async fn error_and_panic_of_the_handler_release_the_name() {
    let setup = Setup::new();
    let broken = layer(&setup.leases).layer(Site::new(|_| async { Err(Broken) }));
    let mut service = broken.clone();
    poll_fn(|cx| service.poll_ready(cx)).await.expect("ready");
    let error = service.call(get("/orders/1")).await.expect_err("its own error");
    assert_eq!(error, Broken);
    assert_eq!(setup.recorded("orders:1").await, None);
    let panics = layer(&setup.leases).layer(Site::new(|_| async { panic!("on purpose") }));
    assert!(tokio::spawn(send(panics, "/orders/1")).await.is_err());
    settle().await;
    assert_eq!(setup.recorded("orders:1").await, None);
}

#[tokio::test(start_paused = true)]
async fn error_of_the_store_is_answered_by_its_kind() {
    let setup = Setup::new();
    let site = Site::quick();
    let service = layer(&setup.leases).layer(site.clone());
    let status = async |path: &str| {
        let answer = send(service.clone(), path).await;
        (answer.status(), answer.headers().contains_key(RETRY_AFTER))
    };
    setup.faults.add(Rule::new(Fault::Fail(unavailable())).on(Call::Acquire));
    assert_eq!(status("/orders/1").await, (StatusCode::SERVICE_UNAVAILABLE, true));
    setup.faults.heal();
    assert_eq!(status("/orders/{").await, (StatusCode::BAD_REQUEST, false));
    let reported = layer(&setup.leases).on_error(|key, error| {
        assert_eq!((key, error.kind()), ("orders:}", ErrorKind::Invalid));
        parts(&["no"])
    });
    assert_eq!(send(reported.layer(site.clone()), "/orders/}").await.status(), StatusCode::OK);
    setup.leases.close().await.expect("closed");
    assert_eq!(status("/orders/1").await, (StatusCode::SERVICE_UNAVAILABLE, false));
    assert_eq!(site.calls.load(Ordering::SeqCst), 0);
}

/// A read that carries a token counts like a write: the late write that comes between the first read of the next holder and its
/// first write is refused.
#[tokio::test]
async fn read_with_a_token_refuses_later_writes_of_older_ones() {
    let key = |request: &Request<()>| Some(request.uri().path().to_owned());
    for reads_with_token in [false, true] {
        // Without the token in its reads, a service may let reads pass.
        let key = move |request: &Request<()>| {
            key(request).filter(|_| reads_with_token || request.method() != http::Method::GET)
        };
        let mut guarded = FenceGuard::new(key).layer(Site::quick());
        let mut send = async |method: &str, fence: &str| {
            let request = Request::builder().method(method).uri("/stock");
            let request = request.header(FENCE_HEADER, fence).body(()).expect("a request");
            poll_fn(|context| guarded.poll_ready(context)).await.expect("ready");
            guarded.call(request).await.expect("an answer").status()
        };
        assert_eq!(send("PUT", "7").await, StatusCode::OK);
        assert_eq!(send("GET", "8").await, StatusCode::OK);
        let late = send("PUT", "7").await;
        let refused = late == StatusCode::PRECONDITION_FAILED;
        assert_eq!(refused, reads_with_token, "{late}");
        // Readers do not refuse one another.
        assert_eq!(send("GET", "11; read").await, StatusCode::OK);
        assert_eq!(send("GET", "10; read").await, StatusCode::OK);
    }
}

/// A late write to a key is refused after as many writes to others as the guard surely remembers, wherever in its memory the
/// key is.
#[tokio::test]
async fn fence_guard_remembers_as_many_keys_as_it_promises() {
    const KEYS: usize = 10;
    for before in 0..2 * KEYS {
        let key = |request: &Request<()>| Some(request.uri().path().to_owned());
        let mut guarded = FenceGuard::new(key).capacity(KEYS).layer(Site::quick());
        let mut put = async |path: String, fence: u64| {
            let request =
                Request::put(path).header(FENCE_HEADER, fence).body(()).expect("a request");
            poll_fn(|context| guarded.poll_ready(context)).await.expect("ready");
            guarded.call(request).await.expect("an answer").status()
        };
        for other in 0..before {
            assert_eq!(put(format!("/before/{other}"), 1).await, StatusCode::OK);
        }
        assert_eq!(put("/stock".to_owned(), 10).await, StatusCode::OK);
        for other in 0..KEYS {
            assert_eq!(put(format!("/after/{other}"), 1).await, StatusCode::OK);
        }
        let late = put("/stock".to_owned(), 9).await;
        assert_eq!(late, StatusCode::PRECONDITION_FAILED, "{before} keys before");
    }
}
