//! Renews leases: many in a call; in a cluster, in a call for each slot, and one for each kind of lock. Large bundles of permits
//! are divided among calls, and so are the keys of a name of which a cluster has moved only some.

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::store::contract::mode::Kind;
use crate::store::redis::scripts::keys::Keys;
use crate::store::redis::scripts::{RW_RENEW, Script, Scripts, lock, permits, reply, rw};
use crate::store::redis::topology::Connection;
use crate::store::{Absence, RenewBatch, Renewal, Renewed};
use crate::util::reached::Rare;
use std::collections::HashMap;
use std::time::Duration;
use tokio::task::JoinSet;

/// The most leases of one call, which the server stands still for: measured at a quarter of a millisecond.
pub(in crate::store::redis) const RENEWALS_PER_CALL: usize = 100;

/// What it takes to send renewals.
#[derive(Clone)]
pub(in crate::store::redis) struct RenewContext {
    pub(in crate::store::redis) connection: Connection,
    pub(in crate::store::redis) clock: Clock,
    pub(in crate::store::redis) keys: Keys,
    pub(in crate::store::redis) scripts: &'static Scripts,
}

type Verdicts = Vec<Result<Option<Absence>>>;

pub(in crate::store::redis) async fn renew(
    context: RenewContext,
    batch: RenewBatch,
) -> Result<Renewed> {
    let sent = context.clock.now();
    let kind = |item: &Renewal| item.target.mode.kind();
    let mixed = batch.items.windows(2).any(|pair| kind(&pair[0]) != kind(&pair[1]));
    let verdicts = if mixed || context.connection.is_cluster() {
        context.in_parts(batch).await
    } else {
        context.in_turn(&batch).await?
    };
    Ok(Renewed::new(sent, verdicts))
}

impl RenewContext {
    /// Renews with one call for each kind of lock, and in a cluster for each slot, because a call takes keys of one slot
    /// only. The calls are sent together, and each has its own outcome.
    async fn in_parts(&self, mut batch: RenewBatch) -> Verdicts {
        let items = std::mem::take(&mut batch.items);
        let count = items.len();
        let mut parts: HashMap<(Kind, u16), (Vec<usize>, Vec<Renewal>)> = HashMap::new();
        for (index, renewal) in items.into_iter().enumerate() {
            let slot = self.connection.slot(self.keys.lock(&renewal.target.name));
            let part = (renewal.target.mode.kind(), slot);
            let (indices, renewals) = parts.entry(part).or_default();
            indices.push(index);
            renewals.push(renewal);
        }
        let mut calls = JoinSet::new();
        for (indices, items) in parts.into_values() {
            let context = self.clone();
            let batch = RenewBatch { items, ..batch.clone() };
            calls.spawn(async move { (indices, context.in_turn(&batch).await) });
        }
        let mut verdicts = vec![Err(reply::connection_closed()); count];
        while let Some(answer) = calls.join_next().await {
            let Ok((indices, answers)) = answer else { continue };
            for (position, index) in indices.into_iter().enumerate() {
                verdicts[index] = match &answers {
                    Ok(answers) => answers
                        .get(position)
                        .cloned()
                        .unwrap_or_else(|| Err(reply::malformed_reply())),
                    Err(error) => Err(error.clone()),
                };
            }
        }
        verdicts
    }

    /// Renews all items, in one call after the other if they are too many permits for one: a server does nothing else
    /// while it runs a call.
    async fn in_turn(&self, batch: &RenewBatch) -> Result<Verdicts> {
        if fitting(&batch.items) == batch.items.len() {
            return self.together(batch).await;
        }
        let until = self.clock.now() + batch.timeout;
        let mut verdicts = Vec::with_capacity(batch.items.len());
        let mut rest = &batch.items[..];
        while !rest.is_empty() {
            let (next, behind) = rest.split_at(fitting(rest));
            let timeout = until.saturating_duration_since(self.clock.now());
            let part = RenewBatch { items: next.to_vec(), timeout, ..*batch };
            match self.together(&part).await {
                Ok(answers) => verdicts.extend(answers),
                Err(error) if error.is_unavailable() => {
                    verdicts.resize_with(batch.items.len(), || Err(error.clone()));
                    break;
                }
                Err(error) => {
                    verdicts.resize_with(verdicts.len() + next.len(), || Err(error.clone()));
                }
            }
            rest = behind;
        }
        Ok(verdicts)
    }

    /// Renews all items in one call.
    async fn together(&self, batch: &RenewBatch) -> Result<Verdicts> {
        let until = self.clock.now() + batch.timeout;
        match self.call(batch, &batch.items, batch.timeout).await {
            Err(error)
                if self.connection.is_split(&error)
                    || batch.items.len() > 1 && reply::is_key_out_of_reach(&error) =>
            {
                Rare::RedisRenewalSplit.reached();
                let left = || until.saturating_duration_since(self.clock.now());
                Ok(self.each(batch, left).await)
            }
            verdicts => verdicts,
        }
    }

