//! `hold`: holds a name until the standard input ends, for scripts.

use crate::acquire::{Acquired, Limit, ModeArgs, WaitArgs, acquire_name};
use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::outage::Outage;
use crate::output;
use crate::release::{Release, TAKEN_BACK, give_up, unconfirmed};
use crate::signals::{Endings, ended_by};
use clap::Args;
use leasehold::{Lease, LeaseManager, Loss};
use serde_json::json;
use std::convert::Infallible;
use std::io::{IsTerminal, stdin};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

/// How long the note of the one who has taken a lease away may take.
const NOTE: Duration = Duration::from_secs(1);

/// Hold a name until the standard input ends, or a signal comes
///
/// Prints one line of JSON when it holds the name. Ends with 0 after the name was released, with 123 as soon as the lease is
/// lost, with 124 if the name was not free in time, and with 125 if the line cannot be printed, or the store has not answered: at
/// the start, or at the release, which the second signal ends. A terminal is not read: there, a signal ends it.
#[derive(Debug, Args)]
pub(crate) struct Hold {
    /// The name
    name: String,
    #[command(flatten)]
    mode: ModeArgs,
    #[command(flatten)]
    wait: WaitArgs,
    /// What others see of it when they inspect the name
    #[arg(long, value_name = "TEXT", default_value = "hold")]
    label: String,
}

impl Hold {
    pub(crate) async fn execute(self, connection: &Connection) -> Result<Exit, Failure> {
        let limit = self.wait.begin();
        let builder = connection.builder()?;
        let mut endings = Endings::new()?;
        let leases = tokio::select! {
            leases = Outage::new(limit).connect(connection, &builder) => leases?,
            signal = endings.recv() => return Ok(ended_by(signal)),
        };
        let ended = tokio::select! {
            held = self.ask(&leases, limit) => match held {
                Ok(Some(held)) => return self.hold(connection, &leases, held, &mut endings).await,
                Ok(None) => {
                    output::say(&format!("{} was not free in time", self.name));
                    Ok(self.wait.busy())
                }
                Err(failure) => Err(failure),
            },
            signal = endings.recv() => Ok(ended_by(signal)),
        };
        // Its arrival in a line has left with the future that was dropped, and the close waits for it.
        give_up(&leases, TAKEN_BACK).await;
        ended
    }

    async fn hold(
        &self,
        connection: &Connection,
        leases: &LeaseManager,
        held: Acquired,
        endings: &mut Endings,
    ) -> Result<Exit, Failure> {
        let end = self.keep(&held, endings).await;
        let Acquired { lease, .. } = held;
        let (result, signals) = match end {
            End::Read(result) => (result, 0),
            End::Signalled => (Ok(()), 1),
            End::Lost(loss) => {
                output::say(&format!("{} is lost: {loss}", self.name));
                say_why(&lease).await;
                drop(lease);
                give_up(leases, last_words(connection)).await;
                return Ok(Exit::LOST);
            }
        };
        let work = async {
            match lease.unlock().await {
                Err(error) if error.loss().is_some() => Err(error),
                // What was not confirmed is tried again by the close.
                _ => Ok(leases.close().await),
            }
        };
        let mut release = Release::after(signals, &self.name);
        let signal = async || {
            endings.recv().await;
        };
        let released = release.part(work, signal).await;
        // A script that waits for the line would wait forever.
        result?;
        match released {
            Some(Ok(Ok(()))) => Ok(Exit::SUCCESS),
            Some(Ok(Err(error))) => Err(Failure::new(unconfirmed(&error))),
            Some(Err(error)) => {
                output::say(&error.to_string());
                give_up(leases, last_words(connection)).await;
                Ok(Exit::LOST)
            }
            None => Ok(Exit::FAILED),
        }
    }

    /// Keeps the name until the input ends, a signal comes, or the lease is lost. Prints the line first.
    async fn keep(&self, held: &Acquired, endings: &mut Endings) -> End {
        let Acquired { lease, slot } = held;
        let mut line = json!({
            "name": self.name,
            "holder": lease.holder_id().to_string(),
            "fence": lease.fence(),
            "left_ms": output::millis(lease.remaining()),
        });
        if let Some(slot) = slot {
            line["slot"] = (*slot).into();
        }
        let read = async {
            output::object_to_reader(&line).await?;
            input_ends().await;
            Ok(())
        };
        tokio::select! {
            result = read => End::Read(result),
            _ = endings.recv() => End::Signalled,
            never = described(lease) => match never {},
            loss = lease.lost() => End::Lost(loss),
        }
    }

    async fn ask(&self, leases: &LeaseManager, limit: Limit) -> Result<Option<Acquired>, Failure> {
        let mode = self.mode.mode();
        let ask = async || Ok(acquire_name(leases, &self.name, mode, &self.label, limit).await?);
        Outage::new(limit).wait_out(ask).await
    }
}

/// Why a name is not kept any longer.
enum End {
    /// The input has ended, or the line could not be printed.
    Read(Result<(), Failure>),
    Signalled,
    Lost(Loss),
}

/// Returns how long the store is asked after a loss: a quarter of the grace, so that the command ends before another process can
/// have the name.
fn last_words(connection: &Connection) -> Duration {
    (connection.ttl / 10).min(Duration::from_secs(2)) / 4
}

/// Says who has taken a lease away, and why, if the one who did has left a note. The store is asked only after a loss of which
/// it has spoken itself.
pub(crate) async fn say_why(lease: &Lease) {
    let loss = lease.check().err().and_then(|error| error.loss());
    if !matches!(loss, Some(Loss::Gone | Loss::Taken | Loss::Revoked | Loss::Stolen)) {
        return;
    }
    if let Ok(Ok(Some(note))) = timeout(NOTE, lease.note()).await {
        output::say(&format!("{} has taken it away: {}", note.by, note.why));
    }
}

/// Shows others the label, which is written by itself only after a while.
pub(crate) async fn described(lease: &Lease) -> Infallible {
    // It is for people, so an error is of no interest.
    let _ = lease.describe_now().await;
    std::future::pending().await
}

/// Waits for the end of the standard input.
///
/// A terminal has none: a process in the background that reads it is stopped, and a stopped process loses its lease.
async fn input_ends() {
    if stdin().is_terminal() {
        std::future::pending::<()>().await;
    }
    let mut input = tokio::io::stdin();
    let mut text = [0; 1024];
    while let Ok(1..) = input.read(&mut text).await {}
}
