//! Layers for services of `tower`, axum, tonic and hyper, with the feature `tower`.
//!
//! [`LeaseLayer`] works on one request for each key at a time, across all processes. [`FenceGuard`] protects the
//! resource that such a request writes to, and refuses late requests.
//!
//! ```
//! use http::{Request, Response, StatusCode};
//! use leasehold::LeaseManager;
//! use leasehold::tower::{LeaseLayer, RequestLease};
//! use tower_layer::Layer;
//! use tower_service::Service;
//! # use std::convert::Infallible;
//! # use std::future::{Ready, poll_fn, ready};
//! # use std::task::{Context, Poll};
//! # #[derive(Clone)]
//! # struct Orders;
//! # impl Service<Request<String>> for Orders {
//! #     type Response = Response<String>;
//! #     type Error = Infallible;
//! #     type Future = Ready<Result<Response<String>, Infallible>>;
//! #     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
//! #         Poll::Ready(Ok(()))
//! #     }
//! #     fn call(&mut self, request: Request<String>) -> Self::Future {
//! #         let lease = request.extensions().get::<RequestLease>().expect("it has a key");
//! #         ready(Ok(Response::new(format!("{} {:?}", lease.name(), lease.fence()))))
//! #     }
//! # }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let leases = LeaseManager::in_memory();
//!
//! // Requests for one order wait for each other, up to a second. Others pass.
//! let layer = LeaseLayer::new(leases.clone(), |request: &Request<String>| {
//!     let order = request.uri().path().strip_prefix("/orders/")?;
//!     Some(format!("orders:{order}"))
//! })
//! .wait(std::time::Duration::from_secs(1));
//!
//! let mut service = layer.layer(Orders); // or `Router::layer(layer)` of axum
//! # poll_fn(|context| service.poll_ready(context)).await?;
//! let answer = service.call(Request::get("/orders/42").body(String::new())?).await?;
//! assert_eq!(answer.status(), StatusCode::OK);
//! # leases.close().await?;
//! # Ok(())
//! # }
//! ```

mod fence_guard;
mod lease_body;
mod lease_layer;

pub use fence_guard::{FENCE_HEADER, FenceGuard, FenceGuardFuture, FenceGuardService};
pub use lease_body::LeaseBody;
pub use lease_layer::{LeaseFuture, LeaseLayer, LeaseService, RequestLease};
