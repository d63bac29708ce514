//! `unlock`: releases a name that another process holds.

use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::output;
use clap::Args;
use leasehold::HolderInfo;
use serde_json::json;
use std::io::{IsTerminal, stdin};

/// Release a name that another process holds, by force
///
/// The next holder can get the name while the old one still works, so use it only if you know that the old holder is dead or
/// must be stopped. `leasehold run` and `hold` say the reason there, and other programs find it beside their loss.
///
/// Ends with 1 if the name was not held, or is left as it is.
#[derive(Debug, Args)]
pub(crate) struct Unlock {
    /// The name
    name: String,
    /// Confirm that a lease which is in use may be taken away: there is no other way to release that of another process
    #[arg(long, required = true)]
    force: bool,
    /// The reason, for the old holder and for other operators
    #[arg(long, value_name = "TEXT")]
    why: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Print an object in a line
    #[arg(long)]
    json: bool,
}

impl Unlock {
    pub(crate) async fn execute(self, connection: &Connection) -> Result<Exit, Failure> {
        let leases = connection.connect().await?;
        let holders = leases.holders(&self.name).await?;
        for holder in &holders {
            output::say(&format!("{} is held by {}", self.name, describe(holder)));
        }
        if !self.yes && !holders.is_empty() && !self.confirmed().await? {
            let left = Failure::new(format!("{} was left as it is", self.name));
            return Err(left.with_exit(Exit(1)));
        }
        let released = leases.force_unlock(&self.name, &self.why).await?;
        if self.json {
            output::object(&json!({ "name": self.name, "released": released }))?;
        } else if released {
            output::say(&format!("{} was released", self.name));
        } else {
            output::say(&format!("{} was not held", self.name));
        }
        leases.close().await.map_err(|error| Failure::new(error.to_string()))?;
        Ok(if released { Exit::SUCCESS } else { Exit(1) })
    }

    /// Asks on the terminal.
    async fn confirmed(&self) -> Result<bool, Failure> {
        if !stdin().is_terminal() {
            return Err(Failure::new("there is no terminal to ask on: give --yes"));
        }
        output::ask(&format!("release {} although it is held? [y/N] ", self.name));
        // The runtime ends in the background, so a signal finds no thread that waits for this.
        let answer = tokio::task::spawn_blocking(|| {
            let mut answer = String::new();
            stdin().read_line(&mut answer).map(|_| answer)
        });
        let answer = answer.await.map_err(|error| Failure::new(error.to_string()))?;
        let answer =
            answer.map_err(|error| Failure::new(format!("the answer cannot be read: {error}")))?;
        Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
    }
}

/// Describes a holder to a person.
fn describe(holder: &HolderInfo) -> String {
    let id = &holder.holder;
    match &holder.owner {
        Some(owner) => format!(
            "{} (process {} on {}, holder {id})",
            if owner.service.is_empty() { "a process" } else { &owner.service },
            owner.pid,
            owner.host
        ),
        None => format!("holder {id}"),
    }
}
