//! Elections: candidates that stand by hand or again and again, and observers.

use crate::caller::Caller;
use crate::holder::{Order, Place, Process};
use crate::worker_log::{Ask, Belief, error_word};
use kit::soak::history::What;
use leasehold::{CancellationToken, Leader, Leadership};
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::{sleep, timeout};

/// The value of a leader that has not told its own yet.
const NOTHING: &str = "-";

impl Process {
    /// Writes down what a view of an election shows.
    pub async fn observe(self: Arc<Self>, at: usize) {
        let place = &self.led[at];
        let mut view = place.leases.election(&place.name).observe();
        let mut orders = self.orders.clone();
        loop {
            let leader = tokio::select! {
                leader = view.changed() => leader,
                _ = orders.wait_for(|order| *order != Order::Work) => return,
            };
            let Leader { holder: Some(holder), term, value, stale_since: None, .. } = leader else {
                continue;
            };
            let (term, value) = (term.unwrap_or_default(), value.unwrap_or("none".to_owned()));
            self.log.write(What::Observed { name: place.name.clone(), term, holder, value });
        }
    }
}

impl Caller {
    /// Stands by hand, once and once more.
    pub async fn live_campaigning(mut self) {
        let process = Arc::clone(&self.process);
        while *process.orders.borrow() == Order::Work {
            let place = &process.led[self.random.below(process.led.len())];
            self.campaign(place).await;
            sleep(self.random.millis(0..60)).await;
        }
    }

    /// Leads whenever it can: as one candidate for a few terms or some seconds, and then as another.
    pub async fn live_leading(self) {
        let process = Arc::clone(&self.process);
        let caller = Arc::new(tokio::sync::Mutex::new(self));
        while *process.orders.borrow() == Order::Work {
            if let Err(error) = lead(&process, &caller).await {
                process.broken(format!("a candidate has given up: {error}"));
            }
        }
    }

    /// Stands once, for a while.
    async fn campaign(&mut self, place: &Place) {
        let limit = self.random.millis(1..600);
        let limit_ms = limit.as_millis() as u64;
        let ask = self.process.log.wanted(&place.name, "campaign", limit_ms);
        let mut candidate = place.leases.election(&place.name).candidate(NOTHING);
        let led = timeout(limit, candidate.campaign()).await;
        let led = led.map_or(Ok(None), |me| me.map(Some));
        let Some((ask, me)) = ask.brought(led).await else { return };
        let mut belief = ask.granted(&me, false);
        self.works_as_leader(place, &me, &mut belief).await;
        let ask = belief.ask();
        drop(belief);
        if self.random.once_in(3) {
            return drop(me);
        }
        if let Err(error) = me.resign().await {
            self.process.log.write(What::Unreleased { ask, why: error_word(&error) });
        }
    }

    async fn works_as_leader(&mut self, place: &Place, me: &Leadership, belief: &mut Belief) {
        if self.random.once_in(2) {
            // A loss is told by the next check.
            let _ = me.proclaim(me.holder_id().to_string()).await;
        }
        let how_long = self.at_times_long(25, place.ttl);
        self.steps(place, None, belief, me, how_long).await;
    }
}

/// Stands again and again, until the body has had enough, or it is asked to stop, or it is dropped.
async fn lead(
    process: &Arc<Process>,
    caller: &Arc<tokio::sync::Mutex<Caller>>,
) -> leasehold::Result<()> {
    let (at, limit, graceful, is_dropped, mut terms) = {
        let random = &mut caller.lock().await.random;
        let (at, terms) = (random.below(process.led.len()), 1 + random.below(6));
        let (limit, graceful) = (random.millis(500..6000), random.millis(0..50));
        (at, limit, graceful, random.once_in(3), terms)
    };
    let (caller, asks) = (Arc::clone(caller), Asks::new(process, at));
    let (place, stop) = (&process.led[at], CancellationToken::new());
    let candidate = place.leases.election(&place.name).candidate(NOTHING);
    let mut candidate = candidate.until(stop.clone()).graceful(graceful);
    let mut leading = pin!(candidate.lead(async move |me| {
        let mut caller = caller.lock().await;
        let mut term = asks.granted(me);
        let place = &asks.process.led[asks.at];
        if let Some(belief) = &mut term.belief {
            caller.works_as_leader(place, me, belief).await;
        }
        // A body that ends after the loss counts as dropped, so it can be called once more after its last term.
        terms = terms.saturating_sub(1);
        if terms == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }));
    let mut orders = process.orders.clone();
    tokio::select! {
        led = &mut leading => return led,
        () = sleep(limit) => {}
        _ = orders.wait_for(|order| *order != Order::Work) => {}
    }
    if is_dropped {
        return Ok(());
    }
    stop.cancel();
    leading.await
}

/// What a candidate that stands again asks for: always one more lease.
struct Asks {
    process: Arc<Process>,
    at: usize,
    open: Mutex<Option<Ask>>,
}

/// A term. What is believed ends with it, and then it asks again.
struct Term<'a> {
    belief: Option<Belief>,
    asks: &'a Asks,
}

impl Asks {
    fn new(process: &Arc<Process>, at: usize) -> Self {
        let asks = Self { process: Arc::clone(process), at, open: Mutex::default() };
        asks.ask();
        asks
    }

    fn ask(&self) {
        let ask = self.process.log.wanted(&self.process.led[self.at].name, "lead", 0);
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Some(ask);
    }

    fn granted(&self, me: &Leadership) -> Term<'_> {
        let ask = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        Term { belief: ask.map(|ask| ask.granted(me, false)), asks: self }
    }
}

impl Drop for Term<'_> {
    fn drop(&mut self) {
        self.belief = None;
        self.asks.ask();
    }
}
