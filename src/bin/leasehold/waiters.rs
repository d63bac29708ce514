//! `leasehold waiters`: which managers wait for a fair lock, in their order.

use crate::connection::Connection;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::holder_table;
use crate::output::{self, Table, UNKNOWN};
use clap::Args;
use leasehold::LeaseManager;
use leasehold::store::WaitingManager;
use serde_json::{Value, json};

const HEADER: [&str; 3] = ["MANAGER", "PROCESS", "WAITED"];

/// Show the managers that wait for a name, the oldest first
///
/// Only waiters of fair locks stand in a line, on Redis (one server, Sentinel, Cluster). Of the others it says how many
/// processes there are.
#[derive(Clone, Debug, Args)]
pub(crate) struct WaitersArgs {
    /// The name, without --prefix
    #[arg(value_name = "NAME")]
    name: String,
    /// Print an object for each manager, in a line of its own
    #[arg(long)]
    json: bool,
}

/// Shows the managers that wait for a name.
pub(crate) async fn waiters(connection: Connection, args: WaitersArgs) -> Result<Exit, Failure> {
    let leases = connection.connect().await?;
    let line = leases.waiters(&args.name).await?;
    if line.is_empty() {
        say_who_else(&leases, &args.name).await?;
    } else if args.json {
        line.iter().map(object).try_for_each(|object| output::object(&object))?;
    } else {
        Table::new(&HEADER, line.iter().map(row).collect()).print()?;
    }
    let _ = leases.close().await;
    Ok(Exit::SUCCESS)
}

/// Says how many processes wait without an order.
async fn say_who_else(leases: &LeaseManager, name: &str) -> Result<(), Failure> {
    let waiting = leases.inspect(name).await?.and_then(|holder| holder.waiting).unwrap_or(0);
    output::say(&match waiting {
        0 => format!("no manager of leasehold waits for {name}"),
        count => format!(
            "nobody waits in line for {name}; processes that wait without an order: {count}"
        ),
    });
    Ok(())
}

fn row(waiting: &WaitingManager) -> Vec<String> {
    let process = waiting.owner.as_ref().map_or_else(|| UNKNOWN.to_owned(), ToString::to_string);
    let manager = holder_table::short(&waiting.manager);
    let waited = duration::text(waiting.waited);
    vec![output::printable(&manager), output::printable(&process), waited]
}

fn object(waiting: &WaitingManager) -> Value {
    json!({
        "manager": waiting.manager,
        "owner": waiting.owner.as_ref().map(holder_table::owner),
        "waited_ms": output::millis(waiting.waited),
    })
}