    async fn call(
        &self,
        batch: &RenewBatch,
        items: &[Renewal],
        timeout: Duration,
    ) -> Result<Verdicts> {
        let kind = items.first().map_or(Kind::Lock, |item| item.target.mode.kind());
        let mut call = match kind {
            Kind::Lock => lock::renewal(&self.keys, batch, items),
            Kind::ReadWrite => rw::renewal(&self.keys, batch, items),
            Kind::Semaphore => permits::renewal(&self.keys, batch, items),
        };
        call.divisible = true;
        let reply = self.connection.run(self.script(kind), call, timeout).await?;
        Ok(lock::renewed(&reply, items.len()))
    }

    fn script(&self, kind: Kind) -> &'static Script {
        match kind {
            Kind::Lock => &self.scripts.renew,
            Kind::ReadWrite => &RW_RENEW,
            Kind::Semaphore => &self.scripts.permits_renew,
        }
    }

    /// Renews an item whose keys are on two servers, because a cluster is moving its slot. It is renewed if all parts are.
    /// The last one knows whose it is.
    async fn key_by_key(
        &self,
        batch: &RenewBatch,
        item: &Renewal,
        left: impl Fn() -> Duration,
    ) -> Result<Option<Absence>> {
        Rare::RedisRenewalKeyByKey.reached();
        let keys = &self.keys;
        let kind = item.target.mode.kind();
        let calls = match kind {
            Kind::Lock => {
                // The retention of the fencing token is long enough to leave it out once.
                let item = Renewal { keep_fence: false, ..item.clone() };
                vec![lock::renewal(keys, batch, &[item])]
            }
            Kind::ReadWrite => rw::renewals_with_one_key(keys, batch, item),
            Kind::Semaphore => vec![permits::renewal_with_one_key(keys, batch, item)],
        };
        let mut verdict = None;
        let mut complete = true;
        for call in calls {
            complete &= verdict.is_none();
            let reply = self.connection.run(self.script(kind), call, left()).await?;
            verdict = only(lock::renewed(&reply, 1))?;
        }
        if verdict.is_none() && !complete {
            return Err(Error::new(
                ErrorKind::Rejected,
                "a key of the lease is gone, and cannot be made while a cluster moves its slot",
            ));
        }
        Ok(verdict)
    }

    /// Renews one by one the items of a call that was refused because of one of them, for as long as there is time and the
    /// server answers.
    async fn each(&self, batch: &RenewBatch, left: impl Fn() -> Duration) -> Verdicts {
        let mut verdicts = Vec::with_capacity(batch.items.len());
        for renewal in &batch.items {
            let verdict = match self.call(batch, std::slice::from_ref(renewal), left()).await {
                Err(error) if self.connection.is_split(&error) => {
                    self.key_by_key(batch, renewal, &left).await
                }
                answer => answer.and_then(only),
            };
            let failure = verdict.as_ref().err().filter(|error| error.is_unavailable()).cloned();
            verdicts.push(verdict);
            if let Some(error) = failure {
                verdicts.resize_with(batch.items.len(), || Err(error.clone()));
                break;
            }
        }
        verdicts
    }
}

/// Returns the verdict of a call with one item.
fn only(mut verdicts: Verdicts) -> Result<Option<Absence>> {
    verdicts.pop().unwrap_or_else(|| Err(reply::malformed_reply()))
}

/// Returns how many of these items one call takes; one at least, if there are any.
fn fitting(items: &[Renewal]) -> usize {
    let mut permits = 0;
    let fits = |item: &&Renewal| {
        permits += item.target.mode.permits();
        permits <= permits::MOST_PERMITS
    };
    items.iter().take_while(fits).count().max(1).min(items.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{HolderId, Mode, Name, Target};
    use uuid::Uuid;

    #[test]
    fn call_renews_many_leases_or_few_large_bundles() {
        let item = |mode| {
            Renewal::new(Target::new(Name::new("n").unwrap(), mode), HolderId::new(Uuid::nil(), 1))
        };
        let permits = |take| item(Mode::Permits { size: 5000, take });
        for (takes, fits) in [
            (&[1; 100][..], 100),
            (&[10; 100], 100),
            (&[11; 100], 90),
            (&[1000, 1], 1),
            (&[600, 400, 1], 2),
            (&[5000, 1], 1),
            (&[], 0),
        ] {
            let items: Vec<_> = takes.iter().map(|take| permits(*take)).collect();
            assert_eq!(fitting(&items), fits, "{takes:?}");
        }
        assert_eq!(fitting(&[(); 100].map(|()| item(Mode::Read))), 100);
    }
}
