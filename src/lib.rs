#![doc = "placeholder"]
#![forbid(unsafe_code)]
#![warn(missing_docs, missing_debug_implementations, unreachable_pub)]
#![warn(clippy::return_self_not_must_use, clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod clock;
mod error;
mod hold;
mod lease;
mod lock;
mod manager;
mod seek;
pub mod store;

pub use error::{Error, ErrorKind, Fate, Loss, Result};
pub use lease::{Lease, LeaseState};
pub use lock::{Holder, Lock};
pub use manager::{Builder, CloseError, LeaseManager};
pub use store::Holding;
pub use tokio_util::sync::CancellationToken;
