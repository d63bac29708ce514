//! `leasehold list`: the names in use that begin with a text, and their holders. `holder_table.rs` has the columns.

use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::holder_table::{self, Entry};
use crate::output;
use clap::Args;
use leasehold::{Error, ErrorKind, LeaseManager, Result};
use tokio::task::JoinSet;

/// How many names are asked about at one time.
const AT_ONCE: usize = 16;
/// Why a name is shown without its holders.
const LARGE: &str = "not looked at: its key has more than 10000 entries";

/// List the names in use, with their holders
///
/// Shows for each holder: the process, its label, the age, the time left, the fencing token, and how many processes wait
/// for the name. A `-` stands for what the store does not know: label, age and token are known of elections and of leases
/// with a label, and the process of those that describe themselves. The names change while they are listed, so one that is
/// held for a moment only may be missing. Of one that is a lock and a semaphore at once, the holders of the lock are shown. On Redis the user needs `+scan +hscan +hlen +zrange`.
///
/// To look at the holders of a name, Redis reads its whole key in one step. A key with more than 10 000 entries is shown
/// without its holders; `inspect` looks at it. A key that has the shape of a lock and is none is shown with the error in the
/// place of the holder, with --json as `error`.
///
/// Exits with 0 if all names were looked at, also if there are none or some are no locks; with 125 if the store, or the
/// permissions, did not allow it. What was found before is printed.
#[derive(Clone, Debug, Args)]
pub(crate) struct ListArgs {
    // Not called `prefix`, as the option of all subcommands is: clap would take the value of one for both.
    /// How the names begin
    #[arg(value_name = "PREFIX", conflicts_with = "all")]
    beginning: Option<String>,
    /// List all names below --prefix. It reads all keys of the server
    #[arg(long)]
    all: bool,
    /// Print an object for each name, in a line of its own, as soon as it is found
    #[arg(long)]
    json: bool,
    /// How many keys the server looks at before it serves others
    #[arg(long, default_value_t = 500, value_name = "KEYS")]
    page_size: usize,
}

/// Lists names. One that cannot be inspected is shown with the error, and the others go on.
pub(crate) async fn list(connection: Connection, args: ListArgs) -> Result<Exit, Failure> {
    let prefix = args.beginning.unwrap_or_default();
    if prefix.is_empty() && !args.all {
        let message = "an empty prefix is that of all names, for which the server reads all its keys: write --all for it";
        return Err(Failure::new(message));
    }
    let leases = connection.connect().await?;
    let mut names = leases.list(prefix).page_size(args.page_size);
    let mut asked = JoinSet::new();
    let mut shown = Shown { json: args.json, entries: Vec::new(), failed: 0 };
    let mut ended = Ok(());
    while let Some(listed) = names.next().await {
        let listed = match listed {
            Ok(listed) => listed,
            // What was found is shown before.
            Err(error) => {
                ended = Err(error);
                break;
            }
        };
        let name = listed.name.to_string();
        if listed.is_large {
            shown.show(Entry::unknown(name, LARGE.to_owned()))?;
            continue;
        }
        if asked.len() >= AT_ONCE
            && let Some(Ok(answer)) = asked.join_next().await
        {
            shown.add(answer)?;
        }
        let leases = leases.clone();
        asked.spawn(async move { holders(&leases, name).await });
    }
    drop(names);
    while let Some(asked) = asked.join_next().await {
        if let Ok(answer) = asked {
            shown.add(answer)?;
        }
    }
    shown.end()?;
    let _ = leases.close().await;
    ended?;
    Ok(if shown.failed == 0 { Exit::SUCCESS } else { Exit::FAILED })
}

/// The answer to a question about a name.
struct Answer {
    name: String,
    holders: Result<Vec<leasehold::HolderInfo>>,
}

async fn holders(leases: &LeaseManager, name: String) -> Answer {
    let holders = leases.holders(&name).await;
    Answer { name, holders }
}

/// What is shown.
struct Shown {
    json: bool,
    entries: Vec<Entry>,
    /// How many names could not be inspected.
    failed: usize,
}

impl Shown {
    /// Shows a name, or keeps it for the table. A name that is free by now is not shown.
    fn add(&mut self, answer: Answer) -> Result<(), Failure> {
        let Answer { name, holders } = answer;
        match holders {
            Ok(holders) if holders.is_empty() => Ok(()),
            Ok(holders) => self.show(Entry::new(name, holders)),
            Err(error) => {
                if is_of_store(&error) {
                    self.failed += 1;
                    output::say(&format!("{name}: {error}"));
                }
                self.show(Entry::unknown(name, error.to_string()))
            }
        }
    }

    fn show(&mut self, entry: Entry) -> Result<(), Failure> {
        if self.json {
            return output::object(&entry.object());
        }
        self.entries.push(entry);
        Ok(())
    }

    fn end(&mut self) -> Result<(), Failure> {
        if self.json {
            return Ok(());
        }
        self.entries.sort_by(|one, other| one.name.cmp(&other.name));
        holder_table::print(&self.entries)
    }
}

/// Returns whether an error is about the store and the user. Otherwise the key is no lock.
fn is_of_store(error: &Error) -> bool {
    use ErrorKind::{Closed, Denied, Unavailable, Unsupported};
    matches!(error.kind(), Closed | Denied | Unavailable | Unsupported)
}
