//! Refuses requests of holders that have lost their lease, on the side of the resource.

use crate::util::sync::Mutex;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

/// The header with the [fencing token](crate::Lease::fence) of a request: [`Lease::fence_header`](crate::Lease::fence_header)
/// returns its value, a decimal number, and for a reader `; read` behind it.
pub const FENCE_HEADER: HeaderName = HeaderName::from_static("leasehold-fence");

/// The number of keys that a guard remembers by default.
const CAPACITY: usize = 100_000;

/// A layer for the resource: it refuses a request whose fencing token is smaller than one that it has seen.
///
/// The argument of [`new`](FenceGuard::new) names what a request writes to. A request without a name passes through. The
/// others carry the header [`leasehold-fence`](FENCE_HEADER):
///
/// | the header | answer |
/// |---|---|
/// | not smaller than the largest so far of this key | that of the inner service |
/// | smaller | 412, with the largest in the same header; nothing was done |
/// | no token, or there twice | 400 |
/// | missing | 428 |
///
/// The token of a reader is compared with those of writers only, because [readers](crate::guide::fencing#readers) write in any
/// order. A reader that sends its token as a plain number counts as a writer: nothing that is late is accepted, but
/// other readers are refused.
///
/// A read counts as a write does, if its request has a key: from the first `GET` with a token on, a late write with a smaller one is
/// refused. So let the key not depend on the method, and let a holder [read through the
/// guard](crate::guide::guarded_writes#read-through-the-guard-first) first.
///
/// The layer and its clones share what they have seen, in the memory of this process. It knows nothing after a restart,
/// and nothing of other replicas of the service: where there are several, keep the largest token beside the data, as in
/// [`guarded_writes`](crate::guide::guarded_writes). It puts no order between requests that run at the same time. It
/// remembers a [limited number of keys](FenceGuard::capacity), and forgets those that were not written to for longest.
///
/// Each spelling is a key of its own: if `/stock/42` and `/stock/042` lead to the same row, make the key of the parsed value.
///
/// ```
/// use http::Request;
/// use leasehold::tower::FenceGuard;
///
/// let layer = FenceGuard::new(|request: &Request<()>| {
///     request.uri().path().strip_prefix("/stock/").map(str::to_owned)
/// });
/// # drop(layer);
/// ```
#[must_use = "a layer does nothing until it wraps a service"]
pub struct FenceGuard<K> {
    key: Arc<K>,
    seen: Arc<Mutex<Seen>>,
}

/// The token of a request.
#[derive(Clone, Copy)]
struct Token {
    number: u64,
    /// It is that of a reader.
    reads: bool,
}

impl Token {
    fn parse(text: &str) -> Option<Self> {
        let (number, reads) = match text.split_once(';') {
            Some((number, kind)) if kind.trim() == "read" => (number.trim_end(), true),
            Some(_) => return None,
            None => (text, false),
        };
        Some(Self { number: number.parse().ok()?, reads })
    }
}

/// The largest tokens of a key.
#[derive(Clone, Copy, Default)]
struct Largest {
    all: u64,
    /// Of those that were not a reader's.
    writers: u64,
}

/// The largest tokens, in two generations: when the younger is full, the older is forgotten. So a key is remembered until
/// a whole generation of others was written to after it.
struct Seen {
    young: HashMap<String, Largest>,
    old: HashMap<String, Largest>,
    /// The most entries of a generation.
    most: usize,
}

impl Seen {
    /// Records a token. Returns the largest so far that it is compared with if that is larger.
    fn stale(&mut self, key: String, token: Token) -> Option<u64> {
        let before =
            self.young.get(&key).or_else(|| self.old.get(&key)).copied().unwrap_or_default();
        let limit = if token.reads { before.writers } else { before.all };
        let accepted = token.number >= limit;
        if !self.young.contains_key(&key) && self.young.len() >= self.most {
            self.old = std::mem::take(&mut self.young);
        }
        let mut now = before;
        if accepted {
            now.all = now.all.max(token.number);
            now.writers = if token.reads { now.writers } else { token.number };
        }
        self.young.insert(key, now);
        (!accepted).then_some(limit)
    }
}

