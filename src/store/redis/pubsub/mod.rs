//! Subscriptions of waiters, and the connections that carry them.

mod channels;
mod fleet;
mod listener;
mod subscriber;
pub(super) mod subscriptions;
