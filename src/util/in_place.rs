//! Boxes a future where it is made.

use std::future::Future;
use std::pin::Pin;

/// Boxes a future and writes it in its final place. `Box::pin` would copy it, all kilobytes of a large one.
#[inline]
pub(crate) fn in_place<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::into_pin(Box::write(Box::new_uninit(), make()))
}