impl<K> FenceGuard<K> {
    /// Creates a layer that compares the tokens of requests with the same `key`.
    pub fn new<R>(key: K) -> Self
    where
        K: Fn(&Request<R>) -> Option<String>,
    {
        let seen = Seen { young: HashMap::new(), old: HashMap::new(), most: CAPACITY };
        Self { key: Arc::new(key), seen: Arc::new(Mutex::new(seen)) }
    }

    /// Sets the number of keys that are surely remembered; 100 000 by default. The largest token of a key is forgotten only
    /// after more than that many other keys were written to. Choose more keys than are written to in the longest time for
    /// which a process can stand still.
    ///
    /// The guard keeps up to twice as many, with about 100 bytes for each besides its text: 20 MB by default.
    ///
    /// # Panics
    ///
    /// Panics if it is 0.
    pub fn capacity(self, keys: usize) -> Self {
        assert!(keys > 0, "a fence guard remembers at least 1 key, not 0");
        self.seen.lock().most = keys;
        self
    }
}

impl<K> Clone for FenceGuard<K> {
    fn clone(&self) -> Self {
        Self { key: Arc::clone(&self.key), seen: Arc::clone(&self.seen) }
    }
}

impl<K> fmt::Debug for FenceGuard<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceGuard").finish_non_exhaustive()
    }
}

impl<K, S> Layer<S> for FenceGuard<K> {
    type Service = FenceGuardService<K, S>;

    fn layer(&self, inner: S) -> Self::Service {
        FenceGuardService { guard: self.clone(), inner }
    }
}

/// The service of a [`FenceGuard`].
pub struct FenceGuardService<K, S> {
    guard: FenceGuard<K>,
    inner: S,
}

impl<K, S: Clone> Clone for FenceGuardService<K, S> {
    fn clone(&self) -> Self {
        Self { guard: self.guard.clone(), inner: self.inner.clone() }
    }
}

impl<K, S> fmt::Debug for FenceGuardService<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceGuardService").finish_non_exhaustive()
    }
}

/// The answer to a request that is refused, with the largest token if there is one.
type Refused = (StatusCode, Option<u64>);

impl<K, S> FenceGuardService<K, S> {
    fn check<R>(&self, request: &Request<R>) -> Result<(), Refused>
    where
        K: Fn(&Request<R>) -> Option<String>,
    {
        let Some(key) = (self.guard.key)(request) else { return Ok(()) };
        let mut values = request.headers().get_all(FENCE_HEADER).iter();
        let token = match (values.next(), values.next()) {
            (None, _) => return Err((StatusCode::PRECONDITION_REQUIRED, None)),
            (Some(token), None) => token.to_str().ok().and_then(Token::parse),
            (Some(_), Some(_)) => None,
        };
        let token = token.ok_or((StatusCode::BAD_REQUEST, None))?;
        match self.guard.seen.lock().stale(key, token) {
            Some(seen) => {
                #[cfg(feature = "metrics")]
                crate::observe::metrics::count_refused_fence();
                Err((StatusCode::PRECONDITION_FAILED, Some(seen)))
            }
            None => Ok(()),
        }
    }
}

impl<K, S, R, B> Service<Request<R>> for FenceGuardService<K, S>
where
    K: Fn(&Request<R>) -> Option<String>,
    S: Service<Request<R>, Response = Response<B>>,
    B: Default,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = FenceGuardFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        match self.check(&request) {
            Ok(()) => {
                FenceGuardFuture { inner: Some(Box::pin(self.inner.call(request))), refused: None }
            }
            Err(refused) => FenceGuardFuture { inner: None, refused: Some(refused) },
        }
    }
}

/// The future of a [`FenceGuardService`].
#[must_use = "futures do nothing unless polled"]
pub struct FenceGuardFuture<F> {
    inner: Option<Pin<Box<F>>>,
    refused: Option<Refused>,
}

impl<F> fmt::Debug for FenceGuardFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceGuardFuture").finish_non_exhaustive()
    }
}

