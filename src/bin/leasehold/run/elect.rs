//! `leasehold elect`: runs a program while this machine leads, and stands again when the lead is lost.

use super::clock::Moment;
use super::environment::{Mode, Scope};
use super::held::{self, Entry};
use super::program::{Program, ended_by};
use super::signals::Signals;
use super::supervise::{Grant, Outcome, supervise};
use crate::acquire::Limit;
use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::outage::Outage;
use crate::output::say;
use crate::release::{Release, TAKEN_BACK, give_up};
use crate::runtime::on_runtime;
use crate::signals::{self, Endings};
use clap::Args;
use leasehold::store::Owner;
use leasehold::{Candidate, Leadership, LeaseManager};

/// Run a program while this machine leads, and stand again when the lead is lost
///
/// The program is started when this candidate is elected. If the lead is lost, it is stopped before another candidate can lead, as
/// `leasehold run` does it, and this one stands again. If the program ends by itself, the lead is given up, and the exit code is
/// that of the program. `leasehold leader` shows the value of the leader.
#[derive(Debug, Args)]
pub(crate) struct Elect {
    /// The name of the election
    name: String,
    /// What others see of the leader, such as its address; by default the host and the number of this process
    #[arg(long, value_name = "TEXT")]
    value: Option<String>,
    #[command(flatten)]
    program: Program,
}

impl Elect {
    pub(crate) fn execute(self, connection: &Connection) -> Result<Exit, Failure> {
        if Scope::new(connection, Mode::Lock).outer(&self.name).is_some() {
            return Err(Failure::new(format!(
                "{}: a run around this one has it (LEASEHOLD_HELD), so this one would wait forever",
                self.name
            )));
        }
        on_runtime(self.stand(connection))
    }

    async fn stand(self, connection: &Connection) -> Result<Exit, Failure> {
        let builder = self.program.builder(connection)?;
        let mut signals = Signals::of_endings()?;
        let leases = tokio::select! {
            leases = Outage::new(Limit::Forever).connect(connection, &builder) => leases?,
            signal = signals.next() => return Ok(ended_by(signal)),
        };
        self.stand_with(connection, &leases, &mut signals).await
    }

    async fn stand_with(
        &self,
        connection: &Connection,
        leases: &LeaseManager,
        signals: &mut Signals,
    ) -> Result<Exit, Failure> {
        let value = self.value.clone().unwrap_or_else(|| {
            let owner = Owner::new("");
            format!("{}:{}", owner.host, owner.pid)
        });
        let mut candidate = leases.election(&self.name).candidate(value);
        loop {
            let elected = tokio::select! {
                leadership = campaign(&mut candidate) => leadership.map_err(Err),
                signal = signals.next() => Err(Ok(ended_by(signal))),
            };
            let leadership = match elected {
                Ok(leadership) => leadership,
                Err(ended) => {
                    give_up(leases, TAKEN_BACK).await;
                    return ended;
                }
            };
            if self.program.verbose {
                say(&format!("{}: this process leads", self.name));
            }
            // The supervision forwards them to the program, so it does not say which there were.
            let mut endings = Endings::new()?;
            let outcome = self.lead(&leadership, connection, signals).await;
            if let Ok(Outcome::Lost) = outcome {
                if let Some(signal) = endings.received() {
                    drop(leadership);
                    give_up(leases, TAKEN_BACK).await;
                    return Ok(signals::ended_by(signal));
                }
                say(&format!("{}: stands again", self.name));
                continue;
            }
            let work = held::release(leadership.resign(), leases, self.program.verbose);
            Release::after(0, &self.name).part(work, async || signals.ending().await).await;
            return Ok(match outcome? {
                Outcome::Ended(code) => Exit(code),
                Outcome::Lost | Outcome::Unkept => Exit::FAILED,
            });
        }
    }

    /// Runs the program under the lease of the leader.
    async fn lead(
        &self,
        leadership: &Leadership,
        connection: &Connection,
        signals: &mut Signals,
    ) -> Result<Outcome, Failure> {
        let stop = || Moment::by(|| leadership.remaining());
        let grant = Grant {
            scope: Scope::new(connection, Mode::Lock),
            entries: vec![Entry::new(&self.name, leadership)],
            slot: None,
            grace: self.program.grace(connection),
            stop: &stop,
            lost: Box::pin(leadership.lost()),
        };
        supervise(&self.program, grant, signals).await
    }
}

/// Campaigns until this candidate leads. An outage is waited out, and said once.
async fn campaign(candidate: &mut Candidate) -> Result<Leadership, Failure> {
    Outage::new(Limit::Forever).wait_out(async || Ok(candidate.campaign().await?)).await
}
