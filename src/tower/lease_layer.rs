//! Works on one request for each key at a time.
//!
//! # Invariants
//!
//! 1. **No request waits in `poll_ready`**, which belongs to no request: the lease is acquired in the future of `call`.
//! 2. **The instance that was ready is called**; the clone takes its place.
//! 3. **The lease outlives the work**: what runs under it is dropped before it.

use super::lease_body::LeaseBody;
use crate::engine::Overrun;
use crate::error::{Error, ErrorKind, Loss, Result as LeaseResult};
use crate::locks::lease::{Lease, ProgressHandle};
use crate::manager::LeaseManager;
use crate::store::{HolderId, HolderInfo};
use http::header::RETRY_AFTER;
use http::{HeaderValue, Request, Response, StatusCode};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tower_layer::Layer;
use tower_service::Service;

/// How long a response waits for the release of its lease, so that the next request finds the name free.
const RELEASE: Duration = Duration::from_millis(250);
/// A holder may release at any time, so this is the shortest that the header can express.
const RETRY_SOON: HeaderValue = HeaderValue::from_static("1");

/// A layer that works on one request for each key at a time, across all processes that share the store.
///
/// The second argument of [`new`](LeaseLayer::new) names the lock of a request. A request without a name passes through.
/// For the others, the lease is held while the inner service works:
///
/// | | answer | changed by |
/// |---|---|---|
/// | the name is taken | 409 with `retry-after: 1`; nothing was done | [`wait`](LeaseLayer::wait), [`on_busy`](LeaseLayer::on_busy) |
/// | the lease is lost | the work is dropped; 503 with `retry-after: 1` | [`on_lost`](LeaseLayer::on_lost) |
/// | the store fails | 503; nothing was done. 400 if the name is [`Invalid`](ErrorKind::Invalid), as it comes from the request | [`on_error`](LeaseLayer::on_error) |
///
/// The request carries a [`RequestLease`] in its extensions, with the fencing token to send with each write.
///
/// The lease is released when the head of the response is ready, before the response is returned. With
/// [`until_body_ends`](LeaseLayer::until_body_ends) it is kept until the body has ended. When the client disconnects,
/// the work and the lease are dropped, and the name is released in the background. What the handler has spawned goes
/// on: give it the [`cancellation_token`](RequestLease::cancellation_token).
///
/// Each request has a handle of its own. A handler that locks the same name again waits for itself, and so do two
/// layers that return the same name; see [two handles](crate::guide::reentrancy#two-handles-wait-for-each-other). A
/// lock does not remember that work was done: a client that repeats a request is served twice, one after the other.
///
/// `K` is the function that names the lock, `B` the body of the inner service's responses. `B` needs a
/// [`Default`] for the answers of the layer itself, also where all of them are replaced.
///
/// ```
/// use http::{Request, Response, StatusCode};
/// use leasehold::LeaseManager;
/// use leasehold::tower::LeaseLayer;
///
/// let leases = LeaseManager::in_memory();
/// let layer = LeaseLayer::new(leases, |request: &Request<()>| {
///     let id = request.headers().get("idempotency-key")?.to_str().ok()?;
///     Some(format!("requests:{id}"))
/// })
/// .on_busy(|key, holder| {
///     let left = holder.and_then(|holder| holder.remaining);
///     let mut answer = Response::new(format!("{key} is at work, its lease has {left:?} left"));
///     *answer.status_mut() = StatusCode::CONFLICT;
///     answer
/// })
/// .until_body_ends();
/// # drop(layer);
/// ```
#[must_use = "a layer does nothing until it wraps a service"]
pub struct LeaseLayer<K, B> {
    leases: LeaseManager,
    key: Arc<K>,
    wait: Option<Duration>,
    until_body_ends: bool,
    answers: Answers<B>,
}

type Answer<A, B> = Option<Arc<dyn Fn(&str, A) -> Response<B> + Send + Sync>>;
type BusyAnswer<B> = Option<Arc<dyn Fn(&str, Option<&HolderInfo>) -> Response<B> + Send + Sync>>;
type ErrorAnswer<B> = Option<Arc<dyn Fn(&str, &Error) -> Response<B> + Send + Sync>>;

/// The answers of the layer itself; `None` for the default.
struct Answers<B> {
    busy: BusyAnswer<B>,
    lost: Answer<Loss, B>,
    error: ErrorAnswer<B>,
}

impl<K, B> LeaseLayer<K, B> {
    /// Creates a layer that holds, for each request, the lease of the name that `key` returns.
    ///
    /// A request for which it returns `None` passes through without a lease. A name has 1 to 512 bytes, and its braces are
    /// balanced and not empty. If a part of it comes from the client, put something of your own before it, so that clients
    /// reach no other names.
    pub fn new<R>(leases: LeaseManager, key: K) -> Self
    where
        K: Fn(&Request<R>) -> Option<String>,
    {
        let answers = Answers { busy: None, lost: None, error: None };
        Self { leases, key: Arc::new(key), wait: None, until_body_ends: false, answers }
    }

