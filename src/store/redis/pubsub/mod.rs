//! Subscriptions of waiters, and the connections that carry them.
//!
//! - [`subscriptions`] is the way in: the store subscribes waiters and inboxes there, and asks how many of this process listen.
//! - [`channels`] has what is awaited: each channel, its waiters, and the subscriber that has it.
//! - [`subscriber`] keeps one connection for a runtime and replaces it; [`listener`] is what is said on that connection.
//! - [`fleet`] has a subscriber for each server of a cluster or behind sentinels, and moves a channel with its slot: a late wake-up
//!   of a cluster is looked for here.
//!
//! Only [`subscriptions`] is used from outside.

mod channels;
mod fleet;
mod listener;
mod subscriber;
pub(super) mod subscriptions;
