//! `wait`: waits until a name is free, or held, without taking it.

use crate::acquire::{Limit, WaitArgs};
use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::outage::{self, Outage};
use crate::output;
use crate::signals::{Endings, ended_by};
use clap::{Args, ValueEnum};
use leasehold::LeaseManager;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How often the store is asked. Only a release by leasehold is announced, and not of each kind of lock.
const PAUSE: Duration = Duration::from_millis(250);

/// Wait until a name is free, or held, without taking it
///
/// For deploy scripts. Another process may take the name at once: what must be alone runs under `leasehold run`. Ends with 0
/// when it is so, with 124 if it was not so in time, and with 125 if the store has not answered.
#[derive(Debug, Args)]
pub(crate) struct Wait {
    /// The name
    name: String,
    /// What to wait for
    #[arg(long, value_enum, default_value = "free")]
    until: Until,
    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Until {
    Free,
    Held,
}

impl Wait {
    pub(crate) async fn execute(self, connection: &Connection) -> Result<Exit, Failure> {
        let limit = self.wait.begin();
        let builder = connection.builder()?;
        let mut endings = Endings::new()?;
        let work = async {
            let leases = Outage::new(limit).connect(connection, &builder).await?;
            self.watch(&leases, limit).await
        };
        tokio::select! {
            biased;
            exit = work => exit,
            signal = endings.recv() => Ok(ended_by(signal)),
        }
    }

    /// Looks until it has seen the state, or the wait ends. An outage is waited out.
    async fn watch(&self, leases: &LeaseManager, limit: Limit) -> Result<Exit, Failure> {
        let mut outage = Outage::new(limit);
        // The last answer, which was that of the other state.
        let mut is_known = false;
        loop {
            let look = leases.holders(&self.name);
            let holders = match limit.left() {
                Some(left) if is_known => timeout(left, look).await.ok(),
                _ => outage::answer(limit, look).await,
            };
            match holders {
                Some(Ok(holders)) if holders.is_empty() == (self.until == Until::Free) => {
                    return Ok(Exit::SUCCESS);
                }
                Some(Ok(_)) => {
                    outage = Outage::new(limit);
                    is_known = true;
                }
                Some(Err(error)) => {
                    is_known = false;
                    outage.pause(error.into()).await?;
                    continue;
                }
                None if !is_known => return Err(outage::none_in_time()),
                None => {}
            }
            if limit.is_over() {
                let state = if self.until == Until::Free { "free" } else { "held" };
                output::say(&format!("{} was not {state} in time", self.name));
                return Ok(self.wait.busy());
            }
            sleep(limit.left().map_or(PAUSE, |left| left.min(PAUSE))).await;
        }
    }
}
