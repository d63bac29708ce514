//! `wait`: waits until a name is free, or held, without taking it.

use crate::connection::Connection;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::signals::{Endings, ended_by};
use clap::{Args, ValueEnum};
use leasehold::LeaseManager;
use std::time::Duration;
use tokio::time::sleep;

/// How often the store is asked. Only a release by leasehold is announced, and not of each kind of lock.
const PAUSE: Duration = Duration::from_millis(250);

/// Wait until a name is free, or held, without taking it
///
/// For deploy scripts. Another process may take the name at once: what must be alone runs under `leasehold run`.
#[derive(Debug, Args)]
pub(crate) struct Wait {
    /// The name
    name: String,
    /// What to wait for
    #[arg(long, value_enum, default_value = "free")]
    until: Until,
    /// Wait for at most so long, then end with 124; forever by default
    #[arg(short, long, value_parser = duration::parse, value_name = "TIME")]
    wait: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Until {
    Free,
    Held,
}

impl Wait {
    pub(crate) async fn execute(self, connection: &Connection) -> Result<Exit, Failure> {
        let mut endings = Endings::new()?;
        let work = async {
            let leases = connection.connect().await?;
            self.watch(&leases).await
        };
        let limit = async {
            match self.wait {
                Some(wait) => sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            done = work => done.map(|()| Exit::SUCCESS),
            signal = endings.recv() => Ok(ended_by(signal)),
            () = limit => {
                let state = if self.until == Until::Free { "free" } else { "held" };
                output::say(&format!("{} was not {state} in time", self.name));
                Ok(Exit::BUSY)
            }
        }
    }

    /// Returns when it has seen the state. An outage is waited out, and said once.
    async fn watch(&self, leases: &LeaseManager) -> Result<(), Failure> {
        let mut said = false;
        loop {
            match leases.holders(&self.name).await {
                Ok(holders) if holders.is_empty() == (self.until == Until::Free) => return Ok(()),
                Ok(_) => said = false,
                Err(error) if error.is_retryable() => {
                    if !std::mem::replace(&mut said, true) {
                        output::say(&format!("{error}; it is asked again"));
                    }
                }
                Err(error) => return Err(error.into()),
            }
            sleep(PAUSE).await;
        }
    }
}
