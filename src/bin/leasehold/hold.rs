//! `hold`: holds a name until the standard input ends, for scripts.

use crate::acquire::{Acquired, Limit, ModeArgs, WaitArgs, acquire_name};
use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::outage::Outage;
use crate::output;
use crate::signals::{Endings, ended_by};
use clap::Args;
use leasehold::{Lease, LeaseManager};
use serde_json::json;
use std::convert::Infallible;
use std::io::{IsTerminal, stdin};
use tokio::io::AsyncReadExt;

/// Hold a name until the standard input ends, or a signal comes
///
/// Prints one line of JSON when it holds the name. Ends with 0 after the name was released, with 123 as soon as the lease is
/// lost, with 124 if the name was not free in time, and with 125 if the store has not answered. A terminal is not read: there, a
/// signal ends it.
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
        let exit = self.hold(&leases, limit, &mut endings).await;
        let closed = leases.close().await.map_err(|error| Failure::new(error.to_string()));
        let exit = exit?;
        closed.map(|()| exit)
    }

    async fn hold(
        &self,
        leases: &LeaseManager,
        limit: Limit,
        endings: &mut Endings,
    ) -> Result<Exit, Failure> {
        let held = tokio::select! {
            held = self.ask(leases, limit) => held?,
            // Its arrival in a line leaves with the future that is dropped, and the close waits for it.
            signal = endings.recv() => return Ok(ended_by(signal)),
        };
        let Some(Acquired { lease: held, slot }) = held else {
            output::say(&format!("{} was not free in time", self.name));
            return Ok(self.wait.busy());
        };
        let mut line = json!({
            "name": self.name,
            "holder": held.holder_id().to_string(),
            "fence": held.fence(),
            "left_ms": output::millis(held.remaining()),
        });
        if let Some(slot) = slot {
            line["slot"] = slot.into();
        }
        let printed = output::object(&line);
        if let Err(failure) = printed {
            // A script that waits for the line would wait forever.
            held.unlock().await?;
            return Err(failure);
        }
        tokio::select! {
            () = input_ends() => {}
            _ = endings.recv() => {}
            never = described(&held) => match never {},
            loss = held.lost() => {
                output::say(&format!("{} is lost: {loss}", self.name));
                say_why(&held).await;
                return Ok(Exit::LOST);
            }
        }
        match held.unlock().await {
            Ok(()) => Ok(Exit::SUCCESS),
            Err(error) if error.loss().is_some() => {
                output::say(&error.to_string());
                Ok(Exit::LOST)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn ask(&self, leases: &LeaseManager, limit: Limit) -> Result<Option<Acquired>, Failure> {
        let mode = self.mode.mode();
        let ask = async || Ok(acquire_name(leases, &self.name, mode, &self.label, limit).await?);
        Outage::new(limit).wait_out(ask).await
    }
}

/// Says who has taken a lease away, and why, if the one who did has left a note.
pub(crate) async fn say_why(lease: &Lease) {
    if let Ok(Some(note)) = lease.note().await {
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
