//! A response body that may keep a lease.

use crate::error::{Error, Loss};
use crate::locks::lease::Lease;
use http_body::{Body, Frame, SizeHint};
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The body of a response that passed a [`LeaseLayer`](super::LeaseLayer).
///
/// It is the body of the inner service. With [`until_body_ends`](super::LeaseLayer::until_body_ends) it keeps the lease
/// until it ends, fails or is dropped, and fails with an [`Error`] of the kind [`Lost`](crate::ErrorKind::Lost) when the
/// lease is lost. Then the client sees that the response is cut short.
pub struct LeaseBody<B> {
    /// `None` at its end. Dropped before the lease.
    body: Option<Pin<Box<B>>>,
    kept: Option<Kept>,
}

/// A lease, and the future of its loss.
struct Kept {
    lease: Lease,
    lost: Pin<Box<dyn Future<Output = Loss> + Send>>,
}

impl Kept {
    fn poll_lost(&mut self, context: &mut Context<'_>) -> Poll<Error> {
        // The clock decides, also after the whole runtime was frozen.
        if let Err(error) = self.lease.check() {
            return Poll::Ready(error);
        }
        self.lost.as_mut().poll(context).map(Error::from)
    }
}

impl<B> LeaseBody<B> {
    pub(super) fn new(body: B) -> Self {
        Self { body: Some(Box::pin(body)), kept: None }
    }

    fn end(&mut self) {
        // The work of a lost lease ends before the lease.
        self.body = None;
        self.kept = None;
    }

    pub(super) fn keeping(body: B, lease: Lease) -> Self {
        let kept = Kept { lost: Box::pin(lease.lost()), lease };
        Self { body: Some(Box::pin(body)), kept: Some(kept) }
    }
}

impl<B> Body for LeaseBody<B>
where
    B: Body,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Data = B::Data;
    type Error = Box<dyn StdError + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        if let Some(kept) = &mut self.kept
            && let Poll::Ready(lost) = kept.poll_lost(context)
        {
            self.end();
            return Poll::Ready(Some(Err(lost.into())));
        }
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let polled = body.as_mut().poll_frame(context).map_err(Into::into);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.end();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), |body| body.size_hint())
    }
}

impl<B: Default> Default for LeaseBody<B> {
    fn default() -> Self {
        Self::new(B::default())
    }
}

impl<B> fmt::Debug for LeaseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lease = self.kept.as_ref().map(|kept| &kept.lease);
        f.debug_struct("LeaseBody").field("lease", &lease).finish_non_exhaustive()
    }
}
