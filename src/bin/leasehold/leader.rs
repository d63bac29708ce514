//! `leader`: shows who leads.

use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::output::{self, Table, UNKNOWN};
use crate::signals::{Endings, ended_by};
use clap::Args;
use leasehold::{Leader, LeaseManager, View};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::timeout;

/// The election has no leader.
const NO_LEADER: Exit = Exit(1);
/// How long the value of a leader that was just elected may take to be seen.
const SETTLED: Duration = Duration::from_secs(2);

/// Show who leads an election
///
/// Ends with 1 if there is no leader. What it shows can be out of date when it is read: decide by the fencing token, which is
/// the term.
#[derive(Debug, Args)]
pub(crate) struct ShowLeader {
    /// The name of the election
    name: String,
    /// Go on, with a line for each change
    #[arg(short, long)]
    follow: bool,
    /// Print an object in a line
    #[arg(long)]
    json: bool,
}

impl ShowLeader {
    pub(crate) async fn execute(self, connection: &Connection) -> Result<Exit, Failure> {
        let mut endings = Endings::new()?;
        tokio::select! {
            exit = self.show(connection) => exit,
            signal = endings.recv() => Ok(ended_by(signal)),
        }
    }

    async fn show(&self, connection: &Connection) -> Result<Exit, Failure> {
        let leases = connection.connect().await?;
        if self.follow {
            return self.follow(&leases).await;
        }
        // Reports what is wrong with the name and the store, which a view would wait out.
        leases.inspect(&self.name).await?;
        let mut view = leases.election(&self.name).observe();
        let leader = known(&mut view).await?;
        let exit = if leader.is_vacant() { NO_LEADER } else { Exit::SUCCESS };
        if self.json {
            output::object(&self.object(&leader))?;
        } else if leader.is_vacant() {
            output::say(&format!("{} has no leader", self.name));
        } else {
            let header = ["LEADER", "TERM", "PROCESS", "HOLDER"];
            Table::new(&header, vec![cells(&leader)]).print()?;
        }
        Ok(exit)
    }

    async fn follow(&self, leases: &LeaseManager) -> Result<Exit, Failure> {
        leases.inspect(&self.name).await?;
        let mut view = leases.election(&self.name).observe();
        let mut leader = known(&mut view).await?;
        loop {
            match (self.json, leader.is_vacant()) {
                (true, _) => output::object(&self.object(&leader)),
                (false, true) => output::line("no leader"),
                (false, false) => output::line(&cells(&leader).join("  ")),
            }?;
            leader = view.changed().await;
        }
    }

    fn object(&self, leader: &Leader) -> Value {
        let since = leader.since.and_then(|since| since.duration_since(UNIX_EPOCH).ok());
        json!({
            "name": self.name,
            "leader": leader.value,
            "term": leader.term,
            "holder": leader.holder,
            "host": leader.owner.as_ref().map(|owner| &owner.host),
            "pid": leader.owner.as_ref().map(|owner| owner.pid),
            "since": since.map(|since| since.as_secs_f64()),
            "stale": leader.stale_since.is_some(),
            "time": SystemTime::now().duration_since(UNIX_EPOCH).map(|now| now.as_secs_f64()).ok(),
        })
    }
}

/// Waits until the view knows whether there is a leader, and its value.
async fn known(view: &mut View) -> Result<Leader, Failure> {
    let settled = async {
        loop {
            let leader = view.current();
            let known = leader.stale_since.is_none();
            if known && (leader.is_vacant() || leader.value.is_some()) {
                return;
            }
            view.changed().await;
        }
    };
    // A holder that is no candidate has no value.
    let _ = timeout(SETTLED, settled).await;
    let leader = view.current();
    match leader.stale_since {
        Some(_) => Err(Failure::new(
            "who leads is not known: the store does not answer, or the name is that of a semaphore or a read-write lock",
        )),
        None => Ok(leader),
    }
}

fn cells(leader: &Leader) -> Vec<String> {
    let dash = || UNKNOWN.to_owned();
    vec![
        leader.value.as_deref().map_or_else(dash, output::printable),
        leader.term.map_or_else(dash, |term| term.to_string()),
        leader.owner.as_ref().map_or_else(dash, |owner| {
            format!("{} on {}", owner.pid, output::printable(&owner.host))
        }),
        leader.holder.as_deref().map_or_else(dash, output::printable),
    ]
}
