//! redlock: blocking, a new connection for each command; here on tokio's pool for blocking work.

use super::TTL;
use crate::contender::{Contender, Lock, Result};
use redlock::RedLock;

#[derive(Clone)]
pub struct Redlock(&'static RedLock);

pub async fn connect(url: String) -> Result<Redlock> {
    // Its guards borrow it, and cross threads; it is made once in a process.
    Ok(Redlock(Box::leak(Box::new(RedLock::new(vec![url])))))
}

pub struct Handle {
    manager: &'static RedLock,
    name: String,
    guard: Option<redlock::Lock<'static>>,
}

impl Contender for Redlock {
    type Lock = Handle;

    fn lock(&self, name: &str) -> Handle {
        Handle { manager: self.0, name: name.to_owned(), guard: None }
    }
}

impl Lock for Handle {
    async fn acquire(&mut self) -> Result<()> {
        let (manager, name) = (self.manager, self.name.clone());
        let ttl = TTL.as_millis() as usize;
        let lock = tokio::task::spawn_blocking(move || manager.lock(name.as_bytes(), ttl));
        let lock = lock.await.map_err(|error| error.to_string())?;
        self.guard = lock.map_err(|error| error.to_string())?;
        if self.guard.is_some() { Ok(()) } else { Err("gave up".to_owned()) }
    }

    async fn release(&mut self) -> Result<()> {
        let guard = self.guard.take().ok_or("not held")?;
        let unlock = tokio::task::spawn_blocking(move || guard.lock_manager.unlock(&guard));
        unlock.await.map_err(|error| error.to_string())
    }
}
