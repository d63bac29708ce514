//! The handles and guards of the public API: one file for each kind of lock. They know the engine and the contract of
//! stores, no store and no manager.

pub(crate) mod election;
pub mod guard;
pub(crate) mod lease;
pub(crate) mod lock;
pub(crate) mod multi_lock;
pub(crate) mod once;
pub(crate) mod rw_lock;
pub(crate) mod semaphore;
pub(crate) mod slots;
