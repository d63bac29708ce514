//! The contract of a store, in memory: each operation is one step of the state.

use super::MemoryStore;
use super::notes::InboxGuard;
use crate::clock::Clock;
use crate::error::Result;
use crate::store::{
    About, Acquire, Acquired, Annotate, Capabilities, Closed, Describe, Ends, ForceRelease,
    HolderInfo, Inbox, Inspect, Inspection, Line, Mode, Name, Owner, Owners, Release, Released,
    RenewBatch, RenewCall, Renewed, Resize, SetVerdicts, Store, StoreFuture, Topic, Uptime, Wait,
    Wakeups, Want,
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
            .with_line(Line::Places)
            .with_keeps(true)
            .with_own_ttl(true)
            .with_mode(Mode::Read)
            .with_mode(Mode::Write)
            .with_mode(Mode::Permits { size: 1, take: 1 })
    }

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        self.at_once(|state, now| match &request.steal {
            Some(steal) => state.steal(&request, steal, now),
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
            Ends::Hold => state.release(&request, now),
            Ends::Arrival => state.release_arrival(&request, now),
        })
    }

    fn renew(&self, batch: RenewBatch) -> Vec<RenewCall> {
        let renew = |batch: RenewBatch| -> StoreFuture<Renewed> {
            let store = self.clone();
            Box::pin(async move { store.at_once(|state, now| Ok(state.renew(&batch, now))).await })
        };
        RenewCall::divide(batch, usize::MAX, |_| 0, renew)
    }

    async fn resize(&self, request: Resize) -> Result<Option<u32>> {
        self.at_once(|state, now| state.resize(&request, now)).await
    }

    async fn inspect(&self, request: Inspect) -> Result<Inspection> {
        self.at_once(|state, now| {
            let (name, mode) = (&request.target.name, request.target.mode);
            match request.about {
                About::Holders => {}
                About::Line => {
                    let line = state.lines.get(name).map(|line| line.waiting(now));
                    return Ok(Inspection::default().with_line(line.unwrap_or_default()));
                }
                About::Note(holder) => {
                    return Ok(Inspection::default().with_note(state.note(name, holder, now)));
                }
            }
            if let Some(shared) = state.of_kind(name, mode.kind(), now)? {
                let inspection = shared.inspect(now);
                return Ok(inspection.with_waiting(Some(state.waiting(name))));
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
            Ok(Inspection::new(holder).with_waiting(Some(state.waiting(name))))
        })
        .await
    }

    async fn annotate(&self, request: Annotate) -> Result<bool> {
        request.require_exclusive()?;
        self.at_once(|state, now| state.annotate(request, now)).await
    }

    async fn describe(&self, request: Describe) -> Result<()> {
        self.at_once(|state, now| {
            state.describe(request, now);
            Ok(())
        })
        .await
    }

    async fn owners(&self, request: Owners) -> Result<Vec<Option<Owner>>> {
        self.at_once(|state, now| Ok(state.owners(&request, now))).await
    }

    async fn force_release(&self, request: ForceRelease) -> Result<bool> {
        self.at_once(|state, now| {
            let (name, mode) = (&request.target.name, request.target.mode);
            request.check_mode()?;
            let is_meant = state
                .entry(name, now)
                .is_some_and(|entry| request.is_meant_for(&entry.holder.to_string()));
            let shared = state.of_kind(name, mode.kind(), now)?;
            let held = shared.is_some_and(|shared| shared.len(now) > 0);
            let held = held || state.entry(name, now).is_some();
            if request.from.is_some() && !is_meant {
                return Ok(false);
            }
            state.note_forced(&request, now);
            state.shared.remove(name);
            state.holds.remove(name);
            state.wake(name, None);
            Ok(held)
        })
        .await
    }

    async fn subscribe(&self, request: Wait) -> Result<Option<Wakeups>> {
        Ok(Some(match request.topic {
            Topic::Release => self.listen(request),
            Topic::Metadata => self.observe(request.target.name),
        }))
    }

    async fn want(&self, request: Want) -> Result<bool> {
        self.at_once(|state, now| state.want(&request, now)).await
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

    async fn close(&self, _: Duration) {
        // The leases outlive a manager, as they would on a server: clones may be in use.
    }
}
