//! Names that several holders share. Each request is a call of its own: `rw.rs` and `permits.rs` have the words.

use super::super::target::Kind;
use super::super::{
    Acquire, Acquired, Inspect, Inspection, Mode, Release, Released, Resize, StoreFuture, Target,
    failed,
};
use super::requests::confirmed;
use super::scripts::{INSPECT, PERMITS_ACQUIRE, PERMITS_INSPECT, RW_INSPECT};
use super::{RedisStore, permits, replies, rw};
use crate::error::Result;

impl RedisStore {
    /// Acquires a read-write lock or permits, in a call of its own.
    pub(super) fn acquire_shared(&self, request: Acquire) -> StoreFuture<Acquired> {
        let (script, call) = match request.target.mode {
            Mode::Permits { size, take } => {
                (&PERMITS_ACQUIRE, permits::acquire(&self.keys, &request, size, take))
            }
            _ => (&self.scripts.rw_acquire, Ok(rw::acquire(&self.keys, &request))),
        };
        let mut call = match call {
            Ok(call) => call,
            Err(error) => return failed(error),
        };
        // A reader that becomes the writer has a new grant.
        let upgrades = request.converts && request.target.mode == Mode::Write;
        let is_new = request.count == 1 && (!request.converts || upgrades);
        call.wait = self.replicas.filter(|_| is_new);
        let (sent, wait) = (self.clock.now(), call.wait);
        let reply = self.run_call(script, call, request.timeout);
        Box::pin(async move {
            let mut reply = reply.await?;
            let confirmed = confirmed(wait, &mut reply);
            let verdict = match request.target.mode {
                Mode::Permits { size, .. } => permits::acquired(size, sent, &reply),
                _ => rw::acquired(&request, sent, &reply),
            };
            match verdict {
                Ok(Acquired::Granted { .. }) => confirmed.and(verdict),
                verdict => verdict,
            }
        })
    }

    /// Releases a read-write lock or permits, in a call of its own.
    pub(super) fn release_shared(&self, request: &Release) -> StoreFuture<Released> {
        if let Err(error) = request.mark() {
            return failed(error);
        }
        let (script, call) = match request.target.mode {
            Mode::Permits { .. } => {
                (&self.scripts.permits_release, permits::release(&self.keys, request))
            }
            _ => (&self.scripts.rw_release, rw::release(&self.keys, request)),
        };
        let own = self.subscriptions.is_subscribed(&self.channel(&request.target));
        let reply = self.run_call(script, call, request.timeout);
        Box::pin(async move {
            match rw::released(&reply.await?)? {
                // A subscription outlives its last waiter for a while, so we may be one of them.
                Released::Done { listeners } => {
                    Ok(Released::done(listeners.saturating_sub(own.into())))
                }
                verdict => Ok(verdict),
            }
        })
    }

    /// Returns the channel of a target's wake-ups.
    pub(super) fn channel(&self, target: &Target) -> String {
        match target.mode.kind() {
            Kind::Lock => self.keys.channel(&target.name).concat(),
            Kind::ReadWrite => self.keys.rw_channel(&target.name).concat(),
            Kind::Semaphore => self.keys.permits_channel(&target.name).concat(),
        }
    }

    /// Returns the holders of a name.
    pub(super) async fn holders(&self, request: Inspect) -> Result<Inspection> {
        let Inspect { target, timeout, .. } = request;
        match target.mode.kind() {
            Kind::Lock => replies::inspection(&self.run_on(&INSPECT, &target.name, timeout).await?),
            Kind::ReadWrite => {
                rw::inspection(&self.run_on(&RW_INSPECT, &target.name, timeout).await?)
            }
            Kind::Semaphore => {
                let mut call = permits::of(&self.keys, &target.name, 1);
                call.text(&self.channel(&target));
                call.text(self.scripts.numsub());
                permits::inspection(&self.run_call(&PERMITS_INSPECT, call, timeout).await?)
            }
        }
    }

    /// Sets the number of permits of a semaphore. Returns the one before.
    pub(super) async fn set_size(&self, request: &Resize) -> Result<Option<u32>> {
        let call = permits::resize(&self.keys, request);
        let reply = self.run_call(&self.scripts.permits_resize, call, request.timeout).await?;
        permits::resized(&reply)
    }
}
