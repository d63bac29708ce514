//! Renews leases: proves the session alive once for all of them, and checks that each node exists.
//!
//! A node of another kind does not end a lease, so renewals do not look for one: the lease was granted first, and its node
//! is still there. To end it would be a loss that the store did not report.

use super::holds::OwnNode;
use super::recipe::{Recipe, changing};
use crate::clock::Instant;
use crate::error::{ErrorKind, Result};
use crate::store::zookeeper::session::errors::{Found, classify, find, in_time};
use crate::store::zookeeper::tree::queue::Queue;
use crate::store::{Absence, Mode, RenewBatch, Renewal, Renewed, Target};
use std::sync::Arc;
use std::time::Duration;

pub(in crate::store::zookeeper) async fn renew(
    recipe: &Recipe,
    batch: RenewBatch,
) -> Result<Renewed> {
    let ttl = batch.ttl;
    let limit = batch.timeout;
    let batch = batch.items;
    let asked = recipe.clock.now();
    in_time(limit, async {
        let own: Vec<Option<OwnNode>> =
            batch.iter().map(|renewal| renewable(recipe, renewal)).collect();
        let live = own.iter().flatten().find(|own| !own.session.is_over());
        let session = live.map(|own| Arc::clone(&own.session));
        if let Some(session) = &session {
            session.confirm(limit).await?;
        }
        let link = match &session {
            Some(session) => Some(session.link().await?),
            None => None,
        };
        // All are sent together.
        let checks: Vec<_> = own
            .iter()
            .map(|own| {
                let own = own.as_ref().filter(|own| !own.session.is_over())?;
                Some(link.as_ref()?.client.check_stat(own.path.as_ref()?))
            })
            .collect();
        let mut there = Vec::with_capacity(batch.len());
        for check in checks {
            there.push(match check {
                Some(check) => check.await.map_err(classify).map(|stat| stat.is_some()),
                None => Ok(false),
            });
        }
        let verdicts = renewed(recipe, &batch, ttl, &own, there, asked + limit * 3 / 4).await;
        let sent = session.map_or(asked, |session| session.confirmed(asked));
        Ok(Renewed::new(sent, verdicts))
    })
    .await
}

fn renewable(recipe: &Recipe, renewal: &Renewal) -> Option<OwnNode> {
    recipe.holds.find(&renewal.target.name, renewal.holder).filter(|own| own.granted)
}

async fn renewed(
    recipe: &Recipe,
    batch: &[Renewal],
    ttl: Duration,
    own: &[Option<OwnNode>],
    there: Vec<Result<bool>>,
    until: Instant,
) -> Vec<Result<Option<Absence>>> {
    let extended = batch.iter().zip(own).zip(there).map(|((renewal, own), there)| {
        let name = &renewal.target.name;
        let holder = renewal.holder;
        if there? && own.as_ref().is_some_and(|own| !own.session.is_over()) {
            recipe.check_ttl(ttl)?;
            let expires = recipe.clock.now() + ttl;
            if recipe.holds.update(name, holder, |own| own.expires = expires) {
                return Ok(true);
            }
        }
        if recipe.holds.remove_unmoved(name, holder, own.as_ref()) {
            return Ok(false);
        }
        Err(changing())
    });
    let extended: Vec<Result<bool>> = extended.collect();
    let gone = batch.iter().zip(&extended).filter(|(_, extended)| matches!(extended, Ok(false)));
    // Many may be lost at once. Their absences must not delay the verdicts of the others.
    let absences = absences(recipe, gone.map(|(renewal, _)| &renewal.target));
    let limit = until.saturating_duration_since(recipe.clock.now());
    let absences = tokio::time::timeout(limit, absences).await;
    let mut absences = absences.unwrap_or_default().into_iter();
    let verdict = |extended| match extended {
        Ok(true) => Ok(None),
        Ok(false) => Ok(Some(absences.next().unwrap_or(Absence::Gone))),
        Err(error) => Err(error),
    };
    extended.into_iter().map(verdict).collect()
}

/// Returns why a hold is absent.
pub(super) async fn absence(recipe: &Recipe, target: &Target) -> Absence {
    let absences = absences(recipe, std::iter::once(target)).await;
    absences.first().copied().unwrap_or(Absence::Gone)
}

/// Returns why holds are absent; nothing if that cannot be found out. That they are absent is known either way.
async fn absences(recipe: &Recipe, targets: impl Iterator<Item = &Target>) -> Vec<Absence> {
    let Ok(link) = recipe.sessions.current().map(|session| session.carrier()) else {
        return Vec::new();
    };
    let Some(link) = link else { return Vec::new() };
    // All are sent together.
    let queues: Vec<_> = targets
        .map(|target| (target.mode, link.client.list_children(&recipe.names.lock(&target.name))))
        .collect();
    let mut absences = Vec::with_capacity(queues.len());
    for (mode, queue) in queues {
        absences.push(absence_from(mode, find(queue).await));
    }
    absences
}

fn absence_from(mode: Mode, children: Result<Found<Vec<String>>>) -> Absence {
    match children {
        Ok(Found::Yes(children)) => Queue::new(children).absence(mode),
        // Another user has the directory now.
        Err(error) if error.kind() == ErrorKind::Denied => Absence::Taken,
        _ => Absence::Gone,
    }
}
