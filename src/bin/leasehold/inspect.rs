//! `leasehold inspect`: who holds a name.

use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::holder_table::{self, Entry};
use crate::output;
use clap::Args;

/// The name has no holder.
const FREE: Exit = Exit(1);

/// Show who holds a name
///
/// Shows all holders, of a read-write lock and of a semaphore too: the process, its label, the age, the time left, the
/// fencing token, and how many processes wait. A `-` stands for what the store does not know: label, age and token are known
/// of elections and of leases with a label, and the process of those that describe themselves.
///
/// Exits with 0 if the name is held or closed, with 1 if it is free, and with 125 if that is not known.
#[derive(Clone, Debug, Args)]
pub(crate) struct InspectArgs {
    /// The name, without --prefix
    #[arg(value_name = "NAME")]
    name: String,
    /// Print an object in a line
    #[arg(long)]
    json: bool,
}

/// Shows who holds a name.
pub(crate) async fn inspect(connection: Connection, args: InspectArgs) -> Result<Exit, Failure> {
    let InspectArgs { name, json } = args;
    let leases = connection.connect().await?;
    let holders = leases.holders(&name).await?;
    let _ = leases.close().await;
    let exit = if holders.is_empty() { FREE } else { Exit::SUCCESS };
    let entry = Entry::new(name, holders);
    if json {
        output::object(&entry.object())?;
    } else if entry.holders.is_empty() {
        output::say(&format!("{} is free", entry.name));
    } else {
        holder_table::print(&[entry])?;
    }
    Ok(exit)
}