    /// Waits for a name that is taken, for `limit` at most. Waiters of this process are served in the order of arrival.
    ///
    /// The request is kept in memory meanwhile. To limit how many may wait, put a layer such as `ConcurrencyLimitLayer`
    /// around this one.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = Some(limit);
        self
    }

    /// Answers at once when the name is taken. This is the default.
    pub fn try_now(mut self) -> Self {
        self.wait = None;
        self
    }

    /// Keeps the lease until the body of the response has ended, has failed or is dropped.
    ///
    /// Use it for responses that are made while they are sent. When the lease is lost meanwhile, the body is dropped
    /// and fails when it is next polled: the client sees a response that is cut short. The layer does not wait for the release.
    /// A client that does not read keeps the body, so these leases have no [`on_overrun`](crate::Builder::on_overrun).
    pub fn until_body_ends(mut self) -> Self {
        self.until_body_ends = true;
        self
    }

    /// Answers requests whose name is taken by `answer`, with the name and its holder.
    ///
    /// This costs one more request, which asks the store for the holder. `None` if the holder has just released the
    /// name, or is not known.
    pub fn on_busy(
        mut self,
        answer: impl Fn(&str, Option<&HolderInfo>) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        self.answers.busy = Some(Arc::new(answer));
        self
    }

    /// Answers requests whose lease was lost by `answer`, with the name and the reason. The work was dropped before it ended.
    pub fn on_lost(
        mut self,
        answer: impl Fn(&str, Loss) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        self.answers.lost = Some(Arc::new(answer));
        self
    }

    /// Answers requests whose lease could not be acquired for an error by `answer`, with the name and the error.
    pub fn on_error(
        mut self,
        answer: impl Fn(&str, &Error) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        self.answers.error = Some(Arc::new(answer));
        self
    }

    /// Acquires the lease of a request.
    async fn acquire(&self, name: &str) -> LeaseResult<Option<Lease>> {
        let mut lock = self.leases.lock(name);
        if self.until_body_ends {
            // A client that reads slowly keeps a lost lease alive, and must not end the process.
            lock = lock.on_overrun(Overrun::Ignore);
        }
        match self.wait {
            Some(limit) => lock.lock_timeout(limit).await,
            None => lock.try_lock().await,
        }
    }
}

impl<K, B: Default> LeaseLayer<K, B> {
    async fn busy(&self, name: &str) -> Response<B> {
        let Some(answer) = &self.answers.busy else { return plain(StatusCode::CONFLICT, true) };
        let holder = self.leases.inspect(name).await.ok().flatten();
        answer(name, holder.as_ref())
    }

    fn lost(&self, name: &str, error: &Error) -> Response<B> {
        match &self.answers.lost {
            Some(answer) => answer(name, error.loss().unwrap_or(Loss::Expired)),
            None => plain(StatusCode::SERVICE_UNAVAILABLE, true),
        }
    }

    fn failed(&self, name: &str, error: &Error) -> Response<B> {
        match &self.answers.error {
            Some(answer) => answer(name, error),
            None if error.kind() == ErrorKind::Invalid => plain(StatusCode::BAD_REQUEST, false),
            None => plain(StatusCode::SERVICE_UNAVAILABLE, error.is_retryable()),
        }
    }
}

fn plain<B: Default>(status: StatusCode, retry: bool) -> Response<B> {
    let mut answer = Response::new(B::default());
    *answer.status_mut() = status;
    if retry {
        answer.headers_mut().insert(RETRY_AFTER, RETRY_SOON);
    }
    answer
}

impl<K, B> Clone for LeaseLayer<K, B> {
    fn clone(&self) -> Self {
        let Answers { busy, lost, error } = &self.answers;
        let answers = Answers { busy: busy.clone(), lost: lost.clone(), error: error.clone() };
        Self {
            leases: self.leases.clone(),
            key: Arc::clone(&self.key),
            wait: self.wait,
            until_body_ends: self.until_body_ends,
            answers,
        }
    }
}

impl<K, B> fmt::Debug for LeaseLayer<K, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseLayer")
            .field("leases", &self.leases)
            .field("wait", &self.wait)
            .field("until_body_ends", &self.until_body_ends)
            .finish_non_exhaustive()
    }
}

impl<S, K, B> Layer<S> for LeaseLayer<K, B> {
    type Service = LeaseService<S, K, B>;

    fn layer(&self, inner: S) -> Self::Service {
        LeaseService { inner, layer: self.clone() }
    }
}

/// The service that a [`LeaseLayer`] puts around another one.
pub struct LeaseService<S, K, B> {
    inner: S,
    layer: LeaseLayer<K, B>,
}

