//! The contract of a store, in memory: each operation is one step of the state.

use super::notes::{self, InboxGuard};
use super::{MemoryStore, metadata, requests, wake};
use crate::clock::Clock;
use crate::error::Result;
use crate::store::{
    About, Acquire, Acquired, Annotate, Capabilities, Closed, Describe, Ends, ForceRelease,
    HolderInfo, Inbox, Inspect, Inspection, Kind, Line, List, Listed, Mode, Name, Owner, Owners,
    Pages, Release, Released, RenewBatch, RenewCall, Renewed, Reserve, Reserved, Resize,
    SetVerdicts, Store, StoreFuture, Topic, Uptime, Wait, Wakeups, Want,
};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

#[async_trait]
impl Store for MemoryStore {
    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn capabilities(&self) -> Capabilities {
        // A listener without a holder has no manager; one of the own manager would be taken for a waiter elsewhere.
        Capabilities::default()
            .with_announces(false)
            .with_steals(true)
            .with_line(Line::Arrivals)
            .with_keeps(true)
            .with_own_ttl(true)
            .with_reserves(true)
            .with_lingers(true)
            .with_mode(Mode::Read)
            .with_mode(Mode::Write)
            .with_mode(Mode::Permits { size: 1, take: 1 })
    }

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        self.at_once(|state, now| match &request.steal {
            Some(steal) => notes::steal(state, &request, steal, now),
            None => state.acquire(&request, now),
        })
    }

    fn acquire_all(&self, requests: Vec<Acquire>) -> StoreFuture<SetVerdicts> {
        self.at_once(|state, now| Ok(state.acquire_all(&requests, now)))
    }

    fn is_atomic(&self, _: &[&Name]) -> bool {
        true
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        self.at_once(|state, now| match request.ends {
            Ends::Hold => requests::release(state, &request, now),
            Ends::Arrival => requests::release_arrival(state, &request, now),
        })
    }

    fn renew(&self, batch: RenewBatch) -> Vec<RenewCall> {
        let renew = |batch: RenewBatch| -> StoreFuture<Renewed> {
            let store = self.clone();
            Box::pin(async move {
                store.at_once(|state, now| Ok(requests::renew(state, &batch, now))).await
            })
        };
        RenewCall::divide(batch, usize::MAX, |_| 0, renew)
    }

    async fn resize(&self, request: Resize) -> Result<Option<u32>> {
        self.at_once(|state, now| requests::resize(state, &request, now)).await
    }

    async fn inspect(&self, request: Inspect) -> Result<Inspection> {
        self.at_once(|state, now| {
            let name = &request.target.name;
            let mode = request.target.mode;
            match request.about {
                About::Holders => {}
                About::Line => {
                    let line = state.lines.get(name).map(|line| line.waiting(now));
                    return Ok(Inspection::default().with_line(line.unwrap_or_default()));
                }
                About::Note(holder) => {
                    return Ok(
                        Inspection::default().with_note(notes::note(state, name, holder, now))
                    );
                }
            }
            if let Some(shared) = state.shared_as(name, mode.kind(), now)? {
                let inspection = shared.inspect(now);
                return Ok(inspection.with_waiting(Some(wake::waiting(state, name))));
            }
            let holder = state.entry(name, now).map(|entry| {
                let remaining = Some(entry.expires.saturating_duration_since(now));
                let holder = entry.holder.to_string();
                if let Some((mark, at)) = entry.closed {
                    let ago = now.saturating_duration_since(at);
                    return HolderInfo::closed(Closed::new(mark, ago, holder), remaining);
                }
                let metadata = entry.metadata.as_ref().filter(|(_, until)| *until > now);
                HolderInfo::new(holder, entry.count.into(), remaining)
                    .with_metadata(metadata.map(|(metadata, _)| (**metadata).clone()))
            });
            Ok(Inspection::new(holder).with_waiting(Some(wake::waiting(state, name))))
        })
        .await
    }

    async fn annotate(&self, request: Annotate) -> Result<bool> {
        request.require_exclusive()?;
        self.at_once(|state, now| metadata::annotate(state, request, now)).await
    }

    async fn describe(&self, request: Describe) -> Result<()> {
        self.at_once(|state, now| {
            metadata::describe(state, request, now);
            Ok(())
        })
        .await
    }

    async fn owners(&self, request: Owners) -> Result<Vec<Option<Owner>>> {
        self.at_once(|state, now| Ok(metadata::owners(state, &request, now))).await
    }

    /// Looks at all names at once, with the memory locked meanwhile.
    fn list(&self, request: List) -> Result<Box<dyn Pages>> {
        let now = self.clock.now();
        let state = self.lock();
        let held = state.holds.iter().filter(|(_, entry)| entry.expires > now);
        let locks = held.map(|(name, _)| Listed::new(name.clone(), Kind::Lock));
        let held = state.shared.iter().filter(|(_, shared)| shared.len(now) > 0);
        let shared = held.map(|(name, shared)| Listed::new(name.clone(), shared.kind));
        Ok(request.pages(locks.chain(shared)))
    }

    async fn force_release(&self, request: ForceRelease) -> Result<bool> {
        self.at_once(|state, now| {
            let name = &request.target.name;
            let mode = request.target.mode;
            request.check_mode()?;
            let is_meant = state
                .entry(name, now)
                .is_some_and(|entry| request.is_meant_for(&entry.holder.to_string()));
            let shared = state.shared_as(name, mode.kind(), now)?;
            let held = shared.is_some_and(|shared| shared.len(now) > 0);
            let held = held || state.entry(name, now).is_some();
            if request.from.is_some() && !is_meant {
                return Ok(false);
            }
            notes::note_forced(state, &request, now);
            state.shared.remove(name);
            state.holds.remove(name);
            state.takes(name, now);
            wake::wake(state, name, None);
            Ok(held)
        })
        .await
    }

    async fn subscribe(&self, request: Wait) -> Result<Option<Wakeups>> {
        Ok(Some(match request.topic {
            Topic::Release => wake::listen(self, request),
            Topic::Metadata => wake::observe(self, request.target.name),
        }))
    }

    async fn want(&self, request: Want) -> Result<bool> {
        self.at_once(|state, now| notes::want(state, &request, now)).await
    }

    fn inbox(&self, manager: Uuid) -> Option<Inbox> {
        let (sender, inbox) = Inbox::new(InboxGuard { store: self.clone(), manager });
        self.lock().inboxes.insert(manager, sender);
        Some(inbox)
    }

    async fn uptime(&self, _: Duration) -> Result<Uptime> {
        // Its clones share the memory.
        let server = format!("memory {:p}", Arc::as_ptr(&self.state));
        self.at_once(|state, now| {
            // Before it was made, there was nothing to forget.
            let age = state.restarted.map(|at| now.saturating_duration_since(at));
            Ok(Uptime::new(age).with_server(Some(server)))
        })
        .await
    }

    async fn reserve(&self, request: Reserve) -> Result<Reserved> {
        let verdicts = self.at_once(|state, now| {
            Ok(request.items.iter().map(|item| requests::reserve(state, item, now)).collect())
        });
        let verdicts = verdicts.await?;
        Ok(Reserved::new(self.uptime(request.timeout).await?, verdicts))
    }

    async fn close(&self, _: Duration) {
        // The leases outlive a manager, as they would on a server: clones may be in use.
    }
}