impl<F, B, E> Future for FenceGuardFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Default,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(inner) = &mut self.inner {
            return inner.as_mut().poll(context);
        }
        let (status, seen) = self.refused.take().unwrap_or((StatusCode::PRECONDITION_FAILED, None));
        let mut answer = Response::new(B::default());
        *answer.status_mut() = status;
        if let Some(seen) = seen {
            answer.headers_mut().insert(FENCE_HEADER, HeaderValue::from(seen));
        }
        Poll::Ready(Ok(answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::future::{Ready, ready};

    /// Answers 200 to everything.
    #[derive(Clone)]
    struct Stock;

    impl Service<Request<()>> for Stock {
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

    fn key(request: &Request<()>) -> Option<String> {
        request.uri().path().strip_prefix("/stock/").map(str::to_owned)
    }

    async fn put<K: Fn(&Request<()>) -> Option<String>>(
        service: &mut FenceGuardService<K, Stock>,
        path: &str,
        fences: &[&str],
    ) -> (u16, Option<String>) {
        let request =
            fences.iter().fold(Request::put(path), |all, fence| all.header(FENCE_HEADER, *fence));
        let answer = service.call(request.body(()).unwrap()).await.unwrap();
        let seen = answer.headers().get(FENCE_HEADER).map(|seen| seen.to_str().unwrap().to_owned());
        (answer.status().as_u16(), seen)
    }

    #[tokio::test]
    async fn request_with_a_smaller_token_is_refused() {
        let layer = FenceGuard::new(key);
        let (mut one, mut other) = (layer.layer(Stock), layer.layer(Stock).clone());
        assert_eq!(put(&mut one, "/stock/a", &["7"]).await, (200, None));
        assert_eq!(put(&mut one, "/stock/a", &["7"]).await, (200, None), "its own again");
        // The newer holder, by another connection.
        assert_eq!(put(&mut other, "/stock/a", &["10"]).await, (200, None));
        assert_eq!(put(&mut one, "/stock/a", &["7"]).await, (412, Some("10".to_owned())));
        assert_eq!(put(&mut one, "/stock/b", &["7"]).await, (200, None), "another key");
        assert_eq!(put(&mut one, "/else", &[]).await, (200, None), "no key");
    }

    #[tokio::test]
    async fn readers_are_compared_with_writers_only() {
        let mut service = FenceGuard::new(key).layer(Stock);
        for reader in ["11; read", "10;read", "11; read"] {
            assert_eq!(put(&mut service, "/stock/a", &[reader]).await, (200, None), "{reader}");
        }
        assert_eq!(put(&mut service, "/stock/a", &["10"]).await, (412, Some("11".to_owned())));
        assert_eq!(put(&mut service, "/stock/a", &["12"]).await, (200, None), "a later writer");
        assert_eq!(put(&mut service, "/stock/a", &["14; read"]).await, (200, None));
        for late in ["11; read", "11"] {
            let seen = if late == "11" { "14" } else { "12" };
            let refused = (412, Some(seen.to_owned()));
            assert_eq!(put(&mut service, "/stock/a", &[late]).await, refused, "{late}");
        }
        assert_eq!(put(&mut service, "/stock/a", &["13; read"]).await, (200, None));
    }

    #[tokio::test]
    async fn request_without_one_good_token_is_refused() {
        let mut service = FenceGuard::new(key).layer(Stock);
        assert_eq!(put(&mut service, "/stock/a", &[]).await, (428, None));
        for fences in [
            &["x"][..],
            &["-1"],
            &[""],
            &["9", "9"],
            &["99999999999999999999"],
            &["9; write"],
            &["; read"],
        ] {
            assert_eq!(put(&mut service, "/stock/a", fences).await, (400, None), "{fences:?}");
        }
        assert_eq!(put(&mut service, "/stock/a", &["1"]).await, (200, None));
    }

    #[tokio::test]
    async fn memory_is_bounded_and_keeps_what_is_used() {
        let layer = FenceGuard::new(key).capacity(8);
        let mut service = layer.layer(Stock);
        for i in 0..1_000 {
            assert_eq!(put(&mut service, "/stock/used", &["7"]).await.0, 200);
            assert_eq!(put(&mut service, &format!("/stock/{i}"), &["7"]).await.0, 200);
            let seen = layer.seen.lock();
            assert!(seen.young.len() + seen.old.len() <= 16);
        }
        assert_eq!(put(&mut service, "/stock/used", &["6"]).await.0, 412);
        assert_eq!(put(&mut service, "/stock/0", &["6"]).await.0, 200, "it was forgotten");
    }
}
