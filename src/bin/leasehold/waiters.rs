//! `leasehold waiters`: which managers wait for a fair lock, in their order.

use crate::connection::Connection;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::look;
use crate::output::{self, Table};
use clap::Args;
use leasehold::LeaseManager;
use leasehold::store::WaitingManager;
use serde_json::Map;

const HEADER: [&str; 3] = ["MANAGER", "PROCESS", "WAITED"];

/// Show who waits in line for a name, the oldest first
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

/// Shows who waits in line for a name.
pub(crate) async fn waiters(connection: Connection, args: WaitersArgs) -> Result<Exit, Failure> {
    let leases = connection.connect().await?;
    let line = leases.waiters(&args.name).await?;
    if line.is_empty() {
        say_who_else(&leases, &args.name).await?;
    } else if args.json {
        line.iter().map(object).try_for_each(output::object)?;
    } else {
        let rows: Vec<_> = line.iter().map(row).collect();
        let mut table = Table::new(&HEADER);
        rows.iter().for_each(|row| table.row(row.clone()));
        look::print_fitting(&table, &HEADER, &rows)?;
    }
    let _ = leases.close().await;
    Ok(Exit::SUCCESS)
}

/// Says how many processes wait without an order.
async fn say_who_else(leases: &LeaseManager, name: &str) -> Result<(), Failure> {
    let waiting = leases.inspect(name).await?.and_then(|holder| holder.waiting).unwrap_or(0);
    let name = output::printable(name);
    output::say(&match waiting {
        0 => format!("no manager of leasehold waits for {name}"),
        count => format!(
            "nobody waits in line for {name}; processes that wait without an order: {count}"
        ),
    });
    Ok(())
}

fn row(waiting: &WaitingManager) -> Vec<String> {
    let process = waiting.owner.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
    let manager = look::short(&waiting.manager);
    let waited = duration::text(waiting.waited);
    vec![output::printable(&manager), output::printable(&process), waited]
}

fn object(waiting: &WaitingManager) -> Map<String, serde_json::Value> {
    let mut object = Map::new();
    object.insert("manager".to_owned(), waiting.manager.clone().into());
    object.insert("owner".to_owned(), waiting.owner.as_ref().map(look::owner).into());
    object.insert("waited_ms".to_owned(), look::millis(waiting.waited).into());
    object
}
