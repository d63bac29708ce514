//! What is common to the handles on one name.

use crate::engine::{AcquireSpec, Engine, Hold, WaitLimit, acquire};
use crate::error::{Error, Result};
use crate::locks::lease::Lease;
use crate::store::Name;
use crate::util::runtime;
use std::sync::Arc;

/// An exclusive lock, as one flow of control sees it. A [`Lock`](crate::Lock) has one, and a
/// [`Holder`](crate::Holder) one for each name.
pub(crate) struct Handle {
    pub(crate) engine: Arc<Engine>,
    /// The first attempt to lock reports an invalid name.
    pub(crate) name: Result<Name>,
    /// The last hold, which a nested call enters again.
    pub(crate) current: Option<Arc<Hold>>,
}

impl Handle {
    pub(crate) fn new(engine: Arc<Engine>, name: Result<Name>) -> Self {
        Self { engine, name, current: None }
    }

    /// Returns the name; empty if the one that was given is invalid.
    pub(crate) fn name(&self) -> &str {
        Name::text_of(&self.name)
    }

    /// Returns whether the next call can depend on the last hold.
    pub(crate) fn is_in_use(&self) -> bool {
        self.current.as_ref().is_some_and(|hold| !hold.is_over() || hold.count() > 0)
    }

    /// Acquires the name, however long that takes.
    pub(crate) async fn lock(&mut self, spec: AcquireSpec<'_>) -> Result<Lease> {
        self.acquire(spec, WaitLimit::Forever).await?.ok_or_else(Error::silent)
    }

    /// Acquires the name, or enters the last hold again.
    pub(crate) async fn acquire(
        &mut self,
        spec: AcquireSpec<'_>,
        limit: WaitLimit,
    ) -> Result<Option<Lease>> {
        runtime::need_at(spec.caller());
        let Self { engine, name, current } = self;
        let name = name.as_ref().map_err(Error::clone)?;
        let claim = acquire(&engine.core, name, spec, current, limit).await?;
        Ok(claim.map(|claim| Lease::new(engine, claim)))
    }
}
