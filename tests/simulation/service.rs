//! What one flow of control of a service does: it stands in an election, leads, observes, and runs a job that others run too.

use super::caller::{Caller, Way};
use super::judge::{Sometimes, number_of};
use super::plan::ms;
use super::runtime::Gate;
use super::world::World;
use leasehold::{CancellationToken, ErrorKind, Leadership, Lease, Once};
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::{sleep, timeout};

pub const ELECTION: &str = "e0";
const JOB: &str = "j0";

/// What a body that the library runs may have of its flow.
#[derive(Clone)]
struct Service {
    world: Arc<World>,
    who: (usize, u64),
    gate: Gate,
    over: Arc<AtomicBool>,
}

impl Service {
    fn saw(&self, what: Sometimes) {
        self.world.lock().judge.saw(what);
    }

    /// Leads for a while, and looks all the time.
    async fn leads(&self, me: &Leadership, times: &[u64], proclaims: bool) {
        let watched = Watched::of(self, me);
        self.saw(Sometimes::Led);
        self.world.lock().judge.leads(watched.belief, self.who.1);
        if proclaims {
            // A loss is told by the next look.
            let _ = me.proclaim(me.holder_id().to_string()).await;
        }
        for time in times {
            watched.sample(me);
            self.gate.pause(*time).await;
        }
        watched.sample(me);
    }

    /// Runs the job, and closes its key for so long.
    async fn works(&self, lease: &Lease, times: &[u64], keep: Option<u64>) -> Result<(), ()> {
        let hold = (self.who.0, number_of(lease));
        self.world.lock().judge.job_begins(self.world.now(), hold);
        let watched = Watched::of(self, lease);
        for time in times {
            watched.sample(lease);
            self.gate.pause(*time).await;
        }
        watched.sample(lease);
        drop(watched);
        let keep = keep.ok_or(())?;
        self.world.lock().judge.job_is_done(self.world.now(), hold, keep);
        Ok(())
    }
}

/// A lease that the library keeps, and the judge knows of until this is dropped.
struct Watched {
    world: Arc<World>,
    belief: u64,
    id: u64,
}

impl Watched {
    fn of(service: &Service, lease: &Lease) -> Self {
        let world = Arc::clone(&service.world);
        let moment = world.moment();
        let (belief, id) = world.lock().judge.open(&world.plan, moment, service.who, lease);
        Self { world, belief, id }
    }

    fn sample(&self, lease: &Lease) {
        let moment = self.world.moment();
        self.world.lock().judge.sample(&self.world.plan, moment, self.belief, lease);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let judge = &mut self.world.lock().judge;
        judge.leave(self.belief, self.id);
        judge.left(self.belief, self.id);
    }
}

impl Caller {
    pub async fn serve(mut self) {
        while !self.over.load(Ordering::Relaxed) {
            let pause = self.short();
            self.gate.pause(pause).await;
            match self.dice.below(4) {
                0 => self.campaign().await,
                1 => self.lead().await,
                _ => self.job().await,
            }
        }
    }

    fn service(&self) -> Service {
        let (world, over) = (Arc::clone(self.world()), Arc::clone(&self.over));
        Service { world, who: (self.client.id, self.task), gate: self.gate.clone(), over }
    }

    /// Since when nothing has gone wrong, if it is so long ago that nothing may fail.
    fn calm(&self) -> Option<u64> {
        let world = self.world();
        let judge = &world.lock().judge;
        judge.calm_since.filter(|_| judge.is_calm_for(world.now(), world.plan.settled()))
    }

    /// Whether nothing has gone wrong since then.
    fn still_calm(&self, since: Option<u64>) -> bool {
        since.is_some() && self.calm() == since
    }

    fn is_closing(&self) -> bool {
        self.world().lock().judge.closing.contains(&self.client.id)
    }

    fn times(&mut self) -> Vec<u64> {
        (0..self.dice.below(4)).map(|_| self.short()).collect()
    }

    /// Stands once, by hand.
    async fn campaign(&mut self) {
        let (limit, times, proclaims) =
            (self.dice.between(1, self.ttl()), self.times(), self.dice.percent(50));
        let (resigns, calm) = (self.dice.percent(60), self.calm());
        let mut candidate = self.manager.election(ELECTION).candidate("-");
        let _waiting = self.waits_for(ELECTION, limit);
        let led = timeout(ms(limit), candidate.campaign()).await;
        match led {
            Ok(Ok(me)) => {
                self.service().leads(&me, &times, proclaims).await;
                if resigns {
                    // Lost or not: the candidate knows no more than that it leads no more.
                    let _ = me.resign().await;
                }
            }
            Ok(Err(error))
                if self.still_calm(calm)
                    && !(error.kind() == ErrorKind::Closed && self.is_closing()) =>
            {
                self.fail(format_args!("a campaign failed in fair weather: {error}"));
            }
            _ => {}
        }
    }