impl<S: Clone, K, B> Clone for LeaseService<S, K, B> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S: fmt::Debug, K, B> fmt::Debug for LeaseService<S, K, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseService")
            .field("inner", &self.inner)
            .field("layer", &self.layer)
            .finish()
    }
}

impl<S, K, R, B> Service<Request<R>> for LeaseService<S, K, B>
where
    S: Service<Request<R>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    K: Fn(&Request<R>) -> Option<String> + Send + Sync + 'static,
    R: Send + 'static,
    B: Default + Send + 'static,
{
    type Response = Response<LeaseBody<B>>;
    type Error = S::Error;
    type Future = LeaseFuture<B, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let next = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, next);
        let name = (self.layer.key)(&request);
        let layer = self.layer.clone();
        LeaseFuture(Box::pin(async move {
            let mut ready = ready;
            match name {
                Some(name) => work(layer, name, ready, request).await,
                None => Ok(ready.call(request).await?.map(LeaseBody::new)),
            }
        }))
    }
}

/// Works on a request under its lease.
async fn work<S, K, R, B>(
    layer: LeaseLayer<K, B>,
    name: String,
    mut ready: S,
    mut request: Request<R>,
) -> Result<Response<LeaseBody<B>>, S::Error>
where
    S: Service<Request<R>, Response = Response<B>>,
    B: Default,
{
    let lease = match layer.acquire(&name).await {
        Ok(Some(lease)) => lease,
        Ok(None) => return Ok(layer.busy(&name).await.map(LeaseBody::new)),
        Err(error) => return Ok(layer.failed(&name, &error).map(LeaseBody::new)),
    };
    request.extensions_mut().insert(RequestLease::of(&lease));
    let result = match lease.run(ready.call(request)).await {
        Ok(result) => result,
        Err(lost) => return Ok(layer.lost(&name, &lost).map(LeaseBody::new)),
    };
    match result {
        Ok(response) if layer.until_body_ends => {
            Ok(response.map(|body| LeaseBody::keeping(body, lease)))
        }
        result => {
            // The engine goes on if it fails or takes longer, and the work was done under the lease.
            let _ = timeout(RELEASE, lease.unlock()).await;
            result.map(|response| response.map(LeaseBody::new))
        }
    }
}

/// The future of a response that passes a [`LeaseLayer`].
///
/// Dropping it drops the work, and then the lease, which is released in the background.
pub struct LeaseFuture<B, E>(Pending<B, E>);

type Pending<B, E> = Pin<Box<dyn Future<Output = Result<Response<LeaseBody<B>>, E>> + Send>>;

impl<B, E> Future for LeaseFuture<B, E> {
    type Output = Result<Response<LeaseBody<B>>, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

impl<B, E> fmt::Debug for LeaseFuture<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseFuture").finish_non_exhaustive()
    }
}

/// The lease of a request, in the extensions of that request.
///
/// It does not keep the lease alive: a copy that outlives the request still has the name and the tokens, and its
/// cancellation token has fired.
///
/// ```
/// use http::Request;
/// use leasehold::tower::RequestLease;
///
/// fn fence<B>(request: &Request<B>) -> Option<u64> {
///     request.extensions().get::<RequestLease>()?.fence()
/// }
/// # let _ = fence::<()>;
/// ```
#[derive(Clone, Debug)]
pub struct RequestLease(Arc<Identity>);

#[derive(Debug)]
struct Identity {
    name: String,
    fence: Option<u64>,
    holder_id: HolderId,
    token: CancellationToken,
    progress_handle: ProgressHandle,
}

impl RequestLease {
    fn of(lease: &Lease) -> Self {
        Self(Arc::new(Identity {
            name: lease.name().to_owned(),
            fence: lease.fence(),
            holder_id: lease.holder_id(),
            token: lease.cancellation_token(),
            progress_handle: lease.progress_handle(),
        }))
    }

    /// Returns the name that is held.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the [fencing token](Lease::fence), to be sent with each write; `None` if the store has none, or
    /// [`fencing`](crate::Builder::fencing) is off.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        self.0.fence
    }

    /// Returns the [id of the holder](Lease::holder_id), as it is written to the store.
    #[must_use]
    pub fn holder_id(&self) -> HolderId {
        self.0.holder_id
    }

    /// Reports [progress](Lease::progress). With [`stall_after`](crate::Builder::stall_after), a handler that works for
    /// longer must call it, and so must a body that [keeps the lease](LeaseLayer::until_body_ends). After the lease has
    /// ended it has no effect.
    pub fn progress(&self) {
        self.0.progress_handle.progress();
    }

    /// Returns a token that fires when the lease ends: lost, or released because the request ended. Give it to what
    /// the handler spawns.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.0.token.child_token()
    }
}
