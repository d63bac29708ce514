//! Checks of a server: the permissions of the user, and settings that may cost leases.
//!
//! - When connecting, [`settings`] asks for `INFO`, which [`info`] judges, and [`permissions`] tries out what locks do.
//! - [`examine`] does the same and more, for a person who wants to know, and never fails: [`tryout`] connects as a manager does.
//! - [`dry_run`] asks for what connecting does not try out.
//! - What judges answers and times is pure: [`info`], [`times`], [`stalls`], [`limits`], [`fleet`], most of [`leftovers`].
//!   [`commands`] has what became of a question.

mod commands;
mod dry_run;
pub(super) mod examine;
mod fleet;
mod info;
mod leftovers;
mod limits;
pub(super) mod permissions;
pub(super) mod settings;
mod stalls;
mod times;
mod tryout;