    /// Stands again and again, for some terms, until it is asked to stop, or dropped.
    async fn lead(&mut self) {
        let (limit, stop) = (self.dice.between(1, 6 * self.ttl()), CancellationToken::new());
        let (is_dropped, calm) = (self.dice.percent(30), self.calm());
        let (times, proclaims) = (self.times(), self.dice.percent(50));
        let graceful = ms(self.dice.below(self.ttl() / 4));
        let (most, mut terms) = (self.dice.between(1, 4), 0);
        let candidate = self.manager.election(ELECTION).candidate("-");
        let mut candidate = candidate.until(stop.clone()).graceful(graceful);
        let (this, service) = (&*self, self.service());
        let _waiting = this.waits_for(ELECTION, limit);
        let mut leading = pin!(candidate.lead(async move |me| {
            terms += 1;
            if terms > 1 {
                service.saw(Sometimes::LedAgain);
            }
            service.leads(me, &times, proclaims).await;
            let over = terms == most || service.over.load(Ordering::Relaxed);
            if over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }));
        let led = tokio::select! {
            biased;
            led = &mut leading => led,
            () = sleep(ms(limit)) => {
                if is_dropped {
                    return;
                }
                stop.cancel();
                leading.await
            }
        };
        match led.map_err(|error| error.kind()) {
            Ok(()) => {}
            Err(ErrorKind::Closed) if this.is_closing() => {}
            // The simulation refuses requests in these ways, too.
            Err(ErrorKind::Invalid | ErrorKind::Unsupported) if !this.still_calm(calm) => {}
            Err(kind) => this.fail(format_args!("a candidate has given up: {kind:?}")),
        }
    }

    fn waits_for(&self, name: &str, limit: u64) -> super::caller::Waiting<'_> {
        self.world().lock().judge.services.asking.insert(self.task);
        self.wait_in(name, leasehold::store::Mode::Exclusive, Way::Dropped(limit), false)
    }

    /// Runs a job, if it is this flow that is to run it.
    async fn job(&mut self) {
        let keep = self.dice.between(self.ttl() / 4, 2 * self.ttl());
        let wait = if self.dice.percent(40) { self.dice.below(self.ttl()) } else { 0 };
        let (times, fails) = (self.times(), self.dice.percent(20));
        let limit =
            if self.dice.percent(15) { self.dice.between(1, self.ttl()) } else { u64::MAX / 2 };
        let (calm, since) = (self.calm(), self.world().now());
        let (this, service) = (&*self, self.service());
        let _waiting = this.waits_for(JOB, limit);
        let mut by = None;
        let has = &mut by;
        let job = this.manager.once(JOB).keep(ms(keep)).wait(ms(wait));
        let run = job.run(async move |lease: &Lease| {
            *has = Some((service.who.0, number_of(lease)));
            service.works(lease, &times, (!fails).then_some(keep)).await
        });
        let Ok(ran) = timeout(ms(limit), run).await else { return };
        let (world, now) = (this.world(), this.world().now());
        let calm = this.still_calm(calm);
        let judge = &mut world.lock().judge;
        match ran {
            Ok(Once::Ran(())) => by.into_iter().for_each(|hold| judge.job_ran(now, hold)),
            Ok(Once::Failed(())) => judge.saw(Sometimes::JobFailed),
            Ok(Once::AlreadyDone(_)) => judge.job_was_before(&world.plan, now, since),
            Ok(Once::Running(_)) => judge.saw(Sometimes::JobElsewhere),
            Err(error) if calm && by.is_none() && error.kind() != ErrorKind::Closed => {
                judge.fail(now, format_args!("a job failed in fair weather: {error}"));
            }
            _ => {}
        }
    }

    /// Looks who leads.
    pub async fn observe(self) {
        let mut view = self.manager.election(ELECTION).observe();
        while !self.over.load(Ordering::Relaxed) {
            // Nothing may ever change again.
            let Ok(leader) = timeout(ms(self.ttl()), view.changed()).await else { continue };
            if let (Some(term), None) = (leader.term, leader.stale_since) {
                let now = self.world().now();
                self.world().lock().judge.sees(now, self.client.id, term);
            }
        }
    }
}
