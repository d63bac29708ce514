//! Jobs that run on one of the processes, again and again under one key.

use crate::caller::Caller;
use crate::holder::{Order, Place};
use crate::worker_log::error_word;
use kit::soak::history::What;
use kit::soak::leases::LONGEST_KEEP;
use leasehold::{Lease, Once};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

impl Caller {
    /// Runs jobs whenever their keys are open.
    pub async fn live_with_jobs(mut self) {
        let process = Arc::clone(&self.process);
        while *process.orders.borrow() == Order::Work && !process.jobs.is_empty() {
            let place = &process.jobs[self.random.below(process.jobs.len())];
            self.job(place).await;
            sleep(self.random.millis(20..250)).await;
        }
    }

    async fn job(&mut self, place: &Place) {
        let log = Arc::clone(&self.process.log);
        let keep = self.random.millis(300..LONGEST_KEEP.as_millis() as u64);
        let waits = self.random.once_in(3);
        let wait = if waits { self.random.millis(1..600) } else { Duration::ZERO };
        let (how_long, fails) = (self.at_times_long(6, place.ttl), self.random.once_in(5));
        // Some are dropped wherever they are then.
        let limit = if self.random.once_in(10) { wait + how_long / 2 } else { Duration::MAX };
        let ask = log.wanted(&place.name, "once", wait.as_millis() as u64);
        let number = ask.number;
        let mut ask = Some(ask);
        let asked = &mut ask;
        let job = place.leases.once(&place.name).keep(keep).wait(wait);
        let run = job.run(async |lease: &Lease| {
            let Some(ask) = asked.take() else { return Err(()) };
            let mut belief = ask.granted(lease, false);
            self.steps(place, None, &mut belief, lease, how_long).await;
            if fails {
                log.write(What::Failed { ask: number });
            }
            // What is believed ends before the key is closed.
            drop(belief);
            if fails { Err(()) } else { Ok(()) }
        });
        let Ok(ran) = timeout(limit, run).await else { return };
        let why = match ran {
            Ok(Once::Ran(())) => {
                let keep_ms = keep.as_millis() as u64;
                return log.write(What::Ran { ask: number, keep_ms });
            }
            Ok(Once::Failed(())) => return,
            Ok(Once::Unconfirmed((), error)) => {
                return log.write(What::Unreleased { ask: number, why: error_word(&error) });
            }
            Ok(Once::AlreadyDone(_)) => "before".to_owned(),
            Ok(_) => "elsewhere".to_owned(),
            Err(error) => error_word(&error),
        };
        match ask {
            Some(ask) => ask.gave_up(&why),
            // Lost in the middle.
            None => log.gave_up(number, &why),
        }
    }
}
